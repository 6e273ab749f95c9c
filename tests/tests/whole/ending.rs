//! SIGTERM: nothing new is begun, what was begun ends within its bound, and what was not sent is given back.

use super::fixture::{Database, Endpoint, PATIENCE, Play, Scene, assert_within, stage, wait_until, work};
use std::time::Duration;

const ASKED_TO_END: &str = "asked to end";

fn two_stages(endpoint: &Endpoint) -> String {
    let address = endpoint.address();
    work(&[stage("PRICING", &address, Some("APPROVAL"), "timeout = \"5m\"\n"), stage("APPROVAL", &address, None, "")])
}

#[test]
fn what_is_in_flight_ends_nothing_new_begins_and_the_slot_is_confirmed() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, _| Play::Hold);
    let mut rider = scene.rider("rider", two_stages(&endpoint));
    rider.setup();
    rider.start_ready();
    scene.db.submit(0..5);
    wait_until("all five answers are held", || endpoint.held() == 5);

    rider.signal("TERM");
    rider.wait_to_say(ASKED_TO_END);
    scene.db.submit(5..8);
    let submitted = scene.db.log_end();
    // A claim of the new rows would have come by the time that a heartbeat's way back takes; the answers come after that.
    wait_until("the server has sent the new rows", || {
        scene.db.is(&format!("SELECT sent_lsn >= '{}' FROM pg_stat_replication", display(submitted)))
    });
    endpoint.release();
    let (code, took) = rider.wait();
    assert_eq!(code, Some(0), "{}", rider.said());
    assert_within("the end once the answers are there", took, Duration::from_secs(10));
    assert_eq!(endpoint.requests().len(), 5, "nothing new was asked");
    let rows = scene.db.rows(
        "SELECT stage, stage_state, attempt_count, lease_owner IS NULL, count(*) FROM pending_work GROUP BY 1, 2, 3, 4 ORDER BY 1",
    );
    assert_eq!(rows, [["APPROVAL", "PENDING", "0", "t", "5"], ["PRICING", "PENDING", "0", "t", "3"]]);
    assert!(scene.db.confirmed("rider_rider") >= submitted, "the slot is confirmed up to what was read");
    assert_eq!(scene.db.reader("rider_rider"), None);
}

#[test]
fn a_claim_that_was_not_sent_is_given_back() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let mut rider = scene.rider("rider", two_stages(&endpoint));
    rider.setup();
    rider.start_ready();
    // A row is committed, and behind its commit the table is locked again: the claim waits at the server when the signal comes.
    let (first, second) = (Database::connect(&scene.url()), Database::connect(&scene.url()));
    let lock = "LOCK TABLE pending_work IN SHARE ROW EXCLUSIVE MODE";
    let waits = |mode: &str| {
        let sql =
            "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation = 'pending_work'::regclass AND mode =";
        scene.db.is(&format!("{sql} '{mode}'"))
    };
    first.run("BEGIN");
    first.run(lock);
    first.run("INSERT INTO pending_work (group_id, quote_id, stage) VALUES ('group-00', 'quote-00000', 'PRICING')");
    std::thread::scope(|threads| {
        threads.spawn(|| second.run(&format!("BEGIN; {lock}")));
        wait_until("the second lock waits for the first", || waits("ShareRowExclusiveLock"));
        first.run("COMMIT");
    });
    wait_until("the claim waits for the second lock", || waits("RowExclusiveLock"));
    rider.signal("TERM");
    rider.wait_to_say(ASKED_TO_END);
    second.run("COMMIT");
    let (code, _) = rider.wait();
    assert_eq!(code, Some(0), "{}", rider.said());
    assert!(endpoint.requests().is_empty(), "the claim was never sent");
    assert_eq!(scene.work_rows(), [["quote-00000", "PRICING", "PENDING", "0", "f"]]);
    assert!(scene.db.is("SELECT fence > 0 FROM pending_work"), "it was claimed, and given back");
}

#[test]
fn e16_a_call_that_never_ends_is_cut_at_the_drain_time_and_asked_again_by_the_next() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, before| if before == 0 { Play::Hold } else { Play::Answer });
    let mut rider = scene.rider("rider", two_stages(&endpoint) + "[limits]\ndrain = \"2s\"\n");
    rider.setup();
    rider.start_ready();
    scene.db.submit(0..1);
    wait_until("the answer is held", || endpoint.held() == 1);
    rider.signal("TERM");
    let (code, took) = rider.wait();
    assert_eq!(code, Some(0), "{}", rider.said());
    assert!(took >= Duration::from_secs(2), "the drain time was given: {took:?}");
    assert_within("the end after a drain time of two seconds", took, Duration::from_secs(10));
    assert_eq!(scene.work_rows(), [["quote-00000", "PRICING", "RUNNING", "1", "t"]]);

    // The lease has minutes to go: the next one sees that its owner is gone.
    rider.start();
    wait_until("the row is closed", || scene.open_rows() == 0);
    let requests = endpoint.requests();
    assert_eq!(requests[0].key(), requests[1].key());
    assert!(PATIENCE < Duration::from_secs(300), "the lease is twice the time-out of five minutes");
}

fn display(lsn: u64) -> String {
    format!("{:X}/{:X}", lsn >> 32, lsn & 0xFFFF_FFFF)
}
