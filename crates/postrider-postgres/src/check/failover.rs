//! Whether the slot outlives a promotion: what the primary says of it, and what each standby says that the address names.

use std::time::Duration;

use postrider_core::error::{Error, ErrorKind, Result};

use super::slot::find_slot;
use super::{Finding, PREAMBLE, Severity, Subject, field};
use crate::client::{Connection, Parameters};
use crate::objects::{FAILOVER_MAJOR, Failover, SourceObjects};
use crate::options::ConnectOptions;
use crate::quote::{drop_slot_statement, quote_literal};
use crate::slot_state::Slot;

/// A host that accepts no connection within this is not asked.
const REACH_TIMEOUT: Duration = Duration::from_secs(3);

/// The name of the setting that makes the stream wait for standbys.
const WAITED_FOR: &str = "synchronized_standby_slots";

/// The primary, as far as it matters to its standbys.
struct Primary {
    /// The slots that the stream waits for.
    waited_for: Vec<String>,
    /// Physical slots: standbys, or what archives the log.
    physical: Vec<Physical>,
}

struct Physical {
    name: String,
    active: bool,
    lost: bool,
}

pub(super) async fn check(
    connection: &Connection,
    options: &ConnectOptions,
    objects: &SourceObjects,
) -> Result<Vec<Finding>> {
    let text = "SELECT pg_is_in_recovery(), (current_setting('server_version_num')::int8 / 10000)::int4";
    let rows = connection.query(&text.into(), &Parameters::new()).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let (in_recovery, major): (bool, i32) = (field(row, 0)?, field(row, 1)?);
    if in_recovery || objects.failover == Failover::Unwanted {
        return Ok(Vec::new());
    }
    let major = u32::try_from(major).unwrap_or_default();
    if major < FAILOVER_MAJOR {
        return Ok(objects.refuse_version(major).err().iter().map(too_old).collect());
    }
    let Some(slot) = find_slot(connection, &objects.slot).await? else { return Ok(Vec::new()) };
    let primary = ask_primary(connection).await?;
    let wanted = objects.failover == Failover::Wanted;
    if !slot.failover {
        let matters = wanted || !primary.physical.is_empty();
        return Ok(matters.then(|| not_kept(&objects.slot, wanted)).into_iter().collect());
    }
    let mut findings = primary.judge(wanted);
    let standbys = options.standbys();
    if standbys.is_empty() && !primary.physical.is_empty() {
        findings.push(unseen(&objects.slot));
    }
    for standby in standbys {
        findings.extend(ask_standby(standby, &objects.slot).await?);
    }
    Ok(findings)
}

impl Primary {
    fn judge(&self, wanted: bool) -> Vec<Finding> {
        let mut findings: Vec<Finding> =
            self.waited_for.iter().filter_map(|name| self.judge_waited_for(name)).collect();
        let rest: Vec<&str> =
            self.physical.iter().map(|slot| slot.name.as_str()).filter(|name| !self.is_waited_for(name)).collect();
        if self.physical.is_empty() && wanted {
            findings.push(Finding::new(
                Severity::Warning,
                ErrorKind::SlotMissing,
                Subject::Slot,
                "Nobody reads the server's log through a physical slot, so that no standby keeps our slot.",
                "Give each standby a physical slot on the primary (primary_slot_name).",
            ));
        }
        if rest.is_empty() {
            return findings;
        }
        let (severity, sentence) = if self.waited_for.is_empty() {
            (
                Severity::Warning,
                format!(
                    "{WAITED_FOR} is empty: Postrider reads and delivers what no standby has yet, and a promoted one may never have it."
                ),
            )
        } else {
            (
                Severity::Note,
                format!(
                    "{WAITED_FOR} leaves out {}: if that is a standby and it is promoted, it may never have what Postrider has delivered.",
                    rest.join(", ")
                ),
            )
        };
        let all = self.waited_for.iter().map(String::as_str).chain(rest).collect::<Vec<_>>().join(", ");
        let hint = format!(
            "Name the slots of the standbys that may be promoted; while one of them is away, nothing is read. As a superuser: ALTER SYSTEM SET {WAITED_FOR} = {}; SELECT pg_reload_conf();",
            quote_literal(&all)
        );
        findings.push(Finding::new(severity, ErrorKind::JournalForeign, Subject::Server, sentence, hint));
        findings
    }

    /// The stream stands still while a slot that it waits for does not move.
    fn judge_waited_for(&self, name: &str) -> Option<Finding> {
        let (severity, state) = match self.physical.iter().find(|slot| slot.name == name) {
            None => (Severity::Error, "which is no physical slot of this server"),
            Some(Physical { lost: true, .. }) => (Severity::Error, "which is lost"),
            Some(Physical { active: false, .. }) => (Severity::Warning, "which nobody reads from now"),
            Some(_) => return None,
        };
        let sentence = format!("{WAITED_FOR} names {name}, {state}: the server sends nothing that it has not passed.");
        let hint = format!("Bring the standby back, or take it out of {WAITED_FOR} and reload.");
        Some(Finding::new(severity, ErrorKind::Configuration, Subject::Server, sentence, hint))
    }

    fn is_waited_for(&self, name: &str) -> bool {
        self.waited_for.iter().any(|waited_for| waited_for == name)
    }
}

async fn ask_primary(connection: &Connection) -> Result<Primary> {
    let text = "SELECT slot_name::text, active, wal_status IS NOT DISTINCT FROM 'lost' \
         FROM pg_replication_slots WHERE slot_type = 'physical' AND NOT temporary ORDER BY slot_name";
    let rows = connection.query(&text.into(), &Parameters::new()).await?;
    let physical = rows
        .iter()
        .map(|row| Ok(Physical { name: field(row, 0)?, active: field(row, 1)?, lost: field(row, 2)? }))
        .collect::<Result<_>>()?;
    Ok(Primary { waited_for: names(&setting(connection, WAITED_FOR).await?), physical })
}

/// What a standby says of its copy. One that cannot be reached, or is none, is passed over.
async fn ask_standby(options: ConnectOptions, name: &str) -> Result<Vec<Finding>> {
    let place = options.location();
    let connection = match Connection::open(&options.reaching_within(REACH_TIMEOUT), PREAMBLE).await {
        Ok(connection) => connection,
        Err(error) if error.kind() == ErrorKind::Disconnected => return Ok(Vec::new()),
        Err(error) => return Ok(vec![not_asked(&place, &error)]),
    };
    let copy = find_slot(&connection, name).await?;
    let mut missing = Vec::new();
    for (setting_name, needed) in [("sync_replication_slots", "on"), ("hot_standby_feedback", "on")] {
        if setting(&connection, setting_name).await? != needed {
            missing.push(format!("ALTER SYSTEM SET {setting_name} = on;"));
        }
    }
    if setting(&connection, "primary_slot_name").await?.is_empty() {
        missing.push("ALTER SYSTEM SET primary_slot_name = 'the name of its physical slot on the primary';".to_owned());
    }
    let mut findings = vec![judge_copy(&place, name, copy.as_ref())];
    if !missing.is_empty() {
        findings.push(Finding::new(
            Severity::Warning,
            ErrorKind::SlotMissing,
            Subject::Server,
            format!("The standby at {place} is not set to keep the slot in step: after its promotion what committed since the last copy comes again, or the slot is missing."),
            format!("There, as a superuser: {} SELECT pg_reload_conf();", missing.join(" ")),
        ));
    }
    Ok(findings)
}

fn judge_copy(place: &str, name: &str, copy: Option<&Slot>) -> Finding {
    let slot =
        |severity, kind, sentence: String, hint: String| Finding::new(severity, kind, Subject::Slot, sentence, hint);
    match copy {
        None => slot(
            Severity::Warning,
            ErrorKind::SlotMissing,
            format!("The standby at {place} does not have the slot \"{name}\": after its promotion what committed until a new one is made is never sent."),
            "Its sync_replication_slots must be on, and its primary_conninfo must name a database (dbname); its log says what else is in the way.".to_owned(),
        ),
        Some(copy) if !copy.synced => slot(
            Severity::Warning,
            ErrorKind::SlotForeign,
            format!("The standby at {place} has a slot \"{name}\" of its own, so that it cannot keep the primary's."),
            format!("There: {}", drop_slot_statement(name)),
        ),
        Some(copy) if copy.is_lost() => slot(
            Severity::Warning,
            ErrorKind::SlotLost,
            format!("The copy of the slot \"{name}\" on the standby at {place} is lost."),
            "It is made anew by itself once the primary's slot is in order; the standby's log says what is in the way.".to_owned(),
        ),
        // A copy is temporary until the standby has all the log that it needs.
        Some(copy) if copy.temporary => slot(
            Severity::Warning,
            ErrorKind::SlotMissing,
            format!("The standby at {place} does not have all that its copy of the slot \"{name}\" needs: promoted now, it would not have the slot."),
            "It is ready once the primary's slot has moved further; start Postrider.".to_owned(),
        ),
        Some(copy) => slot(
            Severity::Note,
            ErrorKind::SlotMissing,
            format!(
                "The standby at {place} keeps the slot \"{name}\", confirmed up to {}.",
                copy.confirmed.map_or_else(String::new, |confirmed| confirmed.to_string())
            ),
            "After its promotion Postrider goes on there, if the address names it.".to_owned(),
        ),
    }
}

/// A setting as text; empty where the server has none of this name.
async fn setting(connection: &Connection, name: &str) -> Result<String> {
    let text = "SELECT coalesce(current_setting($1, true), '')";
    let rows = connection.query(&text.into(), &vec![Box::new(name.to_owned()) as _]).await?;
    rows.first().map_or(Ok(String::new()), |row| field(row, 0))
}

/// The names of a list, as the server's settings have them.
fn names(list: &str) -> Vec<String> {
    list.split(',').map(|name| name.trim().trim_matches('"').to_owned()).filter(|name| !name.is_empty()).collect()
}

fn too_old(error: &Error) -> Finding {
    let sentence = error.detail().unwrap_or_else(|| error.message());
    Finding::new(Severity::Error, error.kind(), Subject::Slot, sentence, error.hint().unwrap_or_default())
}

fn not_kept(name: &str, wanted: bool) -> Finding {
    let cure = if wanted {
        "Stop Postrider, run `postrider setup`, and start it again."
    } else {
        "Set source.failover = true, stop Postrider, run `postrider setup`, and start it again; or say source.failover = false, if that is meant."
    };
    let sentence = format!(
        "The slot \"{name}\" is not one that standbys keep: after a promotion it is missing, and what committed until a new one is made is never sent."
    );
    Finding::new(Severity::Warning, ErrorKind::SlotMissing, Subject::Slot, sentence, cure)
}

/// With one address, only the primary is asked.
fn unseen(name: &str) -> Finding {
    let hint = format!(
        "Add the standbys to the address, with target_session_attrs=primary, and they are asked; or ask there: SELECT synced, temporary, invalidation_reason FROM pg_replication_slots WHERE slot_name = {};",
        quote_literal(name)
    );
    Finding::new(
        Severity::Note,
        ErrorKind::SlotMissing,
        Subject::Slot,
        format!("Standbys may keep the slot \"{name}\"; whether one does shows there only."),
        hint,
    )
}

fn not_asked(place: &str, error: &Error) -> Finding {
    Finding::new(
        Severity::Warning,
        error.kind(),
        Subject::Server,
        format!("The server at {place} cannot be asked whether it keeps the slot: {}.", error.message()),
        error.hint().unwrap_or("Postrider could not go on there either."),
    )
}
