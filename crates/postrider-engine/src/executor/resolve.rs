//! What: reads the rows that a statement left open, and finds out what became of them.
//! Where: beside the walk: after a *claim* or a *checkpoint* that touched fewer rows than it named, or whose reply was lost.
//! Takes and gives: the rows as they are now, with their snapshot; the row observed anew, adopted, or tried again.
//! Never: takes "zero rows" for "lost" while the version that led there is not visible yet.

use super::rows::{Doubt, Ending, Phase, Take};
use super::state::{MISS_PAUSE, State};
use super::unfenced::{ending_word, untold};
use postrider_core::guard::is_left_by;
use postrider_core::observe::Rank;
use postrider_core::ports::{Checkpoint, Reading, Transition};
use postrider_core::stage::Next;
use postrider_core::work::{StageState, WorkKey, WorkVersion};
use std::collections::BTreeMap;

impl State {
    /// The next rows to read. Empty: none.
    pub(crate) fn next_reads(&mut self) -> Vec<WorkKey> {
        let mut keys = Vec::new();
        while keys.len() < self.limits.statement_rows_max {
            let Some(key) = self.doubts.pop_first() else { break };
            keys.push(key);
        }
        keys
    }

    /// The read failed: the same rows again.
    pub(crate) fn reads_failed(&mut self, keys: Vec<WorkKey>) {
        self.doubts.extend(keys);
    }

    /// The rows as they are.
    pub(crate) fn resolve(&mut self, keys: &[WorkKey], reading: Reading) {
        let Reading { rows, snapshot } = reading;
        let mut found: BTreeMap<WorkKey, WorkVersion> = rows.into_iter().map(|row| (row.key.clone(), row)).collect();
        for key in keys {
            let Some(row) = self.rows.row_mut(key) else { continue };
            let Phase::Reading(doubt) = std::mem::replace(&mut row.phase, Phase::Calling) else { continue };
            let visible = row.xid == 0 || snapshot.sees(row.xid);
            let version = found.remove(key);
            match doubt {
                Doubt::Claim(take) => self.resolve_claim(key, take, version, visible),
                Doubt::Checkpoint { checkpoint, refused } => self.resolve_checkpoint(*checkpoint, refused, version),
                Doubt::Leaving(take) => self.resolve_leaving(key, take, version, visible),
                Doubt::Stale => self.resolve_stale(key, version),
                Doubt::Call(ended) => self.resolve_call(&ended.0, ended.1, version),
            }
        }
    }

    fn resolve_claim(&mut self, key: &WorkKey, take: Take, version: Option<WorkVersion>, visible: bool) {
        let Some(row) = self.rows.row(key) else { return };
        let seen = row.rank;
        match version {
            Some(version) if Rank::of(&version) > seen => {
                if version.lease_owner != Some(self.settings.owner) {
                    self.telemetry.claims_lost.inc();
                }
                self.renew(version);
            }
            // Seen as it was: the guard failed by the clock, by the budget, or the reply of a claim that failed was lost.
            Some(version) if Rank::of(&version) == seen => {
                let misses = row.misses;
                self.renew(version);
                self.miss_again(key, misses);
            }
            // Older than what the log showed, or not there: the log is read before its commit is visible (wait for it),
            // or the row was rewritten or deleted since (believe the table).
            _ if !visible => {
                self.miss(key, take, true);
            }
            Some(version) => self.renew(version),
            None => self.forget(key),
        }
    }

    /// Another executor has the row, or had it: as it is now it is observed anew.
    fn resolve_leaving(&mut self, key: &WorkKey, take: Take, version: Option<WorkVersion>, visible: bool) {
        let Some(seen) = self.rows.row(key).map(|row| row.rank) else { return };
        match version {
            Some(version) if visible || Rank::of(&version) >= seen => self.renew(version),
            None if visible => self.forget(key),
            _ => self.miss(key, take, true),
        }
    }

    fn resolve_checkpoint(&mut self, checkpoint: Checkpoint, refused: bool, version: Option<WorkVersion>) {
        let key = checkpoint.key.clone();
        let Some(version) = version else {
            self.stale(refused);
            return self.forget(&key);
        };
        if self.is_ours(&version, &checkpoint.stage, checkpoint.fence) {
            return self.settle_again(&key, again(checkpoint.transition), refused);
        }
        if version.fence == checkpoint.fence {
            // Nobody but the holder may leave the fence as it is.
            return if is_left_by(&version, &checkpoint) {
                self.note_ending(&checkpoint.transition);
                self.renew(version)
            } else {
                let Checkpoint { stage, claim, transition, .. } = &checkpoint;
                let ended = || untold(stage, claim.as_ref(), ending_word(transition));
                let untold = checkpoint.untold.clone().unwrap_or_else(ended);
                self.unfenced(version, untold)
            };
        }
        if self.went_on(&key, &version, checkpoint.fence) {
            return self.renew(version);
        }
        let ours = version.lease_owner == Some(self.settings.owner) && version.state == StageState::Running;
        let chained = matches!(checkpoint.transition, Transition::Chain { .. });
        if !(ours && chained && Some(version.fence) == checkpoint.fence.checked_add(1)) {
            self.stale(refused);
        }
        self.renew(version);
    }

    fn resolve_stale(&mut self, key: &WorkKey, version: Option<WorkVersion>) {
        let Some(version) = version else { return self.forget(key) };
        let Some(row) = self.rows.row(key) else { return };
        let (stage, claimed_fence) = (row.step.stage.clone(), row.rank.fence());
        let untold = untold(&stage, row.claim.as_ref(), "with the receiver's word that its fence is old");
        if self.is_ours(&version, &stage, claimed_fence) {
            // The receiver has seen a higher fence than the row has: only a person can say how.
            let reason = "STALE: the receiver has seen a higher fence than the row's".to_owned();
            return self.settle(key, Ending::Other(Transition::Park { reason }));
        }
        if version.fence == claimed_fence {
            return self.unfenced(version, untold);
        }
        self.renew(version);
    }

    /// Forgets what was known of the row and observes it as it is, or a newer version that came meanwhile.
    pub(super) fn renew(&mut self, version: WorkVersion) {
        let (key, read) = (version.key.clone(), Rank::of(&version));
        let known = self.rows.remove(&key);
        // Nobody else has heard of our own outcome, whatever became of a claim since.
        let own = known.as_ref().is_some_and(|row| row.own && row.rank == read);
        self.place(version, 0, None);
        if let Some(row) = self.rows.row_mut(&key) {
            row.own = own;
        }
        self.observe_newest(known.and_then(|row| row.newest), Some(read));
    }

    fn miss_again(&mut self, key: &WorkKey, misses: u32) {
        let Some(row) = self.rows.row_mut(key) else { return };
        row.misses = misses;
        let soon = self.clock.now().after(MISS_PAUSE.max);
        match row.phase {
            Phase::Due(take) => self.miss(key, take, false),
            Phase::Timed(at, take) if at < soon => self.miss(key, take, false),
            _ => {}
        }
    }

    /// The row still waits for our outcome. Where a statement left it out (`refused`), another session has it locked.
    fn settle_again(&mut self, key: &WorkKey, ending: Ending, refused: bool) {
        if !refused {
            return self.settle(key, ending);
        }
        let Some(mut row) = self.rows.remove(key) else { return };
        row.phase = Phase::Held(self.next_try(&mut row.misses), Box::new(ending));
        self.rows.put(key, row);
    }

    pub(super) fn forget(&mut self, key: &WorkKey) {
        let newest = self.rows.remove(key).and_then(|row| row.newest);
        self.observe_newest(newest, None);
    }

    fn stale(&mut self, refused: bool) {
        self.telemetry.stale_checkpoints.inc();
        tracing::warn!(refused, "a checkpoint changed nothing: the row has moved on under a higher fence");
    }
}

/// What a checkpoint that was not written is tried again as; whether a chained claim has a free slot is decided anew. An advance stays one: the
/// first may still be written late, and the row must then be what the second would have left.
pub(super) fn again(transition: Transition) -> Ending {
    match transition {
        Transition::Chain { next, .. } => Ending::Done(Next::Stage(next)),
        Transition::Finish => Ending::Done(Next::End),
        other => Ending::Other(other),
    }
}
