//! `postrider work retry`: rows that wait for their time are due now.

use super::Place;
use super::give::{Record, Rows, give};
use postrider_core::error::Result;
use postrider_core::order::Order;

/// Make rows due now that wait for their next attempt
#[derive(Debug, clap::Args)]
pub(super) struct Retry {
    #[command(flatten)]
    pub(super) place: Place,
    #[command(flatten)]
    rows: Rows,
    #[command(flatten)]
    record: Record,
}

impl Retry {
    pub(super) fn obey(self) -> Result<u8> {
        give(&self.place, &self.rows, self.record, |_| Ok(Order::Retry))
    }
}
