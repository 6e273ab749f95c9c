//! What: says what one version of a work row means for an executor.
//! Where: after *decode* and *route*, before *claim*; also for rows that were read, not streamed.
//! Takes and gives: a row version, what is known of the row, the server's time; an [`Observation`].
//! Never: claims, waits, or trusts that the version is the newest.

use crate::stage::{Definitions, Gone, StagePolicy};
use crate::time::Timestamp;
use crate::work::{OwnerId, StageName, StageState, WorkVersion};

/// Orders the versions of one row: by fence, and a claim before its outcome, which share one.
///
/// Nobody but the claim's holder may leave the fence as it is, and the holder writes one outcome, so a version that is not
/// `RUNNING` is later than the `RUNNING` one of the same fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    fence: i64,
    settled: bool,
}

impl Rank {
    pub fn of(version: &WorkVersion) -> Rank {
        Rank { fence: version.fence, settled: version.state != StageState::Running }
    }

    /// The rank of the claim that wrote `fence`.
    pub fn claimed(fence: i64) -> Rank {
        Rank { fence, settled: false }
    }

    /// The rank of the outcome of the claim that wrote `fence`.
    pub fn settled(fence: i64) -> Rank {
        Rank { fence, settled: true }
    }

    pub fn fence(self) -> i64 {
        self.fence
    }
}

/// Whether a version is that of the claim that wrote `fence`. `holder`: who claimed it; `None` where the table has no place for owners, and
/// the fence alone tells.
pub fn is_claim(version: &WorkVersion, stage: &StageName, fence: i64, holder: Option<OwnerId>) -> bool {
    let runs = version.state == StageState::Running && !version.closed && version.stage == *stage;
    runs && version.fence == fence && holder.is_none_or(|holder| version.lease_owner == Some(holder))
}

/// Whether a version was written under the fence of a claim in force by somebody who is not its holder: the holder has written no outcome yet,
/// and everybody else must raise the fence.
pub fn is_unfenced(version: &WorkVersion, stage: &StageName, fence: i64, holder: Option<OwnerId>) -> bool {
    version.fence == fence && !is_claim(version, stage, fence, holder)
}

/// What to do about a row version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observation {
    /// It waits for somebody to start its stage.
    ClaimNow,
    /// It will be due at this time of the server's clock.
    ClaimAt(Timestamp),
    /// Another executor runs it, and may until this time; before that only if that executor is dead.
    TakeOverAt(Timestamp, Option<OwnerId>),
    /// It is claimed in our name and we are not working on it: a reply was lost, and nothing was sent.
    Orphan,
    /// Nothing for an executor to do: closed, parked, unknown, waiting, or in a stage that others work on.
    Rest,
    /// Nobody can start it: the configuration lacks its definition or its stage.
    Gone(Gone),
    /// The row waits, but its attempts are used up: the limit was lowered, or the row was written so.
    AttemptsUsedUp,
    /// Not newer than what is known.
    Ignore,
}

/// The observation. `known` is the rank of the newest version known of this row, if any is; `me` the executor that asks.
pub fn observe(
    definitions: &Definitions,
    me: OwnerId,
    known: Option<Rank>,
    version: &WorkVersion,
    now: Timestamp,
) -> Observation {
    if known.is_some_and(|known| known >= Rank::of(version)) {
        return Observation::Ignore;
    }
    if version.closed {
        return Observation::Rest;
    }
    let step = definitions.step(version.definition.as_ref(), &version.stage);
    let policy = definitions.policy(&step);
    if policy.is_ok_and(|policy| policy.by_others) {
        return Observation::Rest;
    }
    match version.state {
        StageState::Pending | StageState::Retry => waiting(policy, version, now),
        StageState::Running if version.lease_owner == Some(me) => Observation::Orphan,
        // A claim without a lease was not written by this protocol: nothing says that it still holds.
        StageState::Running => Observation::TakeOverAt(version.lease_until.unwrap_or(now), version.lease_owner),
        StageState::Waiting
        | StageState::Unknown
        | StageState::Compensating
        | StageState::NonResumable
        | StageState::Done
        | StageState::Cancelled
        | StageState::Compensated
        | StageState::CompensationStuck => Observation::Rest,
    }
}

fn waiting(policy: Result<&StagePolicy, Gone>, version: &WorkVersion, now: Timestamp) -> Observation {
    let policy = match policy {
        Ok(policy) => policy,
        Err(gone) => return Observation::Gone(gone),
    };
    if version.attempt_count >= policy.attempt_limit {
        return Observation::AttemptsUsedUp;
    }
    match version.next_attempt_at {
        Some(at) if at > now => Observation::ClaimAt(at),
        _ => Observation::ClaimNow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::{Backoff, Next, StageClass, StageGraph};
    use crate::work::{DefinitionName, WorkKey};
    use std::time::Duration;

    const ME: OwnerId = OwnerId(1);
    const OTHER: OwnerId = OwnerId(2);
    const NOW: Timestamp = Timestamp(1_000);

    fn definitions() -> Definitions {
        let graph = StageGraph::new(vec![StagePolicy {
            name: StageName::new("PRICING"),
            class: StageClass::Keyed,
            endpoint: "http://core".into(),
            next: vec![Next::End],
            attempt_limit: 5,
            deferral_limit: Some(10),
            timeout: Duration::from_secs(30),
            lease: Duration::from_secs(60),
            backoff: Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60) },
            concurrency: 1,
            rate: None,
            serial: false,
            priority: 0,
            by_others: false,
            request_bytes_max: 1 << 20,
        }])
        .expect("one stage");
        Definitions::new(DefinitionName::new("quote@1"), graph)
    }

    fn version(state: StageState, fence: i64) -> WorkVersion {
        WorkVersion { state, fence, ..WorkVersion::unclaimed(WorkKey::new(["g", "q"]), "PRICING") }
    }

    fn seen(known: Option<Rank>, version: &WorkVersion) -> Observation {
        observe(&definitions(), ME, known, version, NOW)
    }

    #[test]
    fn a_waiting_row_is_claimed_when_it_is_due() {
        let mut row = version(StageState::Pending, 0);
        assert_eq!(seen(None, &row), Observation::ClaimNow);
        row.next_attempt_at = Some(NOW);
        assert_eq!(seen(None, &row), Observation::ClaimNow);
        row.next_attempt_at = Some(Timestamp(1_001));
        assert_eq!(seen(None, &row), Observation::ClaimAt(Timestamp(1_001)));
    }

    #[test]
    fn a_claim_and_its_outcome_share_a_fence_and_the_outcome_is_later() {
        let running = version(StageState::Running, 4);
        let retry = version(StageState::Retry, 4);
        assert_eq!(seen(Some(Rank::of(&running)), &retry), Observation::ClaimNow);
        assert_eq!(seen(Some(Rank::of(&retry)), &running), Observation::Ignore);
        assert_eq!(seen(Some(Rank::of(&retry)), &retry), Observation::Ignore);
        assert_eq!(seen(Some(Rank::settled(5)), &retry), Observation::Ignore);
    }

    #[test]
    fn a_running_row_is_anothers_until_its_lease_ends_and_an_orphan_if_it_is_ours() {
        let mut row = version(StageState::Running, 1);
        row.lease_owner = Some(OTHER);
        row.lease_until = Some(Timestamp(9_000));
        assert_eq!(seen(None, &row), Observation::TakeOverAt(Timestamp(9_000), Some(OTHER)));
        row.lease_until = None;
        assert_eq!(seen(None, &row), Observation::TakeOverAt(NOW, Some(OTHER)));
        row.lease_owner = Some(ME);
        assert_eq!(seen(None, &row), Observation::Orphan);
    }

    #[test]
    fn a_row_that_nobody_can_start_is_told_apart_from_one_at_rest() {
        let mut row = version(StageState::Retry, 1);
        row.attempt_count = 5;
        assert_eq!(seen(None, &row), Observation::AttemptsUsedUp);
        row.stage = StageName::new("GONE");
        assert_eq!(seen(None, &row), Observation::Gone(Gone::Stage));
        row.definition = Some(DefinitionName::new("quote@0"));
        assert_eq!(seen(None, &row), Observation::Gone(Gone::Version));
        row.closed = true;
        assert_eq!(seen(None, &row), Observation::Rest);
    }

    #[test]
    fn a_stage_that_others_work_on_is_at_rest_whatever_they_do() {
        let mut theirs = definitions().steps().map(|(_, policy)| policy.clone()).collect::<Vec<_>>();
        theirs.iter_mut().for_each(|policy| policy.by_others = true);
        let definitions = Definitions::new(DefinitionName::new("quote@1"), StageGraph::new(theirs).expect("one stage"));
        for state in StageState::ALL {
            // A claim without a lease, of an owner that we do not know.
            let seen = observe(&definitions, ME, None, &version(state, 1), NOW);
            assert_eq!(seen, Observation::Rest, "{state:?}");
        }
    }

    #[test]
    fn every_state_but_three_is_at_rest() {
        let active = [StageState::Pending, StageState::Running, StageState::Retry];
        for state in StageState::ALL {
            let rests = seen(None, &version(state, 1)) == Observation::Rest;
            assert_eq!(rests, !active.contains(&state), "{state:?}");
        }
    }
}
