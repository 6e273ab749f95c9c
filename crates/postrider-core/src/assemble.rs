//! What: puts the messages of the stream together to committed transactions.
//! Where: second step of the walk, after *frame*, before *append*.
//! Takes and gives: pgoutput messages in stream order; parts of transactions, in commit order, each exactly once.
//! Never: looks at a table or a column, waits, or holds a large transaction whole.

use crate::error::{Error, ErrorKind};
use crate::pgoutput::{Begin, Commit, Message, ParseError};
use crate::ports::SchemaBlock;
use crate::position::Lsn;
use crate::time::Timestamp;
use crate::transaction::{PART_BYTES_MAX, PartHead, PartKind, TransactionBatch, push_message};
use std::collections::BTreeMap;
use std::fmt;

/// Bytes that [`push_message`] adds to each message.
const PREFIX_BYTES: usize = 4;

/// The state between two messages.
///
/// The server sends a transaction if its commit record starts at or after the position it was asked for, so after a
/// reconnect whole transactions come again, and never a part of one. Two transactions can touch: the end of one is then the
/// LSN of the next one's commit record. So a transaction is in the journal already if its commit LSN is *below* the end
/// of the journal.
#[derive(Debug)]
pub struct Assembler {
    /// Where the journal ended when the stream was opened; what commits below is dropped.
    resume_end: Lsn,
    /// End of the last part given out.
    emitted_end: Lsn,
    received_end: Lsn,
    open: Option<Open>,
    /// Messages of the open transaction's part; empty between transactions, its memory kept.
    block: Vec<u8>,
    schema: Remembered,
    ignored_messages: u64,
}

/// A transaction between BEGIN and COMMIT.
#[derive(Debug)]
struct Open {
    begin: Begin,
    /// It is in the journal already.
    dropped: bool,
    /// No part of it was given out so far.
    first: bool,
    /// Changes in parts given out.
    first_ordinal: u64,
    /// Changes in the block.
    changes: u32,
}

/// The latest TYPE and RELATION message for each oid.
#[derive(Debug, Default)]
struct Remembered {
    types: BTreeMap<u32, Box<[u8]>>,
    relations: BTreeMap<u32, Box<[u8]>>,
    block: SchemaBlock,
    stale: bool,
}

/// A message that cannot stand where it stands, or that this version does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssembleError {
    Malformed(ParseError),
    /// No version of the protocol up to 4 has this tag, or the message is empty (0).
    UnknownMessage(u8),
    /// A message of protocol 2 or later (a streamed or a prepared transaction), which is not asked for.
    UnsupportedMessage(u8),
    /// BEGIN within a transaction.
    NestedBegin,
    /// A message that belongs to a transaction came outside of one.
    OutsideTransaction(u8),
    /// BEGIN and COMMIT name different commit LSNs.
    CommitMismatch {
        begun: Lsn,
        committed: Lsn,
    },
    /// The transaction commits below one that came before it on the same connection.
    OutOfOrder {
        commit_lsn: Lsn,
        end_lsn: Lsn,
    },
    /// The message is too large for a part.
    TooLarge,
}

impl Assembler {
    /// An assembler behind a journal that ends at `journal_end`: what the server sends again from before is dropped.
    pub fn new(journal_end: Lsn) -> Assembler {
        Assembler {
            resume_end: journal_end,
            emitted_end: journal_end,
            received_end: journal_end,
            open: None,
            block: Vec::new(),
            schema: Remembered::default(),
            ignored_messages: 0,
        }
    }

    /// Takes one message, and adds the parts that it completes to `batch`. After an error the stream cannot go on.
    pub fn push(&mut self, payload: &[u8], batch: &mut TransactionBatch) -> Result<(), AssembleError> {
        let tag = payload.first().copied().unwrap_or(0);
        match tag {
            b'I' | b'U' | b'D' | b'T' => self.keep(payload, tag, 1, batch),
            b'B' => self.open(payload),
            b'C' => self.close(payload, batch),
            b'R' | b'Y' => {
                self.keep(payload, tag, 0, batch)?;
                self.schema.remember(payload);
                Ok(())
            }
            b'O' => self.keep(payload, tag, 0, batch),
            b'M' if is_transactional(payload) => self.keep(payload, tag, 0, batch),
            b'M' => {
                self.ignored_messages += 1;
                Ok(())
            }
            // PostgreSQL 18 can send the abort of a transaction that it never streamed: there is nothing to drop.
            b'A' => Ok(()),
            b'S' | b'E' | b'c' | b'b' | b'P' | b'K' | b'r' | b'p' => Err(AssembleError::UnsupportedMessage(tag)),
            _ => Err(AssembleError::UnknownMessage(tag)),
        }
    }

    /// Takes a keep-alive: everything that commits below `wal_end` has been received. Adds a mark to `batch` if that
    /// moves the end of the journal and no transaction is open, and says whether it did.
    pub fn mark(&mut self, wal_end: Lsn, at: Timestamp, batch: &mut TransactionBatch) -> bool {
        if self.open.is_some() {
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

    /// The connection was lost. All complete transactions given out must be in the journal by now; the open one is
    /// forgotten, and the server sends it and every RELATION message again. [`Assembler::received_end`] goes back to the
    /// end of the last part.
    pub fn restart(&mut self) {
        self.resume_end = self.emitted_end;
        // Transactions that left no part come again, too.
        self.received_end = self.emitted_end;
        self.open = None;
        empty(&mut self.block);
        self.schema = Remembered::default();
    }

    /// End LSN up to which everything has been received, whether it left a part or not.
    pub fn received_end(&self) -> Lsn {
        self.received_end
    }

    /// A transaction is open.
    pub fn in_transaction(&self) -> bool {
        self.open.is_some()
    }

    /// The messages of types and tables in force after the last message, types first.
    pub fn schema(&mut self) -> &SchemaBlock {
        self.schema.block()
    }

    /// How many non-transactional logical messages were dropped.
    pub fn ignored_messages(&self) -> u64 {
        self.ignored_messages
    }

    fn open(&mut self, payload: &[u8]) -> Result<(), AssembleError> {
        let begin = parse_begin(payload)?;
        if self.open.is_some() {
            return Err(AssembleError::NestedBegin);
        }
        let dropped = begin.final_lsn < self.resume_end;
        if !dropped && begin.final_lsn < self.received_end {
            return Err(AssembleError::OutOfOrder { commit_lsn: begin.final_lsn, end_lsn: self.received_end });
        }
        self.open = Some(Open { begin, dropped, first: true, first_ordinal: 0, changes: 0 });
        Ok(())
    }

    /// Adds a message to the open part, which is given out first if the message no longer fits.
    fn keep(
        &mut self,
        payload: &[u8],
        tag: u8,
        changes: u32,
        batch: &mut TransactionBatch,
    ) -> Result<(), AssembleError> {
        let open = self.open.as_mut().ok_or(AssembleError::OutsideTransaction(tag))?;
        if open.dropped {
            return Ok(());
        }
        let full = self.block.len().saturating_add(payload.len()).saturating_add(PREFIX_BYTES) > PART_BYTES_MAX;
        if full && !self.block.is_empty() {
            batch.push(open.head(Lsn::ZERO, false), &self.block);
            empty(&mut self.block);
            open.first = false;
            open.first_ordinal += u64::from(open.changes);
            open.changes = 0;
        }
        if !push_message(&mut self.block, payload) {
            return Err(AssembleError::TooLarge);
        }
        open.changes += changes;
        Ok(())
    }

    /// Gives out the last part. A transaction without any message leaves none (PostgreSQL 14 sends BEGIN and COMMIT for those
    /// that touched nothing published); the next mark moves the journal over it.
    fn close(&mut self, payload: &[u8], batch: &mut TransactionBatch) -> Result<(), AssembleError> {
        let commit = parse_commit(payload)?;
        let open = self.open.take().ok_or(AssembleError::OutsideTransaction(b'C'))?;
        if open.begin.final_lsn != commit.commit_lsn {
            let begun = open.begin.final_lsn;
            return Err(AssembleError::CommitMismatch { begun, committed: commit.commit_lsn });
        }
        if !self.block.is_empty() {
            batch.push(open.head(commit.end_lsn, true), &self.block);
            empty(&mut self.block);
            self.emitted_end = commit.end_lsn;
        }
        self.received_end = self.received_end.max(commit.end_lsn);
        Ok(())
    }
}

impl Open {
    fn head(&self, end_lsn: Lsn, last: bool) -> PartHead {
        PartHead {
            kind: PartKind::Transaction,
            commit_lsn: self.begin.final_lsn,
            end_lsn,
            xid: self.begin.xid,
            committed_at: self.begin.committed_at,
            first_ordinal: self.first_ordinal,
            changes: self.changes,
            first: self.first,
            last,
        }
    }
}

impl Remembered {
    /// Takes a RELATION or TYPE message, each of which has its oid behind the tag. A shorter one is left to *decode*.
    fn remember(&mut self, payload: &[u8]) {
        let Some((&[tag, a, b, c, d], _)) = payload.split_first_chunk::<5>() else { return };
        let oid = u32::from_be_bytes([a, b, c, d]);
        let latest = if tag == b'Y' { &mut self.types } else { &mut self.relations };
        if latest.get(&oid).is_none_or(|known| **known != *payload) {
            latest.insert(oid, payload.into());
            self.stale = true;
        }
    }

    fn block(&mut self) -> &SchemaBlock {
        if self.stale {
            self.block.0.clear();
            for message in self.types.values().chain(self.relations.values()) {
                let fits = push_message(&mut self.block.0, message);
                debug_assert!(fits, "the message fitted into a part before");
            }
            self.stale = false;
        }
        &self.block
    }
}

impl fmt::Display for AssembleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AssembleError::Malformed(error) => error.fmt(f),
            AssembleError::UnknownMessage(tag) => write!(f, "unknown kind of message 0x{tag:02x}"),
            AssembleError::UnsupportedMessage(tag) => {
                write!(f, "message 0x{tag:02x} of a streamed or prepared transaction, which was not asked for")
            }
            AssembleError::NestedBegin => f.write_str("BEGIN within a transaction"),
            AssembleError::OutsideTransaction(tag) => write!(f, "message 0x{tag:02x} outside of a transaction"),
            AssembleError::CommitMismatch { begun, committed } => {
                write!(f, "BEGIN announced a commit at {begun}, and COMMIT came with {committed}")
            }
            AssembleError::OutOfOrder { commit_lsn, end_lsn } => {
                write!(f, "a transaction committed at {commit_lsn} came after everything up to {end_lsn}")
            }
            AssembleError::TooLarge => f.write_str("message of 4 GiB or more"),
        }
    }
}

impl std::error::Error for AssembleError {}

impl From<ParseError> for AssembleError {
    fn from(error: ParseError) -> AssembleError {
        AssembleError::Malformed(error)
    }
}

impl From<AssembleError> for Error {
    fn from(error: AssembleError) -> Error {
        let public =
            Error::new(ErrorKind::Protocol, "cannot assemble the logical replication stream").with_source(error);
        match error {
            AssembleError::UnsupportedMessage(_) => public.with_hint(
                "A slot that was once read with two_phase keeps it for ever. Drop the slot and create it again with `postrider setup`.",
            ),
            _ => public,
        }
    }
}

/// Keeps the memory of a usual part, and gives back that of a part with one very large message.
fn empty(block: &mut Vec<u8>) {
    block.clear();
    block.shrink_to(2 * PART_BYTES_MAX);
}

/// Flag bit 0 of a logical message. One that is too short to say is kept, so that *decode* reports it.
fn is_transactional(payload: &[u8]) -> bool {
    payload.get(1).is_none_or(|flags| flags & 1 != 0)
}

fn parse_begin(payload: &[u8]) -> Result<Begin, AssembleError> {
    match Message::parse(payload)? {
        Message::Begin(begin) => Ok(begin),
        _ => Err(AssembleError::UnknownMessage(b'B')),
    }
}

fn parse_commit(payload: &[u8]) -> Result<Commit, AssembleError> {
    match Message::parse(payload)? {
        Message::Commit(commit) => Ok(commit),
        _ => Err(AssembleError::UnknownMessage(b'C')),
    }
}

#[cfg(test)]
mod tests;
