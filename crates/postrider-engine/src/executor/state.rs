//! What the executor knows and decides; no waiting happens here.
//!
//! The loop hands in what happened and takes out the statements, calls and reads to start. The verbs that change this state
//! stand in files of their own: *observe*, *claim*, *judge*, *checkpoint*, and *resolve* for what a statement left open.

use super::CONSUMER;
use super::members::Peers;
use super::owners::Owners;
use super::pace::Pace;
use super::paused::Pauses;
use super::rows::{Doubt, Ending, Phase, Row, Rows, Take};
use super::settling::Settling;
use super::sweep::Suspects;
use super::waiting::WaitingCount;
use crate::clock::ServerClock;
use crate::limits::Limits;
use crate::settings::WorkSettings;
use crate::telemetry::{ConsumerLabel, RefusalLabel, StageLabel, Telemetry};
use crate::world::World;
use postrider_core::breaker::{Breaker, Era};
use postrider_core::call::stage_call;
use postrider_core::error::Error;
use postrider_core::observe::Rank;
use postrider_core::ports::{Claim, StageCall, Transition, Untold};
use postrider_core::position::Position;
use postrider_core::shape::ShapeError;
use postrider_core::stage::{Backoff, StagePolicy, Step};
use postrider_core::time::Timestamp;
use postrider_core::work::WorkKey;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Before a row that seemed due and could not be claimed is tried again.
pub(super) const MISS_PAUSE: Backoff = Backoff { first: Duration::from_millis(1), max: Duration::from_secs(1) };

/// So often a row whose commit nobody sees yet is tried again without a pause. As a rule it is a matter of microseconds, while the
/// writing session's process waits for a processor; a try and the read after it take longer than that.
const UNSEEN_TRIES_AT_ONCE: u32 = 2;

/// So many reasons for parked rows are shown in the status; the metrics count all.
const REFUSALS_SHOWN: usize = 20;

#[derive(Debug)]
pub(crate) struct State {
    pub(super) settings: WorkSettings,
    pub(super) limits: Limits,
    pub(super) world: Arc<dyn World>,
    pub(super) clock: ServerClock,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) rows: Rows,
    /// Requests in flight and claims that will become one, by stage.
    pub(super) in_use: BTreeMap<Step, u32>,
    /// The circuits of the endpoints that were called, by their origin.
    pub(super) circuits: BTreeMap<Arc<str>, Breaker>,
    /// Slots in use at an endpoint that were taken since its circuit opened last.
    pub(super) tries: BTreeMap<Arc<str>, u32>,
    /// What the rates of stages and endpoints leave.
    pub(super) pace: Pace,
    /// What people hold back.
    pub(super) pauses: Pauses,
    /// Calls in a row that were not sent, by stage.
    pub(super) not_sent: BTreeMap<Step, u32>,
    /// Rows whose outcome waits for a checkpoint, oldest first.
    pub(super) settling: Settling,
    /// Rows to read, because a statement left their state open.
    pub(super) doubts: BTreeSet<WorkKey>,
    /// Attempts whose rows somebody wrote without the fence: the next statement that writes such a row under this fence tells of it.
    pub(super) rows_unfenced: BTreeMap<WorkKey, (i64, Untold)>,
    pub(super) owners: Owners,
    pub(super) peers: Peers,
    pub(super) suspects: Suspects,
    /// Rows that wait for a person.
    pub(super) waiting: WaitingCount,
    /// No new claims: the process is ending.
    pub(super) draining: bool,
    /// So many statements name one row each: a batch was refused because of a row in it, and the others shall go on.
    pub(super) one_by_one: usize,
    /// Which stage has the first choice of the next claim statement.
    pub(super) turn: usize,
    /// Requests to start.
    to_call: Vec<(CallTicket, StageCall)>,
}

/// What a call's end is judged by, beside its outcome.
#[derive(Debug, Clone)]
pub(crate) struct CallTicket {
    pub(crate) key: WorkKey,
    pub(crate) step: Step,
    pub(crate) fence: i64,
    pub(crate) attempt: u32,
    pub(crate) deferrals: u32,
    /// Of its endpoint's circuit, when the row was to be claimed.
    pub(crate) era: Era,
}

impl State {
    pub(crate) fn new(
        settings: WorkSettings,
        limits: Limits,
        world: Arc<dyn World>,
        clock: ServerClock,
        telemetry: Arc<Telemetry>,
    ) -> State {
        let peers = Peers::new(settings.presence());
        telemetry.executors.set(1);
        State {
            pace: Pace::new(&settings),
            rows: Rows::new(&settings),
            settings,
            limits,
            world,
            clock,
            telemetry,
            in_use: BTreeMap::new(),
            circuits: BTreeMap::new(),
            pauses: Pauses::default(),
            tries: BTreeMap::new(),
            not_sent: BTreeMap::new(),
            settling: Settling::default(),
            doubts: BTreeSet::new(),
            rows_unfenced: BTreeMap::new(),
            owners: Owners::default(),
            peers,
            suspects: Suspects::default(),
            waiting: WaitingCount::default(),
            draining: false,
            one_by_one: 0,
            turn: 0,
            to_call: Vec::new(),
        }
    }

    /// From now on nothing is claimed; what is claimed and unsent is given back.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
    }

    /// Nothing is on the way any more that this state waits for, calls and statements in flight apart.
    pub(crate) fn is_idle(&self) -> bool {
        self.settling.is_empty() && self.doubts.is_empty() && self.to_call.is_empty()
    }

    /// The requests to start now.
    pub(crate) fn take_calls(&mut self) -> Vec<(CallTicket, StageCall)> {
        std::mem::take(&mut self.to_call)
    }

    /// Rows move on to their queues whose time has come.
    pub(crate) fn fire_timers(&mut self) {
        for key in self.rows.fire(self.clock.now()) {
            self.queue_outcome(key);
        }
    }

    /// How long until the next timer of a row, or until an endpoint that rows wait for may be tried again or called once more.
    pub(crate) fn until_next_timer(&self) -> Option<Duration> {
        let rows = self.rows.next_timer().map(|at| at.since(self.clock.now()));
        rows.into_iter().chain(self.until_next_try()).chain(self.until_next_token()).min()
    }

    /// All that the log brought so far is visible to others, so that a restart need not see it again.
    pub(crate) fn may_forget(&self) -> bool {
        self.rows.unseen_count() == 0
    }

    pub(crate) fn report(&self) {
        self.telemetry.open_rows.set(i64::try_from(self.rows.len()).unwrap_or(i64::MAX));
        self.telemetry.unseen_rows.set(i64::try_from(self.rows.unseen_count()).unwrap_or(i64::MAX));
        self.telemetry.calls_in_flight.set(self.in_use.values().map(|used| i64::from(*used)).sum());
    }

    /// A claim is ours: its request is started, unless it must not leave.
    pub(super) fn begin_call(&mut self, claim: Claim) {
        let Some(row) = self.rows.row_mut(&claim.key) else { return };
        row.status = None;
        let claim = Arc::new(claim);
        row.claim = (claim.payload.len() <= self.limits.kept_payload_bytes_max).then(|| Arc::clone(&claim));
        let (step, era) = (row.step.clone(), row.era);
        let (key_names, now) = (&self.settings.key_names, self.clock.now());
        let call = match self.settings.definitions.policy(&step) {
            _ if self.draining || self.is_paused(&step) => Err(Transition::Release),
            Ok(policy) => stage_call(policy, &step.definition, key_names, &claim, now)
                .map_err(|reason| Transition::Park { reason }),
            Err(gone) => Err(Transition::Park { reason: gone.reason(&step) }),
        };
        let call = match call {
            Ok(call) => call,
            Err(transition) => {
                self.return_slot(&step, &claim.key, era);
                self.settle(&claim.key, Ending::Other(transition));
                return;
            }
        };
        let ticket = CallTicket {
            key: claim.key.clone(),
            step: step.clone(),
            fence: claim.fence,
            attempt: claim.attempt,
            deferrals: claim.deferrals,
            era,
        };
        self.telemetry.calls_started.get_or_create(&StageLabel { stage: claim.stage.to_string() }).inc();
        self.depart(&step);
        self.rows.set(&claim.key, Phase::Calling);
        self.to_call.push((ticket, call));
    }

    /// The row's outcome is known: it waits for the next checkpoint.
    pub(super) fn settle(&mut self, key: &WorkKey, ending: Ending) {
        self.rows.set(key, Phase::Settling(Box::new(ending)));
        self.queue_outcome(key.clone());
    }

    /// The row waits for a checkpoint.
    pub(super) fn queue_outcome(&mut self, key: WorkKey) {
        let knows_claim = self.rows.row(&key).is_some_and(|row| row.claim.is_some());
        self.settling.push(key, knows_claim);
    }

    /// The row's state is open: it waits for the next read.
    pub(super) fn doubt(&mut self, key: &WorkKey, doubt: Doubt) {
        self.rows.set(key, Phase::Reading(doubt));
        self.doubts.insert(key.clone());
    }

    /// The row was seen due and could not be claimed: it is tried again, after a short, growing pause. `unseen`: the claim came before
    /// the commit that the log had shown was visible.
    pub(super) fn miss(&mut self, key: &WorkKey, take: Take, unseen: bool) {
        let Some(mut row) = self.rows.remove(key) else { return };
        row.unseen = unseen;
        row.phase = if unseen && row.misses < UNSEEN_TRIES_AT_ONCE {
            row.misses += 1;
            Phase::Due(take)
        } else {
            Phase::Timed(self.next_try(&mut row.misses), take)
        };
        self.rows.put(key, row);
    }

    /// When to try again what could not be done, after so many misses.
    pub(super) fn next_try(&self, misses: &mut u32) -> Timestamp {
        *misses = misses.saturating_add(1);
        self.clock.now().after(MISS_PAUSE.pause(*misses))
    }

    /// How many rows the next statement may name.
    pub(super) fn rows_max(&mut self) -> usize {
        if self.one_by_one == 0 {
            return self.limits.statement_rows_max;
        }
        self.one_by_one -= 1;
        1
    }

    /// A statement over so many rows was refused because of one of them: each is named by a statement of its own, for a claim and for
    /// its outcome.
    pub(super) fn name_one_by_one(&mut self, rows: usize) {
        self.one_by_one = self.one_by_one.max(rows.saturating_mul(2));
    }

    /// A claim was refused because of a row. A single row is set aside until the sweep finds it; of several, each gets a
    /// statement of its own.
    pub(crate) fn refused(&mut self, keys: &[&WorkKey], error: &Error) {
        let [key] = keys else { return self.name_one_by_one(keys.len()) };
        let Some(row) = self.rows.remove(key) else { return };
        self.alarm();
        tracing::error!(
            error = error.report(),
            stage = %row.step.stage,
            fence = row.rank.fence(),
            "the work table refuses a statement for a row; the row is set aside until the next sweep"
        );
    }

    /// The row is ours at this fence.
    pub(super) fn claimed(&mut self, claim: &Claim) {
        let step = self.settings.definitions.step(claim.definition.as_ref(), &claim.stage);
        self.rows.change(&claim.key, |row| {
            row.rank = Rank::claimed(claim.fence);
            row.step = step;
            row.misses = 0;
            row.unseen = false;
        });
    }

    /// Our outcome is written: the row's newest version is ours, or one that came meanwhile.
    pub(super) fn written(&mut self, key: &WorkKey, step: Step, rank: Rank, phase: Phase) {
        let Some(Row { newest, gone, .. }) = self.rows.remove(key) else { return };
        if gone {
            return self.observe_newest(newest, None);
        }
        // What the log will not show is not waited for: an older version still on its way then costs a claim that fails, and a read.
        let shown = self.settings.quiet || newest.as_ref().is_some_and(|newest| Rank::of(&newest.0) >= rank);
        // A row at rest that the log has shown already needs no place here any more.
        if !(matches!(phase, Phase::Finished) && shown) {
            let mut row = Row::new(rank, step, 0, phase);
            row.own = self.settings.quiet;
            self.rows.put(key, row);
        }
        self.observe_newest(newest, Some(rank));
    }

    /// A row was parked that nobody here can start. `word`: the first of the reason.
    pub(super) fn refuse(&self, word: &'static str, reason: &str) {
        self.telemetry.rows_refused.get_or_create(&RefusalLabel { reason: word }).inc();
        tracing::warn!(reason, "a work row is parked, since nobody here can start it; see `postrider check`");
        self.telemetry.update(|status| {
            let known = status.refused.contains_key(reason);
            if known || status.refused.len() < REFUSALS_SHOWN {
                *status.refused.entry(reason.to_owned()).or_default() += 1;
            }
        });
    }

    /// A message about the table cannot be read, and nothing changes by it.
    pub(super) fn unreadable(&self, message: &str, error: ShapeError, position: Position) {
        self.alarm();
        let what = Error::from(error).report();
        tracing::error!(%position, what, "a message {message} cannot be read");
    }

    /// Something about a row needs a person.
    pub(super) fn alarm(&self) {
        self.telemetry.alarms.get_or_create(&ConsumerLabel { consumer: CONSUMER.to_owned() }).inc();
    }

    /// How many rows of the stage may be claimed: what its own limits, its endpoint's, and its endpoint's circuit leave.
    pub(super) fn free_slots(&self, step: &Step, policy: &StagePolicy) -> u32 {
        let free = policy.concurrency.saturating_sub(self.in_use.get(step).copied().unwrap_or(0));
        let free = free.min(self.paced(step, policy));
        let allowance = self.circuits.get(&policy.endpoint).and_then(|circuit| circuit.allowance(self.world.now()));
        let Some(allowance) = allowance else { return free };
        free.min(allowance.saturating_sub(self.tries.get(&policy.endpoint).copied().unwrap_or(0)))
    }

    /// Takes a slot for a row. Its era goes with the row, and comes back when the slot is given back.
    pub(super) fn use_slot(&mut self, step: &Step, key: &WorkKey) {
        *self.in_use.entry(step.clone()).or_default() += 1;
        self.rows.begin(step, key);
        self.promise_call(step);
        let Some(endpoint) = self.endpoint_of(step) else { return };
        *self.tries.entry(endpoint.clone()).or_default() += 1;
        let era = self.current_era(&endpoint);
        if let Some(row) = self.rows.row_mut(key) {
            row.era = era;
        }
    }

    /// Gives back a slot whose call did not leave.
    pub(super) fn return_slot(&mut self, step: &Step, key: &WorkKey, era: Era) {
        self.withdraw_call(step);
        self.release_slot(step, key, era);
    }

    /// The slot's call has ended.
    pub(super) fn release_slot(&mut self, step: &Step, key: &WorkKey, era: Era) {
        self.rows.end(step, key);
        let used = self.in_use.get_mut(step).expect("a slot that is given back was taken");
        *used = used.checked_sub(1).expect("a slot that is given back was taken");
        let Some(endpoint) = self.endpoint_of(step) else { return };
        if era == self.current_era(&endpoint)
            && let Some(tries) = self.tries.get_mut(&endpoint)
        {
            *tries = tries.checked_sub(1).expect("a slot that is given back was taken");
        }
    }

    /// The era in which the row's slot was taken.
    pub(super) fn era_of(&self, key: &WorkKey) -> Era {
        self.rows.row(key).map_or_else(Era::default, |row| row.era)
    }

    pub(super) fn endpoint_of(&self, step: &Step) -> Option<Arc<str>> {
        self.settings.definitions.policy(step).ok().map(|policy| policy.endpoint.clone())
    }

    fn current_era(&self, endpoint: &Arc<str>) -> Era {
        self.circuits.get(endpoint).map_or_else(Era::default, Breaker::era)
    }
}
