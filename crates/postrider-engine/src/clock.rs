//! The primary's clock, as the replication stream shows it.

use crate::world::World;
use postrider_core::time::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Estimates the primary's clock from the send times in the stream. Clones share the estimate.
///
/// A message says when it was sent; it arrives later, so the difference to our own clock is too small by its time on the
/// way. The largest recent difference is the best one; it is let go of slowly, so that a corrected clock is followed.
#[derive(Debug, Clone)]
pub(crate) struct ServerClock {
    world: Arc<dyn World>,
    offset_micros: Arc<AtomicI64>,
}

/// Microseconds by which the estimate gives way at each message that says less.
const GIVE_WAY_MICROS: i64 = 50;

/// Differences above this are a clock that was set, not a message that was slow: it is taken at once.
const STEP_MICROS: i64 = 5_000_000;

impl ServerClock {
    pub(crate) fn new(world: Arc<dyn World>) -> ServerClock {
        ServerClock { world, offset_micros: Arc::new(AtomicI64::new(0)) }
    }

    /// Now, on the primary's clock.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.world.now().0.saturating_add(self.offset_micros.load(Ordering::Relaxed)))
    }

    /// A message that was sent at `sent_at` has just arrived.
    pub(crate) fn observe(&self, sent_at: Timestamp) {
        let seen = sent_at.0.saturating_sub(self.world.now().0);
        let held = self.offset_micros.load(Ordering::Relaxed);
        self.offset_micros.store(estimate(held, seen), Ordering::Relaxed);
    }
}

fn estimate(held: i64, seen: i64) -> i64 {
    if seen >= held || held.saturating_sub(seen) > STEP_MICROS {
        seen
    } else {
        held.saturating_sub(GIVE_WAY_MICROS).max(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_message_counts_and_a_set_clock_is_followed() {
        assert_eq!(estimate(-200, -80), -80);
        assert_eq!(estimate(-80, -3_000), -130);
        assert_eq!(estimate(-80, -100), -100);
        assert_eq!(estimate(0, -60_000_000), -60_000_000);
    }
}
