//! `postrider work cancel`: nothing more is done.

use super::Place;
use super::give::{Record, Rows, give};
use postrider_core::error::Result;
use postrider_core::order::Order;

/// Close rows, whatever they are doing; what a request under way comes to is not written
#[derive(Debug, clap::Args)]
pub(super) struct Cancel {
    #[command(flatten)]
    pub(super) place: Place,
    #[command(flatten)]
    rows: Rows,
    #[command(flatten)]
    record: Record,
}

impl Cancel {
    pub(super) fn obey(self) -> Result<u8> {
        give(&self.place, &self.rows, self.record, |_| Ok(Order::Cancel))
    }
}
