//! What is known of the rows that somebody else works on, and what that says of their stages; no waiting happens here.
//!
//! A row is *due* when its stage could be started: at the commit that made it wait, at its `next_attempt_at`, or where its lease ends while it
//! is `RUNNING`. What takes it is the next version that shows it `RUNNING` again, or somewhere else. Both times are the server's.

use super::delays::{DelaySummary, Delays};
use postrider_core::stage::Definitions;
use postrider_core::time::Timestamp;
use postrider_core::work::{StageName, StageState, WorkKey, WorkVersion};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// So many rows are followed at once; what comes beyond is counted.
const ROWS_MAX: usize = 1_000_000;

/// So many stages are told apart that the configuration does not have.
const FOREIGN_STAGES_MAX: usize = 50;

/// All rows that wait or are worked on.
#[derive(Debug)]
pub(super) struct Rows {
    definitions: Definitions,
    rows: HashMap<WorkKey, Row>,
    stages: BTreeMap<StageName, Stage>,
    /// So many of them are the configuration's.
    known: usize,
    left_out: u64,
}

/// One row as its newest version has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    stage: StageName,
    state: StageState,
    attempt_count: u32,
    fence: i64,
    /// When it can be started; `None`: it is worked on, and nobody says until when.
    due_at: Option<Timestamp>,
    /// It waits, with as many attempts behind it as the configuration allows.
    is_used_up: bool,
}

/// What was seen of one stage.
#[derive(Debug, Default)]
struct Stage {
    all: Seen,
    /// Since the last line of the log.
    of_late: Seen,
    /// Rows that are due, by since when.
    due: BTreeSet<(Timestamp, WorkKey)>,
    /// Rows that will be, by when.
    timed: BTreeSet<(Timestamp, WorkKey)>,
    used_up: u64,
}

#[derive(Debug, Default)]
struct Seen {
    /// From due to `RUNNING`.
    started: Delays,
    /// From due to what came of the attempt, which was not shown as `RUNNING` before.
    ended: Delays,
    early: u64,
    overlapping: u64,
}

/// What is told of one stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedStage {
    /// The configuration has it.
    pub is_known: bool,
    /// Rows that were shown `RUNNING`, and how long after they were due.
    pub started: DelaySummary,
    /// Rows that went on without that, and how long after they were due: the work itself is in it.
    pub ended: DelaySummary,
    /// Rows that were taken before they were due.
    pub early: u64,
    /// Attempts that began while another of the same row was under way, by its lease.
    pub overlapping: u64,
    /// Rows that are due and not taken.
    pub waiting: u64,
    /// How long the first of them has been.
    pub longest_wait: Duration,
    /// Rows that wait and have as many attempts behind them as the configuration allows.
    pub used_up: u64,
}

impl Rows {
    pub(super) fn new(definitions: Definitions) -> Rows {
        let stages: BTreeMap<_, _> = definitions.steps().map(|(step, _)| (step.stage, Stage::default())).collect();
        Rows { known: stages.len(), stages, definitions, rows: HashMap::new(), left_out: 0 }
    }

    /// Rows that are no longer followed although they are open.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// A version that was committed at `at`.
    pub(super) fn note(&mut self, version: WorkVersion, at: Timestamp) {
        let before = self.take(&version.key);
        if let Some(before) = &before {
            self.compare(before, &version, at);
        }
        let Some(row) = self.row(&version, before.as_ref(), at) else { return };
        let foreign = self.stages.len() - self.known;
        if self.rows.len() >= ROWS_MAX || !self.stages.contains_key(&row.stage) && foreign >= FOREIGN_STAGES_MAX {
            self.left_out += 1;
            return;
        }
        let stage = self.stages.entry(row.stage.clone()).or_default();
        stage.used_up += u64::from(row.is_used_up);
        stage.timed.extend(row.due_at.map(|due_at| (due_at, version.key.clone())));
        self.rows.insert(version.key, row);
    }

    /// The row is gone, and nobody took it.
    pub(super) fn forget(&mut self, key: &WorkKey) {
        self.take(key);
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
        for stage in self.stages.values_mut() {
            (stage.due, stage.timed, stage.used_up) = Default::default();
        }
    }

    /// What was seen so far, by stage; stages that the configuration has come even where nothing was.
    pub(super) fn report(&mut self, now: Timestamp) -> BTreeMap<String, ObservedStage> {
        self.told(now, |stage| &stage.all)
    }

    /// The same, of what was seen since the last call.
    pub(super) fn report_of_late(&mut self, now: Timestamp) -> BTreeMap<String, ObservedStage> {
        let report = self.told(now, |stage| &stage.of_late);
        self.stages.values_mut().for_each(|stage| stage.of_late = Seen::default());
        report
    }

    fn told(&mut self, now: Timestamp, seen: fn(&Stage) -> &Seen) -> BTreeMap<String, ObservedStage> {
        let definitions = &self.definitions;
        let told = |(name, stage): (&StageName, &mut Stage)| {
            stage.fall_due(now);
            let seen = seen(stage);
            let told = ObservedStage {
                is_known: definitions.steps().any(|(step, _)| step.stage == *name),
                started: seen.started.summary(),
                ended: seen.ended.summary(),
                early: seen.early,
                overlapping: seen.overlapping,
                waiting: u64::try_from(stage.due.len()).unwrap_or(u64::MAX),
                longest_wait: stage.due.first().map_or(Duration::ZERO, |(due_at, _)| now.since(*due_at)),
                used_up: stage.used_up,
            };
            (name.to_string(), told)
        };
        self.stages.iter_mut().map(told).collect()
    }

    fn take(&mut self, key: &WorkKey) -> Option<Row> {
        let row = self.rows.remove(key)?;
        let stage = self.stages.get_mut(&row.stage)?;
        stage.used_up -= u64::from(row.is_used_up);
        if let Some(due_at) = row.due_at {
            let place = (due_at, key.clone());
            let _was_timed = stage.timed.remove(&place) || stage.due.remove(&place);
        }
        Some(row)
    }

    /// The row as it is from now on; `None` where it neither waits nor is worked on.
    fn row(&self, version: &WorkVersion, before: Option<&Row>, at: Timestamp) -> Option<Row> {
        let waits = matches!(version.state, StageState::Pending | StageState::Retry);
        let due_at = match version.state {
            _ if version.closed => return None,
            StageState::Running => version.lease_until,
            _ if !waits => return None,
            // A row that is written while it waits has waited all along, unless it was put off.
            _ => {
                let still = before.filter(|before| before.state != StageState::Running && !is_taken(before, version));
                let since = still.and_then(|before| before.due_at).map_or(at, |due_at| due_at.min(at));
                Some(version.next_attempt_at.filter(|next| *next > at).unwrap_or(since))
            }
        };
        let step = self.definitions.step(version.definition.as_ref(), &version.stage);
        let policy = self.definitions.policy(&step);
        Some(Row {
            is_used_up: waits && policy.is_ok_and(|policy| version.attempt_count >= policy.attempt_limit),
            stage: step.stage,
            state: version.state,
            attempt_count: version.attempt_count,
            fence: version.fence,
            due_at,
        })
    }

    /// What the step from one version to the next says of the stage that the row was in.
    fn compare(&mut self, before: &Row, version: &WorkVersion, at: Timestamp) {
        let is_running = version.state == StageState::Running;
        if is_running && before.state == StageState::Running && version.stage != before.stage {
            // The next stage begins where the one before ends: nothing waited.
            return self.see(&version.stage, |seen| seen.started.note(Duration::ZERO));
        }
        if !is_taken(before, version) {
            return;
        }
        let wait = before.due_at.map(|due_at| at.since(due_at)).unwrap_or_default();
        let is_due = before.due_at.is_some_and(|due_at| due_at <= at);
        self.see(&before.stage, |seen| match before.state {
            StageState::Running if !is_due => seen.overlapping += 1,
            _ if !is_due => seen.early += 1,
            StageState::Running => seen.started.note(wait),
            _ if is_running => seen.started.note(wait),
            _ => seen.ended.note(wait),
        });
    }

    fn see(&mut self, stage: &StageName, note: impl Fn(&mut Seen)) {
        if let Some(stage) = self.stages.get_mut(stage) {
            note(&mut stage.all);
            note(&mut stage.of_late);
        }
    }
}

impl Stage {
    fn fall_due(&mut self, now: Timestamp) {
        while let Some((due_at, _)) = self.timed.first()
            && *due_at <= now
        {
            self.due.extend(self.timed.pop_first());
        }
    }
}

/// Whether the step to this version is somebody's who works on the row: it starts an attempt, or tells what came of one that was not
/// seen to start. What only writes a row that waits, or prolongs the lease of one that is worked on, takes nothing; and what comes of an
/// attempt that was seen is its end.
fn is_taken(before: &Row, version: &WorkVersion) -> bool {
    let is_tried_again = version.attempt_count > before.attempt_count;
    match (before.state, version.state) {
        (_, StageState::Cancelled) => false,
        (StageState::Running, StageState::Running) => is_tried_again || version.fence > before.fence,
        (StageState::Running, _) => false,
        (_, StageState::Running) => true,
        (StageState::Pending, StageState::Retry) => true,
        (_, StageState::Pending | StageState::Retry) => version.stage != before.stage || is_tried_again,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
