//! What: takes rows for one executor, many in one statement, guarded by the fence.
//! Where: the walk's *claim*, between *observe* and *call*.
//! Takes and gives: claim requests to claims with payload, or to "at its limit".
//! Never: waits for a row that others hold, and never sends a statement again whose reply was lost.

use std::sync::Arc;

use postrider_core::error::Result;
use postrider_core::ports::{Claim, ClaimReply, ClaimRequest};
use postrider_core::work::{OwnerId, StageState};
use tokio_postgres::Row;

use super::cells::{Cells, LeftOut, Unreadable};
use super::guarded;
use super::layout::{Layout, assignments, key_parameters, micros};
use crate::client::{Connection, Parameters};

/// The columns of `asked` behind the key.
const ASKED: [(&str, &str); 5] =
    [("text", "stage"), ("int8", "fence"), ("int8", "attempt_limit"), ("int8", "lease_micros"), ("bool", "take_over")];

/// The statement for a table. Parameters: the key arrays, those of `ASKED`, the owner's text, the texts of dead owners.
pub(super) fn statement(layout: &Layout) -> Arc<str> {
    format!(
        "WITH asked AS ({asked}), held AS (\
           SELECT t.ctid AS row_id, asked.*, t.{hash} AS known_hash, {payload} AS payload_text \
           FROM asked JOIN {table} AS t ON {keys} WHERE {guard} \
           ORDER BY {order} FOR NO KEY UPDATE OF t SKIP LOCKED) \
         UPDATE {table} AS t SET {change} FROM held AS asked WHERE t.ctid = asked.row_id RETURNING {reply}",
        asked = layout.asked(&ASKED),
        hash = layout.request_hash.name,
        payload = layout.payload_text(),
        table = layout.table,
        keys = layout.key_matches(),
        guard = guard(layout),
        order = layout.key_list(),
        change = change(layout),
        reply = reply(layout),
    )
    .into()
}

/// Claims what the guard allows, and answers for what it claimed. A claimed row that cannot be read is missing from the answers.
pub(super) async fn claim(
    connection: &Connection,
    statement: &Arc<str>,
    layout: &Layout,
    owner: OwnerId,
    (requests, dead): (&[ClaimRequest], &[OwnerId]),
) -> Result<Vec<ClaimReply>> {
    let parameters = parameters(layout.key.len(), owner, requests, dead)?;
    let rows = guarded::run(connection, statement, requests, &parameters).await?;
    let mut left_out = LeftOut::default();
    let replies = rows.iter().filter_map(|(request, row)| left_out.sort(read_reply(layout, request, row))).collect();
    left_out.report();
    Ok(replies)
}

fn parameters(width: usize, owner: OwnerId, requests: &[ClaimRequest], dead: &[OwnerId]) -> Result<Parameters> {
    let mut parameters = key_parameters(width, requests.iter().map(|request| &request.key))?;
    parameters.push(Box::new(requests.iter().map(|request| request.stage.as_str().to_owned()).collect::<Vec<_>>()));
    parameters.push(Box::new(requests.iter().map(|request| request.seen_fence).collect::<Vec<_>>()));
    parameters.push(Box::new(requests.iter().map(|request| i64::from(request.attempt_limit)).collect::<Vec<_>>()));
    parameters.push(Box::new(requests.iter().map(|request| micros(request.lease)).collect::<Vec<_>>()));
    parameters.push(Box::new(requests.iter().map(|request| request.take_over).collect::<Vec<_>>()));
    parameters.push(Box::new(owner.to_string()));
    parameters.push(Box::new(dead.iter().map(OwnerId::to_string).collect::<Vec<_>>()));
    Ok(parameters)
}

fn owner(layout: &Layout) -> String {
    format!("${}::text", layout.key.len() + ASKED.len() + 1)
}

fn dead_owners(layout: &Layout) -> String {
    format!("${}::text[]", layout.key.len() + ASKED.len() + 2)
}

/// The guard of a claim (`docs/stage-protocol.md`). Everything that may be true of a row without being its version (lease, due time) is judged by the server's clock.
fn guard(layout: &Layout) -> String {
    let Layout { stage, stage_state, attempt_count, fence, next_attempt_at, lease_until, lease_owner, .. } = layout;
    format!(
        "t.{stage}::text = asked.stage AND t.{fence} = asked.fence AND (\
           (t.{state}::text IN ('PENDING', 'RETRY') AND t.{attempts} < asked.attempt_limit \
            AND (t.{next} IS NULL OR t.{next} <= now())) \
           OR (asked.take_over AND t.{state}::text = 'RUNNING' \
               AND (t.{until} IS NULL OR t.{until} < now() OR t.{lease_owner} = ANY ({dead}))))",
        stage = stage.name,
        fence = fence.name,
        state = stage_state.name,
        attempts = attempt_count.name,
        next = next_attempt_at.name,
        until = lease_until.name,
        lease_owner = lease_owner.name,
        dead = dead_owners(layout),
    )
}

/// The attempts are below the limit in every row that passes the guard, but for one that is taken over.
fn change(layout: &Layout) -> String {
    let Layout { attempt_count, stage_state, request_hash, last_error, .. } = layout;
    let spent = format!("t.{} >= asked.attempt_limit", attempt_count.name);
    let owner = owner(layout);
    assignments(&[
        (&layout.fence, format!("t.{} + 1", layout.fence.name)),
        (attempt_count, format!("t.{0} + CASE WHEN {spent} THEN 0 ELSE 1 END", attempt_count.name)),
        (stage_state, format!("(CASE WHEN {spent} THEN 'UNKNOWN' ELSE 'RUNNING' END)::{}", stage_state.type_name)),
        (&layout.lease_owner, format!("CASE WHEN {spent} THEN NULL ELSE {owner} END")),
        (
            &layout.lease_until,
            format!("CASE WHEN {spent} THEN NULL ELSE now() + asked.lease_micros * interval '1 microsecond' END"),
        ),
        (request_hash, format!("coalesce(t.{}, sha256(convert_to(asked.payload_text, 'UTF8')))", request_hash.name)),
        (last_error, format!("CASE WHEN {spent} THEN 'AT_LIMIT' ELSE t.{} END", last_error.name)),
        (&layout.updated_at, "now()".to_owned()),
    ])
}

/// What a claim is made of, after `ord`; `known_hash` is the hash that was stored before this claim.
fn reply(layout: &Layout) -> String {
    format!(
        "asked.ord, t.{state}::text, {claim}, \
         coalesce(asked.known_hash <> sha256(convert_to(asked.payload_text, 'UTF8')), false)",
        state = layout.stage_state.name,
        claim = layout.claim_columns(),
    )
}

fn read_reply<'a>(layout: &'a Layout, request: &ClaimRequest, row: &Row) -> Result<ClaimReply, Unreadable<'a>> {
    let mut cells = Cells::new(row, 1);
    let state: StageState = cells.take_word(&layout.stage_state)?;
    let fence = cells.take(&layout.fence)?;
    if state == StageState::Unknown {
        return Ok(ClaimReply::AtLimit { key: request.key.clone(), fence });
    }
    Ok(ClaimReply::Claimed(Claim {
        key: request.key.clone(),
        stage: request.stage.clone(),
        fence,
        attempt: cells.take_count(&layout.attempt_count)?,
        deferrals: cells.take_count(&layout.deferral_count)?,
        epoch: cells.take_count(&layout.epoch)?,
        definition: cells.take(&layout.definition)?,
        payload: cells.take(&layout.payload)?,
        payload_changed: cells.take(&layout.request_hash)?,
    }))
}
