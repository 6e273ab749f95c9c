//! The open rows in memory: what is known of each, what is done about it, and when.

use super::queue::Queue;
use super::state::CallTicket;
use crate::settings::WorkSettings;
use postrider_core::breaker::Era;
use postrider_core::judge::Verdict;
use postrider_core::observe::Rank;
use postrider_core::ports::{Checkpoint, Claim, Transition};
use postrider_core::stage::{Next, Step};
use postrider_core::time::Timestamp;
use postrider_core::work::{OwnerId, WorkKey, WorkVersion};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// One row.
#[derive(Debug)]
pub(crate) struct Row {
    /// The newest version known.
    pub(crate) rank: Rank,
    pub(crate) step: Step,
    /// The transaction that wrote it, where the log showed it; 0 where it was read.
    pub(crate) xid: u32,
    pub(crate) phase: Phase,
    /// Claims in a row that touched nothing although the row seemed due.
    pub(crate) misses: u32,
    /// The log showed a version that a claim could not see yet.
    pub(crate) unseen: bool,
    /// Of its endpoint's circuit, when its slot was taken.
    pub(crate) era: Era,
    /// The row was deleted while we were busy with it; what comes after is another row with the same key.
    pub(crate) gone: bool,
    /// The HTTP status that the last call was answered with, if it was.
    pub(crate) status: Option<u16>,
    /// The claim that it is ours by, until its checkpoint is written.
    pub(crate) claim: Option<Arc<Claim>>,
    /// Its number in the queue, while it is due.
    seat: u64,
    /// Its newest version is our own outcome, and the log shows that to nobody.
    pub(crate) own: bool,
    /// A newer version that came while we were busy with this one.
    pub(crate) newest: Option<Box<(WorkVersion, u32)>>,
}

/// What is done about a row.
#[derive(Debug)]
pub(crate) enum Phase {
    /// In the queue of its stage.
    Due(Take),
    /// In the queue at this time of the server's clock.
    Timed(Timestamp, Take),
    /// In a claim statement.
    Claiming(Take),
    /// Its request is on the way.
    Calling,
    /// Its outcome waits for a checkpoint.
    Settling(Box<Ending>),
    /// Its outcome waits until this time: another session has the row locked.
    Held(Timestamp, Box<Ending>),
    /// In a checkpoint statement.
    Writing,
    /// A statement left its state open: it is read.
    Reading(Doubt),
    /// Our own outcome put it to rest; kept until the log shows that, so that older versions still on the way are known as such.
    Finished,
}

/// How a row may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take {
    /// It waits for anybody.
    Free,
    /// It runs elsewhere, under this owner.
    Over(Option<OwnerId>),
}

/// What a claimed row ends in.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The stage succeeded and leads there; whether it chains is decided when the statement is written.
    Done(Next),
    /// Something else.
    Other(Transition),
}

/// Why a row is read.
#[derive(Debug)]
pub(crate) enum Doubt {
    /// A claim touched nothing, or its reply was lost.
    Claim(Take),
    /// A checkpoint's guard did not hold (`refused`), or its reply was lost.
    Checkpoint { checkpoint: Box<Checkpoint>, refused: bool },
    /// Who runs it leaves, and nobody hears of its outcome.
    Leaving(Take),
    /// The receiver said that our fence is old.
    Stale,
    /// The call of a stage ended whose receiver moves the row on itself: the row has the first word.
    Call(Box<(CallTicket, Verdict)>),
}

/// All rows, with the queues and the timers over them.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// Their order is no rule's.
    rows: HashMap<WorkKey, Box<Row>>,
    waiting: Waiting,
}

/// Where rows wait, by their phases.
#[derive(Debug, Default)]
struct Waiting {
    due: BTreeMap<Step, Queue>,
    timers: BTreeSet<(Timestamp, WorkKey)>,
    /// Those that run under an owner, and are due or wait for their time.
    foreign: BTreeSet<WorkKey>,
    unseen_count: usize,
    /// Seats given so far.
    seats: u64,
}

impl Row {
    /// A row of which nothing is known but this.
    pub(crate) fn new(rank: Rank, step: Step, xid: u32, phase: Phase) -> Row {
        Row {
            rank,
            step,
            xid,
            phase,
            misses: 0,
            unseen: false,
            era: Era::default(),
            gone: false,
            status: None,
            claim: None,
            seat: 0,
            own: false,
            newest: None,
        }
    }

    /// A statement or a call has this row; what the log says must wait.
    pub(crate) fn is_busy(&self) -> bool {
        match self.phase {
            Phase::Claiming(_)
            | Phase::Calling
            | Phase::Settling(_)
            | Phase::Held(..)
            | Phase::Writing
            | Phase::Reading(_) => true,
            Phase::Due(_) | Phase::Timed(..) | Phase::Finished => false,
        }
    }
}

impl Phase {
    /// Under whom the row runs, while it is due or waits for its time.
    pub(super) fn owner(&self) -> Option<OwnerId> {
        match self {
            Phase::Due(Take::Over(owner)) | Phase::Timed(_, Take::Over(owner)) => *owner,
            _ => None,
        }
    }
}

impl Rows {
    pub(crate) fn new(settings: &WorkSettings) -> Rows {
        let steps = settings.definitions.steps().map(|(step, policy)| (step, policy.serial));
        let queues = steps.map(|(step, serial)| (step.clone(), Queue::new(step, settings.fair_by, serial)));
        Rows { rows: HashMap::new(), waiting: Waiting { due: queues.collect(), ..Waiting::default() } }
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn row(&self, key: &WorkKey) -> Option<&Row> {
        self.rows.get(key).map(|row| &**row)
    }

    /// For what no queue and no timer depends on; [`Rows::change`] is for the rest.
    pub(crate) fn row_mut(&mut self, key: &WorkKey) -> Option<&mut Row> {
        self.rows.get_mut(key).map(|row| &mut **row)
    }

    /// The rows that other executors run, with their owners.
    pub(crate) fn foreign(&self) -> impl Iterator<Item = (&WorkKey, OwnerId)> {
        self.waiting.foreign.iter().filter_map(|key| Some((key, self.rows.get(key)?.phase.owner()?)))
    }

    /// Puts a row where its phase says, in the place of what was known of it.
    pub(crate) fn put(&mut self, key: &WorkKey, mut row: Row) {
        match self.rows.entry(key.clone()) {
            Entry::Vacant(place) => {
                self.waiting.enter(place.key(), &mut row);
                place.insert(Box::new(row));
            }
            // The key that is there already serves the queues, too, so that a row has one.
            Entry::Occupied(mut place) => {
                let key = place.key().clone();
                self.waiting.leave(&key, place.get());
                self.waiting.enter(&key, &mut row);
                **place.get_mut() = row;
            }
        }
    }

    /// Changes a row that is there; queues and timers follow.
    pub(crate) fn change(&mut self, key: &WorkKey, change: impl FnOnce(&mut Row)) {
        let Entry::Occupied(mut place) = self.rows.entry(key.clone()) else { return };
        let key = place.key().clone();
        self.waiting.leave(&key, place.get());
        change(place.get_mut());
        self.waiting.enter(&key, place.get_mut());
    }

    /// Changes the phase of a row that is there.
    pub(crate) fn set(&mut self, key: &WorkKey, phase: Phase) {
        self.change(key, |row| row.phase = phase);
    }

    pub(crate) fn remove(&mut self, key: &WorkKey) -> Option<Row> {
        let row = self.rows.remove(key)?;
        self.waiting.leave(key, &row);
        Some(*row)
    }

    /// How many rows the log showed in a version that no claim could see yet.
    pub(crate) fn unseen_count(&self) -> usize {
        self.waiting.unseen_count
    }

    /// The keys of all rows like this, in order.
    pub(crate) fn keys_where(&self, like: impl Fn(&WorkKey, &Row) -> bool) -> Vec<WorkKey> {
        let mut keys: Vec<_> =
            self.rows.iter().filter(|(key, row)| like(key, row)).map(|(key, _)| key.clone()).collect();
        keys.sort_unstable();
        keys
    }

    /// The next row of a stage that is due, moved to the claim. A group has up to `turn_rows` rows in its turn.
    pub(crate) fn pop_due(&mut self, step: &Step, turn_rows: usize) -> Option<(WorkKey, Rank, Take)> {
        let key = self.waiting.due.get_mut(step)?.pop(turn_rows)?;
        let row = self.rows.get_mut(&key)?;
        let Phase::Due(take) = row.phase else {
            debug_assert!(false, "a row that leaves the queue gives back its seat");
            return None;
        };
        row.phase = Phase::Claiming(take);
        let rank = row.rank;
        self.waiting.foreign.remove(&key);
        Some((key, rank, take))
    }

    /// Whether a row of the stage is due and may run.
    pub(crate) fn has_due(&self, step: &Step) -> bool {
        self.waiting.due.get(step).is_some_and(Queue::has_next)
    }

    /// How many rows of the stage are due and may run.
    pub(crate) fn due_count(&self, step: &Step) -> usize {
        self.waiting.due.get(step).map_or(0, Queue::len)
    }

    /// The steps that have rows which are due and may run.
    pub(crate) fn due_steps(&self) -> impl Iterator<Item = &Step> {
        self.waiting.due.iter().filter(|(_, queue)| queue.has_next()).map(|(step, _)| step)
    }

    /// Forgets the queue of a step that nobody can start: there may be any number of those.
    pub(crate) fn forget_queue(&mut self, step: &Step) {
        if !self.has_due(step) {
            self.waiting.due.remove(step);
        }
    }

    /// Whether no other row of its group runs in a stage that takes them one at a time.
    pub(crate) fn may_run(&self, step: &Step, key: &WorkKey) -> bool {
        self.waiting.due.get(step).is_none_or(|queue| queue.may_run(key))
    }

    /// The row runs in the stage.
    pub(crate) fn begin(&mut self, step: &Step, key: &WorkKey) {
        if let Some(queue) = self.waiting.due.get_mut(step) {
            queue.begin(key);
        }
    }

    /// The row runs in the stage no more.
    pub(crate) fn end(&mut self, step: &Step, key: &WorkKey) {
        if let Some(queue) = self.waiting.due.get_mut(step) {
            queue.end(key);
        }
    }

    /// The earliest timer.
    pub(crate) fn next_timer(&self) -> Option<Timestamp> {
        self.waiting.timers.first().map(|(at, _)| *at)
    }

    /// Moves every row whose time has come: into the queue of its stage, or back to those that wait for a checkpoint, whose
    /// keys it returns.
    pub(crate) fn fire(&mut self, now: Timestamp) -> Vec<WorkKey> {
        let mut settling = Vec::new();
        while let Some((_, key)) = self.waiting.timers.first().filter(|(at, _)| *at <= now).cloned() {
            self.change(&key, |row| {
                row.phase = match std::mem::replace(&mut row.phase, Phase::Finished) {
                    Phase::Timed(_, take) => Phase::Due(take),
                    Phase::Held(_, ending) => {
                        settling.push(key.clone());
                        Phase::Settling(ending)
                    }
                    other => other,
                };
            });
        }
        settling
    }
}

impl Waiting {
    fn enter(&mut self, key: &WorkKey, row: &mut Row) {
        self.unseen_count += usize::from(row.unseen);
        if row.phase.owner().is_some() {
            self.foreign.insert(key.clone());
        }
        match row.phase {
            Phase::Due(_) => {
                self.seats += 1;
                let seat = self.seats;
                row.seat = seat;
                let queue = self.queue(&row.step);
                queue.push(key, seat);
                row.step = queue.step().clone();
            }
            Phase::Timed(at, _) => {
                if let Some(queue) = self.due.get(&row.step) {
                    row.step = queue.step().clone();
                }
                self.timers.insert((at, key.clone()));
            }
            Phase::Held(at, _) => drop(self.timers.insert((at, key.clone()))),
            _ => {}
        }
    }

    fn leave(&mut self, key: &WorkKey, row: &Row) {
        self.unseen_count -= usize::from(row.unseen);
        if row.phase.owner().is_some() {
            self.foreign.remove(key);
        }
        match row.phase {
            Phase::Due(_) => {
                if let Some(queue) = self.due.get_mut(&row.step) {
                    queue.remove(key, row.seat);
                }
            }
            Phase::Timed(at, _) | Phase::Held(at, _) => drop(self.timers.remove(&(at, key.clone()))),
            _ => {}
        }
    }

    /// The step's queue, whose names a row that may wait long shares.
    fn queue(&mut self, step: &Step) -> &mut Queue {
        if !self.due.contains_key(step) {
            self.due.insert(step.clone(), Queue::new(step.clone(), None, false));
        }
        self.due.get_mut(step).expect("it is there or was made")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While a row counts as unseen nothing of the log may be forgotten: one too many would hold it for ever.
    #[test]
    fn an_unseen_row_counts_once_through_all_its_phases() {
        let (mut rows, key, step) = (Rows::default(), WorkKey::new(["g", "q"]), Step::new("quote@1", "PRICING"));
        let at = Timestamp(1);
        let unseen = |phase| Row { unseen: true, ..Row::new(Rank::settled(0), step.clone(), 7, phase) };
        rows.put(&key, unseen(Phase::Timed(at, Take::Free)));
        for _ in 0..3 {
            rows.fire(at);
            assert!(rows.pop_due(&step, 1).is_some());
            rows.set(&key, Phase::Reading(Doubt::Claim(Take::Free)));
            assert_eq!(rows.unseen_count(), 1);
            rows.set(&key, Phase::Timed(at, Take::Free));
            rows.set(&key, Phase::Timed(at, Take::Free));
            assert_eq!((rows.unseen_count(), rows.waiting.timers.len()), (1, 1));
        }
        rows.remove(&key);
        assert_eq!((rows.unseen_count(), rows.waiting.timers.len()), (0, 0));
    }
}

#[cfg(test)]
#[path = "scale_tests.rs"]
mod scale_tests;
