//! A journal and a server that is not what it was: adopted by itself where nobody loses anything, else when a person says so.

use super::failover::{database_of, promote, wait_replayed};
use super::fixture::{Database, Rider, Scene, on_versions, wait_until};
use super::life::{adopt, assert_refused_and_checked, scribe, text, wait_delivered};
use super::servers::{lines, make_noise};
use postrider_core::error::ErrorKind;
use std::path::Path;
use std::process::Command;

/// Waits until the journal has the log as far as it is written now.
fn wait_received(scene: &Scene, rider: &Rider) {
    let end = i64::try_from(scene.db.log_end()).unwrap();
    wait_until("the log is received", || rider.metric("postrider_received_lsn_bytes") >= end);
}

#[track_caller]
fn assert_generation(rider: &Rider, generation: u32) {
    let status = text(&rider.end_of(&["status", "--json"]));
    assert!(status.contains(&format!("\"position\": \"{generation}:")), "{status}");
}

fn copy_files(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().expect("there is a cp");
    assert!(copied.success());
}

#[test]
fn s07_a_promotion_that_loses_nothing_of_ours_is_adopted_by_itself() {
    on_versions(17..=18, |version| {
        let mut scene = Scene::of_version(version);
        let mut standby = scene.cluster.standby("standby1", &[("sync_replication_slots", "on")]).unwrap();
        let copy = database_of(&standby);
        let mut rider = scribe(&scene, "rider", "");
        rider.setup();
        rider.start_ready();
        scene.db.submit(0..3);
        wait_delivered(&scene, "rider", 0..3);
        let synced = "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary";
        wait_until("the slot is on the standby", || copy.number(synced) == 1);
        wait_replayed(&scene, &copy);
        standby.stop_fast().unwrap();
        // The journal gets further than the standby, over what is not for us.
        make_noise(&scene, 10_000);
        wait_received(&scene, &rider);
        rider.kill9();
        scene.cluster.kill9().unwrap();

        standby.start().unwrap();
        let copy = database_of(&standby);
        promote(&copy);
        rider.plan.url = standby.url_of("quoting");
        let checked = rider.end_of(&["check"]);
        assert_eq!(checked.status.code(), Some(0), "{}", text(&checked));
        rider.start_ready();
        rider.wait_to_say("was promoted from timeline 1 to 2");
        copy.submit(3..5);
        wait_delivered(&scene, "rider", 0..5);
        assert_eq!(lines(&scene).len(), 5, "nothing came twice");
        assert_generation(&rider, 2);
        rider.kill9();
        rider.start_ready();
        copy.submit(5..6);
        wait_delivered(&scene, "rider", 0..6);
    });
}

#[test]
fn p16_another_system_is_refused_until_a_person_says_that_it_is_the_successor() {
    let scene = Scene::start();
    let mut rider = scribe(&scene, "rider", "");
    rider.setup();
    rider.start_ready();
    scene.db.submit(0..3);
    wait_delivered(&scene, "rider", 0..3);
    rider.kill9();
    let other = Scene::with(|builder| builder.own_identity());
    rider.plan.url = other.url();
    assert_refused_and_checked(&mut rider, ErrorKind::SlotMissing, "There is no replication slot");
    let asked = rider.end_of(&["adopt"]);
    assert!(text(&asked).contains("`postrider setup` creates it"), "{}", text(&asked));
    rider.setup();
    assert_refused_and_checked(&mut rider, ErrorKind::JournalForeign, "system identifier");
    adopt(&rider, &["It is another server", "in generation 2"]);
    rider.start_ready();
    other.db.submit(10..12);
    wait_delivered(&scene, "rider", [0, 1, 2, 10, 11]);
    assert_generation(&rider, 2);
    rider.kill9();
    rider.plan.url = scene.url();
    assert_refused_and_checked(&mut rider, ErrorKind::JournalForeign, "system identifier");
}

#[test]
fn p16_a_server_that_was_set_back_is_refused_until_that_is_adopted() {
    let mut scene = Scene::start();
    let mut rider = scribe(&scene, "rider", "");
    rider.setup();
    rider.start_ready();
    scene.db.submit(0..3);
    wait_delivered(&scene, "rider", 0..3);
    rider.signal("TERM");
    assert_eq!(rider.wait().0, Some(0));
    scene.cluster.stop_fast().unwrap();
    let (data, copy) = (scene.cluster.data_dir(), scene.file("copy"));
    copy_files(&data, &copy);
    scene.cluster.start().unwrap();
    scene.db = Database::connect(&scene.url());
    rider.start_ready();
    scene.db.submit(3..5);
    wait_delivered(&scene, "rider", 0..5);
    make_noise(&scene, 10_000);
    wait_received(&scene, &rider);
    rider.kill9();
    scene.cluster.stop_fast().unwrap();
    std::fs::remove_dir_all(&data).unwrap();
    copy_files(&copy, &data);
    scene.cluster.start().unwrap();
    scene.db = Database::connect(&scene.url());

    assert_refused_and_checked(&mut rider, ErrorKind::SlotForeign, "log ends before our journal does");
    adopt(&rider, &["set back to an earlier state", "in generation 2"]);
    rider.start_ready();
    scene.db.submit(10..12);
    wait_delivered(&scene, "rider", [0, 1, 2, 3, 4, 10, 11]);
    assert_generation(&rider, 2);
}
