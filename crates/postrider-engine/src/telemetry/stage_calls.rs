//! How a stage's calls end: what is wrong with it now, and how often it was wrong of late.
//!
//! A stage where one row in ten fails ends most of its calls well. So what is counted is a stretch of time, and not only what has
//! come since the last good end.

use postrider_core::stage::StageClass;
use postrider_core::time::Timestamp;
use std::time::Duration;

/// For so long an end counts as one of late, by the minute.
pub const LATE: Duration = Duration::from_secs(600);

const LATE_MINUTES: i64 = 10;
const MINUTE_US: i64 = 60_000_000;

/// The calls of one stage that have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageCalls {
    class: StageClass,
    /// One for each minute that is late, at the minute modulo their number.
    periods: [Period; 10],
    last: Option<BadEnd>,
    streak: Option<Streak>,
}

/// A call that came to no good end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadEnd {
    pub harm: StageHarm,
    /// What came of it.
    pub reason: String,
    /// By this machine's clock.
    pub at: Timestamp,
}

/// Calls without a good end among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streak {
    /// When the first of them ended.
    pub since: Timestamp,
    pub calls: u64,
}

/// What it costs the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageHarm {
    /// They wait, and nothing was sent.
    Waiting,
    /// They wait as the receiver asked, and use deferrals.
    Deferring,
    /// They are asked again, and use attempts.
    Retrying,
    /// A person must decide.
    Parking,
    /// A person must find out what was done.
    Unknown,
}

/// A stage in trouble.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageTrouble {
    pub class: StageClass,
    /// Calls of late ([`LATE`]) that came to no good end.
    pub failed: u64,
    /// Calls of late, with them.
    pub ended: u64,
    /// The last one that came to no good end.
    pub last: BadEnd,
    /// Where the last call of all came to none: those since the last good end.
    pub streak: Option<Streak>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Period {
    /// Minutes since 1970.
    minute: i64,
    ended: u64,
    failed: u64,
}

impl StageCalls {
    pub fn new(class: StageClass) -> StageCalls {
        StageCalls { class, periods: [Period::default(); 10], last: None, streak: None }
    }

    /// A call came to a good end.
    pub fn note_good(&mut self, at: Timestamp) {
        self.streak = None;
        if let Some(period) = self.period(at) {
            period.ended = period.ended.saturating_add(1);
        }
    }

    /// A call came to no good end.
    pub fn note_bad(&mut self, end: BadEnd) {
        let streak = self.streak.get_or_insert(Streak { since: end.at, calls: 0 });
        streak.calls = streak.calls.saturating_add(1);
        if let Some(period) = self.period(end.at) {
            period.ended = period.ended.saturating_add(1);
            period.failed = period.failed.saturating_add(1);
        }
        self.last = Some(end);
    }

    /// What is wrong at `now`: until a call comes to a good end, and as long as there is one of late that did not.
    pub fn trouble(&self, now: Timestamp) -> Option<StageTrouble> {
        let before = minute(now).saturating_sub(LATE_MINUTES);
        let late = self.periods.iter().filter(|period| period.minute > before);
        let (failed, ended) =
            late.fold((0, 0), |(failed, ended), period| (failed + period.failed, ended + period.ended));
        let last = self.last.clone().filter(|_| failed > 0 || self.streak.is_some())?;
        Some(StageTrouble { class: self.class, failed, ended, last, streak: self.streak })
    }

    fn period(&mut self, at: Timestamp) -> Option<&mut Period> {
        let minute = minute(at);
        let index = usize::try_from(minute.rem_euclid(LATE_MINUTES)).ok()?;
        let period = self.periods.get_mut(index)?;
        if period.minute != minute {
            *period = Period { minute, ..Period::default() };
        }
        Some(period)
    }
}

fn minute(at: Timestamp) -> i64 {
    at.0.div_euclid(MINUTE_US)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp(1_700_000_000_000_000 + seconds * 1_000_000)
    }

    fn bad(seconds: i64) -> BadEnd {
        BadEnd { harm: StageHarm::Retrying, reason: format!("at {seconds}"), at: at(seconds) }
    }

    /// Failed and ended calls, and how many in a row.
    fn seen(calls: &StageCalls, seconds: i64) -> Option<(u64, u64, Option<u64>)> {
        calls
            .trouble(at(seconds))
            .map(|trouble| (trouble.failed, trouble.ended, trouble.streak.map(|streak| streak.calls)))
    }

    #[test]
    fn a_stage_that_fails_now_and_then_is_in_trouble_until_it_has_not_for_a_while() {
        let mut calls = StageCalls::new(StageClass::Natural);
        calls.note_good(at(0));
        assert_eq!(seen(&calls, 0), None);
        calls.note_bad(bad(1));
        assert_eq!(seen(&calls, 1), Some((1, 2, Some(1))));
        for second in 2..10 {
            calls.note_good(at(second));
        }
        assert_eq!(seen(&calls, 10), Some((1, 10, None)));
        calls.note_bad(bad(300));
        calls.note_good(at(301));
        assert_eq!(seen(&calls, 301), Some((2, 12, None)));
        assert_eq!(calls.trouble(at(301)).unwrap().last, bad(300));
        assert_eq!(seen(&calls, 700), Some((1, 2, None)), "the first ten minutes are over");
        assert_eq!(seen(&calls, 1_000), None);
    }

    #[test]
    fn a_stage_that_only_fails_is_in_trouble_however_seldom_it_is_called() {
        let mut calls = StageCalls::new(StageClass::Keyed);
        calls.note_bad(bad(0));
        calls.note_bad(bad(5_000));
        assert_eq!(seen(&calls, 20_000), Some((0, 0, Some(2))));
        assert_eq!(calls.trouble(at(20_000)).unwrap().streak.unwrap().since, at(0));
        calls.note_good(at(20_001));
        assert_eq!(seen(&calls, 20_001), None);
    }

    #[test]
    fn a_clock_that_is_set_back_hides_nothing() {
        let mut calls = StageCalls::new(StageClass::Natural);
        calls.note_bad(bad(0));
        calls.note_good(at(-90));
        assert_eq!(seen(&calls, -90), Some((1, 2, None)));
        assert_eq!(seen(&calls, 7_200), None);
    }
}
