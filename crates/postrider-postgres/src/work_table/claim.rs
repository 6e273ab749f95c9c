//! What: takes rows for one executor, many in one statement, guarded by the fence.
//! Where: the walk's *claim*, between *observe* and *call*.
//! Takes and gives: claim requests to claims with payload, or to "at its limit".
//! Never: waits for a row that others hold, and never sends a statement again whose reply was lost.

use postrider_core::error::Result;
use postrider_core::ports::{Claim, ClaimReply, ClaimRequest};
use postrider_core::work::{DefinitionName, OwnerId, StageState};
use tokio_postgres::Row;

use super::asked::{Asked, Columns, Shape};
use super::cells::{Cells, LeftOut, Unreadable};
use super::guarded;
use super::history::{self, Began, Told};
use super::layout::{Layout, assignments, micros};
use super::row_version;
use super::taking::{Parts, Taking, TakingStatement};
use super::untold::{self, UntoldColumns};
use crate::client::Connection;
use crate::store::WORK_HISTORY;

/// The columns of `asked` behind the key.
const ASKED: Columns<'_> = Columns {
    each: &[("int8", "fence")],
    alike: &[
        ("text", "stage"),
        ("int8", "attempt_limit"),
        ("int8", "lease_micros"),
        ("bool", "take_over"),
        ("text", "definition"),
        ("text", "refusal"),
    ],
};

/// The statements for a table.
#[derive(Debug)]
pub(super) struct ClaimStatements {
    claim: TakingStatement,
    /// Where the history is kept, a claim that may end an attempt tells it so: one that may take over, or that knows of one untold.
    telling: Option<TakingStatement>,
}

impl ClaimStatements {
    pub(super) fn new(layout: &Layout) -> ClaimStatements {
        let both = |tells| TakingStatement::new(|taking, shape| statement(layout, taking, shape, tells));
        ClaimStatements { claim: both(false), telling: layout.history.then(|| both(true)) }
    }

    /// The statement, and whether it tells the history.
    fn for_requests(&self, requests: &[&ClaimRequest]) -> (&TakingStatement, bool) {
        let may_end = |request: &&ClaimRequest| request.take_over || request.untold.is_some();
        match self.telling.as_ref().filter(|_| requests.iter().any(may_end)) {
            Some(telling) => (telling, true),
            None => (&self.claim, false),
        }
    }
}

/// Parameters: the key columns, those of `ASKED`, the owner's text, the texts of dead owners; where it tells the history, for each request
/// the attempt that is untold.
fn statement(layout: &Layout, taking: Taking, shape: Shape, tells: bool) -> String {
    let parts = Parts {
        asked: layout.asked_as(shape, ASKED),
        before: format!(
            ", {} AS known_hash, {} AS payload_text{}",
            layout.request_hash.value(),
            layout.payload_text(),
            if tells { history::before(layout) } else { String::new() }
        ),
        guard: guard(layout),
        change: change(layout),
    };
    let (held, update) = taking.statement(layout, &parts);
    let reply = reply(layout);
    if !tells {
        return format!("{held} {update} RETURNING {}", reply.join(", "));
    }
    held + &finish(layout, &update, &reply)
}

/// The end of the statement that tells the history of attempts that are taken over, and of those untold. The outcome of one that is thought
/// untold can have been written all the same, where only the reply was lost: then the history has it.
fn finish(layout: &Layout, update: &str, reply: &[String]) -> String {
    let untold = UntoldColumns::behind(layout.key.len() + ASKED.len() + 2);
    let told = Told {
        outcome: &untold.either("CASE WHEN asked.refusal IS NULL THEN 'interrupted' ELSE 'parked' END", "'taken_over'"),
        reason: &untold.either(&untold.reason, &lost(layout)),
        http_status: "NULL::int4",
        began: &Began {
            stage: &untold.either(&untold.stage, "asked.stage"),
            at: &untold.began_at,
            owner: &untold.either(&owner(layout), "asked.owner_before"),
        },
    };
    let ended = format!(
        "CASE outcome WHEN 'taken_over' THEN state_before {runs} ELSE NOT EXISTS (SELECT FROM {history} AS h \
           WHERE h.key = written.key COLLATE \"default\" AND h.work_table = written.work_table \
             AND h.stage = written.stage AND h.fence = written.fence) END",
        history = WORK_HISTORY.qualified(),
        runs = layout.one_of(&[StageState::Running]),
    );
    history::finish(layout, update, reply, &told, &ended)
}

/// Claims what the guard allows, and answers for what it claimed. A claimed row that cannot be read is missing from the answers.
pub(super) async fn claim<'a>(
    connection: &Connection,
    statements: &ClaimStatements,
    layout: &Layout,
    owner: OwnerId,
    (requests, dead): (&'a [ClaimRequest], &[OwnerId]),
) -> Result<Vec<ClaimReply>> {
    let requests = guarded::in_key_order(requests, |request| &request.key);
    let (statement, tells) = statements.for_requests(&requests);
    let parameters = |requests: &[&'a ClaimRequest]| {
        let mut asked = asked(layout.key.len(), owner, requests, dead)?;
        if tells {
            untold::ask(&mut asked, requests.iter().map(|request| request.untold.as_ref()));
        }
        Ok(asked)
    };
    let rows = statement.run(connection, &requests, parameters).await?;
    let mut left_out = LeftOut::default();
    let replies = rows.iter().filter_map(|(request, row)| left_out.sort(read_reply(layout, request, row))).collect();
    left_out.report();
    Ok(replies)
}

fn asked<'a>(width: usize, owner: OwnerId, requests: &[&'a ClaimRequest], dead: &[OwnerId]) -> Result<Asked<'a>> {
    let mut asked = Asked::new(width, requests.iter().map(|request| &request.key))?;
    asked.each(requests.iter().map(|request| request.seen_fence));
    asked.alike(requests.iter().map(|request| request.stage.as_str()));
    asked.alike(requests.iter().map(|request| i64::from(request.attempt_limit)));
    asked.alike(requests.iter().map(|request| micros(request.lease)));
    asked.alike(requests.iter().map(|request| request.take_over));
    asked.alike(requests.iter().map(|request| request.definition.as_str()));
    asked.alike(requests.iter().map(|request| request.refusal.as_deref()));
    asked.other(owner.to_string());
    asked.other(dead.iter().map(OwnerId::to_string).collect::<Vec<_>>());
    Ok(asked)
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
        "t.{stage}::text = asked.stage AND t.{fence} = asked.fence AND {owner} IS NOT NULL \
         AND (asked.refusal IS NULL OR coalesce({definition}::text, asked.definition) = asked.definition) AND (\
           (t.{state}::text {waits} AND t.{attempts} < asked.attempt_limit \
            AND (t.{next} IS NULL OR t.{next} <= now() OR asked.refusal IS NOT NULL)) \
           OR (asked.take_over AND t.{state}::text {runs} \
               AND (t.{until} IS NULL OR t.{until} < now() OR {lease_owner} = ANY ({dead}))))",
        stage = stage.name,
        definition = layout.definition.value(),
        fence = fence.name,
        owner = owner(layout),
        waits = layout.one_of(&[StageState::Pending, StageState::Retry]),
        runs = layout.one_of(&[StageState::Running]),
        state = stage_state.name,
        attempts = attempt_count.name,
        next = next_attempt_at.name,
        until = lease_until.name,
        lease_owner = lease_owner.value(),
        dead = dead_owners(layout),
    )
}

/// Why an attempt was taken over.
fn lost(layout: &Layout) -> String {
    format!(
        "CASE WHEN t.{state}::text = {unknown} THEN 'AT_LIMIT' \
         WHEN asked.owner_before = ANY ({dead}) THEN 'OWNER_GONE' ELSE 'LEASE_ENDED' END",
        state = layout.stage_state.name,
        unknown = layout.word(StageState::Unknown),
        dead = dead_owners(layout),
    )
}

/// The attempts are below the limit in every row that passes the guard, but for one that is taken over. A refused row is left as it
/// was, but for its state.
fn change(layout: &Layout) -> String {
    let Layout { attempt_count, stage_state, request_hash, last_error, definition, .. } = layout;
    let spent = format!("t.{} >= asked.attempt_limit", attempt_count.name);
    let refused = "asked.refusal IS NOT NULL";
    let rests = format!("{refused} OR {spent}");
    let owner = owner(layout);
    assignments(&[
        (&layout.fence, format!("t.{} + 1", layout.fence.name)),
        (attempt_count, format!("t.{0} + CASE WHEN {rests} THEN 0 ELSE 1 END", attempt_count.name)),
        (
            stage_state,
            format!(
                "(CASE WHEN {refused} THEN {} WHEN {spent} THEN {} ELSE {} END)::{}",
                layout.word(StageState::NonResumable),
                layout.word(StageState::Unknown),
                layout.word(StageState::Running),
                stage_state.type_name
            ),
        ),
        (&layout.lease_owner, format!("CASE WHEN {rests} THEN NULL ELSE {owner} END")),
        (
            &layout.lease_until,
            format!("CASE WHEN {rests} THEN NULL ELSE now() + asked.lease_micros * interval '1 microsecond' END"),
        ),
        (
            request_hash,
            format!(
                "CASE WHEN {refused} THEN t.{0} ELSE coalesce(t.{0}, sha256(convert_to(asked.payload_text, 'UTF8'))) END",
                request_hash.name
            ),
        ),
        (
            last_error,
            format!("coalesce(asked.refusal, CASE WHEN {spent} THEN 'AT_LIMIT' ELSE t.{} END)", last_error.name),
        ),
        (
            definition,
            format!(
                "CASE WHEN {refused} THEN t.{0} ELSE coalesce(t.{0}, asked.definition::{1}) END",
                definition.name, definition.type_name
            ),
        ),
        (&layout.updated_at, "now()".to_owned()),
    ])
}

/// What a claim is made of, after `ord`; `known_hash` is the hash that was stored before this claim.
fn reply(layout: &Layout) -> Vec<String> {
    let mut columns = vec!["asked.ord".to_owned(), format!("t.{}::text", layout.stage_state.name)];
    columns.extend(layout.claim_columns());
    // A table that keeps no hash cannot tell.
    let was_sent = if layout.request_hash.is_there() { "asked.known_hash IS NOT NULL" } else { "true" };
    columns.push(was_sent.to_owned());
    // Without a hash from before, the claim has computed it already: it is not computed again only to be compared with nothing.
    columns.push(
        "asked.known_hash IS NOT NULL AND asked.known_hash <> sha256(convert_to(asked.payload_text, 'UTF8'))"
            .to_owned(),
    );
    columns.extend(row_version::columns(layout));
    columns
}

fn read_reply<'a>(layout: &'a Layout, request: &ClaimRequest, row: &Row) -> Result<ClaimReply, Unreadable<'a>> {
    let mut cells = Cells::new(row, 1);
    let state = layout.read_state(&mut cells)?;
    let fence = cells.take(&layout.fence)?;
    match state {
        StageState::Unknown => return Ok(ClaimReply::AtLimit { key: request.key.clone(), fence }),
        StageState::NonResumable => return Ok(ClaimReply::Parked { key: request.key.clone(), fence }),
        _ => {}
    }
    Ok(ClaimReply::Claimed(Claim {
        key: request.key.clone(),
        stage: request.stage.clone(),
        fence,
        attempt: cells.take_count(&layout.attempt_count)?,
        deferrals: cells.take_count(&layout.deferral_count)?,
        epoch: cells.take_count(&layout.epoch)?,
        definition: cells.take::<Option<&str>>(&layout.definition)?.map(|found| definition(found, request)),
        payload: cells.take::<&str>(&layout.payload)?.into(),
        was_sent: cells.take(&layout.request_hash)?,
        key_expired: None,
        payload_changed: cells.take(&layout.request_hash)?,
        version: row_version::read(layout, &mut cells)?,
    }))
}

/// As a rule the one that was asked for, and then it is not kept twice.
fn definition(found: &str, request: &ClaimRequest) -> DefinitionName {
    if found == request.definition.as_str() { request.definition.clone() } else { DefinitionName::new(found) }
}
