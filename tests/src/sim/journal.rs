//! A journal in memory: what was appended survives a killed process, only what was synced survives a machine without power.

use super::faults::{Fault, Point, Side};
use super::shared::{Bug, Process, Sim};
use super::signal::Signal;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{
    BoxFuture, Follower, Gap, Journal, JournalWriter, PositionStore, Room, SchemaBlock, SourceIdentity,
};
use postrider_core::position::{Generation, Lsn, Position};
use postrider_core::time::Timestamp;
use postrider_core::transaction::{PartHead, PartKind, TransactionBatch, push_message};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One part, with the descriptions in force before it.
#[derive(Debug, Clone)]
struct Stored {
    head: PartHead,
    block: Arc<[u8]>,
    schema: Arc<SchemaBlock>,
}

/// What lies on the disk of one machine.
#[derive(Debug, Default)]
struct Contents {
    parts: Vec<Stored>,
    /// Parts of whole transactions.
    complete: usize,
    /// Parts that a crash of the machine leaves.
    durable: usize,
    messages: BTreeMap<(u8, u32), Vec<u8>>,
    schema: Arc<SchemaBlock>,
    positions: BTreeMap<Arc<str>, Position>,
    /// So often retention went past whoever was reading.
    overtaken: u32,
}

/// The disk; it outlives the processes.
#[derive(Debug, Clone, Default)]
pub struct JournalDisk(Arc<Mutex<Contents>>);

/// The journal as one process has it open.
#[derive(Debug)]
pub struct FakeJournal {
    process: Arc<Process>,
    disk: JournalDisk,
    grew: Signal,
    syncing: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
pub struct FakeWriter(Arc<FakeJournal>);

#[derive(Debug)]
struct Cursor {
    journal: Arc<FakeJournal>,
    next: usize,
    overtaken: u32,
    started: bool,
    schema: Option<SchemaBlock>,
}

impl Contents {
    fn end(&self, parts: usize) -> Lsn {
        parts.checked_sub(1).and_then(|last| self.parts.get(last)).map_or(Lsn::ZERO, |part| part.head.end_lsn)
    }

    fn remember(&mut self, block: &[u8]) {
        for message in postrider_core::transaction::Messages::new(block) {
            let Some((&[tag, a, b, c, d], _)) = message.split_first_chunk::<5>() else { continue };
            if tag == b'R' || tag == b'Y' {
                self.messages.insert((u8::from(tag == b'R'), u32::from_be_bytes([a, b, c, d])), message.to_vec());
                let mut schema = Vec::new();
                assert!(self.messages.values().all(|message| push_message(&mut schema, message)));
                self.schema = Arc::new(SchemaBlock(schema));
            }
        }
    }
}

impl JournalDisk {
    /// The process is gone: a transaction without its last part is cut; without power, some of what was not synced, too.
    pub fn recover(&self, sim: &Sim, power_lost: bool) {
        let mut contents = self.0.lock().unwrap();
        let mut keep = contents.complete;
        if power_lost {
            let lost = (keep - contents.durable) as u64;
            keep = contents.durable + usize::try_from(sim.below(lost + 1)).unwrap();
            while keep > contents.durable && !contents.parts[keep - 1].head.last {
                keep -= 1;
            }
        }
        contents.parts.truncate(keep);
        contents.complete = keep;
        contents.durable = keep;
    }

    /// Whoever reads now finds the next part gone. Whoever begins anew finds it all: only that there was a gap matters here.
    pub fn overtake(&self) {
        self.0.lock().unwrap().overtaken += 1;
    }

    /// What a crash of the machine leaves now.
    pub fn durable(&self) -> Lsn {
        let contents = self.0.lock().unwrap();
        contents.end(contents.durable)
    }
}

impl FakeJournal {
    pub fn open(process: &Arc<Process>, disk: &JournalDisk) -> Arc<FakeJournal> {
        Arc::new(FakeJournal {
            process: process.clone(),
            disk: disk.clone(),
            grew: Signal::default(),
            syncing: tokio::sync::Mutex::new(()),
        })
    }

    pub fn writer(self: &Arc<FakeJournal>) -> Box<dyn JournalWriter> {
        Box::new(FakeWriter(self.clone()))
    }

    pub fn door(self: &Arc<FakeJournal>) -> Arc<dyn Journal> {
        Arc::new(Door(self.clone()))
    }

    fn appended(&self) -> Lsn {
        let contents = self.disk.0.lock().unwrap();
        contents.end(contents.complete)
    }

    async fn appended_past(&self, lsn: Lsn) -> Lsn {
        loop {
            let seen = self.grew.count();
            let appended = self.appended();
            if appended > lsn {
                return appended;
            }
            self.grew.changed_since(seen).await;
        }
    }

    async fn sync_past(&self, lsn: Lsn) -> Result<Lsn> {
        let sim = &self.process.sim;
        self.process.point(Point::JournalDurable, Side::Dispatch).await;
        loop {
            self.appended_past(lsn).await;
            let syncing = self.syncing.lock().await;
            let (complete, durable) = {
                let contents = self.disk.0.lock().unwrap();
                (contents.complete, contents.end(contents.durable))
            };
            if durable <= lsn {
                let slow = sim.strikes(400);
                if slow {
                    sim.count(Fault::SlowSync);
                }
                let span = if slow { sim.millis(100, 800) } else { Duration::from_micros(200 + sim.below(2_000)) };
                sim.clock.sleep(span).await;
                if !self.process.is_dead() {
                    let mut contents = self.disk.0.lock().unwrap();
                    contents.durable = contents.durable.max(complete);
                }
            }
            drop(syncing);
            self.process.point(Point::JournalDurable, Side::Completion).await;
            let durable = self.disk.durable();
            if durable > lsn {
                return Ok(durable);
            }
        }
    }
}

impl JournalWriter for FakeWriter {
    fn append(&mut self, batch: &TransactionBatch, _schema: &SchemaBlock) -> Result<Lsn> {
        let journal = &self.0;
        let mut contents = journal.disk.0.lock().unwrap();
        if !journal.process.is_dead() {
            for part in batch.parts() {
                let schema = contents.schema.clone();
                contents.parts.push(Stored { head: part.head, block: part.block().into(), schema });
                contents.remember(part.block());
                if part.head.last {
                    contents.complete = contents.parts.len();
                }
            }
        }
        let end = contents.end(contents.complete);
        drop(contents);
        journal.grew.raise();
        Ok(end)
    }

    fn discard_partial(&mut self) -> Result<()> {
        if !self.0.process.is_dead() {
            let mut contents = self.0.disk.0.lock().unwrap();
            let complete = contents.complete;
            contents.parts.truncate(complete);
        }
        Ok(())
    }

    fn go_on(&mut self, _identity: &SourceIdentity, begins: Lsn, _schema: &SchemaBlock) -> Result<()> {
        assert!(begins <= self.0.appended(), "nobody else reads from a simulated slot");
        Ok(())
    }
}

/// The journal's door for its readers.
#[derive(Debug)]
struct Door(Arc<FakeJournal>);

impl Journal for Door {
    fn generation(&self) -> Generation {
        Generation::FIRST
    }

    fn appended(&self) -> Lsn {
        self.0.appended()
    }

    fn durable(&self) -> Lsn {
        if self.0.process.sim.has(Bug::JournalLies) { self.appended() } else { self.0.disk.durable() }
    }

    fn durable_past(&self, lsn: Lsn) -> BoxFuture<'_, Result<Lsn>> {
        if self.0.process.sim.has(Bug::JournalLies) {
            return Box::pin(async move {
                self.0.process.point(Point::JournalDurable, Side::Dispatch).await;
                Ok(self.0.appended_past(lsn).await)
            });
        }
        Box::pin(self.0.sync_past(lsn))
    }

    fn follow(&self, after: Position) -> Result<Box<dyn Follower>> {
        let contents = self.0.disk.0.lock().unwrap();
        let settled = |head: &PartHead| {
            let at = match head.kind {
                PartKind::Transaction => head.commit_lsn,
                PartKind::Mark => Lsn(head.end_lsn.0 - 1),
            };
            Position::whole(Generation::FIRST, at) <= after
        };
        let next = contents.parts.iter().position(|part| !settled(&part.head)).unwrap_or(contents.parts.len());
        let overtaken = contents.overtaken;
        drop(contents);
        Ok(Box::new(Cursor { journal: self.0.clone(), next, overtaken, started: false, schema: None }))
    }

    fn room(&self, _now: Timestamp) -> Room {
        let oldest = Position::START;
        Room { held_bytes: 0, limit_bytes: u64::MAX, oldest, expired: None, over: None, near: None }
    }

    fn release(&self, _position: Position, _now: Timestamp) -> Result<()> {
        Ok(())
    }

    fn gaps(&self) -> Vec<Gap> {
        Vec::new()
    }

    fn record(&self, gap: Gap) -> BoxFuture<'_, Result<()>> {
        panic!("nothing is left out of a simulated journal: {}", gap.reason)
    }
}

impl Follower for Cursor {
    fn next<'a>(&'a mut self, batch: &'a mut TransactionBatch) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let process = self.journal.process.clone();
            process.point(Point::JournalFollow, Side::Dispatch).await;
            loop {
                let seen = self.journal.grew.count();
                if self.next < self.journal.disk.0.lock().unwrap().complete {
                    break;
                }
                self.journal.grew.changed_since(seen).await;
            }
            process.point(Point::JournalFollow, Side::Completion).await;
            batch.clear();
            let contents = self.journal.disk.0.lock().unwrap();
            if contents.overtaken > self.overtaken {
                return Err(Error::new(ErrorKind::JournalForeign, "the simulated journal dropped what comes next"));
            }
            let most = 1 + usize::try_from(process.sim.below(40)).unwrap();
            let parts = &contents.parts[self.next..contents.complete.min(self.next + most)];
            if !self.started {
                self.started = true;
                self.schema = Some(SchemaBlock::clone(&parts[0].schema));
            }
            parts.iter().for_each(|part| batch.push(part.head, &part.block));
            self.next += parts.len();
            Ok(())
        })
    }

    fn schema(&mut self) -> Option<SchemaBlock> {
        self.schema.take()
    }

    fn generation(&self) -> Generation {
        Generation::FIRST
    }
}

impl PositionStore for FakeJournal {
    fn load(&self, consumer: &str) -> Result<Option<Position>> {
        Ok(self.disk.0.lock().unwrap().positions.get(consumer).copied())
    }

    fn save<'a>(&'a self, positions: &'a [(Arc<str>, Position)]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.process.point(Point::PositionsSave, Side::Dispatch).await;
            self.process.sim.latency().await;
            if !self.process.is_dead() {
                self.disk.0.lock().unwrap().positions.extend(positions.iter().cloned());
            }
            self.process.point(Point::PositionsSave, Side::Completion).await;
            Ok(())
        })
    }
}
