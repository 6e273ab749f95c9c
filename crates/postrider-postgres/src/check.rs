//! Whether a database has all that Postrider needs, before it is started: every finding at once, each with its cure.

pub(crate) mod access;
mod failover;
mod open_steps;
mod publication;
mod server;
pub(crate) mod slot;
mod table;
pub(crate) mod younger;

use std::fmt;

use postrider_core::error::{Error, ErrorKind, Result};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::client::Connection;
use crate::missing::Missing;
use crate::objects::SourceObjects;
use crate::options::ConnectOptions;

pub use open_steps::{OpenStep, foreign_states, open_steps};
pub use publication::streams_work_table;

/// The checks only read, and give up where somebody holds a catalogue.
pub(crate) const PREAMBLE: &str =
    "SET default_transaction_read_only = on; SET lock_timeout = '10s'; SET statement_timeout = '30s'";

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// Gives the code that `postrider explain` takes.
    pub kind: ErrorKind,
    pub subject: Subject,
    /// What was found, as a sentence.
    pub sentence: String,
    /// What to do about it, as a sentence.
    pub hint: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Postrider will not work, or the application's own writes will fail.
    Error,
    /// It works, at a price that one should know.
    Warning,
    /// Worth knowing.
    Note,
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Server,
    /// The role that we are connected as.
    Role,
    Publication,
    Slot,
    WorkTable,
    /// Postrider's own tables.
    Store,
    Outbox,
}

/// Looks at everything and returns what it found, errors first, and causes before what follows from them. No finding: all is well.
///
/// # Errors
/// What connecting gives, and a catalogue that cannot be read; what is wrong with the database is a finding and no error.
pub async fn check(options: &ConnectOptions, objects: &SourceObjects) -> Result<Vec<Finding>> {
    let connection = Connection::open(options, PREAMBLE).await?;
    let version = server::version(&connection).await?;
    let mut findings = server::check(&connection, (options, objects.standby), version).await?;
    if !server::is_supported(version) {
        return Ok(findings);
    }
    let missing = Missing::look(&connection, objects).await?;
    findings.extend(table::missing(&missing, objects));
    findings.extend(slot::check(&connection, options, objects).await?);
    findings.extend(failover::check(&connection, options, objects).await?);
    findings.extend(publication::check(&connection, objects, (&missing, version)).await?);
    findings.extend(table::check(&connection, objects, &missing).await?);
    findings.extend(access::check(&connection, objects).await?);
    findings.sort_by_key(|finding| finding.severity);
    Ok(findings)
}

impl Finding {
    fn new(
        severity: Severity,
        kind: ErrorKind,
        subject: Subject,
        sentence: impl Into<String>,
        hint: impl Into<String>,
    ) -> Finding {
        Finding { severity, kind, subject, sentence: sentence.into(), hint: hint.into() }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        })
    }
}

/// A column of a catalogue's row.
pub(crate) fn field<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T> {
    row.try_get(column)
        .map_err(|error| Error::new(ErrorKind::Protocol, "cannot read the server's catalogue").with_source(error))
}
