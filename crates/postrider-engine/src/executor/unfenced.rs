//! What: says what becomes of a row that somebody wrote while our attempt ran, without raising its fence.
//! Where: after a read that a *checkpoint* or a call left open; *observe* tells of it earlier.
//! Takes and gives: the row as it was written, by the policy parked there or observed as any other version.
//! Never: puts the row back to where it was.

use super::rows::{Ending, Phase, Row, Take};
use super::state::State;
use crate::settings::UnfencedWrites;
use crate::telemetry::StageLabel;
use postrider_core::observe::{Rank, is_claim, is_unfenced};
use postrider_core::ports::{Claim, Transition, Untold};
use postrider_core::work::{OwnerId, StageName, StageState, WorkKey, WorkVersion};
use std::sync::Arc;

impl State {
    /// The row stands under our claim's fence and is not what we wrote, or could have written. `untold`: the attempt.
    pub(super) fn unfenced(&mut self, version: WorkVersion, untold: Untold) {
        let told = self.rows.row(&version.key).is_some_and(|row| {
            let newest = row.newest.as_deref();
            newest.is_some_and(|(newest, _)| is_unfenced(newest, &row.step.stage, version.fence, self.holder()))
        });
        if !told {
            self.note_unfenced(&version);
        }
        let waits = match version.state {
            StageState::Pending | StageState::Retry | StageState::Running => !version.closed,
            _ => false,
        };
        // What is closed, or waits for a person anyway, is left as it is.
        if !waits {
            return self.renew(version);
        }
        let (key, rank, reason) = (version.key.clone(), Rank::of(&version), untold.reason.clone());
        self.keep_untold(&key, version.fence, untold);
        if self.settings.unfenced == UnfencedWrites::Reread {
            return self.renew(version);
        }
        let step = self.settings.definitions.step(version.definition.as_ref(), &version.stage);
        // Only the claim's holder may write a running row; that is us, in whatever stage the row is.
        if self.is_ours(&version, &version.stage, version.fence) {
            self.rows.put(&key, Row::new(rank, step, 0, Phase::Calling));
            return self.settle(&key, Ending::Other(Transition::Park { reason }));
        }
        if version.state == StageState::Running {
            return self.renew(version);
        }
        self.rows.put(&key, Row::new(rank, step, 0, Phase::Due(Take::Free)));
    }

    /// The next statement that writes the row under this fence tells the history of the attempt.
    fn keep_untold(&mut self, key: &WorkKey, fence: i64, untold: Untold) {
        // Those that went on are dropped whenever there are twice as many as before.
        if self.rows_unfenced.len().is_power_of_two() {
            self.rows_unfenced
                .retain(|key, (fence, _)| self.rows.row(key).is_some_and(|row| row.rank.fence() == *fence));
        }
        self.rows_unfenced.insert(key.clone(), (fence, untold));
    }

    /// Whether a version is that of our own claim of this fence.
    pub(super) fn is_ours(&self, version: &WorkVersion, stage: &StageName, claimed_fence: i64) -> bool {
        is_claim(version, stage, claimed_fence, self.holder())
    }

    /// Whose name our claims have in the row.
    pub(super) fn holder(&self) -> Option<OwnerId> {
        self.settings.names_owner.then_some(self.settings.owner)
    }

    /// The attempt under this fence of which the history was not told yet, if there is one.
    pub(super) fn untold(&self, key: &WorkKey, seen: Rank) -> Option<Untold> {
        self.rows_unfenced.get(key).filter(|(fence, _)| *fence == seen.fence()).map(|(_, untold)| untold.clone())
    }

    pub(super) fn note_unfenced(&self, version: &WorkVersion) {
        self.telemetry.unfenced_writes.get_or_create(&StageLabel { stage: version.stage.to_string() }).inc();
        self.alarm();
        tracing::warn!(stage = %version.stage, state = version.state.as_str(), fence = version.fence, "a work row was written while its attempt ran by somebody who did not raise the fence; every writer of the table must");
    }
}

/// An attempt of this stage, by its claim as far as it is still known. `ended`: how it did.
pub(super) fn untold(stage: &StageName, claim: Option<&Arc<Claim>>, ended: &str) -> Untold {
    let claimed_at = claim.and_then(|claim| claim.version).map(|version| version.written_at);
    let reason = format!(
        "UNFENCED_WRITE: while an attempt ran that ended {ended}, somebody wrote the row without raising its fence"
    );
    Untold { stage: stage.clone(), claimed_at, reason }
}

/// How an attempt ended, for a person.
pub(super) fn ending_word(transition: &Transition) -> &'static str {
    match transition {
        Transition::Advance { .. } | Transition::Chain { .. } | Transition::Finish => "done",
        Transition::Retry { .. } => "to be tried again",
        Transition::Defer { .. } => "put off",
        Transition::Park { .. } => "parked",
        Transition::Unknown { .. } => "unknown",
        Transition::Release => "unsent",
    }
}
