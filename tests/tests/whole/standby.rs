//! A standby as the source: its slot is its own, everything else is its primary's, and its promotion changes nothing.

use super::failover::{assert_says, checked, database_of, promote, wait_replayed};
use super::fixture::{Database, Rider, Scene, stage, wait_until, work};
use super::life::{scribe, text, wait_delivered};
use postrider_core::error::ErrorKind;
use postrider_postgres::{ConnectOptions, create_slot};
use std::collections::BTreeMap;
use std::time::Duration;
use xtask::postgres::Cluster;

const SLOT: &str = "rider_rider";

#[track_caller]
fn assert_setup_refused(rider: &Rider, words: &[&str]) {
    let refused = rider.end_of(&["setup"]);
    assert_eq!(refused.status.code(), Some(i32::from(ErrorKind::Configuration.exit_code())), "{}", text(&refused));
    assert_says(&text(&refused), words);
}

/// With a transaction open on the primary no slot can be made on the standby, however often the primary logs what is running.
fn assert_slot_waits_in_vain(standby: &Cluster) {
    let options = ConnectOptions::parse(&standby.url_of("quoting"), &BTreeMap::new()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(create_slot(&options, "in_vain", Duration::from_secs(3))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{}", error.report());
    assert_says(&error.report(), &["waiting for the primary to log which transactions are running"]);
    assert_says(error.hint().unwrap(), &["On the primary, as a superuser: SELECT pg_log_standby_snapshot();"]);
}

fn s12_a_standby_is_read_and_its_promotion_changes_nothing(version: u32) {
    let scene = Scene::of_version(version);
    let standby = scene.cluster.standby("standby1", &[]).unwrap();
    let copy = database_of(&standby);
    let mut rider = scribe(&scene, "rider", "");
    rider.plan.url = standby.url_of("quoting");
    assert_setup_refused(&rider, &["the server is a standby", "say source.standby = true"]);
    rider.plan.source = "standby = true\n".to_owned();
    assert_setup_refused(
        &rider,
        &["everything but the slot is made on its primary", "On the primary: CREATE PUBLICATION"],
    );
    scene.db.run("CREATE PUBLICATION postrider FOR TABLE outbox_event");
    wait_replayed(&scene, &copy);

    let writer = Database::connect(&scene.url());
    writer.run("BEGIN; SELECT pg_current_xact_id()");
    assert_slot_waits_in_vain(&standby);
    wait_until("nothing is left behind", || copy.number("SELECT count(*) FROM pg_replication_slots") == 0);
    rider.start_command(&["setup"]);
    rider.wait_to_say("On the primary, as a superuser: SELECT pg_log_standby_snapshot();");
    writer.run("COMMIT");
    let made = format!(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{SLOT}' AND NOT active AND restart_lsn IS NOT NULL"
    );
    wait_until("the slot is made", || {
        scene.db.run("SELECT pg_log_standby_snapshot()");
        copy.number(&made) == 1
    });
    assert_eq!(rider.wait().0, Some(0));

    let said = checked(&rider);
    assert!(!said.contains("wrong") && !said.contains("hot_standby_feedback"), "{said}");
    copy.run("ALTER SYSTEM SET hot_standby_feedback = off");
    copy.run("SELECT pg_reload_conf()");
    wait_until("it is told", || copy.text("SHOW hot_standby_feedback") == "off");
    assert_says(&checked(&rider), &["hot_standby_feedback is off", "SET hot_standby_feedback = on;"]);
    copy.run("ALTER SYSTEM RESET hot_standby_feedback");
    copy.run("SELECT pg_reload_conf()");

    rider.start_ready();
    scene.db.submit(0..3);
    wait_delivered(&scene, "rider", 0..3);
    let end = scene.db.log_end();
    wait_until("the slot moves", || copy.confirmed(SLOT) >= end);
    assert!(text(&rider.end_of(&["status"])).contains("ready:      yes"));

    promote(&copy);
    copy.submit(3..6);
    wait_delivered(&scene, "rider", 0..6);
    rider.wait_to_say("the server was promoted");
    rider.kill9();
    rider.start_ready();
    copy.submit(6..8);
    wait_delivered(&scene, "rider", 0..8);
    let positions = text(&rider.end_of(&["status", "--json"]));
    assert!(positions.contains("\"position\": \"1:") && !positions.contains("\"position\": \"2:"), "{positions}");
    assert!(!text(&rider.end_of(&["status"])).contains("left out"));
}

#[test]
fn s12_a_standby_is_read_and_its_promotion_changes_nothing_on_16() {
    s12_a_standby_is_read_and_its_promotion_changes_nothing(16);
}

#[test]
fn s12_a_standby_is_read_and_its_promotion_changes_nothing_on_17() {
    s12_a_standby_is_read_and_its_promotion_changes_nothing(17);
}

#[test]
fn s12_a_standby_is_read_and_its_promotion_changes_nothing_on_18() {
    s12_a_standby_is_read_and_its_promotion_changes_nothing(18);
}

#[test]
fn s12_a_standby_that_decodes_nothing_is_refused_and_so_are_stages() {
    let scene = Scene::of_version(15);
    let standby = scene.cluster.standby("standby1", &[]).unwrap();
    let mut rider = scribe(&scene, "rider", "");
    rider.plan.url = standby.url_of("quoting");
    rider.plan.source = "standby = true\n".to_owned();
    assert_setup_refused(&rider, &["whose standbys decode no log", "That takes PostgreSQL 16"]);
    rider.plan.rest += &work(&[stage("PRICING", "127.0.0.1:1", None, "")]);
    assert_setup_refused(&rider, &["`source.standby` does not go with [work]"]);
}
