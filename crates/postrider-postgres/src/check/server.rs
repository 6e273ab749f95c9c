//! The server's version and settings, and what our role may do there.

use postrider_core::error::{Error, ErrorKind, Result};

use super::{Finding, Severity, Subject, field};
use crate::client::{Connection, Parameters};
use crate::options::ConnectOptions;
use crate::quote::quote_identifier;
use crate::source::preflight::refuse_standby;

/// The version as `server_version_num` has it.
pub(super) async fn version(connection: &Connection) -> Result<i64> {
    let text = "SELECT current_setting('server_version_num')::int8";
    let rows = connection.query(&text.into(), &Parameters::new()).await?;
    let row = rows.first().ok_or_else(|| Error::new(ErrorKind::Protocol, "the server does not say its version"))?;
    field(row, 0)
}

/// PostgreSQL 14 to 18.
pub(super) fn is_supported(version: i64) -> bool {
    (140_000..190_000).contains(&version)
}

pub(super) async fn check(
    connection: &Connection,
    (options, standby): (&ConnectOptions, bool),
    version: i64,
) -> Result<Vec<Finding>> {
    if !is_supported(version) {
        return Ok(vec![Finding::new(
            Severity::Error,
            ErrorKind::Configuration,
            Subject::Server,
            format!("The server is PostgreSQL {}, and Postrider reads from 14 to 18.", version / 10_000),
            "Use a server of a supported version.",
        )]);
    }
    let text = "SELECT pg_is_in_recovery(), current_setting('wal_level'), current_setting('fsync'), \
           current_setting('synchronous_commit'), \
           (SELECT setting::int8 FROM pg_settings WHERE name = 'max_slot_wal_keep_size'), \
           (SELECT setting::int8 FROM pg_settings WHERE name = 'wal_sender_timeout'), \
           (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user), \
           current_setting('server_encoding'), current_user::text, \
           current_setting('hot_standby_feedback') = 'on', coalesce(current_setting('primary_slot_name'), '')";
    let rows = connection.query(&text.into(), &Parameters::new()).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let mut findings = Vec::new();
    let mut find = |severity, kind, subject, sentence: &str, hint: &str| {
        findings.push(Finding::new(severity, kind, subject, sentence, hint));
    };
    let in_recovery: bool = field(row, 0)?;
    let major = u32::try_from(version / 10_000).unwrap_or_default();
    if in_recovery && let Some(error) = refuse_standby(options, standby, major) {
        let sentence = format!("The server is a standby. {}", error.detail().unwrap_or_default());
        find(Severity::Error, error.kind(), Subject::Server, &sentence, error.hint().unwrap_or_default());
    } else if in_recovery {
        feedback(row, &mut find)?;
    }
    if field::<&str>(row, 1)? != "logical" {
        find(
            Severity::Error,
            ErrorKind::WalLevel,
            Subject::Server,
            "The server's wal_level is not logical.",
            "As a superuser: ALTER SYSTEM SET wal_level = 'logical'; and restart the server.",
        );
    }
    if !field::<bool>(row, 6)? {
        find(
            Severity::Error,
            ErrorKind::Privilege,
            Subject::Role,
            "Our role may not use replication.",
            &format!("As a superuser: ALTER ROLE {} REPLICATION;", quote_identifier(field(row, 8)?)),
        );
    }
    encoding(row, &mut find)?;
    durability(row, &mut find)?;
    limits(row, &mut find)?;
    if version < 150_000 {
        find(
            Severity::Note,
            ErrorKind::Configuration,
            Subject::Server,
            "PostgreSQL 14 sends transactions that hold nothing for us, and work rows with their payload.",
            "PostgreSQL 15 or later spares both.",
        );
    }
    Ok(findings)
}

/// Of a standby that is decoded: what keeps the primary from removing what its slot needs.
fn feedback(row: &tokio_postgres::Row, find: &mut impl FnMut(Severity, ErrorKind, Subject, &str, &str)) -> Result<()> {
    if !field::<bool>(row, 9)? {
        find(
            Severity::Warning,
            ErrorKind::SlotLost,
            Subject::Server,
            "hot_standby_feedback is off: the primary removes rows of its catalogue that our slot needs, and the slot is lost (PR006).",
            "On the standby, as a superuser: ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf();",
        );
    }
    if field::<&str>(row, 10)?.is_empty() {
        find(
            Severity::Warning,
            ErrorKind::SlotLost,
            Subject::Server,
            "The standby has no physical slot on its primary: while it is disconnected, its feedback counts for nothing, and our slot may be lost (PR006).",
            "Make one on the primary, and set primary_slot_name on the standby to its name.",
        );
    }
    Ok(())
}

fn encoding(row: &tokio_postgres::Row, find: &mut impl FnMut(Severity, ErrorKind, Subject, &str, &str)) -> Result<()> {
    if field::<&str>(row, 7)? == "SQL_ASCII" {
        find(
            Severity::Warning,
            ErrorKind::Table,
            Subject::Server,
            "The database's encoding is SQL_ASCII: it takes any bytes, and a row whose text is not UTF-8 stops the stream.",
            "Make sure that all who write send UTF-8, or move to a database of encoding UTF8.",
        );
    }
    Ok(())
}

fn durability(
    row: &tokio_postgres::Row,
    find: &mut impl FnMut(Severity, ErrorKind, Subject, &str, &str),
) -> Result<()> {
    if field::<&str>(row, 2)? == "off" {
        find(
            Severity::Warning,
            ErrorKind::Configuration,
            Subject::Server,
            "The server's fsync is off: after a crash of the machine a claim that was acted on may be forgotten.",
            "ALTER SYSTEM SET fsync = on; is the default for a reason.",
        );
    }
    if field::<&str>(row, 3)? == "off" {
        find(
            Severity::Warning,
            ErrorKind::Configuration,
            Subject::Server,
            "synchronous_commit is off: a commit is seen in the log up to three times wal_writer_delay later. Our own sessions set it on.",
            "Set synchronous_commit to on for the sessions that submit work, or live with the delay.",
        );
    }
    Ok(())
}

fn limits(row: &tokio_postgres::Row, find: &mut impl FnMut(Severity, ErrorKind, Subject, &str, &str)) -> Result<()> {
    if field::<i64>(row, 4)? < 0 {
        find(
            Severity::Warning,
            ErrorKind::Configuration,
            Subject::Server,
            "max_slot_wal_keep_size is unlimited: while Postrider is away the server keeps its log until the disk is full.",
            "Set it to what the disk can spare, and watch the slot.",
        );
    }
    let timeout_ms: i64 = field(row, 5)?;
    if timeout_ms == 0 {
        find(
            Severity::Warning,
            ErrorKind::Configuration,
            Subject::Server,
            "wal_sender_timeout is off: the slot stays taken for as long as the server does not notice that a reader is gone.",
            "Set wal_sender_timeout to a minute, the default.",
        );
    } else if timeout_ms < 5_000 {
        find(
            Severity::Warning,
            ErrorKind::Configuration,
            Subject::Server,
            "wal_sender_timeout is below five seconds: a short pause of the machine ends the stream.",
            "Set wal_sender_timeout to a minute, the default.",
        );
    }
    Ok(())
}
