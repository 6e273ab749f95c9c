//! Whether the columns of stage and state can hold the words that are written into them.

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::route::WorkMapping;
use postrider_core::work::{StageName, StageState};
use tokio_postgres::error::SqlState;

use crate::check::{PREAMBLE, field};
use crate::client::{Connection, Parameters};
use crate::errors::{Phase, map_client_error};
use crate::objects::work_name;
use crate::options::ConnectOptions;
use crate::quote::quote_identifier;

/// The states that transitions and orders of people write.
const WRITTEN: [StageState; 7] = [
    StageState::Pending,
    StageState::Running,
    StageState::Retry,
    StageState::Unknown,
    StageState::NonResumable,
    StageState::Done,
    StageState::Cancelled,
];

/// What to do about a column that does not take a word.
pub(crate) const UNWRITABLE_HINT: &str = "Give each state a word under [work.states] that the column takes, or have it take ours: ALTER TYPE … ADD VALUE for an enum, else a longer type or a wider CHECK.";

/// What to do about a word that the column never has.
pub(crate) const ABSENT_HINT: &str = "No row has it: correct it under [work.states], or take it out there.";

/// Refuses a table whose column would cut off a word, or refuse it, when the first row is already claimed.
pub(crate) async fn require(connection: &Connection, mapping: &WorkMapping) -> Result<()> {
    match unwritable(connection, mapping).await? {
        None => Ok(()),
        Some(sentence) => Err(Error::new(ErrorKind::Table, "the work table cannot hold the words of all states")
            .with_detail(sentence)
            .with_hint(UNWRITABLE_HINT)),
    }
}

/// Which of the words that are written the column of the state cannot hold as they are, as a sentence; `None` too where there is no such column.
pub(crate) async fn unwritable(connection: &Connection, mapping: &WorkMapping) -> Result<Option<String>> {
    let words = WRITTEN.map(|state| named(state, mapping.states.word(state)));
    unwritable_words(connection, mapping, &mapping.stage_state, &words).await
}

/// Which of the words that are only read the column of the state cannot hold as they are, as a sentence; `None` too where there is no such column.
pub(crate) async fn absent(connection: &Connection, mapping: &WorkMapping) -> Result<Option<String>> {
    let further = |state| mapping.states.words(state).skip(1).map(move |word| named(state, word));
    let words: Vec<(&str, String)> = StageState::ALL.into_iter().flat_map(further).collect();
    unwritable_words(connection, mapping, &mapping.stage_state, &words).await
}

/// A word, with what is said behind it.
fn named(state: StageState, word: &str) -> (&str, String) {
    (word, format!(" ({})", state.as_str()))
}

/// Which of these names the column of the stage cannot hold as they are, as a sentence.
///
/// # Errors
/// What connecting gives, and what the server says.
pub async fn unwritable_stages(
    options: &ConnectOptions,
    mapping: &WorkMapping,
    stages: &[StageName],
) -> Result<Option<String>> {
    let connection = Connection::open(options, PREAMBLE).await?;
    let names: Vec<(&str, String)> = stages.iter().map(|stage| (stage.as_str(), String::new())).collect();
    unwritable_words(&connection, mapping, &mapping.stage, &names).await
}

/// Of the words, each with what is said behind it, those that a column cuts off or refuses.
async fn unwritable_words(
    connection: &Connection,
    mapping: &WorkMapping,
    column: &str,
    words: &[(&str, String)],
) -> Result<Option<String>> {
    let text = "SELECT format_type(a.atttypid, a.atttypmod), \
           ARRAY(SELECT pg_get_expr(k.conbin, k.conrelid) FROM pg_constraint AS k \
                 WHERE k.conrelid = a.attrelid AND k.contype = 'c' AND k.conkey = ARRAY[a.attnum]) \
         FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace \
         WHERE n.nspname = $1 AND c.relname = $2 AND a.attname = $3 AND a.attnum > 0 AND NOT a.attisdropped";
    let names = [mapping.schema.as_str(), &mapping.table, column];
    let parameters: Parameters = names.into_iter().map(|name| Box::new(name.to_owned()) as Box<_>).collect();
    let rows = connection.query(&text.into(), &parameters).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (type_name, constraints): (&str, Vec<String>) = (field(row, 0)?, field(row, 1)?);
    let (column, table) = (quote_identifier(column), work_name(mapping));
    let passes: String = constraints.iter().map(|expression| format!(" AND ({expression}) IS NOT FALSE")).collect();
    let text = format!(
        "SELECT FROM (SELECT $1::text::{type_name} AS {column}) AS t WHERE t.{column}::text = $1::text{passes}"
    );
    let mut refused = Vec::new();
    for (word, behind) in words {
        if !holds(connection, &text, word).await? {
            refused.push(format!("\"{}\"{behind}", word.escape_debug()));
        }
    }
    Ok((!refused.is_empty())
        .then(|| format!("The column {column} of {table} cannot hold {} as it is.", refused.join(", "))))
}

/// A word that is no value of the column's type, or that a domain refuses, is an error of the server's.
async fn holds(connection: &Connection, text: &str, word: &str) -> Result<bool> {
    match connection.try_query(&text.into(), &vec![Box::new(word.to_owned())]).await {
        Ok(rows) => Ok(!rows.is_empty()),
        Err(error) => match error.code() {
            Some(&SqlState::INVALID_TEXT_REPRESENTATION | &SqlState::CHECK_VIOLATION) => Ok(false),
            _ => Err(map_client_error(Phase::Query, error)),
        },
    }
}
