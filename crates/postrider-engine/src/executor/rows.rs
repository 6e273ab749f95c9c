//! The open rows in memory: what is known of each, what is done about it, and when.

use postrider_core::breaker::Era;
use postrider_core::observe::Rank;
use postrider_core::ports::{Checkpoint, Transition};
use postrider_core::stage::Next;
use postrider_core::time::Timestamp;
use postrider_core::work::{OwnerId, StageName, WorkKey, WorkVersion};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One row.
#[derive(Debug)]
pub(crate) struct Row {
    /// The newest version known.
    pub(crate) rank: Rank,
    pub(crate) stage: StageName,
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
    Settling(Ending),
    /// Its outcome waits until this time: another session has the row locked.
    Held(Timestamp, Ending),
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
    /// The receiver said that our fence is old.
    Stale,
}

/// All rows, with the queues and the timers over them.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    rows: BTreeMap<WorkKey, Row>,
    due: BTreeMap<StageName, VecDeque<WorkKey>>,
    timers: BTreeSet<(Timestamp, WorkKey)>,
    unseen_count: usize,
}

impl Row {
    /// A row of which nothing is known but this.
    pub(crate) fn new(rank: Rank, stage: StageName, xid: u32, phase: Phase) -> Row {
        Row {
            rank,
            stage,
            xid,
            phase,
            misses: 0,
            unseen: false,
            era: Era::default(),
            gone: false,
            status: None,
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

impl Rows {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn row(&self, key: &WorkKey) -> Option<&Row> {
        self.rows.get(key)
    }

    pub(crate) fn row_mut(&mut self, key: &WorkKey) -> Option<&mut Row> {
        self.rows.get_mut(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&WorkKey, &Row)> {
        self.rows.iter()
    }

    /// Puts a row into a phase; queues and timers follow. An entry of a queue that an earlier phase left is found void later.
    pub(crate) fn put(&mut self, key: &WorkKey, row: Row) {
        self.remove(key);
        match &row.phase {
            Phase::Due(_) => self.due.entry(row.stage.clone()).or_default().push_back(key.clone()),
            Phase::Timed(at, _) | Phase::Held(at, _) => drop(self.timers.insert((*at, key.clone()))),
            _ => {}
        }
        self.unseen_count += usize::from(row.unseen);
        self.rows.insert(key.clone(), row);
    }

    /// Changes the phase of a row that is there.
    pub(crate) fn set(&mut self, key: &WorkKey, phase: Phase) {
        let Some(mut row) = self.remove(key) else { return };
        row.phase = phase;
        self.put(key, row);
    }

    pub(crate) fn remove(&mut self, key: &WorkKey) -> Option<Row> {
        let row = self.rows.remove(key)?;
        if let Phase::Timed(at, _) | Phase::Held(at, _) = row.phase {
            self.timers.remove(&(at, key.clone()));
        }
        self.unseen_count -= usize::from(row.unseen);
        Some(row)
    }

    /// How many rows the log showed in a version that no claim could see yet.
    pub(crate) fn unseen_count(&self) -> usize {
        self.unseen_count
    }

    /// The next row of a stage that is due, moved to the claim.
    pub(crate) fn pop_due(&mut self, stage: &StageName) -> Option<(WorkKey, Rank, Take)> {
        let queue = self.due.get_mut(stage)?;
        while let Some(key) = queue.pop_front() {
            let Some(row) = self.rows.get_mut(&key) else { continue };
            let Phase::Due(take) = row.phase else { continue };
            if row.stage == *stage {
                row.phase = Phase::Claiming(take);
                return Some((key, row.rank, take));
            }
        }
        None
    }

    /// Whether a stage has entries in its queue; some may be void.
    pub(crate) fn has_due(&self, stage: &StageName) -> bool {
        self.due.get(stage).is_some_and(|queue| !queue.is_empty())
    }

    /// The earliest timer.
    pub(crate) fn next_timer(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Moves every row whose time has come: into the queue of its stage, or back to those that wait for a checkpoint, whose
    /// keys it returns.
    pub(crate) fn fire(&mut self, now: Timestamp) -> Vec<WorkKey> {
        let mut settling = Vec::new();
        while self.timers.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.timers.pop_first() else { break };
            let Some(mut row) = self.rows.remove(&key) else { continue };
            self.unseen_count -= usize::from(row.unseen);
            row.phase = match row.phase {
                Phase::Timed(_, take) => Phase::Due(take),
                Phase::Held(_, ending) => {
                    settling.push(key.clone());
                    Phase::Settling(ending)
                }
                other => other,
            };
            self.put(&key, row);
        }
        settling
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While a row counts as unseen nothing of the log may be forgotten: one too many would hold it for ever.
    #[test]
    fn an_unseen_row_counts_once_through_all_its_phases() {
        let (mut rows, key, stage) = (Rows::default(), WorkKey::new(["g", "q"]), StageName::new("PRICING"));
        let at = Timestamp(1);
        let unseen = |phase| Row { unseen: true, ..Row::new(Rank::settled(0), stage.clone(), 7, phase) };
        rows.put(&key, unseen(Phase::Timed(at, Take::Free)));
        for _ in 0..3 {
            rows.fire(at);
            assert!(rows.pop_due(&stage).is_some());
            rows.set(&key, Phase::Reading(Doubt::Claim(Take::Free)));
            assert_eq!(rows.unseen_count(), 1);
            rows.set(&key, Phase::Timed(at, Take::Free));
            rows.set(&key, Phase::Timed(at, Take::Free));
            assert_eq!((rows.unseen_count(), rows.timers.len()), (1, 1));
        }
        rows.remove(&key);
        assert_eq!((rows.unseen_count(), rows.timers.len()), (0, 0));
    }
}
