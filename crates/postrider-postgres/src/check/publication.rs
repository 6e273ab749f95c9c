//! The publications: that they exist, have our tables, let everything through that we need, and no more.

use postrider_core::error::{ErrorKind, Result};
use postrider_core::route::{OutboxTable, WorkMapping};
use tokio_postgres::Row;

use super::{Finding, PREAMBLE, Severity, Subject, field};
use crate::client::{Connection, Parameters};
use crate::missing::Missing;
use crate::notices;
use crate::objects::{LISTS_MAJOR, SourceObjects, event_columns, outbox_name, streamed_columns, work_name};
use crate::options::ConnectOptions;
use crate::quote::{quote_identifier, quote_table};

/// Of a table that is missing nothing is said here: the publication follows a table to its new name.
pub(super) async fn check(
    connection: &Connection,
    objects: &SourceObjects,
    (missing, version): (&Missing, i64),
) -> Result<Vec<Finding>> {
    let streamed = objects.routing.work.as_ref().filter(|_| !objects.quiet);
    let mut tables: Vec<Wanted<'_>> = objects.routing.outbox_tables.iter().map(Wanted::outbox).collect();
    tables.extend(streamed.map(Wanted::work));
    tables.retain(|wanted| !missing.has(&wanted.name));
    let actions: &[_] =
        if streamed.is_some() { &["insert", "update", "delete", "truncate"] } else { &["insert", "truncate"] };
    let main = Checked { name: &objects.publication, actions };
    let mut findings = main.check(connection, tables, version).await?;
    if let (Some(name), Some(mapping)) = (objects.work_publication(), &objects.routing.work) {
        let own = Checked { name: &name, actions: &["insert"] };
        let is_missing = missing.has(&work_name(mapping));
        let tables = if is_missing { Vec::new() } else { vec![Wanted::work(mapping)] };
        findings.extend(own.check(connection, tables, version).await?);
        if !is_missing {
            findings.extend(quiet(connection, objects, (&name, mapping), version).await?);
        }
    }
    Ok(findings)
}

/// What keeps our own transitions out of the log: that nothing publishes them, and that the triggers tell the rest.
async fn quiet(
    connection: &Connection,
    objects: &SourceObjects,
    (own, mapping): (&str, &WorkMapping),
    version: i64,
) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let (table, main) = (work_name(mapping), quote_identifier(&objects.publication));
    if !notices::are_there(connection, mapping).await? {
        findings.push(Finding::new(
            Severity::Error,
            ErrorKind::Table,
            Subject::WorkTable,
            format!("The table {table} does not tell what other sessions do to its rows: a trigger is missing or another one."),
            "`postrider setup` makes the triggers. Or say work.quiet = false: then the log brings all changes, ours among them.",
        ));
    }
    // The order of the names is that of the table.
    let differ = if has_lists(version) { "count(DISTINCT attnames::text) > 1" } else { "false" };
    let text = format!(
        "SELECT coalesce(bool_or(pubname = $1), false), \
         EXISTS (SELECT FROM pg_publication WHERE pubname = $4 AND (pubupdate OR pubdelete)), {differ} \
         FROM pg_publication_tables WHERE pubname IN ($1, $4) AND schemaname = $2 AND tablename = $3"
    );
    let texts = [&objects.publication, &mapping.schema, &mapping.table, own];
    let parameters: Parameters = texts.into_iter().map(|text| Box::new(text.to_owned()) as Box<_>).collect();
    let rows = connection.query(&text.into(), &parameters).await?;
    let Some(row) = rows.first() else { return Ok(findings) };
    let loud = |sentence, hint| Finding::new(Severity::Warning, ErrorKind::Table, Subject::Publication, sentence, hint);
    if field(row, 2)? {
        let own = quote_identifier(own);
        findings.push(Finding::new(
            Severity::Error,
            ErrorKind::Table,
            Subject::Publication,
            format!("The publications {main} and {own} have the table {table} with different columns: the server sends an error in place of its next insert."),
            "Say work.quiet = false. For quiet, `postrider setup` makes the second publication with the columns of the first, where it is not there yet.",
        ));
    }
    let is_published_twice: bool = field(row, 0)?;
    if is_published_twice {
        findings.push(loud(
            format!(
                "The publication {main} has the table {table}, too: our own transitions come back through the log."
            ),
            format!("ALTER PUBLICATION {main} DROP TABLE {table};"),
        ));
    }
    // As long as both publications have the table they must have the same columns of it.
    if has_lists(version) && !is_published_twice {
        findings.extend(burden(connection, own, mapping).await?);
    }
    if field(row, 1)? {
        let own = quote_identifier(own);
        findings.push(loud(
            format!(
                "The publication {own} publishes more than inserts: our own transitions come back through the log."
            ),
            format!("ALTER PUBLICATION {own} SET (publish = 'insert');"),
        ));
    }
    Ok(findings)
}

/// What the work table's own publication sends of a row beside what is read from the log: it got that from the first one, while both had
/// the table.
async fn burden(connection: &Connection, own: &str, mapping: &WorkMapping) -> Result<Option<Finding>> {
    // No entry of its own has a table that is published with its schema, or with all tables.
    let text = "SELECT t.attnames::text[], t.rowfilter FROM pg_publication_tables AS t \
         JOIN pg_publication AS p ON p.pubname = t.pubname JOIN pg_publication_rel AS r ON r.prpubid = p.oid \
         JOIN pg_class AS c ON c.oid = r.prrelid AND c.relname = t.tablename \
         JOIN pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = t.schemaname \
         WHERE t.pubname = $1 AND t.schemaname = $2 AND t.tablename = $3";
    let names = [own, &mapping.schema, &mapping.table];
    let parameters: Parameters = names.into_iter().map(|name| Box::new(name.to_owned()) as Box<_>).collect();
    let rows = connection.query(&text.into(), &parameters).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (columns, filter): (Vec<String>, Option<String>) = (field(row, 0)?, field(row, 1)?);
    let filter = filter.map(|filter| format!(" WHERE ({filter})")).unwrap_or_default();
    let (own, table, streamed) = (quote_identifier(own), work_name(mapping), streamed_columns(mapping));
    let listed =
        |columns: &[&str]| columns.iter().map(|column| quote_identifier(column)).collect::<Vec<_>>().join(", ");
    let more: Vec<&str> = columns.iter().map(String::as_str).filter(|column| !streamed.contains(column)).collect();
    let sentence = format!("The publication {own} sends more of {table} than is read from the log: {}.", listed(&more));
    let hint = format!(
        "BEGIN; ALTER PUBLICATION {own} DROP TABLE {table}; ALTER PUBLICATION {own} ADD TABLE {table} ({}){filter}; COMMIT;",
        listed(&streamed)
    );
    let found = Finding::new(Severity::Warning, ErrorKind::Table, Subject::Publication, sentence, hint);
    Ok((!more.is_empty()).then_some(found))
}

/// Whether the stream that is read with these objects has the work table at all.
///
/// # Errors
/// What connecting gives, and a catalogue that cannot be read.
pub async fn streams_work_table(options: &ConnectOptions, objects: &SourceObjects) -> Result<bool> {
    let Some(mapping) = &objects.routing.work else { return Ok(true) };
    let connection = Connection::open(options, PREAMBLE).await?;
    let text = "SELECT EXISTS (SELECT FROM pg_publication_tables \
         WHERE pubname = ANY ($1::text[]) AND schemaname = $2 AND tablename = $3)";
    let parameters: Parameters =
        vec![Box::new(objects.publications()), Box::new(mapping.schema.clone()), Box::new(mapping.table.clone())];
    let rows = connection.query(&text.into(), &parameters).await?;
    rows.first().map_or(Ok(false), |row| field(row, 0))
}

/// One publication, and what it must let through.
struct Checked<'a> {
    name: &'a str,
    actions: &'a [&'a str],
}

/// A table that it must have.
struct Wanted<'a> {
    schema: &'a str,
    table: &'a str,
    /// Quoted.
    name: String,
    /// The columns that we need of it.
    needed: Vec<&'a str>,
}

/// One of our tables as the publication has it.
struct Published<'a> {
    wanted: Wanted<'a>,
    present: bool,
    /// `None` where the version has no column lists.
    columns: Option<Vec<String>>,
    has_filter: bool,
}

impl<'a> Wanted<'a> {
    fn outbox(table: &'a OutboxTable) -> Wanted<'a> {
        let needed = event_columns(&table.columns);
        Wanted { schema: &table.schema, table: &table.table, name: outbox_name(table), needed }
    }

    fn work(mapping: &'a WorkMapping) -> Wanted<'a> {
        let needed = streamed_columns(mapping);
        Wanted { schema: &mapping.schema, table: &mapping.table, name: work_name(mapping), needed }
    }
}

impl Checked<'_> {
    async fn check(&self, connection: &Connection, tables: Vec<Wanted<'_>>, version: i64) -> Result<Vec<Finding>> {
        let text =
            "SELECT puballtables, pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = $1";
        let rows = connection.query(&text.into(), &vec![Box::new(self.name.to_owned())]).await?;
        let Some(row) = rows.first() else {
            return Ok(vec![Finding::new(
                Severity::Error,
                ErrorKind::PublicationMissing,
                Subject::Publication,
                format!("There is no publication \"{}\".", self.name),
                "`postrider setup` creates it. It must be there before the slot is.",
            )]);
        };
        let mut findings = self.judge_actions(row)?;
        if field(row, 0)? {
            findings.push(Finding::new(
                Severity::Warning,
                ErrorKind::Table,
                Subject::Publication,
                format!(
                    "The publication \"{}\" is for all tables: updates of any table without a key fail.",
                    self.name
                ),
                "Publish the outbox and the work table only.",
            ));
        }
        for published in self.published(connection, tables, version).await? {
            findings.extend(published.judge(self.name));
        }
        findings.extend(self.partitioned(connection).await?);
        Ok(findings)
    }

    fn judge_actions(&self, row: &Row) -> Result<Vec<Finding>> {
        let mut missing = Vec::new();
        for (action, column) in [("insert", 1), ("update", 2), ("delete", 3)] {
            if self.actions.contains(&action) && !field::<bool>(row, column)? {
                missing.push(action);
            }
        }
        let publication = quote_identifier(self.name);
        let all = if self.actions.contains(&"truncate") { "insert, update, delete, truncate" } else { "insert" };
        let publish = format!("ALTER PUBLICATION {publication} SET (publish = '{all}');");
        let mut findings = Vec::new();
        if !missing.is_empty() {
            findings.push(Finding::new(
                Severity::Error,
                ErrorKind::PublicationMissing,
                Subject::Publication,
                format!("The publication {publication} does not publish {}.", missing.join(", ")),
                publish.clone(),
            ));
        }
        if self.actions.contains(&"truncate") && !field::<bool>(row, 4)? {
            findings.push(Finding::new(
                Severity::Note,
                ErrorKind::PublicationMissing,
                Subject::Publication,
                format!("The publication {publication} does not publish truncate, so that nobody is told of one."),
                publish,
            ));
        }
        Ok(findings)
    }

    /// What PostgreSQL does not send of partitioned tables, for each that is published, be it by its partitions.
    async fn partitioned(&self, connection: &Connection) -> Result<Vec<Finding>> {
        let text = "SELECT DISTINCT n.nspname::text, root.relname::text, p.pubviaroot \
             FROM pg_publication_tables AS t JOIN pg_publication AS p USING (pubname) \
             JOIN pg_class AS c ON c.oid = format('%I.%I', t.schemaname, t.tablename)::regclass \
             JOIN pg_class AS root ON root.oid = pg_partition_root(c.oid) JOIN pg_namespace AS n ON n.oid = root.relnamespace \
             WHERE pubname = $1 AND (c.relispartition OR c.relkind = 'p') ORDER BY 1, 2";
        let rows = connection.query(&text.into(), &vec![Box::new(self.name.to_owned())]).await?;
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

    async fn published<'t>(
        &self,
        connection: &Connection,
        tables: Vec<Wanted<'t>>,
        version: i64,
    ) -> Result<Vec<Published<'t>>> {
        let details =
            if has_lists(version) { "attnames::text[], rowfilter IS NOT NULL" } else { "NULL::text[], false" };
        let text = format!(
            "SELECT schemaname::text, tablename::text, {details} FROM pg_publication_tables WHERE pubname = $1"
        );
        let rows = connection.query(&text.into(), &vec![Box::new(self.name.to_owned())]).await?;
        let mut published = Vec::new();
        for wanted in tables {
            let mut found = Published { wanted, present: false, columns: None, has_filter: false };
            for row in &rows {
                if field::<&str>(row, 0)? == found.wanted.schema && field::<&str>(row, 1)? == found.wanted.table {
                    found.present = true;
                    found.columns = field(row, 2)?;
                    found.has_filter = field(row, 3)?;
                }
            }
            published.push(found);
        }
        Ok(published)
    }
}

impl Published<'_> {
    fn judge(&self, publication: &str) -> Vec<Finding> {
        let Wanted { name, needed, .. } = &self.wanted;
        let publication = quote_identifier(publication);
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
            Some(columns) => needed
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

fn has_lists(version: i64) -> bool {
    version / 10_000 >= i64::from(LISTS_MAJOR)
}
