#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
use crate::counted;
use crate::executor::play::{Play, stage};
use crate::settings::EndpointPolicy;
use crate::world::World;
use postrider_core::stage::{Next, StagePolicy, Step};
use postrider_core::work::WorkKey;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

const STAGE: &str = "PRICING";

fn play() -> Play {
    Play::new(vec![stage(STAGE, "http://core", None)], BTreeMap::new())
}

fn key(group: usize, quote: usize) -> WorkKey {
    WorkKey::new([format!("group-{group:04}"), format!("quote-{quote:07}")])
}

fn group(key: &WorkKey) -> &str {
    key.parts().next().unwrap()
}

/// What the memory of so many rows comes to, each.
fn assert_small(before: usize, rows: usize, what: &str) {
    let each = (counted::live() - before) / rows;
    assert!((100..=400).contains(&each), "{each} bytes for a row that {what}");
}

#[test]
fn a_million_open_rows_hold_no_more_than_400_bytes_each() {
    const ROWS: usize = 1_000_000;
    let before = counted::live();
    let mut play = play();
    let start = play.world.now();
    // As the read at start brings them: in the order of their keys, which leaves most room in the trees.
    for row in 0..ROWS {
        let at = start.after(Duration::from_micros(1 + u64::try_from(row).unwrap()));
        play.submit_row(&key(row / 1_000, row % 1_000), STAGE, Some(at));
    }
    assert_small(before, ROWS, "waits for its time");
    play.world.now.store(start.after(Duration::from_secs(60)).0, Ordering::Relaxed);
    play.state.fire_timers();
    assert_eq!(play.state.until_next_timer(), None, "all are due");
    assert_small(before, ROWS, "is due");
}

#[test]
fn groups_of_one_row_hold_no_more_than_400_bytes_each_in_a_serial_stage() {
    const ROWS: usize = 100_000;
    let before = counted::live();
    let serial = StagePolicy { serial: true, ..stage(STAGE, "http://core", None) };
    let mut play = Play::new(vec![serial], BTreeMap::new());
    (0..ROWS).for_each(|row| play.submit_row(&key(row, row), STAGE, None));
    assert_small(before, ROWS, "has a lane to itself");
}

/// E47, and a group that has nine tenths of the rows.
#[test]
fn e47_of_50_000_rows_at_once_no_more_run_than_may_and_no_group_waits_for_a_large_one() {
    const SMALL: usize = 50;
    let mut play = play();
    (0..45_000).for_each(|row| play.submit_row(&key(0, row), STAGE, None));
    (0..5_000).for_each(|row| play.submit_row(&key(1 + row % SMALL, row), STAGE, None));
    play.run();
    assert_eq!((play.left.len(), play.most), (50_000, 64));
    let mut turns: Vec<&str> = play.claimed.iter().map(group).collect();
    turns.dedup();
    for round in turns[..50 * (SMALL + 1)].chunks(SMALL + 1) {
        assert_eq!(round.iter().collect::<BTreeSet<_>>().len(), SMALL + 1, "each group has its turn in each round");
    }
    for number in 0..=SMALL {
        let of_group: Vec<&WorkKey> = play.claimed.iter().filter(|row| group(row) == group(&key(number, 0))).collect();
        assert!(of_group.is_sorted(), "within a group who was due first is first");
    }
}

#[test]
fn a_hundred_thousand_timers_at_once_claim_no_more_than_may_run() {
    let policy = EndpointPolicy { concurrency: Some(100), rate: None };
    let stages = vec![stage("A", "http://core", None), stage("B", "http://core", None)];
    let mut play = Play::new(stages, BTreeMap::from([("http://core".into(), policy)]));
    let at = play.world.now().after(Duration::from_secs(1));
    (0..50_000).for_each(|row| play.submit_row(&key(row % 7, row), "A", Some(at)));
    (50_000..100_000).for_each(|row| play.submit_row(&key(row % 7, row), "B", Some(at)));
    play.start();
    assert!(play.claimed.is_empty(), "nothing is due yet");
    play.run();
    assert_eq!((play.left.len(), play.most), (100_000, 100));
    assert!(play.left.iter().all(|(left, _)| *left > at));
}

#[test]
fn a_serial_stage_runs_one_row_of_each_group_at_a_time_and_all_groups_at_once() {
    const GROUPS: usize = 10;
    let stages = vec![
        StagePolicy { serial: true, next: vec![Next::of("B")], ..stage("A", "http://core", None) },
        StagePolicy { serial: true, ..stage("B", "http://core", None) },
    ];
    let mut play = Play::new(stages, BTreeMap::new());
    (0..900).for_each(|row| play.submit_row(&key(row % GROUPS, row), "A", None));
    let mut most = 0;
    while play.step() {
        for stage in ["A", "B"] {
            let rows: Vec<&WorkKey> = play.under_way(stage).collect();
            let groups: BTreeSet<&str> = rows.iter().map(|row| group(row)).collect();
            assert_eq!(groups.len(), rows.len(), "one row of a group at a time");
            most = most.max(rows.len());
        }
    }
    assert_eq!((play.left.len(), most), (1_800, GROUPS));
}

#[test]
fn a_stage_with_a_higher_priority_is_claimed_first_and_gets_what_its_endpoint_leaves() {
    let policy = EndpointPolicy { concurrency: Some(5), rate: None };
    let stages = vec![
        StagePolicy { next: vec![Next::of("B")], ..stage("A", "http://core", None) },
        stage("B", "http://core", None),
        StagePolicy { priority: 1, ..stage("URGENT", "http://core", None) },
    ];
    let mut play = Play::new(stages, BTreeMap::from([("http://core".into(), policy)]));
    play.submit("A", 50);
    play.start();
    play.submit("URGENT", 50);
    let urgent = Step::new("quote@1", "URGENT");
    while play.state.rows.has_due(&urgent) {
        play.step();
    }
    assert!(play.claimed[5..55].iter().all(|row| group(row) == "URGENT"), "{:?}", play.claimed);
    assert!(play.left.iter().all(|(_, stage)| stage.as_str() != "B"), "nor does a success go on before them");
    play.run();
    assert_eq!(play.left.len(), 150);
}
