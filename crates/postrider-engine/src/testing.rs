//! What the tests of the executor and of the onlooker begin with.

use postrider_core::work::{StageName, StageState, WorkKey, WorkVersion};

/// A row that nobody has claimed yet.
pub(crate) fn unclaimed(key: WorkKey, stage: &str) -> WorkVersion {
    WorkVersion {
        key,
        definition: None,
        stage: StageName::new(stage),
        state: StageState::Pending,
        attempt_count: 0,
        deferral_count: 0,
        fence: 0,
        epoch: 0,
        next_attempt_at: None,
        lease_until: None,
        lease_owner: None,
        closed: false,
    }
}
