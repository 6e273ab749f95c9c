//! `cargo demo`: x
use clap::Args;

use crate::error::Result;

/// Run.
#[derive(Debug, Args)]
pub(crate) struct Demo {}

impl Demo {
    pub(crate) fn run(self) -> Result<bool> {
        Ok(true)
    }
}
