//! What: writes what came of calls for rows that are still as our claims left them.
//! Where: the walk's *checkpoint*, before the statements that suit every row.
//! Takes and gives: checkpoints that know their claim; replies, and the checkpoints that are left for the other statements.
//! Never: writes a version that the claim did not write.
//!
//! The version tells all that was claimed with it: counts, payload, hash. So nothing of the row is read, the payload is neither turned into text
//! nor hashed, and a next stage that is claimed at once is sent what the last one was. Any write in between, be it of a payload,
//! makes another version.

use std::collections::BTreeSet;
use std::sync::Arc;

use postrider_core::error::Result;
use postrider_core::guard::{self, HashAfter};
use postrider_core::ports::{Checkpoint, CheckpointReply, Claim, RowVersion, Transition};
use postrider_core::work::{OwnerId, StageState};
use tokio_postgres::Row;

use super::asked::{Asked, Columns, Shape, Statement};
use super::cells::{Cells, LeftOut, Unreadable};
use super::checkpoint::{self, TOLD_OF_CALL, Written, outcome};
use super::guarded;
use super::history;
use super::layout::{Layout, Micros, assignments, micros};
use super::row_version::{self, Tid, Xid};
use super::taking::IS_FREE;
use crate::client::Connection;

/// The columns of `asked` behind the key, then further ones where the history is kept.
const ASKED: Columns<'_> =
    Columns { each: &[("int8", "fence"), ("tid", "row_id"), ("bool", "opens_page")], alike: ALIKE.split_at(UNTOLD).0 };
const TOLD: Columns<'_> = Columns { alike: &ALIKE, ..ASKED };

const ALIKE: [(&str, &str); 18] = [
    ("xid", "row_version"),
    ("text", "stage"),
    ("text", "to_stage"),
    ("text", "state"),
    ("int8", "attempts"),
    ("int8", "deferrals"),
    ("int8", "fence_more"),
    ("int8", "after_micros"),
    ("int8", "lease_micros"),
    ("text", "reason"),
    ("bool", "keeps_hash"),
    ("bool", "ends_stage"),
    ("bool", "closes"),
    ("timestamptz", "claimed_at"),
    ("int4", "attempt_before"),
    ("int4", "deferrals_before"),
    ("text", "outcome"),
    ("int4", "http_status"),
];

/// So many of them there are without the history.
const UNTOLD: usize = 13;

/// A checkpoint with the claim that it ends.
struct Known<'a> {
    checkpoint: &'a Checkpoint,
    claim: &'a Claim,
    version: RowVersion,
    written: Written<'a>,
}

impl<'a> Known<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Option<Known<'a>> {
        let claim = checkpoint.claim.as_deref()?;
        let is_its_own =
            claim.fence == checkpoint.fence && claim.stage == checkpoint.stage && claim.key == checkpoint.key;
        // Of such a row the hash says what the first attempt was sent, and not this one.
        let version = claim.version.filter(|_| is_its_own && !claim.payload_changed)?;
        Some(Known { checkpoint, claim, version, written: Written::of(&checkpoint.transition) })
    }

    fn count(&self, claimed: u32, more: i64) -> i64 {
        let before = if self.written.next.is_some() { 0 } else { i64::from(claimed) };
        before.saturating_add(more).max(0)
    }

    /// Computed anew, from the same payload, it is the same.
    fn keeps_hash(&self) -> bool {
        match guard::hash_after(self.claim.fence, &self.checkpoint.transition) {
            HashAfter::Kept | HashAfter::Anew => true,
            HashAfter::Forgotten => false,
        }
    }

    fn closes(&self) -> bool {
        self.written.state == StageState::Done
    }
}

pub(super) fn statements(layout: &Layout) -> Statement {
    Statement::new(|shape| statement(layout, shape))
}

fn columns(layout: &Layout) -> Columns<'static> {
    if layout.history { TOLD } else { ASKED }
}

/// Parameters: the key columns, those of [`columns`], the owner's text, the number of rows.
fn statement(layout: &Layout, shape: Shape) -> String {
    let columns = columns(layout);
    let owner = layout.key.len() + columns.len() + 1;
    let (table, keys) = (&layout.table, layout.key_matches());
    // As many as there are: the planner takes a limit that it does not know for a small one, and then looks each row up by its place
    // instead of reading the whole table, however small that is when it plans.
    let asked =
        format!("SELECT * FROM ({asked}) AS asked LIMIT ${}::int8", owner + 1, asked = layout.asked_as(shape, columns));
    // Who looks a row up by its place leaves dead versions on its page, and soon no new one fits there. Who comes by the index clears them.
    let update = format!(
        "UPDATE {table} AS t SET {change} FROM asked \
         WHERE (NOT asked.opens_page OR (SELECT true FROM {table} AS t WHERE {keys} LIMIT 1)) \
           AND t.ctid = asked.row_id AND t.xmin = asked.row_version AND {keys} AND {guard} AND {IS_FREE}",
        change = change(layout),
        guard = checkpoint::guard(layout, columns.len()),
    );
    let mut reply = vec!["asked.ord".to_owned()];
    reply.extend(row_version::columns(layout));
    if !layout.history {
        return format!("WITH asked AS ({asked}) {update} RETURNING {}", reply.join(", "));
    }
    let before = format!(
        "SELECT asked.*, {running} AS state_before, {owner} AS owner_before FROM ({asked}) AS asked",
        running = layout.word(StageState::Running),
        owner = if layout.lease_owner.is_there() { format!("${owner}::text") } else { layout.lease_owner.value() },
    );
    format!("WITH asked AS ({before})") + &history::finish(layout, &update, &reply, &TOLD_OF_CALL, "true")
}

/// As in the statement for every row, but that nothing has to be asked of the row.
fn change(layout: &Layout) -> String {
    let Layout { stage, stage_state, attempt_count, deferral_count, fence, .. } = layout;
    let Layout { request_hash, closed_at, last_error, lease_owner, .. } = layout;
    assignments(&[
        (stage, format!("asked.to_stage::{}", stage.type_name)),
        (stage_state, format!("asked.state::{}", stage_state.type_name)),
        (attempt_count, "asked.attempts".to_owned()),
        (deferral_count, "asked.deferrals".to_owned()),
        (fence, format!("t.{} + asked.fence_more", fence.name)),
        (&layout.next_attempt_at, "now() + asked.after_micros * interval '1 microsecond'".to_owned()),
        (&layout.lease_until, "now() + asked.lease_micros * interval '1 microsecond'".to_owned()),
        (lease_owner, format!("CASE WHEN asked.lease_micros IS NOT NULL THEN t.{} END", lease_owner.name)),
        (request_hash, format!("CASE WHEN asked.keeps_hash THEN t.{} END", request_hash.name)),
        (closed_at, format!("CASE WHEN asked.closes THEN now() ELSE t.{} END", closed_at.name)),
        (
            last_error,
            format!("CASE WHEN asked.ends_stage THEN NULL ELSE coalesce(asked.reason, t.{}) END", last_error.name),
        ),
        (&layout.updated_at, "now()".to_owned()),
    ])
}

/// What became of the checkpoints that know their claim.
pub(super) struct Outcomes<'a> {
    pub(super) written: Vec<CheckpointReply>,
    /// Those for the other statements.
    pub(super) left: Vec<&'a Checkpoint>,
    /// One of the rows was taken in the very moment, so that nothing is written, and was waited for already.
    pub(super) waited: bool,
}

/// Writes those of the checkpoints, which are in key order, that know their claim and whose rows nobody has written or holds.
pub(super) async fn write<'a>(
    connection: &Connection,
    statement: &Statement,
    layout: &'a Layout,
    owner: OwnerId,
    checkpoints: Vec<&'a Checkpoint>,
) -> Result<Outcomes<'a>> {
    let known: Vec<Known<'_>> = checkpoints.iter().filter_map(|checkpoint| Known::of(checkpoint)).collect();
    if known.is_empty() {
        return Ok(Outcomes { written: Vec::new(), left: checkpoints, waited: false });
    }
    let (shape, values) = asked(layout, owner, &known)?.finish();
    let answers = match guarded::send(connection, statement.text(shape), &known, &values).await {
        Err(error) if guarded::asks_again(&error) => {
            return Ok(Outcomes { written: Vec::new(), left: checkpoints, waited: true });
        }
        answers => answers?,
    };
    let mut left_out = LeftOut::default();
    let answered: BTreeSet<_> = answers.iter().map(|(known, _)| &known.checkpoint.key).collect();
    let left = checkpoints.into_iter().filter(|checkpoint| !answered.contains(&checkpoint.key)).collect();
    let written = answers.iter().filter_map(|(known, row)| left_out.sort(read_reply(layout, known, row))).collect();
    left_out.report();
    Ok(Outcomes { written, left, waited: false })
}

fn asked<'a>(layout: &'a Layout, owner: OwnerId, known: &[Known<'a>]) -> Result<Asked<'a>> {
    let mut asked = Asked::new(layout.key.len(), known.iter().map(|row| &row.checkpoint.key))?;
    asked.each(known.iter().map(|row| row.claim.fence));
    asked.each(known.iter().map(|row| Tid(row.version.place)));
    let mut page = None;
    asked.each(known.iter().map(move |row| page.replace(row.version.place.0) != Some(row.version.place.0)));
    asked.alike(known.iter().map(|row| Xid(row.version.xid)));
    asked.alike(known.iter().map(|row| row.claim.stage.as_str()));
    asked.alike(known.iter().map(|row| row.written.next.unwrap_or(&row.claim.stage).as_str()));
    asked.alike(known.iter().map(|row| layout.states.word(row.written.state)));
    asked.alike(known.iter().map(|row| row.count(row.claim.attempt, row.written.attempts_more)));
    asked.alike(known.iter().map(|row| row.count(row.claim.deferrals, row.written.deferrals_more)));
    asked.alike(known.iter().map(|row| i64::from(row.written.lease.is_some())));
    asked.alike(known.iter().map(|row| row.written.after.map(micros)));
    asked.alike(known.iter().map(|row| row.written.lease.map(micros)));
    asked.alike(known.iter().map(|row| row.written.reason));
    asked.alike(known.iter().map(Known::keeps_hash));
    asked.alike(known.iter().map(|row| row.written.next.is_some() || row.closes()));
    asked.alike(known.iter().map(Known::closes));
    if layout.history {
        asked.alike(known.iter().map(|row| Micros(row.version.written_at)));
        asked.alike(known.iter().map(|row| row.claim.attempt.cast_signed()));
        asked.alike(known.iter().map(|row| row.claim.deferrals.cast_signed()));
        asked.alike(known.iter().map(|row| outcome(&row.checkpoint.transition)));
        asked.alike(known.iter().map(|row| row.checkpoint.status.map(i32::from)));
    }
    asked.other(owner.to_string());
    asked.other(i64::try_from(known.len()).unwrap_or(i64::MAX));
    Ok(asked)
}

fn read_reply<'a>(layout: &'a Layout, known: &Known<'_>, row: &Row) -> Result<CheckpointReply, Unreadable<'a>> {
    let Known { checkpoint, claim, .. } = known;
    let Transition::Chain { next, .. } = &checkpoint.transition else {
        return Ok(CheckpointReply::Written { key: checkpoint.key.clone() });
    };
    Ok(CheckpointReply::Chained(Claim {
        key: checkpoint.key.clone(),
        stage: next.clone(),
        fence: claim.fence.saturating_add(1),
        attempt: 1,
        deferrals: 0,
        epoch: claim.epoch,
        definition: claim.definition.clone(),
        payload: Arc::clone(&claim.payload),
        was_sent: false,
        key_expired: None,
        payload_changed: false,
        version: row_version::read(layout, &mut Cells::new(row, 1))?,
    }))
}
