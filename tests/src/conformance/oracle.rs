//! Whether what we read of a recording is what the server says.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use postrider_core::assemble::Assembler;
use postrider_core::change::Change;
use postrider_core::decode::Decoder;
use postrider_core::pgoutput::Message;
use postrider_core::position::{Generation, Lsn};
use postrider_core::time::Timestamp;
use postrider_core::transaction::TransactionBatch;
use postrider_core::value::parse_timestamptz;
use postrider_journal::{Life, open_staging};

use super::case::Case;
use super::lines;
use super::recording::Recording;
use super::replica::Replica;

/// What was read of a recording.
#[derive(Debug, Default)]
struct Read {
    /// Each change with the begins and commits around it.
    lines: Vec<String>,
    replica: Replica,
}

/// Reads the recording with parser, assembler and decoder, and holds every change and every table at the end against the
/// server's word.
pub fn check(case: &Case, recording: &Recording) {
    let payloads = || recording.messages.iter().map(|sent| sent.payload.as_slice());
    let batch = assemble(payloads());
    let read = Read::of(case, &batch, recording);
    if case.unlike_test_decoding.is_some() {
        let lines: Vec<&String> = read.lines.iter().filter(|line| !is_edge(line)).collect();
        assert_eq!(lines, recording.expected.changes.iter().collect::<Vec<_>>(), "{}", case.name);
    } else {
        let expected: Vec<String> =
            by_the_server(recording).into_iter().filter(|line| !line.starts_with(IMMEDIATE)).collect();
        assert_eq!(read.lines, expected, "{}", case.name);
    }
    if case.unlike_tables.is_none() {
        for table in &recording.expected.tables {
            assert_eq!(read.replica.copy(table), table.rows, "{}: {}", case.name, table.name);
        }
    }
    check_immediate_messages(case, recording);
}

/// Room for what is in progress; more than any case has.
const STAGING_BYTES: u64 = 1 << 30;

/// How a logical message begins that belongs to no transaction.
const IMMEDIATE: &str = "message: transactional: 0";

fn is_edge(line: &str) -> bool {
    line.starts_with("BEGIN ") || line.starts_with("COMMIT ")
}

/// Messages outside of transactions stand where the server puts them, before the BEGIN of a transaction that is not committed yet.
fn check_immediate_messages(case: &Case, recording: &Recording) {
    if case.protocol() > 1 || case.unlike_test_decoding.is_some() {
        return;
    }
    let place = |lines: Vec<String>| -> Vec<(usize, String)> {
        let mut commits = 0;
        let mut found = Vec::new();
        for line in lines {
            commits += usize::from(line.starts_with("COMMIT "));
            if line.starts_with(IMMEDIATE) {
                found.push((commits, line));
            }
        }
        found
    };
    let mut ours = Vec::new();
    for sent in &recording.messages {
        match Message::parse(&sent.payload).unwrap() {
            Message::LogicalMessage(message) => ours.push(lines::logical_message(&message)),
            Message::Begin(begin) => ours.push(format!("BEGIN {}", begin.xid)),
            Message::Commit(_) if ours.last().is_some_and(|last| last.starts_with("BEGIN ")) => drop(ours.pop()),
            Message::Commit(_) => ours.push("COMMIT ".to_owned()),
            Message::Relation(_) | Message::Type(_) | Message::Origin(_) => {}
            _ => ours.push("change".to_owned()),
        }
    }
    assert_eq!(place(ours), place(by_the_server(recording)), "{}", case.name);
}

impl Read {
    fn of(case: &Case, batch: &TransactionBatch, recording: &Recording) -> Read {
        let mut decoder = Decoder::new();
        let mut read = Read::default();
        let mut ordinal_next = 0;
        for part in batch.parts() {
            if part.head.first {
                read.lines.push(format!("BEGIN {}", part.head.xid));
                ordinal_next = 0;
            }
            let mut changes = decoder.changes(part);
            while let Some(change) = changes.next_with_relations() {
                let (ordinal, change, relations) = change.unwrap();
                assert_eq!(ordinal, ordinal_next, "ordinals count the changes of a transaction");
                ordinal_next += u64::from(!matches!(change, Change::Message(_)));
                read.lines.push(lines::line(&change, relations, &recording.expected.types));
                if case.unlike_tables.is_none() {
                    read.replica.apply(&change);
                }
            }
            if part.head.last {
                read.lines.push(commit_line(part.head.xid, part.head.committed_at));
            }
        }
        read
    }
}

/// What the assembler makes of the messages of any protocol version, with a staging area of its own.
pub fn assemble<'a>(payloads: impl Iterator<Item = &'a [u8]>) -> TransactionBatch {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("postrider-oracle-{}-{number}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let life = Life { system_identifier: 1, generation: Generation::FIRST, begun: Vec::new() };
    let mut assembler = Assembler::with_staging(Lsn::ZERO, open_staging(&folder, life, STAGING_BYTES).unwrap());
    assembler.restart().unwrap();
    let mut batch = TransactionBatch::new();
    for payload in payloads {
        assembler.push(payload, &mut batch).unwrap();
        while assembler.is_copying() {
            assembler.copy(&mut batch).unwrap();
        }
    }
    assembler.release(Lsn(u64::MAX)).unwrap();
    assert_eq!(fs::read_dir(folder.join("staging")).unwrap().count(), 0, "a case ends with every verdict");
    fs::remove_dir_all(&folder).unwrap();
    batch
}

/// The server's lines, without transactions in which nothing published happened.
fn by_the_server(recording: &Recording) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in &recording.expected.changes {
        match line.strip_prefix("COMMIT ") {
            None => lines.push(line.clone()),
            Some(_) if lines.last().is_some_and(|last| last.starts_with("BEGIN ")) => drop(lines.pop()),
            Some(commit) => {
                let (xid, at) = commit.trim_end_matches(')').split_once(" (at ").unwrap();
                lines.push(commit_line(xid.parse().unwrap(), parse_timestamptz(at).unwrap()));
            }
        }
    }
    lines
}

fn commit_line(xid: u32, at: Timestamp) -> String {
    format!("COMMIT {xid} at {}", at.0)
}
