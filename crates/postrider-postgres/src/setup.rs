//! What must be in the database before the first start: as a list of steps that can be printed, and applied.
//!
//! The publication always comes before the slot: a publication that a slot's position does not know yet stops the stream for good
//! on PostgreSQL 14 to 17, however soon it is made afterwards.

mod refusals;

use std::time::Duration;

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::position::Lsn;
use postrider_core::route::{OutboxTable, WorkMapping};

use crate::advance::{self, Found};
use crate::check::slot::find_slot;
use crate::check::younger::suspects;
use crate::check::{Finding, Subject, check};
use crate::client::{Connection, Parameters};
use crate::errors::{Phase, name_slot};
use crate::notices;
use crate::objects::{Failover, LISTS_MAJOR, SourceObjects, outbox_name, streamed_columns, work_name, written_columns};
use crate::options::ConnectOptions;
use crate::quote::{quote_identifier, quote_literal};
use crate::replication::slot::create_slot as create_slot_on_standby;
use crate::source::preflight::refuse_standby;
use crate::store::{STORE_SCHEMA, StoreTable, store_tables};
use crate::wire::Wire;

const CREATE_WORK_TABLE: &str = include_str!("../../../sql/source/0001_create_pending_work.sql");
const CREATE_OUTBOX: &str = include_str!("../../../sql/source/0002_create_outbox_event.sql");

/// So long a slot on a standby waits for the primary's word.
const SLOT_PATIENCE: Duration = Duration::from_secs(120);

/// The steps write, whatever the role's or the database's own settings are.
const PREAMBLE: &str = "SET default_transaction_isolation = 'read committed'; \
     SET default_transaction_read_only = off; SET lock_timeout = '10s'";

/// What is to be set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupSettings {
    pub objects: SourceObjects,
    /// The role that Postrider runs as; it gets what it needs and no more. `None`: nobody is granted anything.
    pub role: Option<String>,
}

/// What the steps depend on beside the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Circumstances {
    /// The server's major version, 14 to 18.
    pub major: u32,
    /// How the work table's rows are identified in the log.
    pub work_identity: WorkIdentity,
    /// The columns of the work table in the main publication, where that has it already.
    pub published: Option<Published>,
    /// The server is a standby: it takes the slot, and everything else from its primary.
    pub standby: bool,
}

/// The columns of a table that a publication has. All publications of one stream must agree on them, else the server sends an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    All,
    These(Vec<String>),
}

/// The replica identity of the work table (manual, `ALTER TABLE … REPLICA IDENTITY`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkIdentity {
    /// These columns, which a published column list must contain.
    Columns(Vec<String>),
    /// All columns: with a column list the application's own updates would fail.
    Full,
    /// Nobody has looked: a column list might leave out what identifies the rows.
    Unseen,
}

/// One statement or group of statements, and what it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub object: StepObject,
    /// What the step does, as a sentence.
    pub purpose: String,
    pub sql: String,
}

/// What a step makes; a thing that is there already is kept as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepObject {
    Table {
        /// Schema and table, quoted.
        name: String,
    },
    Publication {
        name: String,
    },
    /// The triggers of the work table, which are replaced where they differ.
    Notices {
        /// Schema and table, quoted.
        table: String,
    },
    /// The function by which receivers move work rows on, which is replaced where it differs.
    Advance {
        /// Schema and name, quoted.
        function: String,
    },
    Slot,
    Role {
        name: String,
    },
    /// Granting twice does no harm, so these are always sent.
    Grants,
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOutcome {
    Done,
    /// It was there already.
    Kept,
}

/// What `apply` did, and how what it kept differs from what is needed.
#[derive(Debug)]
pub struct SetupReport {
    pub steps: Vec<(Step, StepOutcome)>,
    pub differences: Vec<Finding>,
    /// A publication was made behind the slot: no stream that reads it may begin before the slot stands behind this.
    pub wait_for: Option<Lsn>,
}

impl SetupReport {
    /// The statement that says whether the wait is over: transactions that were running then must have ended, too.
    pub fn wait_statement(&self, slot: &str) -> Option<String> {
        self.wait_for.map(|place| {
            format!(
                "SELECT restart_lsn > '{place}' FROM pg_replication_slots WHERE slot_name = {};",
                quote_literal(slot)
            )
        })
    }
}

impl Circumstances {
    /// A server of this version that is not asked, for printing: a work table that the plan makes is known, one of the user's own is not.
    pub fn unseen(major: u32, objects: &SourceObjects) -> Circumstances {
        let is_ours = objects.routing.work.as_ref().is_none_or(is_canonical);
        let work_identity = if is_ours { WorkIdentity::Columns(Vec::new()) } else { WorkIdentity::Unseen };
        Circumstances { major, work_identity, published: None, standby: objects.standby }
    }
}

/// The steps in the order in which they must be taken.
///
/// # Errors
/// `Configuration` where a server of this version cannot do what is asked.
pub fn plan(settings: &SetupSettings, circumstances: &Circumstances) -> Result<Vec<Step>> {
    let SetupSettings { objects, role } = settings;
    objects.refuse_version(circumstances.major)?;
    let mut steps: Vec<Step> = objects.routing.outbox_tables.iter().filter_map(create_outbox).collect();
    steps.extend(objects.routing.work.as_ref().filter(|_| !objects.observe).and_then(create_work_table));
    steps.extend(store_tables(objects).into_iter().map(create_store_table));
    if let (true, Some(mapping)) = (objects.quiet, &objects.routing.work) {
        steps.push(create_notices(mapping));
    }
    if let (true, Some(mapping)) = (objects.same_tx, &objects.routing.work) {
        steps.push(create_advance(mapping, objects.history));
    }
    steps.push(create_publication(objects, circumstances));
    steps.extend(create_work_publication(objects, circumstances));
    if let Some(role) = role {
        steps.push(create_role(role));
        steps.push(grant(objects, role));
    }
    steps.push(create_slot(objects, circumstances));
    Ok(steps)
}

/// Takes the steps that are not taken yet.
///
/// # Errors
/// `Privilege` where the role in `options` may not do a step, `WalLevel` where the server has no logical log, `Table` where a
/// table is missing whose names are not the canonical ones, or was renamed, or could no longer be updated once it is published, `SlotForeign` and `SlotLost` where
/// there is a slot of that name that we cannot read from, `SlotInUse` where a slot must be changed that somebody reads from,
/// `Configuration` as of `plan`, and what connecting gives.
pub async fn apply(options: &ConnectOptions, settings: &SetupSettings) -> Result<SetupReport> {
    let connection = Connection::open(options, PREAMBLE).await?;
    let mut circumstances = look(&connection, settings.objects.routing.work.as_ref()).await?;
    circumstances.published = look_at_publication(&connection, &settings.objects, circumstances.major).await?;
    let mut report = SetupReport { steps: Vec::new(), differences: Vec::new(), wait_for: None };
    if circumstances.standby
        && let Some(error) = refuse_standby(options, settings.objects.standby, circumstances.major)
    {
        return Err(error);
    }
    refusals::refuse(&connection, &settings.objects).await?;
    for step in plan(settings, &circumstances)? {
        let outcome = match step.object {
            _ if is_taken(&connection, &settings.objects, &step).await? => StepOutcome::Kept,
            StepObject::Slot if circumstances.standby => {
                create_slot_on_standby(options, &settings.objects.slot, SLOT_PATIENCE).await?;
                StepOutcome::Done
            }
            _ if circumstances.standby => return Err(for_the_primary(&step)),
            _ => take(&connection, &settings.objects, &step).await?,
        };
        report.steps.push((step, outcome));
    }
    if settings.objects.failover == Failover::Wanted && !circumstances.standby {
        report.steps.extend(turn_failover_on(&connection, options, &settings.objects).await?);
    }
    report.wait_for = place_to_wait_for(&connection, &settings.objects, &report.steps).await?;
    let findings = check(options, &settings.objects).await?;
    report.differences = findings.into_iter().filter(|finding| finding.subject != Subject::Role).collect();
    Ok(report)
}

/// The end of the log, where a publication was made behind a slot that is kept, now or by a call that did not come to its end: the server
/// looks it up as of the time of each change.
async fn place_to_wait_for(
    connection: &Connection,
    objects: &SourceObjects,
    steps: &[(Step, StepOutcome)],
) -> Result<Option<Lsn>> {
    let is_kept = steps.iter().any(|(step, outcome)| step.object == StepObject::Slot && *outcome == StepOutcome::Kept);
    let is_published = steps
        .iter()
        .any(|(step, outcome)| matches!(step.object, StepObject::Publication { .. }) && *outcome == StepOutcome::Done);
    if !is_kept || (!is_published && suspects(connection, objects).await?.is_empty()) {
        return Ok(None);
    }
    let end = value::<String>(connection, "SELECT pg_current_wal_insert_lsn()::text", Parameters::new()).await?;
    Ok(end.and_then(|end| end.parse().ok()))
}

/// The tables are ours to make only where they are named as in our own SQL.
fn create_outbox(table: &OutboxTable) -> Option<Step> {
    (table.table == "outbox_event").then(|| Step {
        object: StepObject::Table { name: outbox_name(table) },
        purpose: "Creates the outbox.".to_owned(),
        sql: in_schema(&table.schema, CREATE_OUTBOX),
    })
}

fn create_work_table(mapping: &WorkMapping) -> Option<Step> {
    is_canonical(mapping).then(|| Step {
        object: StepObject::Table { name: work_name(mapping) },
        purpose: "Creates the work table.".to_owned(),
        sql: in_schema(&mapping.schema, CREATE_WORK_TABLE),
    })
}

fn create_store_table(table: &StoreTable) -> Step {
    Step {
        object: StepObject::Table { name: table.qualified() },
        purpose: table.purpose.to_owned(),
        sql: table.create.trim_end().to_owned(),
    }
}

fn is_canonical(mapping: &WorkMapping) -> bool {
    mapping.table == "pending_work"
}

fn in_schema(schema: &str, statements: &str) -> String {
    format!("SET search_path = {};\n{}\nRESET search_path;", quote_identifier(schema), statements.trim_end())
}

fn create_publication(objects: &SourceObjects, circumstances: &Circumstances) -> Step {
    let mut tables: Vec<String> = objects.routing.outbox_tables.iter().map(outbox_name).collect();
    if let Some(mapping) = objects.routing.work.as_ref().filter(|_| !objects.quiet) {
        // A table that is only looked at is on its way to get further columns, and these are to be published, too.
        let columns = if objects.observe { String::new() } else { column_list(mapping, circumstances) };
        tables.push(format!("{}{columns}", work_name(mapping)));
    }
    let tables = if tables.is_empty() { String::new() } else { format!(" FOR TABLE {}", tables.join(", ")) };
    Step {
        object: StepObject::Publication { name: objects.publication.clone() },
        purpose: purpose_of_publication(objects, circumstances),
        sql: format!(
            "CREATE PUBLICATION {}{tables}\n    WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = true);",
            quote_identifier(&objects.publication)
        ),
    }
}

fn purpose_of_publication(objects: &SourceObjects, circumstances: &Circumstances) -> String {
    match &objects.routing.work {
        _ if objects.quiet => "Publishes the outbox tables.".to_owned(),
        Some(_) if objects.observe => "Publishes the tables, the work table with all its columns.".to_owned(),
        Some(mapping) if circumstances.work_identity == WorkIdentity::Unseen => format!(
            "Publishes the tables. {} with all columns: which of them identify its rows is not known without the server; `postrider setup` asks, and leaves the payload out of the log where that does no harm.",
            work_name(mapping)
        ),
        _ => {
            "Publishes the tables; the claim reads the payload of a work row, so the log need not carry it.".to_owned()
        }
    }
}

/// Inserts need no replica identity, so the column list is safe whatever the table's is.
fn create_work_publication(objects: &SourceObjects, circumstances: &Circumstances) -> Option<Step> {
    let (name, mapping) = (objects.work_publication()?, objects.routing.work.as_ref()?);
    let columns = match &circumstances.published {
        Some(Published::All) => String::new(),
        Some(Published::These(columns)) => listed(columns.iter().map(String::as_str)),
        None if circumstances.major < LISTS_MAJOR => String::new(),
        None => listed(streamed_columns(mapping)),
    };
    Some(Step {
        purpose:
            "Publishes what is inserted into the work table; the claim reads the payload, so the log need not carry it."
                .to_owned(),
        sql: format!(
            "CREATE PUBLICATION {} FOR TABLE {}{columns}\n    WITH (publish = 'insert');",
            quote_identifier(&name),
            work_name(mapping)
        ),
        object: StepObject::Publication { name },
    })
}

fn create_notices(mapping: &WorkMapping) -> Step {
    Step {
        object: StepObject::Notices { table: work_name(mapping) },
        purpose: "Has the work table tell what other sessions than Postrider's do to its rows; Postrider's own transitions stay out of the log.".to_owned(),
        sql: notices::statements(mapping),
    }
}

fn create_advance(mapping: &WorkMapping, history: bool) -> Step {
    Step {
        object: StepObject::Advance { function: advance::function_name(mapping) },
        purpose: "Has receivers of same_tx stages move a work row on in their own transactions. GRANT EXECUTE on it to the roles of these services; they need nothing else of the table.".to_owned(),
        sql: advance::statements(mapping, history),
    }
}

fn column_list(mapping: &WorkMapping, circumstances: &Circumstances) -> String {
    let WorkIdentity::Columns(identity) = &circumstances.work_identity else { return String::new() };
    if circumstances.major < LISTS_MAJOR {
        return String::new();
    }
    let mut columns = streamed_columns(mapping);
    for column in identity {
        if !columns.contains(&column.as_str()) {
            columns.push(column);
        }
    }
    listed(columns)
}

fn listed<'a>(columns: impl IntoIterator<Item = &'a str>) -> String {
    format!(" ({})", columns.into_iter().map(quote_identifier).collect::<Vec<_>>().join(", "))
}

fn create_role(role: &str) -> Step {
    Step {
        object: StepObject::Role { name: role.to_owned() },
        purpose: "Creates the role that Postrider runs as. Give it a password with \\password.".to_owned(),
        sql: format!("CREATE ROLE {} LOGIN REPLICATION;", quote_identifier(role)),
    }
}

fn grant(objects: &SourceObjects, role: &str) -> Step {
    let role = quote_identifier(role);
    let routing = &objects.routing;
    let mut schemas: Vec<&str> = routing.outbox_tables.iter().map(|table| table.schema.as_str()).collect();
    schemas.extend(routing.work.iter().map(|mapping| mapping.schema.as_str()));
    schemas.sort_unstable();
    schemas.dedup();
    let mut grants: Vec<String> = schemas
        .into_iter()
        .map(|schema| format!("GRANT USAGE ON SCHEMA {} TO {role};", quote_identifier(schema)))
        .collect();
    grants.extend(objects.tables().iter().map(|table| format!("GRANT SELECT ON {table} TO {role};")));
    if let Some(mapping) = routing.work.as_ref().filter(|_| !objects.observe) {
        let columns: Vec<String> = written_columns(mapping).into_iter().map(quote_identifier).collect();
        grants.push(format!("GRANT UPDATE ({}) ON {} TO {role};", columns.join(", "), work_name(mapping)));
    }
    let store = store_tables(objects);
    if store.iter().any(|table| !table.run.is_empty()) {
        grants.push(format!("GRANT USAGE ON SCHEMA {STORE_SCHEMA} TO {role};"));
    }
    let run = store.iter().filter(|table| !table.run.is_empty());
    grants.extend(run.map(|table| format!("GRANT {} ON {} TO {role};", table.run, table.qualified())));
    Step {
        object: StepObject::Grants,
        purpose:
            "Lets the role read what it delivers, write where work rows are and what became of them, and nothing else."
                .to_owned(),
        sql: grants.join("\n"),
    }
}

fn create_slot(objects: &SourceObjects, circumstances: &Circumstances) -> Step {
    let prepared = if objects.two_phase {
        " Prepared transactions come before their verdict, which stays with the slot for good."
    } else {
        ""
    };
    let two_phase = if objects.two_phase { ", twophase => true" } else { "" };
    let (failover, kept) = if objects.makes_failover_slot(circumstances.major) && !circumstances.standby {
        (", failover => true", " Standbys that synchronize slots keep it, so that it is there after a promotion.")
    } else {
        ("", "")
    };
    Step {
        object: StepObject::Slot,
        purpose: format!(
            "Creates the slot, after the publication. It waits for every transaction that is running now.{prepared}{kept}"
        ),
        sql: format!(
            "SELECT pg_create_logical_replication_slot({}, 'pgoutput'{two_phase}{failover});",
            quote_literal(&objects.slot)
        ),
    }
}

async fn look(connection: &Connection, mapping: Option<&WorkMapping>) -> Result<Circumstances> {
    let version = "SELECT current_setting('server_version_num')::int8 / 10000";
    let major: i64 = value(connection, version, Parameters::new()).await?.unwrap_or_default();
    let mut circumstances = Circumstances {
        major: u32::try_from(major).unwrap_or_default(),
        work_identity: WorkIdentity::Columns(Vec::new()),
        published: None,
        standby: value(connection, "SELECT pg_is_in_recovery()", Parameters::new()).await?.unwrap_or(false),
    };
    let Some(mapping) = mapping else { return Ok(circumstances) };
    let text = "SELECT c.relreplident = 'f', coalesce((SELECT array_agg(a.attname::text ORDER BY a.attnum) \
           FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey) \
           WHERE i.indrelid = c.oid AND (i.indisreplident OR c.relreplident = 'd' AND i.indisprimary)), '{}') \
         FROM pg_class AS c WHERE c.relnamespace = to_regnamespace(quote_ident($1)) AND c.relname = $2";
    let names: Parameters = vec![Box::new(mapping.schema.clone()), Box::new(mapping.table.clone())];
    if let Some(row) = connection.query(&text.into(), &names).await?.first() {
        let unreadable =
            |error| Error::new(ErrorKind::Protocol, "cannot read the server's catalogue").with_source(error);
        circumstances.work_identity = if row.try_get(0).map_err(unreadable)? {
            WorkIdentity::Full
        } else {
            WorkIdentity::Columns(row.try_get(1).map_err(unreadable)?)
        };
    }
    Ok(circumstances)
}

/// The work table as the main publication has it.
async fn look_at_publication(
    connection: &Connection,
    objects: &SourceObjects,
    major: u32,
) -> Result<Option<Published>> {
    let Some(mapping) = &objects.routing.work else { return Ok(None) };
    let all = "CASE WHEN p.puballtables OR r.prattrs IS NULL THEN NULL ELSE (SELECT array_agg(a.attname::text ORDER BY a.attnum) \
         FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum = ANY (r.prattrs::int2[])) END";
    let columns = if major < LISTS_MAJOR { "NULL::text[]" } else { all };
    let text = format!(
        "SELECT {columns} FROM pg_publication AS p JOIN pg_publication_tables AS t USING (pubname) \
         JOIN pg_class AS c ON c.relnamespace = to_regnamespace(quote_ident($2)) AND c.relname = $3 \
         LEFT JOIN pg_publication_rel AS r ON r.prpubid = p.oid AND r.prrelid = c.oid \
         WHERE p.pubname = $1 AND t.schemaname = $2 AND t.tablename = $3"
    );
    let names = [&objects.publication, &mapping.schema, &mapping.table];
    let parameters: Parameters = names.into_iter().map(|name| Box::new(name.clone()) as Box<_>).collect();
    let columns: Option<Option<Vec<String>>> = value(connection, &text, parameters).await?;
    Ok(columns.map(|columns| columns.map_or(Published::All, Published::These)))
}

/// Whether what a step makes is there already.
async fn is_taken(connection: &Connection, objects: &SourceObjects, step: &Step) -> Result<bool> {
    let (text, name) = match &step.object {
        StepObject::Table { name } => ("SELECT to_regclass($1) IS NOT NULL", name),
        StepObject::Publication { name } => ("SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1)", name),
        StepObject::Notices { .. } => {
            let Some(mapping) = &objects.routing.work else { return Ok(true) };
            return notices::are_there(connection, mapping).await;
        }
        StepObject::Advance { .. } => {
            let Some(mapping) = &objects.routing.work else { return Ok(true) };
            return Ok(advance::find(connection, mapping, objects.history).await? == Found::AsNeeded);
        }
        StepObject::Slot => ("SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)", &objects.slot),
        StepObject::Role { name } => ("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", name),
        StepObject::Grants => return Ok(false),
    };
    Ok(value(connection, text, vec![Box::new(name.clone())]).await?.unwrap_or(false))
}

async fn take(connection: &Connection, objects: &SourceObjects, step: &Step) -> Result<StepOutcome> {
    let phase = if step.object == StepObject::Slot { Phase::CreateSlot } else { Phase::Query };
    let executed = connection.execute(&step.sql, phase).await;
    executed.map_err(|refusal| name_slot(refusal, &objects.slot))?;
    Ok(StepOutcome::Done)
}

/// What a standby gets from its primary.
fn for_the_primary(step: &Step) -> Error {
    Error::new(ErrorKind::Configuration, "the server is a standby, and everything but the slot is made on its primary")
        .with_detail(format!("What is missing: {}", step.purpose))
        .with_hint(format!(
            "On the primary: {} Then, once the standby has replayed it, run `postrider setup` again.",
            step.sql.replace('\n', " ")
        ))
}

/// Has standbys keep a slot that was made without; only a replication session can say so. `None`: they keep it already.
async fn turn_failover_on(
    connection: &Connection,
    options: &ConnectOptions,
    objects: &SourceObjects,
) -> Result<Option<(Step, StepOutcome)>> {
    let Some(slot) = find_slot(connection, &objects.slot).await?.filter(|slot| !slot.failover) else { return Ok(None) };
    // The command would wait for as long as somebody reads.
    if let Some(holder) = slot.holder {
        return Err(Error::new(ErrorKind::SlotInUse, "the replication slot is read from and cannot be changed now")
            .with_detail(format!("The slot is \"{}\"; its reader is {holder}.", objects.slot))
            .with_hint("Stop it, run `postrider setup` again, and start it: it goes on where it was."));
    }
    let step = Step {
        object: StepObject::Slot,
        purpose: "Has standbys that synchronize slots keep the slot, which was made without.".to_owned(),
        sql: format!("ALTER_REPLICATION_SLOT {} (FAILOVER true);", quote_identifier(&objects.slot)),
    };
    let mut wire = Wire::connect(options).await?;
    let altered = wire.query(Phase::AlterSlot, &step.sql).await;
    altered.map_err(|refusal| name_slot(refusal, &objects.slot))?;
    wire.close().await;
    Ok(Some((step, StepOutcome::Done)))
}

async fn value<T>(connection: &Connection, text: &str, parameters: Parameters<'_>) -> Result<Option<T>>
where
    T: for<'a> tokio_postgres::types::FromSql<'a>,
{
    let rows = connection.query(&text.into(), &parameters).await?;
    let unreadable = |error| Error::new(ErrorKind::Protocol, "cannot read the server's catalogue").with_source(error);
    rows.first().map(|row| row.try_get(0).map_err(unreadable)).transpose()
}
