//! Stages and endpoints that a person holds back: no orchestrator claims anything for them until they are resumed.

use super::fixture::{Endpoint, Play, Rider, Scene, stage, wait_until, work};

/// What is heard comes through the log: no sweep may bring it.
const SWEEP: &str = "[periods]\nsweep = \"10m\"\n";

#[track_caller]
fn give(rider: &Rider, words: &[&str]) {
    let ended = rider.end_of(&[&["stage"], words, &["--why", "a test", "--by", "ada"]].concat());
    assert!(ended.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ended.stderr));
}

fn said(rider: &Rider, words: &[&str]) -> String {
    String::from_utf8_lossy(&rider.end_of(words).stdout).into_owned()
}

#[test]
fn what_is_paused_waits_in_two_orchestrators_and_after_a_restart_and_goes_on_when_it_is_resumed() {
    const ROWS: usize = 20;
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let address = endpoint.address();
    let stages = [stage("PRICING", &address, Some("APPROVAL"), ""), stage("APPROVAL", &address, None, "")];
    let rest = || work(&stages) + SWEEP;
    let (mut first, mut second) = (scene.rider("first", rest()), scene.rider("second", rest()));
    first.setup();
    second.setup();
    first.start_ready();
    second.start_ready();

    give(&first, &["pause", "APPROVAL"]);
    for rider in [&first, &second] {
        wait_until("it has heard of it", || rider.metric("postrider_paused") == 1);
    }
    scene.db.submit(0..20);
    let waiting = || {
        let waits = "stage = 'APPROVAL' AND stage_state = 'PENDING' AND attempt_count = 0 AND lease_owner IS NULL";
        scene.db.number(&format!("SELECT count(*) FROM pending_work WHERE {waits}"))
    };
    wait_until("every row waits before the paused stage", || waiting() == 20);
    assert_eq!((endpoint.count("/stages/pricing"), endpoint.count("/stages/approval")), (ROWS, 0));
    let told = "stage APPROVAL: paused since ";
    assert!(said(&first, &["status"]).contains(told), "{}", said(&first, &["status"]));
    assert!(second.readiness().starts_with(&format!("ready\n{told}")), "{}", second.readiness());
    let listed = said(&first, &["stage", "ls"]);
    assert!(listed.contains(told) && listed.contains("by ada: a test"), "{listed}");

    first.kill9();
    first.start_ready();
    wait_until("it knows the rows", || first.metric("postrider_open_rows") == 20);
    assert_eq!((first.metric("postrider_paused"), waiting(), endpoint.count("/stages/approval")), (1, 20, 0));

    give(&second, &["resume", "APPROVAL"]);
    wait_until("every row is closed", || scene.open_rows() == 0);
    assert_eq!((endpoint.count("/stages/pricing"), endpoint.count("/stages/approval")), (ROWS, ROWS));
    for rider in [&first, &second] {
        wait_until("it has heard of it", || rider.metric("postrider_paused") == 0);
        assert_eq!(rider.metric("postrider_sweep_hits_total"), 0);
        assert_eq!(rider.readiness(), "ready\n");
    }
    let actions =
        "SELECT string_agg(concat_ws(' ', verb, who, stage_before, state_before, state_after), '; ' ORDER BY id)
                     FROM postrider.operator_actions";
    assert_eq!(
        scene.db.text(actions),
        "stage pause APPROVAL ada APPROVAL ACTIVE PAUSED; stage resume APPROVAL ada APPROVAL PAUSED ACTIVE"
    );
}

#[test]
fn what_is_under_way_ends_while_its_endpoint_is_paused_and_what_a_dead_orchestrator_left_waits() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|request, before| match (request.member("quote_id").as_str(), before) {
        ("quote-00000", _) => Play::Hold,
        ("quote-00001", 0) => Play::Lose,
        _ => Play::Answer,
    });
    let address = endpoint.address();
    let keys = "lease = \"10m\"\nbackoff = { first = \"10ms\", max = \"10ms\" }\n";
    let rest = || work(&[stage("PRICING", &address, None, keys)]) + SWEEP;
    let (mut first, mut second) = (scene.rider("first", rest()), scene.rider("second", rest()));
    first.setup();
    second.setup();
    first.start_ready();
    scene.db.submit(0..1);
    wait_until("a call is under way", || endpoint.held() == 1);
    give(&first, &["pause", "--endpoint", &format!("http://{address}/anything")]);
    wait_until("it has heard of it", || first.metric("postrider_paused") == 1);
    scene.db.submit(1..3);
    endpoint.release();
    wait_until("the call has ended", || scene.open_rows() == 2);
    assert_eq!(endpoint.requests().len(), 1);

    give(&first, &["resume", "--endpoint", &format!("http://{address}")]);
    wait_until("all are done, one of them again after its answer was lost", || scene.open_rows() == 0);
    assert_eq!(endpoint.requests().len(), 4);

    // A call of an orchestrator that dies is unknown, and is not asked again before somebody says so.
    let stuck = Endpoint::alone(|_, before| if before == 0 { Play::Hold } else { Play::Answer });
    first.kill9();
    let plan = work(&[stage("PRICING", &stuck.address(), None, keys)]) + SWEEP;
    first.plan.rest.clone_from(&plan);
    second.plan.rest = plan;
    first.start_ready();
    scene.db.submit(3..4);
    wait_until("a call is under way", || stuck.held() == 1);
    give(&first, &["pause", "PRICING", "--definition", "quoting@1"]);
    first.kill9();
    second.start_ready();
    second.wait_to_say("an executor died");
    assert_eq!((second.metric("postrider_paused"), stuck.requests().len()), (1, 1));
    assert_eq!(scene.db.text("SELECT stage_state FROM pending_work WHERE closed_at IS NULL"), "RUNNING");
    give(&second, &["resume", "PRICING", "--definition", "quoting@1"]);
    wait_until("it is taken over", || scene.open_rows() == 0);
    assert_eq!((second.metric("postrider_take_overs_total"), stuck.requests().len()), (1, 2));
}
