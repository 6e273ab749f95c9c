//! How often calls may leave: a token bucket, as a pure decision with the time as an argument.
//!
//! A call is promised its token when its row is claimed, and takes it when it leaves, so that a claim that comes back late never
//! makes calls leave in a crowd. Over any span of time no more leave than the burst and what the rate gives in that span.

use crate::time::Timestamp;
use std::time::Duration;

/// So many calls in so long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// At least 1.
    pub calls: u32,
    /// Longer than nothing.
    pub per: Duration,
    /// So many may leave at once after a quiet time; at least 1.
    pub burst: u32,
}

/// The tokens of one rate. A clock that is set back gives none and takes none away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    rate: Rate,
    /// When it was full, or will be, in parts of a microsecond: as many parts as the rate has calls, so that a token comes after a
    /// whole number of them.
    full_at: i128,
    /// Tokens of calls that have not left yet.
    promised: u32,
}

impl Bucket {
    /// A full one.
    pub fn new(rate: Rate) -> Bucket {
        Bucket { rate, full_at: i128::MIN, promised: 0 }
    }

    /// So many further calls may be promised a token.
    pub fn free(&self, now: Timestamp) -> u32 {
        self.tokens(now).saturating_sub(self.promised)
    }

    /// A call will leave: the next of those that are [free](Bucket::free) is kept for it.
    pub fn promise(&mut self) {
        self.promised = self.promised.saturating_add(1);
    }

    /// A call that was promised a token will not leave.
    pub fn withdraw(&mut self) {
        self.promised = self.promised.saturating_sub(1);
    }

    /// A call that was promised a token leaves.
    pub fn take(&mut self, now: Timestamp) {
        self.withdraw();
        self.full_at = self.full_at.max(self.parts(now)).saturating_add(self.token_parts());
    }

    /// How long until one more is free, if nothing leaves meanwhile and the promised tokens stay promised. `None`: one is free now, or
    /// all there can be are promised.
    pub fn until_free(&self, now: Timestamp) -> Option<Duration> {
        let wanted = self.promised.saturating_add(1);
        if self.free(now) > 0 || wanted > self.rate.burst {
            return None;
        }
        // The bucket has `wanted` tokens once no more than the others are missing.
        let missing = i128::from(self.rate.burst.saturating_sub(wanted)).saturating_mul(self.token_parts());
        let parts = self.full_at.saturating_sub(missing).saturating_sub(self.parts(now));
        let calls = i128::from(self.rate.calls.max(1));
        let micros = parts.saturating_add(calls - 1) / calls;
        Some(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
    }

    fn tokens(&self, now: Timestamp) -> u32 {
        let behind = self.full_at.saturating_sub(self.parts(now)).max(0);
        let missing = behind.saturating_add(self.token_parts() - 1) / self.token_parts();
        self.rate.burst.saturating_sub(u32::try_from(missing).unwrap_or(u32::MAX))
    }

    /// The time between two tokens.
    fn token_parts(&self) -> i128 {
        i128::try_from(self.rate.per.as_micros()).unwrap_or(i128::MAX).max(1)
    }

    fn parts(&self, now: Timestamp) -> i128 {
        i128::from(now.0).saturating_mul(i128::from(self.rate.calls.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(micros: i64) -> Timestamp {
        Timestamp(1_700_000_000_000_000 + micros)
    }

    fn rate(calls: u32, per: Duration, burst: u32) -> Rate {
        Rate { calls, per, burst }
    }

    /// Promises and takes as many as are free.
    fn drain(bucket: &mut Bucket, now: Timestamp) -> u32 {
        let free = bucket.free(now);
        for _ in 0..free {
            bucket.promise();
            bucket.take(now);
        }
        free
    }

    #[test]
    fn a_burst_leaves_at_once_and_then_one_in_its_time() {
        let mut bucket = Bucket::new(rate(100, Duration::from_secs(1), 5));
        assert_eq!(drain(&mut bucket, at(0)), 5);
        assert_eq!(bucket.until_free(at(0)), Some(Duration::from_millis(10)));
        assert_eq!((bucket.free(at(9_999)), bucket.free(at(10_000))), (0, 1));
        assert_eq!(drain(&mut bucket, at(35_000)), 3);
        assert_eq!(bucket.until_free(at(35_000)), Some(Duration::from_millis(5)));
        assert_eq!(drain(&mut bucket, at(3_600_000_000)), 5, "no more than the burst is saved up");
    }

    #[test]
    fn three_a_second_are_exactly_three_a_second_for_ever() {
        let mut bucket = Bucket::new(rate(3, Duration::from_secs(1), 2));
        let mut now = at(0);
        assert_eq!(drain(&mut bucket, now), 2);
        for _ in 0..3_000 {
            let wait = bucket.until_free(now).expect("the bucket is empty");
            assert_eq!(bucket.free(now.after(wait - Duration::from_micros(1))), 0);
            now = now.after(wait);
            assert_eq!(drain(&mut bucket, now), 1);
        }
        // Each wait ends at a whole microsecond, and none of that is lost.
        assert_eq!(now.since(at(0)), Duration::from_secs(1_000));
    }

    #[test]
    fn what_is_promised_is_kept_until_it_leaves_or_is_withdrawn() {
        let mut bucket = Bucket::new(rate(1, Duration::from_secs(1), 2));
        bucket.promise();
        bucket.promise();
        assert_eq!((bucket.free(at(0)), bucket.until_free(at(0))), (0, None));
        bucket.withdraw();
        assert_eq!(bucket.free(at(0)), 1);
        bucket.take(at(5_000_000));
        assert_eq!(bucket.free(at(5_000_000)), 1, "of two one has left, and nothing more was saved up");
    }

    #[test]
    fn a_clock_that_is_set_back_gives_nothing() {
        let mut bucket = Bucket::new(rate(1, Duration::from_secs(1), 1));
        assert_eq!(drain(&mut bucket, at(0)), 1);
        assert_eq!(bucket.free(at(-60_000_000)), 0);
        assert_eq!(bucket.free(at(1_000_000)), 1);
    }

    proptest! {
        /// Against what a rate is: of any two moments, no more leave between them than the burst and what the time gives; and who waits as
        /// long as told finds a token.
        #[test]
        fn no_span_of_time_sees_more_than_burst_and_rate(
            calls in 1_u32..1_000,
            per_ms in 1_u64..5_000,
            burst in 1_u32..20,
            steps in proptest::collection::vec((0_i64..200_000, 0_u32..8, any::<bool>()), 1..80),
        ) {
            let per = Duration::from_millis(per_ms);
            let mut bucket = Bucket::new(rate(calls, per, burst));
            let mut now = at(0);
            let mut promised = 0;
            let mut left: Vec<Timestamp> = Vec::new();
            for (micros, wanted, late) in steps {
                now = now.after(Duration::from_micros(micros.unsigned_abs()));
                let free = bucket.free(now);
                for _ in 0..wanted.min(free) {
                    bucket.promise();
                    promised += 1;
                }
                if !late {
                    for _ in 0..promised {
                        bucket.take(now);
                        left.push(now);
                    }
                    promised = 0;
                }
                if let Some(wait) = bucket.until_free(now) {
                    prop_assert!(bucket.free(now.after(wait)) >= 1);
                }
            }
            for (first, from) in left.iter().enumerate() {
                for (last, to) in left.iter().enumerate().skip(first) {
                    let count = u128::try_from(last - first + 1).expect("a count");
                    let gives = to.since(*from).as_micros() * u128::from(calls) / per.as_micros();
                    prop_assert!(count <= u128::from(burst) + gives, "{count} in {:?}", to.since(*from));
                }
            }
        }
    }
}
