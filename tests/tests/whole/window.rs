//! Between a receiver's commit and the orchestrator's checkpoint: whatever dies or sleeps there, one effect.

use super::fixture::{Endpoint, Play, Request, Rider, Scene, stage, wait_until, work};
use std::collections::BTreeSet;
use std::time::Duration;

const PRICING: &str = "/stages/pricing";

/// Two stages, the first with these further keys.
fn two_stages(endpoint: &Endpoint, more: &str) -> String {
    let address = endpoint.address();
    work(&[stage("PRICING", &address, Some("APPROVAL"), more), stage("APPROVAL", &address, None, "")])
}

fn to_pricing(endpoint: &Endpoint) -> Vec<Request> {
    endpoint.requests().into_iter().filter(|request| request.path == PRICING).collect()
}

/// The same request but for what tells attempts apart.
#[track_caller]
fn assert_repeated(first: &Request, second: &Request) {
    assert!(!first.key().is_empty());
    assert_eq!(first.key(), second.key(), "the idempotency key stays");
    assert_eq!(first.body, second.body, "the body stays, byte for byte");
    assert_eq!((first.attempt(), second.attempt()), (1, 2));
    assert!(second.fence() > first.fence(), "the fence rises");
}

#[track_caller]
fn assert_finished(scene: &Scene) {
    wait_until("every row is closed", || scene.open_rows() == 0);
    assert_eq!(scene.db.text("SELECT DISTINCT stage_state FROM pending_work"), "DONE");
}

#[test]
fn e01_an_orchestrator_that_dies_before_its_checkpoint_leaves_one_effect() {
    let mut scene = Scene::start();
    let service = scene.start_service();
    let endpoint = Endpoint::before(&service, |request, before| match (request.path.as_str(), before) {
        (PRICING, 0) => Play::Hold,
        _ => Play::Answer,
    });
    let mut first = scene.rider("first", two_stages(&endpoint, "lease = \"10m\"\n"));
    let mut second = scene.rider("second", two_stages(&endpoint, "lease = \"10m\"\n"));
    first.setup();
    second.setup();
    first.start_ready();
    scene.db.submit(1..2);
    wait_until("the answer is held after the commit", || endpoint.held() == 1);
    assert_eq!(scene.effects(), (1, 0));
    assert_eq!(scene.work_rows(), [["quote-00001", "PRICING", "RUNNING", "1", "t"]]);

    first.kill9();
    second.start();
    assert_finished(&scene);
    let [one, two] = to_pricing(&endpoint).try_into().expect("the same request came twice");
    assert_repeated(&one, &two);
    assert_eq!(scene.effects(), (2, 0), "one effect for each stage");
    assert_eq!(scene.db.number("SELECT count(*) FROM quoting.requests WHERE replayed"), 1);
    assert_eq!(second.metric("postrider_take_overs_total"), 1);
}

#[test]
fn an_answer_that_comes_too_late_is_unknown_and_the_repeat_has_no_second_effect() {
    let mut scene = Scene::start();
    let service = scene.start_service();
    let endpoint = Endpoint::before(&service, |request, before| match (request.path.as_str(), before) {
        (PRICING, 0) => Play::Hold,
        (PRICING, 1) => Play::HoldRequest,
        _ => Play::Answer,
    });
    let keys = "timeout = \"1s\"\nlease = \"5m\"\nbackoff = { first = \"10ms\" }\n";
    let mut rider = scene.rider("rider", two_stages(&endpoint, keys));
    rider.setup();
    rider.start_ready();
    scene.db.submit(1..2);
    wait_until("the request comes again", || endpoint.count(PRICING) == 2);
    assert_eq!(scene.effects(), (1, 0));
    assert_eq!(scene.db.text("SELECT last_error FROM pending_work"), "UNKNOWN: no answer within the stage's time-out");
    assert_eq!(rider.metric_of("postrider_stage_verdicts_total", "verdict=\"retry\""), 1.0);

    endpoint.release();
    assert_finished(&scene);
    let requests = to_pricing(&endpoint);
    assert_repeated(&requests[0], &requests[1]);
    assert_eq!(scene.effects(), (2, 0), "one effect for each stage");
    wait_until("both stages count as done", || {
        rider.metric_of("postrider_stage_verdicts_total", "verdict=\"done\"") == 2.0
    });
}

#[test]
fn a_connection_lost_after_the_commit_has_no_second_effect() {
    let mut scene = Scene::start();
    let service = scene.start_service();
    let endpoint = Endpoint::before(&service, |_, before| if before == 0 { Play::Lose } else { Play::Answer });
    let mut rider = scene.rider("rider", two_stages(&endpoint, "backoff = { first = \"10ms\" }\n"));
    rider.setup();
    rider.start_ready();
    // So few that their failures in a row do not open the endpoint's circuit.
    scene.db.submit(1..6);
    assert_finished(&scene);
    assert_eq!(scene.effects(), (10, 0));
    assert_eq!(endpoint.requests().len(), 20, "each request came twice");
}

#[test]
fn two_orchestrators_share_the_rows_and_never_a_claim() {
    const ROWS: u32 = 200;
    let mut scene = Scene::start();
    let service = scene.start_service();
    let endpoint = Endpoint::before(&service, |_, _| Play::Late(Duration::from_millis(5)));
    let mut riders: Vec<Rider> =
        ["left", "right"].map(|name| scene.rider(name, two_stages(&endpoint, "concurrency = 4\n"))).into();
    riders.iter().for_each(Rider::setup);
    riders.iter_mut().for_each(Rider::start_ready);
    scene.db.submit(0..ROWS);
    assert_finished(&scene);
    assert_eq!(scene.effects(), (i64::from(ROWS) * 2, 0));
    let requests = endpoint.requests();
    let claims: BTreeSet<_> =
        requests.iter().map(|request| (request.member("quote_id"), request.path.clone(), request.fence())).collect();
    assert_eq!(claims.len(), requests.len(), "no claim became two requests");
    assert_eq!(requests.len(), 2 * ROWS as usize, "nothing was asked twice");
    for rider in &riders {
        assert!(rider.metric("postrider_stage_calls_total") > 10, "both did work");
    }
}

#[test]
fn e06_an_orchestrator_that_sleeps_longer_than_its_lease_changes_nothing_when_it_wakes() {
    let mut scene = Scene::start();
    let service = scene.start_service();
    let endpoint = Endpoint::before(&service, |_, before| if before == 0 { Play::Hold } else { Play::Answer });
    let one_stage = || work(&[stage("PRICING", &endpoint.address(), None, "timeout = \"2s\"\nlease = \"3s\"\n")]);
    let mut sleeper = scene.rider("sleeper", one_stage());
    let mut waker = scene.rider("waker", one_stage());
    sleeper.setup();
    waker.setup();
    sleeper.start_ready();
    scene.db.submit(1..2);
    wait_until("the answer is held after the commit", || endpoint.held() == 1);
    sleeper.signal("STOP");
    endpoint.release();
    waker.start_ready();
    assert_finished(&scene);
    assert_eq!(waker.metric("postrider_take_overs_total"), 1);
    let row = || scene.db.rows("SELECT ctid, xmin, w.* FROM pending_work AS w");
    let before = row();

    sleeper.signal("CONT");
    wait_until("the stale checkpoint is counted", || sleeper.metric("postrider_stale_checkpoints_total") == 1);
    assert_eq!(row(), before, "not one version more");
    assert_eq!(scene.effects(), (1, 0));
    let requests = endpoint.requests();
    assert_repeated(&requests[0], &requests[1]);
    assert_eq!(requests.len(), 2);
    sleeper.still_runs();
}
