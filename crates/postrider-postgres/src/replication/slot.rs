//! Creates and drops replication slots.

use std::time::Duration;

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::position::Lsn;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::errors::{Phase, name_slot, protocol_violation};
use crate::options::ConnectOptions;
use crate::quote::quote_identifier;
use crate::wire::{TextRow, Wire};

/// After so long a creation that still waits is looked into.
const LOOK_AFTER: Duration = Duration::from_secs(2);

/// The transaction whose end a new slot waits for: the oldest that has written, who runs it, and the statement that ends it.
const OLDEST_WRITER: &str = "
    SELECT xid::text, who, cure
    FROM (SELECT backend_xid AS xid, 'process ' || pid || ', \"' || coalesce(application_name, '') || '\"' AS who,
                 'SELECT pg_terminate_backend(' || pid || ');' AS cure
          FROM pg_stat_activity WHERE backend_xid IS NOT NULL
          UNION ALL
          SELECT transaction, 'prepared as \"' || gid || '\" in database \"' || database || '\"',
                 'ROLLBACK PREPARED ' || quote_literal(gid) || ';'
          FROM pg_prepared_xacts) AS writers
    WHERE NOT pg_is_in_recovery()
    ORDER BY age(xid) DESC LIMIT 1";

/// What brings a standby the record of running transactions that a slot begins with; an idle primary writes none by itself.
const LOG_SNAPSHOT: &str = "On the primary, as a superuser: SELECT pg_log_standby_snapshot();";

/// For so long a temporary slot may wait for old transactions before the connection is made anew; each try says whom it waits for.
const TEMPORARY_PATIENCE: Duration = Duration::from_secs(600);

/// How long a slot is there.
#[derive(Debug, Clone, Copy)]
enum Life {
    Lasting,
    /// As long as its connection.
    Temporary,
}

/// A slot that was just made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedSlot {
    /// The stream starts with the first transaction that commits after this.
    pub consistent_point: Lsn,
}

/// Whom a new slot waits for.
struct Writer {
    who: String,
    /// The statement that ends its transaction, or the waiting.
    cure: Option<String>,
    /// The server is a standby: what its primary has logged decides.
    is_elsewhere: bool,
}

/// Creates a logical slot for pgoutput. The server first waits for every transaction that has already written
/// something; after a while of that
/// it is logged which one that is.
///
/// # Errors
/// `SlotForeign` where the name is taken, `WalLevel`, `Transient` with the transaction that was waited for when
/// `patience` is over: the
/// creation is then cancelled; and what connecting leads to.
pub async fn create_slot(options: &ConnectOptions, slot: &str, patience: Duration) -> Result<CreatedSlot> {
    let mut wire = Wire::connect(options).await?;
    let command = create_command(slot, Life::Lasting, server_version(&mut wire).await?);
    let created = create(&mut wire, options, (slot, &command), patience).await?;
    wire.close().await;
    Ok(created)
}

/// Creates a slot that goes with the connection, on which it is then read; otherwise as [`create_slot`].
pub(crate) async fn create_temporary_slot(
    wire: &mut Wire,
    options: &ConnectOptions,
    slot: &str,
) -> Result<CreatedSlot> {
    let command = create_command(slot, Life::Temporary, server_version(wire).await?);
    create(wire, options, (slot, &command), TEMPORARY_PATIENCE).await
}

async fn create(
    wire: &mut Wire,
    options: &ConnectOptions,
    (slot, command): (&str, &str),
    patience: Duration,
) -> Result<CreatedSlot> {
    let began = Instant::now();
    let process_id = wire.process_id;
    let named = |refusal| name_slot(refusal, slot);
    let rows = {
        let creation = wire.query_unbounded(Phase::CreateSlot, command);
        tokio::pin!(creation);
        let look_at = began + LOOK_AFTER.min(patience);
        tokio::select! {
            outcome = &mut creation => outcome.map_err(named)?,
            () = sleep_until(look_at) => {
                let Writer { who, cure, is_elsewhere } = oldest_writer(options).await?;
                let cure = cure.filter(|_| is_elsewhere).unwrap_or_default();
                tracing::warn!("the new replication slot is waiting for {who}. {cure}");
                match timeout_at(began + patience, &mut creation).await {
                    Ok(outcome) => outcome.map_err(named)?,
                    Err(_elapsed) => return Err(give_up(options, process_id, patience).await),
                }
            }
        }
    };
    // slot_name, consistent_point, snapshot_name, output_plugin
    let consistent_point = rows.into_iter().next().and_then(|row| row.into_iter().nth(1).flatten());
    consistent_point
        .and_then(|text| text.parse().ok())
        .map(|consistent_point| CreatedSlot { consistent_point })
        .ok_or_else(|| protocol_violation("The answer to CREATE_REPLICATION_SLOT has no consistent point."))
}

/// Drops a slot; what it kept of the log is gone with it.
///
/// # Errors
/// `SlotMissing`, `SlotInUse`, and what connecting leads to.
pub async fn drop_slot(options: &ConnectOptions, slot: &str) -> Result<()> {
    let mut wire = Wire::connect(options).await?;
    let dropped = wire.query(Phase::DropSlot, &format!("DROP_REPLICATION_SLOT {}", quote_identifier(slot))).await;
    dropped.map_err(|refusal| name_slot(refusal, slot))?;
    wire.close().await;
    Ok(())
}

/// `server_version_num`, 150018 for example.
pub(crate) async fn server_version(wire: &mut Wire) -> Result<u32> {
    let rows = wire.query(Phase::Query, "SHOW server_version_num").await?;
    first_text(rows)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| protocol_violation("The server names no version."))
}

fn create_command(slot: &str, life: Life, server_version: u32) -> String {
    let temporary = match life {
        Life::Lasting => "",
        Life::Temporary => "TEMPORARY ",
    };
    // Version 15 has a list of options; 14 knows only words.
    let no_snapshot = if server_version >= 150_000 { "(SNAPSHOT 'nothing')" } else { "NOEXPORT_SNAPSHOT" };
    format!("CREATE_REPLICATION_SLOT {} {temporary}LOGICAL pgoutput {no_snapshot}", quote_identifier(slot))
}

/// The server would finish the creation even if we left, so that it must be told to stop.
async fn give_up(options: &ConnectOptions, process_id: i32, patience: Duration) -> Error {
    let writer = match cancel_creation(options, process_id).await {
        Ok(writer) => writer,
        Err(error) => return error,
    };
    Error::new(ErrorKind::Transient, "a new replication slot must wait for a transaction that does not end")
        .with_detail(format!("The server is waiting for {}; {} s passed.", writer.who, patience.as_secs()))
        .with_hint(match writer.cure {
            Some(cure) if writer.is_elsewhere => format!("{cure} Say it while the slot is created again."),
            Some(cure) => format!("End that transaction, then try again: {cure}"),
            None => "Try again.".to_owned(),
        })
}

async fn cancel_creation(options: &ConnectOptions, process_id: i32) -> Result<Writer> {
    let writer = oldest_writer(options).await?;
    let mut wire = Wire::connect(options).await?;
    wire.query(Phase::Query, &format!("SELECT pg_cancel_backend({process_id})")).await?;
    wire.close().await;
    Ok(writer)
}

async fn oldest_writer(options: &ConnectOptions) -> Result<Writer> {
    let mut wire = Wire::connect(options).await?;
    let recovery = first_text(wire.query(Phase::Query, "SELECT pg_is_in_recovery()").await?);
    let rows = wire.query(Phase::Query, OLDEST_WRITER).await?;
    wire.close().await;
    if recovery.as_deref() == Some("t") {
        let who = "the primary to log which transactions are running".to_owned();
        return Ok(Writer { who, cure: Some(LOG_SNAPSHOT.to_owned()), is_elsewhere: true });
    }
    let mut columns = rows.into_iter().next().unwrap_or_default().into_iter();
    let mut next = || columns.next().flatten();
    let (xid, who, cure) = (next(), next(), next());
    let who = match (xid, who) {
        (Some(xid), Some(who)) => format!("transaction {xid} ({who})"),
        (Some(xid), None) => format!("transaction {xid}"),
        (None, _) => "running transactions to be logged".to_owned(),
    };
    Ok(Writer { who, cure, is_elsewhere: false })
}

fn first_text(rows: Vec<TextRow>) -> Option<String> {
    rows.into_iter().next()?.into_iter().next()?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_gets_its_own_syntax() {
        for (life, version, command) in [
            (Life::Lasting, 140_023, r#"CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput NOEXPORT_SNAPSHOT"#),
            (Life::Lasting, 150_018, r#"CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput (SNAPSHOT 'nothing')"#),
            (Life::Temporary, 140_023, r#"CREATE_REPLICATION_SLOT "s" TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT"#),
            (
                Life::Temporary,
                180_006,
                r#"CREATE_REPLICATION_SLOT "s" TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing')"#,
            ),
        ] {
            assert_eq!(create_command("s", life, version), command);
        }
    }
}
