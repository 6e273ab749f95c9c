//! The function by which a receiver moves a work row on in its own business transaction.
//!
//! It stands in for the checkpoint of a stage of class `same_tx`: the row goes on exactly where the receiver's work is committed. Made from the
//! mapping, since the table's names are the team's own; `sql/receiver` has the one of the canonical table.

use postrider_core::error::Result;
use postrider_core::route::WorkMapping;
use postrider_core::stage::END;
use postrider_core::work::StageState;

use crate::check::field;
use crate::client::{Connection, Parameters};
use crate::objects::{DEFINER, SEARCH_PATH, is_open, work_name};
use crate::quote::{quote_identifier, quote_literal, quote_table};
use crate::store::WORK_HISTORY;
use crate::words;

/// The states in which a row is moved on under the fence of its last request. `RETRY` and `UNKNOWN` are those of an attempt that was given
/// up without a final answer: whoever takes the row next raises the fence, and both lock the row, so that one of the two comes too late.
const OPEN_STATES: [StageState; 3] = [StageState::Running, StageState::Retry, StageState::Unknown];

/// What the function takes: the texts of the key columns, the stage and the fence of the request, and where the row goes.
const ARGUMENTS: &str = "key text[], stage text, fence bigint, next_stage text";
const ARGUMENT_TYPES: &str = "text[], text, bigint, text";

/// The function's name with its schema, quoted.
pub(crate) fn function_name(mapping: &WorkMapping) -> String {
    quote_table(&mapping.schema, &format!("postrider_advance_{}", mapping.table))
}

/// The function as the server has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    AsNeeded,
    /// It writes the history where none is kept, or none where one is.
    OfOtherHistory,
    /// There is none, or it is another one.
    Otherwise,
}

/// The statements that make the function of a work table, or replace it. A receiver needs no privilege but to execute it: it has those of
/// whoever made it, and nobody may execute it who is not allowed to by name. It writes the history only where one is kept: whoever keeps none
/// deletes none.
pub(crate) fn statements(mapping: &WorkMapping, history: bool) -> String {
    let function = function_name(mapping);
    format!(
        "CREATE OR REPLACE FUNCTION {function}({ARGUMENTS})
RETURNS void
LANGUAGE plpgsql {DEFINER}
AS $advance${body}$advance$;
REVOKE ALL ON FUNCTION {function}({ARGUMENT_TYPES}) FROM PUBLIC;",
        body = body(mapping, history),
    )
}

/// Whether the function is there that we would make now. One that was made by hand may be without the quotes.
pub(crate) async fn find(connection: &Connection, mapping: &WorkMapping, history: bool) -> Result<Found> {
    let text = "SELECT replace(p.prosrc, '\"', '') = replace($2, '\"', ''), replace(p.prosrc, '\"', '') = replace($3, '\"', '') \
         FROM pg_proc AS p WHERE p.oid = to_regprocedure($1) AND p.prosecdef AND p.proconfig @> $4";
    let signature = format!("{}({ARGUMENT_TYPES})", function_name(mapping));
    let parameters: Parameters = vec![
        Box::new(signature),
        Box::new(body(mapping, history)),
        Box::new(body(mapping, !history)),
        Box::new(vec![SEARCH_PATH]),
    ];
    let rows = connection.query(&text.into(), &parameters).await?;
    let Some(row) = rows.first() else { return Ok(Found::Otherwise) };
    Ok(match (field(row, 0)?, field(row, 1)?) {
        (true, _) => Found::AsNeeded,
        (false, true) => Found::OfOtherHistory,
        (false, false) => Found::Otherwise,
    })
}

/// The function's own text. What it writes is what a checkpoint writes for a success, under a fence of its own.
fn body(mapping: &WorkMapping, history: bool) -> String {
    let table = work_name(mapping);
    let column = |name: &str| quote_identifier(name);
    let parts = || mapping.key.iter().enumerate().map(|(index, name)| (index + 1, column(name)));
    let matches = parts().map(|(number, name)| format!("t.{name} = part_{number}")).collect::<Vec<_>>().join(" AND ");
    let texts = parts().map(|(_, name)| format!("t.{name}::text")).collect::<Vec<_>>().join(", ");
    format!(
        "
#variable_conflict use_variable
DECLARE
{declared}    held record;
BEGIN
{checked}    SELECT t.{stage}::text AS stage, t.{state}::text AS state, {fence} AS fence, NOT ({is_open}) AS closed,
        {attempts}::int4 AS attempts, {deferrals}::int4 AS deferrals, {epoch}::int4 AS epoch, {owner} AS owner,
        {definition}::text AS definition, {written_at} AS written_at, ARRAY[{texts}] AS key
    INTO held
    FROM {table} AS t WHERE {matches} FOR NO KEY UPDATE;
    IF (NOT FOUND OR held.closed OR held.stage <> stage OR held.fence <> fence OR held.state {not_open}) IS NOT FALSE THEN
        RAISE EXCEPTION 'the request is stale: its work row has moved on' USING ERRCODE = 'PRF01',
            DETAIL = CASE WHEN held.fence IS NULL THEN 'There is no such row.'
                ELSE format('The request is for stage %s at fence %s, and the row is in stage %s, %s, at fence %s.',
                    stage, fence, held.stage, held.state, held.fence) END,
            HINT = 'Roll the transaction back, business writes and all, and answer 412 with Postrider-Outcome: stale.';
    END IF;
    UPDATE {table} AS t SET
        {stage} = entered, {state} = becomes, {changes}
    WHERE {matches};
{told}END
",
        declared = declared(mapping),
        checked = checked_arguments(mapping.key.len()),
        stage = column(&mapping.stage),
        state = column(&mapping.stage_state),
        fence = value(&mapping.fence, "0"),
        is_open = is_open(mapping),
        attempts = value(&mapping.attempt_count, "0"),
        deferrals = value(&mapping.deferral_count, "0"),
        epoch = value(&mapping.epoch, "0"),
        owner = value(&mapping.lease_owner, "NULL::text"),
        definition = value(&mapping.definition, "NULL"),
        written_at = value(&mapping.updated_at, "NULL::timestamptz"),
        not_open = words::none_of(&mapping.states, &OPEN_STATES),
        changes = changes(mapping),
        told = if history { told(&table, mapping) } else { String::new() },
    )
}

/// What the history gets. Where its table is not there yet, nothing: the receiver's work does not wait for that.
fn told(table: &str, mapping: &WorkMapping) -> String {
    format!(
        "    IF to_regclass({history_literal}) IS NOT NULL THEN
        INSERT INTO {history} (started_at, fence, work_table, epoch, attempt, deferrals, key, stage, definition, owner,
            outcome, reason, next_stage, next_state)
        VALUES (CASE WHEN held.state {is_running} THEN held.written_at END, held.fence, {table_literal}::regclass, held.epoch,
            held.attempts, held.deferrals, held.key, held.stage, held.definition, held.owner, 'done_by_receiver',
            CASE WHEN held.state {is_not_running} THEN 'LATE: the attempt was ' || held.state END, entered::text, becomes::text);
    END IF;
",
        history = WORK_HISTORY.qualified(),
        history_literal = quote_literal(&WORK_HISTORY.qualified()),
        table_literal = quote_literal(table),
        is_running = words::one_of(&mapping.states, &[StageState::Running]),
        is_not_running = words::none_of(&mapping.states, &[StageState::Running]),
    )
}

/// A column of the row `t`, or what stands in its place where the table has none.
fn value(column: &Option<String>, in_place: &str) -> String {
    column.as_deref().map_or_else(|| in_place.to_owned(), |name| format!("t.{}", quote_identifier(name)))
}

/// What is written beside stage and state, of the columns that the table has.
fn changes(mapping: &WorkMapping) -> String {
    let kept_at_end = |column: &Option<String>| format!("CASE WHEN ends THEN {} ELSE 0 END", value(column, "0"));
    let null = || "NULL".to_owned();
    let lines = [
        vec![(&mapping.fence, format!("{} + 1", value(&mapping.fence, "0")))],
        vec![
            (&mapping.attempt_count, kept_at_end(&mapping.attempt_count)),
            (&mapping.deferral_count, kept_at_end(&mapping.deferral_count)),
        ],
        vec![
            (&mapping.next_attempt_at, null()),
            (&mapping.lease_until, null()),
            (&mapping.lease_owner, null()),
            (&mapping.request_hash, format!("CASE WHEN ends THEN {} END", value(&mapping.request_hash, "NULL"))),
        ],
        vec![
            (&mapping.closed_at, "CASE WHEN ends THEN now() END".to_owned()),
            (&mapping.last_error, null()),
            (&mapping.updated_at, "now()".to_owned()),
        ],
    ];
    let lines = lines.into_iter().map(|line| {
        let there = line.into_iter().filter_map(|(column, value)| Some((quote_identifier(column.as_deref()?), value)));
        there.map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join(", ")
    });
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(",\n        ")
}

/// Variables of the columns' own types, whatever these are.
fn declared(mapping: &WorkMapping) -> String {
    let typed = |name: &str| format!("{}.{}%TYPE", work_name(mapping), quote_identifier(name));
    let parts = mapping.key.iter().enumerate();
    let parts: String =
        parts.map(|(index, name)| format!("    part_{0} {1} := key[{0}];\n", index + 1, typed(name))).collect();
    format!(
        "{parts}    ends boolean := next_stage = {end};
    entered {stage} := CASE WHEN next_stage = {end} THEN stage ELSE next_stage END;
    becomes {state} := CASE WHEN next_stage = {end} THEN {done} ELSE {pending} END;
",
        end = quote_literal(END),
        done = quote_literal(mapping.states.word(StageState::Done)),
        pending = quote_literal(mapping.states.word(StageState::Pending)),
        stage = typed(&mapping.stage),
        state = typed(&mapping.stage_state),
    )
}

/// An argument that is missing must not pass for a comparison that is unknown.
fn checked_arguments(width: usize) -> String {
    format!(
        "    IF cardinality(key) IS DISTINCT FROM {width} OR array_position(key, NULL) IS NOT NULL OR num_nulls(stage, fence, next_stage) > 0 THEN
        RAISE EXCEPTION 'an argument is missing' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Give the {width} part(s) of the key, the stage and the fence as the request has them, and the next stage, or {END}.';
    ELSIF next_stage = stage THEN
        RAISE EXCEPTION 'the next stage is the one that the row is in' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Name another stage, or {END} to end the workflow.';
    END IF;
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file is for whoever applies SQL by hand, and for services in any language to read.
    #[test]
    fn the_file_of_the_canonical_table_is_what_setup_makes() {
        let file = include_str!("../../../sql/receiver/0003_create_advance_stage.sql");
        let code: Vec<&str> = file.lines().filter(|line| !line.starts_with("--")).collect();
        let made = statements(&WorkMapping::default(), true).replace('"', "");
        assert_eq!(code.join("\n").trim(), made.trim());
    }
}
