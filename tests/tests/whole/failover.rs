//! A primary and its standby, which is promoted with and without everything that was read.

use super::fixture::{Database, Rider, Scene, wait_until};
use super::life::{adopt, assert_refused_and_checked, scribe, text, wait_delivered};
use postrider_core::error::ErrorKind;
use xtask::postgres::Cluster;

const SLOT: &str = "rider_rider";

/// The database of a standby, once it takes connections.
pub(super) fn database_of(standby: &Cluster) -> Database {
    Database::connect(&standby.url_of("quoting"))
}

pub(super) fn wait_replayed(scene: &Scene, standby: &Database) {
    let end = scene.db.text("SELECT pg_current_wal_lsn()");
    wait_until("the standby has replayed", || standby.is(&format!("SELECT pg_last_wal_replay_lsn() >= '{end}'")));
}

pub(super) fn promote(standby: &Database) {
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

/// The address of both: whichever is the primary is read.
fn both(scene: &Scene, standby: &Cluster) -> String {
    let (host, other) = (format!("127.0.0.1:{}", scene.cluster.port()), format!("127.0.0.1:{}", standby.port()));
    scene.url().replace(&host, &format!("{host},{other}")) + "?target_session_attrs=primary"
}

pub(super) fn checked(rider: &Rider) -> String {
    text(&rider.end_of(&["check"]))
}

#[track_caller]
pub(super) fn assert_says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "`{word}` is missing: {said}");
    }
}

/// The slot is kept on the standby: all goes on, on the promoted server, without a gap and without a word from anybody.
fn a_failover_slot_lets_all_go_on(version: u32) {
    let mut scene = Scene::of_version(version);
    let standby = scene.cluster.standby("standby1", &[]).unwrap();
    let copy = database_of(&standby);
    let mut rider = scribe(&scene, "rider", "");
    rider.plan.url = both(&scene, &standby);
    rider.setup();
    assert_says(
        &checked(&rider),
        &[
            "synchronized_standby_slots is empty: Postrider reads and delivers what no standby has yet",
            "ALTER SYSTEM SET synchronized_standby_slots = 'standby1'; SELECT pg_reload_conf();",
            "does not have the slot \"rider_rider\": after its promotion",
            "There, as a superuser: ALTER SYSTEM SET sync_replication_slots = on; SELECT pg_reload_conf();",
        ],
    );
    copy.run("ALTER SYSTEM SET sync_replication_slots = on");
    copy.run("SELECT pg_reload_conf()");
    scene.db.run("ALTER SYSTEM SET synchronized_standby_slots = 'standby1'");
    scene.db.run("SELECT pg_reload_conf()");

    rider.start_ready();
    scene.db.submit(0..3);
    wait_delivered(&scene, "rider", 0..3);
    let synced = "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary";
    wait_until("the slot is on the standby", || copy.number(synced) == 1);
    let said = checked(&rider);
    assert_says(&said, &["keeps the slot \"rider_rider\", confirmed up to"]);
    assert!(!said.contains("warning slot") && !said.contains("synchronized_standby_slots"), "{said}");
    scene.db.submit(3..5);
    wait_delivered(&scene, "rider", 0..5);
    rider.kill9();
    rider.plan.url = standby.url_of("quoting");
    assert_refused_and_checked(&mut rider, ErrorKind::Configuration, "standby");

    rider.plan.url = both(&scene, &standby);
    rider.forget_what_was_said();
    rider.start_ready();
    scene.cluster.kill9().unwrap();
    promote(&copy);
    rider.wait_to_say("the server was promoted");
    copy.submit(5..8);
    wait_delivered(&scene, "rider", 0..8);
    rider.still_runs();
    assert!(!text(&rider.end_of(&["status"])).contains("left out"));
}

/// The slot was made without, as by an older Postrider or by hand: it stays so until it is asked for.
fn a_slot_that_standbys_do_not_keep_is_changed_by_setup(version: u32) {
    let scene = Scene::of_version(version);
    let mut rider = scribe(&scene, "rider", "");
    scene.db.run(&format!("SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')"));
    let failover = format!("SELECT failover FROM pg_replication_slots WHERE slot_name = '{SLOT}'");
    rider.setup();
    assert!(!scene.db.is(&failover), "nobody asked");
    assert!(!checked(&rider).contains("standbys"), "and without a standby it is all the same");
    scene.db.run("SELECT pg_create_physical_replication_slot('standby1', true)");
    assert_says(&checked(&rider), &["is not one that standbys keep", "Set source.failover = true"]);

    rider.plan.source = "failover = true\n".to_owned();
    rider.start_ready();
    let refused = rider.end_of(&["setup"]);
    assert_eq!(refused.status.code(), Some(i32::from(ErrorKind::SlotInUse.exit_code())));
    assert_says(&text(&refused), &["PR005", "its reader is process", "Stop it, run `postrider setup` again"]);
    rider.kill9();
    wait_until("the server knows that its reader is gone", || scene.db.reader(SLOT).is_none());
    assert_says(&text(&rider.end_of(&["setup"])), &["done  Has standbys that synchronize slots keep the slot"]);
    assert!(scene.db.is(&failover));
    assert!(!text(&rider.end_of(&["setup"])).contains("Has standbys"), "once");

    // The stream waits for whom the server is told to wait for.
    scene.db.run("ALTER SYSTEM SET synchronized_standby_slots = 'standby1'");
    scene.db.run("SELECT pg_reload_conf()");
    wait_until("it is told", || scene.db.text("SHOW synchronized_standby_slots") == "standby1");
    assert_says(&checked(&rider), &["names standby1, which nobody reads from now", "Standbys may keep the slot"]);
    scene.db.run("SELECT pg_create_physical_replication_slot('standby2')");
    assert_says(&checked(&rider), &["leaves out standby2", "= 'standby1, standby2'; SELECT pg_reload_conf();"]);
    scene.db.run("SELECT pg_drop_replication_slot('standby1')");
    assert_says(&checked(&rider), &["names standby1, which is no physical slot of this server"]);
}

#[test]
fn s07_a_server_whose_standbys_cannot_keep_slots_is_refused_where_they_must() {
    let scene = Scene::of_version(16);
    let mut rider = scribe(&scene, "rider", "");
    rider.plan.source = "failover = true\n".to_owned();
    for words in [&["setup"][..], &["setup", "--print", "--server-version", "16"], &["check"]] {
        let refused = rider.end_of(words);
        assert!(!refused.status.success());
        assert_says(
            &text(&refused),
            &["source.failover = true, and the server is PostgreSQL 16", "That takes PostgreSQL 17"],
        );
    }
    assert_eq!(scene.db.number("SELECT count(*) FROM pg_publication"), 0, "nothing was made");
    rider.plan.source = String::new();
    rider.setup();
    rider.start_ready();
}

#[test]
fn s07_a_slot_that_standbys_do_not_keep_is_changed_by_setup_on_17() {
    a_slot_that_standbys_do_not_keep_is_changed_by_setup(17);
}

#[test]
fn s07_a_slot_that_standbys_do_not_keep_is_changed_by_setup_on_18() {
    a_slot_that_standbys_do_not_keep_is_changed_by_setup(18);
}

#[test]
fn s07_a_failover_slot_lets_all_go_on_17() {
    a_failover_slot_lets_all_go_on(17);
}

#[test]
fn s07_a_failover_slot_lets_all_go_on_18() {
    a_failover_slot_lets_all_go_on(18);
}
