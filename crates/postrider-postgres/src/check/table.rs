//! The work table and the outbox tables: columns, keys, replica identities, and what the storage costs.

use std::collections::BTreeMap;

use postrider_core::error::{ErrorKind, Result};
use postrider_core::route::{OutboxTable, WorkMapping};

use super::{Finding, Severity, Subject, field};
use crate::advance::{self, Found};
use crate::client::{Connection, Parameters};
use crate::columns::{Without, WorkColumn, work_columns};
use crate::missing::Missing;
use crate::objects::{
    SPREAD_TABLE_HINT, SourceObjects, changing_columns, event_columns, missing_column_hint, spread_table,
    streamed_columns, work_name,
};
use crate::quote::quote_identifier;
use crate::states;

/// Above this share of a page, a burst of updates finds no room on its page.
const FILLFACTOR_MAX: i64 = 70;

/// What to do about a column of an outbox table that is not there: only the application can fill it.
const MISSING_COLUMN_HINT: &str = "Name the right column in the configuration.";

/// What the catalogue says of one table.
struct Facts {
    subject: Subject,
    /// Quoted.
    name: String,
    /// Partitioned, or other tables inherit from it.
    is_spread: bool,
    /// `d` default, `n` nothing, `f` full, `i` index.
    identity: String,
    identity_columns: Vec<String>,
    /// The publication names columns of the table.
    has_column_list: bool,
    /// Only what is inserted is published, which takes no replica identity.
    only_inserts: bool,
    columns: BTreeMap<String, ColumnFacts>,
    fillfactor: i64,
    /// The key columns of each unique index without predicate or expression, sorted.
    unique_keys: Vec<Vec<String>>,
    /// Each index with the columns that it depends on, its predicate's among them.
    indexes: BTreeMap<String, Vec<String>>,
}

/// What the catalogue says of one column.
struct ColumnFacts {
    /// In `pg_type`.
    type_name: String,
    may_be_null: bool,
}

/// The tables that are not there: whatever else is said of them follows from that.
pub(super) fn missing(missing: &Missing, objects: &SourceObjects) -> Vec<Finding> {
    let work = objects.routing.work.as_ref().map(work_name);
    let judge = |table: &String| {
        let subject = if work.as_ref() == Some(table) { Subject::WorkTable } else { Subject::Outbox };
        let sentence = format!("There is no table {table}.");
        Finding::new(Severity::Error, ErrorKind::Table, subject, sentence, missing.hint())
    };
    missing.tables.iter().map(judge).collect()
}

pub(super) async fn check(connection: &Connection, objects: &SourceObjects, missing: &Missing) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for table in &objects.routing.outbox_tables {
        if let Some(facts) = Facts::load(connection, objects, Subject::Outbox, (&table.schema, &table.table)).await? {
            findings.extend(facts.judge_outbox(table));
        }
    }
    if let Some(mapping) = &objects.routing.work {
        let names = (mapping.schema.as_str(), mapping.table.as_str());
        if let Some(facts) = Facts::load(connection, objects, Subject::WorkTable, names).await? {
            let judged = if objects.observe { facts.judge_observed(mapping) } else { facts.judge_work(mapping) };
            findings.extend(judged);
            findings.extend(judge_words(connection, mapping, objects.observe).await?);
        }
        if objects.same_tx && !missing.has(&work_name(mapping)) {
            let found = advance::find(connection, mapping, objects.history).await?;
            findings.extend(judge_advance(found, mapping, objects.history));
        }
    }
    Ok(findings)
}

/// Whether the column of the state can hold the words: who observes writes none.
async fn judge_words(connection: &Connection, mapping: &WorkMapping, observe: bool) -> Result<Vec<Finding>> {
    let finding =
        |severity, sentence: String, hint| Finding::new(severity, ErrorKind::Table, Subject::WorkTable, sentence, hint);
    let unwritable = if observe { None } else { states::unwritable(connection, mapping).await? };
    let unwritable = unwritable.map(|sentence| finding(Severity::Error, sentence, states::UNWRITABLE_HINT));
    let absent = states::absent(connection, mapping).await?;
    let absent = absent.map(|sentence| finding(Severity::Warning, sentence, states::ABSENT_HINT));
    Ok(unwritable.into_iter().chain(absent).collect())
}

fn judge_advance(found: Found, mapping: &WorkMapping, history: bool) -> Option<Finding> {
    let function = advance::function_name(mapping);
    let finding = |severity, sentence, hint: &str| {
        Some(Finding::new(severity, ErrorKind::Table, Subject::WorkTable, sentence, hint))
    };
    match found {
        Found::AsNeeded => None,
        Found::OfOtherHistory if history => finding(
            Severity::Warning,
            format!("The function {function} writes no history: what a receiver moved on itself is missing there."),
            "`postrider setup` replaces it.",
        ),
        Found::OfOtherHistory => finding(
            Severity::Warning,
            format!(
                "The function {function} writes the history, and the configuration keeps none: nobody deletes what it writes there."
            ),
            "`postrider setup` replaces it.",
        ),
        Found::Otherwise => finding(
            Severity::Error,
            format!(
                "The function {function} is missing or another one: no receiver of a same_tx stage can move its rows on."
            ),
            "`postrider setup` makes it; GRANT EXECUTE on it to the roles of these services.",
        ),
    }
}

impl Facts {
    async fn load(
        connection: &Connection,
        objects: &SourceObjects,
        subject: Subject,
        (schema, table): (&str, &str),
    ) -> Result<Option<Facts>> {
        let text = "SELECT c.oid::int8, c.relreplident::text, \
               coalesce((SELECT split_part(o, '=', 2)::int8 FROM unnest(c.reloptions) AS o WHERE o LIKE 'fillfactor=%'), 100), \
               coalesce((SELECT array_agg(a.attname::text) FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey) \
                 WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate AND (i.indisreplident OR c.relreplident = 'd' AND i.indisprimary)), '{}'), \
               c.relkind = 'p' OR EXISTS (SELECT FROM pg_inherits AS h WHERE h.inhparent = c.oid) \
             FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
             WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')";
        let names: Parameters = vec![Box::new(schema.to_owned()), Box::new(table.to_owned())];
        let rows = connection.query(&text.into(), &names).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let oid: i64 = field(row, 0)?;
        Ok(Some(Facts {
            subject,
            name: crate::quote::quote_table(schema, table),
            is_spread: field(row, 4)?,
            identity: field(row, 1)?,
            identity_columns: field(row, 3)?,
            has_column_list: has_column_list(connection, oid, &objects.publication).await?,
            only_inserts: subject == Subject::WorkTable && objects.quiet,
            columns: columns(connection, oid).await?,
            fillfactor: field(row, 2)?,
            unique_keys: unique_keys(connection, oid).await?,
            indexes: indexes(connection, oid).await?,
        }))
    }

    fn judge_outbox(&self, table: &OutboxTable) -> Vec<Finding> {
        let needed = event_columns(&table.columns);
        let mut findings: Vec<Finding> =
            needed.into_iter().filter_map(|column| self.judge_column(column, &[], MISSING_COLUMN_HINT)).collect();
        findings.extend(self.judge_identity());
        findings
    }

    fn judge_work(&self, mapping: &WorkMapping) -> Vec<Finding> {
        // Nothing else matters as long as the rows are not in one table.
        if self.is_spread {
            return vec![self.error(spread_table(&self.name), SPREAD_TABLE_HINT.to_owned())];
        }
        let mut findings: Vec<Finding> = wanted(mapping)
            .into_iter()
            .filter_map(|(column, types)| {
                self.judge_column(column, types, &missing_column_hint(mapping, &self.name, column))
            })
            .collect();
        findings.extend(self.judge_lacking(mapping, "To have it"));
        findings.extend(self.judge_nulls(mapping));
        findings.extend(self.judge_key(mapping));
        findings.extend(self.judge_identity());
        findings.extend(self.judge_indexes(mapping));
        findings
    }

    /// Of a table that somebody else works on: what the log must carry of it.
    fn judge_observed(&self, mapping: &WorkMapping) -> Vec<Finding> {
        let streamed = streamed_columns(mapping);
        let wanted = wanted(mapping).into_iter().filter(|(column, _)| streamed.contains(column));
        let mut findings: Vec<Finding> = wanted
            .filter_map(|(column, types)| {
                self.judge_column(column, types, &missing_column_hint(mapping, &self.name, column))
            })
            .collect();
        // No fault as long as nothing is executed.
        let lacking = self.judge_lacking(mapping, "To execute here");
        findings.extend(lacking.into_iter().map(|finding| Finding { severity: Severity::Note, ..finding }));
        findings.extend(self.judge_nulls(mapping));
        findings.extend(self.judge_key(mapping));
        findings.extend(self.judge_identity());
        findings
    }

    fn judge_column(&self, column: &str, types: &[&str], missing: &str) -> Option<Finding> {
        let Facts { name, .. } = self;
        let quoted = quote_identifier(column);
        match self.columns.get(column) {
            None => Some(self.error(format!("The table {name} has no column {quoted}."), missing.to_owned())),
            Some(found) if !types.is_empty() && !types.contains(&found.type_name.as_str()) => Some(self.error(
                format!("The column {quoted} of {name} is of type {}.", found.type_name),
                format!("It must be of type {}.", types.join(" or ")),
            )),
            Some(_) => None,
        }
    }

    /// A row without a stage, a state or a number is none that anybody can read.
    fn judge_nulls(&self, mapping: &WorkMapping) -> Vec<Finding> {
        let numbers = [&mapping.attempt_count, &mapping.deferral_count, &mapping.fence, &mapping.epoch];
        let numbers = numbers.into_iter().flatten().map(|column| (column, true));
        let columns = [(&mapping.stage, false), (&mapping.stage_state, false)].into_iter().chain(numbers);
        let may_be_null =
            columns.filter(|(column, _)| self.columns.get(*column).is_some_and(|facts| facts.may_be_null));
        let judge = |(column, is_number): (&String, bool)| {
            let (name, column) = (&self.name, quote_identifier(column));
            let not_null = format!("ALTER COLUMN {column} SET NOT NULL;");
            let hint = match is_number {
                true => format!(
                    "UPDATE {name} SET {column} = 0 WHERE {column} IS NULL; ALTER TABLE {name} ALTER COLUMN {column} SET DEFAULT 0, {not_null}"
                ),
                false => format!("Give each row one; then ALTER TABLE {name} {not_null}"),
            };
            let sentence = format!(
                "The column {column} of {name} may be NULL: nobody reads a row where it is, and nobody starts it."
            );
            Finding::new(Severity::Warning, ErrorKind::Table, self.subject, sentence, hint)
        };
        may_be_null.map(judge).collect()
    }

    /// What the table does without, and what ends that, for the purpose.
    fn judge_lacking(&self, mapping: &WorkMapping, purpose: &str) -> Vec<Finding> {
        let lacking = work_columns(mapping).into_iter().filter(|(_, own)| own.is_none());
        let judge = |(column, _): (&WorkColumn, Option<&str>)| {
            let (severity, why) = match column.without {
                Without::Refused(why) => (Severity::Error, why),
                Without::Loses(what) => (Severity::Note, what),
            };
            Finding::new(
                severity,
                ErrorKind::Table,
                self.subject,
                format!("The table {} has no column for {}. {why}", self.name, column.name),
                format!("{purpose}: {}", column.addition(&self.name, column.name)),
            )
        };
        lacking.map(judge).collect()
    }

    /// Two rows under one key would be claimed as one.
    fn judge_key(&self, mapping: &WorkMapping) -> Option<Finding> {
        let mut key = mapping.key.clone();
        key.sort_unstable();
        let is_unique = self.unique_keys.contains(&key);
        (!is_unique).then(|| {
            let columns: Vec<String> = mapping.key.iter().map(|column| quote_identifier(column)).collect();
            self.error(
                format!("The key ({}) of {} has no unique index of just these columns.", columns.join(", "), self.name),
                "Name the columns of the table's primary key in the configuration.".to_owned(),
            )
        })
    }

    fn judge_identity(&self) -> Option<Finding> {
        let Facts { name, .. } = self;
        match self.identity.as_str() {
            "f" if self.has_column_list => Some(self.error(
                format!("The table {name} has replica identity FULL and is published with a column list: the application's updates of it fail."),
                format!("ALTER TABLE {name} REPLICA IDENTITY DEFAULT; or publish it without a column list."),
            )),
            "f" if self.subject == Subject::WorkTable => Some(Finding::new(
                Severity::Warning,
                ErrorKind::Table,
                self.subject,
                format!("The table {name} has replica identity FULL: each update writes the whole old row into the log."),
                format!("ALTER TABLE {name} REPLICA IDENTITY DEFAULT;"),
            )),
            "f" => None,
            _ if self.only_inserts => None,
            _ if self.identity_columns.is_empty() => Some(self.error(
                format!("The table {name} has no replica identity: once it is published, the application's updates and deletes of it fail."),
                format!("Give {name} a primary key, or ALTER TABLE {name} REPLICA IDENTITY USING INDEX one that is unique and has no nulls."),
            )),
            _ => None,
        }
    }

    fn judge_indexes(&self, mapping: &WorkMapping) -> Vec<Finding> {
        let Facts { name, .. } = self;
        let warn = |sentence, hint: String| {
            Finding::new(Severity::Warning, ErrorKind::Table, Subject::WorkTable, sentence, hint)
        };
        let changing = changing_columns(mapping);
        let mut findings = Vec::new();
        for (index, columns) in &self.indexes {
            let touched: Vec<String> = columns
                .iter()
                .filter(|column| changing.contains(&column.as_str()))
                .map(|column| quote_identifier(column))
                .collect();
            if !touched.is_empty() {
                findings.push(warn(
                    format!(
                        "The index {index} of {name} mentions {}: no transition of a row is a HOT update any more.",
                        touched.join(", ")
                    ),
                    "Drop the index if no query of yours needs it: Postrider needs none on state, stage or time."
                        .to_owned(),
                ));
            }
        }
        if let Some(closed_at) = &mapping.closed_at
            && !self.indexes.values().any(|columns| columns.contains(closed_at))
        {
            findings.push(warn(
                format!("The table {name} has no index of its open rows: at each start all rows are read."),
                format!(
                    "CREATE INDEX CONCURRENTLY ON {name} ({}) WHERE {} IS NULL;",
                    mapping.key.iter().map(|column| quote_identifier(column)).collect::<Vec<_>>().join(", "),
                    quote_identifier(closed_at)
                ),
            ));
        }
        if self.fillfactor > FILLFACTOR_MAX {
            findings.push(warn(
                format!(
                    "The table {name} has fillfactor {}: a burst of updates finds no room on its pages.",
                    self.fillfactor
                ),
                format!("ALTER TABLE {name} SET (fillfactor = 45); new pages then keep room for that."),
            ));
        }
        findings
    }

    fn error(&self, sentence: String, hint: String) -> Finding {
        Finding::new(Severity::Error, ErrorKind::Table, self.subject, sentence, hint)
    }
}

/// The columns of a work table and the types that each may have; an empty list is any type that has a text.
fn wanted(mapping: &WorkMapping) -> Vec<(&str, &'static [&'static str])> {
    let mut wanted: Vec<(&str, &[&str])> = mapping.key.iter().map(|column| (column.as_str(), &[][..])).collect();
    wanted.extend([(mapping.stage.as_str(), &[][..]), (&mapping.stage_state, &[])]);
    wanted.extend(work_columns(mapping).into_iter().filter_map(|(column, own)| Some((own?, column.types))));
    wanted
}

async fn columns(connection: &Connection, oid: i64) -> Result<BTreeMap<String, ColumnFacts>> {
    let text = "SELECT a.attname::text, t.typname::text, NOT a.attnotnull FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid \
         WHERE a.attrelid = $1::int8::oid AND a.attnum > 0 AND NOT a.attisdropped";
    let rows = connection.query(&text.into(), &vec![Box::new(oid)]).await?;
    let facts = |row| Ok((field(row, 0)?, ColumnFacts { type_name: field(row, 1)?, may_be_null: field(row, 2)? }));
    rows.iter().map(facts).collect()
}

async fn unique_keys(connection: &Connection, oid: i64) -> Result<Vec<Vec<String>>> {
    let text = "SELECT array_agg(a.attname::text ORDER BY a.attname::text COLLATE \"C\") \
         FROM pg_index AS i JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place) ON k.place <= i.indnkeyatts \
         JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum \
         WHERE i.indrelid = $1::int8::oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL \
         GROUP BY i.indexrelid";
    let rows = connection.query(&text.into(), &vec![Box::new(oid)]).await?;
    rows.iter().map(|row| field(row, 0)).collect()
}

/// An index of a constraint depends on the constraint and not on columns, so the key's own are read as well.
async fn indexes(connection: &Connection, oid: i64) -> Result<BTreeMap<String, Vec<String>>> {
    let text = "SELECT quote_ident(c.relname), array_agg(DISTINCT a.attname::text) \
         FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_attribute AS a ON a.attrelid = i.indrelid \
         WHERE i.indrelid = $1::int8::oid AND a.attnum > 0 AND (a.attnum = ANY (i.indkey) OR EXISTS ( \
           SELECT FROM pg_depend AS d WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid \
             AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid AND d.refobjsubid = a.attnum)) \
         GROUP BY c.relname";
    let rows = connection.query(&text.into(), &vec![Box::new(oid)]).await?;
    rows.iter().map(|row| Ok((field(row, 0)?, field(row, 1)?))).collect()
}

/// Whether the publication has a column list for the table.
async fn has_column_list(connection: &Connection, oid: i64, publication: &str) -> Result<bool> {
    // The column `prattrs` came with version 15; through JSON the statement holds for 14, too.
    let text = "SELECT coalesce(jsonb_typeof(to_jsonb(r) -> 'prattrs'), 'null') <> 'null' \
         FROM pg_publication_rel AS r JOIN pg_publication AS p ON p.oid = r.prpubid \
         WHERE r.prrelid = $1::int8::oid AND p.pubname = $2";
    let parameters: Parameters = vec![Box::new(oid), Box::new(publication.to_owned())];
    let rows = connection.query(&text.into(), &parameters).await?;
    rows.first().map_or(Ok(false), |row| field(row, 0))
}
