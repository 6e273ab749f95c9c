//! Orders: one statement changes the rows, each guarded by what was seen of it, and puts the orders on record.

use std::sync::Arc;

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::order::{Ordered, Reason};
use postrider_core::work::{StageState, WorkKey};

use super::{Operator, WorkRow};
use crate::store::OPERATOR_ACTIONS;
use crate::words;
use crate::work_table::asked::key_parameters;
use crate::work_table::guarded;
use crate::work_table::history::{self, AS_IN_ROW, Told};
use crate::work_table::layout::{Layout, assignments, unreadable};

/// What was seen of a row, behind its key: it must still be so.
const SEEN: [(&str, &str); 3] = [("text", "stage"), ("text", "state"), ("int8", "fence")];

/// What goes on record with an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// As it is typed.
    pub verb: String,
    pub who: String,
    pub why: String,
    pub evidence: Option<String>,
}

impl Operator {
    /// Writes the same change into all of these rows that are still as they were seen. Returns the key and the new fence of each that
    /// was written; the others have moved on.
    ///
    /// # Errors
    /// What the server says; then nothing is written.
    pub async fn write(&self, rows: &[WorkRow], ordered: &Ordered, note: &Note) -> Result<Vec<(WorkKey, i64)>> {
        let layout = &self.layout;
        let mut parameters = key_parameters(layout.key.len(), rows.iter().map(|row| &row.version.key))?;
        let versions = || rows.iter().map(|row| &row.version);
        parameters.push(Box::new(versions().map(|version| version.stage.as_str().to_owned()).collect::<Vec<_>>()));
        let word = |state| layout.states.word(state).to_owned();
        parameters.push(Box::new(versions().map(|version| word(version.state)).collect::<Vec<_>>()));
        parameters.push(Box::new(versions().map(|version| version.fence).collect::<Vec<_>>()));
        parameters.push(Box::new(ordered.stage.as_ref().map(|stage| stage.as_str().to_owned())));
        parameters.push(Box::new(word(ordered.state)));
        parameters.push(Box::new(ordered.resets_budget));
        parameters.push(Box::new(ordered.forgets_hash));
        parameters.push(Box::new(ordered.closes));
        let reason = if let Reason::Text(text) = &ordered.reason { Some(text.clone()) } else { None };
        parameters.push(Box::new(reason));
        parameters.push(Box::new(note.verb.clone()));
        parameters.push(Box::new(note.who.clone()));
        parameters.push(Box::new(note.why.clone()));
        parameters.push(Box::new(note.evidence.clone()));
        parameters.push(Box::new(ordered.definition.as_ref().map(|definition| definition.as_str().to_owned())));
        parameters.push(Box::new(ordered.keeps_time));
        parameters.push(Box::new(ordered.reason == Reason::AsBefore));
        let text = statement(layout, ordered.raises_epoch);
        let written = guarded::run(&self.connection, &text, rows, &parameters).await;
        let written = written.map_err(|refusal| name_rows(refusal, rows))?;
        let fence = |(row, answer): &(&WorkRow, tokio_postgres::Row)| {
            Ok((row.version.key.clone(), answer.try_get(1).map_err(unreadable)?))
        };
        written.iter().map(fence).collect()
    }
}

/// A refusal because of a row, with the row's key; of several rows the server does not say which one it was.
fn name_rows(refusal: Error, rows: &[WorkRow]) -> Error {
    let key = |row: &WorkRow| row.version.key.parts().collect::<Vec<_>>().join(" ");
    let rows = match (refusal.kind(), rows) {
        (ErrorKind::Table, [row]) => format!("The row is {}.", key(row)),
        (ErrorKind::Table, [first, .., last]) => {
            format!(
                "It is one of {} rows, from {} to {}, and none of them is written.",
                rows.len(),
                key(first),
                key(last)
            )
        }
        _ => return refusal,
    };
    let detail = format!("{} {rows}", refusal.detail().unwrap_or_default());
    refusal.with_detail(detail.trim_start())
}

/// Parameters: the key arrays, those of `SEEN`, then what is written and what goes on record.
fn statement(layout: &Layout, raises_epoch: bool) -> Arc<str> {
    let scalar = |index: usize, kind: &str| format!("${}::{kind}", layout.key.len() + SEEN.len() + index);
    let told =
        Told { outcome: "'interrupted'", reason: &scalar(7, "text"), http_status: "NULL::int4", began: &AS_IN_ROW };
    // An attempt that is under way ends here, for the history: what comes of it later is stale.
    let interrupted = if layout.history {
        format!(", told AS ({})", history::insert(&format!("state_before {}", layout.one_of(&[StageState::Running]))))
    } else {
        String::new()
    };
    format!(
        "WITH asked AS ({asked}), held AS (SELECT t.ctid AS row_id, asked.*, {error}::text AS reason_before{before} \
           FROM asked JOIN {table} AS t ON {keys} \
           WHERE t.{stage}::text = asked.stage AND {state} = asked.state AND t.{fence} = asked.fence AND {all} \
           ORDER BY {order} FOR NO KEY UPDATE OF t), \
         written AS (UPDATE {table} AS t SET {change} FROM held AS asked WHERE t.ctid = asked.row_id \
           RETURNING asked.ord, t.{fence}::int8 AS fence_after, asked.reason_before{returned}){interrupted}, \
         noted AS (INSERT INTO {actions} (work_table, key, verb, who, why, evidence, stage_before, state_before, fence_before, \
             reason_before, stage_after, state_after, fence_after, epoch_after) \
           SELECT work_table, key, {verb}, {who}, {why}, {evidence}, stage, state_before, fence, reason_before, next_stage, \
             next_state, fence_after, epoch FROM written) \
         SELECT ord, fence_after FROM written",
        asked = layout.asked(&SEEN),
        error = layout.last_error.value(),
        before = history::before(layout),
        table = layout.table,
        keys = layout.key_matches(),
        stage = layout.stage.name,
        state = words::written(&layout.states, &format!("t.{}::text", layout.stage_state.name)),
        fence = layout.fence.name,
        // Which of these are written depends on the table's columns; the server wants each parameter to stand somewhere.
        all = format_args!(
            "num_nonnulls({}, {}, {}, {}, {}, {}) > 0",
            scalar(4, "bool"),
            scalar(5, "bool"),
            scalar(6, "text"),
            scalar(11, "text"),
            scalar(12, "bool"),
            scalar(13, "bool")
        ),
        order = layout.key_list(),
        change = change(layout, raises_epoch, scalar),
        returned = history::returned(layout, &told),
        actions = OPERATOR_ACTIONS.qualified(),
        verb = scalar(7, "text"),
        who = scalar(8, "text"),
        why = scalar(9, "text"),
        evidence = scalar(10, "text"),
    )
    .into()
}

fn change(layout: &Layout, raises_epoch: bool, scalar: impl Fn(usize, &str) -> String) -> String {
    let Layout { stage, stage_state, attempt_count, deferral_count, request_hash, closed_at, .. } = layout;
    let count = |name: &str| format!("CASE WHEN {} THEN 0 ELSE t.{name} END", scalar(3, "bool"));
    let mut list = vec![
        (stage, format!("coalesce({}::{}, t.{})", scalar(1, "text"), stage.type_name, stage.name)),
        (stage_state, format!("{}::{}", scalar(2, "text"), stage_state.type_name)),
        (attempt_count, count(&attempt_count.name)),
        (deferral_count, count(&deferral_count.name)),
        // Whoever held the row before can no longer write it.
        (&layout.fence, format!("t.{} + 1", layout.fence.name)),
        (
            &layout.next_attempt_at,
            format!("CASE WHEN {} THEN t.{} END", scalar(12, "bool"), layout.next_attempt_at.name),
        ),
        (&layout.lease_until, "NULL".to_owned()),
        (&layout.lease_owner, "NULL".to_owned()),
        (request_hash, format!("CASE WHEN {} THEN NULL ELSE t.{} END", scalar(4, "bool"), request_hash.name)),
        (closed_at, format!("CASE WHEN {} THEN now() ELSE t.{} END", scalar(5, "bool"), closed_at.name)),
        (
            &layout.definition,
            format!("coalesce({}::{}, t.{})", scalar(11, "text"), layout.definition.type_name, layout.definition.name),
        ),
        (
            &layout.last_error,
            format!(
                "CASE WHEN {} THEN t.{} ELSE {} END",
                scalar(13, "bool"),
                layout.last_error.name,
                scalar(6, "text")
            ),
        ),
        (&layout.updated_at, "now()".to_owned()),
    ];
    if raises_epoch {
        list.push((&layout.epoch, format!("t.{} + 1", layout.epoch.name)));
    }
    assignments(&list)
}
