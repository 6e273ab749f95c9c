//! `postrider work resolve`: what a person found out about a request whose outcome nobody knew.

use super::give::{Record, Rows, give};
use super::{Place, next_of};
use crate::config::Work;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::order::{Found, Order};

/// Say what became of the last request of rows that are UNKNOWN or parked
#[derive(Debug, clap::Args)]
pub(super) struct Resolve {
    #[command(flatten)]
    pub(super) place: Place,
    #[command(flatten)]
    rows: Rows,
    /// What you found out.
    #[arg(long, value_enum)]
    outcome: Outcome,
    /// With `done`: where the row goes, a stage or `end`.
    #[arg(long, value_name = "STAGE")]
    to: Option<String>,
    #[command(flatten)]
    record: Record,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Outcome {
    /// The receiver did the work.
    Done,
    /// The receiver did nothing: it is asked again, under the same key.
    NotDone,
    /// Nobody knows; the receiver keeps its keys and may be asked again under the same one.
    AskAgain,
    /// It cannot be done: the row stays for a person.
    Failed,
}

impl Resolve {
    pub(super) fn obey(self) -> Result<u8> {
        let (outcome, to, why) = (self.outcome, self.to, self.record.why.clone());
        give(&self.place, &self.rows, self.record, |work| Ok(Order::Resolve(found(outcome, to, why, work)?)))
    }
}

fn found(outcome: Outcome, to: Option<String>, why: String, work: &Work) -> Result<Found> {
    match (outcome, to) {
        (Outcome::Done, Some(to)) => Ok(Found::Done { to: next_of(work, &to)? }),
        (Outcome::Done, None) => Err(Error::new(ErrorKind::Configuration, "it is not said where a done row goes")
            .with_hint("Add --to with a stage, or --to end.")),
        (_, Some(_)) => Err(Error::new(ErrorKind::Configuration, "--to goes with --outcome done")),
        (Outcome::NotDone, None) => Ok(Found::NotDone),
        (Outcome::AskAgain, None) => Ok(Found::AskAgain),
        (Outcome::Failed, None) => Ok(Found::Failed { reason: why }),
    }
}
