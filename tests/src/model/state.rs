//! What the model knows at one moment, and when two moments are the same.

use postrider_core::work::StageState;
use std::hash::{DefaultHasher, Hash, Hasher};

pub(super) const EXECUTORS: usize = 3;
pub(super) const ROWS_MAX: usize = 2;
pub(super) const STAGES: usize = 2;

/// An executor between two crashes: each start has an owner id of its own.
pub(super) type Owner = u8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    pub rows: Vec<Row>,
    pub executors: [Executor; EXECUTORS],
    /// Statements and requests whose sender no longer waits for them; each may arrive at any time.
    pub orphans: Vec<Orphan>,
    pub left: Left,
}

/// A work row, and what was seen to happen to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub version: Version,
    /// The version that a crash of the server goes back to, where the last claim was not durable.
    pub before: Option<Version>,
    /// The newest fence that anybody wrote.
    pub fence: i64,
    /// Whose claim is in force, and its fence: its outcome is not written yet.
    pub holder: Option<(Owner, i64)>,
    /// What the receiver got and did, and what it may get, by stage.
    pub requests: [u8; STAGES],
    pub requests_max: [u8; STAGES],
    pub effects: [u8; STAGES],
}

/// A row version in small. Time is its lease alone, which runs out whenever it likes; everything that waits is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Version {
    pub stage: u8,
    pub state: StageState,
    pub attempts: u8,
    pub deferrals: u8,
    pub fence: i64,
    pub owner: Option<Owner>,
    pub leased: bool,
    pub closed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Executor {
    pub starts: u8,
    pub tasks: [Task; ROWS_MAX],
}

/// What an executor does about a row. One that is paused is one that takes no step while others do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Task {
    Idle,
    /// It saw the row and will claim what it saw.
    Seen(Sight),
    /// It has claimed the row and will send the request.
    Holding {
        stage: u8,
        fence: i64,
        attempt: u8,
        deferrals: u8,
    },
    /// It knows what came of the request and will write it.
    Answered(Outcome),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Sight {
    pub stage: u8,
    pub fence: i64,
    pub take_over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Outcome {
    pub stage: u8,
    pub fence: i64,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Verdict {
    /// The stage succeeded; whether the next one is claimed in the same statement.
    Done {
        chained: bool,
    },
    Retry,
    Defer,
    Unknown,
    /// A claim that this executor never heard of is given back.
    Release,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Orphan {
    pub row: usize,
    pub owner: Owner,
    pub message: Message,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Message {
    Claim(Sight),
    Checkpoint(Outcome),
    Request { stage: u8, fence: i64, attempt: u8 },
}

/// How often each misfortune may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Left {
    pub misfortunes: u8,
    pub crashes: u8,
    /// Replies that never come, and statements that run after their sender gave them up.
    pub losses: u8,
    /// Claims of what was seen a while ago.
    pub delays: u8,
    /// Leases that run out under a holder who still works.
    pub expiries: u8,
    pub resumes: u8,
    pub cancels: u8,
    pub lost_commits: u8,
}

/// By row the task, and whether the row is its executor's; the messages that it no longer waits for.
type Traits = (Vec<(Task, bool, bool)>, Vec<(Option<usize>, Message)>);

impl Version {
    pub(super) fn holder(&self) -> Option<(Owner, i64)> {
        self.owner.filter(|_| self.state == StageState::Running).map(|owner| (owner, self.fence))
    }
}

impl Left {
    /// What may still happen of each kind is at most what may still happen in all.
    #[must_use]
    pub(super) fn bounded(self) -> Left {
        let bound = |kind: u8| kind.min(self.misfortunes);
        Left {
            misfortunes: self.misfortunes,
            crashes: bound(self.crashes),
            losses: bound(self.losses),
            delays: bound(self.delays),
            expiries: bound(self.expiries),
            resumes: bound(self.resumes),
            cancels: bound(self.cancels),
            lost_commits: bound(self.lost_commits),
        }
    }
}

impl State {
    pub(super) fn owner(&self, executor: usize) -> Owner {
        owner_of(executor, self.executors[executor].starts)
    }

    pub(super) fn lives(&self, owner: Owner) -> bool {
        (0..EXECUTORS).any(|executor| self.owner(executor) == owner)
    }

    /// One number for all states that differ only in which executor or which row is called which.
    pub(super) fn fingerprint(&self) -> u64 {
        let there: Vec<usize> = (0..self.rows.len()).collect();
        let back: Vec<usize> = there.iter().rev().copied().collect();
        self.hash_in(&there).min(self.hash_in(&back))
    }

    fn hash_in(&self, order: &[usize]) -> u64 {
        let mut executors: Vec<usize> = (0..EXECUTORS).collect();
        executors.sort_by_cached_key(|executor| self.traits(*executor, order));
        let mut dead = Vec::new();
        let mut label = |owner: Owner| {
            if let Some(place) = executors.iter().position(|executor| self.owner(*executor) == owner) {
                return place;
            }
            let known = dead.iter().position(|known| *known == owner);
            EXECUTORS
                + known.unwrap_or_else(|| {
                    dead.push(owner);
                    dead.len() - 1
                })
        };
        let mut hasher = DefaultHasher::new();
        for row in order.iter().map(|row| &self.rows[*row]) {
            let nameless = |version: Version| Version { owner: None, ..version };
            let owners =
                [row.version.owner, row.before.and_then(|before| before.owner), row.holder.map(|(owner, _)| owner)];
            owners.map(|owner| owner.map(&mut label)).hash(&mut hasher);
            let before = row.before.map(nameless);
            let holder = row.holder.map(|(_, fence)| (0, fence));
            Row { version: nameless(row.version), before, holder, ..row.clone() }.hash(&mut hasher);
        }
        for executor in &executors {
            order.iter().for_each(|row| self.executors[*executor].tasks[*row].hash(&mut hasher));
        }
        let place = |row| order.iter().position(|other| *other == row);
        let mut orphans: Vec<_> = self.orphans.iter().map(|it| (place(it.row), it.message, it.owner)).collect();
        orphans.sort_unstable();
        orphans.iter().for_each(|(row, message, owner)| (row, message, label(*owner)).hash(&mut hasher));
        self.left.hash(&mut hasher);
        hasher.finish()
    }

    /// What tells executors apart. Two with the same traits are two that may change places.
    fn traits(&self, executor: usize, order: &[usize]) -> Traits {
        let me = Some(self.owner(executor));
        let by_row = order.iter().map(|row| {
            let Row { version, holder, .. } = &self.rows[*row];
            (self.executors[executor].tasks[*row], version.owner == me, holder.map(|(owner, _)| owner) == me)
        });
        let place = |row| order.iter().position(|other| *other == row);
        let mine = self.orphans.iter().filter(|orphan| Some(orphan.owner) == me);
        let mut mine: Vec<_> = mine.map(|orphan| (place(orphan.row), orphan.message)).collect();
        mine.sort_unstable();
        (by_row.collect(), mine)
    }
}

pub(super) fn owner_of(executor: usize, starts: u8) -> Owner {
    u8::try_from(executor).expect("three executors") + starts * u8::try_from(EXECUTORS).expect("three executors")
}
