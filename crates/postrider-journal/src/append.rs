//! What: writes assembled transactions at the end of the journal, one frame a part.
//! Where: `assemble ► append ► follow`; the intake's last step, and what confirming waits for.
//! Takes and gives: a `TransactionBatch` and the schema in force behind its last complete transaction; gives the end LSN of the last complete transaction.
//! Never: waits for the disk, shows a part of a transaction, or writes out of commit order.

use crate::disk::SyncPoint;
use crate::failure;
use crate::frame::{FrameHead, push_frame};
use crate::log::{End, Log, Segment};
use crate::open::Settings;
use crate::order::Order;
use crate::recover::{Tail, create_segment};
use crate::segment::{SegmentHeader, SegmentName};
use crate::sync::SyncThread;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{JournalWriter, SchemaBlock, SourceIdentity};
use postrider_core::position::Lsn;
use postrider_core::transaction::TransactionBatch;
use std::sync::Arc;

/// The buffer keeps this much between two appends.
const BUFFER_BYTES_KEPT: usize = 1024 * 1024;

/// Of a transaction that is not complete so much is brought on its way to the disk at a time: what is left to do once somebody waits for it
/// is no more than that, however large it is.
const EARLY_BYTES: u64 = 32 * 1024 * 1024;

/// The one writer.
#[derive(Debug)]
pub(crate) struct Appender {
    log: Arc<Log>,
    sync: Arc<SyncThread>,
    identity: SourceIdentity,
    segment_bytes: u64,
    /// Where the next frame goes; behind `complete` while a transaction is open.
    tail: Tail,
    /// Where the last complete transaction or mark ends.
    complete: Complete,
    /// What stands before this in the open transaction is on its way to the disk.
    early: u64,
    buffer: Vec<u8>,
    /// The segment that is written has its first transaction.
    has_begun: bool,
}

/// What the writer goes back to when a transaction is cut.
#[derive(Debug, Clone, Copy)]
struct Complete {
    end: End,
    chain: u32,
    order: Order,
}

impl Appender {
    pub(crate) fn new(sync: Arc<SyncThread>, identity: SourceIdentity, settings: &Settings, tail: Tail) -> Appender {
        let complete = Complete { end: tail.end, chain: tail.chain, order: tail.order };
        let log = Arc::clone(sync.log());
        let segment_bytes = settings.segment_bytes;
        Appender { log, sync, identity, segment_bytes, tail, complete, early: 0, buffer: Vec::new(), has_begun: false }
    }

    /// Fills the buffer with the frames of all parts and returns the end after the last complete one, if there is any. A batch
    /// that breaks the order changes nothing.
    fn encode(&mut self, batch: &TransactionBatch) -> Result<Option<Complete>> {
        self.buffer.clear();
        let mut complete = None;
        let Tail { chain, order, end, .. } = &self.tail;
        let (mut chain, mut order, start) = (*chain, *order, end.offset);
        for part in batch.parts() {
            order.admit(&part.head).map_err(out_of_order)?;
            chain = push_frame(&mut self.buffer, chain, &FrameHead::Part(part.head), part.block())
                .ok_or_else(|| out_of_order("a part is longer than a frame can be"))?;
            if order.is_complete() {
                let offset = start.saturating_add(failure::offset(self.buffer.len()));
                complete = Some(Complete { end: End { offset, lsn: order.end, ..self.tail.end }, chain, order });
            }
        }
        self.tail.chain = chain;
        self.tail.order = order;
        Ok(complete)
    }

    fn sync_early(&mut self) {
        let from = self.early.max(self.complete.end.offset);
        if self.tail.end.offset.saturating_sub(from) >= EARLY_BYTES {
            self.early = self.tail.end.offset;
            self.sync.sync_early();
        }
    }

    /// Notes when what stands in the segment began, for its retention by age.
    fn begin(&mut self, batch: &TransactionBatch) {
        if let Some(first) = batch.parts().next().filter(|_| !self.has_begun)
            && let Some(written) = self.log.segments().back_mut()
        {
            written.begun_at.get_or_insert(first.head.committed_at);
            self.has_begun = true;
        }
    }

    /// Starts the next segment, at the end of the last or behind it. Its content counts as durable only once the old one is.
    fn rotate(&mut self, begins: Lsn, schema: &SchemaBlock) -> Result<()> {
        let Complete { end, chain, order } = self.complete;
        let number = end.segment.saturating_add(1);
        let generation = self.log.generation;
        let name = SegmentName { generation, start: begins, number };
        let (identity, commit) = (self.identity.clone(), order.commit);
        let header = SegmentHeader { identity, name, chain, commit, commit_generation: generation, cut: Lsn::ZERO };
        self.tail = create_segment(self.log.disk.as_ref(), &header, schema)?;
        self.early = 0;
        self.complete = Complete { end: self.tail.end, chain: self.tail.chain, order: self.tail.order };
        {
            let mut segments = self.log.segments();
            if let Some(last) = segments.back_mut() {
                last.sealed_bytes = end.offset;
            }
            let before = header.before();
            segments.push_back(Segment { name, before, proven: false, sealed_bytes: 0, begun_at: None, cut: None });
        }
        self.has_begun = false;
        self.sync.watch_segment(name, Arc::clone(&self.tail.file), SyncPoint::SegmentHead);
        Ok(())
    }
}

impl JournalWriter for Appender {
    fn append(&mut self, batch: &TransactionBatch, schema: &SchemaBlock) -> Result<Lsn> {
        self.log.failure.check()?;
        let complete = self.encode(batch)?;
        self.tail
            .file
            .write_at(&self.buffer, self.tail.end.offset)
            .map_err(|error| self.log.fail_disk("cannot append to the journal", error))?;
        self.tail.end.offset = self.tail.end.offset.saturating_add(failure::offset(self.buffer.len()));
        self.begin(batch);
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_BYTES_KEPT);
        if let Some(complete) = complete {
            debug_assert!(complete.end.lsn >= self.complete.end.lsn, "the end only moves forward");
            self.complete = complete;
            self.log.end.send_replace(complete.end);
            self.sync.appended();
        }
        if !self.tail.order.is_complete() {
            self.sync_early();
        }
        if self.tail.order.is_complete() && self.tail.end.offset >= self.segment_bytes {
            self.rotate(self.complete.end.lsn, schema).map_err(|error| self.log.fail(error))?;
        }
        Ok(self.complete.end.lsn)
    }

    fn discard_partial(&mut self) -> Result<()> {
        self.log.failure.check()?;
        if self.tail.order.is_complete() {
            return Ok(());
        }
        let Complete { end, chain, order } = self.complete;
        // No fsync: should the cut be lost, the chain of CRCs tells what is left from what is written next.
        self.tail
            .file
            .truncate(end.offset)
            .map_err(|error| self.log.fail_disk("cannot cut a partial transaction from the journal", error))?;
        (self.tail.end, self.tail.chain, self.tail.order) = (end, chain, order);
        self.early = 0;
        Ok(())
    }

    fn go_on(&mut self, identity: &SourceIdentity, begins: Lsn, schema: &SchemaBlock) -> Result<()> {
        self.log.failure.check()?;
        let end = self.complete.end.lsn;
        if *identity == self.identity && begins <= end {
            return Ok(());
        }
        if !self.tail.order.is_complete() {
            return Err(out_of_order("the log goes on elsewhere within a transaction"));
        }
        self.identity = identity.clone();
        self.rotate(begins.max(end), schema).map_err(|error| self.log.fail(error))?;
        if begins > end {
            self.log.end.send_replace(self.complete.end);
            self.sync.appended();
        }
        Ok(())
    }
}

fn out_of_order(rule: &'static str) -> Error {
    Error::new(ErrorKind::Internal, "the journal was given transactions out of order")
        .with_detail(format!("The rule broken: {rule}."))
}
