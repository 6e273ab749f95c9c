//! Looking on while a team's own poller works on its table: what is seen of it, and that nothing is done.

use super::fixture::{Database, Rider, Scene, stage, wait_until};
use serde_json::Value;

/// A table as such teams have it: no fence, no owner, a lease that the poller writes.
const JOBS: &str = "CREATE TABLE jobs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, step text NOT NULL DEFAULT 'PRICING',
        status text NOT NULL DEFAULT 'NEW', tries int NOT NULL DEFAULT 0, run_after timestamptz, locked_until timestamptz, input jsonb);
    CREATE PUBLICATION postrider FOR TABLE jobs;
    CREATE ROLE onlooker LOGIN REPLICATION PASSWORD 'secret'";

fn configuration() -> String {
    let stages = [stage("PRICING", "127.0.0.1:9", Some("APPROVAL"), ""), stage("APPROVAL", "127.0.0.1:9", None, "")];
    format!(
        "[work]\ntable = \"jobs\"\nmode = \"observe\"\n\
         columns = {{ key = [\"id\"], stage = \"step\", stage_state = \"status\", attempt_count = \"tries\", next_attempt_at = \"run_after\",\n  \
           lease_until = \"locked_until\", fence = \"\", deferral_count = \"\", epoch = \"\", lease_owner = \"\", closed_at = \"\", definition = \"\" }}\n\
         states = {{ PENDING = \"NEW\", RUNNING = [\"BUSY\", \"CALLING\"], DONE = \"OK\" }}\n{}[periods]\nheartbeat = \"200ms\"\nsummary = \"1s\"\n",
        stages.concat()
    )
}

/// A poller as a team has written it: takes a few rows, works on them, and writes what came of each.
struct Poller {
    db: Database,
}

impl Poller {
    /// Polls until nothing is due; returns how many rows it took.
    fn poll_all(&self) -> usize {
        let mut taken = 0;
        loop {
            let rows = self.db.rows(
                "UPDATE jobs SET status = 'BUSY', tries = tries + 1, locked_until = now() + interval '1 hour' WHERE id IN (
                    SELECT id FROM jobs WHERE status IN ('NEW', 'RETRY') AND coalesce(run_after <= now(), true)
                    ORDER BY id LIMIT 5 FOR UPDATE SKIP LOCKED) RETURNING id",
            );
            if rows.is_empty() {
                return taken;
            }
            taken += rows.len();
            for row in rows {
                self.db.run(&format!("UPDATE jobs SET status = 'OK', locked_until = NULL WHERE id = {}", row[0]));
            }
        }
    }
}

fn observed(rider: &Rider, stage: &str) -> Value {
    let status = rider.end_of(&["status", "--json"]);
    let report: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
    report["process"]["observed"]["stages"][stage].clone()
}

#[test]
fn a_poller_is_observed_without_a_privilege_and_without_a_write() {
    const ROWS: u64 = 12;
    let scene = Scene::start();
    scene.db.run(JOBS);
    scene.db.run("SELECT pg_create_logical_replication_slot('rider_rider', 'pgoutput')");
    let mut rider = scene.rider("rider", configuration());
    rider.plan.url = scene.url_as("onlooker", "secret");
    let check = rider.end_of(&["check"]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.status.success(), "{said}");
    assert!(said.contains("lacks the privilege SELECT on \"public\".\"jobs\""), "{said}");
    rider.start_ready();

    // The rows wait for longer than a second before the poller comes to them.
    scene.db.run(&format!("INSERT INTO jobs (input) SELECT '{{}}' FROM generate_series(1, {ROWS})"));
    wait_until("they are seen to wait", || observed(&rider, "PRICING")["waiting"] == ROWS);
    scene.db.run("SELECT pg_sleep(1)");
    let poller = Poller { db: Database::connect(&scene.url()) };
    assert_eq!(poller.poll_all(), 12);
    wait_until("they are seen to be taken", || observed(&rider, "PRICING")["waiting"] == 0);
    let seen = observed(&rider, "PRICING");
    let (started, ended) = (&seen["started"], &seen["ended"]);
    assert_eq!(
        (&started["count"], &ended["count"], &seen["overlapping"]),
        (&ROWS.into(), &0.into(), &0.into()),
        "{seen}"
    );
    for quantile in ["p50_ms", "p99_ms", "max_ms"] {
        let millis = started[quantile].as_u64().expect("a number");
        assert!((1_000..60_000).contains(&millis), "{quantile}: {seen}");
    }

    // One that is put off is not due before; one is taken away from whoever works on it; one goes on in one transaction.
    scene.db.run(
        "INSERT INTO jobs (step, run_after) VALUES ('APPROVAL', now() + interval '1 hour');
         INSERT INTO jobs (step, status, tries, locked_until) VALUES ('APPROVAL', 'BUSY', 1, now() + interval '1 hour');
         UPDATE jobs SET tries = 2, status = 'CALLING' WHERE step = 'APPROVAL' AND status = 'BUSY';
         INSERT INTO jobs (step) VALUES ('APPROVAL');
         UPDATE jobs SET status = 'OK' WHERE step = 'APPROVAL' AND status = 'NEW' AND run_after IS NULL",
    );
    wait_until("it is seen", || observed(&rider, "APPROVAL")["overlapping"] == 1);
    wait_until("that is told apart", || observed(&rider, "APPROVAL")["ended"]["count"] == 1);
    assert_eq!(observed(&rider, "APPROVAL")["waiting"], 0);

    let status = rider.end_of(&["status"]);
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    for sentence in [
        "stage PRICING: 12 rows started by others after they were due: p50 ",
        "1 attempts began while another of the same row was under way",
        "nothing is claimed, called or written",
    ] {
        assert!(text.contains(sentence), "{text}");
    }
    assert_eq!(rider.metric_of("postrider_observed_taken", "stage=\"PRICING\""), 12.0);
    rider.wait_to_say("observed: what the others did since the last line");

    // One is taken before it is due, one has been tried more often than the configuration allows, one is in a stage that it lacks.
    scene.db.run(
        "INSERT INTO jobs (step, run_after) VALUES ('APPROVAL', now() + interval '2 hours');
         UPDATE jobs SET status = 'BUSY', tries = 1 WHERE step = 'APPROVAL' AND run_after > now() + interval '90 minutes';
         INSERT INTO jobs (step, tries, run_after) VALUES ('APPROVAL', 99, now() + interval '1 hour'), ('OLD', 0, now() + interval '1 hour')",
    );
    wait_until("it is seen", || observed(&rider, "OLD")["known"] == false);
    for (metric, stage) in
        [("early", "APPROVAL"), ("used_up", "APPROVAL"), ("unconfigured", "OLD"), ("overlapping", "APPROVAL")]
    {
        let name = format!("postrider_observed_{metric}");
        assert_eq!((metric, rider.metric_of(&name, &format!("stage=\"{stage}\""))), (metric, 1.0));
    }

    // A restart reads the journal anew: what was seen is not lost, and a row that has waited since before is still known.
    scene.db.run("INSERT INTO jobs DEFAULT VALUES");
    wait_until("it waits", || observed(&rider, "PRICING")["waiting"] == 1);
    rider.kill9();
    rider.start_ready();
    wait_until("it waits still", || observed(&rider, "PRICING")["waiting"] == 1);
    assert_eq!(observed(&rider, "PRICING")["started"]["count"], ROWS);
    assert!(scene.db.is("SELECT count(*) = 0 FROM pg_trigger WHERE tgrelid = 'jobs'::regclass"));
    rider.still_runs();
}

/// The stream is quiet then, as it is where nothing happens.
#[test]
fn a_table_that_no_publication_has_is_said_to_be_unobserved() {
    let scene = Scene::start();
    scene.db.run(JOBS);
    let mut rider = scene.rider("rider", configuration());
    rider.setup();
    scene.db.run("ALTER PUBLICATION postrider DROP TABLE jobs");
    let check = rider.end_of(&["check"]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert_eq!(check.status.code(), Some(4), "{said}");
    assert!(said.contains("does not have the table \"public\".\"jobs\""), "{said}");
    rider.start();
    rider.wait_to_say("does not have the table public.jobs: nothing of it will be observed");
    rider.still_runs();
}
