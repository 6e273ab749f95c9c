//! What reaches the primary while there is nothing to do, read in the server's own log.

use super::fixture::{Endpoint, Play, Scene, outbox, sink_http, stage, wait_until, work};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long the silence is listened to.
const LISTEN_FOR: Duration = Duration::from_secs(180);

/// What may be heard: how a statement is known, and how often it may come in three minutes.
const EXPECTED: [(&str, &str, u32, u32); 6] = [
    // Every 10 s.
    ("heartbeat", "pg_logical_emit_message(", 15, 19),
    ("heartbeat's position", "pg_current_wal_flush_lsn()", 15, 19),
    // Every 30 s.
    ("slot", "FROM pg_replication_slots WHERE slot_name = ", 5, 7),
    // Every 60 s, on a connection of its own: its settings, a snapshot, a page.
    ("sweep's settings", "SET enable_seqscan = off; ", 2, 4),
    ("sweep's snapshot", "SELECT pg_current_snapshot()", 2, 4),
    ("sweep's page", "WHERE t.\"closed_at\" IS NULL AND ", 2, 4),
];

#[test]
fn an_idle_orchestrator_beats_sweeps_and_looks_at_its_slot_and_says_nothing_else() {
    let settings = [
        ("log_statement", "all"),
        ("log_replication_commands", "on"),
        ("log_connections", "on"),
        ("log_line_prefix", "%m [%p] <%a> "),
    ];
    let scene = Scene::with(|builder| {
        settings.into_iter().fold(builder, |builder, (name, value)| builder.setting(name, value))
    });
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let address = endpoint.address();
    let stages = [stage("PRICING", &address, Some("APPROVAL"), ""), stage("APPROVAL", &address, None, "")];
    let rest = outbox() + &sink_http("events", &address, "") + &work(&stages);
    let mut rider = scene.rider("rider", rest);
    rider.setup();
    rider.start_ready();
    scene.db.submit(0..50);
    wait_until("there is nothing to do any more", || scene.open_rows() == 0 && endpoint.count("/events") == 50);

    // What the last rows brought about may still be on its way, as the early sweeps are that come after a start.
    std::thread::sleep(Duration::from_secs(10));
    let before = scene.cluster.read_log().unwrap().len();
    std::thread::sleep(LISTEN_FOR);
    let log = scene.cluster.read_log().unwrap();
    let statements = statements_in(&log[before..]);
    let mut heard: BTreeMap<&str, u32> = BTreeMap::new();
    let mut unknown = Vec::new();
    for statement in &statements {
        match EXPECTED.iter().find(|(_, sign, _, _)| statement.contains(sign)) {
            Some((name, ..)) => *heard.entry(name).or_default() += 1,
            None => unknown.push(statement),
        }
    }
    assert!(unknown.is_empty(), "statements that nobody promised: {unknown:#?}; and {heard:?}");
    for (name, _, least, most) in EXPECTED {
        let count = heard.get(name).copied().unwrap_or(0);
        assert!((least..=most).contains(&count), "{name}: {count} times in {LISTEN_FOR:?}; all: {heard:?}");
    }
    let connections = log[before..].matches("connection authorized").count();
    assert!(connections <= 4, "only a sweep connects: {connections} connections");
    rider.still_runs();
}

/// The statements and replication commands in a part of the log, those of the tests left out.
fn statements_in(log: &str) -> Vec<String> {
    let mut statements: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in log.lines() {
        if let Some(more) = line.strip_prefix('\t') {
            if let Some(last) = statements.last_mut().filter(|_| goes_on) {
                last.push(' ');
                last.push_str(more.trim());
            }
            continue;
        }
        let signs = ["LOG:  statement: ", "LOG:  execute ", "STATEMENT:  ", "received replication command: "];
        let begin = signs.iter().find_map(|sign| line.split_once(sign)).filter(|_| !line.contains("<test>"));
        goes_on = begin.is_some();
        statements.extend(begin.map(|(_, statement)| statement.to_owned()));
    }
    statements
}
