//! Checks what the server would say too late, or not at all: a missing publication shows only at the first change, a
//! slot that is ahead of
//! the journal never.

use std::collections::VecDeque;
use std::time::Duration;

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::Outcomes;
use postrider_core::position::Lsn;
use postrider_core::snapshot::Snapshot;

use crate::errors::{Phase, protocol_violation};
use crate::options::ConnectOptions;
use crate::quote::{drop_slot_statement, quote_literal};
use crate::slot_state::{Place, SLOT_QUERY, Slot, SlotState, judge, refusal};
use crate::wire::{TextRow, Wire};

/// The oldest server whose pgoutput sends logical messages.
const SERVER_VERSION_MIN: u32 = 140_000;
/// The first version whose standbys decode.
const STANDBY_MAJOR: u32 = 16;
/// The first version that decodes on demand, whatever `wal_level` is at the start.
const SERVER_VERSION_ON_DEMAND: u32 = 190_000;

/// What is to be read, and by whom.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) options: &'a ConnectOptions,
    pub(crate) slot: &'a str,
    pub(crate) publications: &'a [String],
    /// A standby will do.
    pub(crate) standby: bool,
    /// The end of our journal.
    pub(crate) durable_end: Lsn,
    /// One of us read from the slot until now.
    pub(crate) after_peer: bool,
}

/// What the checks found out on their way.
#[derive(Debug, Clone)]
pub(crate) struct Cleared {
    /// Zero where the server has none.
    pub(crate) wal_sender_timeout: Duration,
    /// `server_version_num`, 150018 for example.
    pub(crate) server_version: u32,
    /// The slot sends prepared transactions before their verdict, for good.
    pub(crate) two_phase: bool,
    /// What the slot is confirmed up to: never less may be said.
    pub(crate) confirmed: Lsn,
    /// The server is a standby.
    pub(crate) in_recovery: bool,
    pub(crate) outcomes: Option<Outcomes>,
}

/// The server as it is now.
pub(crate) struct Server {
    version: u32,
    pub(crate) in_recovery: bool,
    wal_level: String,
    wal_sender_timeout: Duration,
    /// The end of what it has of its log on disk.
    pub(crate) flushed: Lsn,
    database: String,
    /// What a session that looks then can see.
    snapshot: Snapshot,
    /// The first of the publications that is not there.
    missing_publication: Option<String>,
}

/// Checks the server, the slot and the publication, on a connection that is to become the stream.
///
/// # Errors
/// `WalLevel`, `SlotMissing`, `SlotInUse`, `SlotForeign`, `SlotLost`, `PublicationMissing`, `Configuration` (an old server, a
/// standby), each with what to do.
pub(crate) async fn check(wire: &mut Wire, wanted: &Wanted<'_>) -> Result<Cleared> {
    let Wanted { slot, publications, durable_end, after_peer, .. } = *wanted;
    let server = ask_server(wire, publications).await?;
    judge_server(&server, wanted)?;
    let found = ask_slot(wire, slot).await?;
    let place = Place { slot, database: &server.database, durable_end, after_peer };
    let state = judge(found.as_ref(), place);
    // Whoever reads from it now moves it: whether that is one of us is told by its name, once it is waited for.
    let held = found.as_ref().is_some_and(|slot| slot.holder.is_some());
    if held && !after_peer && matches!(state, SlotState::Ahead { .. }) {
        return Err(Error::new(ErrorKind::SlotInUse, "another session reads from the replication slot")
            .with_hint("It is waited for; `postrider explain PR005` says how to end it."));
    }
    if let Some(error) = refusal(&state, place) {
        return Err(error);
    }
    if let SlotState::Behind { confirmed } = state {
        tracing::info!(%confirmed, journal = %durable_end, "the slot is behind our journal: what comes again is dropped");
    }
    check_publications(&server, || {
        format!(
            "If the slot is new, `postrider setup` makes the publication; it must be older than the slot, so drop the slot first: {} For a publication that ends in \"_work\", `work.quiet = false` goes on without it.",
            drop_slot_statement(slot)
        )
    })?;
    let (confirmed, two_phase) =
        found.map_or((Lsn::ZERO, false), |slot| (slot.confirmed.unwrap_or(Lsn::ZERO), slot.two_phase));
    Ok(Cleared { two_phase, confirmed, ..server.cleared() })
}

/// Checks the server and the publications, for a slot that is yet to be made.
///
/// # Errors
/// `WalLevel`, `PublicationMissing`, `Configuration` (an old server, a standby), each with what to do.
pub(crate) async fn check_server(wire: &mut Wire, wanted: &Wanted<'_>) -> Result<Cleared> {
    let server = ask_server(wire, wanted.publications).await?;
    judge_server(&server, wanted)?;
    check_publications(&server, || "`postrider setup` makes it.".to_owned())?;
    Ok(server.cleared())
}

fn check_publications(server: &Server, hint: impl Fn() -> String) -> Result<()> {
    match &server.missing_publication {
        None => Ok(()),
        Some(publication) => Err(Error::new(ErrorKind::PublicationMissing, "the publication does not exist")
            .with_detail(format!("It is \"{publication}\" in database \"{}\".", server.database))
            .with_hint(hint())),
    }
}

impl Server {
    /// What is known of it without a slot.
    fn cleared(self) -> Cleared {
        let Server { wal_sender_timeout, version: server_version, in_recovery, snapshot, flushed, .. } = self;
        // A standby shows what it replays before it says that it has replayed it.
        let outcomes = (!in_recovery).then_some(Outcomes { snapshot, logged: flushed });
        Cleared { wal_sender_timeout, server_version, two_phase: false, confirmed: Lsn::ZERO, in_recovery, outcomes }
    }
}

/// Why a standby of this major version is no source, if it is none.
pub(crate) fn refuse_standby(options: &ConnectOptions, may_be: bool, major: u32) -> Option<Error> {
    let error = Error::new(ErrorKind::Configuration, "the server is a standby");
    if !may_be {
        let hint = format!(
            "{} Or, from PostgreSQL 16 on and without stages, say source.standby = true to read from the standby.",
            options.primary_hint()
        );
        return Some(error.with_detail("It is in recovery, and the log of a primary is asked for.").with_hint(hint));
    }
    (major < STANDBY_MAJOR).then(|| {
        error
            .with_detail(format!("It is PostgreSQL {major}, whose standbys decode no log."))
            .with_hint(format!("That takes PostgreSQL 16. {}", options.primary_hint()))
    })
}

/// The slot as the catalogue has it now, and who reads from it.
pub(crate) async fn ask_slot(wire: &mut Wire, slot: &str) -> Result<Option<Slot>> {
    let sql = SLOT_QUERY.replace("$1", &quote_literal(slot));
    let Some(mut row) = one_row(wire, &sql).await? else { return Ok(None) };
    Slot::from_row(|| row.take()).map(Some).ok_or_else(no_answer)
}

/// What the checks are about, asked at once. The statement's snapshot is taken before the end of the log is asked for, and the server
/// shows no outcome before that is on its disk.
pub(crate) async fn ask_server(wire: &mut Wire, publications: &[String]) -> Result<Server> {
    let sql = format!(
        "SELECT current_setting('server_version_num'), pg_is_in_recovery(), current_setting('wal_level'),
                (SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'),
                CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END,
                current_database(), pg_current_snapshot(),
                (SELECT name FROM unnest(ARRAY[{}]) WITH ORDINALITY AS wanted (name, ord)
                 WHERE NOT EXISTS (SELECT FROM pg_publication WHERE pubname = name) ORDER BY ord LIMIT 1)",
        publications.iter().map(|name| quote_literal(name)).collect::<Vec<_>>().join(", ")
    );
    let mut row = one_row(wire, &sql).await?.ok_or_else(no_answer)?;
    Ok(Server {
        version: row.parsed()?,
        in_recovery: row.truth()?,
        wal_level: row.text()?,
        wal_sender_timeout: Duration::from_millis(row.parsed()?),
        flushed: row.parsed()?,
        database: row.text()?,
        snapshot: Snapshot::parse(&row.text()?).ok_or_else(no_answer)?,
        missing_publication: row.take(),
    })
}

fn judge_server(server: &Server, wanted: &Wanted<'_>) -> Result<()> {
    let durable_end = wanted.durable_end;
    if server.version < SERVER_VERSION_MIN {
        return Err(Error::new(ErrorKind::Configuration, "the server is too old")
            .with_detail(format!("Its version is {}.", server.version / 10_000))
            .with_hint("Postrider reads from PostgreSQL 14 and later."));
    }
    if server.in_recovery
        && let Some(error) = refuse_standby(wanted.options, wanted.standby, server.version / 10_000)
    {
        return Err(error);
    }
    if server.wal_level != "logical" && server.version < SERVER_VERSION_ON_DEMAND {
        return Err(Error::new(ErrorKind::WalLevel, "the server does not write a logical log")
            .with_detail(format!("Its wal_level is \"{}\".", server.wal_level))
            .with_hint("As a superuser: ALTER SYSTEM SET wal_level = 'logical'; and restart the server."));
    }
    if server.flushed < durable_end && server.in_recovery {
        return Err(Error::new(ErrorKind::Transient, "the standby has not come as far as our journal yet")
            .with_detail(format!("It has replayed the log up to {}, our journal ends at {durable_end}.", server.flushed))
            .with_hint("It is waited for; look whether the standby gets the primary's log: SELECT * FROM pg_stat_wal_receiver;"));
    }
    if server.flushed < durable_end {
        return Err(Error::new(ErrorKind::SlotForeign, "the server's log ends before our journal does")
            .with_detail(format!("The server's log ends at {}, our journal at {durable_end}.", server.flushed))
            .with_hint("Was it restored from a backup, or is it another server? If it is the right one, `postrider adopt` goes on with it in a new generation."));
    }
    Ok(())
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
