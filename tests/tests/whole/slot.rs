//! The slot: it moves while our tables are idle, a blocked sink stops neither feedback nor the others, and no server is kept from
//! shutting down.

use super::fixture::{
    Database, Endpoint, Play, Rider, Scene, assert_within, on_every_version, outbox, sink_http, sink_ndjson, stage,
    wait_until, work,
};
use std::time::{Duration, Instant};
use xtask::postgres::Builder;

const SLOT: &str = "rider_rider";

/// How long a fast shutdown may take: the promise is a couple of seconds, the rest is the machine's.
const SHUTDOWN_MAX: Duration = Duration::from_secs(8);

/// Nothing but the server's own keep-alives tells us how far it is.
const NO_HEARTBEAT: &str = "[periods]\nheartbeat = \"1h\"\n";

fn impatient(builder: Builder) -> Builder {
    builder.setting("wal_sender_timeout", "2s")
}

fn one_stage(endpoint: &Endpoint) -> String {
    work(&[stage("PRICING", &endpoint.address(), None, "")])
}

/// A sink that never answers, one that writes lines, and a stage.
fn with_blocked_sink(scene: &Scene, blocked: &Endpoint, stages: &Endpoint) -> Rider {
    let mut rest = outbox() + &sink_http("blocked", &blocked.address(), "timeout = \"10m\"");
    rest += &sink_ndjson("lines", &scene.file("events.ndjson"));
    rest += &one_stage(stages);
    scene.rider("rider", rest)
}

fn lines(scene: &Scene) -> usize {
    std::fs::read_to_string(scene.file("events.ndjson")).unwrap_or_default().lines().count()
}

fn wait_confirmed(scene: &Scene, what: &str, at_least: u64) {
    wait_until(what, || scene.db.confirmed(SLOT) >= at_least);
}

#[test]
fn the_slot_moves_while_others_write_and_while_nobody_does() {
    on_every_version(|version| {
        let scene = Scene::of(version, impatient);
        let endpoint = Endpoint::alone(|_, _| Play::Answer);
        let mut rider = scene.rider("rider", outbox() + &one_stage(&endpoint) + NO_HEARTBEAT);
        rider.setup();
        rider.start();
        wait_until("the log is read", || scene.db.reader(SLOT).is_some());
        let before = scene.db.confirmed(SLOT);

        scene.db.run("CREATE TABLE noise AS SELECT 0 AS n");
        for _ in 0..20 {
            scene.db.run("INSERT INTO noise SELECT generate_series(1, 1000)");
        }
        let noise_end = scene.db.log_end();
        assert!(noise_end > before + 1_000_000, "others wrote a megabyte");
        wait_confirmed(&scene, "the slot passes what others wrote", noise_end);

        // No transaction at all, and the log is somewhere else.
        scene.db.run("SELECT pg_switch_wal()");
        let switched = scene.db.log_end();
        assert!(switched > noise_end);
        wait_confirmed(&scene, "the slot passes a switch of the log's file", switched);
        rider.still_runs();
    });
}

#[test]
fn with_ack_sinks_a_blocked_sink_holds_the_slot_and_nothing_else() {
    on_every_version(|version| {
        let scene = Scene::of(version, impatient);
        let (blocked, stages) = (Endpoint::alone(|_, _| Play::Hold), Endpoint::alone(|_, _| Play::Answer));
        let mut rider = with_blocked_sink(&scene, &blocked, &stages);
        rider.plan.top = "ack = \"sinks\"".to_owned();
        rider.setup();
        rider.start_ready();
        wait_confirmed(&scene, "everything before the event is confirmed", scene.db.log_end());
        scene.db.submit(0..1);
        let event_end = scene.db.log_end();
        wait_until("the sink is blocked", || blocked.held() == 1);
        let reader = scene.db.reader(SLOT);
        assert_others_go_on(&scene, reader);
        assert!(scene.db.confirmed(SLOT) < event_end, "nothing is confirmed past a sink that has not taken it");
        assert_eq!(blocked.requests().len(), 1);

        blocked.release();
        wait_confirmed(&scene, "the slot goes on with the sink", scene.db.log_end());
        assert_eq!(blocked.requests().len(), 21, "nothing was sent twice");
        rider.still_runs();
    });
}

#[test]
fn with_ack_journal_a_blocked_sink_does_not_hold_the_slot() {
    let scene = Scene::with(impatient);
    let (blocked, stages) = (Endpoint::alone(|_, _| Play::Hold), Endpoint::alone(|_, _| Play::Answer));
    let mut rider = with_blocked_sink(&scene, &blocked, &stages);
    rider.plan.top = "ack = \"journal\"".to_owned();
    rider.setup();
    rider.start_ready();
    scene.db.submit(0..1);
    wait_until("the sink is blocked", || blocked.held() == 1);
    assert_others_go_on(&scene, scene.db.reader(SLOT));
    wait_confirmed(&scene, "the slot passes the blocked sink", scene.db.log_end());
    assert_eq!(blocked.requests().len(), 1);

    // What the server has forgotten by now is in the journal.
    rider.kill9();
    blocked.release();
    rider.start();
    wait_until("all events come from the journal", || blocked.requests().len() == 22);
}

/// Twenty more quotes are worked on and written to the other sink, over three times the server's time-out, on one connection.
#[track_caller]
fn assert_others_go_on(scene: &Scene, reader: Option<i64>) {
    assert!(reader.is_some());
    let began = Instant::now();
    for number in 1..21 {
        scene.db.submit(number..number + 1);
        // The pace of the load: the connection must outlive three time-outs of two seconds.
        std::thread::sleep(Duration::from_millis(310));
        assert_eq!(scene.db.reader(SLOT), reader, "the connection stays up");
    }
    assert!(began.elapsed() > Duration::from_secs(6));
    wait_until("the stages go on", || scene.open_rows() == 0);
    wait_until("the other sink goes on", || lines(scene) == 21);
    assert_eq!(scene.db.reader(SLOT), reader, "the connection stays up");
}

#[test]
fn a_fast_shutdown_is_not_held_up_and_all_goes_on_when_the_server_is_back() {
    on_every_version(|version| {
        let mut scene = Scene::of(version, |builder| builder);
        let endpoint = Endpoint::alone(|_, _| Play::Answer);
        let mut rider = scene.rider("rider", outbox() + &one_stage(&endpoint));
        rider.setup();
        rider.start_ready();
        scene.db.submit(0..10);
        wait_until("all is done", || scene.open_rows() == 0);
        let took = scene.cluster.stop_fast().unwrap();
        assert_within("a fast shutdown", took, SHUTDOWN_MAX);

        scene.cluster.start().unwrap();
        scene.db = Database::connect(&scene.url());
        scene.db.submit(10..20);
        wait_until("work goes on", || scene.open_rows() == 0);
        assert_eq!(endpoint.requests().len(), 20);
        rider.still_runs();
    });
}

#[test]
fn a_fast_shutdown_is_not_held_up_by_a_blocked_sink_and_nothing_is_confirmed_for_it() {
    on_every_version(|version| {
        let mut scene = Scene::of(version, |builder| builder);
        let (blocked, stages) = (Endpoint::alone(|_, _| Play::Hold), Endpoint::alone(|_, _| Play::Answer));
        let mut rider = with_blocked_sink(&scene, &blocked, &stages);
        rider.setup();
        rider.start_ready();
        scene.db.submit(0..5);
        let submitted = scene.db.log_end();
        wait_until("the sink is blocked", || blocked.held() > 0);
        wait_until("the rest is done", || scene.open_rows() == 0 && lines(&scene) == 5);
        let took = scene.cluster.stop_fast().unwrap();
        assert_within("a fast shutdown", took, SHUTDOWN_MAX);

        scene.cluster.start().unwrap();
        scene.db = Database::connect(&scene.url());
        assert!(scene.db.confirmed(SLOT) < submitted, "nothing was confirmed for the server's convenience");
        blocked.release();
        wait_confirmed(&scene, "the slot goes on with the sink", submitted);
        assert_eq!(blocked.requests().len(), 5, "nothing was sent twice");
        assert_eq!(lines(&scene), 5);
        rider.still_runs();
    });
}

/// Only version 18 has the setting; an older server must not be asked for what it does not know.
#[test]
fn a_server_that_drops_idle_slots_is_told_of_by_check() {
    for (version, builder_setting) in [(17, None), (18, Some(("idle_replication_slot_timeout", "1d")))] {
        let scene = Scene::of(version, |builder| match builder_setting {
            Some((name, value)) => builder.setting(name, value),
            None => builder,
        });
        let rider = scene.rider("rider", outbox() + &sink_ndjson("lines", &scene.file("events.ndjson")));
        rider.setup();
        let checked = rider.end_of(&["check"]);
        let said = [checked.stdout, checked.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        let is_told = said.contains("nobody reads from for 1d (idle_replication_slot_timeout)");
        assert_eq!(is_told, version == 18, "{said}");
    }
}
