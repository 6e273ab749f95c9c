//! Pauses between tries: exponential, spread, bounded.

use crate::limits::Limits;
use postrider_core::stage::Backoff;
use std::time::Duration;

/// Counts failures in a row and says how long to wait after each.
#[derive(Debug)]
pub(crate) struct Pause {
    backoff: Backoff,
    failures: u32,
}

impl Pause {
    pub(crate) fn new(limits: &Limits) -> Pause {
        Pause { backoff: Backoff { first: limits.retry_first, max: limits.retry_max }, failures: 0 }
    }

    /// The pause after one more failure: between half and the whole of `first · 2^(n−1)`, at most `max`. The lower half is
    /// left out so that a fault that answers at once is not asked in a tight loop.
    pub(crate) fn next(&mut self, random: u64) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.spread(self.failures, random)
    }

    /// It worked again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.failures > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_grows_to_its_bound_and_starts_anew() {
        let limits = Limits {
            retry_first: Duration::from_millis(10),
            retry_max: Duration::from_millis(100),
            ..Limits::default()
        };
        let mut pause = Pause::new(&limits);
        let spans: Vec<u128> = (0..6).map(|_| pause.next(0).as_millis()).collect();
        assert_eq!(spans, [5, 10, 20, 40, 50, 50]);
        pause.reset();
        assert!(!pause.is_failing());
        assert_eq!(pause.next(u64::MAX).as_millis(), 9);
    }
}
