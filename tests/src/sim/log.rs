//! The replication stream of the simulated server: real bytes, one session for each slot.

use super::database::{Change, Database, routing};
use super::faults::{Fault, Point, Side};
use super::journal::JournalDisk;
use super::shared::{Process, disconnected};
use super::sink::Consumer;
use bytes::Bytes;
use plugin::Plugin;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::frame::FrameBatch;
use postrider_core::history::{ConfirmPolicy, Record};
use postrider_core::members::Presence;
use postrider_core::ports::{
    Before, BoxFuture, Confirmer, LogReader, LogSession, LogSource, Outcomes, Primary, SlotHealth, SourceIdentity,
};
use postrider_core::position::Lsn;
use postrider_core::snapshot::Snapshot;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

mod plugin;

pub use plugin::ghost;

/// The server sends a keep-alive after so long without anything else.
const KEEP_ALIVE: Duration = Duration::from_millis(700);

/// The door of one process to its slot.
#[derive(Debug)]
pub struct FakeSource {
    pub database: Arc<Database>,
    pub process: Arc<Process>,
    /// To know what may be confirmed.
    pub disk: JournalDisk,
    pub consumer: Arc<Consumer>,
    pub policy: ConfirmPolicy,
}

/// A session's place at the slot; left when dropped, which the server may notice late.
#[derive(Debug)]
struct Place {
    database: Arc<Database>,
    slot: usize,
    session: u64,
}

#[derive(Debug)]
struct Reader {
    place: Place,
    process: Arc<Process>,
    restarts: u64,
    plugin: Plugin,
    /// Frames on their way, and whether each ends a transaction.
    frames: VecDeque<(Vec<u8>, bool)>,
    within_transaction: bool,
}

#[derive(Debug)]
struct FakeConfirmer {
    database: Arc<Database>,
    process: Arc<Process>,
    slot: usize,
    session: u64,
    disk: JournalDisk,
    consumer: Arc<Consumer>,
    policy: ConfirmPolicy,
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    received: Lsn,
    confirmed: Lsn,
    recorded: Lsn,
}

impl LogSource for FakeSource {
    fn identify(&self) -> BoxFuture<'_, Result<SourceIdentity>> {
        Box::pin(async move { Ok(self.identity()) })
    }

    fn open(&self, durable_end: Lsn) -> BoxFuture<'_, Result<LogSession>> {
        Box::pin(self.open_session(durable_end, true))
    }

    fn open_whole(&self, durable_end: Lsn) -> BoxFuture<'_, Result<LogSession>> {
        self.process.sim.count(Fault::AskedWhole);
        Box::pin(self.open_session(durable_end, false))
    }
}

impl FakeSource {
    fn identity(&self) -> SourceIdentity {
        let slot = format!("slot_{}", self.process.number);
        SourceIdentity { system_identifier: 7, timeline: 1, database: "core".into(), slot }
    }

    async fn open_session(&self, durable_end: Lsn, streaming: bool) -> Result<LogSession> {
        self.process.point(Point::LogOpen, Side::Dispatch).await;
        self.process.sim.latency().await;
        let session = self.connect(durable_end, streaming)?;
        self.process.point(Point::LogOpen, Side::Completion).await;
        Ok(session)
    }

    fn connect(&self, durable_end: Lsn, streaming: bool) -> Result<LogSession> {
        if self.database.is_down() {
            return Err(disconnected());
        }
        let (database, process) = (self.database.clone(), self.process.clone());
        let slot = process.number;
        let now = process.sim.clock.now();
        let mut state = database.state();
        if state.slots[slot].session.is_some_and(|(_, gone_at)| gone_at > now) {
            process.sim.count(Fault::SlotInUse);
            return Err(Error::new(ErrorKind::SlotInUse, "the simulated slot is in use"));
        }
        let confirmed = state.slots[slot].confirmed;
        if durable_end != Lsn::ZERO && confirmed > durable_end {
            return Err(Error::new(ErrorKind::SlotForeign, "the simulated slot was moved past the journal"));
        }
        let session = state.next_session;
        state.next_session += 1;
        state.slots[slot].session = Some((session, u64::MAX));
        let from = confirmed.max(durable_end);
        let next = state.log.partition_point(|logged| logged.commit_lsn < from);
        let restarts = state.restarts;
        drop(state);
        let (_, snapshot) = database.read(Some(&[]));
        let outcomes = Some(Outcomes { snapshot, logged: database.state().log_end });
        let place = Place { database: database.clone(), slot, session };
        let reader = Reader {
            place,
            process: process.clone(),
            restarts,
            plugin: Plugin::new(next, streaming && process.sim.fault_rate > 0),
            frames: VecDeque::new(),
            within_transaction: false,
        };
        let confirmer = FakeConfirmer {
            database,
            process,
            slot,
            session,
            disk: self.disk.clone(),
            consumer: self.consumer.clone(),
            policy: self.policy,
            said: Mutex::default(),
        };
        Ok(LogSession {
            identity: self.identity(),
            begins: from,
            before: Before::Ourselves,
            outcomes,
            reader: Box::new(reader),
            confirmer: Arc::new(confirmer),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let sim = &self.database.sim;
        let late = if sim.faults_on() { sim.below(300_000) } else { 0 };
        let gone_at = sim.clock.now() + late;
        let mut state = self.database.state();
        if let Some((session, until)) = &mut state.slots[self.slot].session
            && *session == self.session
        {
            *until = (*until).min(gone_at);
        }
    }
}

impl LogReader for Reader {
    fn read(&mut self) -> BoxFuture<'_, Result<FrameBatch>> {
        Box::pin(async move {
            let process = self.process.clone();
            process.point(Point::LogRead, Side::Dispatch).await;
            self.wait().await?;
            process.point(Point::LogRead, Side::Completion).await;
            if process.sim.strikes(300) {
                let within = self.within_transaction;
                process.sim.count(if within { Fault::StreamCutWithin } else { Fault::StreamCut });
                return Err(disconnected());
            }
            let most = 1 + usize::try_from(process.sim.below(60)).unwrap();
            let mut bytes = Vec::new();
            for _ in 0..most.min(self.frames.len()) {
                let (frame, ends) = self.frames.pop_front().unwrap();
                bytes.extend_from_slice(&frame);
                self.within_transaction = !ends;
            }
            Ok(FrameBatch::new(Bytes::from(bytes)))
        })
    }
}

impl Reader {
    /// Waits until there are frames; a keep-alive is one.
    async fn wait(&mut self) -> Result<()> {
        let sim = self.process.sim.clone();
        let database = self.place.database.clone();
        let mut quiet = sim.clock.sleep(KEEP_ALIVE);
        loop {
            let seen = database.grew.count();
            if self.place.database.state().restarts != self.restarts {
                return Err(disconnected());
            }
            self.fill();
            if !self.frames.is_empty() {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = database.grew.changed_since(seen) => {}
                () = &mut quiet => self.keep_alive(),
            }
        }
    }

    fn fill(&mut self) {
        let database = self.place.database.clone();
        let state = database.state();
        let sent_at = database.sim.server_now().to_postgres_micros();
        for output in self.plugin.decode(&database.sim, &state.log) {
            self.frames.push_back((x_log_data(output.wal, sent_at, &output.payload), output.ends));
        }
    }

    fn keep_alive(&mut self) {
        let sim = &self.process.sim;
        let wal_end = self.place.database.state().log_end;
        let mut body = vec![b'k'];
        body.extend(wal_end.0.to_be_bytes());
        body.extend(sim.server_now().to_postgres_micros().to_be_bytes());
        body.push(u8::from(sim.one_in(4)));
        self.frames.push_back((copy_data(&body), true));
    }
}

impl FakeConfirmer {
    /// What is unsaid goes to the server, if the session is still there.
    fn send(&self, said: &mut Said) {
        let lsn = said.confirmed.min(said.received);
        if lsn > said.recorded && !self.process.is_dead() {
            said.recorded = lsn;
            let settled = self.database.settled(|id| self.consumer.has(id));
            self.process.sim.record(Record::Confirmed {
                slot: format!("slot_{}", self.slot).into(),
                lsn,
                durable: self.disk.durable(),
                settled: vec![(self.consumer.name.clone(), settled)],
                policy: self.policy,
            });
        }
        let mut state = self.database.state();
        let slot = &mut state.slots[self.slot];
        if slot.session.is_some_and(|(session, _)| session == self.session) {
            slot.confirmed = slot.confirmed.max(lsn);
        }
    }
}

impl Confirmer for FakeConfirmer {
    fn confirm(&self, lsn: Lsn, now: bool) {
        let mut said = self.said.lock().unwrap();
        said.confirmed = said.confirmed.max(lsn);
        if now || !self.process.sim.faults_on() || self.process.sim.one_in(3) {
            self.send(&mut said);
        }
    }

    fn received(&self, lsn: Lsn) {
        let mut said = self.said.lock().unwrap();
        said.received = said.received.max(lsn);
        if !self.process.sim.faults_on() {
            self.send(&mut said);
        }
    }

    fn finish(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.process.point(Point::LogFinish, Side::Dispatch).await;
            self.send(&mut self.said.lock().unwrap());
            self.process.sim.latency().await;
            self.process.point(Point::LogFinish, Side::Completion).await;
            Ok(())
        })
    }
}

impl Primary for FakeSource {
    fn beat(&self, presence: Option<Presence>) -> BoxFuture<'_, Result<Lsn>> {
        Box::pin(async move {
            self.process.point(Point::PrimaryBeat, Side::Dispatch).await;
            self.process.sim.latency().await;
            if self.database.is_down() {
                return Err(disconnected());
            }
            let xid = self.database.begin();
            let mut changes = vec![Change::Message { prefix: "postrider".to_owned(), content: b"beat".to_vec() }];
            changes.extend(presence.map(|presence| Change::Message {
                prefix: routing().work.unwrap().presence_prefix(),
                content: presence.content().into_bytes(),
            }));
            self.database.commit(xid, changes);
            let end = self.database.state().log_end;
            self.process.point(Point::PrimaryBeat, Side::Completion).await;
            Ok(end)
        })
    }

    fn slot(&self) -> BoxFuture<'_, Result<SlotHealth>> {
        Box::pin(async move {
            self.process.point(Point::PrimarySlot, Side::Dispatch).await;
            self.process.sim.latency().await;
            if self.database.is_down() {
                return Err(disconnected());
            }
            let health = {
                let state = self.database.state();
                let slot = &state.slots[self.process.number];
                SlotHealth {
                    active: slot.session.is_some(),
                    confirmed: slot.confirmed,
                    retained_bytes: state.log_end.0 - slot.confirmed.0,
                    safe_bytes: None,
                    wal_status: "reserved".into(),
                }
            };
            self.process.point(Point::PrimarySlot, Side::Completion).await;
            Ok(health)
        })
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot>> {
        Box::pin(async move {
            self.process.point(Point::PrimarySnapshot, Side::Dispatch).await;
            self.process.sim.latency().await;
            if self.database.is_down() {
                return Err(disconnected());
            }
            let (_, snapshot) = self.database.read(Some(&[]));
            self.process.point(Point::PrimarySnapshot, Side::Completion).await;
            Ok(snapshot)
        })
    }
}

fn x_log_data(wal: Lsn, sent_at: i64, payload: &[u8]) -> Vec<u8> {
    let mut body = vec![b'w'];
    body.extend(wal.0.to_be_bytes());
    body.extend(wal.0.to_be_bytes());
    body.extend(sent_at.to_be_bytes());
    body.extend_from_slice(payload);
    copy_data(&body)
}

fn copy_data(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [b"d", &length.to_be_bytes()[..], body].concat()
}
