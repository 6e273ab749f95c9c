//! `postrider stage pause`: nothing is claimed for a stage or at an endpoint any more.

use super::{Order, Part, give};
use crate::cli::work::{Place, Record};
use postrider_core::error::Result;

/// Claim nothing more for a stage, or at an endpoint: calls under way end, and rows wait until it is resumed
#[derive(Debug, clap::Args)]
pub(super) struct Pause {
    #[command(flatten)]
    pub(super) place: Place,
    #[command(flatten)]
    part: Part,
    #[command(flatten)]
    record: Record,
}

impl Pause {
    pub(super) fn obey(self) -> Result<u8> {
        give(&self.place, &self.part, self.record, Order::Pause)
    }
}
