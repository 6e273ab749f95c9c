//! Where a stage has several ways on: the answer names one, a repeat of it names the same, and one that leads nowhere needs a person.

use super::fixture::{Endpoint, Play, Scene, stage, wait_until, work};

const REFERRAL: &str = "next = [\"APPROVAL\", \"BINDING\", \"DONE\"]\n";

fn submit(scene: &Scene, quote: &str, next: &str) {
    scene.db.run(&format!(
        "BEGIN;
         INSERT INTO quoting.quotes (group_id, quote_id) VALUES ('g', '{quote}');
         INSERT INTO pending_work (group_id, quote_id, stage, payload)
         VALUES ('g', '{quote}', 'PRICING', '{{\"next\": {{\"PRICING\": {next}}}}}');
         COMMIT"
    ));
}

fn rows(scene: &Scene) -> Vec<Vec<String>> {
    scene.db.rows("SELECT quote_id, stage, stage_state, coalesce(last_error, '') FROM pending_work ORDER BY quote_id")
}

#[test]
fn the_answer_chooses_the_way_on_and_a_replay_chooses_the_same() {
    let mut scene = Scene::start();
    let service = scene.start_service();
    // Each first answer is lost after the commit: the way on is the stored answer's.
    let endpoint = Endpoint::before(&service, |_, before| if before == 0 { Play::Lose } else { Play::Answer });
    let address = endpoint.address();
    let soon = "backoff = { first = \"10ms\" }\n";
    let stages = [
        stage("PRICING", &address, None, &format!("{REFERRAL}{soon}")),
        stage("APPROVAL", &address, Some("BINDING"), soon),
        stage("BINDING", &address, None, soon),
    ];
    let mut rider = scene.rider("rider", work(&stages));
    rider.setup();
    rider.start_ready();
    submit(&scene, "long", "\"APPROVAL\"");
    submit(&scene, "short", "\"BINDING\"");
    submit(&scene, "over", "\"DONE\"");
    wait_until("every row is closed", || scene.open_rows() == 0);
    let done = |quote: &str, stage: &str| [quote, stage, "DONE", ""].map(str::to_owned).to_vec();
    assert_eq!(rows(&scene), [done("long", "BINDING"), done("over", "PRICING"), done("short", "BINDING")]);
    assert_eq!(scene.effects(), (6, 0), "one effect for each stage that each row came to");
    assert_eq!(scene.db.number("SELECT count(*) FROM quoting.requests WHERE replayed"), 6);
}

#[test]
fn an_answer_without_a_way_on_parks_the_row_and_a_resume_does_the_work_no_second_time() {
    let mut scene = Scene::start();
    let service = scene.start_service();
    let endpoint = Endpoint::before(&service, |_, _| Play::Answer);
    let address = endpoint.address();
    let stages = |next: &str| {
        let last = ["APPROVAL", "BINDING", "MANUAL"].map(|name| stage(name, &address, None, ""));
        work(&[stage("PRICING", &address, None, next), last.concat()])
    };
    let mut rider = scene.rider("rider", stages(REFERRAL));
    rider.setup();
    rider.start_ready();
    submit(&scene, "none", "null");
    submit(&scene, "other", "\"MANUAL\"");
    let parked = || scene.db.number("SELECT count(*) FROM pending_work WHERE stage_state = 'NON_RESUMABLE'") == 2;
    wait_until("both are parked", parked);
    let reasons: Vec<String> = rows(&scene).into_iter().map(|mut row| row.remove(3)).collect();
    assert!(reasons[0].starts_with("NEXT_MISSING: "), "{reasons:?}");
    assert!(reasons[1].starts_with("NEXT_UNKNOWN: ") && reasons[1].contains("\"MANUAL\""), "{reasons:?}");
    assert_eq!(scene.effects(), (2, 0), "the work is done");

    // The definition gets the way on, and a person lets the row go on.
    rider.kill9();
    rider.plan.rest = stages("next = [\"APPROVAL\", \"MANUAL\"]\n");
    rider.start_ready();
    scene.db.run("UPDATE pending_work SET stage_state = 'PENDING', fence = fence + 1 WHERE quote_id = 'other'");
    let called = || scene.db.number("SELECT count(*) FROM quoting.requests WHERE stage = 'PRICING'") == 3;
    wait_until("it was asked again", called);
    wait_until("it went on", || rows(&scene)[1][1] == "MANUAL");
    assert_eq!(scene.db.number("SELECT count(*) FROM quoting.stage_effects WHERE stage = 'PRICING'"), 2);
    assert_eq!(scene.db.number("SELECT count(*) FROM quoting.requests WHERE replayed"), 1);
}
