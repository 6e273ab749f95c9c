//! Under which definition and in which stage the open rows are.

use postrider_core::error::Result;
use postrider_core::route::{DEFINITION_COLUMN, WorkMapping};
use postrider_core::work::{DefinitionName, StageName};

use super::{PREAMBLE, field};
use crate::client::{Connection, Parameters};
use crate::objects::work_name;
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
         FROM (SELECT {definition}::text AS definition, {stage}::text AS stage FROM {table} \
               WHERE {closed_at} IS NULL LIMIT {ROWS_MAX}) AS open \
         GROUP BY definition, stage ORDER BY count(*) DESC, definition, stage LIMIT {STEPS_MAX}",
        definition = quote_identifier(DEFINITION_COLUMN),
        stage = quote_identifier(&mapping.stage),
        table = work_name(mapping),
        closed_at = quote_identifier(&mapping.closed_at),
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
