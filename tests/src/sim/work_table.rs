//! The work table of the simulated server, with core's guards, which a test holds against the real one's.

use super::database::{Database, Stored};
use super::faults::{Fault, Point, Side};
use super::shared::{Bug, Process, Sim, disconnected, transient};
use super::stage_set::MOVED_ON;
use postrider_core::error::Result;
use postrider_core::guard::{self, HashAfter};
use postrider_core::history::{Cause, Record, WorkStep};
use postrider_core::paused::Paused;
use postrider_core::ports::{
    BoxFuture, Checkpoint, CheckpointReply, Claim, ClaimReply, ClaimRequest, OpenRows, Reading, RowVersion, Transition,
    WorkTable,
};
use postrider_core::snapshot::Snapshot;
use postrider_core::stage::Next;
use postrider_core::time::Timestamp;
use postrider_core::work::{OwnerId, StageState, WorkKey, WorkVersion};
use std::collections::BTreeSet;
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::oneshot;

#[derive(Debug)]
pub struct FakeWorkTable {
    pub database: Arc<Database>,
    pub process: Arc<Process>,
}

#[derive(Debug)]
struct Pages {
    process: Arc<Process>,
    database: Arc<Database>,
    restarts: u64,
    rows: Vec<WorkVersion>,
    snapshot: Snapshot,
    pauses: Vec<Paused>,
}

impl FakeWorkTable {
    /// Sends a statement. It runs at the server whatever becomes of us; its reply may be lost.
    async fn send<T: Send + 'static>(
        &self,
        point: Point,
        statement: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        let sim = &self.process.sim;
        self.process.point(point, Side::Dispatch).await;
        if self.database.is_down() {
            sim.latency().await;
            return Err(disconnected());
        }
        if sim.strikes(400) {
            sim.count(Fault::StatementNotSent);
            return Err(disconnected());
        }
        if sim.strikes(400) {
            sim.count(Fault::StatementTransient);
            return Err(transient());
        }
        let late = sim.strikes(400);
        let lost = !late && sim.strikes(400);
        let restarts = self.database.state().restarts;
        let (reply, answer) = oneshot::channel();
        let server = sim.clone();
        tokio::spawn(async move {
            if late {
                server.clock.sleep(server.millis(1, 2_500)).await;
            } else {
                server.latency().await;
            }
            let done = statement.await;
            // The client may be gone.
            let _ = reply.send(done);
        });
        if late {
            sim.count(Fault::StatementLate);
            sim.latency().await;
            return Err(disconnected());
        }
        let answer = answer.await.expect("the server answers");
        sim.latency().await;
        self.process.point(point, Side::Completion).await;
        if lost || self.database.state().restarts != restarts {
            sim.count(Fault::StatementReplyLost);
            return Err(disconnected());
        }
        Ok(answer)
    }
}

impl WorkTable for FakeWorkTable {
    fn claim<'a>(
        &'a self,
        owner: OwnerId,
        requests: &'a [ClaimRequest],
        dead: &'a [OwnerId],
    ) -> BoxFuture<'a, Result<Vec<ClaimReply>>> {
        let statement = claim(self.database.clone(), owner, requests.to_vec(), dead.to_vec());
        Box::pin(self.send(Point::WorkClaim, statement))
    }

    fn checkpoint<'a>(
        &'a self,
        owner: OwnerId,
        checkpoints: &'a [Checkpoint],
    ) -> BoxFuture<'a, Result<Vec<CheckpointReply>>> {
        let statement = move |checkpoints, of| checkpoint(self.database.clone(), owner, checkpoints, of);
        let (known, mut left): (Vec<_>, Vec<_>) =
            checkpoints.iter().cloned().partition(|checkpoint| checkpoint.claim.is_some());
        Box::pin(async move {
            let mut replies = Vec::new();
            if !known.is_empty() {
                replies = self.send(Point::WorkCheckpoint, statement(known.clone(), Rows::AsClaimed)).await?;
                left.extend(known.into_iter().filter(|known| !replies.iter().any(|reply| reply.key() == &known.key)));
            }
            if left.is_empty() {
                return Ok(replies);
            }
            match self.send(Point::WorkCheckpoint, statement(left, Rows::All)).await {
                Ok(others) => replies.extend(others),
                Err(error) if replies.is_empty() => return Err(error),
                Err(_unanswered) => {}
            }
            Ok(replies)
        })
    }

    fn read<'a>(&'a self, keys: &'a [WorkKey]) -> BoxFuture<'a, Result<Reading>> {
        let (database, keys) = (self.database.clone(), keys.to_vec());
        Box::pin(self.send(Point::WorkRead, async move {
            let (rows, snapshot) = database.read(Some(&keys));
            Reading { rows, snapshot }
        }))
    }

    fn open_rows(&self) -> BoxFuture<'_, Result<Box<dyn OpenRows>>> {
        Box::pin(async move {
            let database = self.database.clone();
            let read = async move { (database.read(None), database.pauses(), database.state().restarts) };
            let ((mut rows, snapshot), pauses, restarts) = self.send(Point::WorkOpenRows, read).await?;
            rows.reverse();
            let (process, database) = (self.process.clone(), self.database.clone());
            Ok(Box::new(Pages { process, database, restarts, rows, snapshot, pauses }) as Box<dyn OpenRows>)
        })
    }

    fn living_owners(&self) -> BoxFuture<'_, Result<Option<BTreeSet<OwnerId>>>> {
        let database = self.database.clone();
        Box::pin(self.send(Point::WorkOwners, async move { database.living_owners() }))
    }
}

impl OpenRows for Pages {
    fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    fn pauses(&self) -> &[Paused] {
        &self.pauses
    }

    fn next_page(&mut self) -> BoxFuture<'_, Result<Vec<WorkVersion>>> {
        Box::pin(async move {
            self.process.point(Point::WorkNextPage, Side::Dispatch).await;
            self.process.sim.latency().await;
            self.process.point(Point::WorkNextPage, Side::Completion).await;
            if self.database.is_down() || self.database.state().restarts != self.restarts {
                return Err(disconnected());
            }
            let left = self.rows.len().saturating_sub(25);
            let mut page = self.rows.split_off(left);
            page.reverse();
            Ok(page)
        })
    }
}

/// What a claim made of a row.
enum Claimed {
    Runs,
    AtLimit,
    Refused(String),
}

async fn claim(
    database: Arc<Database>,
    owner: OwnerId,
    requests: Vec<ClaimRequest>,
    dead: Vec<OwnerId>,
) -> Vec<ClaimReply> {
    let sim = database.sim.clone();
    let asked = requests.into_iter().map(|request| (request.key.clone(), request)).collect();
    let judge = |stored: &Stored, request: &ClaimRequest| {
        let (before, now) = (&stored.version, sim.server_now());
        if !guard::may_claim(before, request, now, &dead) {
            return None;
        }
        let mut next = stored.clone();
        next.version = guard::after_claim(before, request, owner, now);
        if sim.has(Bug::ClaimKeepsFence) {
            next.version.fence = before.fence;
        }
        if sim.has(Bug::AttemptsUncounted) {
            next.version.attempt_count = before.attempt_count;
        }
        next.request_hash = Some(stored.request_hash.clone().unwrap_or_else(|| stored.payload.clone()));
        let claimed = match (next.version.state, &request.refusal) {
            (StageState::NonResumable, Some(reason)) => {
                next.request_hash = stored.request_hash.clone();
                Claimed::Refused(reason.clone())
            }
            (StageState::Unknown, _) => Claimed::AtLimit,
            _ => Claimed::Runs,
        };
        let changed = stored.request_hash.as_ref().is_some_and(|hash| *hash != stored.payload);
        Some((next, (claimed, changed)))
    };
    let note = |_: &ClaimRequest, stored: &Stored, (claimed, _): &(Claimed, bool)| {
        let row = &stored.version;
        let (key, fence) = (row.key.clone(), row.fence);
        let reason = match claimed {
            Claimed::Runs => {
                let stage = row.stage.clone();
                return sim.record(Record::ClaimWritten { key, stage, epoch: row.epoch, fence, owner });
            }
            Claimed::AtLimit => "AT_LIMIT".to_owned(),
            Claimed::Refused(reason) => reason.clone(),
        };
        sim.record(Record::FenceRaised { key: key.clone(), fence });
        sim.record(Record::Parked { key, reason });
    };
    let written = database.guarded(asked, judge, note).await;
    let replies = written.into_iter().map(|(_, stored, (claimed, changed))| {
        let (key, fence) = (stored.version.key.clone(), stored.version.fence);
        match claimed {
            Claimed::Runs => ClaimReply::Claimed(claim_of(&stored, changed)),
            Claimed::AtLimit => ClaimReply::AtLimit { key, fence },
            Claimed::Refused(_) => ClaimReply::Parked { key, fence },
        }
    });
    replies.collect()
}

/// Which rows a checkpoint statement writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// Those that are as their claims left them.
    AsClaimed,
    All,
}

async fn checkpoint(
    database: Arc<Database>,
    owner: OwnerId,
    checkpoints: Vec<Checkpoint>,
    rows: Rows,
) -> Vec<CheckpointReply> {
    let sim = database.sim.clone();
    let asked = checkpoints.into_iter().map(|checkpoint| (checkpoint.key.clone(), checkpoint)).collect();
    let judge = |stored: &Stored, checkpoint: &Checkpoint| {
        let before = &stored.version;
        let claim = checkpoint.claim.as_ref().filter(|_| rows == Rows::AsClaimed);
        if claim.is_some_and(|claim| claim.version != Some(row_version(stored))) {
            return None;
        }
        let beside = sim.has(Bug::CheckpointBesideAdvance)
            && checkpoint.stage.as_str() == MOVED_ON
            && guard::has_advanced(before, &checkpoint.stage, checkpoint.fence);
        let passes = guard::may_checkpoint(before, checkpoint, owner);
        if !passes && !beside && !sim.has(Bug::CheckpointUnguarded) {
            return None;
        }
        let request_hash = match guard::hash_after(before.fence, &checkpoint.transition) {
            HashAfter::Kept => stored.request_hash.clone(),
            HashAfter::Forgotten => None,
            HashAfter::Anew => Some(stored.payload.clone()),
        };
        let version = guard::after_checkpoint(before, &checkpoint.transition, sim.server_now());
        Some((Stored { version, request_hash, ..stored.clone() }, ()))
    };
    let note = |checkpoint: &Checkpoint, stored: &Stored, (): &()| record(&sim, owner, checkpoint, stored);
    let written = database.guarded(asked, judge, note).await;
    written
        .into_iter()
        .map(|(checkpoint, stored, ())| match checkpoint.transition {
            Transition::Chain { .. } => CheckpointReply::Chained(claim_of(&stored, false)),
            _ => CheckpointReply::Written { key: checkpoint.key },
        })
        .collect()
}

fn record(sim: &Sim, owner: OwnerId, checkpoint: &Checkpoint, stored: &Stored) {
    let Checkpoint { key, stage, fence, transition, .. } = checkpoint.clone();
    let deferred = matches!(transition, Transition::Defer { counted: true, .. });
    sim.record(Record::CheckpointWritten { key: key.clone(), stage, fence, owner, deferred });
    match transition {
        Transition::Advance { next } => {
            sim.record(Record::StageEntered { key, stage: next, cause: Cause::Success });
        }
        Transition::Chain { next, .. } => {
            let version = &stored.version;
            let (epoch, fence) = (version.epoch, version.fence);
            sim.record(Record::StageEntered { key: key.clone(), stage: next.clone(), cause: Cause::Success });
            sim.record(Record::ClaimWritten { key, stage: next, epoch, fence, owner });
        }
        Transition::Finish => sim.record(Record::Closed { key }),
        Transition::Park { reason } | Transition::Unknown { reason } => sim.record(Record::Parked { key, reason }),
        Transition::Retry { .. } | Transition::Defer { .. } | Transition::Release => {}
    }
}

fn claim_of(stored: &Stored, payload_changed: bool) -> Claim {
    let row = &stored.version;
    Claim {
        key: row.key.clone(),
        stage: row.stage.clone(),
        fence: row.fence,
        attempt: row.attempt_count.max(1),
        deferrals: row.deferral_count,
        epoch: row.epoch,
        definition: row.definition.clone(),
        payload: stored.payload.to_string().into(),
        was_sent: false,
        key_expired: None,
        payload_changed,
        version: Some(row_version(stored)),
    }
}

/// A version is what stands in it.
fn row_version(stored: &Stored) -> RowVersion {
    let mut content = DefaultHasher::new();
    (&stored.version.stage, &stored.payload, stored.version.fence, stored.version.attempt_count).hash(&mut content);
    (stored.version.lease_until, stored.version.state as u8).hash(&mut content);
    RowVersion { xid: content.finish() as u32, place: (0, 0), written_at: Timestamp::default() }
}

/// A person closes a row, whatever it is doing; the fence rises, as it does for every writer but the holder.
pub async fn cancel(database: &Arc<Database>, key: WorkKey) {
    let sim = database.sim.clone();
    let judge = |stored: &Stored, (): &()| {
        if stored.version.closed {
            return None;
        }
        Some((Stored { version: guard::after_cancel(&stored.version), ..stored.clone() }, ()))
    };
    let note = |(): &(), stored: &Stored, (): &()| {
        let (key, fence) = (stored.version.key.clone(), stored.version.fence);
        sim.count(Fault::Cancelled);
        sim.record(Record::FenceRaised { key: key.clone(), fence });
        sim.record(Record::Closed { key });
    };
    database.guarded_waiting(key, judge, note).await;
}

/// A receiver moves its row on in the transaction of its work. False: it comes too late, and its work is rolled back.
pub async fn advance(database: &Arc<Database>, work: &WorkStep, fence: i64, next: &Next) -> bool {
    let sim = database.sim.clone();
    let moved = AtomicBool::new(false);
    let judge = |stored: &Stored, (): &()| {
        let before = &stored.version;
        if !guard::may_advance(before, &work.stage, fence) {
            return None;
        }
        let version = guard::after_advance(before, next);
        let request_hash = stored.request_hash.clone().filter(|_| *next == Next::End);
        Some((Stored { version, request_hash, ..stored.clone() }, before.state))
    };
    let note = |(): &(), stored: &Stored, before: &StageState| {
        let (key, fence) = (stored.version.key.clone(), stored.version.fence);
        sim.count(if *before == StageState::Running { Fault::Advanced } else { Fault::AdvancedLate });
        sim.record(Record::EffectCommitted { work: work.clone() });
        sim.record(Record::FenceRaised { key: key.clone(), fence });
        sim.record(match next {
            Next::Stage(stage) => Record::StageEntered { key, stage: stage.clone(), cause: Cause::Success },
            Next::End => Record::Closed { key },
        });
        moved.store(true, Ordering::Relaxed);
    };
    database.guarded_waiting(work.key.clone(), judge, note).await;
    moved.into_inner()
}
