//! What: claims due rows, many in one statement.
//! Where: after *observe*, before *call*.
//! Takes and gives: the queues of the stages and their free slots; claim requests, and what their replies mean.
//! Never: sends a request for a row whose claim has not come back, or claims more than the stage may run at once.

use super::rows::{Doubt, Ending, Phase, Take};
use super::state::State;
use crate::settings::UnfencedWrites;
use crate::telemetry::VerdictLabel;
use postrider_core::error::Error;
use postrider_core::observe::Rank;
use postrider_core::ports::{Claim, ClaimReply, ClaimRequest, Transition};
use postrider_core::stage::Step;
use postrider_core::work::{OwnerId, StageState, WorkKey};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

/// So many groups at least share a claim statement, while each has rows that wait. Those of one group as a rule lie side by side in the
/// table: a statement that takes several of each touches fewer pages.
const GROUPS_IN_A_CLAIM_MIN: usize = 32;

impl State {
    /// The next claim statement: what is due and has a free slot. Empty: nothing to claim.
    pub(crate) fn next_claims(&mut self) -> (Vec<ClaimRequest>, Vec<OwnerId>) {
        let mut requests = Vec::new();
        if self.draining {
            return (requests, Vec::new());
        }
        let mut steps: Vec<Step> = self.startable_steps().cloned().collect();
        if steps.is_empty() {
            return (requests, Vec::new());
        }
        // Each statement begins with another of the stages with the same priority, so that none with a long queue takes all the places.
        self.turn = self.turn.checked_add(1).filter(|turn| *turn < steps.len()).unwrap_or(0);
        steps.rotate_left(self.turn);
        let definitions = &self.settings.definitions;
        steps.sort_by_key(|step| Reverse(definitions.policy(step).map_or(0, |policy| policy.priority)));
        let rows_max = self.rows_max();
        for step in steps {
            self.claim_step(&step, rows_max, &mut requests);
        }
        let dead = self.owners.dead().collect();
        (requests, dead)
    }

    /// How many rows are due, are not held back and have a free slot, up to what a statement may name.
    pub(crate) fn claimable_count(&self) -> usize {
        let definitions = &self.settings.definitions;
        let claimable = |step: &Step| {
            let free = definitions.policy(step).map_or(u32::MAX, |policy| self.free_slots(step, policy));
            self.rows.due_count(step).min(usize::try_from(free).unwrap_or(usize::MAX))
        };
        if self.draining { 0 } else { self.startable_steps().map(claimable).sum() }
    }

    /// The statement came back. Requests without a reply touched nothing.
    pub(crate) fn claims_replied(&mut self, requests: &[ClaimRequest], replies: Vec<ClaimReply>) {
        let taken: BTreeSet<&WorkKey> =
            requests.iter().filter(|request| request.take_over).map(|request| &request.key).collect();
        for reply in replies {
            match reply {
                ClaimReply::Claimed(claim) => {
                    if taken.contains(&claim.key) {
                        self.telemetry.take_overs.inc();
                    }
                    self.rows_unfenced.remove(&claim.key);
                    self.start(claim);
                }
                ClaimReply::AtLimit { key, fence } => self.at_limit(&key, fence),
                ClaimReply::Parked { key, fence } => self.parked(&key, fence),
            }
        }
        self.claims_lost(requests);
    }

    /// Nobody knows whether these rows are ours, but for those that are being claimed no more, since they had a reply.
    pub(crate) fn claims_lost(&mut self, requests: &[ClaimRequest]) {
        for ClaimRequest { key, .. } in requests {
            let Some(row) = self.rows.row(key) else { continue };
            let Phase::Claiming(take) = row.phase else { continue };
            let step = row.step.clone();
            if self.settings.definitions.policy(&step).is_ok() {
                self.return_slot(&step, key, self.era_of(key));
            }
            self.doubt(key, Doubt::Claim(take));
        }
    }

    /// The row of a statement that the table refused is not ours.
    pub(crate) fn claims_refused(&mut self, requests: &[ClaimRequest], error: &Error) {
        self.claims_lost(requests);
        self.refused(&requests.iter().map(|request| &request.key).collect::<Vec<_>>(), error);
    }

    /// Requests for what is due. A row that nobody can start takes no slot: its claim parks it.
    fn claim_step(&mut self, step: &Step, rows_max: usize, requests: &mut Vec<ClaimRequest>) {
        let (mut free, attempt_limit, lease, refusal) = match self.settings.definitions.policy(step) {
            Ok(policy) => (self.free_slots(step, policy), policy.attempt_limit, policy.lease, None),
            Err(gone) => (u32::MAX, u32::MAX, Duration::ZERO, Some(gone.reason(step))),
        };
        let room = rows_max.saturating_sub(requests.len()).min(usize::try_from(free).unwrap_or(usize::MAX));
        let turn_rows = (room / GROUPS_IN_A_CLAIM_MIN).max(1);
        while free > 0 && requests.len() < rows_max {
            let Some((key, rank, take)) = self.rows.pop_due(step, turn_rows) else { break };
            let take_over = matches!(take, Take::Over(_));
            let untold = self.untold(&key, rank);
            let parks = untold.as_ref().filter(|_| self.settings.unfenced == UnfencedWrites::Park);
            if refusal.is_none() {
                self.use_slot(step, &key);
            }
            requests.push(ClaimRequest {
                key,
                stage: step.stage.clone(),
                seen_fence: rank.fence(),
                attempt_limit: if parks.is_some() { u32::MAX } else { attempt_limit },
                lease,
                take_over,
                definition: step.definition.clone(),
                refusal: refusal.clone().or_else(|| parks.map(|attempt| attempt.reason.clone())),
                untold,
            });
            free -= 1;
        }
        if refusal.is_some() {
            self.rows.forget_queue(step);
        }
    }

    /// The row is ours, and a slot is taken for it.
    pub(super) fn start(&mut self, claim: Claim) {
        let may_run = self.rehome(&claim);
        self.claimed(&claim);
        if may_run {
            self.begin_call(claim);
        } else {
            self.settle(&claim.key, Ending::Other(Transition::Release));
        }
    }

    /// Where the claim found the row under another definition than it was seen with, its slot is one of that. False: it can have none,
    /// since another row of its group runs there.
    fn rehome(&mut self, claim: &Claim) -> bool {
        let step = self.settings.definitions.step(claim.definition.as_ref(), &claim.stage);
        let Some(row) = self.rows.row(&claim.key).filter(|row| row.step.definition != step.definition) else {
            return true;
        };
        let taken = Step { stage: claim.stage.clone(), definition: row.step.definition.clone() };
        self.return_slot(&taken, &claim.key, self.era_of(&claim.key));
        let may_run = self.rows.may_run(&step, &claim.key);
        if may_run {
            self.use_slot(&step, &claim.key);
        }
        may_run
    }

    fn parked(&mut self, key: &WorkKey, fence: i64) {
        let Some(row) = self.rows.row(key) else { return };
        let step = row.step.clone();
        self.note_waiting(StageState::NonResumable);
        self.rows_unfenced.remove(key);
        match self.settings.definitions.policy(&step) {
            Ok(_) => self.return_slot(&step, key, self.era_of(key)),
            Err(gone) => self.refuse(gone.as_str(), &gone.reason(&step)),
        }
        self.written(key, step, Rank::settled(fence), Phase::Finished);
    }

    fn at_limit(&mut self, key: &WorkKey, fence: i64) {
        let Some(row) = self.rows.row(key) else { return };
        let step = row.step.clone();
        self.return_slot(&step, key, self.era_of(key));
        let label = VerdictLabel { stage: step.stage.to_string(), verdict: "unknown" };
        self.telemetry.verdicts.get_or_create(&label).inc();
        self.note_waiting(StageState::Unknown);
        self.rows_unfenced.remove(key);
        self.written(key, step, Rank::settled(fence), Phase::Finished);
    }
}

#[cfg(test)]
#[path = "definition_tests.rs"]
mod tests;
