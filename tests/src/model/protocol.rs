//! What may happen next, and what it does: executors, their statements, the receiver, misfortunes and a person.
//!
//! Every step uses something up (a budget, an attempt, a fence, a message under way), so no way comes back to where it was, and a
//! state without a next step is where a run ends. Left out: back-off (whatever waits is due at any time) and what a lost
//! statement's sender reads (it acts as if it had read nothing: what it then does passes the same guards).

use super::state::{EXECUTORS, Executor, Left, Message, Orphan, Outcome, Owner, ROWS_MAX, Row, STAGES};
use super::state::{Sight, State, Task, Verdict, Version, owner_of};
use postrider_core::guard;
use postrider_core::history::{Cause, Invariant, Record, Rules, StageRule, WorkStep};
use postrider_core::ports::{Checkpoint, ClaimRequest, Transition};
use postrider_core::stage::Next;
use postrider_core::time::Timestamp;
use postrider_core::work::{DefinitionName, OwnerId, StageName, StageState, WorkKey, WorkVersion};
use std::sync::LazyLock;
use std::time::Duration;

const ATTEMPT_LIMIT: u8 = 2;
const DEFERRAL_LIMIT: u8 = 1;
const NOW: Timestamp = Timestamp(1_000_000);
const LEASE: Duration = Duration::from_secs(60);
const NAMES: [&str; STAGES] = ["PRICING", "APPROVAL"];

/// How large the world is, and how much goes wrong in it.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub rows: usize,
    /// The receiver of the first stage moves its row on itself, and keeps no keys.
    pub same_tx: bool,
    /// So many in all; each kind has a bound of its own beside.
    pub misfortunes: u8,
    pub crashes: u8,
    pub losses: u8,
    pub delays: u8,
    pub expiries: u8,
    pub resumes: u8,
    pub cancels: u8,
    pub lost_commits: u8,
    /// So many steps from the start.
    pub depth_max: usize,
}

/// What is left out of the protocol, or done otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    CheckpointIgnoresStage,
    CheckpointIgnoresFence,
    CheckpointIgnoresOwner,
    CheckpointIgnoresState,
    ClaimIgnoresFence,
    /// A crash of the server can lose the last claim, after its request has left.
    ClaimNotDurable,
    /// There is no fence but the count of attempts, which a resume sets to zero.
    AttemptIsFence,
    CancelKeepsFence,
    AttemptsUncounted,
    KeyPerAttempt,
    NoTakeOver,
    /// A receiver catches that its request is stale, and commits its work.
    StaleIsCommitted,
    /// A receiver moves its row on and does not raise the fence.
    AdvanceKeepsFence,
    /// An executor writes an outcome although the receiver has moved the row on.
    CheckpointBesideAdvance,
}

/// A broken promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    EffectTwice,
    /// A run ended with a row that nobody will ever look at.
    Stuck,
    /// A fence was given that is not higher than every one before.
    FenceTwice,
    /// An outcome was written by somebody who does not hold the row.
    WrittenByStranger,
    StageBack,
    RequestBeyondLimit,
}

impl Finding {
    pub fn invariant(self) -> Invariant {
        match self {
            Finding::EffectTwice => Invariant::I1,
            Finding::Stuck => Invariant::I2,
            Finding::FenceTwice | Finding::WrittenByStranger => Invariant::I3,
            Finding::StageBack => Invariant::I4,
            Finding::RequestBeyondLimit => Invariant::I7,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    /// An executor sees what it may claim, and is slow to do it.
    Look {
        executor: usize,
        row: usize,
    },
    /// An executor finds a claim of its own that it never heard of.
    Adopt {
        executor: usize,
        row: usize,
    },
    Claim {
        executor: usize,
        row: usize,
        fate: Fate,
    },
    Call {
        executor: usize,
        row: usize,
        answer: Answer,
    },
    Write {
        executor: usize,
        row: usize,
        fate: Fate,
    },
    Arrive {
        orphan: usize,
    },
    Crash {
        executor: usize,
    },
    Expire {
        row: usize,
        early: bool,
    },
    LoseCommit {
        row: usize,
    },
    Cancel {
        row: usize,
    },
    Resume {
        row: usize,
    },
}

/// What becomes of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    /// It ran, and its reply is lost.
    Unheard,
    /// Its sender gave it up, and it runs later.
    Late,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Done {
        chained: bool,
    },
    /// The receiver did its work, and nobody heard.
    Lost,
    /// The receiver did nothing and asks for patience.
    Later,
}

pub(super) struct Model<'a> {
    pub bounds: Bounds,
    pub mistakes: &'a [Mistake],
}

/// What the history checker measures a replayed way against.
pub fn rules() -> Rules {
    let stage = |name| StageRule { name: StageName::new(name), attempt_limit: ATTEMPT_LIMIT.into() };
    Rules { stages: NAMES.map(stage).to_vec(), consumers: Vec::new(), at_rest: true }
}

impl Model<'_> {
    fn has(&self, mistake: Mistake) -> bool {
        self.mistakes.contains(&mistake)
    }

    pub(super) fn start(&self) -> State {
        let (stage, state) = (0, StageState::Pending);
        let version =
            Version { stage, state, attempts: 0, deferrals: 0, fence: 0, owner: None, leased: false, closed: false };
        let row = Row {
            version,
            before: None,
            fence: 0,
            holder: None,
            requests: [0; STAGES],
            requests_max: [ATTEMPT_LIMIT; STAGES],
            effects: [0; STAGES],
        };
        let Bounds { misfortunes, crashes, losses, delays, expiries, resumes, cancels, lost_commits, .. } = self.bounds;
        let left = Left { misfortunes, crashes, losses, delays, expiries, resumes, cancels, lost_commits }.bounded();
        State {
            rows: vec![row; self.bounds.rows.min(ROWS_MAX)],
            executors: [Executor { starts: 0, tasks: [Task::Idle; ROWS_MAX] }; EXECUTORS],
            orphans: Vec::new(),
            left,
        }
    }

    pub(super) fn submissions(&self) -> Vec<Record> {
        (0..self.bounds.rows).map(|row| Record::Submitted { key: key(row), stage: stage(0) }).collect()
    }

    pub(super) fn is_at_rest(&self, state: &State) -> bool {
        let parked = [StageState::Unknown, StageState::NonResumable];
        state.rows.iter().all(|row| row.version.closed || parked.contains(&row.version.state))
    }

    pub(super) fn steps(&self, state: &State) -> Vec<Step> {
        let mut steps = Vec::new();
        for executor in 0..EXECUTORS {
            for row in 0..state.rows.len() {
                self.own_steps(state, (executor, row), &mut steps);
            }
            if state.left.crashes > 0 {
                steps.push(Step::Crash { executor });
            }
        }
        steps.extend((0..state.orphans.len()).map(|orphan| Step::Arrive { orphan }));
        for (row, Row { version, before, .. }) in state.rows.iter().enumerate() {
            if version.state == StageState::Running && version.leased {
                let early = is_worked_on(state, row);
                if !early || state.left.expiries > 0 {
                    steps.push(Step::Expire { row, early });
                }
            }
            if before.is_some() && state.left.lost_commits > 0 {
                steps.push(Step::LoseCommit { row });
            }
            if !version.closed && state.left.cancels > 0 {
                steps.push(Step::Cancel { row });
            }
            if matches!(version.state, StageState::Unknown | StageState::NonResumable) && state.left.resumes > 0 {
                steps.push(Step::Resume { row });
            }
        }
        steps
    }

    fn own_steps(&self, state: &State, (executor, row): (usize, usize), steps: &mut Vec<Step>) {
        let fates: &[Fate] =
            if state.left.losses > 0 { &[Fate::Answered, Fate::Unheard, Fate::Late] } else { &[Fate::Answered] };
        let claims = fates.iter().map(|fate| Step::Claim { executor, row, fate: *fate });
        match state.executors[executor].tasks[row] {
            Task::Idle => match self.sight(state, executor, row) {
                Some(Task::Seen(_)) => {
                    steps.extend(claims);
                    steps.extend((state.left.delays > 0).then_some(Step::Look { executor, row }));
                }
                Some(_) => steps.push(Step::Adopt { executor, row }),
                None => {}
            },
            Task::Seen(_) => steps.extend(claims),
            Task::Answered(_) => steps.extend(fates.iter().map(|fate| Step::Write { executor, row, fate: *fate })),
            Task::Holding { stage, deferrals, .. } => {
                let last = usize::from(stage) == STAGES - 1;
                let chains = !self.is_same_tx(stage);
                let mut answers = vec![Answer::Done { chained: chains }];
                if !last && chains {
                    answers.push(Answer::Done { chained: false });
                }
                // Where the row has the first word, an answer that nobody heard is as good as one that was.
                if chains || state.left.losses > 0 {
                    answers.push(Answer::Lost);
                }
                if deferrals < DEFERRAL_LIMIT {
                    answers.push(Answer::Later);
                }
                steps.extend(answers.into_iter().map(|answer| Step::Call { executor, row, answer }));
            }
        }
    }

    fn is_same_tx(&self, stage: u8) -> bool {
        self.bounds.same_tx && stage == 0
    }

    /// What an executor makes of a row that it has nothing to do with yet.
    fn sight(&self, state: &State, executor: usize, row: usize) -> Option<Task> {
        let version = &state.rows[row].version;
        let Version { stage, fence, .. } = *version;
        let seen = |take_over| Some(Task::Seen(Sight { stage, fence, take_over }));
        match version.state {
            StageState::Pending | StageState::Retry => seen(false),
            StageState::Running if version.owner == Some(state.owner(executor)) => {
                Some(Task::Answered(Outcome { stage, fence, verdict: Verdict::Release }))
            }
            StageState::Running => {
                let gone = version.owner.is_some_and(|owner| !state.lives(owner));
                if (gone || !version.leased) && !self.has(Mistake::NoTakeOver) { seen(true) } else { None }
            }
            _ => None,
        }
    }

    /// The state behind a step, and the promises that it broke.
    pub(super) fn take(&self, state: &State, step: Step, records: Option<&mut Vec<Record>>) -> (State, Vec<Finding>) {
        let mut world = World { model: self, state: state.clone(), found: Vec::new(), records };
        world.take(step);
        let World { mut state, found, .. } = world;
        state.orphans.sort_unstable();
        (state, found)
    }
}

/// The holder of the row is alive and knows that it is.
fn is_worked_on(state: &State, row: usize) -> bool {
    let version = &state.rows[row].version;
    (0..EXECUTORS).filter(|executor| Some(state.owner(*executor)) == version.owner).any(|executor| {
        match state.executors[executor].tasks[row] {
            Task::Holding { fence, .. } | Task::Answered(Outcome { fence, .. }) => fence == version.fence,
            Task::Idle | Task::Seen(_) => false,
        }
    })
}

struct World<'a> {
    model: &'a Model<'a>,
    state: State,
    found: Vec<Finding>,
    records: Option<&'a mut Vec<Record>>,
}

impl World<'_> {
    fn take(&mut self, step: Step) {
        match step {
            Step::Look { executor, row } | Step::Adopt { executor, row } => {
                if matches!(step, Step::Look { .. }) {
                    self.spend(|left| &mut left.delays);
                }
                let sight = self.model.sight(&self.state, executor, row).unwrap_or(Task::Idle);
                self.state.executors[executor].tasks[row] = sight;
            }
            Step::Claim { executor, row, fate } => self.claim(executor, row, fate),
            Step::Call { executor, row, answer } => self.call(executor, row, answer),
            Step::Write { executor, row, fate } => self.write(executor, row, fate),
            Step::Arrive { orphan } => self.arrive(orphan),
            Step::Crash { executor } => self.crash(executor),
            Step::Expire { row, early } => {
                if early {
                    self.spend(|left| &mut left.expiries);
                }
                self.state.rows[row].version.leased = false;
            }
            Step::LoseCommit { row } => {
                self.spend(|left| &mut left.lost_commits);
                let row = &mut self.state.rows[row];
                row.version = row.before.take().unwrap_or(row.version);
                row.holder = row.version.holder();
            }
            Step::Cancel { row } => {
                self.spend(|left| &mut left.cancels);
                let keeps = self.model.has(Mistake::CancelKeepsFence);
                let before = self.state.rows[row].version;
                let cancelled = |version: &WorkVersion| match guard::after_cancel(version) {
                    // Somebody's own UPDATE, which knows of the state alone.
                    after if keeps => WorkVersion {
                        fence: version.fence,
                        lease_owner: version.lease_owner,
                        lease_until: version.lease_until,
                        ..after
                    },
                    after => after,
                };
                let after = compact(&cancelled(&full(row, &before)));
                self.settle(row, after, None);
                let fence = self.state.rows[row].version.fence;
                self.record(|| Record::FenceRaised { key: key(row), fence });
                self.record(|| Record::Closed { key: key(row) });
            }
            Step::Resume { row } => {
                self.spend(|left| &mut left.resumes);
                let after = compact(&guard::after_resume(&full(row, &self.state.rows[row].version)));
                let stage = usize::from(after.stage);
                self.settle(row, after, None);
                self.state.rows[row].requests_max[stage] += ATTEMPT_LIMIT;
                let fence = self.state.rows[row].version.fence;
                self.record(|| Record::Resumed { key: key(row), fence });
            }
        }
    }

    /// One misfortune has happened.
    fn spend(&mut self, kind: impl FnOnce(&mut Left) -> &mut u8) {
        *kind(&mut self.state.left) -= 1;
        self.state.left.misfortunes -= 1;
        self.state.left = self.state.left.bounded();
    }

    fn claim(&mut self, executor: usize, row: usize, fate: Fate) {
        let owner = self.state.owner(executor);
        let sight = match self.state.executors[executor].tasks[row] {
            Task::Seen(sight) => sight,
            _ => match self.model.sight(&self.state, executor, row) {
                Some(Task::Seen(sight)) => sight,
                _ => return,
            },
        };
        if fate != Fate::Answered {
            self.spend(|left| &mut left.losses);
        }
        let mut task = Task::Idle;
        if fate == Fate::Late {
            self.state.orphans.push(Orphan { row, owner, message: Message::Claim(sight) });
        } else if self.run_claim(row, owner, sight) && fate == Fate::Answered {
            task = holding(&self.state.rows[row].version);
        }
        self.state.executors[executor].tasks[row] = task;
    }

    /// The server runs a claim; whether the row is now its sender's.
    fn run_claim(&mut self, row: usize, owner: Owner, sight: Sight) -> bool {
        let before = self.state.rows[row].version;
        let ignores = self.model.has(Mistake::ClaimIgnoresFence);
        let request = ClaimRequest {
            key: key(row),
            stage: stage(sight.stage),
            seen_fence: if ignores { before.fence } else { sight.fence },
            attempt_limit: ATTEMPT_LIMIT.into(),
            lease: LEASE,
            take_over: sight.take_over,
            definition: definition(),
            refusal: None,
            untold: None,
        };
        let dead: Vec<OwnerId> = before
            .owner
            .filter(|owner| !self.state.lives(*owner))
            .map(|owner| OwnerId(owner.into()))
            .into_iter()
            .collect();
        let version = full(row, &before);
        if !guard::may_claim(&version, &request, NOW, &dead) {
            return false;
        }
        let mut after = compact(&guard::after_claim(&version, &request, OwnerId(owner.into()), NOW));
        if self.model.has(Mistake::AttemptsUncounted) {
            after.attempts = before.attempts;
        }
        let claimed = after.state == StageState::Running;
        self.settle(row, after, claimed.then_some(owner));
        let after = self.state.rows[row].version;
        if self.model.has(Mistake::ClaimNotDurable) {
            self.state.rows[row].before = Some(before);
        }
        self.record_claim(row, &after, claimed);
        claimed
    }

    fn call(&mut self, executor: usize, row: usize, answer: Answer) {
        let Task::Holding { stage, fence, attempt, .. } = self.state.executors[executor].tasks[row] else { return };
        let same_tx = self.model.is_same_tx(stage);
        if same_tx && answer == Answer::Lost {
            // The receiver is slow: it ends its transaction after the request was given up.
            self.spend(|left| &mut left.losses);
            let owner = self.state.owner(executor);
            self.state.orphans.push(Orphan { row, owner, message: Message::Request { stage, fence, attempt } });
        } else {
            self.receive(row, (stage, fence, attempt), answer != Answer::Later);
        }
        let seen = full(row, &self.state.rows[row].version);
        let is_ours = seen.fence == fence && seen.state == StageState::Running;
        if same_tx && !is_ours && !self.model.has(Mistake::CheckpointBesideAdvance) {
            // The row has the first word: it was moved on, or somebody else has it.
            self.state.executors[executor].tasks[row] = Task::Idle;
            return;
        }
        let verdict = match answer {
            Answer::Done { chained } => Verdict::Done { chained },
            Answer::Later => Verdict::Defer,
            Answer::Lost if attempt < ATTEMPT_LIMIT => Verdict::Retry,
            Answer::Lost => Verdict::Unknown,
        };
        self.state.executors[executor].tasks[row] = Task::Answered(Outcome { stage, fence, verdict });
    }

    /// The receiver gets a request. It stores its answer with its work, so that a key that it knows has no second effect.
    fn receive(&mut self, number: usize, (stage_number, fence, attempt): (u8, i64, u8), works: bool) {
        let per_attempt = self.model.has(Mistake::KeyPerAttempt);
        let place = usize::from(stage_number);
        let work = || WorkStep { key: key(number), stage: stage(stage_number), epoch: 0 };
        self.record(|| Record::RequestReceived {
            work: work(),
            idempotency_key: format!("{number}/{place}/{}", if per_attempt { attempt } else { 0 }).into(),
            fingerprint: 0,
            attempt: attempt.into(),
            fence,
        });
        let same_tx = self.model.is_same_tx(stage_number);
        let moves = same_tx && works && self.may_advance(number, (stage_number, fence));
        let row = &mut self.state.rows[number];
        row.requests[place] += 1;
        let beyond = row.requests[place] > row.requests_max[place];
        let effect = if same_tx {
            moves || works && self.model.has(Mistake::StaleIsCommitted)
        } else {
            works && (row.effects[place] == 0 || per_attempt)
        };
        row.effects[place] = row.effects[place].saturating_add(u8::from(effect)).min(2);
        let twice = effect && row.effects[place] > 1;
        self.found.extend(beyond.then_some(Finding::RequestBeyondLimit));
        self.found.extend(twice.then_some(Finding::EffectTwice));
        if effect {
            self.record(|| Record::EffectCommitted { work: work() });
        }
        if moves {
            self.advance(number, stage_number);
        }
    }

    fn may_advance(&self, row: usize, (stage_number, fence): (u8, i64)) -> bool {
        guard::may_advance(&full(row, &self.state.rows[row].version), &stage(stage_number), fence)
    }

    /// The receiver moves the row on, in the transaction of its work.
    fn advance(&mut self, row: usize, from: u8) {
        let before = self.state.rows[row].version;
        let next = stage(from + 1);
        let mut after = compact(&guard::after_advance(&full(row, &before), &Next::Stage(next.clone())));
        if self.model.has(Mistake::AdvanceKeepsFence) {
            after.fence = before.fence;
        }
        self.settle(row, after, None);
        let fence = self.state.rows[row].version.fence;
        self.record(|| Record::FenceRaised { key: key(row), fence });
        self.record(|| Record::StageEntered { key: key(row), stage: next, cause: Cause::Success });
    }

    fn write(&mut self, executor: usize, row: usize, fate: Fate) {
        let owner = self.state.owner(executor);
        let Task::Answered(outcome) = self.state.executors[executor].tasks[row] else { return };
        if fate != Fate::Answered {
            self.spend(|left| &mut left.losses);
        }
        match fate {
            // It keeps the outcome, and writes it again: what is written already is refused.
            Fate::Late => self.state.orphans.push(Orphan { row, owner, message: Message::Checkpoint(outcome) }),
            Fate::Unheard => drop(self.run_checkpoint(row, owner, outcome)),
            Fate::Answered => {
                let chained = self.run_checkpoint(row, owner, outcome) && outcome.is_chained();
                let task = if chained { holding(&self.state.rows[row].version) } else { Task::Idle };
                self.state.executors[executor].tasks[row] = task;
            }
        }
    }

    /// The server runs a checkpoint; whether it was written.
    fn run_checkpoint(&mut self, row: usize, owner: Owner, outcome: Outcome) -> bool {
        let before = self.state.rows[row].version;
        let version = full(row, &before);
        let has = |mistake| self.model.has(mistake);
        let me = OwnerId(owner.into());
        let transition = outcome.transition();
        let checkpoint = Checkpoint {
            key: key(row),
            stage: if has(Mistake::CheckpointIgnoresStage) { version.stage.clone() } else { stage(outcome.stage) },
            fence: if has(Mistake::CheckpointIgnoresFence) { version.fence } else { outcome.fence },
            status: None,
            transition: transition.clone(),
            claim: None,
            untold: None,
        };
        let judged = WorkVersion {
            lease_owner: if has(Mistake::CheckpointIgnoresOwner) { Some(me) } else { version.lease_owner },
            state: if has(Mistake::CheckpointIgnoresState) { StageState::Running } else { version.state },
            ..version.clone()
        };
        if !guard::may_checkpoint(&judged, &checkpoint, me) {
            return false;
        }
        let stranger = self.state.rows[row].holder != Some((owner, outcome.fence));
        self.found.extend(stranger.then_some(Finding::WrittenByStranger));
        let written = WorkVersion { lease_owner: judged.lease_owner, ..version };
        let after = compact(&guard::after_checkpoint(&written, &transition, NOW));
        if matches!(transition, Transition::Advance { .. } | Transition::Chain { .. }) && after.stage <= before.stage {
            self.found.push(Finding::StageBack);
        }
        let chained = outcome.is_chained();
        self.record(|| Record::CheckpointWritten {
            key: key(row),
            stage: stage(outcome.stage),
            fence: outcome.fence,
            owner: me,
            deferred: outcome.verdict == Verdict::Defer,
        });
        if chained {
            self.settle(row, after, Some(owner));
        } else {
            // An outcome leaves the fence as it is, and the row without a holder.
            self.state.rows[row].version = self.fenced(after);
            self.state.rows[row].holder = None;
            self.state.rows[row].before = None;
        }
        let stage_number = usize::from(outcome.stage);
        self.state.rows[row].requests_max[stage_number] += u8::from(outcome.verdict == Verdict::Defer);
        self.record_outcome(row, outcome);
        true
    }

    fn arrive(&mut self, orphan: usize) {
        let Orphan { row, owner, message } = self.state.orphans.remove(orphan);
        match message {
            Message::Claim(sight) => drop(self.run_claim(row, owner, sight)),
            Message::Checkpoint(outcome) => drop(self.run_checkpoint(row, owner, outcome)),
            Message::Request { stage, fence, attempt } => self.receive(row, (stage, fence, attempt), true),
        }
    }

    /// A killed process: what it was about to send may have left.
    fn crash(&mut self, executor: usize) {
        self.spend(|left| &mut left.crashes);
        let owner = self.state.owner(executor);
        for row in 0..self.state.rows.len() {
            let message = match self.state.executors[executor].tasks[row] {
                Task::Idle => continue,
                Task::Seen(sight) => Message::Claim(sight),
                Task::Holding { stage, fence, attempt, .. } => Message::Request { stage, fence, attempt },
                Task::Answered(outcome) => Message::Checkpoint(outcome),
            };
            self.state.orphans.push(Orphan { row, owner, message });
        }
        let starts = self.state.executors[executor].starts + 1;
        self.state.executors[executor] = Executor { starts, tasks: [Task::Idle; ROWS_MAX] };
        debug_assert_eq!(self.state.owner(executor), owner_of(executor, starts), "a start has an owner of its own");
    }

    /// Writes a version under a new fence.
    fn settle(&mut self, row: usize, after: Version, holder: Option<Owner>) {
        let after = self.fenced(after);
        let row = &mut self.state.rows[row];
        let twice = after.fence <= row.fence;
        row.holder = holder.map(|owner| (owner, after.fence));
        (row.version, row.before, row.fence) = (after, None, after.fence.max(row.fence));
        self.found.extend(twice.then_some(Finding::FenceTwice));
    }

    fn fenced(&self, version: Version) -> Version {
        if self.model.has(Mistake::AttemptIsFence) {
            return Version { fence: version.attempts.into(), ..version };
        }
        version
    }

    fn record(&mut self, record: impl FnOnce() -> Record) {
        if let Some(records) = &mut self.records {
            records.push(record());
        }
    }

    fn record_claim(&mut self, row: usize, after: &Version, claimed: bool) {
        let (fence, owner) = (after.fence, OwnerId(after.owner.unwrap_or_default().into()));
        if claimed {
            self.record(|| Record::ClaimWritten { key: key(row), stage: stage(after.stage), epoch: 0, fence, owner });
        } else {
            self.record(|| Record::FenceRaised { key: key(row), fence });
            self.record(|| Record::Parked { key: key(row), reason: "AT_LIMIT".into() });
        }
    }

    fn record_outcome(&mut self, row: usize, outcome: Outcome) {
        let after = self.state.rows[row].version;
        match outcome.transition() {
            Transition::Advance { next } | Transition::Chain { next, .. } => {
                self.record(|| Record::StageEntered { key: key(row), stage: next, cause: Cause::Success });
            }
            Transition::Finish => self.record(|| Record::Closed { key: key(row) }),
            Transition::Unknown { reason } => self.record(|| Record::Parked { key: key(row), reason }),
            _ => {}
        }
        if outcome.is_chained() {
            self.record_claim(row, &after, true);
        }
    }
}

impl Outcome {
    fn is_chained(self) -> bool {
        usize::from(self.stage) < STAGES - 1 && self.verdict == Verdict::Done { chained: true }
    }

    fn transition(self) -> Transition {
        let (after, reason) = (Duration::ZERO, "because".to_owned());
        match self.verdict {
            Verdict::Done { .. } if usize::from(self.stage) == STAGES - 1 => Transition::Finish,
            Verdict::Done { chained: true } => Transition::Chain { next: stage(self.stage + 1), lease: LEASE },
            Verdict::Done { chained: false } => Transition::Advance { next: stage(self.stage + 1) },
            Verdict::Retry => Transition::Retry { after, reason },
            Verdict::Defer => Transition::Defer { after, reason, counted: true },
            Verdict::Unknown => Transition::Unknown { reason },
            Verdict::Release => Transition::Release,
        }
    }
}

fn holding(version: &Version) -> Task {
    let Version { stage, fence, attempts, deferrals, .. } = *version;
    Task::Holding { stage, fence, attempt: attempts.max(1), deferrals }
}

fn key(row: usize) -> WorkKey {
    static KEYS: LazyLock<[WorkKey; ROWS_MAX]> =
        LazyLock::new(|| std::array::from_fn(|row| WorkKey::new(["model".to_owned(), row.to_string()])));
    KEYS[row].clone()
}

fn stage(number: u8) -> StageName {
    static STAGE_NAMES: LazyLock<[StageName; STAGES]> = LazyLock::new(|| NAMES.map(StageName::new));
    STAGE_NAMES[usize::from(number)].clone()
}

fn definition() -> DefinitionName {
    static DEFINITION: LazyLock<DefinitionName> = LazyLock::new(|| DefinitionName::new("quote@1"));
    DEFINITION.clone()
}

fn full(row: usize, version: &Version) -> WorkVersion {
    WorkVersion {
        key: key(row),
        definition: Some(definition()),
        stage: stage(version.stage),
        state: version.state,
        attempt_count: version.attempts.into(),
        deferral_count: version.deferrals.into(),
        fence: version.fence,
        epoch: 0,
        next_attempt_at: None,
        lease_until: version.owner.map(|_| if version.leased { NOW.after(LEASE) } else { Timestamp(0) }),
        lease_owner: version.owner.map(|owner| OwnerId(owner.into())),
        closed: version.closed,
    }
}

fn compact(version: &WorkVersion) -> Version {
    let small = |count| u8::try_from(count).expect("a model in which little happens");
    let place = NAMES.iter().position(|name| *name == version.stage.as_str());
    Version {
        stage: small(u32::try_from(place.expect("a stage of the model")).expect("two stages")),
        state: version.state,
        attempts: small(version.attempt_count),
        deferrals: small(version.deferral_count),
        fence: version.fence,
        owner: version.lease_owner.map(|owner| u8::try_from(owner.0).expect("few owners")),
        leased: version.lease_until.is_some_and(|until| until > NOW),
        closed: version.closed,
    }
}
