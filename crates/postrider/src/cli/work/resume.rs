//! `postrider work resume`: parked rows go on.

use super::Place;
use super::give::{Record, Rows, give};
use postrider_core::error::Result;
use postrider_core::order::Order;

/// Let parked rows (NON_RESUMABLE) go on, under the same key and with a fresh budget
#[derive(Debug, clap::Args)]
pub(super) struct Resume {
    #[command(flatten)]
    pub(super) place: Place,
    #[command(flatten)]
    rows: Rows,
    /// The payload was changed on purpose: send it as it is now. The receiver refuses the key with another body if it has executed it.
    #[arg(long)]
    accept_changed_payload: bool,
    #[command(flatten)]
    record: Record,
}

impl Resume {
    pub(super) fn obey(self) -> Result<u8> {
        let accept_changed_payload = self.accept_changed_payload;
        give(&self.place, &self.rows, self.record, |_| Ok(Order::Resume { accept_changed_payload }))
    }
}
