//! The journal and the positions beside it.

use futures_util::FutureExt;
use postrider_core::ports::{Follower, Journal, JournalWriter, PositionStore, SchemaBlock};
use postrider_core::position::{Generation, Lsn, Position};
use postrider_core::time::Timestamp;
use postrider_core::transaction::{PartHead, PartKind, TransactionBatch, push_message};
use std::sync::Arc;

/// The three doors of an open journal.
#[derive(Debug)]
pub struct Doors {
    pub writer: Box<dyn JournalWriter>,
    pub journal: Arc<dyn Journal>,
    pub positions: Arc<dyn PositionStore>,
}

/// A directory that is empty at first.
pub trait Fixture {
    /// Opens what is there; the doors of before are dropped.
    fn open(&self) -> Doors;
}

pub async fn suite(fixture: &dyn Fixture) {
    let mut doors = fixture.open();
    assert_eq!((doors.journal.appended(), doors.journal.durable()), (Lsn::ZERO, Lsn::ZERO));
    assert_eq!(doors.positions.load("sink").unwrap(), None);
    appended_is_followed_and_becomes_durable(&mut doors).await;
    a_part_is_followed_once_its_transaction_is_whole(&mut doors).await;
    let saved = Position { generation: Generation::FIRST, commit_lsn: Lsn(200), ordinal: 3 };
    doors.positions.save(&[("sink".into(), saved), ("other".into(), Position::START)]).await.unwrap();
    // A part without its end is cut when the journal is opened again; all else is there.
    let mut batch = TransactionBatch::new();
    part(&mut batch, 500, true, false, "lost");
    doors.writer.append(&batch, &SchemaBlock::default()).unwrap();
    drop(doors);
    let doors = fixture.open();
    assert_eq!(doors.journal.appended(), Lsn(410));
    assert_eq!(doors.journal.durable(), Lsn(410), "the end is durable once the journal is open");
    assert_eq!(doors.positions.load("sink").unwrap(), Some(saved));
    assert_eq!(doors.positions.load("nobody").unwrap(), None);
    a_follower_starts_behind_its_position(&*doors.journal).await;
}

async fn appended_is_followed_and_becomes_durable(doors: &mut Doors) {
    let mut follower = doors.journal.follow(Position::START).unwrap();
    let mut seen = TransactionBatch::new();
    assert!(follower.next(&mut seen).now_or_never().is_none(), "nothing is there");
    let mut batch = TransactionBatch::new();
    part(&mut batch, 100, true, true, "a");
    part(&mut batch, 200, true, true, "b");
    assert_eq!(doors.writer.append(&batch, &SchemaBlock::default()).unwrap(), Lsn(210));
    assert_eq!(doors.journal.appended(), Lsn(210));
    assert_eq!(read(&mut *follower, 2).await, ["a", "b"]);
    assert_eq!(doors.journal.durable_past(Lsn::ZERO).await.unwrap(), Lsn(210));
    assert_eq!(doors.journal.durable_past(Lsn(209)).await.unwrap(), Lsn(210));
    assert_eq!(doors.journal.durable(), Lsn(210));
    let mut mark = TransactionBatch::new();
    let head = PartHead { kind: PartKind::Mark, commit_lsn: Lsn(300), end_lsn: Lsn(300), changes: 0, ..head(300) };
    mark.push(head, &[]);
    assert_eq!(doors.writer.append(&mark, &SchemaBlock::default()).unwrap(), Lsn(300));
    assert_eq!(read(&mut *follower, 1).await, ["mark"]);
}

async fn a_part_is_followed_once_its_transaction_is_whole(doors: &mut Doors) {
    let mut follower = doors.journal.follow(Position::whole(Generation::FIRST, Lsn(299))).unwrap();
    let append = |doors: &mut Doors, last, text| {
        let mut batch = TransactionBatch::new();
        part(&mut batch, 400, text == "first" || text == "torn", last, text);
        doors.writer.append(&batch, &SchemaBlock::default()).unwrap()
    };
    assert_eq!(append(doors, false, "torn"), Lsn(300));
    doors.writer.discard_partial().unwrap();
    assert_eq!(append(doors, false, "first"), Lsn(300));
    let mut seen = TransactionBatch::new();
    assert!(follower.next(&mut seen).now_or_never().is_none(), "the transaction is not whole");
    assert_eq!(append(doors, true, "second"), Lsn(410));
    assert_eq!(read(&mut *follower, 2).await, ["first", "second"]);
}

async fn a_follower_starts_behind_its_position(journal: &dyn Journal) {
    let whole = |lsn| Position::whole(Generation::FIRST, Lsn(lsn));
    let within = Position { generation: Generation::FIRST, commit_lsn: Lsn(200), ordinal: 0 };
    let starts: [(Position, &[&str]); 5] = [
        (Position::START, &["a", "b", "mark", "first", "second"]),
        (whole(100), &["b", "mark", "first", "second"]),
        (within, &["b", "mark", "first", "second"]),
        (whole(200), &["mark", "first", "second"]),
        (whole(299), &["first", "second"]),
    ];
    for (after, expected) in starts {
        let mut follower = journal.follow(after).unwrap();
        assert_eq!(read(&mut *follower, expected.len()).await, expected, "{after}");
    }
}

async fn read(follower: &mut dyn Follower, count: usize) -> Vec<String> {
    let mut texts = Vec::new();
    let mut batch = TransactionBatch::new();
    while texts.len() < count {
        follower.next(&mut batch).await.unwrap();
        for part in batch.parts() {
            let text = part.messages().next().map(|message| String::from_utf8_lossy(&message[1..]).into_owned());
            texts.push(text.unwrap_or_else(|| "mark".to_owned()));
        }
    }
    texts
}

fn head(commit_lsn: u64) -> PartHead {
    PartHead {
        kind: PartKind::Transaction,
        commit_lsn: Lsn(commit_lsn),
        end_lsn: Lsn(commit_lsn + 10),
        xid: 7,
        committed_at: Timestamp(1),
        first_ordinal: 0,
        changes: 0,
        first: true,
        last: true,
    }
}

fn part(batch: &mut TransactionBatch, commit_lsn: u64, first: bool, last: bool, text: &str) {
    let mut block = Vec::new();
    assert!(push_message(&mut block, format!("M{text}").as_bytes()));
    let end_lsn = if last { Lsn(commit_lsn + 10) } else { Lsn::ZERO };
    batch.push(PartHead { first, last, end_lsn, ..head(commit_lsn) }, &block);
}
