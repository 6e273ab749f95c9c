//! What: the one error that the store's functions give.
//! Where: at the door of every function that takes a transaction.
//! Takes and gives: a database error; its kind, which says what the caller does next.
//! Never: carries a row's values, a key or a connection's secrets in its message.

use std::fmt;

use tokio_postgres::error::SqlState;

const STALE: &str = "request is stale: its work row has moved on";

/// Why a call did not succeed. A service's own queries inside the same transaction convert into it with `?`, so that
/// one match on [`Error::kind`] covers the whole transaction.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: &'static str,
    detail: Option<&'static str>,
    source: Option<tokio_postgres::Error>,
}

/// What the caller does about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The database undid the transaction to keep others correct (SQLSTATE 40001 or 40P01): run it again from its start.
    Retry,
    /// The caller asked for what must not be: an answer that is not final, or one that cannot be kept. A defect in the
    /// service; trying again gives the same.
    Refused,
    /// The request's work row has gone on without it (SQLSTATE PRF01): roll back, and answer 412 with
    /// [`Outcome::Stale`](crate::Outcome::Stale).
    Stale,
    /// The database could not do it. Before the commit nothing has happened; if the commit itself failed, it is unknown.
    Database,
}

impl Error {
    pub(crate) fn refused(message: &'static str, detail: &'static str) -> Error {
        Error { kind: ErrorKind::Refused, message, detail: Some(detail), source: None }
    }

    /// A stale request whose refusal was caught.
    pub(crate) fn stale() -> Error {
        Error {
            kind: ErrorKind::Stale,
            message: STALE,
            detail: Some("Its refusal was caught within the transaction, which is rolled back."),
            source: None,
        }
    }

    pub(crate) fn unreadable() -> Error {
        Error {
            kind: ErrorKind::Database,
            message: "stored answer cannot be read",
            detail: Some("A row of postrider_receiver.idempotency_keys was not written by store_answer()."),
            source: None,
        }
    }

    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// More than the message says, as a full sentence, where there is more.
    pub fn detail(&self) -> Option<&str> {
        self.detail
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(source: tokio_postgres::Error) -> Error {
        let again = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
        let (kind, message) = match source.code() {
            Some(code) if again.contains(code) => (ErrorKind::Retry, "transaction must be run again"),
            Some(code) if code.code() == "PRF01" => (ErrorKind::Stale, STALE),
            _ => (ErrorKind::Database, "database refused the statement or was lost"),
        };
        Error { kind, message, detail: None, source: Some(source) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}
