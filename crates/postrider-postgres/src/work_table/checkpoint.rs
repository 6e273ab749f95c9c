//! What: writes what came of calls, many in one statement, each guarded by the fence that its claim wrote.
//! Where: the walk's *checkpoint*, after *judge*; what it writes comes back through the log as the next lap.
//! Takes and gives: transitions to "written", or to the claim of the next stage where it was chained.
//! Never: writes a row that is no longer ours, and never sends a statement again whose reply was lost.

use std::time::Duration;

use postrider_core::error::Result;
use postrider_core::ports::{Checkpoint, CheckpointReply, Claim, Transition};
use postrider_core::work::{OwnerId, StageName, StageState};
use tokio_postgres::Row;

use super::guarded::GuardedStatement;
use super::layout::{Layout, assignments, count, key_parameters, micros, unreadable};
use crate::client::{Connection, Parameters};

/// The columns of `asked` behind the key: the guard's, then what is written.
const ASKED: [(&str, &str); 9] = [
    ("text", "stage"),
    ("int8", "fence"),
    ("text", "next_stage"),
    ("text", "state"),
    ("int8", "attempts_more"),
    ("int8", "deferrals_more"),
    ("int8", "after_micros"),
    ("int8", "lease_micros"),
    ("text", "reason"),
];

/// A transition as numbers and texts for the statement.
struct Written<'a> {
    /// The stage the row goes to; its counters then start at zero.
    next: Option<&'a StageName>,
    state: StageState,
    attempts_more: i64,
    deferrals_more: i64,
    after: Option<Duration>,
    /// Set where the next stage is claimed at once.
    lease: Option<Duration>,
    reason: Option<&'a str>,
}

impl Written<'_> {
    fn of(transition: &Transition) -> Written<'_> {
        let state = |state| Written {
            next: None,
            state,
            attempts_more: 0,
            deferrals_more: 0,
            after: None,
            lease: None,
            reason: None,
        };
        match transition {
            Transition::Advance { next } => Written { next: Some(next), ..state(StageState::Pending) },
            Transition::Chain { next, lease } => {
                Written { next: Some(next), attempts_more: 1, lease: Some(*lease), ..state(StageState::Running) }
            }
            Transition::Finish => state(StageState::Done),
            Transition::Retry { after, reason } => {
                Written { after: Some(*after), reason: Some(reason), ..state(StageState::Retry) }
            }
            Transition::Defer { after, reason, counted } => Written {
                attempts_more: -1,
                deferrals_more: i64::from(*counted),
                after: Some(*after),
                reason: Some(reason),
                ..state(StageState::Retry)
            },
            Transition::Park { reason } => Written { reason: Some(reason), ..state(StageState::NonResumable) },
            Transition::Unknown { reason } => Written { reason: Some(reason), ..state(StageState::Unknown) },
            Transition::Release => Written { attempts_more: -1, ..state(StageState::Pending) },
        }
    }
}

/// The statement for a table. Parameters: the key arrays, those of `ASKED`, the owner's text.
pub(super) fn statement(layout: &Layout) -> GuardedStatement {
    let table = &layout.table;
    let asked = layout.asked(&ASKED);
    let keys = layout.key_matches();
    let guard = guard(layout);
    // Only a chained claim needs the payload; for the rest it is not even read.
    let payload = format!("CASE WHEN asked.lease_micros IS NOT NULL THEN {} END", layout.payload_text());
    let batch = format!(
        "WITH asked AS ({asked}), held AS (\
           SELECT t.ctid AS row_id, asked.*, {payload} AS payload_text \
           FROM asked JOIN {table} AS t ON {keys} WHERE {guard} \
           ORDER BY {order} FOR NO KEY UPDATE OF t SKIP LOCKED) \
         UPDATE {table} AS t SET {change} FROM held AS asked WHERE t.ctid = asked.row_id RETURNING {reply}",
        order = layout.key_list(),
        change = change(layout, "asked.payload_text"),
        reply = reply(layout, "asked.payload_text"),
    );
    let probe =
        format!("WITH asked AS ({asked}) SELECT asked.ord FROM asked JOIN {table} AS t ON {keys} WHERE {guard}");
    let single = format!(
        "WITH asked AS ({asked}) UPDATE {table} AS t SET {change} FROM asked WHERE {keys} AND {guard} RETURNING {reply}",
        change = change(layout, &payload),
        reply = reply(layout, &payload),
    );
    GuardedStatement { batch: batch.into(), probe: probe.into(), single: single.into() }
}

/// Writes what the guard allows, and answers for what it wrote.
pub(super) async fn checkpoint(
    connection: &Connection,
    statement: &GuardedStatement,
    layout: &Layout,
    owner: OwnerId,
    checkpoints: &[Checkpoint],
) -> Result<Vec<CheckpointReply>> {
    let rows = statement
        .run(connection, checkpoints.len(), |selection| {
            let chosen: Vec<&Checkpoint> = selection.iter().filter_map(|index| checkpoints.get(*index)).collect();
            parameters(layout.key.len(), owner, &chosen)
        })
        .await?;
    rows.iter().filter_map(|(index, row)| Some(read_reply(checkpoints.get(*index)?, row))).collect()
}

fn parameters(width: usize, owner: OwnerId, checkpoints: &[&Checkpoint]) -> Result<Parameters> {
    let written: Vec<Written<'_>> = checkpoints.iter().map(|checkpoint| Written::of(&checkpoint.transition)).collect();
    let text = |text: &str| text.to_owned();
    let mut parameters = key_parameters(width, checkpoints.iter().map(|checkpoint| &checkpoint.key))?;
    parameters.push(Box::new(checkpoints.iter().map(|checkpoint| text(checkpoint.stage.as_str())).collect::<Vec<_>>()));
    parameters.push(Box::new(checkpoints.iter().map(|checkpoint| checkpoint.fence).collect::<Vec<_>>()));
    parameters.push(Box::new(written.iter().map(|row| row.next.map(|next| text(next.as_str()))).collect::<Vec<_>>()));
    parameters.push(Box::new(written.iter().map(|row| text(row.state.as_str())).collect::<Vec<_>>()));
    parameters.push(Box::new(written.iter().map(|row| row.attempts_more).collect::<Vec<_>>()));
    parameters.push(Box::new(written.iter().map(|row| row.deferrals_more).collect::<Vec<_>>()));
    parameters.push(Box::new(written.iter().map(|row| row.after.map(micros)).collect::<Vec<_>>()));
    parameters.push(Box::new(written.iter().map(|row| row.lease.map(micros)).collect::<Vec<_>>()));
    parameters.push(Box::new(written.iter().map(|row| row.reason.map(text)).collect::<Vec<_>>()));
    parameters.push(Box::new(owner.to_string()));
    Ok(parameters)
}

fn guard(layout: &Layout) -> String {
    format!(
        "t.{stage}::text = asked.stage AND t.{fence} = asked.fence AND t.{owner} = ${number}::text \
         AND t.{state}::text = 'RUNNING'",
        stage = layout.stage.name,
        fence = layout.fence.name,
        owner = layout.lease_owner.name,
        state = layout.stage_state.name,
        number = layout.key.len() + ASKED.len() + 1,
    )
}

/// No indexed column changes but `closed_at`, and that only with the last transition: a column that is set to what it was
/// does not count, so all the others are HOT updates.
fn change(layout: &Layout, payload: &str) -> String {
    let Layout { stage, stage_state, attempt_count, deferral_count, fence, .. } = layout;
    let Layout { request_hash, closed_at, last_error, .. } = layout;
    let counter = |name: &str, more: &str| {
        format!("greatest(CASE WHEN asked.next_stage IS NULL THEN t.{name} ELSE 0 END + asked.{more}, 0)")
    };
    let leased = "asked.lease_micros IS NOT NULL";
    let ended = "asked.next_stage IS NOT NULL OR asked.state = 'DONE'";
    assignments(&[
        (stage, format!("coalesce(asked.next_stage::{}, t.{})", stage.type_name, stage.name)),
        (stage_state, format!("asked.state::{}", stage_state.type_name)),
        (attempt_count, counter(&attempt_count.name, "attempts_more")),
        (deferral_count, counter(&deferral_count.name, "deferrals_more")),
        (fence, format!("t.{} + CASE WHEN {leased} THEN 1 ELSE 0 END", fence.name)),
        (&layout.next_attempt_at, "now() + asked.after_micros * interval '1 microsecond'".to_owned()),
        (&layout.lease_until, "now() + asked.lease_micros * interval '1 microsecond'".to_owned()),
        (&layout.lease_owner, format!("CASE WHEN {leased} THEN t.{} END", layout.lease_owner.name)),
        (
            request_hash,
            format!(
                "CASE WHEN {leased} THEN sha256(convert_to({payload}, 'UTF8')) \
                 WHEN asked.next_stage IS NULL THEN t.{} END",
                request_hash.name
            ),
        ),
        (closed_at, format!("CASE WHEN asked.state = 'DONE' THEN now() ELSE t.{} END", closed_at.name)),
        (last_error, format!("CASE WHEN {ended} THEN NULL ELSE coalesce(asked.reason, t.{}) END", last_error.name)),
        (&layout.updated_at, "now()".to_owned()),
    ])
}

fn reply(layout: &Layout, payload: &str) -> String {
    format!("asked.ord, {}", layout.claim_columns(payload))
}

fn read_reply(checkpoint: &Checkpoint, row: &Row) -> Result<CheckpointReply> {
    let Transition::Chain { next, .. } = &checkpoint.transition else {
        return Ok(CheckpointReply::Written { key: checkpoint.key.clone() });
    };
    Ok(CheckpointReply::Chained(Claim {
        key: checkpoint.key.clone(),
        stage: next.clone(),
        fence: row.try_get(1).map_err(unreadable)?,
        attempt: count(row.try_get(2).map_err(unreadable)?)?,
        deferrals: count(row.try_get(3).map_err(unreadable)?)?,
        epoch: count(row.try_get(4).map_err(unreadable)?)?,
        definition: row.try_get(5).map_err(unreadable)?,
        payload: row.try_get(6).map_err(unreadable)?,
        payload_changed: false,
    }))
}
