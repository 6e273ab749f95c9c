//! Counters and gauges of the engine, and the picture of itself that `status` shows.

mod stage_calls;

pub use stage_calls::{BadEnd, LATE, StageCalls, StageHarm, StageTrouble, Streak};

use crate::onlooker::Observed;
use postrider_core::paused::{Paused, PausedPart};
use postrider_core::ports::{Gap, StagedAmount};
use postrider_core::position::{Lsn, Position};
use postrider_core::stage::StageClass;
use postrider_core::time::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Label of a series about one stage.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StageLabel {
    pub stage: String,
}

/// Label of a series about one stage and what came of its calls.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct VerdictLabel {
    pub stage: String,
    pub verdict: &'static str,
}

/// Label of a series about rows that nobody here can start.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RefusalLabel {
    pub reason: &'static str,
}

/// Label of a series about executors that come and go: `joined`, `left`, `died` or `silent`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct MemberLabel {
    pub how: &'static str,
}

/// Label of a series about one consumer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ConsumerLabel {
    pub consumer: String,
}

/// Label of a series about one endpoint, by its origin.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EndpointLabel {
    pub endpoint: String,
}

/// Label of a series about a part that is paused: what it is not named by is empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PausedLabel {
    pub stage: String,
    pub definition: String,
    pub endpoint: String,
}

impl PausedLabel {
    pub(crate) fn of(part: &PausedPart) -> PausedLabel {
        let [stage, definition, endpoint] = part.columns().map(str::to_owned);
        PausedLabel { stage, definition, endpoint }
    }
}

/// Label of a series about rows that wait for a person: `non_resumable` or `unknown`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WaitingLabel {
    pub state: &'static str,
}

/// Label of a series about rows of a stage that somebody else took. `seen`: `started`, or `ended` where no start was shown.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ObservedLabel {
    pub stage: String,
    pub seen: &'static str,
}

/// Label of a series about how long they waited. `quantile`: `0.5`, `0.99` or `1`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ObservedDelayLabel {
    pub stage: String,
    pub seen: &'static str,
    pub quantile: &'static str,
}

/// All that the engine counts. Cheap to update from any task.
#[derive(Debug, Default)]
pub struct Telemetry {
    /// Transactions appended to the journal.
    pub transactions_appended: Counter,
    /// Bytes of messages appended to the journal.
    pub bytes_appended: Counter,
    /// Logical messages outside of transactions: they may tell of work that was rolled back, and are dropped.
    pub messages_ignored: Counter,
    /// Connections to the replication stream after the first.
    pub reconnects: Counter,
    /// Transactions in progress in the staging area.
    pub staged_transactions: Gauge,
    /// Prepared transactions that wait for their verdict.
    pub prepared_transactions: Gauge,
    /// Bytes of both on the local disk.
    pub staged_bytes: Gauge,
    /// Log position received, as a byte address.
    pub received_lsn: Gauge,
    /// Log position fsynced in the journal.
    pub durable_lsn: Gauge,
    /// Log position confirmed to the slot.
    pub confirmed_lsn: Gauge,
    /// Bytes of log the server keeps for the slot.
    pub slot_retained_bytes: Gauge,
    /// 1 while the guard confirms at the journal although a required sink is behind.
    pub guard_active: Gauge,
    /// Bytes that the journal holds.
    pub journal_bytes: Gauge,
    /// Bytes that it may hold.
    pub journal_limit_bytes: Gauge,
    /// 1 while nothing is taken in, because the journal is full of what a required sink lacks.
    pub intake_blocked: Gauge,
    /// 1 where the journal no longer holds what a sink lacks.
    pub cut_loose: Family<ConsumerLabel, Gauge>,
    /// Events settled at a sink.
    pub events_settled: Family<ConsumerLabel, Counter>,
    /// Tries of a sink that failed.
    pub sink_failures: Family<ConsumerLabel, Counter>,
    /// Changes that a consumer could not use and that were reported: outbox updates, truncates, rows without a key.
    pub alarms: Family<ConsumerLabel, Counter>,
    /// Stage requests started.
    pub calls_started: Family<StageLabel, Counter>,
    /// Answers that a receiver replayed instead of doing the work again: repeats made harmless.
    pub answers_replayed: Family<StageLabel, Counter>,
    /// What the answers meant.
    pub verdicts: Family<VerdictLabel, Counter>,
    /// Attempts whose receiver moved the row on itself.
    pub done_by_receiver: Family<StageLabel, Counter>,
    /// Rows that somebody wrote while an attempt ran, without raising the fence.
    pub unfenced_writes: Family<StageLabel, Counter>,
    /// Rows that were parked because nobody here can start them.
    pub rows_refused: Family<RefusalLabel, Counter>,
    /// Claims that another executor won.
    pub claims_lost: Counter,
    /// Claims taken over from an owner that died or whose lease ran out.
    pub take_overs: Counter,
    /// Checkpoints whose guard did not hold: somebody else had the row by then. Nothing was written.
    pub stale_checkpoints: Counter,
    /// Rows that the slow sweep found due and the log had not brought: each is an anomaly.
    pub sweep_hits: Counter,
    /// Rows that a sweep shortly after a start found: the read at the start could not see them yet, and the log goes on behind them.
    pub early_sweep_hits: Counter,
    /// Executors that work on the table, this one included.
    pub executors: Gauge,
    /// Other executors that came and went.
    pub executor_changes: Family<MemberLabel, Counter>,
    /// Due rows that another executor was to begin with, and had not begun with for two sweeps.
    pub overlooked_rows: Counter,
    /// Rows open in memory.
    pub open_rows: Gauge,
    /// Of these, rows in a version that the log shows and no session may see yet: their commit waits, for a synchronous standby for
    /// example (case P-18).
    pub unseen_rows: Gauge,
    /// Open rows of the whole table that nothing but a person's word lets go on, as [`Status::rows_waiting`] has them.
    pub rows_waiting_for_a_person: Family<WaitingLabel, Gauge>,
    /// Requests in flight.
    pub calls_in_flight: Gauge,
    /// Changed files of credentials that could not be used: what was read before is kept.
    pub credentials_refused: Counter,
    /// Those that cannot be used now.
    pub credentials_unusable: Gauge,
    /// 1 while an endpoint is not called because its calls failed, and while it gets its calls back a few at a time.
    pub circuits_open: Family<EndpointLabel, Gauge>,
    /// 1 while a person holds back a stage or an endpoint.
    pub paused: Family<PausedLabel, Gauge>,
    /// Rows that somebody else took, over all that the journal held since the start and holds: read anew at each start, so they are gauges.
    pub observed_taken: Family<ObservedLabel, Gauge>,
    /// How many seconds they had been due by then.
    pub observed_delay: Family<ObservedDelayLabel, Gauge<f64, AtomicU64>>,
    /// Rows that are due and that nobody has taken.
    pub observed_waiting: Family<StageLabel, Gauge>,
    /// For how many seconds the first of them has been due.
    pub observed_longest_wait: Family<StageLabel, Gauge<f64, AtomicU64>>,
    /// Attempts that began while another of the same row was under way.
    pub observed_overlapping: Family<StageLabel, Gauge>,
    /// Rows that were taken before they were due.
    pub observed_early: Family<StageLabel, Gauge>,
    /// Rows that wait, with as many attempts behind them as the configuration allows.
    pub observed_used_up: Family<StageLabel, Gauge>,
    /// 1 for a stage that the configuration does not have.
    pub observed_unconfigured: Family<StageLabel, Gauge>,
    /// Changes of rows that were too many to follow.
    pub observed_left_out: Gauge,
    status: Mutex<Status>,
}

/// What is true now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// The replication stream is open.
    pub connected: bool,
    /// Why it is not, or what else is wrong, in one sentence with its code.
    pub trouble: Option<String>,
    pub received: Lsn,
    pub durable: Lsn,
    pub confirmed: Lsn,
    /// When the last heartbeat was seen back, on this machine's clock.
    pub heartbeat_seen_at: Option<Timestamp>,
    /// The executor has read the open rows and follows the log. True where there is no work table.
    pub work_ready: bool,
    pub consumers: BTreeMap<String, ConsumerStatus>,
    /// How the calls of each stage ended.
    pub stages: BTreeMap<String, StageCalls>,
    /// Endpoints that are not called, or not by all that wait for them yet, by their origin.
    pub circuits: BTreeMap<String, OpenCircuit>,
    /// Stages and endpoints for which nothing is claimed, since a person holds them back.
    pub paused: Vec<Paused>,
    /// Rows that were parked since the start because nobody here can start them: how many, by the reason.
    pub refused: BTreeMap<String, u64>,
    /// Rows that wait for a person, once all open rows were read.
    pub rows_waiting: Option<RowsWaiting>,
    /// Files of credentials that changed and cannot be used, and why not: what was read before is kept.
    pub credentials: BTreeMap<String, String>,
    /// What an onlooker saw; `None` where we execute ourselves.
    pub observed: Option<Observed>,
    /// What is on record as left out.
    pub gaps: Vec<Gap>,
    /// What the journal's lack of room costs or is about to cost, in sentences.
    pub room_warnings: Vec<String>,
    /// The same of the log that the server keeps.
    pub slot_warning: Option<String>,
}

/// Open rows of the whole table that wait for a person: as the last read of all of them had them, and those that this process has
/// left so since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowsWaiting {
    /// A person must decide.
    pub non_resumable: u64,
    /// A person must find out what was done.
    pub unknown: u64,
}

/// An endpoint whose calls failed one after the other, by this machine's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenCircuit {
    pub since: Timestamp,
    /// When one call tries it again; in the past once that went well and more follow.
    pub tries_at: Timestamp,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsumerStatus {
    pub required: bool,
    pub position: Option<Position>,
    /// Everything that ends at or before this LSN is settled.
    pub settled: Lsn,
    /// Why it does not go on, in one sentence.
    pub trouble: Option<String>,
}

impl Telemetry {
    /// Enters every series in a registry, under the prefix that the registry has.
    pub fn register(&self, registry: &mut Registry) {
        let r = registry;
        r.register("transactions_appended", "Transactions appended to the journal", self.transactions_appended.clone());
        r.register("bytes_appended", "Bytes of messages appended to the journal", self.bytes_appended.clone());
        r.register("messages_ignored", "Non-transactional messages dropped", self.messages_ignored.clone());
        r.register("reconnects", "Replication connections after the first", self.reconnects.clone());
        r.register("staged_transactions", "Transactions in progress, staged", self.staged_transactions.clone());
        r.register(
            "prepared_transactions",
            "Prepared transactions without verdict",
            self.prepared_transactions.clone(),
        );
        r.register("staged_bytes", "Bytes of transactions that wait for their outcome", self.staged_bytes.clone());
        r.register("received_lsn_bytes", "Log position received", self.received_lsn.clone());
        r.register("durable_lsn_bytes", "Log position fsynced in the journal", self.durable_lsn.clone());
        r.register("confirmed_lsn_bytes", "Log position confirmed to the slot", self.confirmed_lsn.clone());
        r.register("slot_retained_bytes", "Log kept by the server for the slot", self.slot_retained_bytes.clone());
        r.register("guard_active", "1 while the guard confirms at the journal", self.guard_active.clone());
        r.register("journal_bytes", "Bytes that the journal holds", self.journal_bytes.clone());
        r.register("journal_limit_bytes", "Bytes that the journal may hold", self.journal_limit_bytes.clone());
        r.register("intake_blocked", "1 while the journal is full and nothing is read", self.intake_blocked.clone());
        r.register("cut_loose", "1 where the journal no longer holds what a sink lacks", self.cut_loose.clone());
        r.register("events_settled", "Events settled at a sink", self.events_settled.clone());
        r.register("sink_failures", "Failed tries of a sink", self.sink_failures.clone());
        r.register("alarms", "Changes a consumer could not use", self.alarms.clone());
        r.register("stage_calls", "Stage requests started", self.calls_started.clone());
        r.register("stage_replays", "Answers that a receiver replayed", self.answers_replayed.clone());
        r.register("stage_verdicts", "What the answers of stages meant", self.verdicts.clone());
        r.register("stages_done_by_receiver", "Rows moved on by their receivers", self.done_by_receiver.clone());
        r.register("unfenced_writes", "Rows written without the fence while they ran", self.unfenced_writes.clone());
        r.register("rows_refused", "Rows parked that nobody here can start", self.rows_refused.clone());
        r.register("claims_lost", "Claims that another executor won", self.claims_lost.clone());
        r.register("take_overs", "Rows taken over from another owner", self.take_overs.clone());
        r.register("stale_checkpoints", "Checkpoints refused by the fence", self.stale_checkpoints.clone());
        r.register("sweep_hits", "Due rows found by the sweep and not by the log", self.sweep_hits.clone());
        r.register(
            "early_sweep_hits",
            "Due rows that the read at the start could not see yet",
            self.early_sweep_hits.clone(),
        );
        r.register("executors", "Executors that work on the table, this one included", self.executors.clone());
        r.register(
            "overlooked_rows",
            "Due rows that another executor did not begin with",
            self.overlooked_rows.clone(),
        );
        r.register("executor_changes", "Other executors that came and went", self.executor_changes.clone());
        r.register("open_rows", "Open work rows in memory", self.open_rows.clone());
        r.register("unseen_rows", "Open work rows whose commit is in the log and waits", self.unseen_rows.clone());
        r.register(
            "rows_waiting_for_a_person",
            "Open work rows that wait for a person",
            self.rows_waiting_for_a_person.clone(),
        );
        r.register("calls_in_flight", "Stage requests in flight", self.calls_in_flight.clone());
        r.register("credentials_unusable", "Credentials not usable as they are now", self.credentials_unusable.clone());
        r.register("credentials_refused", "Changed credentials not usable", self.credentials_refused.clone());
        self.register_observed(r);
        r.register("circuits_open", "1 while an endpoint's calls are held back", self.circuits_open.clone());
        r.register("paused", "1 while a person holds back a stage or an endpoint", self.paused.clone());
    }

    fn register_observed(&self, r: &mut Registry) {
        r.register("observed_taken", "Rows that somebody else took", self.observed_taken.clone());
        r.register("observed_delay_seconds", "How long they had been due by then", self.observed_delay.clone());
        r.register("observed_waiting", "Rows that are due and that nobody has taken", self.observed_waiting.clone());
        r.register(
            "observed_longest_wait_seconds",
            "How long the first of them has been due",
            self.observed_longest_wait.clone(),
        );
        r.register(
            "observed_overlapping",
            "Attempts begun while another of the row was under way",
            self.observed_overlapping.clone(),
        );
        r.register("observed_early", "Rows taken before they were due", self.observed_early.clone());
        r.register("observed_used_up", "Rows that wait with their attempts used up", self.observed_used_up.clone());
        r.register(
            "observed_unconfigured",
            "1 for a stage that the configuration does not have",
            self.observed_unconfigured.clone(),
        );
        r.register("observed_left_out", "Changes of rows too many to follow", self.observed_left_out.clone());
    }

    /// These files of credentials have changed; `refusal`: why they cannot be used.
    pub fn note_credentials(&self, files: &str, refusal: Option<&str>) {
        self.credentials_refused.inc_by(u64::from(refusal.is_some()));
        self.update(|status| {
            match refusal {
                Some(refusal) => drop(status.credentials.insert(files.to_owned(), refusal.to_owned())),
                None => drop(status.credentials.remove(files)),
            }
            self.credentials_unusable.set(i64::try_from(status.credentials.len()).unwrap_or(i64::MAX));
        });
    }

    /// So many rows wait for a person.
    pub fn note_waiting(&self, rows: RowsWaiting) {
        for (state, count) in [("non_resumable", rows.non_resumable), ("unknown", rows.unknown)] {
            let gauge = self.rows_waiting_for_a_person.get_or_create(&WaitingLabel { state });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.update(|status| status.rows_waiting = Some(rows));
    }

    /// So much waits for its outcome.
    pub(crate) fn stage(&self, amount: StagedAmount) {
        let StagedAmount { in_progress, prepared, bytes } = amount;
        self.staged_transactions.set(i64::try_from(in_progress).unwrap_or(i64::MAX));
        self.prepared_transactions.set(i64::try_from(prepared).unwrap_or(i64::MAX));
        self.staged_bytes.set(bytes.cast_signed());
    }

    /// A copy of the picture.
    pub fn status(&self) -> Status {
        self.lock().clone()
    }

    /// Changes the picture.
    pub fn update(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.lock());
    }

    /// Changes the picture of one consumer.
    pub fn update_consumer(&self, name: &str, change: impl FnOnce(&mut ConsumerStatus)) {
        let mut status = self.lock();
        if !status.consumers.contains_key(name) {
            status.consumers.insert(name.to_owned(), ConsumerStatus::default());
        }
        if let Some(consumer) = status.consumers.get_mut(name) {
            change(consumer);
        }
    }

    /// Changes the picture of one stage, of this class.
    pub fn update_stage(&self, name: &str, class: StageClass, change: impl FnOnce(&mut StageCalls)) {
        let mut status = self.lock();
        if !status.stages.contains_key(name) {
            status.stages.insert(name.to_owned(), StageCalls::new(class));
        }
        if let Some(calls) = status.stages.get_mut(name) {
            change(calls);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Status> {
        // A panic while the lock was held leaves a picture that is at worst out of date.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
