//! The history: what a transition tells of the attempt that it ends, in the same statement.
//!
//! Where it is kept, `held` reads what the row was before, `written` returns it, and an INSERT beside the UPDATE takes it from
//! there: so there is a row of history exactly where a transition was written. No decision ever reads it.

use super::layout::Layout;
use crate::store::WORK_HISTORY;

/// How the parts of an attempt's end that the row cannot tell are written in `written`.
pub(super) struct Told<'a> {
    pub(super) outcome: &'a str,
    pub(super) reason: &'a str,
    pub(super) http_status: &'a str,
}

/// What `held` adds to its columns: the row before the transition.
pub(super) fn before(layout: &Layout) -> String {
    let Layout { updated_at, attempt_count, deferral_count, lease_owner, stage_state, .. } = layout;
    format!(
        ", t.{}::timestamptz AS claimed_at, t.{}::int4 AS attempt_before, t.{}::int4 AS deferrals_before, \
         t.{}::text AS owner_before, t.{}::text AS state_before",
        updated_at.name, attempt_count.name, deferral_count.name, lease_owner.name, stage_state.name
    )
}

/// The end of a guarded statement that is complete up to the columns of its RETURNING: it answers with `reply`, and tells the history
/// of the rows that satisfy `ended`. Its parts must stand in CTEs named `asked` and `held`, the latter with [`before`].
pub(super) fn finish(layout: &Layout, update: &str, reply: &[String], told: &Told<'_>, ended: &str) -> String {
    let named: Vec<String> = reply.iter().enumerate().map(|(index, column)| format!("{column} AS r{index}")).collect();
    let answers: Vec<String> = (0..reply.len()).map(|index| format!("r{index}")).collect();
    format!(
        ", written AS ({update} RETURNING {named}, asked.state_before, asked.claimed_at, asked.fence, t.tableoid::regclass AS work_table, \
           t.{epoch}::int4 AS epoch, asked.attempt_before, asked.deferrals_before, {status} AS http_status, ARRAY[{key}] AS key, \
           asked.stage, t.{definition}::text AS definition, asked.owner_before, {outcome} AS outcome, {reason} AS reason, \
           t.{stage}::text AS next_stage, t.{state}::text AS next_state), \
         told AS (INSERT INTO {history} (started_at, fence, work_table, epoch, attempt, deferrals, http_status, key, stage, \
           definition, owner, outcome, reason, next_stage, next_state) \
           SELECT claimed_at, fence, work_table, epoch, attempt_before, deferrals_before, http_status, key, stage, \
           definition, owner_before, outcome, reason, next_stage, next_state FROM written WHERE {ended}) \
         SELECT {answers} FROM written",
        history = WORK_HISTORY.qualified(),
        named = named.join(", "),
        answers = answers.join(", "),
        epoch = layout.epoch.name,
        status = told.http_status,
        key = layout.key_texts(),
        definition = layout.definition.name,
        outcome = told.outcome,
        reason = told.reason,
        stage = layout.stage.name,
        state = layout.stage_state.name,
    )
}
