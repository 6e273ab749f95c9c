#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
use crate::executor::play::{Play, stage};
use crate::settings::EndpointPolicy;
use postrider_core::stage::{Definitions, Next, StageGraph, StagePolicy};
use postrider_core::work::{DefinitionName, StageName, WorkKey};
use std::collections::{BTreeMap, BTreeSet};

const GROUPS: usize = 2;

fn graph(stages: Vec<StagePolicy>) -> StageGraph {
    StageGraph::new(stages).unwrap()
}

fn definition(version: u32) -> DefinitionName {
    DefinitionName::new(&format!("quote@{version}"))
}

fn leads_to(next: &str, policy: StagePolicy) -> StagePolicy {
    StagePolicy { next: vec![Next::of(next)], ..policy }
}

/// Two definitions with the same two serial stages.
fn serial() -> Play {
    let of = |name| StagePolicy { serial: true, ..stage(name, "http://core", None) };
    let stages = || graph(vec![leads_to("B", of("A")), of("B")]);
    Play::of(Definitions::new(definition(2), stages()).with_earlier(definition(1), stages()), BTreeMap::new())
}

fn key(row: usize) -> WorkKey {
    WorkKey::new([format!("group-{}", row % GROUPS), format!("quote-{row}")])
}

/// Plays to the end, and says how many calls of one stage were on their way at once.
fn run(play: &mut Play) -> usize {
    let mut most = 0;
    while play.step() {
        let calls: Vec<_> = play.calling().map(|ticket| (&ticket.step, ticket.key.parts().next())).collect();
        let lanes: BTreeSet<_> = calls.iter().collect();
        assert_eq!(lanes.len(), calls.len(), "one row of a group at a time");
        most = most.max(calls.iter().filter(|(step, _)| step.stage.as_str() == "A").count());
    }
    assert!(play.state.in_use.values().all(|used| *used == 0), "every slot came back: {:?}", play.state.in_use);
    most
}

#[test]
fn the_same_stage_of_two_definitions_has_a_lane_of_each() {
    let mut play = serial();
    for row in 0..100 {
        play.definition = Some(definition(1 + u32::from(row % 4 < 2)));
        play.submit_row(&key(row), "A", None);
    }
    assert_eq!((run(&mut play), play.left.len()), (2 * GROUPS, 200));
}

/// Somebody rewrites `definition` while claims and chains are on their way.
#[test]
fn a_row_that_is_found_under_another_definition_takes_its_slot_along_or_gives_it_back() {
    let mut play = serial();
    for row in 0..300 {
        play.submit_row(&key(row), "A", None);
        for (stage, of) in [("A", row % 3), ("B", row % 5)] {
            if of == 0 {
                play.found.insert((key(row), StageName::new(stage)), definition(1));
            }
        }
    }
    run(&mut play);
    assert_eq!(play.left.len(), 600);
    let claims = |row| play.claimed.iter().filter(|claimed| **claimed == key(row)).count();
    assert!(
        (0..300).any(|row| claims(row) > 2),
        "some row found its lane taken, and was claimed for the stage once more"
    );
}

#[test]
fn a_stage_of_an_earlier_definition_goes_first_by_its_own_priority() {
    let urgent = StagePolicy { priority: 1, ..stage("A", "http://core", None) };
    let current = vec![leads_to("B", stage("A", "http://core", None)), stage("B", "http://core", None)];
    let definitions = Definitions::new(definition(2), graph(current)).with_earlier(definition(1), graph(vec![urgent]));
    let policy = EndpointPolicy { concurrency: Some(5), rate: None };
    let mut play = Play::of(definitions, BTreeMap::from([("http://core".into(), policy)]));
    (0..50).for_each(|row| play.submit_row(&key(row), "A", None));
    play.start();
    play.definition = Some(definition(1));
    (50..100).for_each(|row| play.submit_row(&key(row), "A", None));
    while play.claimed.len() < 55 {
        play.step();
    }
    let urgent: BTreeSet<WorkKey> = (50..100).map(key).collect();
    assert!(play.claimed[5..55].iter().all(|row| urgent.contains(row)), "{:?}", play.claimed);
    assert!(play.left.iter().all(|(_, stage)| stage.as_str() == "A"), "nor does a success go on before them");
    play.run();
    assert_eq!(play.left.len(), 150);
}
