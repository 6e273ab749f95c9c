//! Messages of the output plugin `pgoutput`, protocol versions 1 to 4, borrowed from the bytes they came in.
//!
//! Read it beside the manual page "Logical Replication Message Formats": one file for each message kind. A parser accepts
//! exactly the bytes of one message; whatever else comes is a [`ParseError`] with its offset.
#![deny(clippy::indexing_slicing, clippy::as_conversions, clippy::arithmetic_side_effects)]

mod begin;
mod begin_prepare;
mod commit;
mod commit_prepared;
mod cursor;
mod data_type;
mod delete;
pub mod encode;
mod insert;
mod logical_message;
mod origin;
mod prepare;
mod relation;
mod rollback_prepared;
mod stream_abort;
mod stream_commit;
mod stream_prepare;
mod stream_start;
mod truncate;
mod tuple;
mod update;

pub use begin::Begin;
pub use begin_prepare::BeginPrepare;
pub use commit::Commit;
pub use commit_prepared::CommitPrepared;
pub use data_type::DataType;
pub use delete::Delete;
pub use insert::Insert;
pub use logical_message::LogicalMessage;
pub use origin::Origin;
pub use prepare::Prepare;
pub use relation::{ColumnField, ColumnFields, Relation};
pub use rollback_prepared::RollbackPrepared;
pub use stream_abort::{AbortPlace, StreamAbort};
pub use stream_commit::StreamCommit;
pub use stream_prepare::StreamPrepare;
pub use stream_start::StreamStart;
pub use truncate::{Oids, Truncate};
pub use tuple::{OldTuple, Tuple, TupleColumns, TupleValue};
pub use update::Update;

use crate::error::{Error, ErrorKind};
use cursor::Cursor;
use std::fmt;

/// One message. The tag that starts it on the wire stands behind each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// `B`: the messages up to [`Message::Commit`] are one committed transaction.
    Begin(Begin),
    /// `C`: the end of the transaction that [`Message::Begin`] opened.
    Commit(Commit),
    /// `O`: the transaction was replayed here from another server.
    Origin(Origin<'a>),
    /// `R`: the layout of a table, before its first change and whenever it may have changed.
    Relation(Relation<'a>),
    /// `Y`: the name of a type that is not built in.
    Type(DataType<'a>),
    /// `I`
    Insert(Insert<'a>),
    /// `U`
    Update(Update<'a>),
    /// `D`
    Delete(Delete<'a>),
    /// `T`
    Truncate(Truncate<'a>),
    /// `M`: written by `pg_logical_emit_message`.
    LogicalMessage(LogicalMessage<'a>),
    /// `S`, version 2: a block of messages of a transaction still in progress.
    StreamStart(StreamStart),
    /// `E`, version 2: the end of that block.
    StreamStop,
    /// `c`, version 2.
    StreamCommit(StreamCommit),
    /// `A`, version 2.
    StreamAbort(StreamAbort),
    /// `b`, version 3.
    BeginPrepare(BeginPrepare<'a>),
    /// `P`, version 3.
    Prepare(Prepare<'a>),
    /// `K`, version 3.
    CommitPrepared(CommitPrepared<'a>),
    /// `r`, version 3.
    RollbackPrepared(RollbackPrepared<'a>),
    /// `p`, version 3.
    StreamPrepare(StreamPrepare<'a>),
}

/// Bytes that are no message, and where the trouble starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseError {
    /// The message's tag; 0 where there is none.
    pub tag: u8,
    /// Bytes from the start of the message.
    pub offset: usize,
    pub problem: ParseProblem,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseProblem {
    /// The message ends within a field.
    Truncated,
    /// The message goes on after its last field.
    TrailingBytes,
    /// No version of the protocol up to 4 has this tag.
    UnknownTag,
    /// A byte that chooses what follows has no meaning.
    UnknownMarker(u8),
    /// A name or prefix is not UTF-8, though the session asks for it.
    NotUtf8,
    /// A count or length is below zero.
    NegativeLength,
}

impl<'a> Message<'a> {
    /// Parses a message as it comes outside of a stream block: without a transaction id of its own.
    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, ParseError> {
        let mut cursor = Cursor::new(bytes);
        let message = Message::read(&mut cursor)?;
        cursor.finish()?;
        Ok(message)
    }

    /// Parses a message as it comes between [`Message::StreamStart`] and [`Message::StreamStop`]: changes, relations,
    /// types and logical messages then carry the id of their (sub)transaction.
    pub fn parse_streamed(bytes: &'a [u8]) -> Result<(Option<u32>, Message<'a>), ParseError> {
        let mut cursor = Cursor::new(bytes);
        let xid = match cursor.tag()? {
            b'R' | b'Y' | b'I' | b'U' | b'D' | b'T' | b'M' => Some(cursor.u32()?),
            _ => None,
        };
        let message = Message::read_body(&mut cursor)?;
        cursor.finish()?;
        Ok((xid, message))
    }

    fn read(cursor: &mut Cursor<'a>) -> Result<Message<'a>, ParseError> {
        cursor.tag()?;
        Message::read_body(cursor)
    }

    fn read_body(cursor: &mut Cursor<'a>) -> Result<Message<'a>, ParseError> {
        Ok(match cursor.current_tag() {
            b'I' => Message::Insert(Insert::read(cursor)?),
            b'U' => Message::Update(Update::read(cursor)?),
            b'D' => Message::Delete(Delete::read(cursor)?),
            b'T' => Message::Truncate(Truncate::read(cursor)?),
            b'B' => Message::Begin(Begin::read(cursor)?),
            b'C' => Message::Commit(Commit::read(cursor)?),
            b'R' => Message::Relation(Relation::read(cursor)?),
            b'Y' => Message::Type(DataType::read(cursor)?),
            b'O' => Message::Origin(Origin::read(cursor)?),
            b'M' => Message::LogicalMessage(LogicalMessage::read(cursor)?),
            b'S' => Message::StreamStart(StreamStart::read(cursor)?),
            b'E' => Message::StreamStop,
            b'c' => Message::StreamCommit(StreamCommit::read(cursor)?),
            b'A' => Message::StreamAbort(StreamAbort::read(cursor)?),
            b'b' => Message::BeginPrepare(BeginPrepare::read(cursor)?),
            b'P' => Message::Prepare(Prepare::read(cursor)?),
            b'K' => Message::CommitPrepared(CommitPrepared::read(cursor)?),
            b'r' => Message::RollbackPrepared(RollbackPrepared::read(cursor)?),
            b'p' => Message::StreamPrepare(StreamPrepare::read(cursor)?),
            _ => return Err(cursor.error_at(0, ParseProblem::UnknownTag)),
        })
    }
}

/// The tag of a message as a character, and the name of its kind, for people.
pub fn tag_name(message: &[u8]) -> (char, &'static str) {
    let tag = message.first().copied().unwrap_or(0);
    let name = match tag {
        b'B' => "begin",
        b'C' => "commit",
        b'O' => "origin",
        b'R' => "relation",
        b'Y' => "type",
        b'I' => "insert",
        b'U' => "update",
        b'D' => "delete",
        b'T' => "truncate",
        b'M' => "message",
        b'S' => "stream start",
        b'E' => "stream stop",
        b'c' => "stream commit",
        b'A' => "stream abort",
        b'b' => "begin prepare",
        b'P' => "prepare",
        b'K' => "commit prepared",
        b'r' => "rollback prepared",
        b'p' => "stream prepare",
        _ => "unknown",
    };
    (char::from(tag), name)
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problem {
            ParseProblem::Truncated => f.write_str("message ends within a field")?,
            ParseProblem::TrailingBytes => f.write_str("message goes on after its last field")?,
            ParseProblem::UnknownTag => f.write_str("unknown kind of message")?,
            ParseProblem::UnknownMarker(marker) => write!(f, "unknown marker 0x{marker:02x}")?,
            ParseProblem::NotUtf8 => f.write_str("name is not valid UTF-8")?,
            ParseProblem::NegativeLength => f.write_str("negative length")?,
        }
        write!(f, " at byte {} of a message with tag 0x{:02x}", self.offset, self.tag)
    }
}

impl std::error::Error for ParseError {}

impl From<ParseError> for Error {
    fn from(error: ParseError) -> Error {
        Error::new(ErrorKind::Protocol, "cannot read a message of the logical replication stream").with_source(error)
    }
}

#[cfg(test)]
mod tests;
