//! What a statement may do to a work row: the guards of claim and checkpoint, and what they write, as plain functions.
//!
//! The server's own words for the same are the statements of `postrider-postgres/src/work_table`. A test runs both over
//! generated rows and compares what they allow and what they leave, so that what is proved of these functions (the
//! simulation and the model of the protocol run them) holds for the statements.

use crate::ports::{Checkpoint, ClaimRequest, Transition};
use crate::stage::Next;
use crate::time::Timestamp;
use crate::work::{OwnerId, StageName, StageState, WorkVersion};

/// What a transition does to the payload's hash, which is written at the first attempt of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashAfter {
    Kept,
    /// Nothing was sent under it, or the stage is another.
    Forgotten,
    /// Of the payload as it is now.
    Anew,
}

/// Whether a claim passes. `now` is the server's time; `dead` are the owners that are known to be gone.
pub fn may_claim(row: &WorkVersion, request: &ClaimRequest, now: Timestamp, dead: &[OwnerId]) -> bool {
    // The log may not carry the definition: what is refused for one that the row does not have is left alone, and read.
    let is_meant = request.refusal.is_none() || row.definition.as_ref().is_none_or(|own| *own == request.definition);
    is_meant
        && row.stage == request.stage
        && row.fence == request.seen_fence
        && (is_due(row, request, now) || (request.take_over && is_abandoned(row, now, dead)))
}

/// A row that is refused need not wait for its time.
fn is_due(row: &WorkVersion, request: &ClaimRequest, now: Timestamp) -> bool {
    matches!(row.state, StageState::Pending | StageState::Retry)
        && row.attempt_count < request.attempt_limit
        && (request.refusal.is_some() || row.next_attempt_at.is_none_or(|at| at <= now))
}

fn is_abandoned(row: &WorkVersion, now: Timestamp, dead: &[OwnerId]) -> bool {
    row.state == StageState::Running
        && (row.lease_until.is_none_or(|until| until < now)
            || row.lease_owner.is_some_and(|owner| dead.contains(&owner)))
}

/// The row behind a claim that passed: `RUNNING`, or `UNKNOWN` where a take-over found its attempts used up. One that is refused is
/// parked as it stands.
#[must_use]
pub fn after_claim(row: &WorkVersion, request: &ClaimRequest, owner: OwnerId, now: Timestamp) -> WorkVersion {
    if request.refusal.is_some() {
        let fence = row.fence.saturating_add(1);
        return WorkVersion {
            fence,
            state: StageState::NonResumable,
            lease_owner: None,
            lease_until: None,
            ..row.clone()
        };
    }
    let spent = row.attempt_count >= request.attempt_limit;
    WorkVersion {
        definition: row.definition.clone().or_else(|| Some(request.definition.clone())),
        fence: row.fence.saturating_add(1),
        attempt_count: row.attempt_count.saturating_add(u32::from(!spent)),
        state: if spent { StageState::Unknown } else { StageState::Running },
        lease_owner: (!spent).then_some(owner),
        lease_until: (!spent).then(|| now.after(request.lease)),
        ..row.clone()
    }
}

/// Whether an outcome may be written: by the holder of the claim, once.
pub fn may_checkpoint(row: &WorkVersion, checkpoint: &Checkpoint, owner: OwnerId) -> bool {
    row.stage == checkpoint.stage
        && row.fence == checkpoint.fence
        && row.lease_owner == Some(owner)
        && row.state == StageState::Running
}

/// The row behind a checkpoint that passed.
#[must_use]
pub fn after_checkpoint(row: &WorkVersion, transition: &Transition, now: Timestamp) -> WorkVersion {
    let settled = WorkVersion { lease_owner: None, lease_until: None, next_attempt_at: None, ..row.clone() };
    let given_back = row.attempt_count.saturating_sub(1);
    match transition {
        Transition::Advance { next } => WorkVersion { state: StageState::Pending, ..entered(settled, next) },
        Transition::Chain { next, lease } => WorkVersion {
            state: StageState::Running,
            attempt_count: 1,
            fence: row.fence.saturating_add(1),
            lease_owner: row.lease_owner,
            lease_until: Some(now.after(*lease)),
            ..entered(settled, next)
        },
        Transition::Finish => WorkVersion { state: StageState::Done, closed: true, ..settled },
        Transition::Retry { after, .. } => {
            WorkVersion { state: StageState::Retry, next_attempt_at: Some(now.after(*after)), ..settled }
        }
        Transition::Defer { after, counted, .. } => WorkVersion {
            state: StageState::Retry,
            attempt_count: given_back,
            deferral_count: row.deferral_count.saturating_add(u32::from(*counted)),
            next_attempt_at: Some(now.after(*after)),
            ..settled
        },
        Transition::Park { .. } => WorkVersion { state: StageState::NonResumable, ..settled },
        Transition::Unknown { .. } => WorkVersion { state: StageState::Unknown, ..settled },
        Transition::Release => WorkVersion { state: StageState::Pending, attempt_count: given_back, ..settled },
    }
}

fn entered(row: WorkVersion, stage: &StageName) -> WorkVersion {
    WorkVersion { stage: stage.clone(), attempt_count: 0, deferral_count: 0, ..row }
}

/// Whether a row may be what this outcome left. One that is not, under the fence of the claim, was written by somebody who holds nothing.
pub fn is_left_by(row: &WorkVersion, checkpoint: &Checkpoint) -> bool {
    // What is given back may be a claim that we have forgotten, seen once more by a read that began before its outcome was written.
    if matches!(checkpoint.transition, Transition::Release) {
        return row.state != StageState::Running;
    }
    let (stage, state) = (checkpoint.stage.clone(), StageState::Running);
    let claimed = WorkVersion { stage, state, fence: checkpoint.fence, closed: false, ..row.clone() };
    let left = after_checkpoint(&claimed, &checkpoint.transition, Timestamp(0));
    left.fence == row.fence && left.stage == row.stage && left.state == row.state && left.closed == row.closed
}

/// What becomes of the payload's hash of a row that was claimed with this fence, and whose outcome is written.
pub fn hash_after(claimed_fence: i64, transition: &Transition) -> HashAfter {
    match transition {
        Transition::Chain { .. } => HashAfter::Anew,
        Transition::Advance { .. } => HashAfter::Forgotten,
        // The row's first claim of all, so that nothing was sent; the counts say nothing of that, since a person may reset them.
        Transition::Release if claimed_fence == 1 => HashAfter::Forgotten,
        Transition::Finish
        | Transition::Retry { .. }
        | Transition::Defer { .. }
        | Transition::Park { .. }
        | Transition::Unknown { .. }
        | Transition::Release => HashAfter::Kept,
    }
}

/// Whether a receiver may move the row on in its own transaction: the row is in the stage of its request and under its fence, and the attempt
/// has had no final answer. In `RETRY` and `UNKNOWN` it was given up, and nobody has taken the row since: whoever does raises the fence.
pub fn may_advance(row: &WorkVersion, stage: &StageName, fence: i64) -> bool {
    let is_open = matches!(row.state, StageState::Running | StageState::Retry | StageState::Unknown) && !row.closed;
    is_open && row.stage == *stage && row.fence == fence
}

/// Whether a row has left the stage that a claim was for since: its receiver moved it on, or a person did.
pub fn has_advanced(row: &WorkVersion, stage: &StageName, claimed_fence: i64) -> bool {
    row.fence > claimed_fence && (row.stage != *stage || row.state == StageState::Done)
}

/// The row behind a receiver's own advance. It is not the claim's holder, so the fence rises.
#[must_use]
pub fn after_advance(row: &WorkVersion, next: &Next) -> WorkVersion {
    let moved = taken_away(row);
    match next {
        Next::Stage(next) => WorkVersion { state: StageState::Pending, ..entered(moved, next) },
        Next::End => WorkVersion { state: StageState::Done, closed: true, ..moved },
    }
}

/// The row behind a person's word to end it. As every writer but the claim's holder it raises the fence, so that what the
/// holder writes later finds its guard broken.
#[must_use]
pub fn after_cancel(row: &WorkVersion) -> WorkVersion {
    WorkVersion { state: StageState::Cancelled, closed: true, ..taken_away(row) }
}

/// The row behind a person's word to go on with a parked row, with a budget of its own.
#[must_use]
pub fn after_resume(row: &WorkVersion) -> WorkVersion {
    WorkVersion { state: StageState::Pending, attempt_count: 0, deferral_count: 0, ..taken_away(row) }
}

fn taken_away(row: &WorkVersion) -> WorkVersion {
    WorkVersion {
        fence: row.fence.saturating_add(1),
        lease_owner: None,
        lease_until: None,
        next_attempt_at: None,
        ..row.clone()
    }
}
