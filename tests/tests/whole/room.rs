//! The guard ladder: what happens where the log that is kept, by the server or in the journal, needs more room than there is.

use super::failover::{assert_says, checked};
use super::fixture::{
    Database, Endpoint, Play, Rider, Scene, assert_within, outbox, sink_http, sink_ndjson, wait_until,
};
use super::life::text;
use std::ops::Range;
use std::time::Duration;

const SLOT: &str = "rider_rider";

/// Four files make it full; a warning comes at four fifths.
const FOUR_MIB: &str = "segment_size = \"1MiB\"\nretention = { size = \"4MiB\" }\n";

/// Nearly full, and not full.
const NEARLY: Range<u32> = 0..36;

/// A sink that never answers until it is released, and one that writes lines; the slow one is required or not.
fn with_slow_sink(scene: &Scene, slow: &Endpoint, more: &str) -> Rider {
    let mut rest = outbox() + &sink_ndjson("lines", &scene.file("events.ndjson"));
    rest += &sink_http("slow", &slow.address(), &format!("timeout = \"10m\"\n{more}"));
    let mut rider = scene.rider("rider", rest);
    rider.plan.kept = FOUR_MIB.to_owned();
    rider.setup();
    rider
}

/// One event of 100 kB in each transaction, all of one key.
fn submit_large(db: &Database, numbers: Range<u32>) {
    for number in numbers {
        db.run(&format!(
            "INSERT INTO outbox_event (aggregate_key, event_type, payload)
             VALUES ('key', 'large', jsonb_build_object('seq', {number}, 'pad', repeat('x', 100000)))"
        ));
    }
}

fn lines(scene: &Scene) -> usize {
    std::fs::read_to_string(scene.file("events.ndjson")).unwrap_or_default().lines().count()
}

fn journal_bytes(rider: &Rider) -> u64 {
    let files = std::fs::read_dir(&rider.plan.journal).unwrap().flatten();
    let segments = files.filter(|file| file.file_name().to_string_lossy().contains("segment"));
    segments.filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum()
}

fn status(rider: &Rider) -> String {
    text(&rider.end_of(&["status"]))
}

#[track_caller]
fn wait_status(rider: &Rider, words: &str) {
    wait_until(&format!("status says `{words}`"), || status(rider).contains(words));
}

fn has(endpoint: &Endpoint, number: u32) -> bool {
    let wanted = format!("\"seq\": {number}}}");
    let body = |body: &[u8]| String::from_utf8_lossy(body).replace(' ', "").contains(&wanted.replace(' ', ""));
    endpoint.requests().iter().any(|request| body(&request.body))
}

/// The command that status names sets the sink to what is held; then nothing is left to complain of.
fn repair(scene: &Scene, rider: &mut Rider, slow: &Endpoint, next: u32) {
    rider.kill9();
    let repaired = rider.end_of(&["replay", "slow", "--from", "beginning", "--skip"]);
    assert!(repaired.status.success(), "{}", text(&repaired));
    assert_says(&text(&repaired), &["no longer held, and not counted"]);
    let adopted = rider.end_of(&["adopt", "--yes"]);
    assert!(adopted.status.success(), "{}", text(&adopted));
    slow.release();
    rider.forget_what_was_said();
    rider.start_ready();
    submit_large(&scene.db, next..next + 1);
    wait_until("the sink goes on with what is held", || has(slow, next));
    wait_until("nothing is left to complain of", || {
        let said = status(rider);
        !said.contains("left out") && !said.contains("warning:")
    });
    assert!(!rider.said().contains("was cut loose"));
}

#[test]
fn an_optional_sink_that_holds_a_full_journal_is_cut_loose_on_record_and_repaired() {
    let scene = Scene::start();
    let slow = Endpoint::alone(|_, _| Play::Hold);
    let mut rider = with_slow_sink(&scene, &slow, "required = false");
    rider.start_ready();
    submit_large(&scene.db, NEARLY);
    rider.wait_to_say("The journal is nearly full, and the sink slow lacks the oldest of it.");
    wait_status(&rider, "warning:    The journal is nearly full, and the sink slow lacks");
    assert_eq!(rider.metric_of("postrider_cut_loose", "slow"), 0.0);
    assert!(!status(&rider).contains("left out"));

    submit_large(&scene.db, 36..80);
    rider.wait_to_say("The sink slow was cut loose");
    wait_status(&rider, "left out:   slow: nothing after 1:");
    wait_status(&rider, "type: postrider replay slow --from beginning --skip");
    wait_until("all goes on for the others", || lines(&scene) == 80);
    wait_until("the journal is made smaller", || journal_bytes(&rider) < 6 << 20);
    assert_eq!(rider.metric_of("postrider_cut_loose", "slow"), 1.0);
    let end = scene.db.log_end();
    wait_until("the slot goes on", || scene.db.confirmed(SLOT) >= end);
    // What the sink is set to must not have to go at the next start.
    let holds = || rider.metric("postrider_journal_bytes");
    wait_until("nothing more has to go", || holds() <= rider.metric("postrider_journal_limit_bytes"));
    assert_says(&checked(&rider), &["On record as left out, for slow: nothing after"]);
    repair(&scene, &mut rider, &slow, 80);
}

/// A journal may hold more than it is to keep: its process was killed before it made room, or the bound was lowered.
#[test]
fn a_sink_is_set_to_what_stays_and_not_to_what_goes_at_the_start() {
    let scene = Scene::start();
    let slow = Endpoint::alone(|_, _| Play::Hold);
    let mut rider = with_slow_sink(&scene, &slow, "required = false");
    rider.plan.kept = FOUR_MIB.replace("4MiB", "64MiB");
    rider.start_ready();
    submit_large(&scene.db, 0..60);
    wait_until("all is in the journal", || lines(&scene) == 60);
    rider.kill9();
    rider.plan.kept = FOUR_MIB.to_owned();
    let refused = rider.end_of(&["replay", "slow", "--from", "1h", "--skip"]);
    assert_eq!(refused.status.code(), Some(2));
    assert_says(&text(&refused), &["PR001: what stands there has to go at the next start", "--from beginning"]);
    let set = rider.end_of(&["replay", "slow", "--from", "beginning", "--skip"]);
    assert!(set.status.success(), "{}", text(&set));
    assert_says(&text(&set), &["slow: set forward to", "raise `journal.retention` first"]);
    slow.release();
    rider.forget_what_was_said();
    rider.start_ready();
    wait_until("the sink gets what stays", || has(&slow, 59));
    assert!(!rider.said().contains("was cut loose"), "{}", rider.said());
}

/// A required sink that is down, and the journal is full: nothing is read until the sink is back, and then nothing is missing.
fn a_full_journal_blocks(ack: &str) {
    let mut scene = Scene::start();
    let slow = Endpoint::alone(|_, _| Play::Hold);
    let mut rider = with_slow_sink(&scene, &slow, "");
    rider.plan.top = format!("ack = \"{ack}\"");
    rider.start_ready();
    submit_large(&scene.db, NEARLY);
    rider.wait_to_say("Once it is full, nothing more is read, for no stage and no sink, and the server keeps its log.");
    submit_large(&scene.db, 36..60);
    wait_status(&rider, "warning:    The journal is full, and the required sink slow lacks the oldest of it.");
    wait_until("the slot is left", || scene.db.reader(SLOT).is_none());
    assert_eq!(rider.metric("postrider_intake_blocked"), 1);
    assert_says(&status(&rider), &["ready:      no", "the journal is full", "give it up with required = false"]);
    let read = lines(&scene);
    submit_large(&scene.db, 60..80);
    assert_within("a fast shutdown", scene.cluster.stop_fast().unwrap(), Duration::from_secs(8));
    scene.cluster.start().unwrap();
    scene.db = Database::connect(&scene.url());
    assert!(lines(&scene) == read && read < 80, "nothing is read");

    slow.release();
    wait_until("the other sink has everything", || lines(&scene) == 80);
    wait_until("the slow sink has everything", || has(&slow, 79));
    wait_until("all is in order", || status(&rider).contains("ready:      yes"));
    let said = status(&rider);
    assert!(!said.contains("left out") && !said.contains("warning"), "{said}");
}

#[test]
fn a_journal_that_is_full_for_a_required_sink_blocks_with_ack_sinks() {
    a_full_journal_blocks("sinks");
}

#[test]
fn a_journal_that_is_full_for_a_required_sink_blocks_with_ack_journal() {
    a_full_journal_blocks("journal");
}

/// The same where that was chosen: the sink is cut loose on record, and the slot no longer waits for it, over a restart, too.
fn a_full_journal_drops_the_oldest(ack: &str) {
    let scene = Scene::start();
    let slow = Endpoint::alone(|_, _| Play::Hold);
    let mut rider = with_slow_sink(&scene, &slow, "");
    rider.plan.top = format!("ack = \"{ack}\"");
    rider.plan.kept += "when_full = \"drop_oldest\"\n";
    slow_has_taken_one(&scene, &mut rider, &slow);
    submit_large(&scene.db, 1..80);
    rider.wait_to_say("The sink slow was cut loose");
    wait_status(&rider, "left out:   slow: nothing after 1:");
    wait_until("the other sink has everything", || lines(&scene) == 80);
    let end = scene.db.log_end();
    wait_until("the slot goes on", || scene.db.confirmed(SLOT) >= end);
    assert_eq!(rider.metric("postrider_intake_blocked"), 0);
    rider.kill9();
    rider.start_ready();
    submit_large(&scene.db, 80..81);
    let end = scene.db.log_end();
    wait_until("the slot goes on after a restart", || scene.db.confirmed(SLOT) >= end);
    wait_until("the journal is made smaller", || journal_bytes(&rider) < 6 << 20);
    repair(&scene, &mut rider, &slow, 81);
}

/// So that the sink has a position, and does not begin with whatever is held.
fn slow_has_taken_one(scene: &Scene, rider: &mut Rider, slow: &Endpoint) {
    let willing = Endpoint::alone(|_, _| Play::Answer);
    let rest = rider.plan.rest.clone();
    rider.plan.rest = rest.replace(&slow.address(), &willing.address());
    rider.start_ready();
    submit_large(&scene.db, 0..1);
    wait_until("one event is there", || has(&willing, 0));
    rider.signal("TERM");
    assert_eq!(rider.wait().0, Some(0));
    rider.plan.rest = rest;
    rider.start_ready();
}

#[test]
fn a_journal_that_is_full_for_a_required_sink_drops_the_oldest_with_ack_sinks() {
    a_full_journal_drops_the_oldest("sinks");
}

#[test]
fn a_journal_that_is_full_for_a_required_sink_drops_the_oldest_with_ack_journal() {
    a_full_journal_drops_the_oldest("journal");
}

#[test]
fn wal_guard_is_warned_of_and_then_confirms_at_the_journal() {
    let scene = Scene::start();
    let slow = Endpoint::alone(|_, _| Play::Hold);
    let mut rider = with_slow_sink(&scene, &slow, "");
    rider.plan.top = "wal_guard = \"8MiB\"".to_owned();
    rider.plan.rest += "[periods]\nslot_health = \"200ms\"\n";
    rider.start_ready();
    scene.db.submit(0..1);
    wait_until("the sink is blocked", || slow.held() == 1);
    scene.db.run("CREATE TABLE noise (n int)");
    let kept = format!(
        "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8 FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
    );
    let make_noise_until = |bytes: i64| {
        while scene.db.number(&kept) < bytes {
            scene.db.run("INSERT INTO noise SELECT generate_series(1, 1000)");
        }
    };
    make_noise_until(7 << 20);
    wait_status(&rider, "warning:    The slot keeps four fifths of what wal_guard allows");
    assert_eq!(rider.metric("postrider_guard_active"), 0);
    make_noise_until(9 << 20);
    rider.wait_to_say("the slot keeps more log than wal_guard allows");
    wait_status(&rider, "warning:    The slot keeps more log than wal_guard allows, and is confirmed at the journal");
    let end = scene.db.log_end();
    wait_until("the slot passes the sink", || scene.db.confirmed(SLOT) >= end);
}
