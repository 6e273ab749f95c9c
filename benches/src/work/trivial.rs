//! The endpoint of every side alike: a call ends in the process itself, so that what differs is the table's side of the work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use postrider_core::outcome::{Answer, Declared, Outcome};
use postrider_core::ports::{BoxFuture, StageCall, StageCaller};
use tokio::time::sleep;

/// Answers each call that it is done, and counts.
#[derive(Debug, Default)]
pub(super) struct Trivial {
    /// How long a call takes; nothing where this is zero.
    takes: Duration,
    calls: AtomicU64,
    in_flight: AtomicU64,
    peak: AtomicU64,
}

impl Trivial {
    pub(super) fn new(takes: Duration) -> Self {
        Self { takes, ..Self::default() }
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// The most calls that were in flight at once.
    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

impl StageCaller for Trivial {
    fn call(&self, _call: StageCall) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            let in_flight = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
            self.peak.fetch_max(in_flight, Ordering::Relaxed);
            if self.takes > Duration::ZERO {
                sleep(self.takes).await;
            }
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            Outcome::Answered(Answer::new(200, Some(Declared::Done)))
        })
    }
}
