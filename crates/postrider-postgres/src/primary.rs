//! The few things that the primary is asked while everything is idle.

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::members::Presence;
use postrider_core::ports::{BoxFuture, Primary, SlotHealth};
use postrider_core::position::Lsn;
use postrider_core::route::WorkMapping;
use postrider_core::snapshot::Snapshot;
use tokio_postgres::Row;

use crate::client::{Parameters, Session};
use crate::errors::{Phase, map_client_error};
use crate::options::ConnectOptions;

/// The prefix of the logical messages that tell an idle log from a stalled one.
pub const HEARTBEAT_PREFIX: &str = "postrider.heartbeat";

/// The commit of a heartbeat is flushed when its statement returns, whatever the role's own setting is.
const PREAMBLE: &str = "SET synchronous_commit = local; SET default_transaction_isolation = 'read committed'; \
     SET default_transaction_read_only = off; SET statement_timeout = '30s'; SET lock_timeout = '5s'";

/// On a standby nothing can be written: what it has replayed must come through instead.
const EMIT: &str = "SELECT CASE WHEN NOT pg_is_in_recovery() \
     THEN pg_logical_emit_message(true, $1::text, $2::text)::text END";
/// In one transaction; whoever executes stages has a primary.
const EMIT_BOTH: &str = "SELECT pg_logical_emit_message(true, $1::text, $2::text)::text, \
     pg_logical_emit_message(true, $3::text, $4::text)::text";
const FLUSHED: &str = "SELECT CASE WHEN pg_is_in_recovery() \
     THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END::text";

/// The primary behind its port: one session, connected at the first question and replaced at the next one once it broke.
#[derive(Debug)]
pub struct PgPrimary {
    session: Session,
    slot: String,
    /// The prefix under which our executor says that it is there.
    presences: Option<String>,
    /// The slot goes with its connection, and comes with the next.
    temporary: bool,
}

impl PgPrimary {
    /// The primary at an address, and the slot whose health is asked for. Does not connect yet.
    pub fn new(options: ConnectOptions, slot: &str) -> PgPrimary {
        PgPrimary { session: Session::new(options, PREAMBLE), slot: slot.to_owned(), presences: None, temporary: false }
    }

    /// Our executor works on the rows of this table, and says so to the others.
    #[must_use]
    pub fn of_work(self, work: &WorkMapping) -> PgPrimary {
        PgPrimary { presences: Some(work.presence_prefix()), ..self }
    }

    /// The slot is a temporary one: where it is missing, the server keeps nothing for it.
    #[must_use]
    pub fn temporary(self, temporary: bool) -> PgPrimary {
        PgPrimary { temporary, ..self }
    }

    /// `pg_logical_emit_message` returns where the message ends, and its transaction's commit record comes after that: a stream that
    /// has passed the former need not have shown the message. What is flushed once the commit has returned is at or behind the end of
    /// the commit, and the stream comes that far by itself even if nothing else is ever written.
    async fn emit(&self, presence: Option<Presence>) -> Result<Lsn> {
        let connection = self.session.connection().await?;
        let mut messages: Parameters = vec![Box::new(HEARTBEAT_PREFIX), Box::new(self.slot.clone())];
        let emit = match presence.zip(self.presences.as_ref()) {
            None => EMIT,
            Some((presence, prefix)) => {
                messages.extend([Box::new(prefix.clone()) as _, Box::new(presence.content()) as _]);
                EMIT_BOTH
            }
        };
        connection.query(&emit.into(), &messages).await?;
        let rows = connection.query(&FLUSHED.into(), &Parameters::new()).await?;
        lsn(rows.first(), 0)
    }

    async fn visible(&self) -> Result<Snapshot> {
        let connection = self.session.connection().await?;
        let rows = connection.query(&"SELECT pg_current_snapshot()::text".into(), &Parameters::new()).await?;
        let text: Option<&str> = rows.first().and_then(|row| row.try_get(0).ok());
        text.and_then(Snapshot::parse)
            .ok_or_else(|| Error::new(ErrorKind::Protocol, "cannot read a snapshot of the server"))
    }

    async fn health(&self) -> Result<SlotHealth> {
        let connection = self.session.connection().await?;
        // A lost slot has no restart position any more, and keeps nothing.
        let text = "SELECT active, coalesce(confirmed_flush_lsn, '0/0')::text, \
               coalesce(greatest(pg_wal_lsn_diff( \
                 CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn), 0), 0)::int8, \
               safe_wal_size, coalesce(wal_status, 'lost') \
             FROM pg_replication_slots WHERE slot_name = $1";
        let rows = connection.query(&text.into(), &vec![Box::new(self.slot.clone())]).await?;
        if rows.is_empty() && self.temporary {
            return Ok(SlotHealth {
                active: false,
                confirmed: Lsn::ZERO,
                retained_bytes: 0,
                safe_bytes: None,
                wal_status: "reserved".to_owned(),
            });
        }
        let row = rows.first().ok_or_else(|| {
            Error::new(ErrorKind::SlotMissing, "the replication slot does not exist")
                .with_detail(format!("There is no slot \"{}\".", self.slot))
                .with_hint("`postrider setup` creates it.")
        })?;
        let unreadable = |error| map_client_error(Phase::Query, error);
        let retained: i64 = row.try_get(2).map_err(unreadable)?;
        let safe: Option<i64> = row.try_get(3).map_err(unreadable)?;
        Ok(SlotHealth {
            active: row.try_get(0).map_err(unreadable)?,
            confirmed: lsn(Some(row), 1)?,
            retained_bytes: u64::try_from(retained).unwrap_or_default(),
            // Below zero the limit is passed already: nothing is safe.
            safe_bytes: safe.map(|bytes| u64::try_from(bytes).unwrap_or_default()),
            wal_status: row.try_get(4).map_err(unreadable)?,
        })
    }
}

impl Primary for PgPrimary {
    fn beat(&self, presence: Option<Presence>) -> BoxFuture<'_, Result<Lsn>> {
        Box::pin(self.emit(presence))
    }

    fn slot(&self) -> BoxFuture<'_, Result<SlotHealth>> {
        Box::pin(self.health())
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot>> {
        Box::pin(self.visible())
    }
}

fn lsn(row: Option<&Row>, column: usize) -> Result<Lsn> {
    let text: Option<&str> = row.and_then(|row| row.try_get(column).ok());
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| Error::new(ErrorKind::Protocol, "cannot read a log position of the server"))
}
