//! The one public error of every door.

use std::error::Error as StdError;
use std::fmt;

/// A result with Postrider's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, in PostgreSQL's manner: a message without values, and where they help a detail and a hint in whole
/// sentences.
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What the one who meets the error does about it; a kind exists only if someone acts differently on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// The configuration is wrong.
    Configuration,
    /// The server refuses our name or password (SQLSTATE class 28).
    Authentication,
    /// The role may not do what we need (SQLSTATE 42501).
    Privilege,
    /// The replication slot does not exist.
    SlotMissing,
    /// Another session reads from the slot (SQLSTATE 55006).
    SlotInUse,
    /// The slot was invalidated or its log is gone.
    SlotLost,
    /// The slot was moved, recreated or belongs to something else than our journal says.
    SlotForeign,
    /// The publication does not exist, or did not when the slot's position was written.
    PublicationMissing,
    /// `wal_level` is not `logical`.
    WalLevel,
    /// A table lacks what its part needs (missing table, column, key or replica identity).
    Table,
    /// The server cannot be reached, or closed the connection.
    Disconnected,
    /// The same statement may succeed if it is sent again (SQLSTATE 40001, 40P01, 55P03, 57014, class 53).
    Transient,
    /// The server sent what its protocol does not allow, or what this version cannot read.
    Protocol,
    /// The journal directory belongs to another system, timeline, database or slot.
    JournalForeign,
    /// The journal holds a bad frame before its end.
    JournalCorrupt,
    /// The local disk refused a read or a write.
    Disk,
    /// A sink or an endpoint did not take what was sent; it may later.
    SinkUnavailable,
    /// A sink or an endpoint will never take what was sent.
    SinkRefused,
    /// An invariant of ours does not hold.
    Internal,
    /// What a person ordered does not fit what is there.
    OrderRefused,
}

/// What the one judgement over all kinds says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// Try the same again after a pause.
    Retry,
    /// Set this one piece aside and go on with the rest.
    Park,
    /// Stop the process: a person must act.
    Halt,
}

impl ErrorKind {
    /// Every kind, in the order of the codes.
    pub const ALL: [ErrorKind; 20] = [
        ErrorKind::Configuration,
        ErrorKind::Authentication,
        ErrorKind::Privilege,
        ErrorKind::SlotMissing,
        ErrorKind::SlotInUse,
        ErrorKind::SlotLost,
        ErrorKind::SlotForeign,
        ErrorKind::PublicationMissing,
        ErrorKind::WalLevel,
        ErrorKind::Table,
        ErrorKind::Disconnected,
        ErrorKind::Transient,
        ErrorKind::Protocol,
        ErrorKind::JournalForeign,
        ErrorKind::JournalCorrupt,
        ErrorKind::Disk,
        ErrorKind::SinkUnavailable,
        ErrorKind::SinkRefused,
        ErrorKind::Internal,
        ErrorKind::OrderRefused,
    ];

    /// The stable code that `postrider explain` takes.
    pub fn code(self) -> &'static str {
        match self {
            ErrorKind::Configuration => "PR001",
            ErrorKind::Authentication => "PR002",
            ErrorKind::Privilege => "PR003",
            ErrorKind::SlotMissing => "PR004",
            ErrorKind::SlotInUse => "PR005",
            ErrorKind::SlotLost => "PR006",
            ErrorKind::SlotForeign => "PR007",
            ErrorKind::PublicationMissing => "PR008",
            ErrorKind::WalLevel => "PR009",
            ErrorKind::Table => "PR010",
            ErrorKind::Disconnected => "PR011",
            ErrorKind::Transient => "PR012",
            ErrorKind::Protocol => "PR013",
            ErrorKind::JournalForeign => "PR014",
            ErrorKind::JournalCorrupt => "PR015",
            ErrorKind::Disk => "PR016",
            ErrorKind::SinkUnavailable => "PR017",
            ErrorKind::SinkRefused => "PR018",
            ErrorKind::Internal => "PR019",
            ErrorKind::OrderRefused => "PR020",
        }
    }

    /// The exit code of a process that stops because of this kind: 2 configuration, 3 connection and rights,
    /// 4 the source is not ready, 5 the journal or the disk, 6 the protocol or a defect of ours, 7 a sink, 8 an order that does not fit.
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorKind::Configuration => 2,
            ErrorKind::Authentication | ErrorKind::Privilege | ErrorKind::Disconnected | ErrorKind::Transient => 3,
            ErrorKind::SlotMissing
            | ErrorKind::SlotInUse
            | ErrorKind::SlotLost
            | ErrorKind::SlotForeign
            | ErrorKind::PublicationMissing
            | ErrorKind::WalLevel
            | ErrorKind::Table => 4,
            ErrorKind::JournalForeign | ErrorKind::JournalCorrupt | ErrorKind::Disk => 5,
            ErrorKind::Protocol | ErrorKind::Internal => 6,
            ErrorKind::SinkUnavailable | ErrorKind::SinkRefused => 7,
            ErrorKind::OrderRefused => 8,
        }
    }

    /// Retry, park or halt: the only place where this is decided.
    pub fn reaction(self) -> Reaction {
        match self {
            ErrorKind::Disconnected | ErrorKind::Transient | ErrorKind::SlotInUse | ErrorKind::SinkUnavailable => {
                Reaction::Retry
            }
            ErrorKind::SinkRefused => Reaction::Park,
            ErrorKind::Configuration
            | ErrorKind::Authentication
            | ErrorKind::Privilege
            | ErrorKind::SlotMissing
            | ErrorKind::SlotLost
            | ErrorKind::SlotForeign
            | ErrorKind::PublicationMissing
            | ErrorKind::WalLevel
            | ErrorKind::Table
            | ErrorKind::Protocol
            | ErrorKind::JournalForeign
            | ErrorKind::JournalCorrupt
            | ErrorKind::Disk
            | ErrorKind::Internal
            | ErrorKind::OrderRefused => Reaction::Halt,
        }
    }
}

impl Error {
    /// An error of `kind` with a message in lower case, without a full stop and without values.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { inner: Box::new(Inner { kind, message: message.into(), detail: None, hint: None, source: None }) }
    }

    /// Adds what is known beyond the message, as whole sentences.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Error {
        self.inner.detail = Some(detail.into());
        self
    }

    /// Adds what to do about it, as whole sentences.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.inner.hint = Some(hint.into());
        self
    }

    /// Adds the error behind this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        self.inner.source = Some(source.into());
        self
    }

    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    pub fn message(&self) -> &str {
        &self.inner.message
    }

    pub fn detail(&self) -> Option<&str> {
        self.inner.detail.as_deref()
    }

    pub fn hint(&self) -> Option<&str> {
        self.inner.hint.as_deref()
    }

    /// The whole story on one line, for a log: code, message, causes, detail, hint.
    pub fn report(&self) -> String {
        let mut text = format!("{} {}", self.kind().code(), self.message());
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        for extra in [self.detail(), self.hint()].into_iter().flatten() {
            text.push_str(if text.ends_with('.') { " " } else { ". " });
            text.push_str(extra);
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.inner, f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_kind_has_a_code_of_its_own() {
        let codes: BTreeSet<_> = ErrorKind::ALL.iter().map(|kind| kind.code()).collect();
        assert_eq!(codes.len(), ErrorKind::ALL.len());
    }

    #[test]
    fn a_report_prints_each_part_once() {
        let error = Error::new(ErrorKind::Disk, "cannot write the journal")
            .with_source(std::io::Error::other("no space left"))
            .with_hint("Free some space.");
        assert_eq!(error.report(), "PR016 cannot write the journal: no space left. Free some space.");
    }
}
