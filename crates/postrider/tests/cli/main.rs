//! The real binary: exit codes, messages, and where they are printed.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod history;
mod journal;
mod live;
mod stage;
mod work;

use expect_test::{Expect, expect};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What the process did.
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn postrider(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.args(arguments).env_clear().stdin(Stdio::null());
    command
}

fn end_of(arguments: &[&str]) -> Ended {
    let output = postrider(arguments).output().unwrap();
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A port of loopback on which nobody listens, and nobody can without the rights of root.
const SILENT_PORT: u16 = 1;

/// A port of loopback that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A good configuration whose server does not listen, with a console on `console_port`.
fn configuration(dir: &Path, database_port: u16, console_port: u16) -> PathBuf {
    let path = dir.join("postrider.toml");
    let text = format!(
        r#"
[source]
url = "postgres://postrider:Geheimnis@127.0.0.1:{database_port}/quoting?sslmode=disable"
[journal]
dir = "{}"
[[outbox]]
table = "outbox_event"
[work]
table = "pending_work"
[[work.stage]]
name = "PRICING"
url = "http://127.0.0.1:{database_port}/pricing"
class = "keyed"
[[sink]]
name = "events"
kind = "ndjson"
path = "{}"
[server]
listen = "127.0.0.1:{console_port}"
"#,
        dir.join("journal").display(),
        dir.join("events.ndjson").display()
    );
    std::fs::write(&path, text).unwrap();
    path
}

fn check_stderr(ended: &Ended, dir: &Path, expected: Expect) {
    expected.assert_eq(&ended.stderr.replace(dir.to_str().unwrap(), "DIR"));
}

#[test]
fn a_missing_file_is_one_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nowhere.toml");
    let ended = end_of(&["run", "-c", file.to_str().unwrap()]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    check_stderr(
        &ended,
        dir.path(),
        expect![[r#"
            postrider: error PR001: cannot read the configuration file: No such file or directory (os error 2)
            The file is DIR/nowhere.toml.
            Name the file with `-c FILE`; `postrider explain --configuration` says what goes in.
            `postrider explain PR001` says what it costs and what to type.
        "#]],
    );
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_a_suggestion() {
    let dir = tempfile::tempdir().unwrap();
    let file = configuration(dir.path(), 1, 1);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("[server]\nlisten", "[server]\nlissten")).unwrap();
    for verb in ["run", "check", "setup", "status"] {
        let ended = end_of(&[verb, "-c", file.to_str().unwrap()]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{verb}");
        if verb == "run" {
            check_stderr(
                &ended,
                dir.path(),
                expect![[r#"
                    postrider: error PR001: the configuration has a problem
                    DIR/postrider.toml:19:1: unknown key `lissten` in `server` (did you mean `listen`?)
                    `postrider explain PR001` says what it costs and what to type.
                "#]],
            );
        }
    }
    let ended = end_of(&["check", "--json", "-c", file.to_str().unwrap()]);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(ended.code, Some(2));
    assert_eq!(report["ok"], false);
    assert_eq!(report["problems"][0]["line"], 19);
    assert_eq!(report["problems"][0]["hint"], "did you mean `listen`?");
}

#[test]
fn a_server_that_does_not_answer_is_one_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = configuration(dir.path(), SILENT_PORT, free_port());
    let file = file.to_str().unwrap();

    let ended = end_of(&["setup", "-c", file]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), ""));
    assert!(ended.stderr.starts_with("postrider: error PR011: "), "{}", ended.stderr);
    assert!(!ended.stderr.contains("Geheimnis"));

    let ended = end_of(&["check", "-c", file]);
    assert_eq!(ended.code, Some(3));
    assert!(ended.stdout.contains("ok      configuration\nwrong   database: PR011: "), "{}", ended.stdout);
    assert!(ended.stdout.contains("wrong   stage PRICING of default@1: PR017: "), "{}", ended.stdout);
    for to_type in ["pg_isready -h '127.0.0.1' -p 1\n", "curl -i http://127.0.0.1:1/\n"] {
        assert!(ended.stdout.contains(to_type), "{to_type:?} is not in: {}", ended.stdout);
    }

    let ended = end_of(&["check", "--json", "-c", file]);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((ended.code, &report["exit_code"]), (Some(3), &serde_json::json!(3)));
    assert_eq!(report["items"][1]["error"]["code"], "PR011");

    let ended = end_of(&["status", "--json", "-c", file]);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((ended.code, &report["running"]), (Some(1), &serde_json::json!(false)));
    assert!(ended.stderr.contains("no process answers"), "{}", ended.stderr);
}

#[test]
fn rows_that_are_only_observed_are_not_ordered_about() {
    let dir = tempfile::tempdir().unwrap();
    let path = configuration(dir.path(), SILENT_PORT, SILENT_PORT);
    let text = std::fs::read_to_string(&path).unwrap().replace("[work]", "[work]\nmode = \"observe\"");
    std::fs::write(&path, text).unwrap();
    let file = path.to_str().unwrap();
    for words in
        [&["work", "ls"][..], &["work", "resume", "g", "q", "--why", "x"], &["stage", "pause", "PRICING", "--why", "x"]]
    {
        let ended = end_of(&[words, &["-c", file]].concat());
        assert_eq!(ended.code, Some(2), "{words:?}: {}", ended.stderr);
        assert!(
            ended.stderr.contains("`work.mode` is \"observe\": nothing is executed here"),
            "{words:?}: {}",
            ended.stderr
        );
        assert!(ended.stderr.contains("Take `mode` out"), "{words:?}: {}", ended.stderr);
    }
}

#[test]
fn setup_prints_the_publication_before_the_slot_without_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let file = configuration(dir.path(), SILENT_PORT, 1);
    let ended = end_of(&["setup", "--print", "--role", "rider", "-c", file.to_str().unwrap()]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let publication = ended.stdout.find("CREATE PUBLICATION").unwrap();
    assert!(publication < ended.stdout.find("logical_replication_slot").unwrap(), "{}", ended.stdout);
    assert!(
        ended.stdout.contains("rider") && ended.stdout.contains("\"pending_work\" (\"group_id\""),
        "{}",
        ended.stdout
    );
    let text = std::fs::read_to_string(&file).unwrap();
    let printed = |work: &str| {
        std::fs::write(&file, text.replace("table = \"pending_work\"", work)).unwrap();
        end_of(&["setup", "--print", "-c", file.to_str().unwrap()]).stdout
    };
    let quiet = printed("table = \"own_work\"");
    assert!(quiet.contains("\"public\".\"own_work\" (\"group_id\""), "inserts need no identity: {quiet}");
    let loud = printed("table = \"own_work\"\nquiet = false");
    assert!(loud.contains("\"public\".\"own_work\"\n"), "no column list is made up: {loud}");
    let ended = end_of(&["setup", "--print", "--json", "-c", file.to_str().unwrap()]);
    let plan: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(plan["steps"].as_array().unwrap().len() >= 3);
}

#[test]
fn explain_prints_the_page_of_a_code_and_refuses_others() {
    let ended = end_of(&["explain", "pr004"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(ended.stdout.starts_with("# PR004: "));
    let ended = end_of(&["explain", "PR999"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    let ended = end_of(&["explain", "--all", "--json"]);
    let pages: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(pages.as_array().unwrap().len(), 20);
    let ended = end_of(&["explain", "--configuration"]);
    assert_eq!(ended.stdout, include_str!("../../../../docs/configuration.md"));
}

#[test]
fn a_wrong_command_line_and_a_wrong_filter_are_configuration_errors() {
    assert_eq!(end_of(&["walk"]).code, Some(2));
    assert_eq!(end_of(&["run", "--set", "a=b"]).code, Some(2));
    let ended = end_of(&["--log", "postrider=loud", "explain", "PR001"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    assert!(ended.stderr.starts_with("postrider: error PR001: "), "{}", ended.stderr);
}

#[test]
fn a_run_without_a_server_is_alive_but_not_ready_and_ends_when_told() {
    let dir = tempfile::tempdir().unwrap();
    let console_port = free_port();
    let file = configuration(dir.path(), SILENT_PORT, console_port);
    let mut run = Running::start(&file);

    run.wait_for_log("trying again");
    assert!(get(console_port, "/healthz").starts_with("HTTP/1.1 200 "));
    let readiness = get(console_port, "/readyz");
    assert!(readiness.starts_with("HTTP/1.1 503 "), "{readiness}");
    assert!(readiness.contains("The replication stream is not open: PR011 "), "{readiness}");
    assert!(get(console_port, "/metrics").ends_with("# EOF\n"));

    let status = end_of(&["status", "--json", "-c", file.to_str().unwrap()]);
    let report: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!((status.code, &report["process"]["ready"]), (Some(1), &serde_json::json!(false)));
    let status = end_of(&["status", "-c", file.to_str().unwrap()]);
    assert!(status.stdout.contains("ready:      no"), "{}", status.stdout);

    // The console's port is taken: a second process says so.
    let second = end_of(&["run", "-c", file.to_str().unwrap()]);
    assert_eq!(second.code, Some(2), "{}", second.stderr);
    assert!(second.stderr.contains("cannot listen"), "{}", second.stderr);

    run.signal("TERM");
    assert_eq!(run.wait(), Some(0));
}

/// A `postrider run` that does not outlive its test.
struct Running {
    child: Child,
    log: BufReader<std::process::ChildStderr>,
}

impl Running {
    fn start(file: &Path) -> Running {
        let mut child = postrider(&["run", "-c", file.to_str().unwrap()])
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Running { child, log }
    }

    /// Reads the log up to a line with `text`; the log's end fails the test.
    fn wait_for_log(&mut self, text: &str) {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.log.read_line(&mut line).unwrap(), 0, "the log ended: {seen}");
            if line.contains(text) {
                assert!(!line.contains("Geheimnis"));
                return;
            }
            seen.push_str(&line);
        }
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    fn wait(&mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the process does not end");
            std::thread::yield_now();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The whole answer to a GET on loopback.
fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
