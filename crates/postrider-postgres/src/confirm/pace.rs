//! When the next standby status update is due.

use std::time::{Duration, Instant};

use postrider_core::position::Lsn;

/// The longest silence, whatever the server allows; a server without a time-out hears from us too.
const PERIOD_MAX: Duration = Duration::from_secs(10);
/// The shortest period that a time-out leads to.
const PERIOD_MIN: Duration = Duration::from_millis(10);
/// The shortest gap between updates that nobody waits for: each costs the server a write of the slot's file at most.
const GAP: Duration = Duration::from_millis(100);
/// More wishes for an answer than this within the window, with nothing new, are a storm: at its shutdown a server
/// asks in a tight loop for
/// a position that we cannot confirm yet.
const STORM_ASKS: u32 = 50;
const STORM_WINDOW: Duration = Duration::from_secs(1);
/// How long a storm is borne: what can still be confirmed comes within it, and the server waits for nothing else.
const STORM_GRACE: Duration = Duration::from_secs(2);

/// What there is to say.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wants {
    /// The position is higher than the one said last.
    pub(super) risen: bool,
    /// So it is, and it must not wait for the gap.
    pub(super) urgent: bool,
    /// The server asked for an answer.
    pub(super) owed: bool,
}

/// Counts and times; the present comes as an argument.
#[derive(Debug)]
pub(super) struct Pace {
    period: Duration,
    sent_at: Instant,
    asked_wal_end: Lsn,
    asked_at: Option<Instant>,
    window_began: Instant,
    asks: u32,
    /// Since when the storm goes on.
    storming_since: Option<Instant>,
}

impl Pace {
    /// `wal_sender_timeout` is zero where the server has none.
    pub(super) fn new(wal_sender_timeout: Duration, now: Instant) -> Pace {
        let period = if wal_sender_timeout.is_zero() {
            PERIOD_MAX
        } else {
            (wal_sender_timeout / 3).clamp(PERIOD_MIN, PERIOD_MAX)
        };
        Pace {
            period,
            sent_at: now,
            asked_wal_end: Lsn::ZERO,
            asked_at: None,
            window_began: now,
            asks: 0,
            storming_since: None,
        }
    }

    /// The server asked for an answer, with its log read up to `wal_end`.
    pub(super) fn note_ask(&mut self, wal_end: Lsn, now: Instant) {
        let quiet = self.asked_at.is_none_or(|at| now.saturating_duration_since(at) > STORM_WINDOW);
        if wal_end != self.asked_wal_end || quiet {
            self.storming_since = None;
            self.begin_window(now);
        } else if now.saturating_duration_since(self.window_began) > STORM_WINDOW {
            self.begin_window(now);
        }
        self.asked_wal_end = wal_end;
        self.asked_at = Some(now);
        self.asks = self.asks.saturating_add(1);
        if self.asks > STORM_ASKS {
            self.storming_since.get_or_insert(now);
        }
    }

    pub(super) fn note_sent(&mut self, now: Instant) {
        self.sent_at = now;
    }

    /// The server has waited long enough for a position that we cannot confirm: only our going lets it shut down.
    pub(super) fn is_awaited_in_vain(&self) -> bool {
        self.storming_since
            .zip(self.asked_at)
            .is_some_and(|(since, asked)| asked.saturating_duration_since(since) > STORM_GRACE)
    }

    /// When to send, in the past or present for "at once".
    pub(super) fn due(&self, wants: Wants, now: Instant) -> Instant {
        if wants.urgent || (wants.owed && self.storming_since.is_none()) {
            return now;
        }
        if wants.risen || wants.owed { self.sent_at + GAP.min(self.period) } else { self.sent_at + self.period }
    }

    fn begin_window(&mut self, now: Instant) {
        self.window_began = now;
        self.asks = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Wants = Wants { risen: false, urgent: false, owed: false };
    const OWED: Wants = Wants { owed: true, ..NOTHING };
    const RISEN: Wants = Wants { risen: true, ..NOTHING };
    const URGENT: Wants = Wants { urgent: true, ..RISEN };

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn the_period_is_a_third_of_the_time_out_and_ten_seconds_at_most() {
        let start = Instant::now();
        for (time_out, period) in [(60_000, 10_000), (0, 10_000), (9_000, 3_000), (1_000, 333), (1, 10)] {
            let due = Pace::new(millis(time_out), start).due(NOTHING, start);
            assert_eq!((due - start).as_millis(), period, "time-out {time_out}");
        }
    }

    #[test]
    fn a_new_position_waits_for_the_gap_and_an_urgent_one_for_nothing() {
        let start = Instant::now();
        let pace = Pace::new(millis(60_000), start);
        let now = start + millis(30);
        assert_eq!(pace.due(RISEN, now), start + millis(100));
        assert_eq!(pace.due(URGENT, now), now);
        assert_eq!(pace.due(OWED, now), now);
    }

    #[test]
    fn a_storm_is_answered_ten_times_a_second_until_something_changes() {
        let start = Instant::now();
        let mut pace = Pace::new(millis(60_000), start);
        let (mut now, mut answers) = (start, 0);
        // A server that asks again as soon as it has its answer, a hundred microseconds away.
        while now < start + Duration::from_secs(10) {
            pace.note_ask(Lsn(7), now);
            now = pace.due(OWED, now).max(now);
            pace.note_sent(now);
            answers += 1;
            now += Duration::from_micros(100);
        }
        assert!((100..=160).contains(&answers), "{answers} answers in ten seconds");
        // An urgent confirm goes through at once, and so does an answer for another position.
        assert_eq!(pace.due(URGENT, now), now);
        pace.note_ask(Lsn(8), now);
        assert_eq!(pace.due(OWED, now), now);
    }

    /// Asks for one position for `span`, again a hundred microseconds after each answer.
    fn storm(pace: &mut Pace, wal_end: Lsn, began: Instant, span: Duration) -> Instant {
        let mut now = began;
        while now < began + span {
            pace.note_ask(wal_end, now);
            now = pace.due(OWED, now).max(now) + Duration::from_micros(100);
            pace.note_sent(now);
        }
        now
    }

    #[test]
    fn a_storm_is_borne_for_two_seconds() {
        let start = Instant::now();
        let mut pace = Pace::new(millis(60_000), start);
        let now = storm(&mut pace, Lsn(7), start, millis(1_900));
        assert!(!pace.is_awaited_in_vain());
        // Whatever the server still writes begins it anew, and so does a silence.
        let now = storm(&mut pace, Lsn(8), now, millis(1_900));
        assert!(!pace.is_awaited_in_vain());
        let now = storm(&mut pace, Lsn(8), now + millis(1_500), millis(1_900));
        assert!(!pace.is_awaited_in_vain());
        storm(&mut pace, Lsn(8), now, millis(500));
        assert!(pace.is_awaited_in_vain());
    }

    #[test]
    fn the_asks_of_an_idle_stream_are_no_storm() {
        let start = Instant::now();
        let mut pace = Pace::new(millis(60_000), start);
        for turn in 0..1000 {
            let now = start + millis(100) * turn;
            pace.note_ask(Lsn(7), now);
            assert_eq!(pace.due(OWED, now), now);
            assert!(!pace.is_awaited_in_vain());
        }
    }
}
