//! What is not as it must be: one clear sentence with the cure, the documented exit code, and nothing lost.

use super::fixture::{
    Endpoint, Play, Rider, Scene, assert_within, free_port, on_every_version, outbox, sink_http, stage, wait_until,
    work,
};
use postrider_core::error::ErrorKind;
use std::time::{Duration, Instant};
use xtask::postgres::Builder;

fn one_stage(endpoint: &Endpoint) -> String {
    work(&[stage("PRICING", &endpoint.address(), None, "")])
}

/// Starts it and waits for its end; it must say the kind's code once, with all of `words`, and exit with the kind's code.
#[track_caller]
fn assert_refused(rider: &mut Rider, kind: ErrorKind, words: &[&str]) {
    rider.forget_what_was_said();
    rider.start();
    let (code, _) = rider.wait();
    let said = rider.said();
    assert_eq!(code, Some(i32::from(kind.exit_code())), "{kind:?}: {said}");
    let sentence = format!("postrider: error {}: ", kind.code());
    assert_eq!(said.matches(&sentence).count(), 1, "{kind:?}: {said}");
    let (_, error) = said.split_once(&sentence).unwrap();
    for word in words {
        assert!(error.contains(word), "{kind:?} does not say `{word}`: {error}");
    }
    let last = format!("`postrider explain {}` says what it costs and what to type.", kind.code());
    assert!(error.trim().ends_with(&last) && error.trim().lines().count() >= 3, "{kind:?} names no cure: {error}");
    assert!(!error.contains("secret"), "a password is in it: {error}");
}

#[test]
fn a_start_that_cannot_be_says_why_and_the_cure_and_loses_nothing() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let mut rider =
        scene.rider("rider", outbox() + &sink_http("events", &endpoint.address(), "") + &one_stage(&endpoint));
    let made = rider.end_of(&["setup", "--role", "courier"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    scene.db.run("ALTER ROLE courier PASSWORD 'secret'");
    rider.plan.url = scene.url_as("courier", "secret");
    let good = rider.plan.clone();
    scene.db.submit(0..3);

    rider.plan.url = scene.url_as("courier", "wrong-secret");
    assert_refused(&mut rider, ErrorKind::Authentication, &["courier"]);
    rider.plan = good.clone();

    rider.plan.slot = "nowhere".to_owned();
    assert_refused(&mut rider, ErrorKind::SlotMissing, &["nowhere", "postrider setup"]);
    rider.plan = good.clone();

    rider.plan.publication = "nowhere".to_owned();
    assert_refused(&mut rider, ErrorKind::PublicationMissing, &["nowhere"]);
    rider.plan = good.clone();

    rider.plan.rest.push_str("[limits]\ndrian = \"1s\"\n");
    assert_refused(&mut rider, ErrorKind::Configuration, &["drian", "drain", "postrider.toml:"]);
    rider.plan = good;

    scene.db.run("ALTER ROLE courier NOREPLICATION");
    assert_refused(&mut rider, ErrorKind::Privilege, &["REPLICATION"]);
    scene.db.run("ALTER ROLE courier REPLICATION");

    scene.db.run("REVOKE UPDATE ON pending_work FROM courier");
    assert_refused(
        &mut rider,
        ErrorKind::Privilege,
        &["lacks the privilege UPDATE", "ON \"public\".\"pending_work\" TO \"courier\";"],
    );

    // Its sink may have had what the server let us read; no stage was called.
    assert_eq!(endpoint.count("/stages/pricing"), 0);
    assert_eq!(scene.db.number("SELECT count(*) FROM pending_work WHERE stage_state = 'PENDING' AND fence = 0"), 3);
    let made = {
        let url = std::mem::replace(&mut rider.plan.url, scene.url());
        let made = rider.end_of(&["setup", "--role", "courier"]);
        rider.plan.url = url;
        made
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    rider.start();
    wait_until("with all that it needs, it does its work", || scene.open_rows() == 0);
    wait_until("every event is delivered", || endpoint.distinct("webhook-id") == 3);
    assert_eq!(endpoint.count("/stages/pricing"), 3);
    rider.still_runs();
}

#[test]
fn a_server_without_a_logical_log_is_named_by_setup_and_run() {
    let scene = Scene::with(|builder| builder.setting("wal_level", "replica"));
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let mut rider = scene.rider("rider", one_stage(&endpoint));
    scene.db.submit(0..1);
    let setup = rider.end_of(&["setup"]);
    let said = String::from_utf8_lossy(&setup.stderr).into_owned();
    assert_eq!(setup.status.code(), Some(i32::from(ErrorKind::WalLevel.exit_code())), "{said}");
    assert!(said.contains("wal_level"), "{said}");
    assert_refused(&mut rider, ErrorKind::WalLevel, &["wal_level", "logical"]);
    assert_eq!(scene.work_rows(), [["quote-00000", "PRICING", "PENDING", "0", "f"]]);
}

#[test]
fn s01_a_slot_in_use_is_waited_for_and_taken_within_seconds_when_its_reader_goes() {
    on_every_version(|version| {
        let scene = Scene::of(version, |builder| builder);
        let endpoint = Endpoint::alone(|_, _| Play::Answer);
        let mut holder = scene.rider("holder", outbox() + &sink_http("events", &endpoint.address(), ""));
        let mut waiter = scene.rider("waiter", outbox() + &sink_http("events", &endpoint.address(), ""));
        waiter.plan.slot = holder.plan.slot.clone();
        let slot = holder.plan.slot.clone();
        holder.setup();
        holder.start_ready();
        waiter.start();
        waiter.wait_to_say("PR005");
        let reader = scene.db.reader(&slot).expect("the holder reads");
        let said = waiter.said();
        assert!(said.contains(&slot) && said.contains(&reader.to_string()), "the reader is named: {said}");
        waiter.still_runs();

        scene.db.submit(0..2);
        wait_until("the holder works", || endpoint.count("/events") == 2);
        holder.kill9();
        let killed = Instant::now();
        wait_until("the waiter reads", || scene.db.reader(&slot).is_some_and(|pid| pid != reader));
        assert_within("the take-over of the slot", killed.elapsed(), Duration::from_secs(15));
        scene.db.submit(2..3);
        wait_until("the waiter works", || {
            endpoint.requests().iter().any(|request| String::from_utf8_lossy(&request.body).contains("\"seq\": 2"))
        });
        waiter.still_runs();
    });
}

#[test]
fn an_endpoint_that_cannot_be_reached_costs_no_attempt() {
    let scene = Scene::start();
    let port = free_port();
    let keys = "backoff = { first = \"50ms\", max = \"500ms\" }\nattempts = 1\n";
    let stages = work(&[stage("PRICING", &format!("127.0.0.1:{port}"), None, keys)]);
    let mut rider = scene.rider("rider", stages);
    rider.setup();
    rider.start_ready();
    scene.db.submit(0..5);
    let tried = |times: f64| rider.metric_of("postrider_stage_verdicts_total", "verdict=\"defer\"") >= times;
    wait_until("each row was tried more often than the limit", || tried(10.0));
    let rows = scene.db.rows(
        "SELECT DISTINCT last_error, deferral_count FROM pending_work WHERE last_error IS NOT NULL AND closed_at IS NULL",
    );
    assert_eq!(rows, [["NOT_SENT: connection refused", "0"]]);
    assert_eq!(
        scene.db.number("SELECT count(*) FROM pending_work WHERE stage_state IN ('PENDING', 'RETRY', 'RUNNING')"),
        5
    );
    assert_eq!(scene.db.number("SELECT max(attempt_count) FROM pending_work WHERE stage_state <> 'RUNNING'"), 0);

    let endpoint = Endpoint::on(port, None, Box::new(|_, _| Play::Answer));
    wait_until("every row is done", || scene.open_rows() == 0);
    assert!(endpoint.requests().iter().all(|request| request.attempt() == 1), "no attempt was used before");
    assert_eq!(endpoint.requests().len(), 5);
}

#[test]
fn a_journal_of_another_system_or_of_a_running_process_is_left_alone() {
    let (scene, other) = (Scene::with(Builder::own_identity), Scene::with(Builder::own_identity));
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let mut rider = scene.rider("rider", one_stage(&endpoint));
    rider.setup();
    rider.start_ready();
    scene.db.submit(0..1);
    wait_until("the row is done", || scene.open_rows() == 0);

    let mut second = scene.rider("second", one_stage(&endpoint));
    second.plan.journal = rider.plan.journal.clone();
    second.setup();
    assert_refused(&mut second, ErrorKind::Disk, &["another process has the journal open"]);
    rider.still_runs();
    rider.kill9();

    let mut stranger = other.rider("rider", one_stage(&endpoint));
    stranger.plan.journal = rider.plan.journal.clone();
    stranger.setup();
    other.db.submit(7..8);
    assert_refused(&mut stranger, ErrorKind::JournalForeign, &["journal"]);
    assert_eq!(other.work_rows(), [["quote-00007", "PRICING", "PENDING", "0", "f"]]);

    // And it is still good for its own system.
    scene.db.submit(1..2);
    rider.start();
    wait_until("the row is done", || scene.open_rows() == 0);
    rider.still_runs();
}
