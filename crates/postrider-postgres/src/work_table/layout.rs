//! The mapped table as SQL: quoted names, the types of its columns, and the fragments that all statements share.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::route::WorkMapping;
use postrider_core::time::Timestamp;
use postrider_core::work::{DefinitionName, OwnerId, StageName, StageState, StateWords, WorkKey, WorkVersion};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::asked::{Columns, Shape};
use super::cells::{Cells, Unreadable};
use crate::client::{Connection, Parameters};
use crate::columns::refused_columns;
use crate::notices::TRIGGER;
use crate::objects::{MISSING_TABLE_HINT, SPREAD_TABLE_HINT, is_open, missing_column_hint, spread_table};
use crate::quote::{quote_identifier, quote_literal, quote_table};
use crate::words;

/// The table and the mapped columns, ready to be written into statements.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Schema and table, quoted.
    pub(crate) table: String,
    pub(crate) key: Vec<Column>,
    pub(crate) stage: Column,
    pub(crate) stage_state: Column,
    pub(crate) states: Arc<StateWords>,
    pub(crate) attempt_count: Column,
    pub(crate) deferral_count: Column,
    pub(crate) fence: Column,
    pub(crate) epoch: Column,
    pub(crate) next_attempt_at: Column,
    pub(crate) lease_until: Column,
    pub(crate) lease_owner: Column,
    pub(crate) closed_at: Column,
    pub(crate) request_hash: Column,
    pub(crate) payload: Column,
    pub(crate) definition: Column,
    pub(crate) last_error: Column,
    pub(crate) updated_at: Column,
    /// The row `t` is open, as a condition.
    pub(crate) is_open: String,
    /// Transitions tell the history of the attempts that they end.
    pub(crate) history: bool,
    /// A row is as a statement of ours left it until somebody else writes it: the table has no triggers that add to an update, and no columns
    /// that the server computes.
    pub(super) tells_versions: bool,
}

/// One column: its quoted name, and its type as `format_type` prints it.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) type_name: String,
    /// The table has none: this is read in its place, and nothing is written.
    in_place: Option<&'static str>,
}

impl Column {
    pub(crate) fn is_there(&self) -> bool {
        self.in_place.is_none()
    }

    /// Its value in the row `t`.
    pub(crate) fn value(&self) -> String {
        self.in_place.map_or_else(|| format!("t.{}", self.name), str::to_owned)
    }
}

impl Layout {
    /// Reads the types of the mapped columns. A table or a column that is not there is an error that names it, as is a table whose
    /// rows are spread over several: the statements find a row again by its `ctid`, which tells rows of one table apart and no more.
    pub(crate) async fn load(connection: &Connection, mapping: &WorkMapping, history: bool) -> Result<Layout> {
        let table = quote_table(&mapping.schema, &mapping.table);
        let text: Arc<str> = "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), \
               c.relkind = 'r' AND NOT EXISTS (SELECT FROM pg_inherits AS h WHERE h.inhparent = c.oid), \
               a.attgenerated <> '' OR EXISTS (SELECT FROM pg_trigger AS g \
                 WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgenabled <> 'D' AND g.tgtype & 16 <> 0 \
                   AND g.tgname::text <> $2) \
             FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid \
             WHERE c.oid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped"
            .into();
        let parameters: Parameters = vec![Box::new(table.clone()), Box::new(TRIGGER)];
        let rows = connection.query(&text, &parameters).await?;
        if rows.is_empty() {
            return Err(Error::new(ErrorKind::Table, "the work table does not exist")
                .with_detail(format!("There is no table {table}, or our role may not see it."))
                .with_hint(MISSING_TABLE_HINT));
        }
        if rows.iter().any(|row| !row.get::<_, bool>(2)) {
            return Err(Error::new(ErrorKind::Table, "the work table is not one plain table")
                .with_detail(spread_table(&table))
                .with_hint(SPREAD_TABLE_HINT));
        }
        let tells_versions = !rows.iter().any(|row| row.get::<_, bool>(3));
        let types: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let column = |name: &str| find_column(&types, mapping, &table, name);
        let needed = |own: &Option<String>, name: &str| match own {
            Some(own) => column(own),
            None => Err(refuse(mapping, name)),
        };
        let optional = |own: &Option<String>, name: &str, in_place: &'static str| match own {
            Some(own) => column(own),
            None => Ok(Column { name: quote_identifier(name), type_name: "text".to_owned(), in_place: Some(in_place) }),
        };
        Ok(Layout {
            key: mapping.key.iter().map(|name| column(name)).collect::<Result<_>>()?,
            stage: column(&mapping.stage)?,
            stage_state: column(&mapping.stage_state)?,
            states: Arc::clone(&mapping.states),
            attempt_count: needed(&mapping.attempt_count, "attempt_count")?,
            deferral_count: optional(&mapping.deferral_count, "deferral_count", "0")?,
            fence: needed(&mapping.fence, "fence")?,
            epoch: optional(&mapping.epoch, "epoch", "0")?,
            next_attempt_at: needed(&mapping.next_attempt_at, "next_attempt_at")?,
            lease_until: needed(&mapping.lease_until, "lease_until")?,
            lease_owner: optional(&mapping.lease_owner, "lease_owner", "NULL::text")?,
            closed_at: optional(&mapping.closed_at, "closed_at", "NULL::timestamptz")?,
            request_hash: optional(&mapping.request_hash, "request_hash", "NULL::bytea")?,
            payload: optional(&mapping.payload, "payload", "NULL::text")?,
            definition: optional(&mapping.definition, "definition", "NULL::text")?,
            last_error: optional(&mapping.last_error, "last_error", "NULL::text")?,
            updated_at: needed(&mapping.updated_at, "updated_at")?,
            is_open: is_open(mapping),
            history,
            tells_versions,
            table,
        })
    }

    /// `asked` with all its columns as arrays.
    pub(crate) fn asked(&self, further: &[(&'static str, &'static str)]) -> String {
        self.asked_as(Shape::Many, Columns { each: further, alike: &[] })
    }

    /// `asked` as a table of the key columns, texts, and of further ones, with the rows' numbers from 1 in the column `ord`. The parameters are
    /// numbered in the order of the columns.
    pub(super) fn asked_as(&self, shape: Shape, further: Columns<'_>) -> String {
        let each: Vec<(&str, String)> = (1..=self.key.len())
            .map(|number| ("text", format!("k{number}")))
            .chain(further.each.iter().map(|(kind, name)| (*kind, (*name).to_owned())))
            .collect();
        let alike = further.alike.iter().map(|(kind, name)| (*kind, (*name).to_owned()));
        let (arrays, values) = match shape {
            Shape::Many => (each.into_iter().chain(alike).collect(), Vec::new()),
            Shape::Alike => (each, alike.collect()),
            Shape::One => (Vec::new(), each.into_iter().chain(alike).collect::<Vec<_>>()),
        };
        let first = arrays.len() + 1;
        let values =
            values.iter().enumerate().map(|(index, (kind, name))| format!("${}::{kind} AS {name}", first + index));
        let mut columns: Vec<String> = values.collect();
        if arrays.is_empty() {
            return format!("SELECT {}, 1::int8 AS ord", columns.join(", "));
        }
        columns.insert(0, "named.*".to_owned());
        let names: Vec<&str> = arrays.iter().map(|(_, name)| name.as_str()).collect();
        let arrays: Vec<String> =
            arrays.iter().enumerate().map(|(index, (kind, _))| format!("${}::{kind}[]", index + 1)).collect();
        format!(
            "SELECT {} FROM unnest({}) WITH ORDINALITY AS named ({}, ord)",
            columns.join(", "),
            arrays.join(", "),
            names.join(", ")
        )
    }

    /// The row `t` is the one that `asked` names.
    pub(crate) fn key_matches(&self) -> String {
        let equal = |(index, column): (usize, &Column)| {
            format!("t.{} = asked.k{}::{}", column.name, index + 1, column.type_name)
        };
        self.key.iter().enumerate().map(equal).collect::<Vec<_>>().join(" AND ")
    }

    /// The rows of `asked` as far as they are there, each with its row `t`, which is looked up by its key: a plan that was made while the table
    /// was small would otherwise read all of it, however large it is by then.
    pub(crate) fn asked_rows(&self, asked: &str) -> String {
        format!(
            "({asked}) AS asked CROSS JOIN LATERAL (SELECT t.tableoid, t.* FROM {table} AS t WHERE {keys} OFFSET 0) AS t",
            table = self.table,
            keys = self.key_matches(),
        )
    }

    /// The key columns of `t`, for ORDER BY and row comparison.
    pub(crate) fn key_list(&self) -> String {
        self.key.iter().map(|column| format!("t.{}", column.name)).collect::<Vec<_>>().join(", ")
    }

    /// The texts of the key columns of `t`.
    pub(crate) fn key_texts(&self) -> String {
        self.key.iter().map(|column| format!("t.{}::text", column.name)).collect::<Vec<_>>().join(", ")
    }

    /// The stage of the row `t` may have been sent, as a condition. A table that keeps no hash cannot tell.
    pub(crate) fn was_sent(&self) -> String {
        let hash = &self.request_hash;
        if hash.is_there() { format!("t.{} IS NOT NULL", hash.name) } else { "true".to_owned() }
    }

    /// The payload as it is sent.
    pub(crate) fn payload_text(&self) -> String {
        format!("coalesce({}::text, 'null')", self.payload.value())
    }

    /// What a claim is made of: fence, attempts, deferrals, epoch, definition, and the payload as the locking part read it.
    pub(crate) fn claim_columns(&self) -> Vec<String> {
        let numbers = [&self.fence, &self.attempt_count, &self.deferral_count, &self.epoch];
        let mut columns: Vec<String> = numbers.into_iter().map(|column| format!("{}::int8", column.value())).collect();
        columns.extend([format!("{}::text", self.definition.value()), "asked.payload_text".to_owned()]);
        columns
    }

    /// The columns of a row version in the order that `read_version` takes them.
    pub(crate) fn version_columns(&self) -> String {
        let mut columns: Vec<String> = self.key.iter().map(|column| format!("t.{}::text", column.name)).collect();
        for text in [&self.definition, &self.stage, &self.stage_state] {
            columns.push(format!("{}::text", text.value()));
        }
        for number in [&self.attempt_count, &self.deferral_count, &self.fence, &self.epoch] {
            columns.push(format!("{}::int8", number.value()));
        }
        columns.push(format!("t.{}::timestamptz", self.next_attempt_at.name));
        columns.push(format!("t.{}::timestamptz", self.lease_until.name));
        columns.push(format!("{}::text", self.lease_owner.value()));
        columns.push(format!("NOT ({})", self.is_open));
        // A sub-select gives each column a name of its own.
        let named = columns.iter().enumerate().map(|(index, column)| format!("{column} AS v{index}"));
        named.collect::<Vec<_>>().join(", ")
    }

    /// Reads a row version whose columns begin at `first`.
    pub(crate) fn read_version(&self, row: &Row, first: usize) -> Result<WorkVersion, Unreadable<'_>> {
        let mut cells = Cells::new(row, first);
        Ok(WorkVersion {
            key: self.read_key(&mut cells)?,
            definition: cells.take::<Option<&str>>(&self.definition)?.map(DefinitionName::new),
            stage: StageName::new(cells.take(&self.stage)?),
            state: self.read_state(&mut cells)?,
            attempt_count: cells.take_count(&self.attempt_count)?,
            deferral_count: cells.take_count(&self.deferral_count)?,
            fence: cells.take(&self.fence)?,
            epoch: cells.take_count(&self.epoch)?,
            next_attempt_at: cells.take::<Option<Micros>>(&self.next_attempt_at)?.map(|micros| micros.0),
            lease_until: cells.take::<Option<Micros>>(&self.lease_until)?.map(|micros| micros.0),
            lease_owner: cells.take::<Option<&str>>(&self.lease_owner)?.and_then(read_owner),
            closed: cells.take(&self.closed_at)?,
        })
    }

    /// Reads the word in the column of the state.
    pub(crate) fn read_state(&self, cells: &mut Cells<'_>) -> Result<StageState, Unreadable<'_>> {
        let word: &str = cells.take(&self.stage_state)?;
        self.states
            .state(word)
            .ok_or_else(|| Unreadable { word: Some(word.to_owned()), ..Unreadable::of(&self.stage_state) })
    }

    /// The table's word for a state as it is written, as a literal.
    pub(crate) fn word(&self, state: StageState) -> String {
        quote_literal(self.states.word(state))
    }

    /// Behind a text of SQL: it is one of the table's words for these states.
    pub(crate) fn one_of(&self, states: &[StageState]) -> String {
        words::one_of(&self.states, states)
    }

    /// Reads the key, the first of the columns of a version.
    pub(crate) fn read_key(&self, cells: &mut Cells<'_>) -> Result<WorkKey, Unreadable<'_>> {
        let parts: Vec<String> = self.key.iter().map(|column| cells.take(column)).collect::<Result<_, _>>()?;
        Ok(WorkKey::new(parts))
    }
}

/// The SET list of an UPDATE; a column that the table does not have is left out.
pub(crate) fn assignments(list: &[(&Column, String)]) -> String {
    let there = list.iter().filter(|(column, _)| column.is_there());
    there.map(|(column, value)| format!("{} = {value}", column.name)).collect::<Vec<_>>().join(", ")
}

/// A span in whole microseconds, the server's resolution; at most ten years, so that no sum leaves the range of `timestamptz`.
pub(crate) fn micros(span: Duration) -> i64 {
    const SPAN_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);
    i64::try_from(span.min(SPAN_MAX).as_micros()).unwrap_or_default()
}

/// A value of the table that this version cannot read.
pub(crate) fn unreadable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Table, "the work table holds a value that we cannot read")
        .with_source(error)
        .with_hint("`postrider check` compares the table's columns with what they must be.")
}

fn find_column(types: &[(String, String)], mapping: &WorkMapping, table: &str, name: &str) -> Result<Column> {
    let found = types.iter().find(|(known, _)| known == name);
    let (_, type_name) = found.ok_or_else(|| {
        Error::new(ErrorKind::Table, "a column of the work table does not exist")
            .with_detail(format!("Table {table} has no column {}.", quote_identifier(name)))
            .with_hint(missing_column_hint(mapping, table, name))
    })?;
    Ok(Column { name: quote_identifier(name), type_name: type_name.clone(), in_place: None })
}

/// Why no stage is executed in a table without this column.
fn refuse(mapping: &WorkMapping, name: &str) -> Error {
    let refused = refused_columns(mapping).into_iter().find(|(column, _, _)| *column == name);
    let (_, why, cure) = refused.unwrap_or_default();
    Error::new(ErrorKind::Table, "the work table lacks a column without which no stage is executed")
        .with_detail(format!("It has no column for {name}. {why}"))
        .with_hint(cure)
}

fn read_owner(text: &str) -> Option<OwnerId> {
    text.parse().ok()
}

/// A `timestamptz` in its binary form: microseconds since 2000-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Micros(pub(super) Timestamp);

impl<'a> FromSql<'a> for Micros {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Micros(Timestamp::from_postgres_micros(postgres_protocol::types::timestamp_from_sql(raw)?)))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::TIMESTAMPTZ
    }
}

impl ToSql for Micros {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        postgres_protocol::types::timestamp_to_sql(self.0.to_postgres_micros(), out);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::TIMESTAMPTZ
    }

    to_sql_checked!();
}
