//! What our role may do with our tables, and which functions it may call.

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::route::WorkMapping;

use super::{Finding, Severity, Subject, field};
use crate::client::{Connection, Parameters};
use crate::objects::{SourceObjects, written_columns};
use crate::quote::{quote_identifier, quote_table};

/// The functions that we call and whose use may be taken from the public. The first got a parameter more with version 17.
const FUNCTIONS: [&str; 10] = [
    "pg_logical_emit_message(boolean, text, text)",
    "pg_logical_emit_message(boolean, text, text, boolean)",
    "pg_current_wal_flush_lsn()",
    "pg_current_wal_lsn()",
    "pg_wal_lsn_diff(pg_lsn, pg_lsn)",
    "pg_advisory_lock(bigint)",
    "pg_postmaster_start_time()",
    "pg_current_snapshot()",
    "sha256(bytea)",
    "convert_to(text, name)",
];

/// A privilege that our role lacks.
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
        let lacking = on_table(connection, (&table.schema, &table.table), &[]).await?;
        findings.extend(lacking.into_iter().map(|lacking| lacking.report(Severity::Warning)));
    }
    let mut needed = on_functions(connection).await?;
    if let Some(mapping) = &routing.work {
        needed.extend(on_work_table(connection, mapping).await?);
    }
    findings.extend(needed.into_iter().map(|lacking| lacking.report(Severity::Error)));
    Ok(findings)
}

/// Refuses a role that could not claim, before the first row waits for it. A table that is not there is another's finding.
///
/// # Errors
/// `Privilege`, with every grant that is missing.
pub(crate) async fn require(connection: &Connection, mapping: &WorkMapping) -> Result<()> {
    let mut lacking = on_work_table(connection, mapping).await?;
    lacking.extend(on_functions(connection).await?);
    if lacking.is_empty() {
        return Ok(());
    }
    let join = |part: fn(&Lacking) -> &str| lacking.iter().map(part).collect::<Vec<_>>().join(" ");
    Err(Error::new(ErrorKind::Privilege, "the role lacks a privilege")
        .with_detail(join(|lacking| &lacking.sentence))
        .with_hint(join(|lacking| &lacking.cure)))
}

impl Lacking {
    fn report(self, severity: Severity) -> Finding {
        Finding::new(severity, ErrorKind::Privilege, Subject::Role, self.sentence, self.cure)
    }
}

async fn on_work_table(connection: &Connection, mapping: &WorkMapping) -> Result<Vec<Lacking>> {
    let names = (mapping.schema.as_str(), mapping.table.as_str());
    on_table(connection, names, &written_columns(mapping)).await
}

/// What we lack on a table that exists: the schema's use, reading, and writing these columns.
async fn on_table(connection: &Connection, (schema, table): (&str, &str), columns: &[&str]) -> Result<Vec<Lacking>> {
    let text = "SELECT has_schema_privilege(n.oid, 'USAGE'), has_table_privilege(c.oid, 'SELECT'), \
           (SELECT coalesce(array_agg(a.attname::text ORDER BY a.attnum), '{}') FROM pg_attribute AS a \
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY ($3::text[]) \
              AND NOT has_column_privilege(c.oid, a.attnum, 'UPDATE')), current_user::text \
         FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2";
    let columns: Vec<String> = columns.iter().map(|column| (*column).to_owned()).collect();
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
    if !field::<bool>(row, 1)? {
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

async fn on_functions(connection: &Connection) -> Result<Vec<Lacking>> {
    let text = "SELECT f.name, current_user::text \
         FROM (SELECT name, to_regprocedure('pg_catalog.' || name) AS id FROM unnest($1::text[]) AS name) AS f \
         WHERE f.id IS NOT NULL AND NOT has_function_privilege(f.id, 'EXECUTE')";
    let names: Vec<String> = FUNCTIONS.map(str::to_owned).to_vec();
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
