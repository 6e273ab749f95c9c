//! What people order by hand, with the real binary beside a process that runs.

use crate::live::{configuration, query};
use crate::{Ended, Running, end_of, free_port};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpListener;
use xtask::postgres::{Cluster, find};

/// A database that is set up, and nobody who runs.
struct Scene {
    cluster: Cluster,
    dir: tempfile::TempDir,
    receiver: TcpListener,
}

impl Scene {
    fn new() -> Scene {
        let cluster = Cluster::builder(&find(None).unwrap()).start().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = receiver.local_addr().unwrap().port();
        let scene = Scene { cluster, dir, receiver };
        configuration(scene.dir.path(), &scene.cluster.url(), port, free_port());
        let setup = end_of(&["setup", "-c", &scene.file()]);
        assert_eq!(setup.code, Some(0), "{}", setup.stderr);
        scene
    }

    fn file(&self) -> String {
        self.dir.path().join("postrider.toml").to_str().unwrap().to_owned()
    }

    fn work(&self, arguments: &[&str]) -> Ended {
        let file = self.file();
        end_of(&[&["work"], &arguments[..1], &["-c", file.as_str()], &arguments[1..]].concat())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let ended = self.work(&[arguments, &["--json"]].concat());
        assert!(!ended.stdout.is_empty(), "{}", ended.stderr);
        serde_json::from_str(&ended.stdout).unwrap()
    }

    fn text(&self, statement: &str) -> String {
        query(&self.cluster.url(), &[statement]).unwrap_or_default()
    }
}

#[test]
fn a_row_is_cancelled_while_its_request_is_under_way_and_the_answer_changes_nothing() {
    let scene = Scene::new();
    let mut run = Running::start(&scene.dir.path().join("postrider.toml"));
    scene.text(
        "INSERT INTO public.pending_work (group_id, quote_id, stage, payload) VALUES ('g', 'q', 'PRICING', '{}')",
    );
    let (mut request, _) = scene.receiver.accept().unwrap();
    let mut head = [0; 4096];
    assert!(request.read(&mut head).unwrap() > 0, "a request is under way");
    let cancelled = scene.work(&["cancel", "g", "q", "--why", "no longer wanted", "--by", "ada"]);
    assert_eq!((cancelled.code, cancelled.stdout.as_str()), (Some(0), "cancel: 1 row done\n"), "{}", cancelled.stderr);
    let row = "SELECT concat_ws(' ', stage_state, fence, (closed_at IS NOT NULL)::text) FROM public.pending_work";
    assert_eq!(scene.text(row), "CANCELLED 2 true");
    request.write_all(b"HTTP/1.1 200 OK\r\nPostrider-Outcome: done\r\nContent-Length: 0\r\n\r\n").unwrap();
    run.wait_for_log("a checkpoint changed nothing");
    assert_eq!(scene.text(row), "CANCELLED 2 true");
    let shown = scene.json(&["show", "g", "q"]);
    let timeline = shown["timeline"].as_array().unwrap();
    assert_eq!(timeline.len(), 2, "{shown:#}");
    assert_eq!(timeline[0]["attempt"]["outcome"], "interrupted");
    assert_eq!((&timeline[1]["order"]["verb"], &timeline[1]["order"]["who"]), (&"cancel".into(), &"ada".into()));
    let again = scene.work(&["cancel", "g", "q", "--why", "again"]);
    assert_eq!(again.code, Some(8));
    assert!(again.stderr.contains("PR020: the work row is closed"), "{}", again.stderr);
    let anew = scene.work(&["reexecute", "g", "q", "--fence", "2", "--yes-new-key", "--why", "wanted after all"]);
    assert_eq!(anew.code, Some(8));
    for word in ["PR020: the work row is closed", "insert a new row"] {
        assert!(anew.stderr.contains(word), "{word}: {}", anew.stderr);
    }
}

#[test]
fn many_rows_are_resumed_by_what_they_have_in_common_after_a_dry_run() {
    let scene = Scene::new();
    scene.text(
        "INSERT INTO public.pending_work (group_id, quote_id, stage, stage_state, attempt_count, last_error, payload)
           SELECT 'g', 'q' || n, 'PRICING', CASE WHEN n <= 3 THEN 'UNKNOWN' ELSE 'NON_RESUMABLE' END, 5, 'ATTEMPTS_USED_UP', '{}'
           FROM generate_series(1, 1200) AS n",
    );
    let parked = "SELECT count(*)::text FROM public.pending_work WHERE stage_state = 'NON_RESUMABLE'";
    let many = ["resume", "--stage", "PRICING", "--reason-like", "ATTEMPTS%", "--why", "the service is back"];
    let tried = scene.work(&[&many[..], &["--dry-run"]].concat());
    assert_eq!(tried.code, Some(8), "three rows are not for it: {}", tried.stderr);
    assert!(
        tried.stdout.starts_with("resume: 1197 rows would be done\nnot resume: 3 rows, nobody knows"),
        "{}",
        tried.stdout
    );
    assert_eq!(scene.text(parked), "1197");
    let parked_only = [&many[..], &["--state", "non_resumable"]].concat();
    let resumed = scene.json(&parked_only);
    assert_eq!((resumed["done"].as_array().unwrap().len(), &resumed["refused"]), (1197, &serde_json::json!([])));
    assert_eq!(scene.text(parked), "0");
    assert_eq!(scene.text("SELECT count(*)::text FROM postrider.operator_actions WHERE verb = 'resume'"), "1197");
    let rows = scene.json(&["ls", "--state", "PENDING", "-n", "2", "--after", "g", "q10"]);
    assert_eq!(rows["rows"][0]["key"], serde_json::json!(["g", "q100"]));
    assert!(rows["rows"][0]["reason"].is_null(), "it told of what is over: {rows:#}");
    assert_eq!((&rows["rows"][0]["attempts"], &rows["rows"][0]["fence"]), (&0.into(), &1.into()));
    // More than a page of rows that somebody spoilt, and one behind them.
    scene.text("ALTER TABLE public.pending_work ALTER fence DROP NOT NULL");
    scene.text(
        "INSERT INTO public.pending_work (group_id, quote_id, stage, stage_state, fence, last_error, payload)
           SELECT CASE WHEN n <= 600 THEN 'h' ELSE 'i' END, 'q' || n, 'PRICING', 'NON_RESUMABLE', CASE WHEN n > 600 THEN 0 END, 'SPOILT', '{}'
           FROM generate_series(1, 601) AS n",
    );
    let spoilt = scene.work(&["resume", "--reason-like", "SPOILT", "--why", "mended"]);
    for told in [
        ": 1 row done\n",
        "not resume: 600 rows hold what cannot be read (in \"fence\"), among them h q1; h q10; h q100; ",
        ". Correct the values by hand.\n",
    ] {
        assert!(spoilt.stdout.contains(told), "{told}: {}", spoilt.stdout);
    }
    assert_eq!(spoilt.code, Some(8));
    let listed = scene.json(&["ls", "--reason-like", "SPOILT"]);
    assert_eq!(
        (&listed["unreadable"], &listed["unreadable_rows"][0]["key"]),
        (&600.into(), &serde_json::json!(["h", "q1"]))
    );
    let nothing = scene.work(&["resume", "--why", "all of it"]);
    assert_eq!(nothing.code, Some(2));
    assert!(nothing.stderr.contains("neither a key nor a filter"), "{}", nothing.stderr);
    assert_eq!(scene.work(&["resume", "g", "q1"]).code, Some(2), "nothing is ordered without a reason");
    let orders: [&[&str]; 7] = [
        &["resume", "g", "q1"],
        &["retry", "g", "q1"],
        &["skip", "g", "q1", "--to", "end"],
        &["cancel", "g", "q1"],
        &["reexecute", "g", "q1", "--fence", "1", "--yes-new-key"],
        &["resolve", "g", "q1", "--outcome", "failed"],
        &["migrate", "g", "q1", "--to", "default@1"],
    ];
    for order in orders {
        for blank in [&["--why", ""][..], &["--why", " \t"], &["--why", "x", "--by", " "], &["--why", " ", "--dry-run"]]
        {
            let refused = scene.work(&[order, blank].concat());
            assert!(refused.code == Some(2) && refused.stderr.contains("it is blank"), "{order:?}: {}", refused.stderr);
        }
    }
}

#[test]
fn a_row_whose_word_is_no_states_is_named_by_whoever_looks_for_it() {
    let scene = Scene::new();
    scene.text("ALTER TABLE public.pending_work DROP CONSTRAINT pending_work_stage_state_check");
    scene.text("INSERT INTO public.pending_work (group_id, quote_id, stage, stage_state) VALUES ('i', 'q1', 'PRICING', 'ON_ICE')");
    for verb in [&["show", "i", "q1"][..], &["cancel", "i", "q1", "--why", "x"], &["ls"]] {
        let said = scene.work(verb).stderr;
        for word in ["i q1, with the word \"ON_ICE\".", "work.states", "UPDATE \"public\".\"pending_work\" AS t SET "] {
            assert!(said.contains(word), "{verb:?}: {said}");
        }
    }
    let told = serde_json::json!([{ "key": ["i", "q1"], "column": "\"stage_state\"", "word": "ON_ICE" }]);
    assert_eq!(scene.json(&["ls"])["unreadable_rows"], told);
}

#[test]
fn e28_a_row_whose_key_has_expired_is_not_asked_again_and_the_choices_are_named() {
    let scene = Scene::new();
    let file = scene.file();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("class = \"keyed\"", "class = \"keyed\", key_retention = \"1d\"")).unwrap();
    scene.text(
        "INSERT INTO public.pending_work (group_id, quote_id, stage, stage_state, attempt_count, request_hash, payload, updated_at)
           VALUES ('g', 'q', 'PRICING', 'NON_RESUMABLE', 5, '\\x00', '{}', now() - interval '3 weeks')",
    );
    let refused = scene.work(&["resume", "g", "q", "--why", "three weeks later"]);
    assert_eq!(refused.code, Some(8));
    for word in ["PR020: the idempotency key has expired", "KEY_EXPIRED", "resolve", "skip", "reexecute"] {
        assert!(refused.stderr.contains(word), "{word}: {}", refused.stderr);
    }
    let reexecute = |more: &[&str]| scene.work(&[&["reexecute", "g", "q", "--why", "anew"], more].concat());
    assert_eq!(reexecute(&["--fence", "0"]).code, Some(2), "it must be typed");
    assert_eq!(reexecute(&["--yes-new-key"]).code, Some(2), "the row must have been looked at");
    let late = reexecute(&["--yes-new-key", "--fence", "7"]);
    assert_eq!(late.code, Some(8), "{}", late.stderr);
    assert!(late.stderr.contains("the row has moved on since it was looked at"), "{}", late.stderr);
    let anew = reexecute(&["--yes-new-key", "--fence", "0"]);
    assert_eq!(anew.code, Some(0), "{}", anew.stderr);
    assert_eq!(
        scene.text(
            "SELECT concat_ws(' ', stage_state, epoch, attempt_count, request_hash IS NULL) FROM public.pending_work"
        ),
        "PENDING 1 0 t"
    );
}
