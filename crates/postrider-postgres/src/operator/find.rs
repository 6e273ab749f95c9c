//! Looking rows up: by key, or by what they have in common, a page at a time in the order of the keys.

use std::collections::BTreeSet;
use std::time::Duration;

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::work::{DefinitionName, StageName, StageState, WorkKey};

use super::{Operator, WorkRow};
use crate::client::Parameters;
use crate::quote::quote_literal;
use crate::work_table::asked::key_parameters;
use crate::work_table::cells::{Cells, Unreadable};
use crate::work_table::layout::{Column, micros};

/// What rows have in common; each part that is left out holds for all. Closed rows are found only where a state of theirs is named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowFilter {
    pub stage: Option<StageName>,
    pub state: Option<StageState>,
    /// Rows without a definition have none of these.
    pub definition: Option<DefinitionName>,
    /// A pattern of LIKE that `last_error` matches.
    pub reason_like: Option<String>,
    /// They were last written longer ago than this.
    pub older_than: Option<Duration>,
}

/// Rows in the order of their keys.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FoundRows {
    /// Those that can be read.
    pub rows: Vec<WorkRow>,
    pub unreadable: UnreadableRows,
}

/// Rows that hold what cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnreadableRows {
    pub count: usize,
    /// Where they hold it.
    pub columns: BTreeSet<String>,
    /// The first of them.
    pub first: Vec<UnreadableRow>,
    /// The statement by which the first of them that has an unknown word waits for a person.
    park: Option<String>,
}

/// A row that holds what cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableRow {
    pub key: WorkKey,
    /// Where it holds it, as a name in SQL.
    pub column: String,
    /// The word in the column of the state, where that is no state's.
    pub word: Option<String>,
}

struct Page {
    found: FoundRows,
    /// The key of the last of all; `None` where there was none.
    last: Option<WorkKey>,
}

/// So many rows that cannot be read are named.
const NAMED_MAX: usize = 10;

impl UnreadableRows {
    pub fn add(&mut self, more: UnreadableRows) {
        self.count += more.count;
        self.columns.extend(more.columns);
        self.first.extend(more.first);
        self.first.truncate(NAMED_MAX);
        self.park = self.park.take().or(more.park);
    }

    /// What is wrong with them, as a sentence; `None` where there are none.
    pub fn sentence(&self) -> Option<String> {
        let columns: Vec<&str> = self.columns.iter().map(String::as_str).collect();
        let rows = match self.count {
            0 => return None,
            1 => "1 row holds".to_owned(),
            count => format!("{count} rows hold"),
        };
        let named: Vec<String> = self.first.iter().map(UnreadableRow::named).collect();
        let named = match self.count > named.len() {
            true => format!(", among them {}", named.join("; ")),
            false => format!(": {}", named.join("; ")),
        };
        Some(format!("{rows} what cannot be read (in {}){named}.", columns.join(", ")))
    }

    /// What to do about them.
    pub fn cure(&self) -> String {
        match &self.park {
            Some(park) => format!(
                "Say in work.states which state such a word is of; or write one that is a state's, and raise the fence with it. So the row waits for a person: {park}"
            ),
            None => "Correct the values by hand.".to_owned(),
        }
    }
}

impl UnreadableRow {
    fn named(&self) -> String {
        let key = self.key.parts().collect::<Vec<_>>().join(" ");
        match &self.word {
            Some(word) => format!("{key}, with the word {word:?}"),
            None => key,
        }
    }
}

impl RowFilter {
    /// It holds for every open row.
    pub fn is_empty(&self) -> bool {
        *self == RowFilter::default()
    }

    fn is_of_closed(&self) -> bool {
        self.state.is_some_and(StageState::is_closed)
    }
}

impl Operator {
    /// The row with this key.
    ///
    /// # Errors
    /// `Configuration` for a key with a part that is no value of its column's type, `Table` for a row that cannot be read; and what the server
    /// says.
    pub async fn row(&self, key: &WorkKey) -> Result<Option<WorkRow>> {
        let layout = &self.layout;
        let text = format!(
            "SELECT {columns} FROM ({asked}) AS asked JOIN {table} AS t ON {keys}",
            columns = self.columns(),
            asked = layout.asked(&[]),
            table = layout.table,
            keys = layout.key_matches(),
        );
        let parameters = key_parameters(layout.key.len(), std::iter::once(key))?;
        let found = match self.read(&text, &parameters).await {
            Ok(page) => page.found,
            Err(refusal) => return Err(self.judge_key(key, refusal).await),
        };
        let FoundRows { mut rows, unreadable } = found;
        match unreadable.sentence() {
            Some(sentence) => Err(Error::new(ErrorKind::Table, "the work row cannot be read")
                .with_detail(sentence)
                .with_hint(unreadable.cure())),
            None => Ok(rows.pop()),
        }
    }

    /// At most `limit` rows that the filter holds for, in the order of their keys, those behind `after`; and how many of those that
    /// stand before the last of them cannot be read. None: there are no more.
    ///
    /// # Errors
    /// What the server says.
    pub async fn find(&self, filter: &RowFilter, after: Option<&WorkKey>, limit: u32) -> Result<FoundRows> {
        let mut page = self.page(filter, after, limit).await?;
        // Rows that cannot be read are left out, and may be all that a page has: others can stand behind it.
        while page.found.rows.is_empty()
            && let Some(last) = page.last
        {
            let mut unreadable = page.found.unreadable;
            page = self.page(filter, Some(&last), limit).await?;
            unreadable.add(page.found.unreadable);
            page.found.unreadable = unreadable;
        }
        Ok(page.found)
    }

    async fn page(&self, filter: &RowFilter, after: Option<&WorkKey>, limit: u32) -> Result<Page> {
        let layout = &self.layout;
        let mut parameters = match after {
            Some(after) => key_parameters(layout.key.len(), std::iter::once(after))?,
            None => Vec::new(),
        };
        let mut conditions = Vec::new();
        if !parameters.is_empty() {
            let place =
                |(index, column): (usize, &Column)| format!("(${}::text[])[1]::{}", index + 1, column.type_name);
            let places: Vec<String> = layout.key.iter().enumerate().map(place).collect();
            conditions.push(format!("ROW({}) > ROW({})", layout.key_list(), places.join(", ")));
        }
        let mut condition = |text: &str, value: Box<dyn tokio_postgres::types::ToSql + Sync + Send>| {
            parameters.push(value);
            conditions.push(text.replace('?', &format!("${}", parameters.len())));
        };
        if let Some(stage) = &filter.stage {
            condition(&format!("t.{}::text = ?::text", layout.stage.name), Box::new(stage.as_str().to_owned()));
        }
        if let Some(definition) = &filter.definition {
            let text = format!("{}::text = ?::text", layout.definition.value());
            condition(&text, Box::new(definition.as_str().to_owned()));
        }
        if let Some(pattern) = &filter.reason_like {
            condition(&format!("{} LIKE ?::text", layout.last_error.value()), Box::new(pattern.clone()));
        }
        if let Some(age) = filter.older_than {
            let text = format!("t.{} < now() - ?::int8 * interval '1 microsecond'", layout.updated_at.name);
            condition(&text, Box::new(micros(age)));
        }
        if let Some(state) = filter.state {
            conditions.push(format!("t.{}::text {}", layout.stage_state.name, layout.one_of(&[state])));
        }
        if !filter.is_of_closed() {
            conditions.push(layout.is_open.clone());
        }
        let conditions = if conditions.is_empty() { "true".to_owned() } else { conditions.join(" AND ") };
        let text = format!(
            "SELECT {columns} FROM {table} AS t WHERE {conditions} ORDER BY {order} LIMIT {limit}",
            columns = self.columns(),
            table = layout.table,
            order = layout.key_list(),
        );
        match (self.read(&text, &parameters).await, after) {
            (Err(refusal), Some(after)) => Err(self.judge_key(after, refusal).await),
            (page, _) => page,
        }
    }

    /// Why a statement that names this key was refused: where a part of the key is no value of its column's type, that.
    async fn judge_key(&self, key: &WorkKey, refusal: Error) -> Error {
        if refusal.kind() != ErrorKind::Table {
            return refusal;
        }
        for (column, part) in self.layout.key.iter().zip(key.parts()) {
            let text = format!("SELECT $1::text::{}", column.type_name);
            let asked = self.connection.query(&text.into(), &vec![Box::new(part)]).await;
            if asked.is_err_and(|error| error.kind() == ErrorKind::Table) {
                return Error::new(ErrorKind::Configuration, "a part of the key is not of its column's type")
                    .with_detail(format!(
                        "It is {part:?}; the column {} is of the type {}.",
                        column.name, column.type_name
                    ))
                    .with_hint("Type the key as the table has it: `postrider work ls` prints the keys of rows.");
            }
        }
        refusal
    }

    fn columns(&self) -> String {
        let layout = &self.layout;
        format!(
            "{}, {}::text, t.{updated}::text, extract(epoch FROM now() - t.{updated})::float8",
            layout.version_columns(),
            layout.last_error.value(),
            updated = layout.updated_at.name,
        )
    }

    async fn read(&self, text: &str, parameters: &Parameters<'_>) -> Result<Page> {
        let layout = &self.layout;
        let rows = self.connection.query(&text.into(), parameters).await?;
        let first = layout.key.len() + 11;
        let read = |row| {
            let mut cells = Cells::new(row, first);
            Ok(WorkRow {
                version: layout.read_version(row, 0)?,
                reason: cells.take(&layout.last_error)?,
                updated_at: cells.take(&layout.updated_at)?,
                age_seconds: cells.take(&layout.updated_at)?,
            })
        };
        let key_of = |row| {
            let key = layout.read_key(&mut Cells::new(row, 0));
            key.map_err(|_| Error::new(ErrorKind::Internal, "a row without a key was read"))
        };
        let mut found = FoundRows::default();
        for row in &rows {
            match read(row) {
                Ok(row) => found.rows.push(row),
                Err(problem) => found.unreadable.add(self.unreadable(key_of(row)?, problem)),
            }
        }
        Ok(Page { found, last: rows.last().map(key_of).transpose()? })
    }

    fn unreadable(&self, key: WorkKey, Unreadable { column, word }: Unreadable<'_>) -> UnreadableRows {
        let layout = &self.layout;
        // It writes the row as it was seen, and no closed one.
        let park = word.as_deref().map(|word| {
            let parts = layout.key.iter().zip(key.parts());
            let places: Vec<String> =
                parts.map(|(column, part)| format!("t.{} = {}", column.name, quote_literal(part))).collect();
            format!(
                "UPDATE {table} AS t SET {state} = {parked}, {fence} = t.{fence} + 1 WHERE {place} AND t.{state}::text = {word} AND {is_open};",
                table = layout.table,
                state = layout.stage_state.name,
                parked = layout.word(StageState::NonResumable),
                fence = layout.fence.name,
                place = places.join(" AND "),
                word = quote_literal(word),
                is_open = layout.is_open,
            )
        });
        let column = column.name.clone();
        UnreadableRows {
            count: 1,
            columns: BTreeSet::from([column.clone()]),
            first: vec![UnreadableRow { key, column, word }],
            park,
        }
    }
}
