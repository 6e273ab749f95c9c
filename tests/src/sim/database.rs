//! A PostgreSQL in memory, as far as the ports see it: rows and snapshots, transaction ids, a log of pgoutput messages, slots,
//! advisory locks of owners.
//!
//! A commit is in the log first and visible to others a moment later; until then its rows are locked.

mod message;

use super::faults::Fault;
use super::shared::{Bug, Sim};
use super::signal::Signal;
use postrider_core::history::Record;
use postrider_core::paused::{PauseChange, Paused};
use postrider_core::position::{Generation, Lsn, Position};
use postrider_core::route::{OutboxPrefix, OutboxTable, Routing, WorkMapping};
use postrider_core::snapshot::Snapshot;
use postrider_core::time::Timestamp;
use postrider_core::work::{OwnerId, WorkKey, WorkVersion};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub use message::{description, encoded};

pub const WORK_OID: u32 = 16_401;
pub const OUTBOX_OID: u32 = 16_402;
/// Where the log begins, and every slot.
const LOG_START: u64 = 0x0150_0000;

/// One row as one transaction left it.
#[derive(Debug, Clone)]
pub struct Stored {
    pub version: WorkVersion,
    pub payload: Arc<str>,
    pub request_hash: Option<Arc<str>>,
}

/// A row, and what others still see of it.
#[derive(Debug)]
struct Slot {
    now: Stored,
    /// The transaction that wrote `now` is in the log and not visible yet; the version before is.
    hidden: Option<(u64, Option<Stored>)>,
}

/// One record that ends a transaction, or its first phase, in the log.
#[derive(Debug)]
pub struct Logged {
    pub kind: LoggedKind,
    /// Where the record begins.
    pub commit_lsn: Lsn,
    pub end_lsn: Lsn,
    pub xid: u32,
    pub at: Timestamp,
    /// Messages; a change with the table that must be described before.
    pub messages: Vec<(Option<u32>, Vec<u8>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoggedKind {
    Commit,
    Prepare,
    /// The messages stand with the prepare record.
    CommitPrepared,
    RollbackPrepared,
}

/// A replication slot.
#[derive(Debug, Default)]
pub struct ReplicationSlot {
    pub confirmed: Lsn,
    /// The session that reads, and from when on it is gone.
    pub session: Option<(u64, u64)>,
}

#[derive(Debug)]
pub struct State {
    rows: BTreeMap<WorkKey, Slot>,
    forgotten: Option<WorkKey>,
    pub log: Vec<Logged>,
    pub log_end: Lsn,
    next_xid: u64,
    running: BTreeSet<u64>,
    pub slots: Vec<ReplicationSlot>,
    pub next_session: u64,
    /// When each owner's lock is given back; `u64::MAX` while it is held.
    owners: BTreeMap<OwnerId, u64>,
    /// Not reachable before this time.
    down_until: u64,
    /// Sessions from before are gone.
    pub restarts: u64,
    owners_say_nothing_until: u64,
    pub events: Vec<(Arc<str>, Lsn)>,
    prepared: BTreeSet<u64>,
    /// Every order that paused or resumed a part, with its transaction.
    pause_orders: Vec<(u64, PauseChange)>,
}

/// A change to be committed.
#[derive(Debug, Clone)]
pub enum Change {
    InsertWork(Stored),
    UpdateWork(Stored),
    /// An update that is told by the work table's trigger.
    TellWork(Stored),
    /// An update that the log does not show.
    Silent(Stored),
    InsertEvent {
        id: Arc<str>,
        key: Arc<str>,
    },
    DeleteEvent {
        id: Arc<str>,
    },
    Message {
        prefix: String,
        content: Vec<u8>,
    },
    /// A person pauses or resumes a part.
    Pause(PauseChange),
}

#[derive(Debug)]
pub struct Database {
    pub sim: Arc<Sim>,
    /// Slots send prepared transactions before their verdict.
    pub two_phase: bool,
    /// The executors' own transitions are kept out of the log.
    pub quiet: bool,
    state: Mutex<State>,
    /// Rises with every commit and restart.
    pub grew: Signal,
    /// Rises whenever a commit becomes visible.
    pub revealed: Signal,
}

impl Database {
    pub fn new(sim: &Arc<Sim>, slots: usize) -> Arc<Database> {
        let slot = || ReplicationSlot { confirmed: Lsn(LOG_START), session: None };
        let state = State {
            rows: BTreeMap::new(),
            forgotten: None,
            log: Vec::new(),
            log_end: Lsn(LOG_START),
            next_xid: 700 + sim.below(1_000),
            running: BTreeSet::new(),
            slots: (0..slots).map(|_| slot()).collect(),
            next_session: 1,
            owners: BTreeMap::new(),
            down_until: 0,
            restarts: 0,
            owners_say_nothing_until: 0,
            events: Vec::new(),
            prepared: BTreeSet::new(),
            pause_orders: Vec::new(),
        };
        // A row that is to be missing from the log would come with its prepare record.
        let two_phase = sim.one_in(2) && !sim.has(Bug::RowForgotten);
        Arc::new(Database {
            sim: sim.clone(),
            two_phase,
            quiet: sim.one_in(2),
            state: Mutex::new(state),
            grew: Signal::default(),
            revealed: Signal::default(),
        })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn is_down(&self) -> bool {
        self.state().down_until > self.sim.clock.now()
    }

    /// Every connection breaks, and for a while there is none.
    pub fn restart(&self, down: Duration) {
        self.sim.count(Fault::Outage);
        let now = self.sim.clock.now();
        let mut state = self.state();
        state.restarts += 1;
        state.down_until = now + u64::try_from(down.as_micros()).unwrap();
        state.owners_say_nothing_until = state.down_until + 500_000;
        drop(state);
        self.grew.raise();
    }

    /// An owner takes its lock.
    pub fn lock_owner(&self, owner: OwnerId) {
        self.state().owners.insert(owner, u64::MAX);
    }

    /// The owner's session is found dead at a time.
    pub fn unlock_owner(&self, owner: OwnerId, at: u64) {
        self.state().owners.insert(owner, at);
    }

    /// Whether the owner's lock was broken and not given back.
    pub fn held(&self, owner: OwnerId) -> bool {
        self.state().owners.get(&owner) == Some(&0)
    }

    pub fn living_owners(&self) -> Option<BTreeSet<OwnerId>> {
        let now = self.sim.clock.now();
        let state = self.state();
        if state.owners_say_nothing_until > now {
            return None;
        }
        Some(state.owners.iter().filter(|(_, until)| **until > now).map(|(owner, _)| *owner).collect())
    }

    /// What is paused, as others see it.
    pub fn pauses(&self) -> Vec<Paused> {
        let state = self.state();
        let mut paused = BTreeMap::new();
        for (_, change) in state.pause_orders.iter().filter(|(xid, _)| !state.running.contains(xid)) {
            match change {
                PauseChange::Pause(pause) => drop(paused.insert(pause.part.clone(), pause.clone())),
                PauseChange::Resume(part) => drop(paused.remove(part)),
            }
        }
        paused.into_values().collect()
    }

    /// Gives a transaction its id; it runs until it commits or rolls back.
    pub fn begin(&self) -> u64 {
        let mut state = self.state();
        let xid = state.next_xid;
        state.next_xid += 1;
        state.running.insert(xid);
        xid
    }

    /// Whether others do not see the transaction yet.
    pub fn is_running(&self, xid: u64) -> bool {
        self.state().running.contains(&xid)
    }

    pub fn roll_back(&self, xid: u64) {
        let mut state = self.state();
        state.running.remove(&xid);
        if state.prepared.remove(&xid) {
            self.sim.count(Fault::PreparedRolledBack);
            self.end(&mut state, LoggedKind::RollbackPrepared, xid, Vec::new());
            drop(state);
            self.grew.raise();
        }
    }

    /// Writes the first phase of a transaction to the log; it still runs.
    pub fn prepare(&self, xid: u64, changes: &[Change]) {
        let mut state = self.state();
        let lsn = state.log_end;
        let messages = changes.iter().map(|change| encoded(change, lsn)).collect();
        self.end(&mut state, LoggedKind::Prepare, xid, messages);
        state.prepared.insert(xid);
        drop(state);
        self.grew.raise();
    }

    /// Writes the commit to the log, and lets others see it a little later.
    pub fn commit(self: &Arc<Database>, xid: u64, changes: Vec<Change>) {
        let hidden_for = match self.sim.below(5) {
            0 => Duration::from_micros(self.sim.below(30_000)),
            1 if self.sim.strikes(2_000) => Duration::from_millis(self.sim.below(400)),
            _ => Duration::ZERO,
        };
        self.commit_unseen_for(xid, changes, hidden_for);
    }

    /// Writes the commit to the log, and lets others see it after so long.
    pub fn commit_unseen_for(self: &Arc<Database>, xid: u64, changes: Vec<Change>, hidden_for: Duration) {
        let mut state = self.state();
        self.log(&mut state, xid, &changes);
        for change in changes {
            if let Change::Pause(change) = &change {
                state.pause_orders.push((xid, change.clone()));
            }
            if let Change::InsertWork(stored)
            | Change::UpdateWork(stored)
            | Change::TellWork(stored)
            | Change::Silent(stored) = change
            {
                let key = stored.version.key.clone();
                let before = state.rows.remove(&key).map(|slot| slot.now);
                state.rows.insert(key, Slot { now: stored, hidden: Some((xid, before)) });
            }
        }
        drop(state);
        self.grew.raise();
        if hidden_for.is_zero() {
            return self.reveal(xid);
        }
        self.sim.count(Fault::LateVisible);
        let database = self.clone();
        tokio::spawn(async move {
            database.sim.clock.sleep(hidden_for).await;
            database.reveal(xid);
        });
    }

    fn reveal(&self, xid: u64) {
        let mut state = self.state();
        state.running.remove(&xid);
        for slot in state.rows.values_mut() {
            if slot.hidden.as_ref().is_some_and(|(by, _)| *by == xid) {
                slot.hidden = None;
            }
        }
        drop(state);
        self.revealed.raise();
    }

    /// Runs a guarded statement over rows in key order, in one transaction; what is locked is skipped. `note` hears of each row as
    /// it is committed. Returns, once all is visible, the rows that were written with their replies.
    pub async fn guarded<Q, R>(
        self: &Arc<Database>,
        asked: Vec<(WorkKey, Q)>,
        judge: impl Fn(&Stored, &Q) -> Option<(Stored, R)>,
        note: impl Fn(&Q, &Stored, &R),
    ) -> Vec<(Q, Stored, R)> {
        let change = if self.quiet { Change::Silent } else { Change::UpdateWork };
        let (written, locked) = self.pass(asked, change, judge, note).await;
        locked.iter().for_each(|_| self.sim.count(Fault::RowLocked));
        written
    }

    /// As `guarded` for one row, but as an ordinary statement does it: while the row is locked, it is waited for.
    pub async fn guarded_waiting<R>(
        self: &Arc<Database>,
        key: WorkKey,
        judge: impl Fn(&Stored, &()) -> Option<(Stored, R)>,
        note: impl Fn(&(), &Stored, &R),
    ) {
        let change = if self.quiet { Change::TellWork } else { Change::UpdateWork };
        loop {
            let seen = self.revealed.count();
            let (_, locked) = self.pass(vec![(key.clone(), ())], change, &judge, &note).await;
            if locked.is_empty() {
                return;
            }
            self.revealed.changed_since(seen).await;
        }
    }

    /// The rows that were written, once they are visible, and those that are locked.
    async fn pass<Q, R>(
        self: &Arc<Database>,
        asked: Vec<(WorkKey, Q)>,
        change: fn(Stored) -> Change,
        judge: impl Fn(&Stored, &Q) -> Option<(Stored, R)>,
        note: impl Fn(&Q, &Stored, &R),
    ) -> (Vec<(Q, Stored, R)>, Vec<WorkKey>) {
        let (written, locked) = self.judged(asked, judge);
        written.iter().for_each(|(question, stored, reply)| note(question, stored, reply));
        if !written.is_empty() {
            let xid = self.begin();
            self.commit(xid, written.iter().map(|(_, stored, _)| change(stored.clone())).collect());
            while self.is_running(xid) {
                self.revealed.changed_since(self.revealed.count()).await;
            }
        }
        (written, locked)
    }

    fn judged<Q, R>(
        &self,
        mut asked: Vec<(WorkKey, Q)>,
        judge: impl Fn(&Stored, &Q) -> Option<(Stored, R)>,
    ) -> (Vec<(Q, Stored, R)>, Vec<WorkKey>) {
        asked.sort_by(|one, other| one.0.cmp(&other.0));
        let (mut passed, mut locked) = (Vec::new(), Vec::new());
        let state = self.state();
        for (key, question) in asked {
            let Some(slot) = state.rows.get(&key) else { continue };
            let visible = slot.hidden.as_ref().map_or(Some(&slot.now), |(_, before)| before.as_ref());
            let Some((stored, reply)) = visible.and_then(|visible| judge(visible, &question)) else { continue };
            if slot.hidden.is_some() {
                locked.push(key);
            } else {
                passed.push((question, stored, reply));
            }
        }
        (passed, locked)
    }

    /// The visible versions and the snapshot they were read in.
    pub fn read(&self, keys: Option<&[WorkKey]>) -> (Vec<WorkVersion>, Snapshot) {
        let state = self.state();
        let seen = |slot: &Slot| match &slot.hidden {
            None => Some(slot.now.version.clone()),
            Some((_, before)) => before.as_ref().map(|stored| stored.version.clone()),
        };
        let versions = match keys {
            Some(keys) => keys.iter().filter_map(|key| seen(state.rows.get(key)?)).collect(),
            None => state
                .rows
                .values()
                .filter_map(seen)
                .filter(|version| !version.closed && Some(&version.key) != state.forgotten.as_ref())
                .collect(),
        };
        let xmax = state.next_xid;
        let running: Vec<u64> = state.running.iter().copied().collect();
        (versions, Snapshot { xmin: running.first().copied().unwrap_or(xmax), xmax, running })
    }

    /// Every row as its last transaction left it.
    pub fn rows(&self) -> Vec<Stored> {
        self.state().rows.values().map(|slot| slot.now.clone()).collect()
    }

    /// Log of other tables and databases: nothing that is published.
    pub fn unrelated_log(&self, bytes: u64) {
        self.state().log_end.0 += bytes;
        self.grew.raise();
    }

    /// The LSN below which a consumer has every event.
    pub fn settled(&self, has: impl Fn(&str) -> bool) -> Lsn {
        self.state().events.iter().find(|(id, _)| !has(id)).map_or(Lsn(u64::MAX), |(_, commit_lsn)| *commit_lsn)
    }

    fn log(&self, state: &mut State, xid: u64, changes: &[Change]) {
        // From PostgreSQL 15 on a transaction without anything that is published is not sent at all.
        if changes.iter().all(|change| matches!(change, Change::Silent(_))) && self.sim.one_in(2) {
            state.log_end.0 += 48;
            return;
        }
        let kind = if state.prepared.remove(&xid) { LoggedKind::CommitPrepared } else { LoggedKind::Commit };
        let commit_lsn = self.next_lsn(state);
        let mut messages = Vec::with_capacity(changes.len());
        let mut ordinal = 0;
        for change in changes {
            if let Change::InsertWork(stored) = change
                && self.sim.has(Bug::RowForgotten)
                && state.forgotten.is_none()
            {
                state.forgotten = Some(stored.version.key.clone());
                continue;
            }
            if let Change::InsertEvent { id, key } = change {
                let position = Position { generation: Generation::FIRST, commit_lsn, ordinal };
                self.sim.record(Record::EventCommitted { id: id.clone(), position, key: Some(key.clone()) });
                state.events.push((id.clone(), commit_lsn));
            }
            if !matches!(change, Change::Message { .. } | Change::TellWork(_) | Change::Silent(_) | Change::Pause(_)) {
                ordinal += 1;
            }
            if !matches!(change, Change::Silent(_)) {
                messages.push(encoded(change, commit_lsn));
            }
        }
        if kind == LoggedKind::CommitPrepared {
            messages.clear();
        }
        self.end_at(state, (kind, commit_lsn), xid, messages);
    }

    /// Two records can touch: the end of one is then the LSN of the next one.
    fn next_lsn(&self, state: &State) -> Lsn {
        Lsn(state.log_end.0 + if self.sim.one_in(2) { 0 } else { 8 * self.sim.below(64) })
    }

    fn end(&self, state: &mut State, kind: LoggedKind, xid: u64, messages: Vec<(Option<u32>, Vec<u8>)>) {
        let lsn = self.next_lsn(state);
        self.end_at(state, (kind, lsn), xid, messages);
    }

    fn end_at(
        &self,
        state: &mut State,
        (kind, commit_lsn): (LoggedKind, Lsn),
        xid: u64,
        messages: Vec<(Option<u32>, Vec<u8>)>,
    ) {
        let (at, end_lsn) = (self.sim.server_now(), Lsn(commit_lsn.0 + 48));
        state.log_end = end_lsn;
        let xid = u32::try_from(xid & 0xFFFF_FFFF).unwrap();
        state.log.push(Logged { kind, commit_lsn, end_lsn, xid, at, messages });
    }
}

/// A new row in the first stage.
pub fn new_row(key: WorkKey, stage: &str, payload: &str) -> Stored {
    Stored { version: WorkVersion::unclaimed(key, stage), payload: payload.into(), request_hash: None }
}

/// What of the log is ours.
pub fn routing() -> Routing {
    Routing {
        outbox_tables: vec![OutboxTable::default()],
        outbox_prefixes: vec![OutboxPrefix { prefix: "outbox".into() }],
        work: Some(WorkMapping::default()),
    }
}
