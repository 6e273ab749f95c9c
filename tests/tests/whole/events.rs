//! Outbox events on their way to a file of lines, from the real binary.

use super::fixture::{Database, Rider, Scene, outbox, sink_ndjson, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// Outboxes beside the canonical one: payloads that are text and bytes, and messages.
const OTHER_OUTBOXES: &str = "
[[outbox]]
table = \"letters\"
columns = { aggregate_key = \"recipient\", event_type = \"\", topic = \"\", headers = \"\" }
[[outbox]]
table = \"parcels\"
columns = { aggregate_key = \"recipient\", event_type = \"\", topic = \"\", headers = \"\" }
[[outbox]]
prefix = \"telegrams\"
";

const OTHER_TABLES: &str = "
CREATE TABLE letters (id text PRIMARY KEY, recipient text, payload text);
CREATE TABLE parcels (id text PRIMARY KEY, recipient text, payload bytea);
";

fn rider(scene: &Scene, outboxes: &str) -> Rider {
    let rider = scene.rider("rider", outbox() + outboxes + &sink_ndjson("lines", &scene.file("events.ndjson")));
    rider.setup();
    rider
}

/// The whole lines of the file.
fn lines(scene: &Scene) -> Vec<Value> {
    let text = std::fs::read_to_string(scene.file("events.ndjson")).unwrap_or_default();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn types(scene: &Scene) -> Vec<String> {
    lines(scene).iter().map(|line| line["type"].as_str().unwrap_or("-").to_owned()).collect()
}

fn insert(event_type: &str) -> String {
    format!("INSERT INTO outbox_event (aggregate_key, event_type, payload) VALUES ('k', '{event_type}', '{{}}');")
}

/// An event behind all others: once it is there, so is everything that is to come before it.
#[track_caller]
fn assert_types(scene: &Scene, expected: &[&str]) {
    scene.db.run(&insert("last"));
    wait_until("the last event is there", || types(scene).last().is_some_and(|last| last == "last"));
    let mut all = expected.to_vec();
    all.push("last");
    assert_eq!(types(scene), all);
}

#[test]
fn what_is_committed_is_delivered_once_and_nothing_else_is() {
    let scene = Scene::start();
    let mut rider = rider(&scene, "");
    rider.start_ready();
    let db = &scene.db;
    db.run(&format!("BEGIN; {} DELETE FROM outbox_event; COMMIT", insert("inserted and deleted")));
    db.run(&format!("BEGIN; {} ROLLBACK", insert("rolled back")));
    db.run(&format!(
        "BEGIN; {} SAVEPOINT s; {} ROLLBACK TO s; {} COMMIT",
        insert("before the savepoint"),
        insert("behind the savepoint"),
        insert("behind the way back")
    ));
    db.run(&insert("published by a poller"));
    db.run("UPDATE outbox_event SET published_at = now()");
    db.run("DELETE FROM outbox_event");
    assert_types(
        &scene,
        &["inserted and deleted", "before the savepoint", "behind the way back", "published by a poller"],
    );
    assert_eq!(rider.metric("postrider_alarms_total"), 0, "{}", rider.said());

    db.run("TRUNCATE outbox_event");
    wait_until("the truncation is an alarm", || rider.metric("postrider_alarms_total") == 1);
    rider.still_runs();
}

#[test]
fn transactions_that_overlap_are_delivered_in_the_order_of_their_commits() {
    let scene = Scene::start();
    let mut rider = rider(&scene, "");
    rider.start_ready();
    let (early, late) = (Database::connect(&scene.url()), Database::connect(&scene.url()));
    early.run(&format!("BEGIN; {}", insert("early 1")));
    late.run(&format!("BEGIN; {}", insert("late 1")));
    early.run(&insert("early 2"));
    late.run(&insert("late 2"));
    late.run("COMMIT");
    early.run("COMMIT");
    assert_types(&scene, &["late 1", "late 2", "early 1", "early 2"]);
    let lines = lines(&scene);
    let positions: BTreeSet<_> = lines.iter().map(|line| line["position"].as_str().unwrap()).collect();
    assert_eq!(positions.len(), lines.len(), "each has a position of its own");
    assert_eq!(lines[0]["key"], "k");
    rider.still_runs();
}

#[test]
fn payloads_of_every_kind_and_messages_arrive_as_they_were_written() {
    let scene = Scene::start();
    scene.db.run(OTHER_TABLES);
    let mut rider = rider(&scene, OTHER_OUTBOXES);
    rider.start_ready();
    let db = &scene.db;
    db.run("INSERT INTO outbox_event (aggregate_key, event_type, payload) VALUES ('k', 'null', NULL)");
    db.run("INSERT INTO outbox_event (aggregate_key, event_type, payload) VALUES ('k', 'JSON null', 'null')");
    db.run("INSERT INTO letters VALUES ('l-1', 'Ada', E'no JSON: \"\\n{')");
    db.run("INSERT INTO parcels VALUES ('p-1', 'Ada', '\\x00ff10')");
    db.run("SELECT pg_logical_emit_message(true, 'telegrams', '{\"stop\": true}')");
    db.run("SELECT pg_logical_emit_message(true, 'gossip', '{\"stop\": false}')");
    db.run(&format!("BEGIN; SELECT pg_logical_emit_message(true, 'telegrams', '{{}}'); ROLLBACK; {}", insert("last")));
    wait_until("the last event is there", || types(&scene).last().is_some_and(|last| last == "last"));
    let lines = lines(&scene);
    let payloads: Vec<_> = lines.iter().map(|line| line["payload"].clone()).collect();
    let expected = [
        Value::Null,
        Value::Null,
        json!("no JSON: \"\n{"),
        json!({ "base64": "AP8Q" }),
        json!({ "stop": true }),
        json!({}),
    ];
    assert_eq!(payloads, expected);
    assert_eq!((&lines[2]["id"], &lines[2]["key"], &lines[2]["type"]), (&json!("l-1"), &json!("Ada"), &Value::Null));
    rider.still_runs();
}

#[test]
fn kills_repeat_no_line_in_the_file_and_leave_none_out() {
    const KILLS: u32 = 8;
    const EVENTS_EACH: u32 = 40;
    let scene = Scene::start();
    let mut rider = rider(&scene, "");
    let mut chance = fastrand::Rng::with_seed(7);
    for kill in 0..KILLS {
        rider.start();
        let before = lines(&scene).len();
        scene.db.submit(kill * EVENTS_EACH..(kill + 1) * EVENTS_EACH);
        wait_until("lines are written", || lines(&scene).len() > before);
        // Anywhere in its work, or in the idleness behind it.
        std::thread::sleep(Duration::from_millis(chance.u64(0..60)));
        rider.kill9();
    }
    rider.start();
    let expected: Vec<_> = (0..KILLS * EVENTS_EACH).collect();
    scene.db.run(&insert("last"));
    wait_until("the last event is there", || types(&scene).last().is_some_and(|last| last == "last"));
    let mut sequence: Vec<_> = lines(&scene).iter().map(|line| line["payload"]["seq"].clone()).collect();
    assert_eq!(sequence.pop(), Some(Value::Null), "the last event has none");
    assert_eq!(sequence, expected, "each once, in the order of the commits");
    rider.still_runs();
}
