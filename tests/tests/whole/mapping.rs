//! A team's own work table: its names, its words and its key, and without what it does not have.

use super::fixture::{Endpoint, Play, Scene, stage, wait_until};

/// As a team has made it: a number and a uuid for the key, words of its own, and no column beyond what executing takes.
const JOBS: &str = "CREATE TYPE job_status AS ENUM ('NEW', 'QUEUED', 'IN_PROGRESS', 'AGAIN', 'UNCLEAR', 'FAILED', 'OK', 'BY_HAND', 'STOPPED', 'ON_HOLD', 'LEGACY');
    CREATE TABLE jobs (tenant bigint, id uuid, step varchar(40) NOT NULL, status job_status NOT NULL DEFAULT 'NEW', tries int NOT NULL DEFAULT 0,
        fence bigint NOT NULL DEFAULT 0, run_after timestamptz, locked_until timestamptz, input jsonb, changed_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (tenant, id))";

fn configuration(stages: &[String]) -> String {
    format!(
        "[work]\ntable = \"jobs\"\n\
         columns = {{ key = [\"tenant\", \"id\"], stage = \"step\", stage_state = \"status\", attempt_count = \"tries\", next_attempt_at = \"run_after\",\n  \
           lease_until = \"locked_until\", payload = \"input\", updated_at = \"changed_at\", deferral_count = \"\", epoch = \"\", lease_owner = \"\",\n  \
           closed_at = \"\", definition = \"\", request_hash = \"\", last_error = \"\" }}\n\
         states = {{ PENDING = [\"NEW\", \"QUEUED\"], RUNNING = \"IN_PROGRESS\", RETRY = \"AGAIN\", UNKNOWN = \"UNCLEAR\", NON_RESUMABLE = \"FAILED\", DONE = [\"OK\", \"BY_HAND\", \"BYHAND\"],\n  \
           CANCELLED = \"STOPPED\", WAITING = \"ON_HOLD\" }}\n{}",
        stages.concat()
    )
}

#[test]
fn a_table_of_a_teams_own_is_worked_on_in_its_own_words_and_what_it_lacks_is_said() {
    const ROWS: i64 = 20;
    let scene = Scene::start();
    scene.db.run(JOBS);
    let endpoint = Endpoint::alone(|request, before| match (request.path.as_str(), before) {
        ("/stages/pricing" | "/stages/binding", 0) => Play::Lose,
        _ => Play::Answer,
    });
    let address = endpoint.address();
    let retry = "backoff = { first = \"10ms\" }\n";
    let stages = [
        stage("PRICING", &address, Some("APPROVAL"), retry),
        stage("APPROVAL", &address, None, ""),
        stage("BINDING", &address, None, "attempts = 1"),
    ];
    let mut rider = scene.rider("rider", configuration(&stages));
    rider.setup();
    scene.db.run("INSERT INTO jobs (tenant, id, step, status) VALUES (1, gen_random_uuid(), 'PRICING', 'ON_HOLD'), (1, gen_random_uuid(), 'PRICING', 'LEGACY')");

    let check = rider.end_of(&["check"]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    for sentence in [
        "1 open row is in the state \"LEGACY\", which no state has for its word",
        "cannot hold \"BYHAND\" (DONE) as it is.",
        "no column for lease_owner. The rows of a process that died, and claims whose reply was lost, wait until their lease ends.",
        "no column for deferral_count.",
        "no column for epoch.",
        "no column for closed_at.",
        "no column for definition.",
        "no column for request_hash.",
        "no column for last_error.",
        "ALTER TABLE \"public\".\"jobs\" ADD COLUMN \"lease_owner\" text;",
    ] {
        assert!(said.contains(sentence), "check does not say `{sentence}`: {said}");
    }

    rider.start_ready();
    scene.db.run(&format!(
        "INSERT INTO jobs (tenant, id, step, status, input) SELECT n, gen_random_uuid(), 'PRICING', CASE WHEN n % 2 = 0 THEN 'QUEUED' ELSE 'NEW' END::job_status, \
           jsonb_build_object('n', n) FROM generate_series(1, {ROWS}) AS n"
    ));
    wait_until("all are done", || scene.db.number("SELECT count(*) FROM jobs WHERE status = 'OK'") == ROWS);
    assert_eq!(
        scene
            .db
            .text("SELECT string_agg(DISTINCT concat_ws(' ', step, tries, fence), ', ') FROM jobs WHERE status = 'OK'"),
        "APPROVAL 1 3"
    );
    let (pricing, approval) = (endpoint.count("/stages/pricing"), endpoint.count("/stages/approval"));
    assert_eq!((pricing, approval), (40, 20), "each was asked twice for its price, and once for the rest");

    // What others write is read in their words, too, and what a person orders is written in them.
    scene.db.run("UPDATE jobs SET status = 'QUEUED', step = 'BINDING', fence = fence + 1 WHERE status = 'ON_HOLD'");
    wait_until("nobody knows", || scene.db.number("SELECT count(*) FROM jobs WHERE status = 'UNCLEAR'") == 1);
    let unknown = rider.end_of(&["work", "ls", "--state", "UNKNOWN"]);
    let unknown = String::from_utf8_lossy(&unknown.stdout).into_owned();
    assert!(unknown.contains("BINDING UNKNOWN"), "{unknown}");
    let resolved =
        rider.end_of(&["work", "resolve", "--state", "UNKNOWN", "--outcome", "ask-again", "--why", "it is idempotent"]);
    assert!(resolved.status.success(), "{}", String::from_utf8_lossy(&resolved.stderr));
    let done = "SELECT count(*) FROM jobs WHERE status = 'OK' AND step = 'BINDING'";
    wait_until("it is done", || scene.db.number(done) == 1);
    assert_eq!(
        scene.db.number("SELECT count(*) FROM jobs WHERE status = 'LEGACY' AND fence = 0"),
        1,
        "it was left alone"
    );
    rider.still_runs();
}
