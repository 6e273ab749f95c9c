#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
use super::*;
use bytes::Bytes;
use postrider_core::event::Payload;
use postrider_core::position::{Generation, Lsn};
use postrider_core::time::Timestamp;
use std::fs;
use std::os::fd::OwnedFd;
use tempfile::TempDir;

fn event(commit: u64, ordinal: u64, id: &str) -> Event {
    Event {
        id: id.into(),
        position: Position { generation: Generation::FIRST, commit_lsn: Lsn(commit), ordinal },
        committed_at: Timestamp(0),
        source: "s".into(),
        key: None,
        event_type: None,
        topic: None,
        headers: None,
        payload: Payload::Json(Bytes::from_static(b"{\n  \"a\": \"\\n\"\r\n}")),
    }
}

fn ids(text: &str) -> Vec<String> {
    let id = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
    text.lines().map(id).collect()
}

async fn write(sink: &mut NdjsonSink, events: &[Event]) {
    let written = sink.write(events).await;
    assert_eq!(written.settled, events.len());
    assert!(written.error.is_none(), "{:?}", written.error);
}

fn refusal(path: &Path) -> ErrorKind {
    NdjsonSink::open(path).unwrap_err().kind()
}

#[tokio::test]
async fn an_event_is_a_line_whatever_its_payload_looks_like() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("events.ndjson");
    let mut sink = NdjsonSink::open(&path).unwrap();
    assert_eq!(sink.position().await.unwrap(), None);
    write(&mut sink, &[event(1, 0, "a"), event(1, 1, "b")]).await;
    write(&mut sink, &[event(2, 0, "c")]).await;
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(ids(&text), ["a", "b", "c"]);
    let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(line["payload"]["a"], "\n");
}

#[tokio::test]
async fn a_replay_after_a_crash_repeats_no_line_and_loses_none() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("events.ndjson");
    // A logical message and the change after it share a position.
    let all = [
        event(1, 0, "a"),
        event(2, 0, "m1"),
        event(2, 0, "m2"),
        event(2, 0, "row"),
        event(2, 1, "b"),
        event(3, 0, "c"),
    ];
    let mut whole = NdjsonSink::open(&path).unwrap();
    write(&mut whole, &all).await;
    drop(whole);
    let text = fs::read(&path).unwrap();
    let line_ends = (0..=text.len()).filter(|at| *at == 0 || text[at - 1] == b'\n');
    for length in line_ends.flat_map(|at| [at.saturating_sub(1), at, at + 1, at + 100]).filter(|at| *at <= text.len()) {
        fs::write(&path, &text[..length]).unwrap();
        let mut sink = NdjsonSink::open(&path).unwrap();
        let resume = sink.position().await.unwrap();
        let replayed: Vec<Event> = all.iter().filter(|event| Some(event.position) > resume).cloned().collect();
        for batch in replayed.chunks(2) {
            write(&mut sink, batch).await;
        }
        drop(sink);
        assert!(fs::read(&path).unwrap() == text, "cut at {length}");
    }
}

#[tokio::test]
async fn events_that_come_again_in_one_run_are_not_written_again() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("events.ndjson");
    let mut sink = NdjsonSink::open(&path).unwrap();
    write(&mut sink, &[event(2, 0, "m")]).await;
    write(&mut sink, &[event(1, 0, "old"), event(2, 0, "m"), event(2, 0, "row")]).await;
    write(&mut sink, &[event(2, 0, "m"), event(2, 0, "row")]).await;
    assert_eq!(ids(&fs::read_to_string(&path).unwrap()), ["m", "row"]);
    assert_eq!(sink.position().await.unwrap(), Some(Position::whole(Generation::FIRST, Lsn(1))));
}

#[tokio::test]
async fn a_line_longer_than_a_block_is_found() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("events.ndjson");
    let long = Event { payload: Payload::Text(Bytes::from("x".repeat(200_000))), ..event(1, 4, "long") };
    write(&mut NdjsonSink::open(&path).unwrap(), &[event(1, 3, "a"), long]).await;
    let size = fs::metadata(&path).unwrap().len();
    let expected = Position { generation: Generation::FIRST, commit_lsn: Lsn(1), ordinal: 3 };
    assert_eq!(NdjsonSink::open(&path).unwrap().position().await.unwrap(), Some(expected));
    assert_eq!(fs::metadata(&path).unwrap().len(), size);
}

#[tokio::test]
async fn blocks_that_were_never_written_are_cut() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("events.ndjson");
    write(&mut NdjsonSink::open(&path).unwrap(), &[event(1, 0, "a")]).await;
    let good = fs::read(&path).unwrap();
    for tail in [&[0; 5000][..], b"\0\0\0\"}\n", b"\0\0\n{\"id\":"] {
        fs::write(&path, [&good[..], tail].concat()).unwrap();
        NdjsonSink::open(&path).unwrap();
        assert!(fs::read(&path).unwrap() == good);
    }
}

#[test]
fn a_file_that_is_not_ours_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("notes.txt");
    for text in ["dear diary\n", "{\"id\":\"a\"}\n", "{\"id\":\"a\",\"position\":\"x\"}\n"] {
        fs::write(&path, text).unwrap();
        assert_eq!(refusal(&path), ErrorKind::Configuration);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    assert_eq!(refusal(&dir.path().join("missing/events.ndjson")), ErrorKind::Disk);
}

#[test]
fn a_file_is_written_by_one_sink_at_a_time() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("events.ndjson");
    let first = NdjsonSink::open(&path).unwrap();
    let error = NdjsonSink::open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert_eq!(error.detail().unwrap(), format!("The file is {}.", path.display()));
    assert!(error.hint().unwrap().contains("End the other process"), "{}", error.report());
    drop(first);
    NdjsonSink::open(&path).unwrap();
}

#[tokio::test]
async fn a_full_disk_settles_nothing_and_can_be_tried_again() {
    let mut sink = NdjsonSink::stream(OpenOptions::new().write(true).open("/dev/full").unwrap());
    let written = sink.write(&[event(1, 0, "a")]).await;
    assert_eq!((written.settled, written.error.unwrap().kind()), (0, ErrorKind::SinkUnavailable));
}

#[tokio::test]
async fn a_stream_gets_each_line_and_its_reader_may_leave() {
    let (mut reader, writer) = io::pipe().unwrap();
    let mut sink = NdjsonSink::stream(OwnedFd::from(writer).into());
    write(&mut sink, &[event(1, 0, "a"), event(2, 0, "b")]).await;
    assert_eq!(sink.position().await.unwrap(), None);
    let mut bytes = vec![0; 4096];
    let length = io::Read::read(&mut reader, &mut bytes).unwrap();
    assert_eq!(ids(std::str::from_utf8(&bytes[..length]).unwrap()), ["a", "b"]);
    drop(reader);
    let written = sink.write(&[event(3, 0, "c")]).await;
    assert_eq!((written.settled, written.error.unwrap().kind()), (0, ErrorKind::SinkUnavailable));
}
