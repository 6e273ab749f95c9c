//! The function by which a receiver moves a work row on in its own business transaction.
//!
//! It stands in for the checkpoint of a stage of class `same_tx`: the row goes on exactly where the receiver's work is committed. Made from the
//! mapping, since the table's names are the team's own; `sql/receiver` has the one of the canonical table.

use postrider_core::error::Result;
use postrider_core::route::{DEFINITION_COLUMN, WorkMapping};
use postrider_core::stage::END;

use crate::check::field;
use crate::client::{Connection, Parameters};
use crate::objects::work_name;
use crate::quote::{quote_identifier, quote_literal, quote_table};
use crate::store::WORK_HISTORY;

/// The states in which a row is moved on under the fence of its last request. `RETRY` and `UNKNOWN` are those of an attempt that was given
/// up without a final answer: whoever takes the row next raises the fence, and both lock the row, so that one of the two comes too late.
const OPEN_STATES: &str = "'RUNNING', 'RETRY', 'UNKNOWN'";

/// What the function takes: the texts of the key columns, the stage and the fence of the request, and where the row goes.
const ARGUMENTS: &str = "key text[], stage text, fence bigint, next_stage text";
const ARGUMENT_TYPES: &str = "text[], text, bigint, text";

/// The function's name with its schema, quoted.
pub(crate) fn function_name(mapping: &WorkMapping) -> String {
    quote_table(&mapping.schema, &format!("postrider_advance_{}", mapping.table))
}

/// The statements that make the function of a work table, or replace it. A receiver needs no privilege but to execute it: it has those of
/// whoever made it, and nobody may execute it who is not allowed to by name.
pub(crate) fn statements(mapping: &WorkMapping) -> String {
    let function = function_name(mapping);
    format!(
        "CREATE OR REPLACE FUNCTION {function}({ARGUMENTS})
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres' SET timezone = 'UTC'
    SET extra_float_digits = 3 SET bytea_output = 'hex'
AS $advance${body}$advance$;
REVOKE ALL ON FUNCTION {function}({ARGUMENT_TYPES}) FROM PUBLIC;",
        body = body(mapping),
    )
}

/// Whether the function is there that we would make now. One that was made by hand may be without the quotes.
pub(crate) async fn is_there(connection: &Connection, mapping: &WorkMapping) -> Result<bool> {
    let text = "SELECT count(*) FROM pg_proc AS p WHERE p.oid = to_regprocedure($1) AND p.prosecdef \
         AND replace(p.prosrc, '\"', '') = replace($2, '\"', '')";
    let signature = format!("{}({ARGUMENT_TYPES})", function_name(mapping));
    let parameters: Parameters = vec![Box::new(signature), Box::new(body(mapping))];
    let rows = connection.query(&text.into(), &parameters).await?;
    Ok(rows.first().map_or(Ok(0), |row| field::<i64>(row, 0))? == 1)
}

/// The function's own text. What it writes is what a checkpoint writes for a success, under a fence of its own.
fn body(mapping: &WorkMapping) -> String {
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
{checked}    SELECT t.{stage}::text AS stage, t.{state}::text AS state, t.{fence} AS fence, t.{closed} IS NOT NULL AS closed,
        t.{attempts}::int4 AS attempts, t.{deferrals}::int4 AS deferrals, t.{epoch}::int4 AS epoch, t.{owner} AS owner,
        t.{definition}::text AS definition, t.updated_at AS written_at, ARRAY[{texts}] AS key
    INTO held
    FROM {table} AS t WHERE {matches} FOR NO KEY UPDATE;
    IF NOT FOUND OR held.closed OR held.stage <> stage OR held.fence <> fence OR held.state NOT IN ({OPEN_STATES}) THEN
        RAISE EXCEPTION 'the request is stale: its work row has moved on' USING ERRCODE = 'PRF01',
            DETAIL = CASE WHEN held.fence IS NULL THEN 'There is no such row.'
                ELSE format('The request is for stage %s at fence %s, and the row is in stage %s, %s, at fence %s.',
                    stage, fence, held.stage, held.state, held.fence) END,
            HINT = 'Roll the transaction back, business writes and all, and answer 412 with Postrider-Outcome: stale.';
    END IF;
    UPDATE {table} AS t SET
        {stage} = entered, {state} = becomes, {fence} = t.{fence} + 1,
        {attempts} = CASE WHEN ends THEN t.{attempts} ELSE 0 END, {deferrals} = CASE WHEN ends THEN t.{deferrals} ELSE 0 END,
        {next_at} = NULL, {until} = NULL, {owner} = NULL, request_hash = CASE WHEN ends THEN t.request_hash END,
        {closed} = CASE WHEN ends THEN now() END, last_error = NULL, updated_at = now()
    WHERE {matches};
    IF to_regclass({history_literal}) IS NOT NULL THEN
        INSERT INTO {history} (started_at, fence, work_table, epoch, attempt, deferrals, key, stage, definition, owner,
            outcome, reason, next_stage, next_state)
        VALUES (CASE WHEN held.state = 'RUNNING' THEN held.written_at END, held.fence, {table_literal}::regclass, held.epoch,
            held.attempts, held.deferrals, held.key, held.stage, held.definition, held.owner, 'done_by_receiver',
            CASE WHEN held.state <> 'RUNNING' THEN 'LATE: the attempt was ' || held.state END, entered::text, becomes::text);
    END IF;
END
",
        declared = declared(mapping),
        checked = checked_arguments(mapping.key.len()),
        stage = column(&mapping.stage),
        state = column(&mapping.stage_state),
        fence = column(&mapping.fence),
        closed = column(&mapping.closed_at),
        attempts = column(&mapping.attempt_count),
        deferrals = column(&mapping.deferral_count),
        epoch = column(&mapping.epoch),
        owner = column(&mapping.lease_owner),
        next_at = column(&mapping.next_attempt_at),
        until = column(&mapping.lease_until),
        definition = column(DEFINITION_COLUMN),
        history = WORK_HISTORY.qualified(),
        history_literal = quote_literal(&WORK_HISTORY.qualified()),
        table_literal = quote_literal(&table),
    )
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
    becomes {state} := CASE WHEN next_stage = {end} THEN 'DONE' ELSE 'PENDING' END;
",
        end = quote_literal(END),
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
        let made = statements(&WorkMapping::default()).replace('"', "");
        assert_eq!(code.join("\n").trim(), made.trim());
    }
}
