//! What: writes what became of claimed rows, many in one statement, and claims their next stage in the same one.
//! Where: after *judge*; what it writes is a new row version: the next lap.
//! Takes and gives: settled rows; checkpoints, and what their replies mean.
//! Never: writes for a row whose fence has moved on.

use super::resolve::again;
use super::rows::{Doubt, Ending, Phase, Take};
use super::state::State;
use postrider_core::error::Error;
use postrider_core::observe::Rank;
use postrider_core::ports::{Checkpoint, CheckpointReply, Transition};
use postrider_core::stage::{Next, StagePolicy, Step};
use postrider_core::work::WorkKey;
use std::collections::HashMap;
use std::time::Duration;

/// So long an outcome is kept that the database refused to write.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

impl State {
    /// The next checkpoint statement. Empty: nothing to write.
    pub(crate) fn next_checkpoints(&mut self) -> Vec<Checkpoint> {
        let mut checkpoints = Vec::new();
        let rows_max = if self.settling.is_empty() { 0 } else { self.rows_max() };
        for key in self.settling.take(rows_max) {
            let Some(row) = self.rows.row_mut(&key) else { continue };
            let Phase::Settling(ending) = std::mem::replace(&mut row.phase, Phase::Writing) else {
                debug_assert!(false, "a row waits for its checkpoint until it is written");
                continue;
            };
            let (step, rank, status, claim) = (row.step.clone(), row.rank, row.status, row.claim.take());
            let (fence, untold) = (rank.fence(), self.untold(&key, rank));
            let transition = match *ending {
                Ending::Done(Next::Stage(next)) => self.go_on(Step { stage: next, ..step.clone() }, &key),
                Ending::Done(Next::End) => Transition::Finish,
                Ending::Other(transition) => transition,
            };
            checkpoints.push(Checkpoint { key, stage: step.stage, fence, status, transition, claim, untold });
        }
        checkpoints
    }

    /// The statement came back. Checkpoints without a reply were refused by their guard.
    pub(crate) fn checkpoints_replied(&mut self, checkpoints: Vec<Checkpoint>, replies: Vec<CheckpointReply>) {
        let mut replies: HashMap<WorkKey, CheckpointReply> =
            replies.into_iter().map(|reply| (reply.key().clone(), reply)).collect();
        for checkpoint in checkpoints {
            match replies.remove(&checkpoint.key) {
                Some(CheckpointReply::Written { .. }) => self.checkpoint_written(checkpoint),
                Some(CheckpointReply::Chained(claim)) => self.start(claim),
                None => self.checkpoint_open(checkpoint, true),
            }
        }
    }

    /// The reply was lost, or the statement failed: nobody knows whether the outcomes are written.
    pub(crate) fn checkpoints_lost(&mut self, checkpoints: Vec<Checkpoint>) {
        for checkpoint in checkpoints {
            self.checkpoint_open(checkpoint, false);
        }
    }

    /// The table, or the history, refuses what the statement writes. What a single row ended in is kept: asked again, its receiver
    /// would have to do without what was not written.
    pub(crate) fn checkpoints_refused(&mut self, mut checkpoints: Vec<Checkpoint>, error: &Error) {
        match checkpoints.pop() {
            Some(checkpoint) if checkpoints.is_empty() => {
                let key = checkpoint.key.clone();
                self.give_chained_back(&checkpoint);
                let held = Phase::Held(self.clock.now().after(REFUSED_PAUSE), Box::new(again(checkpoint.transition)));
                self.rows.set(&key, held);
                self.alarm();
                tracing::error!(
                    error = error.report(),
                    stage = %checkpoint.stage,
                    fence = checkpoint.fence,
                    "the database refuses to write what a stage's call came to; it is kept in memory and tried again every half minute"
                );
            }
            last => {
                checkpoints.extend(last);
                self.name_one_by_one(checkpoints.len());
                self.checkpoints_lost(checkpoints);
            }
        }
    }

    /// Our outcome stands in the row.
    pub(super) fn checkpoint_written(&mut self, checkpoint: Checkpoint) {
        let now = self.clock.now();
        let rank = Rank::settled(checkpoint.fence);
        let Some(row) = self.rows.row(&checkpoint.key) else { return };
        let definition = row.step.definition.clone();
        self.note_ending(&checkpoint.transition);
        self.rows_unfenced.remove(&checkpoint.key);
        let (stage, phase) = match checkpoint.transition {
            Transition::Advance { next } | Transition::Chain { next, .. } => {
                let by_others = self.is_by_others(&Step { definition: definition.clone(), stage: next.clone() });
                (next, if by_others { Phase::Finished } else { Phase::Due(Take::Free) })
            }
            Transition::Retry { after, .. } | Transition::Defer { after, .. } => {
                (checkpoint.stage, Phase::Timed(now.after(after), Take::Free))
            }
            Transition::Release => (checkpoint.stage, Phase::Due(Take::Free)),
            Transition::Finish | Transition::Park { .. } | Transition::Unknown { .. } => {
                (checkpoint.stage, Phase::Finished)
            }
        };
        self.written(&checkpoint.key, Step { definition, stage }, rank, phase);
    }

    fn is_by_others(&self, step: &Step) -> bool {
        self.settings.definitions.policy(step).is_ok_and(|policy| policy.by_others)
    }

    /// Success goes on: chained into the next stage where that has a free slot and nobody waits for it, or goes before it.
    fn go_on(&mut self, step: Step, key: &WorkKey) -> Transition {
        let Some(lease) = self.lease_to_chain(&step, key) else { return Transition::Advance { next: step.stage } };
        self.use_slot(&step, key);
        Transition::Chain { next: step.stage, lease }
    }

    fn lease_to_chain(&self, step: &Step, key: &WorkKey) -> Option<Duration> {
        let policy = self.settings.definitions.policy(step).ok().filter(|_| !self.is_paused(step))?;
        let is_free = self.free_slots(step, policy) > 0 && self.rows.may_run(step, key);
        let waits =
            self.draining || policy.by_others || !is_free || self.rows.has_due(step) || self.goes_before(policy);
        (!waits).then_some(policy.lease)
    }

    /// Whether a row waits for this stage's endpoint that goes before all that come to the stage.
    fn goes_before(&self, policy: &StagePolicy) -> bool {
        let mut others = self.settings.definitions.steps().filter(|(_, other)| other.priority > policy.priority);
        others.any(|(step, other)| {
            other.endpoint == policy.endpoint && self.rows.has_due(&step) && !self.is_paused(&step)
        })
    }

    /// The slot that was taken for the next stage.
    fn give_chained_back(&mut self, checkpoint: &Checkpoint) {
        if let Transition::Chain { next, .. } = &checkpoint.transition {
            let stage = next.clone();
            if let Some(step) = self.rows.row(&checkpoint.key).map(|row| Step { stage, ..row.step.clone() }) {
                self.return_slot(&step, &checkpoint.key, self.era_of(&checkpoint.key));
            }
        }
    }

    fn checkpoint_open(&mut self, checkpoint: Checkpoint, refused: bool) {
        self.give_chained_back(&checkpoint);
        let key = checkpoint.key.clone();
        self.doubt(&key, Doubt::Checkpoint { checkpoint: Box::new(checkpoint), refused });
    }
}

#[cfg(test)]
mod tests {
    use crate::executor::play::{Play, stage};
    use postrider_core::stage::Next;
    use postrider_core::work::StageName;
    use std::collections::BTreeMap;
    use std::time::Duration;

    /// The next stage is somebody else's: the row is left there, and neither claimed nor taken over from whoever works on it.
    #[test]
    fn a_stage_that_others_work_on_is_led_to_and_left_alone() {
        let mut first = stage("FIRST", "http://core", None);
        first.next = vec![Next::Stage(StageName::new("LAST"))];
        let mut last = stage("LAST", "http://core", None);
        last.by_others = true;
        let mut play = Play::new(vec![first, last], BTreeMap::new());
        play.submit("FIRST", 1);
        play.submit("LAST", 1);
        play.run();
        let left: Vec<&str> = play.left.iter().map(|(_, stage)| stage.as_str()).collect();
        assert_eq!(left, ["FIRST"]);
        assert_eq!(play.state.rows.len(), 0);
    }

    /// What a receiver did is not asked for again because of a table that is missing beside the row.
    #[test]
    fn an_outcome_that_the_database_refuses_is_kept_and_written_later() {
        let mut first = stage("FIRST", "http://core", None);
        first.next = vec![Next::Stage(StageName::new("LAST"))];
        let mut play = Play::new(vec![first, stage("LAST", "http://core", None)], BTreeMap::new());
        play.submit("FIRST", 1);
        play.refuses = 3;
        play.run();
        let left: Vec<&str> = play.left.iter().map(|(_, stage)| stage.as_str()).collect();
        assert_eq!(left, ["FIRST", "LAST"]);
        assert!(play.took() >= Duration::from_secs(90), "{:?}", play.took());
        assert_eq!(play.state.rows.len(), 0);
    }
}
