//! What: takes in that a receiver moved its row on itself, in the transaction of its work (class `same_tx`).
//! Where: beside *checkpoint*, in whose place it stands: what the receiver wrote is the next version of the row.
//! Takes and gives: a version from the log while the call is under way, or a read after it; the row observed as it is now.
//! Never: writes such a row before it was read, or takes an answer for the advance.

use super::rows::Phase;
use super::state::{CallTicket, State};
use super::unfenced::untold;
use crate::telemetry::StageLabel;
use postrider_core::guard::has_advanced;
use postrider_core::judge::Verdict;
use postrider_core::observe::{Rank, is_unfenced};
use postrider_core::stage::{END, StageClass};
use postrider_core::work::{WorkKey, WorkVersion};

impl State {
    /// Whether the row is still with the call: while it was under way, the row may have gone on.
    pub(super) fn is_held(&self, ticket: &CallTicket) -> bool {
        let row = self.rows.row(&ticket.key);
        row.is_some_and(|row| matches!(row.phase, Phase::Calling) && row.rank == Rank::claimed(ticket.fence))
    }

    /// The log has shown a newer version of a row that we are busy with. Where its call is under way and the receiver has moved it on, the row is
    /// its next stage's at once; the answer, whenever it comes, is only the call's end.
    pub(super) fn observe_called(&mut self, key: &WorkKey) {
        let Some(row) = self.rows.row(key).filter(|row| matches!(row.phase, Phase::Calling)) else { return };
        let Some((version, _)) = row.newest.as_deref() else { return };
        let fence = row.rank.fence();
        if self.went_on(key, version, fence) {
            let newest = self.rows.remove(key).and_then(|row| row.newest);
            self.observe_newest(newest, None);
        } else if is_unfenced(version, &row.step.stage, fence, self.holder()) {
            self.note_unfenced(version);
        }
    }

    /// The row of a call that has ended, as it is now: the receiver may have moved it on, whatever came of the answer.
    pub(super) fn resolve_call(&mut self, ticket: &CallTicket, verdict: Verdict, version: Option<WorkVersion>) {
        let Some(version) = version else { return self.forget(&ticket.key) };
        if self.is_ours(&version, &ticket.step.stage, ticket.fence) {
            return self.conclude(ticket, verdict);
        }
        if version.fence == ticket.fence {
            let claim = self.rows.row(&ticket.key).and_then(|row| row.claim.as_ref());
            let untold = untold(&ticket.step.stage, claim, "with an answer that says nothing of it");
            return self.unfenced(version, untold);
        }
        self.went_on(&ticket.key, &version, ticket.fence);
        self.renew(version);
    }

    /// Counts a row whose receiver has moved it on since our claim of this fence, and says whether it did.
    pub(super) fn went_on(&self, key: &WorkKey, version: &WorkVersion, claimed_fence: i64) -> bool {
        let Some(step) = self.rows.row(key).map(|row| &row.step) else { return false };
        let Ok(policy) = self.settings.definitions.policy(step) else { return false };
        if policy.class != StageClass::SameTx || !has_advanced(version, &step.stage, claimed_fence) {
            return false;
        }
        self.telemetry.done_by_receiver.get_or_create(&StageLabel { stage: step.stage.to_string() }).inc();
        let at = self.world.now();
        self.telemetry.update_stage(step.stage.as_str(), policy.class, |calls| calls.note_good(at));
        let entered = if version.closed { END } else { version.stage.as_str() };
        // What is higher by more has gone on since.
        let is_first = version.fence == claimed_fence.saturating_add(1);
        if is_first && !policy.next.iter().any(|next| next.as_str() == entered) {
            self.alarm();
            tracing::warn!(stage = %step.stage, entered, "a row was moved on to where its stage's `next` does not lead");
        }
        true
    }
}

#[cfg(test)]
#[path = "advanced_tests.rs"]
mod tests;
