//! The replication slot.

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::position::Lsn;

use super::{Finding, Severity, Subject, field, younger};
use crate::client::{Connection, Parameters};
use crate::objects::SourceObjects;
use crate::options::ConnectOptions;
use crate::quote::drop_slot_statement;
use crate::slot_state::{Place, SLOT_QUERY, Slot, judge, refusal};

pub(super) async fn check(
    connection: &Connection,
    options: &ConnectOptions,
    objects: &SourceObjects,
) -> Result<Vec<Finding>> {
    let slot = find_slot(connection, &objects.slot).await?;
    let rows = connection
        .query(
            &"SELECT current_database()::text, current_setting('server_version_num')::int8, \
               (SELECT current_setting(name) FROM pg_settings WHERE name = 'idle_replication_slot_timeout' AND setting <> '0')".into(),
            &Parameters::new(),
        )
        .await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let (database, version): (String, i64) = (field(row, 0)?, field(row, 1)?);
    // Where it stands against the journal is the stream's own check to say.
    let place = Place { slot: &objects.slot, database: &database, durable_end: Lsn::ZERO, after_peer: false };
    let mut findings: Vec<Finding> = refusal(&judge(slot.as_ref(), place), place).iter().map(refused).collect();
    let Some(slot) = slot else { return Ok(findings) };
    if findings.is_empty() {
        findings.extend(younger::check(connection, options, (objects, &slot)).await?);
    }
    findings.extend(preparation(&slot, objects, version));
    let name = &objects.slot;
    let mut find = |severity, kind, sentence: String, hint: &str| {
        findings.push(Finding::new(severity, kind, Subject::Slot, sentence, hint));
    };
    if let Some(limit) = field::<Option<String>>(row, 2)? {
        find(
            Severity::Warning,
            ErrorKind::SlotLost,
            format!(
                "The server drops a slot that nobody reads from for {limit} (idle_replication_slot_timeout): \"{name}\" would be lost where Postrider is away for so long, or its journal is full and waits for a required sink."
            ),
            "Set it to more than the longest outage that is to be survived, or to 0, and reload.",
        );
    }
    if slot.is_in_danger() {
        find(
            Severity::Warning,
            ErrorKind::SlotLost,
            format!("The slot \"{name}\" is about to be lost: it is past max_slot_wal_keep_size."),
            "Start Postrider at once, or raise max_slot_wal_keep_size and reload.",
        );
    }
    if let Some(holder) = &slot.holder {
        find(
            Severity::Note,
            ErrorKind::SlotInUse,
            format!("A session reads from the slot \"{name}\" now: {holder}."),
            "Only one process can read from a slot at a time; another one waits for it and takes over.",
        );
    }
    Ok(findings)
}

/// Prepared transactions are read as the slot sends them; a surprise is said.
fn preparation(slot: &Slot, objects: &SourceObjects, version: i64) -> Option<Finding> {
    let SourceObjects { slot: name, two_phase: wanted, .. } = objects;
    let (severity, kind, sentence, hint) = match (wanted, slot.two_phase) {
        (true, _) if version < 150_000 => (
            Severity::Error,
            ErrorKind::Configuration,
            "The server cannot send prepared transactions before their verdict, as source.two_phase asks.".to_owned(),
            "That takes PostgreSQL 15. Without the key a prepared transaction is delivered at its COMMIT PREPARED, like any other.".to_owned(),
        ),
        (true, false) => (
            Severity::Note,
            ErrorKind::SlotForeign,
            format!("The slot \"{name}\" is not marked for two-phase commit yet; the next start marks it for good."),
            "Take source.two_phase out if that is not wanted.".to_owned(),
        ),
        (false, true) => (
            Severity::Note,
            ErrorKind::SlotForeign,
            format!(
                "The slot \"{name}\" is marked for two-phase commit: prepared transactions are kept until their verdict."
            ),
            format!(
                "That stays with the slot. Set source.two_phase to say that it is meant; to end it, drop the slot: {}",
                drop_slot_statement(name)
            ),
        ),
        _ => return None,
    };
    Some(Finding::new(severity, kind, Subject::Slot, sentence, hint))
}

/// The slot as the catalogue has it.
pub(crate) async fn find_slot(connection: &Connection, name: &str) -> Result<Option<Slot>> {
    let rows = connection.query(&SLOT_QUERY.into(), &vec![Box::new(name.to_owned()) as _]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let texts: Vec<Option<String>> = (0..row.len()).map(|column| field(row, column)).collect::<Result<_>>()?;
    let mut texts = texts.into_iter();
    Slot::from_row(|| texts.next().flatten())
        .map(Some)
        .ok_or_else(|| Error::new(ErrorKind::Protocol, "cannot read the server's catalogue"))
}

fn refused(error: &Error) -> Finding {
    let sentence = error.detail().unwrap_or_else(|| error.message());
    Finding::new(Severity::Error, error.kind(), Subject::Slot, sentence, error.hint().unwrap_or_default())
}
