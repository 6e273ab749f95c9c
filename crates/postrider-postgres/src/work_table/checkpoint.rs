//! What: writes what came of calls, many in one statement, each guarded by the fence that its claim wrote.
//! Where: the walk's *checkpoint*, after *judge*; what it writes comes back through the log as the next lap.
//! Takes and gives: transitions to "written", or to the claim of the next stage where it was chained.
//! Never: writes a row that is no longer ours, waits for one that others hold, or sends a statement again whose reply was lost.

use std::time::Duration;

use postrider_core::error::Result;
use postrider_core::ports::{Checkpoint, CheckpointReply, Claim, Transition};
use postrider_core::work::{DefinitionName, OwnerId, StageName, StageState};
use tokio_postgres::Row;

use super::asked::{Asked, Columns, Shape, Statement};
use super::cells::{Cells, LeftOut, Unreadable};
use super::guarded;
use super::history::{self, AS_IN_ROW, Began, Told};
use super::known::{self, Outcomes};
use super::layout::{Layout, assignments, micros};
use super::row_version;
use super::taking::{Parts, Taking, TakingStatement};
use super::untold::{self, UntoldColumns};
use crate::client::Connection;

/// The columns of `asked` behind the key: the guard's and what is written, then further ones where the history is kept.
const ASKED: Columns<'_> = Columns { each: &[("int8", "fence")], alike: ALIKE.split_at(UNTOLD).0 };
const TOLD: Columns<'_> = Columns { alike: &ALIKE, ..ASKED };

const ALIKE: [(&str, &str); 10] = [
    ("text", "stage"),
    ("text", "next_stage"),
    ("text", "state"),
    ("int8", "attempts_more"),
    ("int8", "deferrals_more"),
    ("int8", "after_micros"),
    ("int8", "lease_micros"),
    ("text", "reason"),
    ("text", "outcome"),
    ("int4", "http_status"),
];

/// So many of them there are without the history.
const UNTOLD: usize = 8;

/// What the history is told of a call.
pub(super) const TOLD_OF_CALL: Told<'_> =
    Told { outcome: "asked.outcome", reason: "asked.reason", http_status: "asked.http_status", began: &AS_IN_ROW };

/// A transition as numbers and texts for the statement.
pub(super) struct Written<'a> {
    /// The stage the row goes to; its counters then start at zero.
    pub(super) next: Option<&'a StageName>,
    pub(super) state: StageState,
    pub(super) attempts_more: i64,
    pub(super) deferrals_more: i64,
    pub(super) after: Option<Duration>,
    /// Set where the next stage is claimed at once.
    pub(super) lease: Option<Duration>,
    pub(super) reason: Option<&'a str>,
}

impl Written<'_> {
    pub(super) fn of(transition: &Transition) -> Written<'_> {
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

/// The statements for a table.
#[derive(Debug)]
pub(super) struct CheckpointStatements {
    /// For rows that are as their claims left them.
    known: Statement,
    /// For the rest.
    taking: TakingStatement,
    /// Where the history is kept: for those that end an attempt in another stage than the row is in.
    telling: Option<TakingStatement>,
}

impl CheckpointStatements {
    pub(super) fn new(layout: &Layout) -> CheckpointStatements {
        let taking = |tells| TakingStatement::new(|taking, shape| statement(layout, taking, shape, tells));
        CheckpointStatements {
            known: known::statements(layout),
            taking: taking(false),
            telling: layout.history.then(|| taking(true)),
        }
    }

    /// The statement for what is left, and whether it tells of attempts in other stages.
    fn for_left(&self, left: &[&Checkpoint]) -> (&TakingStatement, bool) {
        match self.telling.as_ref().filter(|_| left.iter().any(|checkpoint| checkpoint.untold.is_some())) {
            Some(telling) => (telling, true),
            None => (&self.taking, false),
        }
    }
}

/// Parameters: the key columns, those of [`columns`], the owner's text; where it tells of them, the attempts in other stages.
fn statement(layout: &Layout, taking: Taking, shape: Shape, tells: bool) -> String {
    let parts = Parts {
        asked: layout.asked_as(shape, columns(layout)),
        // Only a chained claim needs the payload; for the rest it is not even read.
        before: format!(
            ", CASE WHEN asked.lease_micros IS NOT NULL THEN {} END AS payload_text{}",
            layout.payload_text(),
            if layout.history { history::before(layout) } else { String::new() }
        ),
        guard: guard(layout, columns(layout).len()),
        change: change(layout),
    };
    let (held, update) = taking.statement(layout, &parts);
    let mut reply = vec!["asked.ord".to_owned()];
    reply.extend(layout.claim_columns());
    reply.extend(row_version::columns(layout));
    if !layout.history {
        return format!("{held} {update} RETURNING {}", reply.join(", "));
    }
    if !tells {
        return held + &history::finish(layout, &update, &reply, &TOLD_OF_CALL, "true");
    }
    let untold = UntoldColumns::behind(layout.key.len() + columns(layout).len() + 1);
    let began =
        Began { stage: &untold.either(&untold.stage, AS_IN_ROW.stage), at: &untold.began_at, owner: AS_IN_ROW.owner };
    let reason = untold.either(&untold.reason, TOLD_OF_CALL.reason);
    held + &history::finish(layout, &update, &reply, &Told { reason: &reason, began: &began, ..TOLD_OF_CALL }, "true")
}

/// Writes what the guard allows, and answers for what it wrote. A chained claim that cannot be read is missing from the answers.
pub(super) async fn checkpoint<'a>(
    connection: &Connection,
    statements: &CheckpointStatements,
    layout: &'a Layout,
    owner: OwnerId,
    checkpoints: &'a [Checkpoint],
) -> Result<Vec<CheckpointReply>> {
    let checkpoints = guarded::in_key_order(checkpoints, |checkpoint| &checkpoint.key);
    let Outcomes { written: mut replies, left, waited } =
        known::write(connection, &statements.known, layout, owner, checkpoints).await?;
    if left.is_empty() {
        return Ok(replies);
    }
    let (statement, tells) = statements.for_left(&left);
    let parameters = |checkpoints: &[&'a Checkpoint]| {
        let mut asked = asked(layout, owner, checkpoints)?;
        if tells {
            untold::ask(&mut asked, checkpoints.iter().map(|checkpoint| checkpoint.untold.as_ref()));
        }
        Ok(asked)
    };
    let rows = match waited {
        true => statement.run_locked(connection, &left, parameters).await,
        false => statement.run(connection, &left, parameters).await,
    };
    let rows = match rows {
        // They have no answer, are read, and come again without the others: what is written is not to be doubted for them.
        Err(error) if !replies.is_empty() => {
            tracing::debug!(
                error = error.report(),
                rows = left.len(),
                "outcomes were not written with others; they are read and tried again"
            );
            return Ok(replies);
        }
        rows => rows?,
    };
    let mut left_out = LeftOut::default();
    let others = rows.iter().filter_map(|(checkpoint, row)| left_out.sort(read_reply(layout, checkpoint, row)));
    replies.extend(others);
    left_out.report();
    Ok(replies)
}

fn columns(layout: &Layout) -> Columns<'static> {
    if layout.history { TOLD } else { ASKED }
}

fn asked<'a>(layout: &'a Layout, owner: OwnerId, checkpoints: &[&'a Checkpoint]) -> Result<Asked<'a>> {
    let written: Vec<Written<'_>> = checkpoints.iter().map(|checkpoint| Written::of(&checkpoint.transition)).collect();
    let mut asked = Asked::new(layout.key.len(), checkpoints.iter().map(|checkpoint| &checkpoint.key))?;
    asked.each(checkpoints.iter().map(|checkpoint| checkpoint.fence));
    asked.alike(checkpoints.iter().map(|checkpoint| checkpoint.stage.as_str()));
    asked.alike(written.iter().map(|row| row.next.map(StageName::as_str)));
    asked.alike(written.iter().map(|row| layout.states.word(row.state)));
    asked.alike(written.iter().map(|row| row.attempts_more));
    asked.alike(written.iter().map(|row| row.deferrals_more));
    asked.alike(written.iter().map(|row| row.after.map(micros)));
    asked.alike(written.iter().map(|row| row.lease.map(micros)));
    asked.alike(written.iter().map(|row| row.reason));
    if layout.history {
        asked.alike(checkpoints.iter().map(|checkpoint| match (&checkpoint.transition, &checkpoint.untold) {
            // It was sent, and is given back only where the row is now.
            (Transition::Release, Some(_)) => "interrupted",
            (transition, _) => outcome(transition),
        }));
        asked.alike(checkpoints.iter().map(|checkpoint| checkpoint.status.map(i32::from)));
    }
    asked.other(owner.to_string());
    Ok(asked)
}

/// The word of the history for the end of an attempt.
pub(super) fn outcome(transition: &Transition) -> &'static str {
    match transition {
        Transition::Advance { .. } | Transition::Chain { .. } | Transition::Finish => "done",
        Transition::Retry { .. } => "retry",
        Transition::Defer { .. } => "deferred",
        Transition::Park { .. } => "parked",
        Transition::Unknown { .. } => "unknown",
        Transition::Release => "released",
    }
}

/// The guard of a checkpoint (`docs/stage-protocol.md`). The owner's text is the parameter behind so many columns of `asked`.
pub(super) fn guard(layout: &Layout, columns: usize) -> String {
    let number = layout.key.len() + columns + 1;
    // Where no owner is written, the fence alone says whose claim it is.
    let owner = match layout.lease_owner.is_there() {
        true => format!("t.{} = ${number}::text", layout.lease_owner.name),
        false => format!("${number}::text IS NOT NULL"),
    };
    format!(
        "t.{stage}::text = asked.stage AND t.{fence} = asked.fence AND {owner} AND t.{state}::text {runs}",
        stage = layout.stage.name,
        fence = layout.fence.name,
        state = layout.stage_state.name,
        runs = layout.one_of(&[StageState::Running]),
    )
}

/// No indexed column changes but `closed_at`, and that only with the last transition: a column that is set to what it was
/// does not count, so all the others are HOT updates.
fn change(layout: &Layout) -> String {
    let Layout { stage, stage_state, attempt_count, deferral_count, fence, .. } = layout;
    let Layout { request_hash, closed_at, last_error, .. } = layout;
    let counter = |name: &str, more: &str| {
        format!("greatest(CASE WHEN asked.next_stage IS NULL THEN t.{name} ELSE 0 END + asked.{more}, 0)")
    };
    let leased = "asked.lease_micros IS NOT NULL";
    // The row's first claim of all is given back: nothing was sent under this hash, and the payload may still be changed. Counts say
    // nothing of that, since a person may have reset them.
    let pending = layout.word(StageState::Pending);
    let unsent = format!("asked.next_stage IS NULL AND asked.state = {pending} AND t.{} = 1", fence.name);
    let done = format!("asked.state = {}", layout.word(StageState::Done));
    let ended = format!("asked.next_stage IS NOT NULL OR {done}");
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
                "CASE WHEN {leased} THEN sha256(convert_to(asked.payload_text, 'UTF8')) \
                 WHEN asked.next_stage IS NULL AND NOT ({unsent}) THEN t.{} END",
                request_hash.name
            ),
        ),
        (closed_at, format!("CASE WHEN {done} THEN now() ELSE t.{} END", closed_at.name)),
        (last_error, format!("CASE WHEN {ended} THEN NULL ELSE coalesce(asked.reason, t.{}) END", last_error.name)),
        (&layout.updated_at, "now()".to_owned()),
    ])
}

fn read_reply<'a>(layout: &'a Layout, checkpoint: &Checkpoint, row: &Row) -> Result<CheckpointReply, Unreadable<'a>> {
    let Transition::Chain { next, .. } = &checkpoint.transition else {
        return Ok(CheckpointReply::Written { key: checkpoint.key.clone() });
    };
    let mut cells = Cells::new(row, 1);
    Ok(CheckpointReply::Chained(Claim {
        key: checkpoint.key.clone(),
        stage: next.clone(),
        fence: cells.take(&layout.fence)?,
        attempt: cells.take_count(&layout.attempt_count)?,
        deferrals: cells.take_count(&layout.deferral_count)?,
        epoch: cells.take_count(&layout.epoch)?,
        definition: cells.take::<Option<&str>>(&layout.definition)?.map(DefinitionName::new),
        payload: cells.take::<&str>(&layout.payload)?.into(),
        was_sent: false,
        key_expired: None,
        payload_changed: false,
        version: row_version::read(layout, &mut cells)?,
    }))
}
