//! The page on moving from polling, walked through: each of its statements and commands, in its order, beside a poller that it describes.

use super::fixture::{Database, Endpoint, Play, Rider, Scene, wait_until};
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
        let words = words_of(line);
        if words != ["run"] {
            let end = rider.end_of(&words);
            assert!(
                end.status.success(),
                "{line}: {}{}",
                String::from_utf8_lossy(&end.stdout),
                String::from_utf8_lossy(&end.stderr)
            );
        }
    }
}

/// A command without the name of the file, which is the rider's own.
fn words_of(line: &str) -> Vec<&str> {
    let words = line.strip_prefix("postrider ").expect("a command of ours").split(' ');
    words.filter(|word| !["-c", "postrider.toml"].contains(word)).collect()
}

/// Runs the first `check`, which finds that nothing is made yet, and nothing else.
fn check_before_setup(rider: &Rider, line: &str) {
    let end = rider.end_of(&words_of(line));
    let said = String::from_utf8_lossy(&end.stdout).into_owned();
    let wrong: Vec<&str> = said.lines().filter(|line| line.starts_with("wrong")).collect();
    assert_eq!(wrong.len(), 2, "{said}");
    assert!(said.contains("There is no publication") && said.contains("There is no replication slot"), "{said}");
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
    let [create, fence, take, write, guard, columns, changed, begun, publication, back, last] = &sql[..] else {
        panic!("the page has {} blocks of SQL", sql.len());
    };
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|request, _| match request.member("payload").as_str() {
        "fail" => Play::Say(500, ""),
        "hold" => Play::Hold,
        _ => Play::Answer,
    });
    let address = endpoint.address();
    let submit =
        |count: u32| scene.db.run(&format!("INSERT INTO jobs (input) SELECT '{{}}' FROM generate_series(1, {count})"));
    let done = || scene.db.number("SELECT count(*) FROM jobs WHERE status = 'OK'");

    guard_the_writers(&scene.db, [create, fence, take, write, guard]);

    // 2. The poller is observed.
    let mut rider = scene.rider("rider", format!("{}[periods]\nheartbeat = \"200ms\"\n", work(&toml[0], &address)));
    let (check, setup) = sh[0].split_once('\n').expect("two commands");
    check_before_setup(&rider, check);
    obey(&rider, setup);
    assert!(scene.db.is("SELECT count(*) = 1 FROM pg_trigger WHERE tgrelid = 'jobs'::regclass AND NOT tgisinternal"));
    scene.db.run("ALTER ROLE postrider PASSWORD 'secret'");
    rider.plan.url = scene.url_as("postrider", "secret");
    obey(&rider, &sh[1]);
    rider.start_ready();
    submit(5);
    wait_until("they wait", || observed(&rider)["waiting"] == 5);
    assert_eq!(poll(&scene.db, take, write), 5);
    wait_until("they are seen to be started", || observed(&rider)["started"]["count"] == 5);
    obey(&rider, &sh[2]);
    assert_eq!((endpoint.requests().len(), done()), (0, 6));

    // 3. One stage is Postrider's, and the poller has the other.
    scene.db.run(columns);
    let (take_others, write) = changed.split_once(";\n").expect("two statements");
    assert_eq!(scene.db.text(begun), "0");
    rider.plan.rest = format!("{}[periods]\nheartbeat = \"200ms\"\n", work(&toml[1], &address));
    rider.plan.url = scene.url();
    let wait = wait_of(&rider, &sh[3]);
    rider.plan.url = scene.url_as("postrider", "secret");
    obey(&rider, &sh[4]);
    wait_until("the slot is behind the new publication", || {
        // It moves with what the server writes down now and then about running transactions, as with each checkpoint.
        scene.db.run("CHECKPOINT");
        scene.db.is(&wait)
    });
    rider.signal("TERM");
    assert_eq!(rider.wait().0, Some(0));
    rider.start_ready();
    scene.db.run(publication);
    leave_the_payload_out(&scene.db, &rider);
    submit(6);
    wait_until("both have done their stage", || {
        poll(&scene.db, take_others, write);
        done() == 12
    });
    assert_eq!(scene.db.number("SELECT count(*) FROM jobs WHERE closed_at IS NULL"), 0);
    assert_eq!((endpoint.count("/stages/pricing"), endpoint.count("/stages/approval")), (6, 0));
    assert_eq!(scene.db.number("SELECT count(*) FROM jobs WHERE step = 'APPROVAL'"), 6);

    let forth = rider.plan.rest.replace("by_others = true\n", "");
    go_back(&scene.db, &mut rider, &endpoint, [take, write, back]);

    // 4. All stages are.
    rider.signal("TERM");
    assert_eq!(rider.wait().0, Some(0));
    rider.plan.rest = forth;
    let before = (endpoint.count("/stages/pricing"), endpoint.count("/stages/approval"));
    rider.start_ready();
    scene.db.run(last);
    submit(4);
    wait_until("all is done", || done() == 18);
    let after = (endpoint.count("/stages/pricing"), endpoint.count("/stages/approval"));
    assert_eq!(after, (before.0 + 4, before.1 + 4));
    assert_eq!(rider.metric("postrider_sweep_hits_total"), 0);
    rider.still_runs();
}

/// Runs the second `setup`, and returns the statement that it has one wait for.
fn wait_of(rider: &Rider, line: &str) -> String {
    let end = rider.end_of(&words_of(line.trim()));
    let said = String::from_utf8_lossy(&end.stdout).into_owned();
    assert!(end.status.success(), "{said}{}", String::from_utf8_lossy(&end.stderr));
    let wait = said.lines().find(|line| line.starts_with("wait ")).unwrap_or_else(|| panic!("{said}"));
    wait[wait.find("SELECT ").unwrap()..].trim_end_matches(';').to_owned()
}

/// Types what `check` says of the second publication, which has the columns of the first; 14 has no lists of them.
fn leave_the_payload_out(db: &Database, rider: &Rider) {
    let check = || String::from_utf8_lossy(&rider.end_of(&["check"]).stdout).into_owned();
    let said = check();
    let Some(at) = said.find("sends more of") else {
        assert!(db.is("SELECT current_setting('server_version_num')::int < 150000"), "{said}");
        return;
    };
    let typed = said[at..].lines().nth(1).unwrap().trim();
    assert!(typed.starts_with("BEGIN; "), "{said}");
    db.run(typed);
    assert!(!check().contains("sends more of"), "{}", check());
}

/// 1. The writers are guarded: one that comes too late writes nothing.
fn guard_the_writers(db: &Database, [create, fence, take, write, guard]: [&str; 5]) {
    db.run(create);
    db.run(fence);
    db.run("INSERT INTO jobs (input) VALUES ('{}')");
    assert_eq!(db.rows(take).len(), 1);
    db.run(guard);
    db.run("UPDATE jobs SET status = 'NEW' WHERE id = 1");
    db.run(write);
    assert_eq!(db.text("SELECT concat_ws(' ', status, fence) FROM jobs"), "NEW 2", "the late one wrote nothing");
    assert_eq!(poll(db, take, write), 1);
    assert_eq!(db.number("SELECT count(*) FROM jobs WHERE status = 'OK'"), 1);
}

/// Leaves the first stage to the poller again: what Postrider has begun of it goes to the poller, too.
fn go_back(db: &Database, rider: &mut Rider, endpoint: &Endpoint, [take, write, back]: [&str; 3]) {
    let (done, stage) = (db.number("SELECT count(*) FROM jobs WHERE status = 'OK'"), "class = \"keyed\"\n");
    rider.signal("TERM");
    assert_eq!(rider.wait().0, Some(0));
    let before = rider.plan.rest.clone();
    rider.plan.rest = before.replacen(stage, &format!("{stage}timeout = \"500ms\"\n"), 1);
    rider.start_ready();
    db.run("INSERT INTO jobs (input) VALUES ('\"fail\"')");
    wait_until("it waits for a further attempt", || db.is("SELECT count(*) = 1 FROM jobs WHERE status = 'RETRY'"));
    db.run("INSERT INTO jobs (input) VALUES ('\"hold\"')");
    wait_until("a request is under way", || endpoint.held() > 0);
    rider.kill9();
    rider.plan.rest = before.replacen(stage, &format!("{stage}by_others = true\n"), 1);
    let called = endpoint.requests().len();
    rider.start_ready();
    assert_eq!(poll(db, take, write), 0, "nobody takes them");
    wait_until("the leases have run out", || {
        db.is("SELECT count(*) = 0 FROM jobs WHERE status = 'BUSY' AND lease_until >= now()")
    });
    db.run(back);
    wait_until("the poller has done both", || {
        poll(db, take, write);
        db.number("SELECT count(*) FROM jobs WHERE status = 'OK'") == done + 2
    });
    assert_eq!(endpoint.requests().len(), called);
}
