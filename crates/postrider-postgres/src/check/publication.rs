//! The publication: that it exists, has our tables, and lets everything through that we need.

use postrider_core::error::{ErrorKind, Result};
use tokio_postgres::Row;

use super::{Finding, Severity, Subject, field};
use crate::client::{Connection, Parameters};
use crate::objects::{SourceObjects, event_columns, outbox_name, streamed_columns, work_name};
use crate::quote::{quote_identifier, quote_table};

pub(super) async fn check(connection: &Connection, objects: &SourceObjects, version: i64) -> Result<Vec<Finding>> {
    let text =
        "SELECT puballtables, pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = $1";
    let name: Parameters = vec![Box::new(objects.publication.clone())];
    let rows = connection.query(&text.into(), &name).await?;
    let Some(row) = rows.first() else {
        return Ok(vec![Finding::new(
            Severity::Error,
            ErrorKind::PublicationMissing,
            Subject::Publication,
            format!("There is no publication \"{}\".", objects.publication),
            "`postrider setup` creates it. It must be there before the slot is.",
        )]);
    };
    let mut findings = actions(row, objects)?;
    if field(row, 0)? {
        findings.push(Finding::new(
            Severity::Warning,
            ErrorKind::Table,
            Subject::Publication,
            format!(
                "The publication \"{}\" is for all tables: updates of any table without a key fail.",
                objects.publication
            ),
            "Publish the outbox and the work table only.",
        ));
    }
    for published in published(connection, objects, version).await? {
        findings.extend(published.judge(objects));
    }
    findings.extend(partitioned(connection, objects).await?);
    Ok(findings)
}

/// One of our tables as the publication has it.
struct Published<'a> {
    name: String,
    /// The columns that we need of it.
    needed: Vec<&'a str>,
    present: bool,
    /// `None` where the version has no column lists.
    columns: Option<Vec<String>>,
    has_filter: bool,
}

impl Published<'_> {
    fn judge(&self, objects: &SourceObjects) -> Vec<Finding> {
        let Published { name, .. } = self;
        let publication = quote_identifier(&objects.publication);
        let error =
            |sentence, hint| Finding::new(Severity::Error, ErrorKind::Table, Subject::Publication, sentence, hint);
        if !self.present {
            return vec![error(
                format!("The publication {publication} does not have the table {name}."),
                format!(
                    "ALTER PUBLICATION {publication} ADD TABLE {name}; for a partitioned table also SET (publish_via_partition_root)."
                ),
            )];
        }
        let anew = format!(
            "BEGIN; ALTER PUBLICATION {publication} DROP TABLE {name}; ALTER PUBLICATION {publication} ADD TABLE {name}; COMMIT;"
        );
        let mut findings = Vec::new();
        if self.has_filter {
            findings.push(error(
                format!("The publication {publication} filters the rows of {name}."),
                format!("A row that is filtered out is never seen. Publish all rows and columns: {anew}"),
            ));
        }
        let missing: Vec<String> = match &self.columns {
            None => Vec::new(),
            Some(columns) => self
                .needed
                .iter()
                .filter(|needed| !columns.iter().any(|column| column == **needed))
                .map(|column| quote_identifier(column))
                .collect(),
        };
        if !missing.is_empty() {
            findings.push(error(
                format!(
                    "The publication {publication} leaves out columns of {name} that we need: {}.",
                    missing.join(", ")
                ),
                format!("Add them to the table's column list, or publish all rows and columns: {anew}"),
            ));
        }
        findings
    }
}

fn actions(row: &Row, objects: &SourceObjects) -> Result<Vec<Finding>> {
    let works = objects.routing.work.is_some();
    let needed = [("insert", 1, true), ("update", 2, works), ("delete", 3, works)];
    let mut missing = Vec::new();
    for (action, column, is_needed) in needed {
        if is_needed && !field::<bool>(row, column)? {
            missing.push(action);
        }
    }
    let mut findings = Vec::new();
    let publication = quote_identifier(&objects.publication);
    if !missing.is_empty() {
        findings.push(Finding::new(
            Severity::Error,
            ErrorKind::PublicationMissing,
            Subject::Publication,
            format!("The publication {publication} does not publish {}.", missing.join(", ")),
            format!("ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate');"),
        ));
    }
    if !field::<bool>(row, 4)? {
        findings.push(Finding::new(
            Severity::Note,
            ErrorKind::PublicationMissing,
            Subject::Publication,
            format!("The publication {publication} does not publish truncate, so that nobody is told of one."),
            format!("ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate');"),
        ));
    }
    Ok(findings)
}

/// What PostgreSQL does not send of partitioned tables, for each that is published, be it by its partitions.
async fn partitioned(connection: &Connection, objects: &SourceObjects) -> Result<Vec<Finding>> {
    let text = "SELECT DISTINCT n.nspname::text, root.relname::text, p.pubviaroot \
         FROM pg_publication_tables AS t JOIN pg_publication AS p USING (pubname) \
         JOIN pg_class AS c ON c.oid = format('%I.%I', t.schemaname, t.tablename)::regclass \
         JOIN pg_class AS root ON root.oid = pg_partition_root(c.oid) JOIN pg_namespace AS n ON n.oid = root.relnamespace \
         WHERE pubname = $1 AND (c.relispartition OR c.relkind = 'p') ORDER BY 1, 2";
    let rows = connection.query(&text.into(), &vec![Box::new(objects.publication.clone())]).await?;
    let mut findings = Vec::new();
    for row in &rows {
        let name = quote_table(field(row, 0)?, field(row, 1)?);
        let (unsaid, hint) = if field(row, 2)? {
            (
                "via its root: rows of a table that is attached filled are not sent, nor is the truncation of a partition",
                "Attach tables empty and insert into the root; delete a partition's rows before it is truncated.",
            )
        } else {
            (
                "by its partitions: rows of a table that is attached filled are not sent, and a detached one falls silent",
                "Attach tables empty and insert into the root. SET (publish_via_partition_root) gives changes the table's own name.",
            )
        };
        let sentence = format!("The table {name} is partitioned and published {unsaid}.");
        findings.push(Finding::new(Severity::Warning, ErrorKind::Table, Subject::Publication, sentence, hint));
    }
    Ok(findings)
}

async fn published<'a>(
    connection: &Connection,
    objects: &'a SourceObjects,
    version: i64,
) -> Result<Vec<Published<'a>>> {
    let has_lists = version >= 150_000;
    let details = if has_lists { "attnames::text[], rowfilter IS NOT NULL" } else { "NULL::text[], false" };
    let text =
        format!("SELECT schemaname::text, tablename::text, {details} FROM pg_publication_tables WHERE pubname = $1");
    let rows = connection.query(&text.into(), &vec![Box::new(objects.publication.clone())]).await?;
    let mut tables = Vec::new();
    for table in &objects.routing.outbox_tables {
        let needed = event_columns(&table.columns);
        tables.push((table.schema.as_str(), table.table.as_str(), outbox_name(table), needed));
    }
    if let Some(mapping) = &objects.routing.work {
        let needed = streamed_columns(mapping);
        tables.push((mapping.schema.as_str(), mapping.table.as_str(), work_name(mapping), needed));
    }
    let mut published = Vec::new();
    for (schema, table, name, needed) in tables {
        let mut found = Published { name, needed, present: false, columns: None, has_filter: false };
        for row in &rows {
            if field::<&str>(row, 0)? == schema && field::<&str>(row, 1)? == table {
                found.present = true;
                found.columns = field(row, 2)?;
                found.has_filter = field(row, 3)?;
            }
        }
        published.push(found);
    }
    Ok(published)
}
