//! A journal that goes on with another timeline, behind something left out, or with another server.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::adopt::adopt_on;
use crate::testing::FakeDisk;
use crate::tests::{block_on, drain, identity, mark, message, transaction};
use crate::{Adoption, Opened, Reader, Settings, open_on};
use postrider_core::error::{ErrorKind, Result};
use postrider_core::ports::{Follower, Gap, SchemaBlock, SourceIdentity};
use postrider_core::position::{Generation, Lsn, Position};
use postrider_core::time::Timestamp;
use postrider_core::transaction::{PartHead, TransactionBatch};
use std::sync::Arc;

const SMALL: Settings = Settings { segment_bytes: 500, retain_bytes: 1_000, retain_age: None };

fn opened(disk: &FakeDisk, identity: &SourceIdentity) -> Opened {
    open_on(Arc::new(disk.clone()), identity, &SMALL).unwrap()
}

fn append(opened: &mut Opened, heads: &[PartHead]) {
    let mut batch = TransactionBatch::new();
    heads.iter().for_each(|head| batch.push(*head, &message(&head.xid.to_le_bytes())));
    opened.writer.append(&batch, &SchemaBlock::default()).unwrap();
}

fn numbered(from: u32, to: u32) -> Vec<PartHead> {
    (from..=to).map(|n| transaction(u64::from(n) * 10, u64::from(n) * 10 + 5, n)).collect()
}

fn whole(generation: u32, lsn: u64) -> Position {
    Position::whole(Generation(generation), Lsn(lsn))
}

fn gap(from: u64, to: u64) -> Gap {
    Gap {
        at: Timestamp(7),
        consumer: None,
        from: whole(1, from),
        to: whole(1, to),
        reason: "Somebody else had it.".to_owned(),
        accepted: false,
    }
}

fn later(timeline: u32) -> SourceIdentity {
    SourceIdentity { timeline, ..identity() }
}

fn stranger() -> SourceIdentity {
    SourceIdentity { system_identifier: 9, ..identity() }
}

/// Numbers of the transactions that a follower gives, each with its generation.
fn seen(follower: Result<Box<dyn Follower>>) -> Vec<(u32, u32)> {
    let mut follower = follower.unwrap();
    let mut found = Vec::new();
    let mut batch = TransactionBatch::new();
    for _ in 0..200 {
        let ready = block_on(async {
            tokio::select! { biased; next = follower.next(&mut batch) => { next.unwrap(); true } () = std::future::ready(()) => false }
        });
        if ready {
            found.extend(batch.parts().map(|part| (follower.generation().0, part.head.xid)));
        }
    }
    found
}

fn of(generation: u32, heads: &[PartHead]) -> Vec<(u32, u32)> {
    heads.iter().map(|head| (generation, head.xid)).collect()
}

#[test]
fn a_later_timeline_goes_on_in_the_same_generation() {
    let disk = FakeDisk::new();
    let mut journal = opened(&disk, &identity());
    append(&mut journal, &numbered(1, 10));
    let mut live = journal.journal.follow(Position::START).unwrap();
    assert_eq!(drain(live.as_mut()).unwrap().len(), 10);
    journal.writer.go_on(&later(3), Lsn(105), &SchemaBlock::default()).unwrap();
    append(&mut journal, &numbered(11, 20));
    assert_eq!(drain(live.as_mut()).unwrap().len(), 10, "who follows goes on over the change");
    drop(journal);
    assert_eq!(opened(&disk, &later(3)).identity, later(3));
    let again = opened(&disk, &later(4));
    assert_eq!((again.identity, again.journal.appended()), (later(3), Lsn(205)), "whether it goes on is the source's");
    assert_eq!(seen(again.journal.follow(Position::START)), of(1, &numbered(1, 20)));
    drop(again.journal);
    let disk = disk.kill();
    let refused = open_on(Arc::new(disk), &later(2), &SMALL).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::JournalForeign);
    assert!(refused.report().contains("its timeline is 3, the server's is 2"), "{}", refused.report());
}

#[test]
fn what_is_left_out_is_on_record_and_the_journal_goes_on_behind_it() {
    let disk = FakeDisk::new();
    let mut journal = opened(&disk, &identity());
    append(&mut journal, &numbered(1, 10));
    let mut live = journal.journal.follow(whole(1, 50)).unwrap();
    assert_eq!(drain(live.as_mut()).unwrap().len(), 5);
    block_on(journal.journal.record(gap(104, 299))).unwrap();
    block_on(journal.journal.record(gap(104, 299))).unwrap();
    journal.writer.go_on(&identity(), Lsn(300), &SchemaBlock::default()).unwrap();
    assert_eq!(journal.journal.appended(), Lsn(300));
    assert_eq!(block_on(journal.journal.durable_past(Lsn(105))).unwrap(), Lsn(300), "and it becomes durable");
    append(&mut journal, &numbered(30, 40));
    assert_eq!(drain(live.as_mut()).unwrap().len(), 11);
    let looked = Reader::open_on(Arc::new(disk.clone())).unwrap();
    assert_eq!((looked.end(), looked.gaps().unwrap().as_slice()), (Lsn(405), &[gap(104, 299)][..]), "while it is open");
    drop(journal);
    let again = opened(&disk.crash(3), &identity());
    assert_eq!(again.journal.gaps(), [gap(104, 299)]);
    assert_eq!(again.journal.appended(), Lsn(300), "what was durable");
    let again = opened(&disk.kill(), &identity());
    let expected = [numbered(1, 10), numbered(30, 40)].concat();
    assert_eq!(seen(again.journal.follow(Position::START)), of(1, &expected));
}

fn adoption(identity: SourceIdentity, begins: u64, cut: Option<u64>) -> Adoption {
    let new_generation = true;
    Adoption { identity, begins: Lsn(begins), cut: cut.map(Lsn), new_generation, gap: gap(104, 200) }
}

#[test]
fn an_adopted_server_begins_a_generation_whose_positions_rise() {
    let disk = FakeDisk::new();
    let mut journal = opened(&disk, &identity());
    append(&mut journal, &numbered(1, 20));
    block_on(journal.positions.save(&[("sink".into(), whole(1, 150))])).unwrap();
    let busy = adopt_on(Arc::new(disk.clone()), &adoption(stranger(), 30, None)).unwrap_err();
    assert_eq!(busy.message(), "another process has the journal open");
    drop(journal);
    assert_eq!(adopt_on(Arc::new(disk.clone()), &adoption(stranger(), 30, None)).unwrap(), Generation(2));
    let refused = open_on(Arc::new(disk.kill()), &identity(), &SMALL).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::JournalForeign, "the server of before");

    let mut journal = opened(&disk, &stranger());
    assert_eq!((journal.journal.generation(), journal.journal.appended()), (Generation(2), Lsn(30)));
    append(&mut journal, &numbered(3, 25));
    let expected = [of(1, &numbered(1, 20)), of(2, &numbered(3, 25))].concat();
    assert_eq!(seen(journal.journal.follow(Position::START)), expected);
    assert_eq!(seen(journal.journal.follow(whole(1, 190))), expected[19..]);
    assert_eq!(seen(journal.journal.follow(whole(2, 30))), of(2, &numbered(4, 25)));
    assert_eq!(journal.positions.load("sink").unwrap(), Some(whole(1, 150)));
    // Retention passes from one generation to the next.
    block_on(journal.journal.durable_past(Lsn(30))).unwrap();
    journal.journal.release(whole(2, 240), Timestamp::default()).unwrap();
    block_on(journal.positions.save(&[])).unwrap();
    assert_eq!(seen(journal.journal.follow(whole(2, 240))), of(2, &numbered(25, 25)));
    assert_eq!(journal.journal.follow(whole(1, 150)).unwrap_err().kind(), ErrorKind::JournalForeign);
    drop(journal);
    assert_eq!(opened(&disk.kill(), &stranger()).journal.appended(), Lsn(255));
}

#[test]
fn what_a_promoted_server_never_had_is_given_to_nobody_any_more() {
    let disk = FakeDisk::new();
    let mut journal = opened(&disk, &identity());
    append(&mut journal, &numbered(1, 20));
    append(&mut journal, &[mark(230)]);
    drop(journal);
    adopt_on(Arc::new(disk.clone()), &adoption(later(2), 155, Some(155))).unwrap();
    let mut journal = opened(&disk, &later(2));
    append(&mut journal, &numbered(16, 18));
    let expected = [of(1, &numbered(1, 15)), of(2, &numbered(16, 18))].concat();
    assert_eq!(seen(journal.journal.follow(Position::START)), expected);
    assert_eq!(seen(journal.journal.follow(whole(1, 200))), of(2, &numbered(16, 18)), "who had it goes on behind it");
    drop(journal);
    // A restore to before the promotion: of the second generation nothing is left, of the first a little less.
    adopt_on(Arc::new(disk.clone()), &adoption(later(3), 105, Some(105))).unwrap();
    let mut journal = opened(&disk, &later(3));
    append(&mut journal, &numbered(11, 11));
    let expected = [of(1, &numbered(1, 10)), of(3, &numbered(11, 11))].concat();
    assert_eq!(seen(journal.journal.follow(Position::START)), expected);
}

#[test]
fn nothing_is_made_of_a_directory_without_a_journal() {
    let empty = tempfile::tempdir().unwrap();
    assert!(Reader::find(empty.path()).unwrap().is_none());
    assert!(Reader::find(&empty.path().join("nowhere")).unwrap().is_none());
    let none = crate::adopt(empty.path(), &adoption(stranger(), 30, None)).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Configuration);
    drop(crate::open(empty.path(), &identity(), &SMALL).unwrap());
    let looked = Reader::find(empty.path()).unwrap().unwrap();
    assert_eq!((looked.end(), looked.commit(), looked.generation()), (Lsn::ZERO, Lsn::ZERO, Generation::FIRST));
    assert_eq!(looked.identity(), &identity());
}

#[test]
fn damaged_gaps_are_an_error_and_accepted_ones_stay_so() {
    let dir = tempfile::tempdir().unwrap();
    let journal = crate::open(dir.path(), &identity(), &SMALL).unwrap();
    block_on(journal.journal.record(gap(1, 9))).unwrap();
    block_on(journal.journal.record(Gap { consumer: Some("lines".into()), ..gap(5, 7) })).unwrap();
    block_on(journal.journal.record(gap(9, 12))).unwrap();
    assert_eq!(journal.journal.gaps().len(), 2, "one that goes on is the same");
    drop(journal);
    crate::accept(dir.path()).unwrap();
    let gaps = Reader::open(dir.path()).unwrap().gaps().unwrap();
    assert!(gaps.iter().all(|gap| gap.accepted));
    assert_eq!(gaps[0].to, whole(1, 12));
    let file = dir.path().join("gaps");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[12] ^= 4;
    std::fs::write(&file, bytes).unwrap();
    let error = crate::open(dir.path(), &identity(), &SMALL).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::JournalCorrupt);
}
