//! `postrider stage resume`: the rows that waited are claimed again.

use super::{Order, Part, give};
use crate::cli::work::{Place, Record};
use postrider_core::error::Result;

/// Claim rows again for a stage, or at an endpoint, that was paused
#[derive(Debug, clap::Args)]
pub(super) struct Resume {
    #[command(flatten)]
    pub(super) place: Place,
    #[command(flatten)]
    part: Part,
    #[command(flatten)]
    record: Record,
}

impl Resume {
    pub(super) fn obey(self) -> Result<u8> {
        give(&self.place, &self.part, self.record, Order::Resume)
    }
}
