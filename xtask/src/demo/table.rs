//! The table at the end, and what in it is a loss.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::Serialize;

use super::record::Counts;

/// The result of a run. The names are the keys of its JSON form, in this order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Table {
    submitted: i64,
    finished: i64,
    requests: i64,
    repeats_absorbed: i64,
    effects_expected: i64,
    effects_missing: i64,
    effects_doubled: i64,
    outbox_events: i64,
    outbox_lost: i64,
    outbox_doubled: i64,
    outbox_out_of_order: i64,
    kills: i64,
    kills_in_window: i64,
    commit_to_request_p50_us: i64,
    commit_to_request_p99_us: i64,
    idle_statements_per_s: f64,
    elapsed_s: f64,
}

/// How many kills must fall between a receiver's commit and the checkpoint, for the run to have shown anything.
const LEAST_KILLS_IN_WINDOW: i64 = 5;

impl Table {
    pub(super) fn of(counts: Counts, kills: i64, idle_statements_per_s: f64, elapsed: Duration) -> Self {
        Self {
            submitted: counts.submitted,
            finished: counts.finished,
            requests: counts.requests,
            repeats_absorbed: counts.repeats_absorbed,
            effects_expected: counts.effects_expected,
            effects_missing: counts.effects_missing,
            effects_doubled: counts.effects_doubled,
            outbox_events: counts.outbox_events,
            outbox_lost: counts.outbox_lost,
            outbox_doubled: counts.outbox_doubled,
            outbox_out_of_order: counts.outbox_out_of_order,
            kills,
            kills_in_window: counts.kills_in_window,
            commit_to_request_p50_us: counts.commit_to_request_p50_us,
            commit_to_request_p99_us: counts.commit_to_request_p99_us,
            idle_statements_per_s,
            elapsed_s: (elapsed.as_secs_f64() * 10.0).round() / 10.0,
        }
    }

    /// What makes the run a failed one, in words. A run that was asked to submit or kill more than it did has failed, too, and so has one
    /// that never came to the point that it is about.
    pub(super) fn losses(&self, quotes: i64, kills: i64) -> Vec<String> {
        let none_allowed = [
            (self.effects_missing, "effects are missing"),
            (self.effects_doubled, "effects happened more than once"),
            (self.outbox_lost, "events were lost"),
            (self.outbox_doubled, "events were acted on more than once"),
            (self.outbox_out_of_order, "events were acted on out of their order"),
            (quotes - self.submitted, "quotes were not submitted"),
            (self.submitted - self.finished, "quotes were not finished"),
            (self.submitted - self.outbox_events, "events were not in the outbox"),
            (kills - self.kills, "kills did not take place"),
        ];
        let mut losses: Vec<_> = none_allowed
            .into_iter()
            .filter(|(count, _)| *count != 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if self.repeats_absorbed == 0 {
            losses.push("no repeat was absorbed, so nothing was shown".to_owned());
        }
        if self.kills_in_window < LEAST_KILLS_IN_WINDOW {
            let few = self.kills_in_window;
            losses
                .push(format!("only {few} kills fell between a commit and its checkpoint, of {LEAST_KILLS_IN_WINDOW}"));
        }
        losses
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ms = |us: i64| format!("{}.{:03} ms", us / 1_000, (us % 1_000).abs());
        let lines = [
            ("quotes submitted / finished", format!("{} / {}", self.submitted, self.finished)),
            ("stage requests received", self.requests.to_string()),
            ("  of these repeats, absorbed", self.repeats_absorbed.to_string()),
            ("effects expected", self.effects_expected.to_string()),
            ("  missing", self.effects_missing.to_string()),
            ("  doubled", self.effects_doubled.to_string()),
            ("outbox events", self.outbox_events.to_string()),
            ("  lost", self.outbox_lost.to_string()),
            ("  doubled", self.outbox_doubled.to_string()),
            ("  out of order", self.outbox_out_of_order.to_string()),
            ("orchestrator killed", self.kills.to_string()),
            ("  between commit and checkpoint", self.kills_in_window.to_string()),
            ("commit to request, p50", ms(self.commit_to_request_p50_us)),
            ("commit to request, p99", ms(self.commit_to_request_p99_us)),
            ("statements per second when idle", format!("{:.1}", self.idle_statements_per_s)),
            ("elapsed", format!("{:.1} s", self.elapsed_s)),
        ];
        writeln!(f)?;
        for (name, value) in lines {
            writeln!(f, "{name:<34} {value:>12}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Table {
        let counts = Counts {
            submitted: 1_000,
            finished: 1_000,
            requests: 4_210,
            repeats_absorbed: 190,
            effects_expected: 4_000,
            outbox_events: 1_000,
            kills_in_window: 17,
            commit_to_request_p50_us: 812,
            commit_to_request_p99_us: 2_041,
            ..Counts::default()
        };
        Table::of(counts, 20, 0.2, Duration::from_millis(31_440))
    }

    #[test]
    fn the_json_has_exactly_these_keys() {
        let json = serde_json::to_string(&good()).unwrap();
        let keys: Vec<_> = json.split('"').skip(1).step_by(2).collect();
        let expected = "submitted finished requests repeats_absorbed effects_expected effects_missing effects_doubled \
            outbox_events outbox_lost outbox_doubled outbox_out_of_order kills kills_in_window commit_to_request_p50_us \
            commit_to_request_p99_us idle_statements_per_s elapsed_s";
        assert_eq!(keys, expected.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn a_good_run_has_no_losses() {
        assert_eq!(good().losses(1_000, 20), [""; 0]);
    }

    #[test]
    fn every_way_to_lose_is_one() {
        let lose: [fn(&mut Table); 11] = [
            |table| table.effects_missing = 1,
            |table| table.effects_doubled = 1,
            |table| table.outbox_lost = 1,
            |table| table.outbox_doubled = 1,
            |table| table.outbox_out_of_order = 1,
            |table| table.submitted = 999,
            |table| table.finished = 999,
            |table| table.outbox_events = 999,
            |table| table.kills = 19,
            |table| table.repeats_absorbed = 0,
            |table| table.kills_in_window = 4,
        ];
        for change in lose {
            let mut table = good();
            change(&mut table);
            assert_ne!(table.losses(1_000, 20), [""; 0], "{table:?}");
        }
    }
}
