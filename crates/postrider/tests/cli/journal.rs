//! What was read: the verbs that look at a journal, on one that was written from a real server.

use crate::live::{configuration, query, receiver, wait_until};
use crate::{Ended, Running, end_of, free_port, get, postrider};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;
use xtask::postgres::{Cluster, find};

/// A journal with what `STATEMENTS` did, and the process that wrote it and still runs.
struct Written {
    dir: TempDir,
    cluster: Cluster,
    file: PathBuf,
    run: Running,
}

/// Each is a transaction of its own.
const STATEMENTS: [&str; 6] = [
    "INSERT INTO public.sample VALUES (1, 9007199254740993, 'NaN', 'null', NULL, repeat('x', 10) || E'\\n\"', '{1,NULL}')",
    "INSERT INTO public.sample SELECT 2, NULL, 1.10, '{\"a\": 1}', md5(i::text), 'y', '{}' FROM generate_series(1, 1) i",
    "UPDATE public.sample SET id = 3, text = 'z' WHERE id = 2",
    "DELETE FROM public.sample WHERE id = 3",
    "INSERT INTO public.outbox_event (aggregate_key, event_type, payload) VALUES ('q-1', 'QuotePriced', '{\"n\": 1.00}')",
    "SELECT pg_logical_emit_message(true, 'note', 'hello')::text",
];

impl Written {
    fn new() -> Written {
        let cluster = Cluster::builder(&find(None).unwrap()).start().unwrap();
        let url = cluster.url();
        let dir = tempfile::tempdir().unwrap();
        let console_port = free_port();
        let file = configuration(dir.path(), &url, receiver(), console_port);
        // With our own transitions in the log there are updates of the work table to look at.
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("table = \"pending_work\"", "table = \"pending_work\"\nquiet = false")).unwrap();
        let setup = end_of(&["setup", "-c", file.to_str().unwrap()]);
        assert_eq!(setup.code, Some(0), "{}", setup.stderr);
        query(
            &url,
            &[
                "CREATE TABLE public.sample
                     (id int PRIMARY KEY, big bigint, num numeric, doc jsonb, note text, text text, list int[])",
                "ALTER PUBLICATION postrider ADD TABLE public.sample",
            ],
        );
        let run = Running::start(&file);
        wait_until("the process is ready", || {
            TcpStream::connect(("127.0.0.1", console_port)).is_ok()
                && get(console_port, "/readyz").starts_with("HTTP/1.1 200 ")
        });
        query(&url, &STATEMENTS);
        query(
            &url,
            &[
                "INSERT INTO public.pending_work (group_id, quote_id, stage, payload) VALUES ('g', 'q-7', 'PRICING', '{}')",
            ],
        );
        wait_until("the row is done", || {
            query(&url, &["SELECT stage_state FROM public.pending_work"]).as_deref() == Some("DONE")
        });
        let written = Written { dir, cluster, file, run };
        wait_until("the journal has it", || {
            written.lines(&["--kind", "work"]).iter().any(|line| line["new"]["columns"]["stage_state"] == "DONE")
        });
        written
    }

    fn file(&self) -> &str {
        self.file.to_str().unwrap()
    }

    fn journal(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    /// The lines of `tail` from the beginning to the end.
    fn lines(&self, more: &[&str]) -> Vec<Value> {
        let ended = end_of(&[&["tail", "-c", self.file(), "--from", "beginning", "--no-follow"], more].concat());
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Stops the process in good order; what remains is the journal.
    fn stop(&mut self) {
        self.run.signal("TERM");
        assert_eq!(self.run.wait(), Some(0));
    }

    /// A copy of the journal, as somebody takes one away to look at it.
    fn copy(&self) -> TempDir {
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(self.journal()).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        copy
    }
}

fn segment_of(dir: &Path) -> PathBuf {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.to_str().unwrap().ends_with(".segment")).min().unwrap()
}

fn ops(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["op"].as_str().unwrap()).collect()
}

fn check_refused(ended: &Ended, code: i32, sentences: &[&str]) {
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(code), ""), "{}", ended.stderr);
    for sentence in sentences {
        assert!(ended.stderr.contains(sentence), "{sentence}: {}", ended.stderr);
    }
}

#[test]
fn tail_prints_rows_without_loss_and_events_as_sinks_get_them() {
    let written = Written::new();
    let rows = written.lines(&["--table", "sample"]);
    assert_eq!(ops(&rows), ["insert", "insert", "update", "delete"]);
    let text = end_of(&[
        "tail",
        "-c",
        written.file(),
        "--from",
        "beginning",
        "--no-follow",
        "--table",
        "public.sample",
        "--limit",
        "1",
    ])
    .stdout;
    let place = text.find(",\"op\"").unwrap();
    assert_eq!(
        &text[place..],
        concat!(
            r#","op":"insert","table":"public.sample","new":{"columns":{"id":1,"big":9007199254740993,"num":"NaN","doc":null,"#,
            r#""note":null,"text":"xxxxxxxxxx\n\"","list":[1,null]},"json_null":["doc"]}}"#,
            "\n"
        )
    );
    assert_eq!(rows[2]["key"], json!({ "columns": { "id": 2 } }));
    assert_eq!(rows[2]["new"]["columns"]["id"], 3);
    assert_eq!(rows[3]["key"], json!({ "columns": { "id": 3 } }));
    assert!(rows[3]["xid"].as_u64().unwrap() > rows[0]["xid"].as_u64().unwrap());

    let events = written.lines(&["--kind", "outbox", "--key", "q-1"]);
    assert_eq!(events.len(), 1);
    assert_eq!((&events[0]["type"], &events[0]["key"]), (&json!("QuotePriced"), &json!("q-1")));
    assert_eq!(written.lines(&["--kind", "outbox", "--key", "q-2"]), [Value::Null; 0]);
    let states: Vec<Value> = written
        .lines(&["--stage", "PRICING", "--key", "q-7"])
        .into_iter()
        .map(|line| line["new"]["columns"]["stage_state"].clone())
        .collect();
    assert_eq!(states, ["PENDING", "RUNNING", "DONE"]);
    assert_eq!(written.lines(&["--stage", "APPROVAL"]), [Value::Null; 0]);
    let messages = written.lines(&[]);
    assert!(messages.iter().any(|line| line["prefix"] == "note" && line["content"] == "hello"), "{messages:?}");

    // As tail(1) counts them: of what is wanted, the last.
    let last = end_of(&["tail", "-c", written.file(), "-n", "3", "--no-follow", "--table", "sample"]);
    let last: Vec<Value> = last.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(last, rows[1..]);

    // From the position of a change on, and up to it.
    let third = rows[2]["position"].as_str().unwrap();
    let from = end_of(&["tail", "-c", written.file(), "--from", third, "--to", third, "--no-follow"]);
    let only: Vec<Value> = from.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(only, [rows[2].clone()]);
    let at = rows[2]["time"].as_str().unwrap();
    let from = end_of(&["tail", "-c", written.file(), "--from", at, "--no-follow", "--table", "sample"]);
    assert_eq!(from.stdout.lines().count(), 2, "{}", from.stdout);
}

#[test]
fn tail_follows_the_running_process() {
    let written = Written::new();
    let mut live = postrider(&["tail", "-c", written.file(), "--table", "sample", "--limit", "2"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(live.stdout.take().unwrap());
    let url = written.cluster.url();
    let mut line = String::new();
    // The process may look for the end only after a first row is there, so there are rows until it shows one.
    let first = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            out.read_line(&mut line).unwrap();
            serde_json::from_str::<Value>(&line).unwrap()
        });
        let mut id = 100;
        wait_until("a line comes", || {
            id += 1;
            query(&url, &[&format!("INSERT INTO public.sample (id) VALUES ({id})")]);
            reading.is_finished()
        });
        reading.join().unwrap()
    });
    assert_eq!(first["op"], "insert");
    assert!(first["new"]["columns"]["id"].as_u64().unwrap() > 100);
    query(&url, &["INSERT INTO public.sample (id) VALUES (999)"]);
    assert_eq!(live.wait().unwrap().code(), Some(0));
}

#[test]
fn journal_ls_cat_and_verify_say_what_is_there_beside_the_writer_and_of_a_copy() {
    let mut written = Written::new();
    let listed = end_of(&["journal", "ls", "--json", "-c", written.file()]);
    let listing: Value = serde_json::from_str(&listed.stdout).unwrap();
    let segment = &listing["segments"][0];
    assert_eq!((listed.code, &segment["slot"], &segment["generation"]), (Some(0), &json!("postrider"), &json!(1)));
    assert_eq!(segment["last"], listing["last"]);
    wait_until("the positions are saved", || {
        let listed = end_of(&["journal", "ls", "-c", written.file()]).stdout;
        listed.contains("consumer events: saved at 1:") && listed.contains("consumer work: saved at 1:")
    });
    let verified = end_of(&["journal", "verify", "-c", written.file()]);
    assert_eq!(verified.code, Some(0), "{}", verified.stdout);
    assert!(verified.stdout.contains("1 segments, "), "{}", verified.stdout);

    written.stop();
    let copy = written.copy();
    let dir = copy.path().to_str().unwrap();
    let cat = end_of(&["journal", "cat", "--dir", dir, "--table", "sample"]);
    assert_eq!((cat.code, cat.stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = cat.stdout.lines().collect();
    assert!(lines[0].starts_with("transaction 1:") && lines[0].contains(" xid "), "{}", cat.stdout);
    assert_eq!(
        lines[5],
        "  0 update public.sample key {\"columns\":{\"id\":2}} new {\"columns\":{\"id\":3,\"big\":null,\"num\":1.10,\"doc\":{\"a\": 1},\"note\":\"c4ca4238a0b923820dcc509a6f75849b\",\"text\":\"z\",\"list\":[]}}"
    );
    let raw = end_of(&["journal", "cat", "--dir", dir, "--raw"]);
    assert!(raw.stdout.contains("  I insert ") && raw.stdout.contains("  R relation "), "{}", raw.stdout);
    let raw = end_of(&["journal", "cat", "--dir", dir, "--raw", "--json"]);
    let frames: Vec<Value> = raw.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let with_messages = frames.iter().find(|frame| frame["messages"][0]["tag"] == "R").unwrap();
    assert!(with_messages["messages"][0]["bytes"].as_u64().unwrap() > 20);
    let verified = end_of(&["journal", "verify", "--json", "--dir", dir]);
    let report: Value = serde_json::from_str(&verified.stdout).unwrap();
    assert_eq!((verified.code, &report["ok"], &report["faults"]), (Some(0), &json!(true), &json!([])));
}

#[test]
fn what_is_wrong_with_a_journal_or_with_what_was_typed_is_one_sentence_with_the_cure() {
    let mut written = Written::new();
    written.stop();
    let nowhere = written.dir.path().join("nowhere");
    let foreign = tempfile::tempdir().unwrap();
    for verb in [&["journal", "ls"][..], &["journal", "cat"], &["journal", "verify"], &["tail"]] {
        let ended = end_of(&[verb, &["--dir", nowhere.to_str().unwrap()]].concat());
        check_refused(&ended, 5, &["error PR016: cannot list the journal: No such file", "--dir DIR"]);
        let ended = end_of(&[verb, &["--dir", foreign.path().to_str().unwrap()]].concat());
        check_refused(&ended, 5, &["error PR014: the directory holds no journal", "--dir DIR"]);
    }
    let copy = written.copy();
    let dir = copy.path().to_str().unwrap();
    let ended = end_of(&["tail", "--dir", dir, "--from", "FFFF/0"]);
    check_refused(
        &ended,
        2,
        &["PR001: the position lies past the end of the journal", "journal ends at", "--from end"],
    );
    let ended = end_of(&["tail", "--dir", dir, "--from", "2999-01-01T00:00:00Z"]);
    check_refused(&ended, 2, &["PR001: no transaction in the journal is as young as this time", "--from end"]);
    let ended = end_of(&["tail", "--dir", dir, "--from", "2026-13-01T00:00:00Z"]);
    check_refused(&ended, 2, &["'2026-13-01T00:00:00Z' for '--from <PLACE>'", "a time with its zone"]);
    let ended = end_of(&["tail", "--dir", dir, "--kind", "work", "--no-follow"]);
    check_refused(&ended, 2, &["PR001: without a configuration", "-c FILE"]);

    let segment = segment_of(copy.path());
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let verified = end_of(&["journal", "verify", "--dir", dir]);
    assert_eq!(verified.code, Some(5), "{}", verified.stdout);
    let name = segment.file_name().unwrap().to_str().unwrap();
    assert!(verified.stdout.contains(&format!("damaged {name}, at byte ")), "{}", verified.stdout);
    assert!(verified.stdout.contains("Restore the file from a copy"), "{}", verified.stdout);
    let verified = end_of(&["journal", "verify", "--json", "--dir", dir]);
    let report: Value = serde_json::from_str(&verified.stdout).unwrap();
    let offset = report["faults"][0]["offset"].as_u64().unwrap();
    assert!(offset <= middle as u64, "{report}");
    assert_eq!(report["faults"][0]["kind"], "damaged");

    // A head that cannot be read: the listing goes on and says which.
    let mut bytes = fs::read(&segment).unwrap();
    bytes[30] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let listed = end_of(&["journal", "ls", "--dir", dir]);
    assert_eq!((listed.code, listed.stderr.as_str()), (Some(5), ""));
    assert!(listed.stdout.contains("damaged at byte 0: the header does not match its checksum"), "{}", listed.stdout);
    assert!(listed.stdout.contains("consumer events: saved at"), "{}", listed.stdout);
    let listed = end_of(&["journal", "ls", "--json", "--dir", dir]);
    let report: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!((listed.code, &report["segments"][0]["file"]), (Some(5), &json!(name)));
}

fn events_in(file: &Path) -> usize {
    fs::read_to_string(file).unwrap_or_default().lines().count()
}

#[test]
fn replay_sends_again_what_a_sink_had_and_passes_over_what_it_shall_not_get() {
    let mut written = Written::new();
    let events = written.dir.path().join("events.ndjson");
    wait_until("the event is written", || events_in(&events) == 1);
    let file = written.file().to_owned();
    let replay = |more: &[&str]| end_of(&[&["replay", "-c", &file], more].concat());

    // While it runs, it can be counted and not moved.
    check_refused(&replay(&["events", "--from", "beginning"]), 5, &["PR016: the process runs", "Stop it", "--dry-run"]);
    wait_until("the position is saved", || {
        let counted = replay(&["events", "--from", "beginning", "--dry-run", "--json"]);
        let plan: Value = serde_json::from_str(&counted.stdout).unwrap();
        (counted.code, &plan["direction"], &plan["events"], &plan["done"])
            == (Some(0), &json!("back"), &json!(1), &json!(false))
    });
    written.stop();

    // The file is the sink's own memory: it must go first.
    check_refused(
        &replay(&["events", "--from", "beginning"]),
        7,
        &["PR018: the sink keeps its position", "Move the file away"],
    );
    fs::rename(&events, written.dir.path().join("old.ndjson")).unwrap();
    let back = replay(&["events", "--from", "beginning"]);
    assert_eq!((back.code, back.stderr.as_str()), (Some(0), ""));
    assert!(back.stdout.contains("it is sent again 1 event, committed from "), "{}", back.stdout);
    let mut run = Running::start(&written.file);
    wait_until("it is written again", || events_in(&events) == 1);
    run.signal("TERM");
    assert_eq!(run.wait(), Some(0));
    let ids = |name: &str| {
        let text = fs::read_to_string(written.dir.path().join(name)).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["id"].clone()
    };
    assert_eq!(ids("events.ndjson"), ids("old.ndjson"), "the same event under the same id");

    // Back again, and then forward over the event.
    fs::remove_file(&events).unwrap();
    assert_eq!(replay(&["events", "--from", "beginning"]).code, Some(0));
    check_refused(
        &replay(&["events", "--from", "end"]),
        2,
        &["PR001: the sink has not come so far yet", "never be sent 1 event", "--skip"],
    );
    let forward = replay(&["events", "--from", "end", "--skip"]);
    assert!(forward.stdout.contains("It is never sent 1 event"), "{}", forward.stdout);
    let record = fs::read_to_string(written.journal().join("moves.jsonl")).unwrap();
    let moves: Vec<Value> = record.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let directions: Vec<&Value> = moves.iter().map(|line| &line["moved"]["direction"]).collect();
    assert_eq!(directions, ["back", "back", "forward"]);
    assert!(replay(&["events", "--from", "end"]).stdout.contains("nothing was changed"));

    check_refused(
        &replay(&["event", "--from", "end"]),
        2,
        &["PR001: there is no sink of this name", "did you mean `events`?"],
    );
    check_refused(
        &replay(&["work", "--from", "end"]),
        2,
        &["PR001: there is no sink of this name", "postrider work reexecute"],
    );
    check_refused(&replay(&["events", "--from", "FFFF/0"]), 2, &["PR001: the position lies past the end"]);
}
