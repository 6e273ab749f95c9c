#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
use crate::executor::play::{Play, stage};
use crate::world::World;
use postrider_core::stage::StagePolicy;
use postrider_core::time::Timestamp;
use postrider_core::work::{OwnerId, StageState, WorkKey, WorkVersion};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

const OTHER: OwnerId = OwnerId(2);

/// One that never dies.
const THIRD: OwnerId = OwnerId(3);

/// A row that the other one runs, under a lease that is longer than anybody waits.
fn running(number: usize, now: Timestamp) -> WorkVersion {
    WorkVersion {
        state: StageState::Running,
        attempt_count: 1,
        fence: 1,
        lease_until: Some(now.after(Duration::from_secs(86_400))),
        lease_owner: Some(OTHER),
        ..WorkVersion::unclaimed(WorkKey::new(["g", &number.to_string()]), "PRICING")
    }
}

/// Asks who lives whenever the state says so, until a claim names rows of a dead owner or the time is over. `dies`: from then on
/// the other one is missing in the answers.
fn ask_until(play: &mut Play, dies: Option<Timestamp>, end: Timestamp) -> Option<usize> {
    loop {
        let now = play.world.now();
        let at = now.after(play.state.owners_mut().until_ask(now)?);
        if at > end {
            return None;
        }
        play.world.now.store(at.0, Ordering::Relaxed);
        play.state.owners_mut().asked(at);
        let lives = dies.is_none_or(|dies| at < dies);
        let living: BTreeSet<OwnerId> =
            [OwnerId(1), OTHER, THIRD].into_iter().filter(|owner| lives || *owner != OTHER).collect();
        play.state.owners_replied(Some(&living));
        let (requests, dead) = play.state.next_claims();
        if !requests.is_empty() {
            assert!(dead == [OTHER] && requests.iter().all(|request| request.take_over));
            return Some(requests.len());
        }
    }
}

#[test]
fn whenever_an_executor_dies_its_rows_are_claimed_by_another_within_two_seconds_and_before_that_never() {
    for die_after in (0..120).map(|tenths| Duration::from_millis(tenths * 97)) {
        let mut play = Play::new(vec![stage("PRICING", "http://core", None)], BTreeMap::new());
        let begin = play.world.now();
        (0..5).for_each(|number| play.state.observe_version(running(number, begin), 1));
        let dies = begin.after(die_after);
        assert_eq!(ask_until(&mut play, None, dies), None, "it lives");
        play.world.now.store(dies.0, Ordering::Relaxed);
        let taken = ask_until(&mut play, Some(dies), dies.after(Duration::from_secs(60)));
        let took = play.world.now().since(dies);
        assert_eq!(taken, Some(5));
        assert!(took <= Duration::from_secs(2), "it died {die_after:?} after the beginning, and it took {took:?}");
    }
}

/// Its rows wait for slots while those who live are asked about.
#[test]
fn a_dead_executor_stays_dead_until_the_last_of_its_rows_is_claimed() {
    let one_at_a_time = StagePolicy { concurrency: 1, ..stage("PRICING", "http://core", None) };
    let mut play = Play::new(vec![one_at_a_time], BTreeMap::new());
    let begin = play.world.now();
    (0..5).for_each(|number| play.state.observe_version(running(number, begin), 1));
    play.state.observe_version(WorkVersion { lease_owner: Some(THIRD), ..running(9, begin) }, 1);
    let living = BTreeSet::from([OwnerId(1), THIRD]);
    (0..2).for_each(|_| play.state.owners_replied(Some(&living)));
    for _ in 0..5 {
        let (requests, dead) = play.state.next_claims();
        assert_eq!((requests.len(), dead), (1, vec![OTHER]));
        play.state.claims_lost(&requests);
        play.state.owners_replied(Some(&living));
    }
    assert!(play.state.next_claims().0.is_empty(), "the third one lives");
    assert_eq!(
        play.state.owners_mut().until_ask(begin),
        Some(Duration::from_secs(1)),
        "who is dead for certain is no reason to ask more often"
    );
}
