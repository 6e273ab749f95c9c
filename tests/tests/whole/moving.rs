//! The page on moving from polling, walked through: each of its statements and commands, in its order, beside a poller that it describes.

use super::fixture::{Database, Endpoint, Play, Rider, Scene, lsn, wait_until};
use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/moving-from-polling.md");

/// The blocks of one language, as they stand on the page.
fn blocks(language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    PAGE.split(fence.as_str()).skip(1).filter_map(|rest| rest.split("```").next()).map(str::to_owned).collect()
}

/// The `[work]` of a configuration on the page, for this endpoint.
fn work(configuration: &str, address: &str) -> String {
    let start = configuration.find("[work]").expect("it has a work table");
    configuration[start..].replace("quoting-core:8080", address)
}

/// Runs the commands of a block to their ends, but for `run`.
fn obey(rider: &Rider, block: &str) {
    for line in block.lines() {
        let words: Vec<&str> = line.strip_prefix("postrider ").expect("a command of ours").split(' ').collect();
        let words = &words[..words.iter().position(|word| *word == "-c").expect("it names the file")];
        if words != ["run"] {
            let end = rider.end_of(words);
            assert!(
                end.status.success(),
                "{line}: {}{}",
                String::from_utf8_lossy(&end.stdout),
                String::from_utf8_lossy(&end.stderr)
            );
        }
    }
}

/// The poller, with the statements of the page: what takes rows, and what writes the outcome of the row 1 under the fence 1.
fn poll(db: &Database, take: &str, write: &str) -> usize {
    let rows = db.rows(take);
    for row in &rows {
        let (id, fence) = (&row[0], &row[3]);
        db.run(&write.replace("id = 1 ", &format!("id = {id} ")).replace("fence = 1 ", &format!("fence = {fence} ")));
    }
    rows.len()
}

fn observed(rider: &Rider) -> Value {
    let status = rider.end_of(&["status", "--json"]);
    let report: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
    report["process"]["observed"]["stages"]["PRICING"].clone()
}

#[test]
fn the_page_on_moving_is_walked_through() {
    let (sql, toml, sh) = (blocks("sql"), blocks("toml"), blocks("sh"));
    let [create, fence, take, write, guard, columns, changed, begun, publication, last] = &sql[..] else {
        panic!("the page has {} blocks of SQL", sql.len());
    };
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let address = endpoint.address();
    let submit =
        |count: u32| scene.db.run(&format!("INSERT INTO jobs (input) SELECT '{{}}' FROM generate_series(1, {count})"));
    let done = || scene.db.number("SELECT count(*) FROM jobs WHERE status = 'OK'");

    // 1. The writers are guarded: one that comes too late writes nothing.
    scene.db.run(create);
    scene.db.run(fence);
    submit(1);
    assert_eq!(scene.db.rows(take).len(), 1);
    scene.db.run(guard);
    scene.db.run("UPDATE jobs SET status = 'NEW' WHERE id = 1");
    scene.db.run(write);
    assert_eq!(scene.db.text("SELECT concat_ws(' ', status, fence) FROM jobs"), "NEW 2", "the late one wrote nothing");
    assert_eq!(poll(&scene.db, take, write), 1);
    assert_eq!(done(), 1);

    // 2. The poller is observed.
    let mut rider = scene.rider("rider", format!("{}[periods]\nheartbeat = \"200ms\"\n", work(&toml[0], &address)));
    obey(&rider, &sh[0]);
    assert!(scene.db.is("SELECT count(*) = 1 FROM pg_trigger WHERE tgrelid = 'jobs'::regclass AND NOT tgisinternal"));
    rider.start_ready();
    submit(5);
    wait_until("they wait", || observed(&rider)["waiting"] == 5);
    assert_eq!(poll(&scene.db, take, write), 5);
    wait_until("they are seen to be started", || observed(&rider)["started"]["count"] == 5);
    obey(&rider, &sh[1]);
    assert_eq!((endpoint.requests().len(), done()), (0, 6));

    // 3. One stage is Postrider's, and the poller has the other.
    scene.db.run(columns);
    let (take, write) = changed.split_once(";\n").expect("two statements");
    assert_eq!(scene.db.text(begun), "0");
    rider.plan.rest = format!("{}[periods]\nheartbeat = \"200ms\"\n", work(&toml[1], &address));
    obey(&rider, &sh[2]);
    let made = lsn(&scene.db.text("SELECT pg_current_wal_lsn()"));
    wait_until("the slot is confirmed behind the new publication", || {
        lsn(&scene.db.text("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'rider_rider'"))
            > made
    });
    rider.signal("TERM");
    assert_eq!(rider.wait().0, Some(0));
    rider.start_ready();
    scene.db.run(publication);
    submit(6);
    wait_until("both have done their stage", || {
        poll(&scene.db, take, write);
        done() == 12
    });
    assert_eq!(scene.db.number("SELECT count(*) FROM jobs WHERE closed_at IS NULL"), 0);
    assert_eq!((endpoint.count("/stages/pricing"), endpoint.count("/stages/approval")), (6, 0));
    assert_eq!(scene.db.number("SELECT count(*) FROM jobs WHERE step = 'APPROVAL'"), 6);

    // 4. All stages are.
    rider.signal("TERM");
    assert_eq!(rider.wait().0, Some(0));
    rider.plan.rest = rider.plan.rest.replace("by_others = true\n", "");
    rider.start_ready();
    scene.db.run(last);
    submit(4);
    wait_until("all is done", || done() == 16);
    assert_eq!((endpoint.count("/stages/pricing"), endpoint.count("/stages/approval")), (10, 4));
    assert_eq!(rider.metric("postrider_sweep_hits_total"), 0);
    rider.still_runs();
}
