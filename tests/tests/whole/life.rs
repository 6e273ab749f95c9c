//! A reader that knows in which state its slot is, and says what is wrong, what it costs, and what to type.

use super::fixture::{Rider, Scene, assert_within, on_every_version, outbox, sink_ndjson, wait_until};
use postrider_core::error::ErrorKind;
use std::collections::BTreeSet;
use std::process::Output;
use std::time::{Duration, Instant};

const SLOT: &str = "rider_rider";

/// The transactions that were sent from the slot since it was made.
const SENT: &str = "SELECT total_txns FROM pg_stat_replication_slots WHERE slot_name = 'rider_rider'";

/// An orchestrator that writes events as lines into a file of its own.
pub(super) fn scribe(scene: &Scene, name: &str, more: &str) -> Rider {
    let file = scene.file(&format!("{name}.ndjson"));
    scene.rider(name, outbox() + &sink_ndjson("lines", &file) + more)
}

/// The numbers of the quotes whose events are in the file.
fn delivered(scene: &Scene, name: &str) -> BTreeSet<u32> {
    let text = std::fs::read_to_string(scene.file(&format!("{name}.ndjson"))).unwrap_or_default();
    let numbers = text.lines().filter_map(|line| line.split_once("\"seq\": ")?.1.split('}').next()?.parse().ok());
    numbers.collect()
}

pub(super) fn wait_delivered(scene: &Scene, name: &str, numbers: impl IntoIterator<Item = u32>) {
    let wanted: BTreeSet<u32> = numbers.into_iter().collect();
    wait_until(&format!("{name} has {wanted:?}"), || delivered(scene, name) == wanted);
}

pub(super) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// `run` ends with this kind, and `check` says the same.
#[track_caller]
pub(super) fn assert_refused_and_checked(rider: &mut Rider, kind: ErrorKind, word: &str) {
    rider.forget_what_was_said();
    rider.start();
    let (code, _) = rider.wait();
    let said = rider.said();
    assert_eq!(code, Some(i32::from(kind.exit_code())), "{said}");
    assert!(said.contains(kind.code()) && said.contains(word), "{said}");
    let checked = rider.end_of(&["check"]);
    let found = text(&checked);
    assert_eq!(checked.status.code(), Some(i32::from(kind.exit_code())), "{found}");
    assert!(found.contains(kind.code()) && found.contains(word), "{found}");
}

/// The server may take a moment to find that the reader is gone.
fn drop_slot(scene: &Scene) {
    wait_until("nobody reads from the slot", || scene.db.reader(SLOT).is_none());
    scene.db.run(&format!("SELECT pg_drop_replication_slot('{SLOT}')"));
}

/// Says what would be, does nothing; then does it.
#[track_caller]
pub(super) fn adopt(rider: &Rider, words: &[&str]) {
    let asked = rider.end_of(&["adopt"]);
    assert_eq!(asked.status.code(), Some(1), "{}", text(&asked));
    for word in words.iter().chain(&["Nothing was changed"]) {
        assert!(text(&asked).contains(word), "`{word}` is missing: {}", text(&asked));
    }
    let done = rider.end_of(&["adopt", "--yes"]);
    assert!(done.status.success() && text(&done).contains("Done."), "{}", text(&done));
    assert!(text(&rider.end_of(&["adopt"])).contains("There is nothing to adopt."));
}

#[test]
fn p16_a_slot_that_was_moved_or_made_anew_is_refused_until_the_gap_is_adopted() {
    on_every_version(|version| {
        let scene = Scene::of(version, |builder| builder);
        let mut rider = scribe(&scene, "rider", "");
        rider.setup();
        rider.start_ready();
        scene.db.submit(0..2);
        wait_delivered(&scene, "rider", 0..2);
        rider.kill9();

        scene.db.submit(2..4);
        wait_until("the server knows that its reader is gone", || scene.db.reader(SLOT).is_none());
        scene.db.run(&format!("SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn())"));
        assert_refused_and_checked(&mut rider, ErrorKind::SlotForeign, "is confirmed up to");
        adopt(&rider, &["cannot be read any more"]);
        scene.db.submit(4..5);
        rider.start_ready();
        wait_delivered(&scene, "rider", [0, 1, 4]);
        rider.kill9();

        drop_slot(&scene);
        assert_refused_and_checked(&mut rider, ErrorKind::SlotMissing, "There is no replication slot");
        scene.db.submit(5..6);
        rider.setup();
        // Version 14 counts with a delay.
        wait_until("the statistics are those of the new slot", || scene.db.text(SENT) == "0");
        assert_refused_and_checked(&mut rider, ErrorKind::SlotForeign, "dropped and made again");
        adopt(&rider, &["cannot be read any more"]);
        scene.db.submit(6..7);
        rider.start_ready();
        wait_delivered(&scene, "rider", [0, 1, 4, 6]);
    });
}

#[test]
fn p15_positions_older_than_the_slot_take_it_back_nowhere() {
    on_every_version(|version| {
        let scene = Scene::of(version, |builder| builder);
        let mut rider = scribe(&scene, "rider", "");
        rider.plan.top = "ack = \"journal\"".to_owned();
        rider.setup();
        rider.start_ready();
        scene.db.submit(0..5);
        wait_delivered(&scene, "rider", 0..5);
        let end = scene.db.log_end();
        wait_until("all is confirmed", || scene.db.confirmed(SLOT) >= end);
        wait_until("positions are saved", || rider.plan.journal.join("positions").exists());
        rider.kill9();
        // A restored file of positions, and a sink that begins anew.
        std::fs::remove_file(rider.plan.journal.join("positions")).unwrap();
        std::fs::remove_file(scene.file("rider.ndjson")).unwrap();
        rider.plan.top = "ack = \"sinks\"".to_owned();
        rider.start();
        wait_delivered(&scene, "rider", 0..5);
        wait_until("it reads", || scene.db.reader(SLOT).is_some());
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline {
            assert!(scene.db.confirmed(SLOT) >= end, "the slot went back");
            std::thread::sleep(Duration::from_millis(20));
        }
        rider.still_runs();
    });
}

#[test]
fn s02_s03_a_lost_slot_is_told_from_a_missing_one_and_the_journal_goes_on_behind_it() {
    on_every_version(|version| {
        let scene = Scene::of(version, |builder| {
            builder.setting("max_slot_wal_keep_size", "1MB").setting("max_wal_size", "64MB")
        });
        let mut rider = scribe(&scene, "rider", "");
        rider.setup();
        assert_eq!(rider.end_of(&["check"]).status.code(), Some(0));
        rider.start_ready();
        scene.db.submit(0..1);
        wait_delivered(&scene, "rider", 0..1);
        rider.kill9();
        for _ in 0..4 {
            scene
                .db
                .run("CREATE TABLE IF NOT EXISTS noise (n int); INSERT INTO noise VALUES (1); SELECT pg_switch_wal()");
        }
        scene.db.submit(1..2);
        scene.db.run("CHECKPOINT");
        assert_refused_and_checked(&mut rider, ErrorKind::SlotLost, "more log than max_slot_wal_keep_size");
        drop_slot(&scene);
        assert_refused_and_checked(&mut rider, ErrorKind::SlotMissing, "There is no replication slot");
        rider.setup();
        adopt(&rider, &["cannot be read any more"]);
        scene.db.submit(2..3);
        rider.start_ready();
        wait_delivered(&scene, "rider", [0, 2]);
    });
}

#[test]
fn a_lost_journal_is_said_aloud_for_each_ack() {
    let scene = Scene::start();
    let mut rider = scribe(&scene, "rider", "");
    rider.setup();
    for (ack, words) in [("sinks", "optional ones lack"), ("journal", "every sink lacks what it had not taken")] {
        rider.plan.top = format!("ack = \"{ack}\"");
        rider.forget_what_was_said();
        rider.start_ready();
        rider.wait_to_say(words);
        rider.kill9();
        std::fs::remove_dir_all(&rider.plan.journal).unwrap();
    }
}

#[test]
fn a_second_process_takes_over_with_its_own_journal_and_puts_on_record_what_it_lacks() {
    let scene = Scene::start();
    let mut first = scribe(&scene, "rider", "");
    first.plan.top = "ack = \"journal\"".to_owned();
    let mut second = scribe(&scene, "second", "");
    second.plan.slot = first.plan.slot.clone();
    second.plan.top = first.plan.top.clone();
    first.setup();
    first.start_ready();
    second.start();
    second.wait_to_say("PR005");
    scene.db.submit(0..3);
    wait_delivered(&scene, "rider", 0..3);
    let end = scene.db.log_end();
    wait_until("the first confirms at its journal", || scene.db.confirmed(SLOT) >= end);
    let reader = scene.db.reader(SLOT);

    first.kill9();
    let killed = Instant::now();
    wait_until("the second reads", || scene.db.reader(SLOT).is_some_and(|pid| Some(pid) != reader));
    assert_within("the take-over", killed.elapsed(), Duration::from_secs(15));
    scene.db.submit(3..4);
    wait_delivered(&scene, "second", 3..4);
    second.wait_to_say("Another process read from the slot before this one");
    let status = text(&second.end_of(&["status"]));
    assert!(status.contains("left out:   every consumer: nothing after 1:0/0:0 up to 1:"), "{status}");
    assert!(text(&second.end_of(&["check"])).contains("On record as left out"));

    // And back: the journal of the first one ends before the slot by now.
    first.start();
    first.wait_to_say("PR005");
    scene.db.submit(4..6);
    wait_delivered(&scene, "second", 3..6);
    let end = scene.db.log_end();
    wait_until("the second confirms at its journal", || scene.db.confirmed(SLOT) >= end);
    second.kill9();
    scene.db.submit(6..7);
    wait_delivered(&scene, "rider", [0, 1, 2, 6]);
    let status = text(&first.end_of(&["status"]));
    assert!(status.contains("left out:   every consumer"), "{status}");
    first.kill9();
    assert!(text(&first.end_of(&["status"])).contains("left out: every consumer"), "without a process, too");
    adopt(&first, &["On record as left out"]);
    first.start_ready();
    assert!(!text(&first.end_of(&["status"])).contains("left out"));
}
