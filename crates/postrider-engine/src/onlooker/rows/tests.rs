use super::*;
use expect_test::{Expect, expect};
use postrider_core::stage::{Backoff, Next, StageClass, StageGraph, StagePolicy};
use postrider_core::work::DefinitionName;

const SECOND: i64 = 1_000_000;

fn definitions() -> Definitions {
    let stage = |name: &str| StagePolicy {
        name: StageName::new(name),
        class: StageClass::Keyed,
        endpoint: "http://core".into(),
        next: vec![Next::End],
        attempt_limit: 3,
        deferral_limit: None,
        timeout: Duration::from_secs(30),
        lease: Duration::from_secs(60),
        backoff: Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60) },
        concurrency: 1,
        rate: None,
        serial: false,
        priority: 0,
        by_others: false,
        request_bytes_max: 1 << 20,
    };
    let graph = StageGraph::new(vec![stage("PRICING"), stage("APPROVAL")]).expect("two stages");
    Definitions::new(DefinitionName::new("quote@1"), graph)
}

fn row(stage: &str, state: StageState, attempt_count: u32) -> WorkVersion {
    WorkVersion {
        state,
        attempt_count,
        closed: state.is_closed(),
        ..WorkVersion::unclaimed(WorkKey::new(["q1"]), stage)
    }
}

/// Versions, each with the second of its commit, and what is told of them at the 100th.
fn check(versions: Vec<(i64, WorkVersion)>, expected: &Expect) {
    let mut rows = Rows::new(definitions());
    for (second, version) in versions {
        rows.note(version, Timestamp(second * SECOND));
    }
    let mut lines = String::new();
    for (name, stage) in rows.report(Timestamp(100 * SECOND)) {
        let waits = |delays: DelaySummary| format!("{} in {:?}", delays.count, delays.longest);
        let line = format!(
            "{name}: started {}, ended {}, early {}, overlapping {}, waiting {} for {:?}, used up {}\n",
            waits(stage.started),
            waits(stage.ended),
            stage.early,
            stage.overlapping,
            stage.waiting,
            stage.longest_wait,
            stage.used_up
        );
        if stage != (ObservedStage { is_known: true, ..ObservedStage::default() }) {
            lines.push_str(&line);
        }
    }
    expected.assert_eq(&lines);
}

use StageState::{Cancelled, Done, NonResumable, Pending, Retry, Running};

#[test]
fn a_row_is_due_from_its_commit_until_it_is_shown_running() {
    check(
        vec![(10, row("PRICING", Pending, 0)), (13, row("PRICING", Running, 1)), (20, row("PRICING", Done, 1))],
        &expect![["
            PRICING: started 1 in 3s, ended 0 in 0ns, early 0, overlapping 0, waiting 0 for 0ns, used up 0
        "]],
    );
    // One that the poller has not come to, which was written meanwhile.
    check(
        vec![(10, row("PRICING", Pending, 0)), (40, row("PRICING", Pending, 0))],
        &expect![["
            PRICING: started 0 in 0ns, ended 0 in 0ns, early 0, overlapping 0, waiting 1 for 90s, used up 0
        "]],
    );
}

#[test]
fn one_that_is_put_off_is_due_then_and_not_before() {
    let later = |state, attempts, second: i64| WorkVersion {
        next_attempt_at: Some(Timestamp(second * SECOND)),
        ..row("PRICING", state, attempts)
    };
    check(
        vec![
            (10, later(Pending, 0, 20)),
            (21, row("PRICING", Running, 1)),
            (30, later(Retry, 1, 50)),
            (55, row("PRICING", Running, 2)),
            (60, later(Retry, 2, 80)),
            (70, row("PRICING", Running, 3)),
            (71, later(Retry, 3, 200)),
        ],
        &expect![["
            PRICING: started 2 in 5s, ended 0 in 0ns, early 1, overlapping 0, waiting 0 for 0ns, used up 1
        "]],
    );
    // It is brought forward.
    check(
        vec![(10, later(Retry, 1, 80)), (20, row("PRICING", Retry, 1)), (22, row("PRICING", Running, 2))],
        &expect![["
            PRICING: started 1 in 2s, ended 0 in 0ns, early 0, overlapping 0, waiting 0 for 0ns, used up 0
        "]],
    );
}

#[test]
fn what_comes_of_an_attempt_that_was_not_shown_to_start_is_told_apart() {
    check(
        vec![
            (10, row("PRICING", Pending, 0)),
            (12, row("PRICING", Retry, 1)),
            (15, row("PRICING", Retry, 2)),
            (19, row("APPROVAL", Pending, 0)),
            (21, row("APPROVAL", NonResumable, 1)),
        ],
        &expect![["
            APPROVAL: started 0 in 0ns, ended 1 in 2s, early 0, overlapping 0, waiting 0 for 0ns, used up 0
            PRICING: started 0 in 0ns, ended 3 in 4s, early 0, overlapping 0, waiting 0 for 0ns, used up 0
        "]],
    );
}

#[test]
fn who_starts_a_row_within_its_lease_overlaps_and_behind_it_takes_over() {
    let leased = |attempts, second: i64| WorkVersion {
        lease_until: Some(Timestamp(second * SECOND)),
        ..row("PRICING", Running, attempts)
    };
    check(
        vec![
            (10, row("PRICING", Pending, 0)),
            (10, leased(1, 40)),
            // A heartbeat.
            (30, leased(1, 60)),
            (50, leased(2, 70)),
            (77, leased(3, 95)),
        ],
        &expect![["
            PRICING: started 2 in 7s, ended 0 in 0ns, early 0, overlapping 1, waiting 1 for 5s, used up 0
        "]],
    );
    // Nobody says how long it is somebody's.
    check(
        vec![(10, row("PRICING", Running, 1)), (50, row("PRICING", Running, 2)), (60, row("APPROVAL", Running, 1))],
        &expect![["
            APPROVAL: started 1 in 0ns, ended 0 in 0ns, early 0, overlapping 0, waiting 0 for 0ns, used up 0
            PRICING: started 0 in 0ns, ended 0 in 0ns, early 0, overlapping 1, waiting 0 for 0ns, used up 0
        "]],
    );
}

#[test]
fn what_is_cancelled_or_gone_was_not_taken_and_a_foreign_stage_is_told() {
    check(
        vec![(10, row("PRICING", Pending, 0)), (12, row("PRICING", Cancelled, 0)), (90, row("OTHER", Pending, 7))],
        &expect![["
            OTHER: started 0 in 0ns, ended 0 in 0ns, early 0, overlapping 0, waiting 1 for 10s, used up 0
        "]],
    );
    let mut rows = Rows::new(definitions());
    rows.note(row("PRICING", Pending, 0), Timestamp(10 * SECOND));
    rows.forget(&WorkKey::new(["q1"]));
    assert_eq!(rows.report(Timestamp(20 * SECOND))["PRICING"].waiting, 0);
    assert!(!rows.report(Timestamp(20 * SECOND)).contains_key("OTHER"));
}

#[test]
fn a_line_tells_what_came_since_the_last_one_and_the_stages_told_apart_are_bounded() {
    let mut rows = Rows::new(definitions());
    let mut start = |second: i64| {
        rows.note(row("PRICING", Pending, 0), Timestamp(second * SECOND));
        rows.note(row("PRICING", Running, 1), Timestamp((second + 1) * SECOND));
        let late = rows.report_of_late(Timestamp(second * SECOND))["PRICING"].started.count;
        (late, rows.report(Timestamp(second * SECOND))["PRICING"].started.count)
    };
    assert_eq!((start(10), start(20)), ((1, 1), (1, 2)));
    for number in 0..FOREIGN_STAGES_MAX + 7 {
        let version = WorkVersion { key: WorkKey::new([number.to_string()]), ..row(&format!("S{number}"), Pending, 0) };
        rows.note(version, Timestamp(SECOND));
    }
    assert_eq!(rows.report(Timestamp(SECOND)).len(), FOREIGN_STAGES_MAX + 2);
    assert_eq!(rows.left_out(), 7);
}
