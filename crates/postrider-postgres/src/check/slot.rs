//! The replication slot.

use postrider_core::error::{ErrorKind, Result};
use tokio_postgres::Row;

use super::{Finding, Severity, Subject, field};
use crate::client::{Connection, Parameters};
use crate::objects::SourceObjects;
use crate::quote::drop_slot_statement;

pub(super) async fn check(connection: &Connection, objects: &SourceObjects) -> Result<Vec<Finding>> {
    // That a publication is younger than the slot's position shows nowhere here: `catalog_xmin` lags behind whatever runs elsewhere
    // on the server. The stream itself says it.
    let text = "SELECT s.slot_type = 'logical' AND s.plugin = 'pgoutput', s.database = current_database(), \
           coalesce(s.two_phase, false), coalesce(s.wal_status, 'lost'), s.active, s.temporary, \
           current_setting('server_version_num')::int8 \
         FROM pg_replication_slots AS s WHERE s.slot_name = $1";
    let names: Parameters = vec![Box::new(objects.slot.clone())];
    let rows = connection.query(&text.into(), &names).await?;
    let name = &objects.slot;
    let Some(row) = rows.first() else {
        return Ok(vec![Finding::new(
            Severity::Error,
            ErrorKind::SlotMissing,
            Subject::Slot,
            format!("There is no replication slot \"{name}\"."),
            "`postrider setup` creates it.",
        )]);
    };
    let mut findings = Vec::new();
    for judged in [origin(row, name)?, preparation(row, objects)?, health(row, name)?, company(row, name)?] {
        findings.extend(
            judged.map(|(severity, kind, sentence, hint)| Finding::new(severity, kind, Subject::Slot, sentence, hint)),
        );
    }
    Ok(findings)
}

type Judged = Option<(Severity, ErrorKind, String, String)>;

fn origin(row: &Row, name: &str) -> Result<Judged> {
    let judged = |sentence| {
        let hint =
            format!("Choose another slot name, or drop the slot if nobody needs it: {}", drop_slot_statement(name));
        Some((Severity::Error, ErrorKind::SlotForeign, sentence, hint))
    };
    Ok(if !field::<bool>(row, 0)? {
        judged(format!("The slot \"{name}\" is no logical slot of pgoutput."))
    } else if !field::<Option<bool>>(row, 1)?.unwrap_or(false) {
        judged(format!("The slot \"{name}\" belongs to another database."))
    } else if field::<bool>(row, 5)? {
        judged(format!("The slot \"{name}\" is a temporary one of another session."))
    } else {
        None
    })
}

/// Prepared transactions are read as the slot sends them; a surprise is said.
fn preparation(row: &Row, objects: &SourceObjects) -> Result<Judged> {
    let SourceObjects { slot: name, two_phase: wanted, .. } = objects;
    let (marked, version) = (field::<bool>(row, 2)?, field::<i64>(row, 6)?);
    Ok(match (wanted, marked) {
        (true, _) if version < 150_000 => Some((
            Severity::Error,
            ErrorKind::Configuration,
            "The server cannot send prepared transactions before their verdict, as source.two_phase asks.".to_owned(),
            "That takes PostgreSQL 15. Without the key a prepared transaction is delivered at its COMMIT PREPARED, like any other.".to_owned(),
        )),
        (true, false) => Some((
            Severity::Note,
            ErrorKind::SlotForeign,
            format!("The slot \"{name}\" is not marked for two-phase commit yet; the next start marks it for good."),
            "Take source.two_phase out if that is not wanted.".to_owned(),
        )),
        (false, true) => Some((
            Severity::Note,
            ErrorKind::SlotForeign,
            format!(
                "The slot \"{name}\" is marked for two-phase commit: prepared transactions are kept until their verdict."
            ),
            format!(
                "That stays with the slot. Set source.two_phase to say that it is meant; to end it, drop the slot: {}",
                drop_slot_statement(name)
            ),
        )),
        _ => None,
    })
}

fn health(row: &Row, name: &str) -> Result<Judged> {
    Ok(match field::<&str>(row, 3)? {
        "lost" => Some((
            Severity::Error,
            ErrorKind::SlotLost,
            format!("The slot \"{name}\" is lost: the server has removed the log it needs."),
            format!(
                "{} Then run `postrider setup`; what was written between is not in the log any more.",
                drop_slot_statement(name)
            ),
        )),
        "unreserved" => Some((
            Severity::Warning,
            ErrorKind::SlotLost,
            format!("The slot \"{name}\" is about to be lost: it is past max_slot_wal_keep_size."),
            "Start Postrider at once, or raise max_slot_wal_keep_size and reload.".to_owned(),
        )),
        _ => None,
    })
}

fn company(row: &Row, name: &str) -> Result<Judged> {
    Ok(field::<bool>(row, 4)?.then(|| {
        let sentence = format!("A session reads from the slot \"{name}\" now.");
        (Severity::Note, ErrorKind::SlotInUse, sentence, "Only one process can read from a slot at a time.".to_owned())
    }))
}
