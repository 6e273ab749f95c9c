//! Checks what the server would say too late, or not at all: a missing publication shows only at the first change, a
//! slot that is ahead of
//! the journal never.

use std::collections::VecDeque;
use std::time::Duration;

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::position::Lsn;

use crate::errors::{Phase, protocol_violation};
use crate::options::ConnectOptions;
use crate::quote::{drop_slot_statement, quote_literal};
use crate::wire::{TextRow, Wire};

/// The oldest server whose pgoutput sends logical messages.
const SERVER_VERSION_MIN: u32 = 140_000;
/// The first version that decodes on demand, whatever `wal_level` is at the start.
const SERVER_VERSION_ON_DEMAND: u32 = 190_000;

/// What the checks found out on their way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cleared {
    /// Zero where the server has none.
    pub(crate) wal_sender_timeout: Duration,
    /// `server_version_num`, 150018 for example.
    pub(crate) server_version: u32,
    /// The slot sends prepared transactions before their verdict, for good.
    pub(crate) two_phase: bool,
}

/// The server as it is now.
struct Server {
    version: u32,
    in_recovery: bool,
    wal_level: String,
    wal_sender_timeout: Duration,
    /// The end of what it has of its log on disk.
    flushed: Lsn,
    database: String,
    has_publication: bool,
}

/// The slot as `pg_replication_slots` shows it.
struct Slot {
    name: String,
    plugin: Option<String>,
    kind: String,
    database: Option<String>,
    temporary: bool,
    two_phase: bool,
    wal_status: Option<String>,
    /// Why it was invalidated; from version 17 on.
    invalidation_reason: Option<String>,
    confirmed: Option<Lsn>,
}

/// Checks the server, the slot and the publication, on a connection that is to become the stream.
///
/// # Errors
/// `WalLevel`, `SlotMissing`, `SlotForeign`, `SlotLost`, `PublicationMissing`, `Configuration` (an old server, a
/// standby), each with what to do.
pub(crate) async fn check(
    wire: &mut Wire,
    options: &ConnectOptions,
    slot: &str,
    publication: &str,
    durable_end: Lsn,
) -> Result<Cleared> {
    let server = ask_server(wire, publication).await?;
    check_server(&server, options, durable_end)?;
    let found = ask_slot(wire, slot).await?.ok_or_else(|| missing_slot(slot, &server.database))?;
    check_slot(&found, &server.database)?;
    check_position(&found, durable_end)?;
    if !server.has_publication {
        return Err(Error::new(ErrorKind::PublicationMissing, "the publication does not exist")
            .with_detail(format!("It is \"{publication}\" in database \"{}\".", server.database))
            .with_hint(format!("If the slot is new, `postrider setup` makes the publication; it must be older than the slot, so drop the slot first: {}", drop_slot_statement(slot))));
    }
    let Server { wal_sender_timeout, version: server_version, .. } = server;
    Ok(Cleared { wal_sender_timeout, server_version, two_phase: found.two_phase })
}

/// Who reads from the slot now: process and application.
pub(crate) async fn slot_holder(wire: &mut Wire, slot: &str) -> Result<Option<String>> {
    let sql = format!(
        "SELECT s.active_pid::text, a.application_name, a.client_addr::text
         FROM pg_replication_slots AS s LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid
         WHERE s.slot_name = {} AND s.active_pid IS NOT NULL",
        quote_literal(slot)
    );
    let Some(mut row) = one_row(wire, &sql).await? else { return Ok(None) };
    let mut holder = format!("process {}", row.text()?);
    for (label, text) in [("application", row.take()), ("from", row.take())] {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            holder.push_str(&format!(", {label} \"{text}\""));
        }
    }
    Ok(Some(holder))
}

async fn ask_server(wire: &mut Wire, publication: &str) -> Result<Server> {
    let sql = format!(
        "SELECT current_setting('server_version_num'), pg_is_in_recovery(), current_setting('wal_level'),
                (SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'),
                CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END,
                current_database(), EXISTS (SELECT FROM pg_publication WHERE pubname = {})",
        quote_literal(publication)
    );
    let mut row = one_row(wire, &sql).await?.ok_or_else(no_answer)?;
    Ok(Server {
        version: row.parsed()?,
        in_recovery: row.truth()?,
        wal_level: row.text()?,
        wal_sender_timeout: Duration::from_millis(row.parsed()?),
        flushed: row.parsed()?,
        database: row.text()?,
        has_publication: row.truth()?,
    })
}

async fn ask_slot(wire: &mut Wire, slot: &str) -> Result<Option<Slot>> {
    let sql = format!(
        "SELECT slot_name, plugin, slot_type, database, temporary, two_phase, wal_status,
                to_jsonb(s) ->> 'invalidation_reason', confirmed_flush_lsn
         FROM pg_replication_slots AS s WHERE slot_name = {}",
        quote_literal(slot)
    );
    let Some(mut row) = one_row(wire, &sql).await? else { return Ok(None) };
    Ok(Some(Slot {
        name: row.text()?,
        plugin: row.take(),
        kind: row.text()?,
        database: row.take(),
        temporary: row.truth()?,
        two_phase: row.truth()?,
        wal_status: row.take(),
        invalidation_reason: row.take(),
        confirmed: row.take().map(|text| text.parse().map_err(|_| no_answer())).transpose()?,
    }))
}

fn check_server(server: &Server, options: &ConnectOptions, durable_end: Lsn) -> Result<()> {
    if server.version < SERVER_VERSION_MIN {
        return Err(Error::new(ErrorKind::Configuration, "the server is too old")
            .with_detail(format!("Its version is {}.", server.version / 10_000))
            .with_hint("Postrider reads from PostgreSQL 14 and later."));
    }
    if server.in_recovery {
        return Err(Error::new(ErrorKind::Configuration, "the server is a standby")
            .with_detail("It is in recovery, and this version reads the log of a primary only.")
            .with_hint(options.primary_hint()));
    }
    if server.wal_level != "logical" && server.version < SERVER_VERSION_ON_DEMAND {
        return Err(Error::new(ErrorKind::WalLevel, "the server does not write a logical log")
            .with_detail(format!("Its wal_level is \"{}\".", server.wal_level))
            .with_hint("As a superuser: ALTER SYSTEM SET wal_level = 'logical'; and restart the server."));
    }
    if server.flushed < durable_end {
        return Err(Error::new(ErrorKind::SlotForeign, "the server's log ends before our journal does")
            .with_detail(format!("The server's log ends at {}, our journal at {durable_end}.", server.flushed))
            .with_hint("Was it restored from a backup, or is it another server? Then move the journal's directory aside and start with an empty one."));
    }
    Ok(())
}

fn check_slot(slot: &Slot, database: &str) -> Result<()> {
    let name = &slot.name;
    if slot.kind != "logical" || slot.plugin.as_deref() != Some("pgoutput") {
        let kind =
            slot.plugin.as_deref().map_or("a physical one".to_owned(), |plugin| format!("one for plugin \"{plugin}\""));
        return Err(foreign("the replication slot is not one for pgoutput", format!("The slot \"{name}\" is {kind}.")));
    }
    if slot.database.as_deref() != Some(database) {
        let other = slot.database.as_deref().unwrap_or("");
        let detail = format!("The slot \"{name}\" is in database \"{other}\", we are in \"{database}\".");
        return Err(foreign("the replication slot belongs to another database", detail));
    }
    if slot.wal_status.as_deref() == Some("lost") {
        let reason = slot.invalidation_reason.as_deref().unwrap_or("the log that it needs was removed");
        return Err(Error::new(ErrorKind::SlotLost, "the replication slot is lost")
            .with_detail(format!("The slot \"{name}\" was invalidated: {reason}."))
            .with_hint(format!("What was not yet read is gone from the log. {} Then run `postrider setup`, and give max_slot_wal_keep_size more room.", drop_slot_statement(name))));
    }
    if slot.temporary {
        return Err(foreign(
            "the replication slot is another session's temporary one",
            format!("The slot is \"{name}\"."),
        ));
    }
    Ok(())
}

/// Whoever moved the slot past our journal took what lies between.
fn check_position(slot: &Slot, durable_end: Lsn) -> Result<()> {
    match slot.confirmed {
        Some(confirmed) if durable_end > Lsn::ZERO && confirmed > durable_end => {
            Err(Error::new(ErrorKind::SlotForeign, "the replication slot is ahead of our journal")
                .with_detail(format!(
                    "The slot \"{}\" is confirmed up to {confirmed}, our journal ends at {durable_end}: somebody else read from the slot, or it was made anew.",
                    slot.name
                ))
                .with_hint("What lies between cannot be read any more. Find out who moved the slot; to go on without it, move the journal's directory aside and start with an empty one."))
        }
        _ => Ok(()),
    }
}

fn missing_slot(slot: &str, database: &str) -> Error {
    Error::new(ErrorKind::SlotMissing, "the replication slot does not exist")
        .with_detail(format!("It is \"{slot}\"; the database is \"{database}\"."))
        .with_hint("`postrider setup` creates it. If there was one, what it had not yet sent is lost.")
}

fn foreign(message: &str, detail: String) -> Error {
    Error::new(ErrorKind::SlotForeign, message)
        .with_detail(detail)
        .with_hint("Choose another slot name; `postrider setup` creates the slot.")
}

/// The columns of one row, taken from the front.
struct Columns(VecDeque<Option<String>>);

impl Columns {
    fn take(&mut self) -> Option<String> {
        self.0.pop_front().flatten()
    }

    fn text(&mut self) -> Result<String> {
        self.take().ok_or_else(no_answer)
    }

    fn parsed<T: std::str::FromStr>(&mut self) -> Result<T> {
        self.text()?.parse().map_err(|_| no_answer())
    }

    fn truth(&mut self) -> Result<bool> {
        Ok(self.text()? == "t")
    }
}

async fn one_row(wire: &mut Wire, sql: &str) -> Result<Option<Columns>> {
    let rows: Vec<TextRow> = wire.query(Phase::Query, sql).await?;
    Ok(rows.into_iter().next().map(|row| Columns(row.into())))
}

fn no_answer() -> Error {
    protocol_violation("A catalogue query has not the columns that were asked for.")
}
