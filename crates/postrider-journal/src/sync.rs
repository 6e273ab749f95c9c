//! The journal's own thread: everything that waits for the disk, one thing at a time.
//!
//! An fsync starts when the last one ended and someone waits for more than is durable; one serves all who wait. What it
//! covers is what was appended when it started. Segments are made durable in order, each before the next gets its name.

use crate::disk::{DiskFile, DiskLock, SyncPoint};
use crate::gaps::Gaps;
use crate::log::{End, Log};
use crate::positions::Positions;
use crate::recover::prove;
use crate::retention::Retention;
use crate::segment::SegmentName;
use crate::synced::{Synced, SyncedTo};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::Gap;
use postrider_core::position::{Lsn, Position};
use postrider_core::time::Timestamp;
use std::io;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use tokio::sync::oneshot;

/// Handle of the thread; the last one dropped ends it.
#[derive(Debug)]
pub(crate) struct SyncThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    #[expect(dead_code, reason = "the directory stays locked until the thread has ended")]
    lock: Box<dyn DiskLock>,
}

/// Someone waits for the disk, until this is dropped.
#[derive(Debug)]
struct Waiting<'a>(&'a Shared);

#[derive(Debug)]
struct Shared {
    log: Arc<Log>,
    positions: Positions,
    gaps: Gaps,
    synced: Synced,
    orders: Mutex<Orders>,
    changed: Condvar,
}

/// What is asked of the thread.
#[derive(Debug)]
struct Orders {
    /// How many wait for more than is durable.
    waiters: usize,
    /// What is written of an open transaction is to be on the disk when somebody waits for its end.
    early: bool,
    /// Segments that may hold what is not durable, in order; the last is being written.
    unsynced: Vec<Unsynced>,
    saves: Vec<Save>,
    records: Vec<Record>,
    retention: Retention,
    closing: bool,
}

#[derive(Debug, Clone)]
struct Unsynced {
    name: SegmentName,
    file: Arc<dyn DiskFile>,
    /// How to make it durable while it is the last: as a head, or as data.
    point: SyncPoint,
}

#[derive(Debug)]
struct Save {
    positions: Vec<(Arc<str>, Position)>,
    done: oneshot::Sender<Result<()>>,
}

#[derive(Debug)]
struct Record {
    gap: Gap,
    done: oneshot::Sender<Result<()>>,
}

/// What stands beside the segments.
#[derive(Debug)]
pub(crate) struct Beside {
    pub(crate) positions: Positions,
    pub(crate) gaps: Gaps,
    pub(crate) synced: Synced,
}

/// What is done in one go: a bit of everything, so that nothing waits for ever.
#[derive(Debug)]
struct Turn {
    /// The end that is to become durable, and the segments up to it.
    sync: Option<(End, Vec<Unsynced>)>,
    /// The segment that is being written, to be synced without anything becoming durable by it.
    early: Option<Unsynced>,
    retention: Option<Retention>,
    saves: Vec<Save>,
    records: Vec<Record>,
}

impl SyncThread {
    /// Starts the thread on a journal whose content is durable.
    pub(crate) fn start(
        log: Arc<Log>,
        lock: Box<dyn DiskLock>,
        beside: Beside,
        retention: Retention,
    ) -> Result<SyncThread> {
        let orders = Mutex::new(Orders {
            waiters: 0,
            early: false,
            unsynced: Vec::new(),
            saves: Vec::new(),
            records: Vec::new(),
            retention,
            closing: false,
        });
        let Beside { positions, gaps, synced } = beside;
        let shared = Arc::new(Shared { log, positions, gaps, synced, orders, changed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("journal-sync".to_owned())
            .spawn(move || of_thread.run())
            .map_err(|error| Error::new(ErrorKind::Internal, "cannot start a thread").with_source(error))?;
        Ok(SyncThread { shared, thread: Some(thread), lock })
    }

    pub(crate) fn log(&self) -> &Arc<Log> {
        &self.shared.log
    }

    pub(crate) fn positions(&self) -> &Positions {
        &self.shared.positions
    }

    pub(crate) fn gaps(&self) -> &Gaps {
        &self.shared.gaps
    }

    /// Puts a gap on record, durably.
    pub(crate) async fn record(&self, gap: Gap) -> Result<()> {
        self.shared.log.failure.check()?;
        let (done, recorded) = oneshot::channel();
        self.shared.orders().records.push(Record { gap, done });
        self.shared.changed.notify_all();
        recorded.await.unwrap_or_else(|_| Err(closed()))
    }

    /// From now on this segment is the one that is written.
    pub(crate) fn watch_segment(&self, name: SegmentName, file: Arc<dyn DiskFile>, point: SyncPoint) {
        self.shared.orders().unsynced.push(Unsynced { name, file, point });
    }

    /// The end has moved.
    pub(crate) fn appended(&self) {
        if self.shared.orders().waiters > 0 {
            self.shared.changed.notify_all();
        }
    }

    /// Brings what is written so far on its way to the disk.
    pub(crate) fn sync_early(&self) {
        self.shared.orders().early = true;
        self.shared.changed.notify_all();
    }

    /// Waits until what is durable ends above `lsn`.
    pub(crate) async fn durable_past(&self, lsn: Lsn) -> Result<Lsn> {
        let mut durable = self.shared.log.durable.subscribe();
        let _waiting = self.shared.wait();
        loop {
            let end = *durable.borrow_and_update();
            if end > lsn {
                return Ok(end);
            }
            self.shared.log.failure.check()?;
            if durable.changed().await.is_err() {
                return Err(closed());
            }
        }
    }

    /// Saves positions durably.
    pub(crate) async fn save(&self, positions: &[(Arc<str>, Position)]) -> Result<()> {
        self.shared.log.failure.check()?;
        let (done, saved) = oneshot::channel();
        self.shared.orders().saves.push(Save { positions: positions.to_vec(), done });
        self.shared.changed.notify_all();
        saved.await.unwrap_or_else(|_| Err(closed()))
    }

    /// From now on no more is needed than what stands after `position`.
    pub(crate) fn release(&self, position: Position, now: Timestamp) {
        self.shared.orders().retention.release(position, now);
        self.shared.changed.notify_all();
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.shared.orders().closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed by itself, and there is nobody left to tell.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        // No code panics while it holds the lock.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) -> Waiting<'_> {
        let mut orders = self.orders();
        orders.waiters = orders.waiters.saturating_add(1);
        self.changed.notify_all();
        Waiting(self)
    }

    fn run(&self) {
        while let Some(turn) = self.next_turn() {
            if let Some((end, unsynced)) = turn.sync {
                self.sync(end, &unsynced);
            }
            if let Some(written) = turn.early
                && let Err(error) = written.file.sync(SyncPoint::SegmentData)
            {
                self.log.fail_disk("cannot make the journal durable", error);
            }
            if let Some(retention) = turn.retention {
                self.retain(&retention);
            }
            self.save(turn.saves);
            self.record(turn.records);
        }
    }

    /// Waits until there is something to do; `None` at the end.
    fn next_turn(&self) -> Option<Turn> {
        let mut orders = self.orders();
        loop {
            // After a failure nothing is tried again.
            let failed = self.log.failure.check().is_err();
            // The end is read before the list, so that the list holds every segment that the end needs.
            let end = *self.log.end.borrow();
            let due = !failed && orders.waiters > 0 && end.lsn > *self.log.durable.borrow();
            let early = mem::take(&mut orders.early) && !failed;
            let turn = Turn {
                sync: due.then(|| (end, orders.unsynced.clone())),
                early: orders.unsynced.last().filter(|_| early).cloned(),
                retention: orders.retention.take_due().filter(|_| !failed),
                saves: mem::take(&mut orders.saves),
                records: mem::take(&mut orders.records),
            };
            let nothing = turn.saves.is_empty() && turn.records.is_empty();
            if turn.sync.is_some() || turn.early.is_some() || turn.retention.is_some() || !nothing {
                return Some(turn);
            }
            if orders.closing {
                return None;
            }
            orders = self.changed.wait(orders).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn sync(&self, end: End, unsynced: &[Unsynced]) {
        match self.sync_segments(unsynced).and_then(|()| self.note(end, unsynced)) {
            Ok(()) => {
                self.forget_synced(unsynced);
                let before = self.log.durable.send_replace(end.lsn);
                debug_assert!(before <= end.lsn, "what is durable only grows");
            }
            Err(error) => {
                self.log.fail_disk("cannot make the journal durable", error);
            }
        }
    }

    /// Notes how far the journal is durable now, before anybody is told.
    fn note(&self, end: End, synced: &[Unsynced]) -> io::Result<()> {
        let Some(last) = synced.iter().rev().find(|segment| segment.name.number == end.segment) else { return Ok(()) };
        self.synced.note(SyncedTo { segment: end.segment, offset: end.offset, file: last.file.number()? })
    }

    fn sync_segments(&self, unsynced: &[Unsynced]) -> io::Result<()> {
        let last = unsynced.len().saturating_sub(1);
        for (index, segment) in unsynced.iter().enumerate() {
            if segment.point == SyncPoint::SegmentHead {
                prove(self.log.disk.as_ref(), segment.name, segment.file.as_ref())?;
                self.mark_proven(segment.name);
            } else {
                segment.file.sync(if index == last { SyncPoint::SegmentData } else { SyncPoint::SegmentSealed })?;
            }
        }
        Ok(())
    }

    fn mark_proven(&self, name: SegmentName) {
        if let Some(segment) = self.log.segments().iter_mut().find(|segment| segment.name == name) {
            segment.proven = true;
        }
        self.orders().retention.look_again();
    }

    /// Keeps of the synced segments only the one that is still written, whose name is proven now.
    fn forget_synced(&self, synced: &[Unsynced]) {
        let mut orders = self.orders();
        orders.unsynced.drain(..synced.len().saturating_sub(1));
        if let Some(written) = orders.unsynced.first_mut() {
            written.point = SyncPoint::SegmentData;
        }
    }

    fn save(&self, saves: Vec<Save>) {
        if saves.is_empty() {
            return;
        }
        let all = saves.iter().flat_map(|save| save.positions.iter().cloned());
        let result = self
            .log
            .failure
            .check()
            .and_then(|()| self.positions.write(self.log.disk.as_ref(), all).map_err(|error| self.log.fail(error)));
        for save in saves {
            let answer = match &result {
                Ok(()) => Ok(()),
                Err(_) => self.log.failure.check(),
            };
            // Who no longer waits does not want to know.
            let _ = save.done.send(answer);
        }
    }

    fn record(&self, records: Vec<Record>) {
        for Record { gap, done } in records {
            let recorded = self
                .log
                .failure
                .check()
                .and_then(|()| self.gaps.record(self.log.disk.as_ref(), gap).map_err(|error| self.log.fail(error)));
            // Who no longer waits does not want to know.
            let _ = done.send(recorded);
        }
    }

    fn retain(&self, retention: &Retention) {
        if let Err(error) = retention.apply(&self.log) {
            self.log.fail(error);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut orders = self.0.orders();
        orders.waiters = orders.waiters.saturating_sub(1);
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Internal, "the journal is closed")
}
