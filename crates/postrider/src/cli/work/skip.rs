//! `postrider work skip`: a stage was done by hand.

use super::give::{Record, Rows, give};
use super::{Place, next_of};
use postrider_core::error::Result;
use postrider_core::order::Order;

/// Take a stage for done that was done by hand, and go on
#[derive(Debug, clap::Args)]
pub(super) struct Skip {
    #[command(flatten)]
    pub(super) place: Place,
    /// The row's key: a word for each of its columns.
    #[arg(required = true)]
    key: Vec<String>,
    /// Where the row goes: a stage, or `end`.
    #[arg(long, value_name = "STAGE")]
    to: String,
    /// The fence that `postrider work show` told: a row that has moved on since is left alone.
    #[arg(long, value_name = "FENCE")]
    fence: Option<i64>,
    #[command(flatten)]
    record: Record,
}

impl Skip {
    pub(super) fn obey(self) -> Result<u8> {
        give(&self.place, &Rows::one(self.key, self.fence), self.record, |work| {
            Ok(Order::Skip { to: next_of(work, &self.to)? })
        })
    }
}
