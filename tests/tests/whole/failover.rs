//! A primary and its standby, which is promoted with and without everything that was read.

use super::fixture::{Database, Scene, wait_until};
use super::life::{adopt, assert_refused_and_checked, scribe, text, wait_delivered};
use postrider_core::error::ErrorKind;
use xtask::postgres::Cluster;

const SLOT: &str = "rider_rider";

/// The database of a standby, once it takes connections.
fn database_of(standby: &Cluster) -> Database {
    Database::connect(&standby.url_of("quoting"))
}

fn wait_replayed(scene: &Scene, standby: &Database) {
    let end = scene.db.text("SELECT pg_current_wal_lsn()");
    wait_until("the standby has replayed", || standby.is(&format!("SELECT pg_last_wal_replay_lsn() >= '{end}'")));
}

fn promote(standby: &Database) {
    assert!(standby.is("SELECT pg_promote(true, 60)"));
}

#[test]
fn s07_what_a_promoted_server_never_had_is_named_and_adopted_knowingly() {
    let mut scene = Scene::start();
    let mut rider = scribe(&scene, "rider", "");
    rider.setup();
    rider.start_ready();
    scene.db.submit(0..3);
    wait_delivered(&scene, "rider", 0..3);
    let mut standby = scene.cluster.standby("standby1", &[]).unwrap();
    wait_replayed(&scene, &database_of(&standby));
    standby.stop_fast().unwrap();
    scene.db.submit(3..5);
    wait_delivered(&scene, "rider", 0..5);
    rider.kill9();
    scene.cluster.kill9().unwrap();

    standby.start().unwrap();
    let copy = database_of(&standby);
    promote(&copy);
    rider.plan.url = standby.url_of("quoting");
    rider.setup();
    assert_refused_and_checked(&mut rider, ErrorKind::JournalForeign, "2 outbox events");
    let checked = text(&rider.end_of(&["check"]));
    assert_eq!(checked.matches(" event ").count(), 2, "each is named: {checked}");
    adopt(&rider, &["in generation 2", "is given to no consumer any more"]);
    rider.start_ready();
    copy.submit(10..12);
    wait_delivered(&scene, "rider", [0, 1, 2, 3, 4, 10, 11]);
    let positions = text(&rider.end_of(&["status", "--json"]));
    assert!(positions.contains("\"position\": \"2:"), "positions rise: {positions}");
    rider.kill9();
    rider.start_ready();
    copy.submit(12..13);
    wait_delivered(&scene, "rider", [0, 1, 2, 3, 4, 10, 11, 12]);

    // The primary that was left is no source for this journal any more.
    rider.kill9();
    scene.cluster.start().unwrap();
    rider.plan.url = scene.url();
    assert_refused_and_checked(&mut rider, ErrorKind::JournalForeign, "timeline is 2, the server's is 1");
}

#[test]
fn s07_a_promoted_server_without_the_slot_goes_on_in_the_same_generation_once_its_new_one_is_adopted() {
    let mut scene = Scene::start();
    let mut rider = scribe(&scene, "rider", "");
    rider.setup();
    let standby = scene.cluster.standby("standby1", &[]).unwrap();
    let copy = database_of(&standby);
    rider.start_ready();
    scene.db.submit(0..3);
    wait_delivered(&scene, "rider", 0..3);
    rider.kill9();
    // Before version 17 a standby has no copy of the slot: what its new one did not see is left out knowingly.
    scene.db.run("CREATE TABLE noise AS SELECT 1 AS n");
    wait_replayed(&scene, &copy);
    scene.cluster.kill9().unwrap();
    promote(&copy);
    rider.plan.url = standby.url_of("quoting");
    assert_refused_and_checked(&mut rider, ErrorKind::SlotMissing, "There is no replication slot");
    rider.setup();
    assert_refused_and_checked(&mut rider, ErrorKind::SlotForeign, "dropped and made again");
    adopt(&rider, &["in generation 1 as before"]);
    rider.start_ready();
    copy.submit(3..5);
    wait_delivered(&scene, "rider", 0..5);
    let positions = text(&rider.end_of(&["status", "--json"]));
    assert!(positions.contains("\"position\": \"1:"), "the generation stays: {positions}");
}

/// The slot is kept on the standby: all goes on, on the promoted server, without a gap and without a word from anybody.
fn a_failover_slot_lets_all_go_on(version: u32) {
    let mut scene = Scene::of_version(version);
    scene.db.run("CREATE PUBLICATION postrider FOR TABLE outbox_event");
    scene.db.run(&format!("SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput', false, false, true)"));
    let standby = scene.cluster.standby("standby1", &[("sync_replication_slots", "on")]).unwrap();
    let copy = database_of(&standby);
    scene.cluster.set("synchronized_standby_slots", "standby1").unwrap();
    scene.cluster.reload().unwrap();
    let mut rider = scribe(&scene, "rider", "");
    rider.start_ready();
    scene.db.submit(0..3);
    wait_delivered(&scene, "rider", 0..3);
    let synced = "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary";
    wait_until("the slot is on the standby", || copy.number(synced) == 1);
    scene.db.submit(3..5);
    wait_delivered(&scene, "rider", 0..5);
    rider.kill9();
    rider.plan.url = standby.url_of("quoting");
    assert_refused_and_checked(&mut rider, ErrorKind::Configuration, "standby");
    scene.cluster.kill9().unwrap();
    promote(&copy);
    rider.forget_what_was_said();
    rider.start_ready();
    rider.wait_to_say("the server was promoted");
    copy.submit(5..8);
    wait_delivered(&scene, "rider", 0..8);
    assert!(!text(&rider.end_of(&["status"])).contains("left out"));
}

#[test]
fn s07_a_failover_slot_lets_all_go_on_17() {
    a_failover_slot_lets_all_go_on(17);
}

#[test]
fn s07_a_failover_slot_lets_all_go_on_18() {
    a_failover_slot_lets_all_go_on(18);
}
