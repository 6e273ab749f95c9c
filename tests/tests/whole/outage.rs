//! An endpoint that is down: its rows wait, and cost neither calls nor writes.

use super::fixture::{Endpoint, Play, Scene, free_port, stage, wait_until, work};

const ROWS: i64 = 200;

#[test]
fn e54_an_endpoint_that_is_down_is_tried_by_one_call_at_a_time_and_its_rows_wait_unclaimed() {
    let scene = Scene::start();
    let port = free_port();
    let keys = "concurrency = 8\nbackoff = { first = \"10ms\", max = \"50ms\" }\nattempts = 1\n";
    let mut rider = scene.rider("rider", work(&[stage("PRICING", &format!("127.0.0.1:{port}"), None, keys)]));
    rider.setup();
    rider.start_ready();
    scene.db.submit(0..200);
    let open = || rider.metric_of("postrider_circuits_open", &format!("endpoint=\"http://127.0.0.1:{port}\""));
    wait_until("the circuit opens", || open() == 1.0);
    let tried = || rider.metric_of("postrider_stage_verdicts_total", "verdict=\"defer\"");
    let before = tried();
    wait_until("the endpoint is tried again", || tried() >= before + 2.0);

    let said = rider.end_of(&["status"]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains(&format!("endpoint http://127.0.0.1:{port}: its calls are held back since ")), "{said}");
    // Ten failures in a row open it, eight calls were on their way, and each try is one.
    let claims = scene.db.number("SELECT sum(fence)::bigint FROM pending_work");
    assert!((10..=30).contains(&claims), "{claims} claims of {ROWS} rows");
    assert_eq!(scene.db.number("SELECT count(*) FROM pending_work WHERE closed_at IS NULL"), ROWS);

    let endpoint = Endpoint::on(port, None, Box::new(|_, _| Play::Answer));
    wait_until("every row is done", || scene.open_rows() == 0);
    assert_eq!(endpoint.requests().len(), 200);
    assert!(endpoint.requests().iter().all(|request| request.attempt() == 1), "no attempt was used before");
    wait_until("the endpoint has its calls back", || open() == 0.0);
}
