//! What our role may do with our tables.

use postrider_core::error::{ErrorKind, Result};

use super::{Finding, Severity, Subject, field};
use crate::client::{Connection, Parameters};
use crate::objects::{SourceObjects, outbox_name, work_name, written_columns};
use crate::quote::quote_identifier;

/// A privilege that we need, and what it costs to be without.
struct Needed {
    severity: Severity,
    /// As one grants it, `SELECT` for example.
    privilege: String,
    table: String,
    held: bool,
}

pub(super) async fn check(connection: &Connection, objects: &SourceObjects) -> Result<Vec<Finding>> {
    let routing = &objects.routing;
    let mut needed = Vec::new();
    for table in &routing.outbox_tables {
        let held = on_table(connection, (&table.schema, &table.table), &[]).await?;
        // The log needs no privilege on a table; a copy of its rows does.
        needed.extend(held.into_iter().map(|(privilege, held)| Needed {
            severity: Severity::Warning,
            privilege,
            table: outbox_name(table),
            held,
        }));
    }
    if let Some(mapping) = &routing.work {
        let held = on_table(connection, (&mapping.schema, &mapping.table), &written_columns(mapping)).await?;
        needed.extend(held.into_iter().map(|(privilege, held)| Needed {
            severity: Severity::Error,
            privilege,
            table: work_name(mapping),
            held,
        }));
    }
    Ok(needed.into_iter().filter(|needed| !needed.held).map(Needed::report).collect())
}

impl Needed {
    fn report(self) -> Finding {
        let Needed { severity, privilege, table, .. } = self;
        let (sentence, hint) = if privilege == "USAGE" {
            (format!("Our role may not use the schema of {table}."), "GRANT USAGE ON SCHEMA … TO …;".to_owned())
        } else {
            (
                format!("Our role lacks the privilege {privilege} on {table}."),
                format!("GRANT {privilege} ON {table} TO …; with our role's name."),
            )
        };
        Finding::new(severity, ErrorKind::Privilege, Subject::Role, sentence, hint)
    }
}

/// The privileges on a table that exists, and whether we have them: the schema's use, reading, and writing these columns.
async fn on_table(connection: &Connection, table: (&str, &str), columns: &[&str]) -> Result<Vec<(String, bool)>> {
    let text = "SELECT has_schema_privilege(n.oid, 'USAGE'), has_table_privilege(c.oid, 'SELECT'), \
           (SELECT coalesce(array_agg(a.attname::text ORDER BY a.attnum), '{}') FROM pg_attribute AS a \
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY ($3::text[]) \
              AND NOT has_column_privilege(c.oid, a.attnum, 'UPDATE')) \
         FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2";
    let columns: Vec<String> = columns.iter().map(|column| (*column).to_owned()).collect();
    let parameters: Parameters = vec![Box::new(table.0.to_owned()), Box::new(table.1.to_owned()), Box::new(columns)];
    let rows = connection.query(&text.into(), &parameters).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let refused: Vec<String> = field(row, 2)?;
    let refused: Vec<String> = refused.iter().map(|column| quote_identifier(column)).collect();
    Ok(vec![
        ("USAGE".to_owned(), field(row, 0)?),
        ("SELECT".to_owned(), field(row, 1)?),
        (format!("UPDATE ({})", refused.join(", ")), refused.is_empty()),
    ])
}
