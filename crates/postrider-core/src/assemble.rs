//! What: puts the messages of the stream together to committed transactions.
//! Where: second step of the walk, after *frame*, before *append*.
//! Takes and gives: pgoutput messages in stream order; parts of transactions, in commit order, each exactly once.
//! Never: looks at a table or a column, waits, or holds a large transaction whole.

mod error;
mod held;
mod missed;
mod schema;

pub use error::AssembleError;
pub use missed::Missed;

use crate::error::{Error, Result};
use crate::pgoutput::{Begin, CommitPrepared, Message, RollbackPrepared, StreamCommit};
use crate::ports::{Prepared, SchemaBlock, Staged, StagedAmount, Staging};
use crate::position::Lsn;
use crate::time::Timestamp;
use crate::transaction::{Messages, PART_BYTES_MAX, PartHead, PartKind, TransactionBatch, push_message};
use held::{Held, Split};
use missed::Expected;
use schema::{Key, Schema};
use std::collections::BTreeMap;

/// Bytes that [`push_message`] adds to each message.
const PREFIX_BYTES: usize = 4;

/// The state between two messages.
///
/// The server sends a transaction if its commit record starts at or after the position it was asked for, so after a
/// reconnect whole transactions come again, and never a part of one. Two transactions can touch: the end of one is then the
/// LSN of the next one's commit record. So a transaction is in the journal already if its commit LSN is *below* the end
/// of the journal.
///
/// With a staging area, transactions may also come before their outcome (protocol versions 2 to 4). Their messages wait there;
/// once a transaction has committed, [`Assembler::copy`] gives them out as if it had come whole at its commit. What is prepared waits
/// there durably, since the server does not send it again once anything behind it is confirmed.
#[derive(Debug)]
pub struct Assembler {
    /// Where the journal ended when the stream was opened; what commits below is dropped.
    resume_end: Lsn,
    /// End of the last part given out.
    emitted_end: Lsn,
    received_end: Lsn,
    within: Within,
    /// Messages of the open transaction's part; empty between transactions, its memory kept.
    block: Vec<u8>,
    schema: Schema,
    held: Option<Held>,
    expected: Expected,
    /// The next connection has to bring every transaction whole.
    whole: bool,
    ignored_messages: u64,
}

/// What the stream is in the middle of.
#[derive(Debug)]
enum Within {
    Nothing,
    /// BEGIN to COMMIT.
    Transaction(Open),
    /// STREAM START to STREAM STOP, of this transaction.
    Chunk(u32),
    /// BEGIN PREPARE to PREPARE.
    Prepare(Prepared),
    /// A transaction that was held has committed and is given out.
    Copy(Open, Copy),
}

/// A transaction that is given out.
#[derive(Debug)]
struct Open {
    commit_lsn: Lsn,
    committed_at: Timestamp,
    xid: u32,
    /// It is in the journal already.
    dropped: bool,
    /// No part of it was given out so far.
    first: bool,
    /// Changes in parts given out.
    first_ordinal: u64,
    /// Changes in the block.
    changes: u32,
}

/// How far a held transaction is given out.
#[derive(Debug)]
struct Copy {
    staged: Staged,
    /// Where its next block stands.
    place: u64,
    end_lsn: Lsn,
    /// Descriptions that the server takes for known from now on.
    arrived: BTreeMap<Key, u64>,
}

impl Assembler {
    /// An assembler behind a journal that ends at `journal_end`: what the server sends again from before is dropped. It takes
    /// whole transactions only (protocol version 1).
    pub fn new(journal_end: Lsn) -> Assembler {
        Assembler {
            resume_end: journal_end,
            emitted_end: journal_end,
            received_end: journal_end,
            within: Within::Nothing,
            block: Vec::new(),
            schema: Schema::default(),
            held: None,
            expected: Expected::default(),
            whole: false,
            ignored_messages: 0,
        }
    }

    /// As [`Assembler::new`], for streamed and prepared transactions, too. [`Assembler::restart`] comes before the first message.
    pub fn with_staging(journal_end: Lsn, staging: Box<dyn Staging>) -> Assembler {
        Assembler { held: Some(Held::new(staging)), ..Assembler::new(journal_end) }
    }

    /// Takes one message, and adds the parts that it completes to `batch`. After an error the stream cannot go on. While
    /// [`Assembler::is_copying`], no message may come.
    pub fn push(&mut self, payload: &[u8], batch: &mut TransactionBatch) -> Result<()> {
        let taken = match (&self.within, payload.first().copied().unwrap_or(0)) {
            (Within::Copy(..), _) => Err(AssembleError::CopyPending.into()),
            (Within::Chunk(xid), tag) => self.take_in_chunk(*xid, tag, payload),
            (_, tag @ (b'S' | b'c' | b'A' | b'b' | b'P' | b'K' | b'r' | b'p')) => self.take_held(tag, payload),
            (Within::Prepare(_), tag) => self.take_prepared(tag, payload),
            (_, tag) => self.take(tag, payload, batch),
        };
        // What comes before its commit and cannot be taken so, is read again, whole. It may also roll back, and then never
        // comes: so that is asked of one connection only.
        self.whole = taken.as_ref().is_err_and(wants_whole);
        taken
    }

    /// A transaction that was held has committed: [`Assembler::copy`] until it is given out.
    pub fn is_copying(&self) -> bool {
        matches!(self.within, Within::Copy(..))
    }

    /// Adds the next parts of the transaction that [`Assembler::is_copying`] speaks of to `batch`, about one part's size of them.
    pub fn copy(&mut self, batch: &mut TransactionBatch) -> Result<()> {
        let mut block = Vec::new();
        let enough = batch.byte_len().saturating_add(PART_BYTES_MAX);
        while batch.byte_len() < enough {
            let (Within::Copy(_, copy), Some(held)) = (&mut self.within, &mut self.held) else { return Ok(()) };
            let Some(next) = held.read(copy.staged, copy.place, &mut block)? else { return self.end_copy(batch) };
            copy.place = next;
            for message in Messages::new(&block) {
                self.copy_message(message, batch)?;
            }
        }
        Ok(())
    }

    /// Takes a keep-alive: everything that commits below `wal_end` has been received. Adds a mark to `batch` if that
    /// moves the end of the journal and no transaction is open, and says whether it did.
    pub fn mark(&mut self, wal_end: Lsn, at: Timestamp, batch: &mut TransactionBatch) -> bool {
        if self.in_transaction() {
            return false;
        }
        self.received_end = self.received_end.max(wal_end);
        if self.received_end <= self.emitted_end {
            return false;
        }
        let head = PartHead {
            kind: PartKind::Mark,
            commit_lsn: self.received_end,
            end_lsn: self.received_end,
            xid: 0,
            committed_at: at,
            first_ordinal: 0,
            changes: 0,
            first: true,
            last: true,
        };
        batch.push(head, &[]);
        self.emitted_end = self.received_end;
        true
    }

    /// The connection is new. All complete transactions given out must be in the journal by now; the open one and the streamed
    /// ones are forgotten, and the server sends them and every RELATION message again. [`Assembler::received_end`] goes back to the
    /// end of the last part.
    pub fn restart(&mut self) -> Result<()> {
        self.resume_end = self.emitted_end;
        // Transactions that left no part come again, too.
        self.received_end = self.emitted_end;
        self.within = Within::Nothing;
        empty(&mut self.block);
        self.schema = Schema::default();
        self.expected = Expected::default();
        match &mut self.held {
            Some(held) => held.restart(self.resume_end),
            None => Ok(()),
        }
    }

    /// As [`Assembler::restart`], where the journal goes on at `begins`, behind something that is left out.
    pub fn skip_to(&mut self, begins: Lsn) -> Result<()> {
        self.emitted_end = self.emitted_end.max(begins);
        self.restart()
    }

    /// The journal is durable up to `durable_end`: prepared transactions whose verdict lies before are dropped.
    pub fn release(&mut self, durable_end: Lsn) -> Result<()> {
        match &mut self.held {
            Some(held) => held.release(durable_end),
            None => Ok(()),
        }
    }

    /// What waits for its outcome.
    pub fn staged(&self) -> StagedAmount {
        self.held.as_ref().map(Held::amount).unwrap_or_default()
    }

    /// The stream failed over a transaction that cannot be taken before its commit, and nothing has come since: the next
    /// connection has to bring every transaction whole.
    pub fn wants_whole(&self) -> bool {
        self.whole
    }

    /// End LSN up to which everything has been received, whether it left a part or not.
    pub fn received_end(&self) -> Lsn {
        self.received_end
    }

    /// The stream is in the middle of a transaction, or of a chunk of one.
    pub fn in_transaction(&self) -> bool {
        !matches!(self.within, Within::Nothing)
    }

    /// The messages of types and tables in force behind the last whole transaction that was given out, types first.
    pub fn schema(&mut self) -> &SchemaBlock {
        self.schema.kept()
    }

    /// How many non-transactional logical messages were dropped.
    pub fn ignored_messages(&self) -> u64 {
        self.ignored_messages
    }

    /// A message of protocol version 1.
    fn take(&mut self, tag: u8, payload: &[u8], batch: &mut TransactionBatch) -> Result<()> {
        match tag {
            b'I' | b'U' | b'D' | b'T' => self.keep(payload, 1, batch),
            b'B' => self.open(payload),
            b'C' => self.close(payload, batch),
            b'R' | b'Y' => {
                self.schema.tell(payload);
                self.keep(payload, 0, batch)
            }
            b'O' => self.keep(payload, 0, batch),
            b'M' if is_transactional(payload.get(1)) => self.keep(payload, 0, batch),
            b'M' => {
                self.ignored_messages += 1;
                Ok(())
            }
            b'E' => Err(AssembleError::OutsideTransaction(tag).into()),
            _ => Err(AssembleError::UnknownMessage(tag).into()),
        }
    }

    fn open(&mut self, payload: &[u8]) -> Result<()> {
        let Message::Begin(begin) = parse(payload)? else { return Err(AssembleError::UnknownMessage(b'B').into()) };
        if self.in_transaction() {
            return Err(AssembleError::NestedBegin.into());
        }
        self.within = Within::Transaction(self.admit(&begin)?);
        Ok(())
    }

    /// A transaction that has committed; it may be in the journal already.
    fn admit(&self, begin: &Begin) -> Result<Open> {
        let dropped = begin.final_lsn < self.resume_end;
        if !dropped && begin.final_lsn < self.received_end {
            let (commit_lsn, end_lsn) = (begin.final_lsn, self.received_end);
            return Err(AssembleError::OutOfOrder { commit_lsn, end_lsn }.into());
        }
        let Begin { final_lsn: commit_lsn, committed_at, xid } = *begin;
        Ok(Open { commit_lsn, committed_at, xid, dropped, first: true, first_ordinal: 0, changes: 0 })
    }

    /// Adds a message to the open part, behind the descriptions that the journal lacks so far.
    fn keep(&mut self, payload: &[u8], changes: u32, batch: &mut TransactionBatch) -> Result<()> {
        let Within::Transaction(open) = &mut self.within else {
            return Err(AssembleError::OutsideTransaction(payload.first().copied().unwrap_or(0)).into());
        };
        if open.dropped {
            return Ok(());
        }
        if self.schema.keep(payload) && self.schema.is_behind() {
            for message in self.schema.behind() {
                self.schema.keep(&message);
                open.keep(&message, 0, &mut self.block, batch)?;
            }
        }
        open.keep(payload, changes, &mut self.block, batch)
    }

    /// Gives out the last part. A transaction without any message leaves none (PostgreSQL 14 sends BEGIN and COMMIT for those
    /// that touched nothing published); the next mark moves the journal over it.
    fn close(&mut self, payload: &[u8], batch: &mut TransactionBatch) -> Result<()> {
        let Message::Commit(commit) = parse(payload)? else { return Err(AssembleError::UnknownMessage(b'C').into()) };
        let Within::Transaction(open) = std::mem::replace(&mut self.within, Within::Nothing) else {
            return Err(AssembleError::OutsideTransaction(b'C').into());
        };
        if open.commit_lsn != commit.commit_lsn {
            let begun = open.commit_lsn;
            return Err(AssembleError::CommitMismatch { begun, committed: commit.commit_lsn }.into());
        }
        self.end(&open, commit.end_lsn, batch);
        Ok(())
    }

    fn end(&mut self, open: &Open, end_lsn: Lsn, batch: &mut TransactionBatch) {
        if !self.block.is_empty() {
            batch.push(open.head(end_lsn, true), &self.block);
            empty(&mut self.block);
            self.emitted_end = end_lsn;
        }
        self.schema.close();
        self.received_end = self.received_end.max(end_lsn);
    }

    /// A message between STREAM START and STREAM STOP.
    fn take_in_chunk(&mut self, xid: u32, tag: u8, payload: &[u8]) -> Result<()> {
        let Some(held) = &mut self.held else { return Err(AssembleError::UnsupportedMessage(tag).into()) };
        let (named, message) = match tag {
            b'E' => {
                self.within = Within::Nothing;
                return held.stop_chunk(xid);
            }
            b'O' => (None, Split { tag, rest: payload.get(1..).unwrap_or_default() }),
            b'I' | b'U' | b'D' | b'T' | b'R' | b'Y' | b'M' => {
                // One that is too short to name its transaction is left to *decode*, as it came.
                let (named, message) = Split::new(payload).unwrap_or((xid, Split { tag, rest: &[] }));
                (Some(named), message)
            }
            b'B' | b'b' | b'S' => return Err(AssembleError::NestedBegin.into()),
            b'C' | b'c' | b'A' | b'P' | b'p' | b'K' | b'r' => {
                return Err(AssembleError::OutsideTransaction(tag).into());
            }
            _ => return Err(AssembleError::UnknownMessage(tag).into()),
        };
        if tag == b'M' && !is_transactional(message.rest.first()) {
            self.ignored_messages += 1;
            return Ok(());
        }
        held.keep_streamed(xid, named, message)?;
        if let Some(key) = message.key() {
            held.note_arrival(xid, key, self.schema.arrive());
        }
        Ok(())
    }

    /// A message that begins a transaction before its outcome, or that brings the outcome.
    fn take_held(&mut self, tag: u8, payload: &[u8]) -> Result<()> {
        let busy = self.in_transaction();
        let Some(held) = &mut self.held else {
            // PostgreSQL 18 can send the abort of a transaction that it never streamed: there is nothing to drop.
            let stray = tag == b'A';
            return if stray { Ok(()) } else { Err(AssembleError::UnsupportedMessage(tag).into()) };
        };
        let message = parse(payload)?;
        match message {
            Message::Prepare(prepare) => {
                let Within::Prepare(prepared) = std::mem::replace(&mut self.within, Within::Nothing) else {
                    return Err(AssembleError::OutsideTransaction(tag).into());
                };
                if (prepared.xid, prepared.prepare_lsn) != (prepare.xid, prepare.prepare_lsn) {
                    let (begun, committed) = (prepared.prepare_lsn, prepare.prepare_lsn);
                    return Err(AssembleError::CommitMismatch { begun, committed }.into());
                }
                self.received_end = self.received_end.max(prepared.end_lsn);
                held.prepare(&prepared)
            }
            _ if busy => Err(AssembleError::NestedBegin.into()),
            Message::StreamStart(start) => {
                self.within = Within::Chunk(start.xid);
                held.start_chunk(start.xid, start.first)
            }
            Message::StreamAbort(abort) => held.abort(&abort),
            Message::StreamCommit(commit) => self.commit_stream(&commit),
            Message::StreamPrepare(prepare) => {
                let (xid, gid) = (prepare.xid, prepare.gid.to_owned());
                let prepared = Prepared { xid, gid, prepare_lsn: prepare.prepare_lsn, end_lsn: prepare.end_lsn };
                self.received_end = self.received_end.max(prepared.end_lsn);
                held.take_stream(xid)?;
                held.prepare(&prepared)
            }
            Message::BeginPrepare(begin) => {
                let (xid, gid) = (begin.xid, begin.gid.to_owned());
                self.within =
                    Within::Prepare(Prepared { xid, gid, prepare_lsn: begin.prepare_lsn, end_lsn: begin.end_lsn });
                held.begin_prepare(xid, self.schema.told())
            }
            Message::CommitPrepared(commit) => self.commit_prepared(&commit),
            Message::RollbackPrepared(rollback) => self.roll_back_prepared(&rollback),
            _ => Err(AssembleError::UnknownMessage(tag).into()),
        }
    }

    /// A message between BEGIN PREPARE and PREPARE.
    fn take_prepared(&mut self, tag: u8, payload: &[u8]) -> Result<()> {
        let (Within::Prepare(prepared), Some(held)) = (&self.within, &mut self.held) else {
            return Err(AssembleError::OutsideTransaction(tag).into());
        };
        match tag {
            b'R' | b'Y' => {
                self.schema.tell(payload);
                held.keep_prepared(prepared.xid, payload)
            }
            b'M' if !is_transactional(payload.get(1)) => {
                self.ignored_messages += 1;
                Ok(())
            }
            b'I' | b'U' | b'D' | b'T' | b'O' | b'M' => held.keep_prepared(prepared.xid, payload),
            b'B' => Err(AssembleError::NestedBegin.into()),
            b'C' | b'E' => Err(AssembleError::OutsideTransaction(tag).into()),
            _ => Err(AssembleError::UnknownMessage(tag).into()),
        }
    }

    fn commit_stream(&mut self, commit: &StreamCommit) -> Result<()> {
        let StreamCommit { xid, commit_lsn, end_lsn, committed_at, .. } = *commit;
        let open = self.admit(&Begin { final_lsn: commit_lsn, committed_at, xid })?;
        let Some(held) = &mut self.held else { return Err(AssembleError::UnknownStream { xid }.into()) };
        let stream = held.take_stream(xid)?;
        if open.dropped {
            return held.discard(xid);
        }
        let copy = Copy { staged: Staged::Open(xid), place: 0, end_lsn, arrived: stream.arrived };
        self.within = Within::Copy(open, copy);
        Ok(())
    }

    /// The verdict is durable in the staging area before any part of the transaction goes into the journal: when the journal
    /// is found beyond it, nobody waits for it any more.
    fn commit_prepared(&mut self, commit: &CommitPrepared<'_>) -> Result<()> {
        let CommitPrepared { xid, commit_lsn, end_lsn, committed_at, gid, .. } = *commit;
        let open = self.admit(&Begin { final_lsn: commit_lsn, committed_at, xid })?;
        let Some(held) = &mut self.held else { return Ok(()) };
        if !held.is_prepared(xid, gid) {
            let missing = AssembleError::UnknownPrepared { xid, gid: gid.to_owned() };
            return if open.dropped { Ok(()) } else { Err(missing.into()) };
        }
        held.finish(xid, end_lsn)?;
        if !open.dropped {
            let copy = Copy { staged: Staged::Prepared(xid), place: 0, end_lsn, arrived: BTreeMap::new() };
            self.within = Within::Copy(open, copy);
        }
        Ok(())
    }

    /// One that was prepared before the slot knew of prepared transactions is unknown here, and there is nothing to drop.
    fn roll_back_prepared(&mut self, rollback: &RollbackPrepared<'_>) -> Result<()> {
        self.received_end = self.received_end.max(rollback.end_lsn);
        match &mut self.held {
            Some(held) if held.is_prepared(rollback.xid, rollback.gid) => held.finish(rollback.xid, rollback.end_lsn),
            _ => Ok(()),
        }
    }

    fn copy_message(&mut self, message: &[u8], batch: &mut TransactionBatch) -> Result<()> {
        let Within::Copy(open, _) = &mut self.within else { return Ok(()) };
        if !self.schema.keep(message) {
            return Ok(());
        }
        let changes = u32::from(matches!(message.first(), Some(b'I' | b'U' | b'D' | b'T')));
        open.keep(message, changes, &mut self.block, batch)
    }

    fn end_copy(&mut self, batch: &mut TransactionBatch) -> Result<()> {
        let Within::Copy(open, copy) = std::mem::replace(&mut self.within, Within::Nothing) else { return Ok(()) };
        self.end(&open, copy.end_lsn, batch);
        self.schema.settle(&copy.arrived);
        match (&mut self.held, copy.staged) {
            (Some(held), Staged::Open(xid)) => held.discard(xid),
            _ => Ok(()),
        }
    }
}

impl Open {
    /// Adds a message to the part in `block`, which is given out first if the message no longer fits.
    fn keep(&mut self, payload: &[u8], changes: u32, block: &mut Vec<u8>, batch: &mut TransactionBatch) -> Result<()> {
        let full = block.len().saturating_add(payload.len()).saturating_add(PREFIX_BYTES) > PART_BYTES_MAX;
        if full && !block.is_empty() {
            batch.push(self.head(Lsn::ZERO, false), block);
            empty(block);
            self.first = false;
            self.first_ordinal += u64::from(self.changes);
            self.changes = 0;
        }
        if !push_message(block, payload) {
            return Err(AssembleError::TooLarge.into());
        }
        self.changes += changes;
        Ok(())
    }

    fn head(&self, end_lsn: Lsn, last: bool) -> PartHead {
        PartHead {
            kind: PartKind::Transaction,
            commit_lsn: self.commit_lsn,
            end_lsn,
            xid: self.xid,
            committed_at: self.committed_at,
            first_ordinal: self.first_ordinal,
            changes: self.changes,
            first: self.first,
            last,
        }
    }
}

/// Keeps the memory of a usual part, and gives back that of a part with one very large message.
fn empty(block: &mut Vec<u8>) {
    block.clear();
    block.shrink_to(2 * PART_BYTES_MAX);
}

/// Flag bit 0 of a logical message. One that is too short to say is kept, so that *decode* reports it.
fn is_transactional(flags: Option<&u8>) -> bool {
    flags.is_none_or(|flags| flags & 1 != 0)
}

fn parse(payload: &[u8]) -> Result<Message<'_>> {
    Message::parse(payload).map_err(|error| AssembleError::from(error).into())
}

fn wants_whole(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<AssembleError>());
    source.is_some_and(AssembleError::wants_whole)
}

#[cfg(test)]
mod tests;
