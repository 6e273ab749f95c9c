//! What is wrong with a stream that cannot be assembled.

use crate::error::{Error, ErrorKind};
use crate::pgoutput::ParseError;
use crate::position::Lsn;
use std::fmt;

/// A message that cannot stand where it stands, or that cannot be taken as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssembleError {
    Malformed(ParseError),
    /// No version of the protocol up to 4 has this tag, or the message is empty (0).
    UnknownMessage(u8),
    /// A message of a streamed or a prepared transaction came to an assembler without staging.
    UnsupportedMessage(u8),
    /// A transaction begins within another.
    NestedBegin,
    /// A message that belongs to a transaction came outside of one, or that ends one came outside of its kind.
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
    /// A chunk, a commit or a prepare of a streamed transaction whose first chunk never came.
    UnknownStream {
        xid: u32,
    },
    /// A prepared transaction was committed, and what it did is not here.
    UnknownPrepared {
        xid: u32,
        gid: String,
    },
    /// A savepoint of a streamed transaction was rolled back, and which of the transaction's logical messages went with it
    /// cannot be told: each carries the id of the whole transaction only.
    DoubtfulAbort {
        xid: u32,
    },
    /// The staging area is as full as it may be.
    StagingFull {
        xid: u32,
    },
    /// More subtransactions than are remembered for one streamed transaction.
    ManySubtransactions {
        xid: u32,
    },
    /// The caller has not finished the copy of a committed transaction.
    CopyPending,
}

impl AssembleError {
    /// The streamed transaction has to come again, whole and after its commit.
    pub(super) fn wants_whole(&self) -> bool {
        matches!(
            self,
            AssembleError::DoubtfulAbort { .. }
                | AssembleError::StagingFull { .. }
                | AssembleError::ManySubtransactions { .. }
        )
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
            AssembleError::NestedBegin => f.write_str("a transaction begins within another"),
            AssembleError::OutsideTransaction(tag) => write!(f, "message 0x{tag:02x} outside of its transaction"),
            AssembleError::CommitMismatch { begun, committed } => {
                write!(f, "BEGIN announced a commit at {begun}, and COMMIT came with {committed}")
            }
            AssembleError::OutOfOrder { commit_lsn, end_lsn } => {
                write!(f, "a transaction committed at {commit_lsn} came after everything up to {end_lsn}")
            }
            AssembleError::TooLarge => f.write_str("message of 4 GiB or more"),
            AssembleError::UnknownStream { xid } => {
                write!(f, "the streamed transaction {xid} goes on without having begun")
            }
            AssembleError::UnknownPrepared { xid, .. } => {
                write!(f, "the prepared transaction {xid} was committed and is not in the staging area")
            }
            AssembleError::DoubtfulAbort { xid } => {
                write!(f, "a rolled-back savepoint of transaction {xid} may have taken logical messages with it")
            }
            AssembleError::StagingFull { xid } => {
                write!(f, "the staging area is full at transaction {xid}")
            }
            AssembleError::ManySubtransactions { xid } => {
                write!(f, "transaction {xid} has too many subtransactions to be streamed")
            }
            AssembleError::CopyPending => f.write_str("a message came before a committed transaction was copied"),
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
        if error.wants_whole() {
            return Error::new(ErrorKind::Transient, "a transaction cannot be taken before its commit")
                .with_source(error)
                .with_hint(
                    "It is read again, whole and after its commit: the server keeps it on its own disk until then.",
                );
        }
        match error {
            AssembleError::UnknownPrepared { xid, ref gid } => {
                let detail = format!(
                    "It is transaction {xid}, prepared as \"{gid}\": the server sent it before, and the journal's directory no longer has it."
                );
                Error::new(ErrorKind::JournalForeign, "a prepared transaction was committed that the journal does not hold")
                    .with_detail(detail)
                    .with_hint("If the journal's `staging` folder was moved or lost, put it back. To go on without the transaction, drop the slot, run `postrider setup`, start with an empty journal, and bring its rows to the consumers by hand, and those of all that was committed since.")
            }
            AssembleError::CopyPending => {
                Error::new(ErrorKind::Internal, "cannot assemble the logical replication stream").with_source(error)
            }
            error => {
                Error::new(ErrorKind::Protocol, "cannot assemble the logical replication stream").with_source(error)
            }
        }
    }
}
