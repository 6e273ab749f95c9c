//! `postrider work reexecute`: a stage once more, under a new key.

use super::give::{Record, Rows, give};
use super::{Place, stage_of};
use postrider_core::error::Result;
use postrider_core::order::Order;

/// Execute a stage once more, under a new key: what it did before, it does again
#[derive(Debug, clap::Args)]
pub(super) struct Reexecute {
    #[command(flatten)]
    pub(super) place: Place,
    /// The row's key: a word for each of its columns.
    #[arg(required = true)]
    key: Vec<String>,
    /// The stage; else the one that the row is in.
    #[arg(long)]
    stage: Option<String>,
    /// Yes: the receiver cannot tell it from new work, and does it again.
    #[arg(long, required = true)]
    yes_new_key: bool,
    /// The fence that `postrider work show` told: a row that has moved on since is left alone.
    #[arg(long, value_name = "FENCE")]
    fence: i64,
    #[command(flatten)]
    record: Record,
}

impl Reexecute {
    pub(super) fn obey(self) -> Result<u8> {
        give(&self.place, &Rows::one(self.key, Some(self.fence)), self.record, |work| {
            let stage = self.stage.as_deref().map(|stage| stage_of(work, stage)).transpose()?;
            Ok(Order::Reexecute { stage })
        })
    }
}
