//! What came of one stage call, as facts; what they mean is *judge*'s to say.

use std::time::Duration;

/// What came back, or why nothing did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A whole answer arrived.
    Answered(Answer),
    /// The request did not leave: the receiver has not seen it.
    NotSent(NotSent),
    /// The request left, or part of it, and no whole answer came: nobody here knows what the receiver did.
    Lost(Lost),
}

impl Outcome {
    /// The HTTP status, where an answer came.
    pub fn status(&self) -> Option<u16> {
        match self {
            Outcome::Answered(answer) => Some(answer.status),
            Outcome::NotSent(_) | Outcome::Lost(_) => None,
        }
    }
}

/// The parts of an answer that decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status code.
    pub status: u16,
    /// The `Postrider-Outcome` header; without it the status may be a proxy's.
    pub declared: Option<Declared>,
    /// `Idempotency-Replayed: true` was set.
    pub replayed: bool,
    /// The `Postrider-Next` header: which way the workflow goes on.
    pub next: Option<String>,
    /// The `Retry-After` header, as a span from now.
    pub retry_after: Option<Duration>,
    /// SHA-256 of the body of an answer that is no 2xx, for whoever looks for it at the receiver; nothing is decided by it. `None`: it has no
    /// body, or one that is longer than is read.
    pub body_sha256: Option<[u8; 32]>,
}

impl Answer {
    /// An answer that says this and nothing beside it.
    pub fn new(status: u16, declared: Option<Declared>) -> Answer {
        Answer { status, declared, replayed: false, next: None, retry_after: None, body_sha256: None }
    }
}

/// The words of the `Postrider-Outcome` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declared {
    Done,
    AlreadyDone,
    Accepted,
    InProgress,
    Retry,
    Permanent,
    Stale,
    Unknown,
}

impl Declared {
    pub const ALL: [Declared; 8] = [
        Declared::Done,
        Declared::AlreadyDone,
        Declared::Accepted,
        Declared::InProgress,
        Declared::Retry,
        Declared::Permanent,
        Declared::Stale,
        Declared::Unknown,
    ];

    /// The word in the header.
    pub fn as_str(self) -> &'static str {
        match self {
            Declared::Done => "done",
            Declared::AlreadyDone => "already-done",
            Declared::Accepted => "accepted",
            Declared::InProgress => "in-progress",
            Declared::Retry => "retry",
            Declared::Permanent => "permanent",
            Declared::Stale => "stale",
            Declared::Unknown => "unknown",
        }
    }

    /// Reads the header's value; a word that is none of ours counts as no header.
    pub fn parse(word: &str) -> Option<Declared> {
        Declared::ALL.into_iter().find(|declared| declared.as_str() == word.trim())
    }
}

/// Why a request did not leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotSent {
    /// The host name has no address.
    Resolve,
    /// The connection was refused, or reset before a byte of the request was written.
    Refused,
    /// No connection within the connect time-out.
    ConnectTimeout,
    /// The TLS handshake failed.
    Tls,
}

/// How an answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The stage's time-out ran out.
    Timeout,
    /// The connection ended after the request left and before the whole answer was there.
    Reset,
}

impl NotSent {
    /// For `last_error` and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            NotSent::Resolve => "NOT_SENT: host name not resolved",
            NotSent::Refused => "NOT_SENT: connection refused",
            NotSent::ConnectTimeout => "NOT_SENT: connect time-out",
            NotSent::Tls => "NOT_SENT: TLS handshake failed",
        }
    }
}

impl Lost {
    /// For `last_error` and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Lost::Timeout => "UNKNOWN: no answer within the stage's time-out",
            Lost::Reset => "UNKNOWN: connection lost after the request left",
        }
    }
}
