//! Races of the work table by their case numbers: what the log leaves out, and an owner that dies amid a batch.

use super::fixture::{Endpoint, Play, Scene, stage, wait_until, work};
use std::collections::BTreeSet;
use std::time::Duration;

/// The requests' payloads are longer than a page, stored beside the row, and no update of ours touches them, so that the log does not have
/// them; nor has it anything of the old row, since the replica identity is the key.
#[test]
fn e40_e41_a_large_payload_that_no_update_touches_leaves_whole_with_every_attempt_and_stage() {
    const ROWS: usize = 10;
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, before| if before == 0 { Play::Lose } else { Play::Answer });
    let retry = "backoff = { first = \"10ms\" }\n";
    let address = endpoint.address();
    let stages = [stage("PRICING", &address, Some("APPROVAL"), retry), stage("APPROVAL", &address, None, retry)];
    let mut rider = scene.rider("rider", work(&stages));
    rider.setup();
    scene.db.run("ALTER TABLE pending_work ALTER payload SET STORAGE EXTERNAL");
    assert!(scene.db.is("SELECT relreplident = 'd' FROM pg_class WHERE oid = 'pending_work'::regclass"));
    rider.start_ready();
    scene.db.run(&format!(
        "INSERT INTO pending_work (group_id, quote_id, stage, payload)
         SELECT 'g', 'q' || n, 'PRICING', jsonb_build_object('n', n, 'pad', repeat('x', 20000))
         FROM generate_series(1, {ROWS}) AS n"
    ));
    wait_until("every row is closed", || scene.open_rows() == 0);
    assert_eq!(scene.db.text("SELECT DISTINCT stage_state FROM pending_work"), "DONE");
    let requests = endpoint.requests();
    assert_eq!(requests.len(), 4 * ROWS, "each stage was asked twice");
    for request in &requests {
        assert!(request.body.len() > 20_000, "{} bytes", request.body.len());
    }
    let bodies: BTreeSet<_> = requests.iter().map(|request| (request.key(), &request.body)).collect();
    assert_eq!(bodies.len(), 2 * ROWS, "one body for each key");
}

#[test]
fn e69_an_owner_that_dies_amid_a_batch_is_followed_within_its_lease_with_one_effect_for_each_stage() {
    const ROWS: u32 = 60;
    let mut scene = Scene::start();
    let service = scene.start_service();
    let endpoint = Endpoint::before(&service, |_, before| match before {
        0 => Play::Hold,
        _ => Play::Late(Duration::from_millis(1)),
    });
    let address = endpoint.address();
    let keys = "lease = \"10m\"\nconcurrency = 8\n";
    let stages =
        || work(&[stage("PRICING", &address, Some("APPROVAL"), keys), stage("APPROVAL", &address, None, keys)]);
    let (mut first, mut second) = (scene.rider("first", stages()), scene.rider("second", stages()));
    first.setup();
    second.setup();
    first.start_ready();
    scene.db.submit(0..ROWS);
    wait_until("calls are held after their commits", || endpoint.held() == 8);
    first.kill9();
    endpoint.release();
    second.start();
    wait_until("every row is closed", || scene.open_rows() == 0);
    assert_eq!(scene.db.text("SELECT DISTINCT stage_state FROM pending_work"), "DONE");
    assert_eq!(scene.effects(), (i64::from(ROWS) * 2, 0));
    assert!(second.metric("postrider_take_overs_total") >= 8, "what was claimed was taken over long before its lease");
}
