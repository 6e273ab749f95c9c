//! The history: what a transition tells of the attempt that it ends, in the same statement.
//!
//! Where it is kept, `held` reads what the row was before, `written` returns it, and an INSERT beside the UPDATE takes it from
//! there: so there is a row of history exactly where a transition was written. How old a key is, it alone can tell ([`super::expiry`]).

use std::sync::Arc;
use std::time::Duration;

use postrider_core::error::Result;
use postrider_core::ports::Purged;

use super::layout::{Column, Layout, micros, unreadable};
use crate::client::{Connection, Parameters};
use crate::quote::quote_literal;
use crate::store::WORK_HISTORY;

/// Pages of a stretch of the history: one mebibyte.
const STRETCH_PAGES: i64 = 128;

/// How the parts of an attempt's end that the row cannot tell are written in `written`.
pub(crate) struct Told<'a> {
    pub(crate) outcome: &'a str,
    pub(crate) reason: &'a str,
    pub(crate) http_status: &'a str,
    pub(crate) began: &'a Began<'a>,
}

/// How the beginning of an attempt is written in `written`.
pub(crate) struct Began<'a> {
    pub(crate) stage: &'a str,
    pub(crate) at: &'a str,
    pub(crate) owner: &'a str,
}

/// As the row itself has it.
pub(crate) const AS_IN_ROW: Began<'_> =
    Began { stage: "asked.stage", at: "asked.claimed_at", owner: "asked.owner_before" };

/// What `held` adds to its columns: the row before the transition.
pub(crate) fn before(layout: &Layout) -> String {
    let Layout { updated_at, attempt_count, deferral_count, lease_owner, stage_state, .. } = layout;
    format!(
        ", t.{}::timestamptz AS claimed_at, t.{}::int4 AS attempt_before, {}::int4 AS deferrals_before, \
         {}::text AS owner_before, t.{}::text AS state_before",
        updated_at.name,
        attempt_count.name,
        deferral_count.value(),
        lease_owner.value(),
        stage_state.name
    )
}

/// The end of a guarded statement that is complete up to the columns of its RETURNING: it answers with `reply`, and tells the history
/// of the rows that satisfy `ended`. Its parts must stand in CTEs named `asked` and `held`, the latter with [`before`].
pub(crate) fn finish(layout: &Layout, update: &str, reply: &[String], told: &Told<'_>, ended: &str) -> String {
    let named: Vec<String> = reply.iter().enumerate().map(|(index, column)| format!("{column} AS r{index}")).collect();
    let answers: Vec<String> = (0..reply.len()).map(|index| format!("r{index}")).collect();
    format!(
        ", written AS ({update} RETURNING {named}{returned}), told AS ({told}) SELECT {answers} FROM written",
        named = named.join(", "),
        answers = answers.join(", "),
        returned = returned(layout, told),
        told = insert(ended),
    )
}

/// What `written` returns for the history, behind its own columns.
pub(crate) fn returned(layout: &Layout, told: &Told<'_>) -> String {
    format!(
        ", asked.state_before, {began_at} AS claimed_at, asked.fence, t.tableoid::regclass AS work_table, {epoch}::int4 AS epoch, \
         asked.attempt_before, asked.deferrals_before, {status} AS http_status, ARRAY[{key}] AS key, {began_stage} AS stage, \
         {definition}::text AS definition, {owner} AS owner_before, {outcome} AS outcome, {reason} AS reason, \
         t.{stage}::text AS next_stage, t.{state}::text AS next_state",
        epoch = layout.epoch.value(),
        status = told.http_status,
        began_at = told.began.at,
        began_stage = told.began.stage,
        owner = told.began.owner,
        key = layout.key_texts(),
        definition = layout.definition.value(),
        outcome = told.outcome,
        reason = told.reason,
        stage = layout.stage.name,
        state = layout.stage_state.name,
    )
}

/// Tells of those rows of `written` that satisfy `ended`.
pub(crate) fn insert(ended: &str) -> String {
    format!(
        "INSERT INTO {history} (started_at, fence, work_table, epoch, attempt, deferrals, http_status, key, stage, definition, owner, \
           outcome, reason, next_stage, next_state) \
         SELECT claimed_at, fence, work_table, epoch, attempt_before, deferrals_before, http_status, key, stage, definition, \
           owner_before, outcome, reason, next_stage, next_state FROM written WHERE {ended}",
        history = WORK_HISTORY.qualified(),
    )
}

/// The statement that purges one stretch: the rows of a workflow that ended long enough ago, or whose work row is not there any more.
/// Parameters: the first place of the stretch and the first behind it, and the retention in microseconds. By its place a row is found
/// without an index on a time, which every transition would pay for. `OFFSET 0` has the work row looked up by its key, as in
/// [`Layout::asked_rows`].
pub(crate) fn purge_statement(layout: &Layout) -> Arc<str> {
    let equal =
        |(index, column): (usize, &Column)| format!("t.{} = old.key[{}]::{}", column.name, index + 1, column.type_name);
    format!(
        "WITH old AS MATERIALIZED (SELECT h.ctid AS row_id, h.key FROM {history} AS h \
           WHERE h.ctid >= $1::text::tid AND h.ctid < $2::text::tid AND h.work_table = {literal}::regclass \
             AND h.ended_at < now() - $3::int8 * interval '1 microsecond'), \
         purged AS (DELETE FROM {history} AS h USING old WHERE h.ctid = old.row_id AND NOT EXISTS (\
           SELECT FROM {table} AS t WHERE {keys} \
             AND ({is_open} OR {closed} >= now() - $3::int8 * interval '1 microsecond') OFFSET 0) RETURNING 1) \
         SELECT (SELECT count(*) FROM purged), pg_relation_size('{history}') / current_setting('block_size')::int8",
        history = WORK_HISTORY.qualified(),
        table = layout.table,
        literal = quote_literal(&layout.table),
        keys = layout.key.iter().enumerate().map(equal).collect::<Vec<_>>().join(" AND "),
        is_open = layout.is_open,
        closed = if layout.closed_at.is_there() { layout.closed_at.value() } else { layout.updated_at.value() },
    )
    .into()
}

/// Purges one stretch.
pub(crate) async fn purge(
    connection: &Connection,
    statement: &Arc<str>,
    retention: Duration,
    stretch: u64,
) -> Result<Purged> {
    let first = i64::try_from(stretch).unwrap_or(i64::MAX).saturating_mul(STRETCH_PAGES);
    let place = |page: i64| format!("({},0)", page.min(i64::from(u32::MAX - 1)));
    let parameters: Parameters =
        vec![Box::new(place(first)), Box::new(place(first.saturating_add(STRETCH_PAGES))), Box::new(micros(retention))];
    let rows = connection.query(statement, &parameters).await?;
    let Some(row) = rows.first() else { return Ok(Purged::default()) };
    let count =
        |column| row.try_get::<_, i64>(column).map(|count| u64::try_from(count).unwrap_or(0)).map_err(unreadable);
    Ok(Purged { rows: count(0)?, stretches: count(1)?.div_ceil(STRETCH_PAGES.unsigned_abs()) })
}
