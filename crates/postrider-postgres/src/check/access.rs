//! What our role may do with our tables, and which functions it may call.

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::route::WorkMapping;

use super::{Finding, Severity, Subject, field};
use crate::client::{Connection, Parameters};
use crate::objects::{SourceObjects, written_columns};
use crate::quote::{quote_identifier, quote_table};
use crate::store::{STORE_SCHEMA, StoreTable, store_tables};

/// The functions that a process calls and whose use may be taken from the public. The first got a parameter more with version 17.
pub(crate) const TO_RUN: [&str; 14] = [
    "pg_logical_emit_message(boolean, text, text)",
    "pg_logical_emit_message(boolean, text, text, boolean)",
    "pg_current_wal_flush_lsn()",
    "pg_current_wal_lsn()",
    "pg_wal_lsn_diff(pg_lsn, pg_lsn)",
    "pg_advisory_lock(bigint)",
    "pg_postmaster_start_time()",
    "pg_current_snapshot()",
    "pg_snapshot_xmin(pg_snapshot)",
    "age(xid)",
    "mxid_age(xid)",
    "xid(xid8)",
    "sha256(bytea)",
    "convert_to(text, name)",
];

/// Those that the statement calls by which a stage is held back.
pub(crate) const TO_PAUSE: [&str; 3] = [
    "pg_logical_emit_message(boolean, text, bytea)",
    "pg_logical_emit_message(boolean, text, bytea, boolean)",
    "convert_to(text, name)",
];

/// What a role is going to use.
pub(crate) struct Needs<'a> {
    /// The columns of the work table's rows that are written; `None`: its rows are not even looked at.
    pub(crate) rows: Option<Vec<&'a str>>,
    /// Our own tables, with the privileges on them.
    pub(crate) store: Vec<(&'static StoreTable, &'static str)>,
    /// Those of the functions above.
    pub(crate) functions: &'static [&'static str],
}

/// A privilege that our role lacks.
#[derive(PartialEq, Eq)]
struct Lacking {
    /// As a sentence.
    sentence: String,
    /// The statement that grants it.
    cure: String,
}

pub(super) async fn check(connection: &Connection, objects: &SourceObjects) -> Result<Vec<Finding>> {
    let routing = &objects.routing;
    let mut findings = Vec::new();
    for table in &routing.outbox_tables {
        // The log needs no privilege on a table; a copy of its rows does.
        let lacking = on_table(connection, (&table.schema, &table.table), Some(&[])).await?;
        findings.extend(lacking.into_iter().map(|lacking| lacking.report(Severity::Warning)));
    }
    let mut needed = on_functions(connection, &TO_RUN).await?;
    if let Some(mapping) = routing.work.as_ref().filter(|_| objects.observe) {
        let lacking = on_table(connection, (&mapping.schema, &mapping.table), Some(&[])).await?;
        findings.extend(lacking.into_iter().map(|lacking| lacking.report(Severity::Warning)));
    }
    if let Some(mapping) = routing.work.as_ref().filter(|_| !objects.observe) {
        needed.extend(on_work_table(connection, mapping).await?);
    }
    for table in store_tables(objects) {
        match on_store_table(connection, table, table.run).await? {
            Some(lacking) => needed.extend(lacking),
            None => findings.push(missing(table)),
        }
    }
    findings.extend(once_each(needed).into_iter().map(|lacking| lacking.report(Severity::Error)));
    Ok(findings)
}

fn missing(table: &StoreTable) -> Finding {
    let sentence = format!("There is no table {}.", table.qualified());
    Finding::new(Severity::Error, ErrorKind::Table, Subject::Store, sentence, table.missing)
}

/// Refuses a role that lacks what it is going to use, before the first row waits for it. A work table that is not there is another's finding.
///
/// # Errors
/// `Table` where a table of our own is not there, `Privilege` with every grant that is missing.
pub(crate) async fn require(connection: &Connection, mapping: &WorkMapping, needs: &Needs<'_>) -> Result<()> {
    let mut lacking = on_table(connection, (&mapping.schema, &mapping.table), needs.rows.as_deref()).await?;
    for (table, needed) in &needs.store {
        lacking.extend(on_store_table(connection, table, needed).await?.ok_or_else(|| {
            let Finding { kind, sentence, hint, .. } = missing(table);
            Error::new(kind, "a table of Postrider's own does not exist").with_detail(sentence).with_hint(hint)
        })?);
    }
    lacking.extend(on_functions(connection, needs.functions).await?);
    let lacking = once_each(lacking);
    if lacking.is_empty() {
        return Ok(());
    }
    let join = |part: fn(&Lacking) -> &str| lacking.iter().map(part).collect::<Vec<_>>().join(" ");
    Err(Error::new(ErrorKind::Privilege, "the role lacks a privilege")
        .with_detail(join(|lacking| &lacking.sentence))
        .with_hint(join(|lacking| &lacking.cure)))
}

/// Our own tables share a schema.
fn once_each(lacking: Vec<Lacking>) -> Vec<Lacking> {
    let mut told = Vec::new();
    for one in lacking {
        if !told.contains(&one) {
            told.push(one);
        }
    }
    told
}

impl Lacking {
    fn report(self, severity: Severity) -> Finding {
        Finding::new(severity, ErrorKind::Privilege, Subject::Role, self.sentence, self.cure)
    }
}

async fn on_work_table(connection: &Connection, mapping: &WorkMapping) -> Result<Vec<Lacking>> {
    let names = (mapping.schema.as_str(), mapping.table.as_str());
    on_table(connection, names, Some(&written_columns(mapping))).await
}

/// What we lack on a table that exists: the schema's use, and, where columns are given, reading it and writing these.
async fn on_table(
    connection: &Connection,
    (schema, table): (&str, &str),
    columns: Option<&[&str]>,
) -> Result<Vec<Lacking>> {
    let text = "SELECT has_schema_privilege(n.oid, 'USAGE'), has_table_privilege(c.oid, 'SELECT'), \
           (SELECT coalesce(array_agg(a.attname::text ORDER BY a.attnum), '{}') FROM pg_attribute AS a \
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY ($3::text[]) \
              AND NOT has_column_privilege(c.oid, a.attnum, 'UPDATE')), current_user::text \
         FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2";
    let reads = columns.is_some();
    let columns: Vec<String> = columns.unwrap_or_default().iter().map(|column| (*column).to_owned()).collect();
    let parameters: Parameters = vec![Box::new(schema.to_owned()), Box::new(table.to_owned()), Box::new(columns)];
    let rows = connection.query(&text.into(), &parameters).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let (name, role) = (quote_table(schema, table), quote_identifier(field(row, 3)?));
    let mut lacking = Vec::new();
    if !field::<bool>(row, 0)? {
        lacking.push(Lacking {
            sentence: format!("Our role may not use the schema of {name}."),
            cure: format!("GRANT USAGE ON SCHEMA {} TO {role};", quote_identifier(schema)),
        });
    }
    let mut refused = Vec::new();
    if reads && !field::<bool>(row, 1)? {
        refused.push("SELECT".to_owned());
    }
    let unwritable: Vec<String> = field(row, 2)?;
    if !unwritable.is_empty() {
        let unwritable: Vec<String> = unwritable.iter().map(|column| quote_identifier(column)).collect();
        refused.push(format!("UPDATE ({})", unwritable.join(", ")));
    }
    lacking.extend(refused.into_iter().map(|privilege| Lacking {
        sentence: format!("Our role lacks the privilege {privilege} on {name}."),
        cure: format!("GRANT {privilege} ON {name} TO {role};"),
    }));
    Ok(lacking)
}

/// What we lack on a table of our own; `None` where it is not there.
async fn on_store_table(connection: &Connection, table: &StoreTable, needed: &str) -> Result<Option<Vec<Lacking>>> {
    let text = "SELECT has_schema_privilege(n.oid, 'USAGE'), current_user::text, \
           ARRAY(SELECT p FROM unnest(string_to_array($3, ', ')) AS p WHERE NOT has_table_privilege(c.oid, p)) \
         FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2";
    let needed_is_empty = needed.is_empty();
    let [schema, name, needed] = [STORE_SCHEMA, table.name, needed].map(str::to_owned);
    let rows = connection.query(&text.into(), &vec![Box::new(schema), Box::new(name), Box::new(needed)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (name, role) = (table.qualified(), quote_identifier(field(row, 1)?));
    let mut lacking = Vec::new();
    if !needed_is_empty && !field::<bool>(row, 0)? {
        lacking.push(Lacking {
            sentence: format!("Our role may not use the schema {STORE_SCHEMA}."),
            cure: format!("GRANT USAGE ON SCHEMA {STORE_SCHEMA} TO {role};"),
        });
    }
    let refused: Vec<String> = field(row, 2)?;
    if !refused.is_empty() {
        let privileges = refused.join(", ");
        lacking.push(Lacking {
            sentence: format!("Our role lacks the privilege {privileges} on {name}."),
            cure: format!("GRANT {privileges} ON {name} TO {role};"),
        });
    }
    Ok(Some(lacking))
}

/// Which of these functions we may not call; one that this version does not have is none.
async fn on_functions(connection: &Connection, functions: &[&str]) -> Result<Vec<Lacking>> {
    let text = "SELECT f.name, current_user::text \
         FROM (SELECT name, to_regprocedure('pg_catalog.' || name) AS id FROM unnest($1::text[]) AS name) AS f \
         WHERE f.id IS NOT NULL AND NOT has_function_privilege(f.id, 'EXECUTE')";
    let names: Vec<String> = functions.iter().map(|name| (*name).to_owned()).collect();
    let rows = connection.query(&text.into(), &vec![Box::new(names)]).await?;
    let lacking = rows.iter().map(|row| {
        let (function, role) = (field::<String>(row, 0)?, quote_identifier(field(row, 1)?));
        Ok(Lacking {
            sentence: format!("Our role may not call the function {function}."),
            cure: format!("GRANT EXECUTE ON FUNCTION pg_catalog.{function} TO {role};"),
        })
    });
    lacking.collect()
}
