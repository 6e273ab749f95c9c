//! What the server refuses, as Postrider's errors.
//!
//! One SQLSTATE can have causes with opposite cures (42704 is a missing slot when the stream is started, a missing
//! publication once it runs), so that the judgement is by SQLSTATE and by what we were doing.
#![deny(clippy::indexing_slicing, clippy::as_conversions, clippy::arithmetic_side_effects)]

use std::error::Error as StdError;
use std::io;

use postrider_core::error::{Error, ErrorKind};
use postrider_core::position::Lsn;

use crate::objects::MISSING_TABLE_HINT;
use crate::quote::{quote_identifier, quote_literal};

/// What we were doing when the server answered with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Connecting, up to the first `ReadyForQuery`.
    Connect,
    /// `IDENTIFY_SYSTEM`, the first command of a replication session.
    Identify,
    /// An ordinary statement, or a command that only reads.
    Query,
    /// `CREATE_REPLICATION_SLOT`.
    CreateSlot,
    /// `ALTER_REPLICATION_SLOT`.
    AlterSlot,
    /// `DROP_REPLICATION_SLOT`.
    DropSlot,
    /// `START_REPLICATION`, up to the server's `CopyBothResponse`.
    StartReplication,
    /// The stream itself.
    Stream,
}

/// The fields of an `ErrorResponse` or `NoticeResponse` that we use (manual, "Error and Notice Message Fields").
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ServerMessage {
    /// Not localized: `ERROR`, `FATAL`, `PANIC`, `WARNING`, `NOTICE`, `DEBUG`, `INFO`, `LOG`.
    pub(crate) severity: String,
    pub(crate) sqlstate: String,
    pub(crate) message: String,
    pub(crate) detail: Option<String>,
    pub(crate) hint: Option<String>,
    pub(crate) schema: Option<String>,
    pub(crate) table: Option<String>,
    pub(crate) column: Option<String>,
    pub(crate) constraint: Option<String>,
    /// Where the server was; in a stream its last word is the LSN of the change.
    pub(crate) context: Option<String>,
}

impl ServerMessage {
    /// Reads the body of an `ErrorResponse` or `NoticeResponse`: a byte for the field, its text, a zero byte; a zero
    /// byte at the end. Text
    /// that is not UTF-8 (before the encoding is agreed) is kept as far as it can be. `None` where the body ends
    /// within a field.
    pub(crate) fn parse(mut body: &[u8]) -> Option<ServerMessage> {
        let mut message = ServerMessage::default();
        loop {
            let (&field, rest) = body.split_first()?;
            if field == 0 {
                return Some(message);
            }
            let end = rest.iter().position(|&byte| byte == 0)?;
            let (text, rest) = rest.split_at_checked(end)?;
            let (_zero, rest) = rest.split_first()?;
            let text = String::from_utf8_lossy(text).into_owned();
            match field {
                // `V` is the severity that is never localized; it comes after the localized `S`.
                b'S' | b'V' => message.severity = text,
                b'C' => message.sqlstate = text,
                b'M' => message.message = text,
                b'D' => message.detail = Some(text),
                b'H' => message.hint = Some(text),
                b's' => message.schema = Some(text),
                b't' => message.table = Some(text),
                b'c' => message.column = Some(text),
                b'n' => message.constraint = Some(text),
                b'W' => message.context = Some(text),
                _ => {}
            }
            body = rest;
        }
    }

    /// The place in the log of the change that the server was decoding. The words around it may be in any language.
    fn lsn(&self) -> Option<Lsn> {
        self.context.as_deref()?.split_whitespace().find_map(|word| word.parse().ok())
    }

    /// The function of a team's that refuses, a trigger's as a rule. The words around its name may be in any language.
    fn function(&self) -> Option<&str> {
        // The innermost comes first. One whose name is quoted is not told from a statement, which may have values in it.
        let line = self.context.as_deref()?.lines().find(|line| line.contains("PL/pgSQL"))?;
        let line = Some(line).filter(|line| !line.contains(['"', '\'']))?;
        line.split_whitespace().find_map(|word| word.split_once('(')).map(|(name, _)| name)
    }

    /// Said in the stream: a publication that the slot's position does not know yet. From version 18 on that is only a
    /// warning, and the changes are skipped. The words may be in any language (`lc_messages`); no other warning of a
    /// stream has this SQLSTATE.
    pub(crate) fn is_skipped_publication(&self) -> bool {
        self.severity == "WARNING" && self.sqlstate == "55000"
    }
}

/// The error of an ordinary session as Postrider's error.
#[must_use]
pub(crate) fn map_client_error(phase: Phase, error: tokio_postgres::Error) -> Error {
    if let Some(refusal) = error.as_db_error() {
        return map_server_message(
            phase,
            &ServerMessage {
                severity: refusal.severity().to_owned(),
                sqlstate: refusal.code().code().to_owned(),
                message: refusal.message().to_owned(),
                detail: refusal.detail().map(str::to_owned),
                hint: refusal.hint().map(str::to_owned),
                schema: refusal.schema().map(str::to_owned),
                table: refusal.table().map(str::to_owned),
                column: refusal.column().map(str::to_owned),
                constraint: refusal.constraint().map(str::to_owned),
                context: refusal.where_().map(str::to_owned),
            },
        );
    }
    if error.is_closed() || find_io(&error) {
        return Error::new(ErrorKind::Disconnected, "the connection to the server is lost").with_source(error);
    }
    Error::new(ErrorKind::Protocol, "cannot read the server's answer").with_source(error)
}

/// A server's refusal as Postrider's error: the kind by SQLSTATE and phase, the server's own words in the detail.
///
/// Classes 22 and 23, and what a trigger raises, may quote values of a row: of those only the names are passed on.
#[must_use]
pub(crate) fn map_server_message(phase: Phase, refusal: &ServerMessage) -> Error {
    let (kind, message, hint) = judge(phase, refusal);
    let mut error = Error::new(kind, message).with_detail(describe(refusal));
    if let Some(hint) = hint.map(str::to_owned).or_else(|| refusal.hint.as_deref().map(sentence)) {
        error = error.with_hint(hint);
    }
    error
}

/// Puts the names into the cure of a refusal that came while connecting.
#[must_use]
pub(crate) fn name_cure(refusal: Error, role: &str, database: &str) -> Error {
    fill_in(refusal, &[("{role}", quote_identifier(role)), ("{database}", quote_identifier(database))])
}

/// Puts the slot's name into the cure of a refusal in the phases that have to do with a slot.
#[must_use]
pub(crate) fn name_slot(refusal: Error, slot: &str) -> Error {
    fill_in(refusal, &[("{slot}", quote_literal(slot))])
}

fn fill_in(refusal: Error, names: &[(&str, String)]) -> Error {
    match refusal.hint().filter(|hint| names.iter().any(|(place, _)| hint.contains(place))) {
        None => refusal,
        Some(hint) => {
            let hint = names.iter().fold(hint.to_owned(), |hint, (place, name)| hint.replace(place, name));
            refusal.with_hint(hint)
        }
    }
}

/// A failed read, write or connect as Postrider's error. `endpoint` is `host:port` or the socket's path.
///
/// TLS is part of it: the server's alert about our certificate comes with the first read.
#[must_use]
pub(crate) fn map_io_error(message: &str, endpoint: &str, error: io::Error) -> Error {
    let detail = format!("The server is {endpoint}.");
    if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) {
        return tls_failure(error).with_detail(detail);
    }
    Error::new(ErrorKind::Disconnected, message).with_detail(detail).with_source(error)
}

/// TLS that could not be agreed: a wrong certificate stays wrong, so that this is not a lost connection.
#[must_use]
pub(crate) fn tls_failure(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Configuration, "cannot set up TLS with the server").with_source(error).with_hint(
        "Check sslmode and sslrootcert: verify-full wants a certificate for the very host name in the address, signed by an authority in sslrootcert. Where the server wants one of ours, check sslcert and sslkey.",
    )
}

/// Bytes that the protocol does not allow.
#[must_use]
pub(crate) fn protocol_violation(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, "the server sent what its protocol does not allow").with_detail(detail).with_hint(
        "Check that the address is that of PostgreSQL 14 to 18 itself and not of a pooler or another service.",
    )
}

/// What to do where something else than the server answers.
pub(crate) const POOLER_HINT: &str = "Give the address of PostgreSQL itself: a pooler such as PgBouncer passes on neither replication nor the settings that sessions are pinned to.";

fn judge(phase: Phase, refusal: &ServerMessage) -> (ErrorKind, &'static str, Option<&'static str>) {
    if let Some(verdict) = judge_replication(phase, refusal) {
        return verdict;
    }
    let sqlstate = refusal.sqlstate.as_str();
    match (sqlstate, sqlstate.get(..2).unwrap_or("")) {
        (_, "28") => (
            ErrorKind::Authentication,
            "the server refuses our name or password",
            Some("Check user and password in the address, and the server's pg_hba.conf."),
        ),
        // What a pooler says to `replication` or `options` in the start-up message: PgBouncer the one, Amazon's proxy the other.
        ("08P01" | "0A000", _) if phase == Phase::Connect => {
            (ErrorKind::Configuration, "the server does not take our start-up message", Some(POOLER_HINT))
        }
        ("3D000", _) => (
            ErrorKind::Configuration,
            "the database does not exist",
            Some("Name an existing database in the address: psql -l lists them."),
        ),
        ("42501", _) if phase == Phase::Connect && refusal.message.contains("database") => (
            ErrorKind::Privilege,
            "the role may not connect to the database",
            Some("As the database's owner: GRANT CONNECT ON DATABASE {database} TO {role};"),
        ),
        ("42501", _) if phase == Phase::Connect => (
            ErrorKind::Privilege,
            "the role may not use replication",
            Some("As a superuser: ALTER ROLE {role} REPLICATION;"),
        ),
        ("42501", _) => (
            ErrorKind::Privilege,
            "the role lacks a privilege",
            Some("`postrider check` says which, with the GRANT to type."),
        ),
        ("42P01" | "42703" | "42883" | "3F000", _) => {
            (ErrorKind::Table, "a table or a column of ours does not exist", Some(MISSING_TABLE_HINT))
        }
        (_, "22" | "23" | "P0") => (
            ErrorKind::Table,
            "the database refuses the row",
            Some(
                "The server's log has the row's values beside this SQLSTATE. Correct the row, or what refuses it: the constraint, the column, the trigger.",
            ),
        ),
        ("25006", _) => (
            ErrorKind::Configuration,
            "the server is a standby and takes no writes",
            Some("Give the primary's address; where it names several hosts, add target_session_attrs=primary to it."),
        ),
        ("40001" | "40P01" | "55P03" | "57014" | "25P03" | "25P04", _) | (_, "53") => {
            (ErrorKind::Transient, "the server asks to try again", None)
        }
        ("57P01" | "57P02" | "57P03" | "57P05", _) | (_, "08") => {
            (ErrorKind::Disconnected, "the server ended the connection", None)
        }
        (_, "0A") => (ErrorKind::Protocol, "the server does not support what we ask for", None),
        _ => (ErrorKind::Internal, "the server refuses a statement of ours", None),
    }
}

/// What means something else, or nothing, outside replication.
fn judge_replication(phase: Phase, refusal: &ServerMessage) -> Option<(ErrorKind, &'static str, Option<&'static str>)> {
    let verdict = match (phase, refusal.sqlstate.as_str()) {
        (Phase::CreateSlot | Phase::AlterSlot | Phase::DropSlot | Phase::StartReplication, "55006") => (
            ErrorKind::SlotInUse,
            "another session reads from the replication slot",
            Some(
                "Stop the other reader, or end its session: SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = {slot};",
            ),
        ),
        (Phase::AlterSlot | Phase::DropSlot | Phase::StartReplication, "42704") => {
            (ErrorKind::SlotMissing, "the replication slot does not exist", Some("`postrider setup` creates it."))
        }
        (Phase::Stream, "42704") => skipped_publication(),
        (Phase::Stream, "22021" | "22P05") => (
            ErrorKind::Table,
            "the server cannot send a row as UTF-8",
            Some(
                "The database (`SHOW server_encoding`) holds text that is not in the encoding it claims, as one in SQL_ASCII may. Correct it in the table, and move the slot past the change with pg_replication_slot_advance, which leaves out what is not read until there.",
            ),
        ),
        (Phase::Stream, "55000") if refusal.is_skipped_publication() => skipped_publication(),
        (Phase::CreateSlot | Phase::StartReplication, "55000") if refusal.message.contains("wal_level") => (
            ErrorKind::WalLevel,
            "the server does not write a logical log",
            Some("As a superuser: ALTER SYSTEM SET wal_level = 'logical'; and restart the server."),
        ),
        (Phase::StartReplication | Phase::Stream, "55000") => (
            ErrorKind::SlotLost,
            "the replication slot cannot be read from",
            Some(
                "SELECT * FROM pg_replication_slots WHERE slot_name = {slot}; shows why. A lost slot must be dropped, by SELECT pg_drop_replication_slot({slot}); and created again, by `postrider setup`, with a new copy of the tables.",
            ),
        ),
        (Phase::CreateSlot, "42710") => (
            ErrorKind::SlotForeign,
            "a replication slot of this name exists already",
            Some(
                "Choose another slot name, or drop the slot if nobody needs it: SELECT pg_drop_replication_slot({slot});",
            ),
        ),
        (Phase::CreateSlot, "53400") => (
            ErrorKind::Configuration,
            "all replication slots of the server are in use",
            Some("Raise max_replication_slots and restart the server, or drop a slot that nobody needs."),
        ),
        // An ordinary session takes the command for bad SQL.
        (Phase::Identify, "42601") => {
            (ErrorKind::Configuration, "the session is not one for replication", Some(POOLER_HINT))
        }
        (Phase::Connect, "53300") => (
            ErrorKind::Transient,
            "the server has no connection left",
            Some("Raise max_wal_senders or max_connections, or end sessions that nobody needs."),
        ),
        // The slot keeps the database's first session rule: a walsender of another version may not know an option of
        // ours.
        (Phase::StartReplication, "XX000" | "22023" | "42601" | "0A000") => (
            ErrorKind::Protocol,
            "the server does not take our replication options",
            Some("Postrider reads from PostgreSQL 14 to 18."),
        ),
        _ => return None,
    };
    Some(verdict)
}

fn skipped_publication() -> (ErrorKind, &'static str, Option<&'static str>) {
    (
        ErrorKind::PublicationMissing,
        "the publication did not exist when the slot's position was written",
        Some(
            "A publication made later than the slot does not help. If what was written between may be left out, drop the slot, by SELECT pg_drop_replication_slot({slot}); and run `postrider setup`, which makes the publication first.",
        ),
    )
}

fn describe(refusal: &ServerMessage) -> String {
    let class = refusal.sqlstate.get(..2).unwrap_or("");
    if matches!(class, "22" | "23" | "P0") {
        let mut text = format!("SQLSTATE {}", refusal.sqlstate);
        if let Some(table) = &refusal.table {
            let schema = refusal.schema.as_ref().map(|schema| format!("{}.", quote_identifier(schema)));
            text.push_str(&format!(", table {}{}", schema.unwrap_or_default(), quote_identifier(table)));
        }
        for (what, name) in [("column", &refusal.column), ("constraint", &refusal.constraint)] {
            if let Some(name) = name {
                text.push_str(&format!(", {what} {}", quote_identifier(name)));
            }
        }
        if let Some(function) = refusal.function() {
            text.push_str(&format!(", in the function {function}"));
        } else if refusal.sqlstate == "22001" && refusal.context.is_none() {
            // The server names no column, but the type; there is no value in these words where they are its own.
            text.push_str(&format!(", {}", refusal.message));
        }
        if let Some(lsn) = refusal.lsn() {
            text.push_str(&format!(", in the change at {lsn}"));
        }
        text.push('.');
        return text;
    }
    let mut text = format!("The server says: {} (SQLSTATE {}).", refusal.message, refusal.sqlstate);
    if let Some(detail) = &refusal.detail {
        text.push(' ');
        text.push_str(&sentence(detail));
    }
    text
}

fn sentence(text: &str) -> String {
    let text = text.trim_end();
    if text.ends_with(['.', '!', '?', ';']) { text.to_owned() } else { format!("{text}.") }
}

fn find_io(error: &tokio_postgres::Error) -> bool {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if inner.is::<io::Error>() {
            return true;
        }
        cause = inner.source();
    }
    false
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::indexing_slicing,
        clippy::as_conversions,
        clippy::arithmetic_side_effects,
        reason = "a test may stop at the first surprise"
    )]
    use super::*;

    fn kind(phase: Phase, sqlstate: &str, message: &str) -> ErrorKind {
        map_server_message(phase, &refusal(sqlstate, message)).kind()
    }

    fn refusal(sqlstate: &str, message: &str) -> ServerMessage {
        ServerMessage {
            severity: "ERROR".into(),
            sqlstate: sqlstate.into(),
            message: message.into(),
            ..ServerMessage::default()
        }
    }

    #[test]
    fn one_sqlstate_means_different_things_in_different_phases() {
        let missing = "replication slot \"nope\" does not exist";
        assert_eq!(kind(Phase::StartReplication, "42704", missing), ErrorKind::SlotMissing);
        assert_eq!(kind(Phase::Stream, "42704", "publication \"p\" does not exist"), ErrorKind::PublicationMissing);
        let wal_level = "logical decoding requires wal_level >= logical";
        assert_eq!(kind(Phase::CreateSlot, "55000", wal_level), ErrorKind::WalLevel);
        let lost = "can no longer get changes from replication slot \"s\"";
        assert_eq!(kind(Phase::StartReplication, "55000", lost), ErrorKind::SlotLost);
        let skipped = ServerMessage { severity: "WARNING".into(), ..refusal("55000", "lade Publikation »p« nicht") };
        assert!(skipped.is_skipped_publication());
        assert_eq!(map_server_message(Phase::Stream, &skipped).kind(), ErrorKind::PublicationMissing);
        assert!(!refusal("55000", "skipped loading publication \"p\"").is_skipped_publication());
        assert_eq!(kind(Phase::Stream, "55000", lost), ErrorKind::SlotLost);
        assert_eq!(kind(Phase::StartReplication, "55006", ""), ErrorKind::SlotInUse);
        assert_eq!(kind(Phase::Query, "55006", ""), ErrorKind::Internal);
        assert_eq!(kind(Phase::Connect, "28P01", ""), ErrorKind::Authentication);
        assert_eq!(kind(Phase::Connect, "42501", ""), ErrorKind::Privilege);
        assert_eq!(kind(Phase::Connect, "57P03", "the database system is starting up"), ErrorKind::Disconnected);
        assert_eq!(kind(Phase::Query, "40001", ""), ErrorKind::Transient);
        assert_eq!(kind(Phase::Query, "42P01", ""), ErrorKind::Table);
    }

    #[test]
    fn every_cut_of_an_error_is_refused() {
        let body = b"SFEHLER\0VERROR\0C42P01\0Mno\0Dsuch\0\0";
        let message = ServerMessage::parse(body).expect("it is whole");
        assert_eq!((message.severity.as_str(), message.sqlstate.as_str()), ("ERROR", "42P01"));
        assert_eq!(message.detail.as_deref(), Some("such"));
        for cut in 0..body.len() {
            assert_eq!(ServerMessage::parse(&body[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn a_row_that_cannot_be_sent_is_told_by_its_place() {
        let mut message = refusal("22021", "invalid byte sequence for encoding \"UTF8\": 0xff");
        let context = "Slot »s«, Ausgabe-Plugin »pgoutput«, im Callback change, zugehörige LSN 0/1A2B3C8";
        message.context = Some(context.into());
        let error = map_server_message(Phase::Stream, &message);
        assert_eq!(error.kind(), ErrorKind::Table);
        assert!(error.report().contains("SQLSTATE 22021, in the change at 0/1A2B3C8."), "{}", error.report());
        assert!(error.report().contains("SQL_ASCII") && !error.report().contains("0xff"), "{}", error.report());
    }

    #[test]
    fn a_trigger_that_refuses_is_named_in_any_language_and_no_statement_of_its() {
        let report = |context: &str| {
            let mut message = refusal("P0001", "no more for a@b.example");
            message.context = Some(context.to_owned());
            map_server_message(Phase::Query, &message).report()
        };
        let named = report(
            "PL/pgSQL-Funktion quoting.refuse(text) Zeile 3 bei RAISE\nSQL-Anweisung »SELECT 'a@b.example'«\nPL/pgSQL-Funktion quoting.outer() Zeile 1",
        );
        assert!(named.contains("SQLSTATE P0001, in the function quoting.refuse."), "{named}");
        assert!(!named.contains("a@b.example"), "{named}");
        for quoted in [
            "PL/pgSQL function \"Refuse\"() line 3 at RAISE\nPL/pgSQL function outer() line 1 at PERFORM",
            "SQL statement \"SELECT 'a@b.example' AS PL/pgSQL(\"\nPL/pgSQL function outer() line 1 at PERFORM",
        ] {
            let report = report(quoted);
            assert!(!report.contains("in the function") && !report.contains("a@b.example"), "{report}");
        }
    }

    #[test]
    fn the_values_of_a_row_are_not_passed_on() {
        let mut message = refusal("23505", "duplicate key value violates unique constraint \"t_pkey\"");
        message.detail = Some("Key (email)=(a@b.example) already exists.".into());
        message.constraint = Some("t_pkey".into());
        let report = map_server_message(Phase::Query, &message).report();
        assert!(!report.contains("a@b.example"), "{report}");
        assert!(report.contains("t_pkey"), "{report}");
    }
}
