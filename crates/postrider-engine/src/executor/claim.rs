//! What: claims due rows, many in one statement.
//! Where: after *observe*, before *call*.
//! Takes and gives: the queues of the stages and their free slots; claim requests, and what their replies mean.
//! Never: sends a request for a row whose claim has not come back, or claims more than the stage may run at once.

use super::rows::{Doubt, Phase, Take};
use super::state::State;
use crate::telemetry::VerdictLabel;
use postrider_core::error::Error;
use postrider_core::observe::Rank;
use postrider_core::ports::{ClaimReply, ClaimRequest};
use postrider_core::work::{OwnerId, StageName, WorkKey};
use std::cmp::Reverse;
use std::collections::BTreeSet;

impl State {
    /// The next claim statement: what is due and has a free slot. Empty: nothing to claim.
    pub(crate) fn next_claims(&mut self) -> (Vec<ClaimRequest>, Vec<OwnerId>) {
        let mut requests = Vec::new();
        if self.draining || !self.settings.graph.stages().any(|policy| self.rows.has_due(&policy.name)) {
            return (requests, Vec::new());
        }
        // Each statement begins with another of the stages with the same priority, so that none with a long queue takes all the places.
        let stages = self.settings.graph.stages().map(|policy| (Reverse(policy.priority), policy.name.clone()));
        let mut stages: Vec<(Reverse<u32>, StageName)> = stages.collect();
        self.turn = self.turn.checked_add(1).filter(|turn| *turn < stages.len()).unwrap_or(0);
        stages.rotate_left(self.turn);
        stages.sort_by_key(|(priority, _)| *priority);
        let rows_max = self.rows_max();
        for (_, stage) in stages {
            self.claim_stage(&stage, rows_max, &mut requests);
        }
        let dead = self.owners.dead().collect();
        (requests, dead)
    }

    /// The statement came back. Requests without a reply touched nothing.
    pub(crate) fn claims_replied(&mut self, requests: Vec<ClaimRequest>, replies: Vec<ClaimReply>) {
        let mut open: BTreeSet<WorkKey> = requests.iter().map(|request| request.key.clone()).collect();
        let taken: BTreeSet<&WorkKey> =
            requests.iter().filter(|request| request.take_over).map(|request| &request.key).collect();
        for reply in replies {
            match reply {
                ClaimReply::Claimed(claim) => {
                    open.remove(&claim.key);
                    if taken.contains(&claim.key) {
                        self.telemetry.take_overs.inc();
                    }
                    self.claimed(&claim);
                    self.begin_call(claim);
                }
                ClaimReply::AtLimit { key, fence } => {
                    open.remove(&key);
                    self.at_limit(&key, fence);
                }
            }
        }
        self.claims_open(&open);
    }

    /// The reply was lost, or the statement failed: nobody knows whether the rows are ours.
    pub(crate) fn claims_lost(&mut self, requests: &[ClaimRequest]) {
        self.claims_open(&requests.iter().map(|request| request.key.clone()).collect());
    }

    /// The row of a statement that the table refused is not ours.
    pub(crate) fn claims_refused(&mut self, requests: &[ClaimRequest], error: &Error) {
        self.claims_lost(requests);
        self.refused(&requests.iter().map(|request| &request.key).collect::<Vec<_>>(), error);
    }

    fn claim_stage(&mut self, stage: &StageName, rows_max: usize, requests: &mut Vec<ClaimRequest>) {
        let Some(policy) = self.settings.graph.stage(stage) else { return };
        let (attempt_limit, lease) = (policy.attempt_limit, policy.lease);
        let mut free = self.free_slots(policy);
        while free > 0 && requests.len() < rows_max {
            let Some((key, rank, take)) = self.rows.pop_due(stage) else { return };
            let take_over = matches!(take, Take::Over(_));
            let (stage, seen_fence) = (stage.clone(), rank.fence());
            self.use_slot(&stage, &key);
            requests.push(ClaimRequest { key, stage, seen_fence, attempt_limit, lease, take_over });
            free -= 1;
        }
    }

    fn at_limit(&mut self, key: &WorkKey, fence: i64) {
        let Some(row) = self.rows.row(key) else { return };
        let stage = row.stage.clone();
        self.return_slot(&stage, key, self.era_of(key));
        let label = VerdictLabel { stage: stage.to_string(), verdict: "unknown" };
        self.telemetry.verdicts.get_or_create(&label).inc();
        self.written(key, stage, Rank::settled(fence), Phase::Finished);
    }

    fn claims_open(&mut self, open: &BTreeSet<WorkKey>) {
        for key in open {
            let Some(row) = self.rows.row(key) else { continue };
            let Phase::Claiming(take) = row.phase else { continue };
            let stage = row.stage.clone();
            self.return_slot(&stage, key, self.era_of(key));
            self.doubt(key, Doubt::Claim(take));
        }
    }
}
