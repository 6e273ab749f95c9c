//! What: reads transactions from any position on, and waits at the end for more.
//! Where: `append ► follow ► decode`; each consumer has its own.
//! Takes and gives: a `Position`; gives `TransactionBatch`es as they were appended, and the schema at the head of each segment.
//! Never: shows a part of a transaction that is not complete, skips a bad frame, or holds the writer or another follower up.

use crate::frame::FrameHead;
use crate::frames::{Frames, Next, OpenFailure, OpenedSegment, open_either};
use crate::log::{End, Log, Segment};
use crate::{failure, schema::Passed};
use postrider_core::error::Result;
use postrider_core::ports::{BoxFuture, Follower, SchemaBlock};
use postrider_core::position::{Generation, Lsn, Position};
use postrider_core::transaction::{PART_BYTES_MAX, PartHead, PartKind, TransactionBatch};
use std::cmp::Ordering;
use std::mem;
use std::sync::Arc;
use tokio::sync::watch;

/// One consumer's cursor: a file, and a buffer of about 256 KiB.
///
/// It reads within the caller's task: the live tail comes from the page cache, and of history one read at a time, with a
/// turn for others between.
#[derive(Debug)]
pub(crate) struct Cursor {
    log: Arc<Log>,
    end: watch::Receiver<End>,
    /// What is wholly at or before this is passed over.
    after: Position,
    segment: u64,
    generation: Generation,
    /// What commits in the segment at or after this is passed over, too: it never happened on the server adopted since.
    cut: Option<Lsn>,
    frames: Frames,
    /// The schema that the next batch begins with, if it is not the one of the batches so far.
    next_schema: Option<Passed>,
    /// The schema of the last batch, until it is asked for.
    schema: Option<SchemaBlock>,
    /// The last batch was there already when it was asked for.
    hurried: bool,
}

impl Cursor {
    /// Opens the segment that holds the first transaction after `after`.
    pub(crate) fn open(log: Arc<Log>, after: Position) -> Result<Cursor> {
        let (first, opened) = loop {
            let first = log.segment_after(after)?;
            match open(&log, first) {
                Ok(opened) => break (first, opened),
                // Retention took the oldest segment between the two steps: there is another oldest now.
                Err(_) if after == Position::START && log.segment(first.name.number).is_err() => {}
                Err(error) => return Err(error),
            }
        };
        Ok(Cursor {
            end: log.end.subscribe(),
            log,
            after,
            segment: first.name.number,
            generation: first.name.generation,
            cut: first.cut,
            frames: opened.frames,
            next_schema: Some(Passed::new(opened.schema)),
            schema: None,
            hurried: false,
        })
    }

    /// The generation of what was read last.
    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    /// Reads what is there, about [`PART_BYTES_MAX`] bytes of it; `false` where the cursor is at the end.
    pub(crate) fn read(&mut self, batch: &mut TransactionBatch) -> Result<bool> {
        let end = *self.end.borrow_and_update();
        let limit = match end.segment.cmp(&self.segment) {
            Ordering::Less => return Ok(false),
            Ordering::Equal => end.offset,
            Ordering::Greater => self.frames.length()?,
        };
        // At least one frame, then whatever came with it in the same read.
        let mut moved = false;
        while !moved || self.frames.holds_next() {
            let (segment, offset) = (self.segment, self.frames.offset());
            match self.frames.next(limit)? {
                Next::Frame(FrameHead::Part(head), block) => {
                    moved = true;
                    if is_past(self.after, self.generation, &head) || is_cut(self.cut, &head) {
                        if let Some(schema) = &mut self.next_schema {
                            schema.pass(block);
                        }
                        continue;
                    }
                    if let Some(schema) = self.next_schema.take() {
                        self.schema = Some(schema.into_block());
                    }
                    batch.push(head, block);
                    if batch.byte_len() >= PART_BYTES_MAX {
                        return Ok(true);
                    }
                }
                Next::Frame(FrameHead::Schema, _) => {
                    return Err(self.corrupt(offset, "a schema frame stands among the parts"));
                }
                Next::Bad(what) => return Err(self.corrupt(offset, what)),
                Next::End if moved => return Ok(true),
                Next::End if end.segment == segment => return Ok(false),
                Next::End => return self.enter_next_segment().map(|()| true),
            }
        }
        Ok(true)
    }

    /// Goes on into the next segment, which has to fit what was read.
    fn enter_next_segment(&mut self) -> Result<()> {
        let next = self.log.segment(self.segment.saturating_add(1))?;
        let opened = open(&self.log, next)?;
        if !opened.header.follows(self.frames.chain(), self.frames.order().end) {
            return Err(self.corrupt(self.frames.offset(), "the next segment does not follow from this one"));
        }
        (self.segment, self.generation, self.cut) = (next.name.number, next.name.generation, next.cut);
        self.frames = opened.frames;
        self.next_schema = Some(Passed::new(opened.schema));
        Ok(())
    }

    fn corrupt(&self, offset: u64, what: &str) -> postrider_core::error::Error {
        failure::corrupt(self.log.disk.as_ref(), self.frames.file_name(), offset, what)
    }
}

impl Follower for Cursor {
    fn next<'a>(&'a mut self, batch: &'a mut TransactionBatch) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            batch.clear();
            // A long way must not keep others from the runtime's thread, whether the caller waits for anything between or not.
            if mem::take(&mut self.hurried) {
                tokio::task::yield_now().await;
            }
            let mut waited = false;
            while batch.is_empty() {
                if self.read(batch)? {
                    if batch.is_empty() {
                        tokio::task::yield_now().await;
                    }
                    continue;
                }
                waited = true;
                if self.end.changed().await.is_err() {
                    // The sender is in the log, which the cursor holds.
                    return Ok(());
                }
            }
            self.hurried = !waited;
            Ok(())
        })
    }

    fn schema(&mut self) -> Option<SchemaBlock> {
        self.schema.take()
    }

    fn generation(&self) -> Generation {
        self.generation
    }
}

/// The transaction is wholly at or before `after`. A mark at an LSN says that nothing more comes below it, so it is past only
/// where something at or above it is: the next commit record may stand at that very LSN.
fn is_past(after: Position, generation: Generation, head: &PartHead) -> bool {
    match head.kind {
        PartKind::Transaction => Position::whole(generation, head.commit_lsn) <= after,
        PartKind::Mark => Position::whole(generation, Lsn(head.end_lsn.0.saturating_sub(1))) <= after,
    }
}

/// The commit record stands where the adopted server's log is another one already; records lie wholly before or behind that.
fn is_cut(cut: Option<Lsn>, head: &PartHead) -> bool {
    cut.is_some_and(|cut| match head.kind {
        PartKind::Transaction => head.commit_lsn >= cut,
        PartKind::Mark => head.end_lsn > cut,
    })
}

/// Opens a segment that is listed, under whichever name it has now.
fn open(log: &Log, segment: Segment) -> Result<OpenedSegment> {
    match open_either(log.disk.as_ref(), segment.name) {
        Ok(opened) => Ok(opened),
        Err(OpenFailure::Damaged(error, _) | OpenFailure::Other(error)) => Err(error),
        Err(OpenFailure::Missing) => {
            // Retention takes a segment from the list before it removes the file: one that is still listed must be there.
            log.segment(segment.name.number)?;
            Err(failure::corrupt(log.disk.as_ref(), &segment.name.proven(), 0, "the file is missing"))
        }
    }
}
