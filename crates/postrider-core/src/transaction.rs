//! Committed transactions as the walk carries them: parts of a few hundred kilobytes, many in one batch.
//!
//! The same batch goes into the journal (from *assemble*) and comes out of it (to *decode*), so that what is read live
//! and what is replayed weeks later is one thing. A transaction larger than [`PART_BYTES_MAX`] has several
//! parts, next to each other and in order; nothing holds it whole.

use crate::position::Lsn;
use crate::time::Timestamp;

/// A part is closed once its messages hold this many bytes; a single larger message has a part of its own.
pub const PART_BYTES_MAX: usize = 256 * 1024;

/// What a part says about its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartHead {
    /// A transaction, or a mark.
    pub kind: PartKind,
    /// LSN of the commit record; for a mark the same as `end_lsn`.
    pub commit_lsn: Lsn,
    /// First byte after the commit record. Known, and not zero, only where `last` is set.
    pub end_lsn: Lsn,
    /// Top-level transaction id; 0 for a mark.
    pub xid: u32,
    /// The server's clock at commit.
    pub committed_at: Timestamp,
    /// Ordinal of the first change in this part: how many changes the earlier parts of this transaction hold.
    pub first_ordinal: u64,
    /// How many changes (insert, update, delete, truncate) are in this part.
    pub changes: u32,
    /// No earlier part belongs to the same transaction.
    pub first: bool,
    /// The transaction is complete with this part.
    pub last: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartKind {
    /// Messages of a committed transaction.
    Transaction,
    /// No messages: the server said that nothing more will come below `end_lsn`, so that an idle slot can move.
    Mark,
}

/// Parts in commit order, their messages in one buffer.
#[derive(Debug, Clone, Default)]
pub struct TransactionBatch {
    bytes: Vec<u8>,
    parts: Vec<Placed>,
}

#[derive(Debug, Clone)]
struct Placed {
    head: PartHead,
    start: usize,
    end: usize,
}

/// One part, borrowed from its batch.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    pub head: PartHead,
    block: &'a [u8],
}

impl TransactionBatch {
    pub fn new() -> TransactionBatch {
        TransactionBatch::default()
    }

    /// Forgets the parts and keeps the memory, but for what a very large message took.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(4 * PART_BYTES_MAX);
        self.parts.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// How many parts there are.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Bytes of all messages with their length prefixes.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a part whose messages stand in `block` as [`push_message`] writes them.
    pub fn push(&mut self, head: PartHead, block: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(block);
        self.parts.push(Placed { head, start, end: self.bytes.len() });
    }

    /// The parts in order.
    pub fn parts(&self) -> impl DoubleEndedIterator<Item = Part<'_>> + ExactSizeIterator {
        self.parts.iter().map(|placed| Part {
            head: placed.head,
            block: self.bytes.get(placed.start..placed.end).unwrap_or_default(),
        })
    }
}

impl<'a> Part<'a> {
    /// A part from a head and a block of length-prefixed messages.
    pub fn new(head: PartHead, block: &'a [u8]) -> Part<'a> {
        Part { head, block }
    }

    /// The messages with their length prefixes, as [`push_message`] wrote them.
    pub fn block(&self) -> &'a [u8] {
        self.block
    }

    /// The server's own pgoutput messages, without BEGIN and COMMIT, whose content is in the head.
    pub fn messages(&self) -> Messages<'a> {
        Messages { rest: self.block }
    }
}

/// Iterator over the messages of a part. It ends early if the block is torn, which the journal's checksum rules out.
#[derive(Debug, Clone)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// The messages of a block that [`push_message`] wrote.
    pub fn new(block: &'a [u8]) -> Messages<'a> {
        Messages { rest: block }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.rest.split_first_chunk::<4>()?;
        let (message, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
        self.rest = rest;
        Some(message)
    }
}

/// Appends one message to a block: its length as 32 bits, least significant byte first, then its bytes.
///
/// Returns `false`, and writes nothing, for a message of 4 GiB or more, which PostgreSQL cannot send.
#[must_use]
pub fn push_message(block: &mut Vec<u8>, message: &[u8]) -> bool {
    let Ok(length) = u32::try_from(message.len()) else { return false };
    block.extend_from_slice(&length.to_le_bytes());
    block.extend_from_slice(message);
    true
}
