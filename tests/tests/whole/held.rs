//! Transactions that come before their outcome, read by the binary.

use super::fixture::{Rider, Scene, outbox, sink_ndjson, wait_until};
use super::life::adopt;
use std::fs;

/// What the process may take while a transaction passes through that is larger.
const MEMORY_MAX: u64 = 64 << 20;
const ROWS: u32 = 100_000;

fn rider_with_file(scene: &Scene, name: &str) -> Rider {
    let file = scene.file(name).join("events.ndjson");
    scene.rider(name, outbox() + &sink_ndjson("events", &file))
}

fn lines(rider: &Rider) -> Vec<String> {
    let text = fs::read_to_string(rider.file("events.ndjson")).unwrap_or_default();
    text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect()
}

/// The numbers of the events in the file, in order.
fn numbers(rider: &Rider) -> Vec<u64> {
    let number = |line: &String| {
        let event: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
        event["payload"]["seq"].as_u64().expect("it is numbered")
    };
    lines(rider).iter().map(number).collect()
}

fn event(number: u32) -> String {
    format!("INSERT INTO outbox_event (aggregate_key, event_type, payload) VALUES ('k', 'e', '{{\"seq\": {number}}}');")
}

fn staged(rider: &Rider) -> usize {
    fs::read_dir(rider.plan.journal.join("staging")).map_or(0, Iterator::count)
}

#[test]
fn a_large_streamed_transaction_passes_through_little_memory() {
    let scene = Scene::with(|builder| builder.setting("logical_decoding_work_mem", "64kB"));
    let mut rider = rider_with_file(&scene, "large");
    rider.setup();
    rider.start_ready();
    scene.db.run(&format!(
        "INSERT INTO outbox_event (aggregate_key, event_type, payload)
         SELECT 'k', 'e', jsonb_build_object('seq', i, 'pad', repeat('x', 1000)) FROM generate_series(1, {ROWS}) AS i"
    ));
    scene.db.run(&event(ROWS + 1));
    wait_until("the event behind the large transaction is delivered", || {
        rider.still_runs();
        let tail = format!("{{\"seq\": {}}}", ROWS + 1);
        fs::metadata(rider.file("events.ndjson")).is_ok_and(|file| file.len() > u64::from(ROWS) * 1_000)
            && lines(&rider).last().is_some_and(|line| line.contains(&tail))
    });
    let peak = rider.peak_memory();
    println!("{} MiB at most, for a transaction of {} MB", peak >> 20, ROWS / 1_000);
    assert!(peak <= MEMORY_MAX, "{peak} bytes");
    assert!(numbers(&rider).into_iter().eq(1..=u64::from(ROWS) + 1));
    assert!(
        rider.said().contains("streaming 'on'") || rider.said().contains("streaming 'parallel'"),
        "{}",
        rider.said()
    );
    wait_until("the slot is confirmed behind it", || scene.db.confirmed("rider_large") >= scene.db.log_end());
    assert_eq!(staged(&rider), 0);
}

#[test]
fn what_is_prepared_outlives_a_kill_and_is_delivered_at_its_verdict() {
    let scene = Scene::with(|builder| builder.setting("max_prepared_transactions", "10"));
    if scene.cluster.installation().major() < 15 {
        return;
    }
    let mut rider = rider_with_file(&scene, "prepared");
    rider.plan.source = "two_phase = true\n".to_owned();
    rider.setup();
    assert_eq!(scene.db.text("SELECT two_phase FROM pg_replication_slots WHERE slot_name = 'rider_prepared'"), "t");
    rider.start_ready();
    for (number, gid) in [(1, "kept"), (2, "undone")] {
        scene.db.run(&format!("BEGIN; {} PREPARE TRANSACTION '{gid}'", event(number)));
    }
    scene.db.run(&event(3));
    let prepared_end = scene.db.log_end();
    wait_until("the slot is confirmed behind the prepare", || {
        rider.still_runs();
        scene.db.confirmed("rider_prepared") >= prepared_end
    });
    assert_eq!(numbers(&rider), [3]);
    assert_eq!(rider.metric("postrider_prepared_transactions"), 2);
    let status = String::from_utf8(rider.end_of(&["status"]).stdout).expect("text");
    assert!(status.contains("0 transactions in progress, 2 prepared"), "{status}");
    rider.kill9();
    assert_eq!(staged(&rider), 2);
    rider.start();
    scene.db.run("ROLLBACK PREPARED 'undone'");
    scene.db.run(&event(4));
    scene.db.run("COMMIT PREPARED 'kept'");
    scene.db.run(&event(5));
    wait_until("the last event is delivered", || {
        rider.still_runs();
        numbers(&rider).last() == Some(&5)
    });
    assert_eq!(numbers(&rider), [3, 4, 1, 5]);
    wait_until("nothing waits any more", || staged(&rider) == 0);
    wait_until("and nothing is counted", || rider.metric("postrider_staged_bytes") == 0);
    rider.kill9();
    rider.start_ready();
    scene.db.run(&event(6));
    wait_until("the last event is delivered", || numbers(&rider).last() == Some(&6));
    assert_eq!(numbers(&rider), [3, 4, 1, 5, 6], "nothing comes again");
}

/// The slot was moved past one verdict, and its gid is used again; another transaction is still prepared.
#[test]
fn what_was_decided_where_nobody_read_it_here_is_given_up_on_record() {
    let scene = Scene::with(|builder| builder.setting("max_prepared_transactions", "10"));
    if scene.cluster.installation().major() < 15 {
        return;
    }
    let mut rider = rider_with_file(&scene, "passed");
    rider.plan.source = "two_phase = true\n".to_owned();
    rider.setup();
    rider.start_ready();
    for (number, gid) in [(1, "decided"), (2, "open")] {
        scene.db.run(&format!("BEGIN; {} PREPARE TRANSACTION '{gid}'", event(number)));
    }
    wait_until("both are staged", || rider.metric("postrider_prepared_transactions") == 2);
    rider.kill9();
    wait_until("nobody reads from the slot", || scene.db.reader("rider_passed").is_none());
    scene.db.run("COMMIT PREPARED 'decided'");
    scene.db.run(&event(3));
    scene.db.run("SELECT pg_replication_slot_advance('rider_passed', pg_current_wal_lsn())");
    scene.db.run(&format!("BEGIN; {} PREPARE TRANSACTION 'decided'", event(4)));
    adopt(&rider, &["is not in the journal and cannot be read any more"]);
    rider.forget_what_was_said();
    rider.start_ready();
    rider.wait_to_say("The prepared transaction \"decided\" had its verdict");
    wait_until("it goes, and what is still prepared stays", || staged(&rider) == 2);
    let status = String::from_utf8(rider.end_of(&["status"]).stdout).expect("text");
    assert!(status.contains("2 prepared") && status.contains("SELECT pg_xact_status("), "{status}");
    let (_, rest) = status.split_once("pg_xact_status('").expect("it says what to ask");
    let id: String = rest.chars().take_while(char::is_ascii_digit).collect();
    assert_eq!(scene.db.text(&format!("SELECT pg_xact_status('{id}')")), "committed");
    scene.db.run("COMMIT PREPARED 'open'");
    scene.db.run("COMMIT PREPARED 'decided'");
    wait_until("the verdicts that came are followed", || numbers(&rider) == [2, 4]);
    wait_until("nothing waits any more", || staged(&rider) == 0);
    assert_eq!(rider.said().matches("had its verdict").count(), 1, "{}", rider.said());
}
