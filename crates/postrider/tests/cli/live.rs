//! The real binary on a real server: set up, run, and what is said when something is not as it must be.

use crate::{Running, SILENT_PORT, end_of, free_port, get};
use postrider_postgres::{ConnectOptions, connect_client};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use xtask::postgres::{Cluster, find};

/// A receiver that answers every request with "done", as long as the test lives.
pub(crate) fn receiver() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || answer(stream.unwrap()));
        }
    });
    port
}

/// Answers request after request; an error is the client's going away.
fn answer(stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut body_bytes = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(length) = line.to_lowercase().strip_prefix("content-length:") {
                body_bytes = length.trim().parse().ok()?;
            }
            if line == "\r\n" {
                break;
            }
        }
        reader.read_exact(&mut vec![0; body_bytes]).ok()?;
        let reply = "HTTP/1.1 200 OK\r\nPostrider-Outcome: done\r\nContent-Length: 0\r\n\r\n";
        (&stream).write_all(reply.as_bytes()).ok()?;
    }
}

pub(crate) fn configuration(dir: &Path, url: &str, receiver_port: u16, console_port: u16) -> PathBuf {
    let path = dir.join("postrider.toml");
    let text = format!(
        r#"
source = {{ url = "{url}" }}
journal = {{ dir = "{journal}" }}
outbox = [{{ table = "outbox_event" }}]
server = {{ listen = "127.0.0.1:{console_port}" }}
[[sink]]
name = "events"
kind = "ndjson"
path = "{events}"
[work]
table = "pending_work"
stage = [{{ name = "PRICING", url = "http://127.0.0.1:{receiver_port}/", class = "keyed" }}]
"#,
        journal = dir.join("journal").display(),
        events = dir.join("events.ndjson").display(),
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// Runs statements on the server and returns the first column of the last one's first row.
pub(crate) fn query(url: &str, statements: &[&str]) -> Option<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = ConnectOptions::parse(url, &BTreeMap::new()).unwrap();
        let (client, _connection) = connect_client(&options).await.unwrap();
        let mut first = None;
        for statement in statements {
            let rows = client.query(*statement, &[]).await.unwrap();
            first = rows.first().and_then(|row| row.try_get::<_, String>(0).ok());
        }
        first
    })
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "it never came about that {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_commit_becomes_a_stage_call_and_an_event_and_the_end_is_orderly() {
    let cluster = Cluster::builder(&find(None).unwrap()).start().unwrap();
    let url = cluster.url();
    let dir = tempfile::tempdir().unwrap();
    let console_port = free_port();
    let file = configuration(dir.path(), &url, receiver(), console_port);
    let file_name = file.to_str().unwrap();

    let unprepared = end_of(&["check", "-c", file_name]);
    assert_eq!(unprepared.code, Some(4), "{}", unprepared.stdout);
    assert!(unprepared.stdout.contains("PR004"), "{}", unprepared.stdout);
    let setup = end_of(&["setup", "-c", file_name]);
    assert_eq!(setup.code, Some(0), "{}", setup.stderr);
    let again = end_of(&["setup", "--json", "-c", file_name]);
    let report: serde_json::Value = serde_json::from_str(&again.stdout).unwrap();
    let outcomes: Vec<&str> =
        report["steps"].as_array().unwrap().iter().map(|step| step["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, vec!["kept"; outcomes.len()], "what is there is kept");
    let check = end_of(&["check", "-c", file_name]);
    assert_eq!(check.code, Some(0), "{}", check.stdout);

    let mut run = Running::start(&file);
    wait_until("the process is ready", || {
        TcpStream::connect(("127.0.0.1", console_port)).is_ok()
            && get(console_port, "/readyz").starts_with("HTTP/1.1 200 ")
    });
    query(
        &url,
        &[
            "INSERT INTO public.pending_work (group_id, quote_id, stage, payload) VALUES ('g', 'q', 'PRICING', '{}')",
            "INSERT INTO public.outbox_event (aggregate_key, event_type, payload) VALUES ('g', 'QuoteSubmitted', '{}')",
        ],
    );
    let state = || query(&url, &["SELECT stage_state FROM public.pending_work"]);
    wait_until("the row is done", || state().as_deref() == Some("DONE"));
    let events = dir.path().join("events.ndjson");
    wait_until("the event is written", || std::fs::read_to_string(&events).is_ok_and(|text| text.ends_with('\n')));
    assert!(std::fs::read_to_string(&events).unwrap().contains("QuoteSubmitted"));
    let status = end_of(&["status", "-c", file_name]);
    assert_eq!(status.code, Some(0), "{}", status.stdout);

    // Another process on the same file of a sink is told which; that its slot is missing comes first.
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace(&console_port.to_string(), &free_port().to_string()).replace("/journal\"", "/another\"");
    let other = dir.path().join("other.toml");
    std::fs::write(&other, &text).unwrap();
    let second = end_of(&["run", "-c", other.to_str().unwrap()]);
    let told = format!("It is the sink \"events\". The file is {}.\n", events.display());
    assert!(second.stderr.contains(&told) && second.stderr.contains("End the other process"), "{}", second.stderr);
    assert_eq!(second.code, Some(2), "{}", second.stderr);
    std::fs::write(&other, text.replace("source = { ", "source = { slot = \"nowhere\", ")).unwrap();
    assert!(
        end_of(&["run", "-c", other.to_str().unwrap()]).stderr.contains("error PR004: "),
        "the sink's file came first"
    );

    run.signal("TERM");
    assert_eq!(run.wait(), Some(0));
    let status = end_of(&["status", "--json", "-c", file_name]);
    let report: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!((status.code, &report["slot"]["active"]), (Some(1), &serde_json::json!(false)));

    // What a person must put right is one clear sentence with its own exit code.
    query(&url, &["SELECT pg_drop_replication_slot('postrider')::text"]);
    let slotless = end_of(&["run", "-c", file_name]);
    assert_eq!(slotless.code, Some(4), "{}", slotless.stderr);
    assert!(slotless.stderr.contains("postrider: error PR004: the replication slot does not exist\n"));
    // Whoever has only the log has the time, the code, the message and what it costs in one line.
    let is_told =
        |line: &str| line.contains("ERROR") && line.contains("the replication slot does not exist. What it costs: If");
    assert!(slotless.stderr.lines().any(is_told), "{}", slotless.stderr);
}

#[test]
fn status_says_which_stage_is_in_trouble_why_and_what_to_type() {
    let cluster = Cluster::builder(&find(None).unwrap()).start().unwrap();
    let url = cluster.url();
    let dir = tempfile::tempdir().unwrap();
    let file = configuration(dir.path(), &url, SILENT_PORT, free_port());
    let file_name = file.to_str().unwrap();
    assert_eq!(end_of(&["setup", "-c", file_name]).code, Some(0));
    let mut run = Running::start(&file);
    query(
        &url,
        &["INSERT INTO public.pending_work (group_id, quote_id, stage, payload) VALUES ('g', 'q', 'PRICING', '{}')"],
    );
    let trouble = format!("stage PRICING (keyed, http://127.0.0.1:{SILENT_PORT}): ");
    let mut text = String::new();
    wait_until("the trouble is shown", || {
        text = end_of(&["status", "-c", file_name]).stdout;
        text.contains(&trouble)
    });
    assert!(text.contains("Z: NOT_SENT: connection refused\n"), "{text}");
    assert!(
        text.contains("A row whose call ends so waits and uses no attempt. Start the service at http://127.0.0.1:1,"),
        "{text}"
    );
    wait_until("the consumers are shown", || {
        let report: serde_json::Value =
            serde_json::from_str(&end_of(&["status", "--json", "-c", file_name]).stdout).unwrap();
        let roles =
            [&report["process"]["consumers"]["work"]["role"], &report["process"]["consumers"]["events"]["role"]];
        roles == ["stages", "required"]
    });
    run.signal("TERM");
    assert_eq!(run.wait(), Some(0));
    let stopped = end_of(&["status", "-c", file_name]).stdout;
    assert!(stopped.contains("events: saved at 1:") && stopped.contains("work: saved at 1:"), "{stopped}");
}
