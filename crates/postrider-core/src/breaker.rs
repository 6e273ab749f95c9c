//! What: says how many calls an endpoint may have now, by how its last calls ended.
//! Where: beside *claim*: a row whose endpoint gets no call is not claimed, so that an outage writes nothing.
//! Takes and gives: the ends of calls, the time, a random number; an allowance.
//! Never: waits, or knows a row.

use crate::outcome::Outcome;
use crate::stage::Backoff;
use crate::time::Timestamp;

/// When an endpoint's circuit opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Calls in a row without a good end that open it; zero: it never opens.
    pub failures: u32,
    /// Until the next call that tries the endpoint again, after so many that failed.
    pub pause: Backoff,
}

/// What the end of a call says of its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// Somebody is there and answers, be it with a refusal.
    Lives,
    /// Nobody is, or what answers cannot reach whom it stands for.
    Fails,
    /// It asks for time, which says neither.
    Neither,
}

/// What a call's end changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The circuit is open: no call before this time, and then one.
    Opened { until: Timestamp },
    /// Its calls are no longer held back.
    Closed,
}

/// The circuit of one endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breaker {
    settings: BreakerSettings,
    circuit: Circuit,
    /// How often it has opened since it was closed last.
    openings: u32,
    /// How often it has opened at all: calls of an earlier era say nothing of this one.
    era: Era,
}

/// The time between two openings of a circuit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Era(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Circuit {
    /// So many calls in a row came to no good end.
    Closed {
        failures: u32,
    },
    Open {
        until: Timestamp,
    },
    /// It lives again.
    Ramp(Ramp),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ramp {
    /// So many calls at once; twice as many once so many have ended well.
    allowed: u32,
    ended_well: u32,
    /// In a row.
    failures: u32,
}

/// Once so many calls at once go well, the endpoint is left to the limits of its stages.
const RAMP_MAX: u32 = 64;

/// So many failures in a row on the ramp open the circuit again, unless fewer would have opened it before.
const RAMP_FAILURES: u32 = 3;

impl Evidence {
    pub fn of(outcome: &Outcome) -> Evidence {
        match outcome {
            Outcome::NotSent(_) | Outcome::Lost(_) => Evidence::Fails,
            Outcome::Answered(answer) => match (answer.declared, answer.status) {
                (Some(_), _) => Evidence::Lives,
                (None, 408 | 425 | 429) => Evidence::Neither,
                (None, 503) if answer.retry_after.is_some() => Evidence::Neither,
                (None, 500..=599) => Evidence::Fails,
                (None, _) => Evidence::Lives,
            },
        }
    }
}

impl Breaker {
    pub fn new(settings: BreakerSettings) -> Breaker {
        Breaker { settings, circuit: Circuit::Closed { failures: 0 }, openings: 0, era: Era::default() }
    }

    /// How many calls may be on their way at once; `None`: the breaker has no say.
    pub fn allowance(&self, now: Timestamp) -> Option<u32> {
        match self.circuit {
            Circuit::Closed { .. } => None,
            Circuit::Open { until } => Some(u32::from(until <= now)),
            Circuit::Ramp(ramp) => Some(ramp.allowed),
        }
    }

    /// The era that a call which begins now belongs to.
    pub fn era(&self) -> Era {
        self.era
    }

    /// When the next call may try the endpoint, while it is open.
    pub fn tries_at(&self) -> Option<Timestamp> {
        match self.circuit {
            Circuit::Open { until } => Some(until),
            Circuit::Closed { .. } | Circuit::Ramp(_) => None,
        }
    }

    /// Takes in the end of a call that began in `era`. `random` spreads the tries of several processes.
    pub fn note(&mut self, era: Era, evidence: Evidence, now: Timestamp, random: u64) -> Option<Change> {
        match evidence {
            // It was on its way when the circuit opened; only a call that tries the endpoint says more.
            _ if era != self.era => None,
            Evidence::Neither => None,
            Evidence::Lives => self.lives(self.circuit),
            Evidence::Fails => self.fails(self.circuit).then(|| self.open(now, random)),
        }
    }

    fn lives(&mut self, circuit: Circuit) -> Option<Change> {
        let ramp = match circuit {
            Circuit::Closed { .. } => {
                self.circuit = Circuit::Closed { failures: 0 };
                return None;
            }
            Circuit::Open { .. } => Ramp { allowed: 2, ended_well: 0, failures: 0 },
            Circuit::Ramp(ramp) => Ramp { ended_well: ramp.ended_well.saturating_add(1), failures: 0, ..ramp },
        };
        let (ends, all_went_well) = (ramp.allowed >= RAMP_MAX, ramp.ended_well >= ramp.allowed);
        if ends && all_went_well {
            *self = Breaker { era: self.era, ..Breaker::new(self.settings) };
            return Some(Change::Closed);
        }
        let next = Ramp { allowed: ramp.allowed.saturating_mul(2), ended_well: 0, failures: 0 };
        self.circuit = Circuit::Ramp(if all_went_well { next } else { ramp });
        None
    }

    /// Whether that is one too many.
    fn fails(&mut self, circuit: Circuit) -> bool {
        match circuit {
            Circuit::Closed { failures } => {
                let failures = failures.saturating_add(1);
                self.circuit = Circuit::Closed { failures };
                self.settings.failures > 0 && failures >= self.settings.failures
            }
            Circuit::Open { .. } => true,
            Circuit::Ramp(ramp) => {
                let failures = ramp.failures.saturating_add(1);
                self.circuit = Circuit::Ramp(Ramp { failures, ..ramp });
                failures >= RAMP_FAILURES.min(self.settings.failures)
            }
        }
    }

    fn open(&mut self, now: Timestamp, random: u64) -> Change {
        self.openings = self.openings.saturating_add(1);
        self.era = Era(self.era.0.saturating_add(1));
        let until = now.after(self.settings.pause.spread(self.openings, random));
        self.circuit = Circuit::Open { until };
        Change::Opened { until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Answer, Declared, Lost, NotSent};
    use std::time::Duration;

    const SETTINGS: BreakerSettings =
        BreakerSettings { failures: 3, pause: Backoff { first: Duration::from_secs(1), max: Duration::from_secs(4) } };
    const START: Timestamp = Timestamp(1_000_000_000);

    fn at(seconds: f64) -> Timestamp {
        START.after(Duration::from_secs_f64(seconds))
    }

    /// The end of a call that began just before.
    fn note(breaker: &mut Breaker, evidence: Evidence, now: Timestamp, random: u64) -> Option<Change> {
        breaker.note(breaker.era(), evidence, now, random)
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::new(SETTINGS);
        for _ in 0..2 {
            assert_eq!(note(&mut breaker, Evidence::Fails, START, 0), None);
        }
        assert_eq!(note(&mut breaker, Evidence::Fails, START, 0), Some(Change::Opened { until: at(0.5) }));
        breaker
    }

    #[test]
    fn only_failures_in_a_row_open_it() {
        let mut breaker = Breaker::new(SETTINGS);
        for _ in 0..100 {
            for evidence in [Evidence::Fails, Evidence::Neither, Evidence::Fails, Evidence::Lives] {
                assert_eq!(note(&mut breaker, evidence, START, 0), None);
                assert_eq!(breaker.allowance(START), None);
            }
        }
        opened();
        let mut never = Breaker::new(BreakerSettings { failures: 0, ..SETTINGS });
        assert!((0..100).all(|_| note(&mut never, Evidence::Fails, START, 0).is_none()));
    }

    #[test]
    fn an_open_circuit_lets_one_call_try_after_a_pause_that_doubles() {
        let mut breaker = opened();
        let mut now = START;
        for pause in [0.5, 1.0, 2.0, 2.0] {
            assert_eq!(breaker.tries_at(), Some(now.after(Duration::from_secs_f64(pause))));
            assert_eq!(breaker.allowance(now), Some(0));
            now = now.after(Duration::from_secs_f64(pause));
            assert_eq!(breaker.allowance(now), Some(1));
            assert!(matches!(note(&mut breaker, Evidence::Fails, now, 0), Some(Change::Opened { .. })));
        }
        let mut latest = Breaker::new(BreakerSettings { failures: 1, ..SETTINGS });
        note(&mut latest, Evidence::Fails, START, u64::MAX);
        assert_eq!(
            latest.tries_at(),
            Some(Timestamp(at(1.0).0 - 1)),
            "half of the pause is certain, the rest is chance"
        );
    }

    #[test]
    fn an_endpoint_that_lives_again_gets_twice_as_many_calls_each_time_that_all_went_well() {
        let mut breaker = opened();
        let now = at(0.5);
        assert_eq!(note(&mut breaker, Evidence::Lives, now, 0), None);
        for allowed in [2, 4, 8, 16, 32, 64] {
            assert_eq!(breaker.allowance(now), Some(allowed));
            for call in 1..=allowed {
                let closed = allowed == RAMP_MAX && call == allowed;
                assert_eq!(note(&mut breaker, Evidence::Lives, now, 0), closed.then_some(Change::Closed));
            }
        }
        assert_eq!(breaker.allowance(now), None);
        assert_eq!(breaker, Breaker { era: breaker.era(), ..Breaker::new(SETTINGS) }, "and all is forgotten");
    }

    #[test]
    fn calls_that_were_on_their_way_when_it_opened_say_nothing_however_late_they_end() {
        let mut breaker = Breaker::new(SETTINGS);
        let before = breaker.era();
        for _ in 0..3 {
            note(&mut breaker, Evidence::Fails, START, 0);
        }
        let opened = breaker.clone();
        for evidence in [Evidence::Fails, Evidence::Lives, Evidence::Neither] {
            for seconds in [0.1, 0.5, 60.0] {
                assert_eq!(breaker.note(before, evidence, at(seconds), 0), None);
                assert_eq!(breaker, opened);
            }
        }
    }

    #[test]
    fn failures_in_a_row_on_the_ramp_open_it_for_longer() {
        let mut breaker = opened();
        let now = at(0.5);
        note(&mut breaker, Evidence::Lives, now, 0);
        for _ in 0..10 {
            for evidence in [Evidence::Fails, Evidence::Fails, Evidence::Neither, Evidence::Lives] {
                assert_eq!(note(&mut breaker, evidence, now, 0), None, "an endpoint that fails now and then is called");
            }
        }
        let ends = [Evidence::Fails; 3].map(|evidence| note(&mut breaker, evidence, now, 0));
        assert_eq!(ends, [None, None, Some(Change::Opened { until: at(1.5) })]);
    }

    #[test]
    fn what_an_end_says_of_the_endpoint() {
        let answered = |status, declared, retry_after: Option<u64>| {
            let retry_after = retry_after.map(Duration::from_secs);
            Evidence::of(&Outcome::Answered(Answer {
                status,
                declared,
                replayed: false,
                next: None,
                retry_after,
                body_sha256: None,
            }))
        };
        assert_eq!(Evidence::of(&Outcome::NotSent(NotSent::Refused)), Evidence::Fails);
        assert_eq!(Evidence::of(&Outcome::Lost(Lost::Timeout)), Evidence::Fails);
        assert_eq!(answered(200, None, None), Evidence::Lives);
        assert_eq!(answered(404, None, None), Evidence::Lives);
        assert_eq!(answered(500, None, None), Evidence::Fails);
        assert_eq!(answered(503, None, None), Evidence::Fails);
        assert_eq!(answered(503, None, Some(1)), Evidence::Neither);
        assert_eq!(answered(429, None, None), Evidence::Neither);
        assert_eq!(answered(500, Some(Declared::Permanent), None), Evidence::Lives);
    }
}
