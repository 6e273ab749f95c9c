//! How long rows waited: so many, and how their waits are spread, in memory that does not grow.

use std::time::Duration;

/// Buckets of each doubling: what is told is at most a sixteenth too long.
const PARTS: u64 = 16;

/// Enough for every number of microseconds.
const BUCKETS: usize = 61 * 16;

/// Waits, counted by length.
#[derive(Debug, Clone)]
pub(super) struct Delays {
    counts: Box<[u64]>,
    count: u64,
    longest: Duration,
}

/// What is told of waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DelaySummary {
    pub count: u64,
    pub p50: Duration,
    pub p99: Duration,
    pub longest: Duration,
}

impl Default for Delays {
    fn default() -> Delays {
        Delays { counts: vec![0; BUCKETS].into(), count: 0, longest: Duration::ZERO }
    }
}

impl Delays {
    pub(super) fn note(&mut self, wait: Duration) {
        let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        if let Some(count) = self.counts.get_mut(bucket(micros)) {
            *count += 1;
        }
        self.count += 1;
        self.longest = self.longest.max(wait);
    }

    pub(super) fn summary(&self) -> DelaySummary {
        let at = |percent: u64| self.quantile(percent).min(self.longest);
        DelaySummary { count: self.count, p50: at(50), p99: at(99), longest: self.longest }
    }

    /// So many percent waited no longer than this, to the end of the bucket.
    fn quantile(&self, percent: u64) -> Duration {
        let rank = self.count.saturating_mul(percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_micros(end_of(index));
            }
        }
        self.longest
    }
}

/// The bucket of a wait: the first sixteen microseconds have one each, and each doubling from there on has sixteen.
fn bucket(micros: u64) -> usize {
    let doubling = u64::from(micros.max(PARTS).ilog2() - PARTS.ilog2());
    let index = doubling * PARTS + (micros >> doubling);
    usize::try_from(index).unwrap_or(usize::MAX)
}

/// The longest wait of a bucket.
fn end_of(index: usize) -> u64 {
    let index = u64::try_from(index).unwrap_or(u64::MAX);
    let doubling = (index / PARTS).saturating_sub(1);
    let first = (index - doubling * PARTS) << doubling;
    first + ((1 << doubling) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wait_has_a_bucket_that_is_at_most_a_sixteenth_too_long() {
        let mut before = 0;
        for shift in 0..64 {
            for micros in [1_u64 << shift, (1_u64 << shift) + (1 << shift) / 3, u64::MAX >> (63 - shift)] {
                let index = bucket(micros);
                assert!(index >= before && index < BUCKETS, "{micros}: {index}");
                let end = end_of(index);
                assert!(end >= micros && end - micros <= micros / PARTS, "{micros}: {end}");
                before = index;
            }
        }
        assert_eq!((bucket(0), end_of(bucket(0))), (0, 0));
    }

    #[test]
    fn the_percentiles_are_those_of_the_waits() {
        let mut delays = Delays::default();
        assert_eq!(delays.summary(), DelaySummary::default());
        (1..=100).for_each(|millis| delays.note(Duration::from_millis(millis)));
        let DelaySummary { count, p50, p99, longest } = delays.summary();
        assert_eq!((count, longest), (100, Duration::from_millis(100)));
        let near = |wait: Duration, millis: u64| {
            let exact = Duration::from_millis(millis);
            wait >= exact && wait <= exact + exact / 16
        };
        assert!(near(p50, 50) && near(p99, 99), "{p50:?} {p99:?}");
        let mut one = Delays::default();
        one.note(Duration::from_micros(12_345));
        assert_eq!(one.summary().p50, Duration::from_micros(12_345), "never longer than the longest");
    }
}
