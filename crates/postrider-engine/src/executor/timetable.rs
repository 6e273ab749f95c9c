//! What: says when all open rows are swept, and when what a sweep found is looked at again.
//! Where: beside the loop; *sweep* says what is looked for.
//! Takes and gives: the times of reads, and the transactions that a read could not see; whether a sweep is due, and of which kind.
//! Never: sweeps more often than the period says, but for a while behind a read on which the log goes on.
//!
//! Behind such a read there may be rows that neither it nor the log has shown. A commit can be in the log long before anybody sees it, while
//! it waits for a synchronous standby, and our place in the log may be past it. Early sweeps find what it wrote: the first some seconds after the
//! read, and more, each after twice the pause, while transactions still run that may be such a commit.

use postrider_core::position::Lsn;
use postrider_core::snapshot::Snapshot;
use postrider_core::time::Timestamp;
use std::time::Duration;

/// From the read of all open rows to the first early sweep.
const EARLY: Duration = Duration::from_secs(3);

/// Between two looks whether the log has brought what a sweep found.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// When the open rows are swept.
#[derive(Debug)]
pub(super) struct Timetable {
    period: Duration,
    /// The next sweep that comes in any case.
    at: Timestamp,
    early: Option<Early>,
    /// What must have happened before a row that a sweep found counts as missed by the log.
    pub(super) second_look: Option<SecondLook>,
}

/// The sweeps that may come before.
#[derive(Debug)]
struct Early {
    at: Timestamp,
    pause: Duration,
    unseen: Unseen,
}

/// Of which transactions neither a read nor the log may have shown the rows.
#[derive(Debug)]
enum Unseen {
    /// Those that this read did not see.
    By(Snapshot),
    /// Of these, those that still run.
    Some(Vec<u64>),
}

/// The kinds of sweeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// Behind a read of all open rows.
    Early,
    /// The one that comes in any case.
    #[default]
    Slow,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum SecondLook {
    /// A heartbeat that was written after the sweep came back: the log has been received that far.
    AfterHeartbeat(Timestamp),
    /// And what was received by then was taken in.
    AfterLog(Lsn),
}

impl Timetable {
    pub(super) fn new(now: Timestamp, period: Duration) -> Timetable {
        Timetable { period, at: now.after(period), early: None, second_look: None }
    }

    /// The sweep that is due, if one is and nothing is left of the last.
    pub(super) fn due(&self, now: Timestamp) -> Option<Sweep> {
        let early = self.early.as_ref().is_some_and(|early| early.at <= now);
        match self.second_look {
            Some(_) => None,
            None if self.at <= now => Some(Sweep::Slow),
            None => early.then_some(Sweep::Early),
        }
    }

    /// How long until something is due, while no sweep is under way. `looking`: the second look is.
    pub(super) fn until(&self, now: Timestamp, looking: bool) -> Option<Duration> {
        if self.second_look.is_some() {
            return (!looking).then_some(SECOND_LOOK);
        }
        let early = self.early.as_ref().map_or(self.at, |early| early.at);
        Some(self.at.min(early).since(now))
    }

    /// All open rows begin to be read, by a sweep of that kind or by no sweep. One that fails is left to the next.
    pub(super) fn begins(&mut self, now: Timestamp, sweep: Option<Sweep>) {
        match (sweep, &mut self.early) {
            (Some(Sweep::Early), Some(early)) => early.at = now.after(early.pause),
            (Some(Sweep::Early), None) => {}
            (None, _) => self.at = now.after(self.period),
            (Some(Sweep::Slow), early) => {
                *early = None;
                self.at = now.after(self.period);
            }
        }
    }

    /// All open rows were read, and the log goes on from a place that does not depend on what the read saw.
    pub(super) fn loaded(&mut self, now: Timestamp, seen: &Snapshot) {
        self.early = Some(Early { at: now.after(EARLY), pause: EARLY, unseen: Unseen::By(seen.clone()) });
    }

    /// An early sweep has seen every row that this snapshot shows.
    pub(super) fn early_ended(&mut self, now: Timestamp, seen: &Snapshot) {
        let Some(early) = self.early.as_mut() else { return };
        let unseen: Vec<u64> = match &early.unseen {
            Unseen::By(read) => seen.running.iter().copied().filter(|xid| read.has_running(*xid)).collect(),
            Unseen::Some(unseen) => unseen.iter().copied().filter(|xid| seen.has_running(*xid)).collect(),
        };
        if unseen.is_empty() {
            self.early = None;
            return;
        }
        early.unseen = Unseen::Some(unseen);
        early.pause = early.pause.saturating_mul(2);
        early.at = now.after(early.pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(60);

    fn snapshot(text: &str) -> Snapshot {
        Snapshot::parse(text).expect("a snapshot")
    }

    /// The times, in seconds after the read, of the sweeps of the first two minutes. Each sees one more of these snapshots.
    fn swept(read: &str, sweeps: &[&str]) -> Vec<(Sweep, u64)> {
        let (begin, mut swept) = (Timestamp(1_000_000), Vec::new());
        let mut timetable = Timetable::new(begin, PERIOD);
        timetable.begins(begin, None);
        timetable.loaded(begin, &snapshot(read));
        let mut now = begin;
        while let Some(at) = timetable.until(now, false).map(|span| now.after(span)) {
            now = at;
            let took = now.since(begin).as_secs();
            if took > 120 {
                break;
            }
            let sweep = timetable.due(now).expect("a sweep is due");
            timetable.begins(now, Some(sweep));
            swept.push((sweep, took));
            if sweep == Sweep::Early {
                let last = swept.len().min(sweeps.len()) - 1;
                timetable.early_ended(now, &snapshot(sweeps[last]));
            }
        }
        swept
    }

    #[test]
    fn an_early_sweep_comes_once_where_nothing_is_in_doubt_and_never_again() {
        let swept = swept("10:12:10", &["20:20:"]);
        assert_eq!(swept, [(Sweep::Early, 3), (Sweep::Slow, 60), (Sweep::Slow, 120)]);
    }

    /// A transaction that began later is not waited for, once a sweep has told it from those before.
    #[test]
    fn early_sweeps_go_on_while_a_transaction_runs_that_the_read_did_not_see() {
        let ends = swept("10:12:10", &["10:20:10,15", "10:30:10,25", "30:30:"]);
        assert_eq!(
            ends,
            [(Sweep::Early, 3), (Sweep::Early, 9), (Sweep::Early, 21), (Sweep::Slow, 60), (Sweep::Slow, 120)]
        );
        let later = swept("10:12:10", &["13:20:13", "25:30:25"]);
        assert_eq!(later, [(Sweep::Early, 3), (Sweep::Early, 9), (Sweep::Slow, 60), (Sweep::Slow, 120)]);
    }

    /// As one that is prepared and forgotten: from the first slow sweep on it is one of the others.
    #[test]
    fn a_transaction_that_never_ends_costs_four_early_sweeps() {
        let swept = swept("10:12:10", &["10:20:10"]);
        let early = [3, 9, 21, 45].map(|at| (Sweep::Early, at));
        assert_eq!(swept, [&early[..], &[(Sweep::Slow, 60), (Sweep::Slow, 120)]].concat());
    }

    #[test]
    fn a_sweep_that_fails_is_left_to_the_next_and_none_begins_before_the_second_look() {
        let begin = Timestamp(1_000_000);
        let mut timetable = Timetable::new(begin, PERIOD);
        timetable.loaded(begin, &snapshot("10:12:10"));
        let now = begin.after(EARLY);
        timetable.begins(now, timetable.due(now));
        assert_eq!((timetable.due(now), timetable.until(now, false)), (None, Some(EARLY)), "it is tried again");
        timetable.second_look = Some(SecondLook::AfterHeartbeat(now));
        let later = now.after(PERIOD);
        assert_eq!((timetable.due(later), timetable.until(later, false)), (None, Some(SECOND_LOOK)));
        assert_eq!(timetable.until(later, true), None);
    }
}
