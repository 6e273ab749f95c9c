//! Under which definition, in which stage and in which state the open rows are.

use postrider_core::error::Result;
use postrider_core::route::WorkMapping;
use postrider_core::work::{DefinitionName, StageName, StageState};

use super::{PREAMBLE, field};
use crate::client::{Connection, Parameters};
use crate::objects::{is_open, work_name};
use crate::options::ConnectOptions;
use crate::quote::quote_identifier;

/// So many open rows are looked at.
const ROWS_MAX: i64 = 2_000_000;

/// So many steps are told apart.
const STEPS_MAX: i64 = 1_000;

/// Open rows of one definition and stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenStep {
    /// `None`: they have none yet.
    pub definition: Option<DefinitionName>,
    pub stage: StageName,
    pub row_count: u64,
}

/// Counts the open rows by definition and stage: the first two millions, by the index that holds the open rows, most rows first.
///
/// # Errors
/// What connecting gives, and a table or a column that is not there.
pub async fn open_steps(options: &ConnectOptions, mapping: &WorkMapping) -> Result<Vec<OpenStep>> {
    let connection = Connection::open(options, PREAMBLE).await?;
    let text = format!(
        "SELECT definition, stage, count(*) \
         FROM (SELECT {definition}::text AS definition, {stage}::text AS stage FROM {table} AS t \
               WHERE {is_open} LIMIT {ROWS_MAX}) AS open \
         GROUP BY definition, stage ORDER BY count(*) DESC, definition, stage LIMIT {STEPS_MAX}",
        definition = mapping.definition.as_deref().map_or_else(|| "NULL".to_owned(), quote_identifier),
        stage = quote_identifier(&mapping.stage),
        table = work_name(mapping),
        is_open = is_open(mapping),
    );
    let rows = connection.query(&text.into(), &Parameters::new()).await?;
    let step = |row| {
        Ok(OpenStep {
            definition: field::<Option<&str>>(row, 0)?.map(DefinitionName::new),
            stage: StageName::new(field(row, 1)?),
            row_count: field::<i64>(row, 2)?.unsigned_abs(),
        })
    };
    rows.iter().map(step).collect()
}

/// The words in the column of the state that are no state's, each with the number of open rows that have it, most rows first.
///
/// # Errors
/// What connecting gives, and a table or a column that is not there.
pub async fn foreign_states(options: &ConnectOptions, mapping: &WorkMapping) -> Result<Vec<(String, u64)>> {
    let connection = Connection::open(options, PREAMBLE).await?;
    let text = format!(
        "SELECT word, count(*) FROM (SELECT coalesce({state}::text, '') AS word FROM {table} AS t \
           WHERE {is_open} LIMIT {ROWS_MAX}) AS open \
         WHERE NOT word = ANY ($1::text[]) GROUP BY word ORDER BY count(*) DESC, word LIMIT {STEPS_MAX}",
        state = quote_identifier(&mapping.stage_state),
        table = work_name(mapping),
        is_open = is_open(mapping),
    );
    let words = StageState::ALL.into_iter().flat_map(|state| mapping.states.words(state));
    let known: Vec<String> = words.map(str::to_owned).collect();
    let rows = connection.query(&text.into(), &vec![Box::new(known)]).await?;
    rows.iter().map(|row| Ok((field(row, 0)?, field::<i64>(row, 1)?.unsigned_abs()))).collect()
}
