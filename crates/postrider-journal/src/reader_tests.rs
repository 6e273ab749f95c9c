//! What somebody sees who only looks at a journal.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::testing::FakeDisk;
use crate::tests::{
    SMALL, append, block_on, identity, mark, message, numbered, open_fake, refusal, transaction, whole,
};
use crate::{
    Disk, Examiner, Fault, FaultKind, Reader, Settings, Surveyed, Verified, open, open_on, survey_on, verify, verify_on,
};
use expect_test::expect;
use postrider_core::error::{ErrorKind, Result};
use postrider_core::ports::{SchemaBlock, SourceIdentity};
use postrider_core::position::{Lsn, Position};
use postrider_core::time::Timestamp;
use postrider_core::transaction::{Part, PartHead, TransactionBatch};
use std::collections::BTreeMap;
use std::sync::Arc;

type Parts = Vec<(PartHead, Vec<u8>)>;

const LARGE: Settings = Settings { segment_bytes: 1 << 20, retain_bytes: 1 << 30, retain_age: None };

/// All that can be read after `after` as things are.
fn read(reader: &Reader, after: Position) -> Result<Parts> {
    let mut reading = reader.read(after)?;
    let mut batch = TransactionBatch::new();
    let mut found = Vec::new();
    while reading.next(&mut batch)? {
        found.extend(batch.parts().map(|part| (part.head, part.block().to_vec())));
    }
    Ok(found)
}

fn reader(disk: &FakeDisk) -> Reader {
    Reader::open_on(Arc::new(disk.clone())).unwrap()
}

/// The second half of a transaction comes with `last`.
fn half(commit: u64, last: bool) -> (PartHead, Vec<u8>) {
    let head = transaction(commit, if last { commit + 5 } else { 0 }, 7);
    (PartHead { first: !last, last, first_ordinal: u64::from(last), ..head }, message(b"half"))
}

/// Hears the faults, and takes whatever the frames hold.
#[derive(Default)]
struct Heard {
    faults: Vec<Fault>,
    refuses: Option<Vec<u8>>,
}

impl Examiner for Heard {
    fn schema(&mut self, _: &SchemaBlock) -> Result<(), String> {
        Ok(())
    }

    fn part(&mut self, part: Part<'_>) -> Result<(), String> {
        let refused = self.refuses.as_ref().is_some_and(|block| block == part.block());
        if refused { Err("it means nothing".to_owned()) } else { Ok(()) }
    }

    fn found(&mut self, fault: Fault) {
        self.faults.push(fault);
    }
}

fn faults(disk: &FakeDisk) -> (Verified, Vec<Fault>) {
    let mut heard = Heard::default();
    let verified = verify_on(disk, &mut heard).unwrap();
    (verified, heard.faults)
}

/// A journal of `count` transactions that nobody has open.
fn written(count: u32, settings: &Settings) -> FakeDisk {
    written_by(&identity(), count, settings)
}

fn written_by(identity: &SourceIdentity, count: u32, settings: &Settings) -> FakeDisk {
    let disk = FakeDisk::new();
    let mut opened = open_on(Arc::new(disk.clone()), identity, settings).unwrap();
    for parts in numbered(count).chunks(3) {
        append(opened.writer.as_mut(), parts);
    }
    block_on(opened.journal.durable_past(Lsn(u64::from(count) * 10))).unwrap();
    drop(opened);
    disk
}

fn flip(disk: &FakeDisk, file: &str, offset: usize) {
    let mut bytes = disk.files().get(file).unwrap().clone();
    bytes[offset] ^= 1;
    disk.put(file, bytes);
}

#[test]
fn a_reader_beside_the_writer_sees_whole_transactions_and_follows_into_the_next_segments() {
    let disk = FakeDisk::new();
    let mut opened = open_fake(&disk, &SMALL);
    let mut reader = reader(&disk);
    assert_eq!((reader.end(), reader.last()), (Lsn::ZERO, Position::START));
    let all = numbered(50);
    let mut reading = reader.read(Position::START).unwrap();
    let mut batch = TransactionBatch::new();
    let mut seen = Vec::new();
    for (chunk, count) in all.chunks(7).zip(1..) {
        append(opened.writer.as_mut(), chunk);
        assert!(reader.refresh().unwrap());
        assert!(!reader.refresh().unwrap(), "nothing came in between");
        while reading.next(&mut batch).unwrap() {
            seen.extend(batch.parts().map(|part| (part.head, part.block().to_vec())));
        }
        assert_eq!(seen.len(), all.len().min(count * 7));
    }
    assert_eq!(seen, all);
    assert_eq!((reader.end(), reader.last()), (Lsn(505), whole(500)));
    for after in [0, 10, 115, 490, 500, 900] {
        let expected: Parts = all.iter().filter(|(head, _)| head.commit_lsn.0 > after).cloned().collect();
        assert_eq!(read(&reader, whole(after)).unwrap(), expected, "after {after}");
    }
}

#[test]
fn a_transaction_that_is_cut_and_written_anew_is_seen_as_it_is_in_the_end() {
    let disk = FakeDisk::new();
    let mut opened = open_fake(&disk, &LARGE);
    append(opened.writer.as_mut(), &numbered(1));
    let mut reader = reader(&disk);
    append(opened.writer.as_mut(), &[half(30, false)]);
    assert!(!reader.refresh().unwrap());
    assert_eq!(read(&reader, Position::START).unwrap(), numbered(1));
    opened.writer.discard_partial().unwrap();
    append(opened.writer.as_mut(), &[half(40, false), half(40, true), (mark(60), Vec::new())]);
    assert!(reader.refresh().unwrap());
    let expected = [numbered(1), vec![half(40, false), half(40, true), (mark(60), Vec::new())]].concat();
    assert_eq!(read(&reader, Position::START).unwrap(), expected);
    assert_eq!((reader.end(), reader.last()), (Lsn(60), whole(40)));
}

#[test]
fn looking_changes_nothing_and_needs_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let mut opened = open(dir.path(), &identity(), &SMALL).unwrap();
    append(opened.writer.as_mut(), &numbered(20));
    block_on(opened.positions.save(&[("events".into(), whole(30))])).unwrap();
    block_on(opened.journal.durable_past(Lsn(200))).unwrap();
    let contents = || -> BTreeMap<_, _> {
        let entries = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
    };
    let before = contents();
    let reader = Reader::open(dir.path()).unwrap();
    assert_eq!(read(&reader, Position::START).unwrap(), numbered(20));
    assert_eq!(reader.positions().unwrap(), BTreeMap::from([("events".into(), whole(30))]));
    assert_eq!(verify(dir.path(), &mut Heard::default()).unwrap().transactions, 20);
    assert_eq!(contents(), before);
}

#[test]
fn the_segments_are_listed_with_what_they_hold() {
    let disk = FakeDisk::new();
    let mut opened = open_fake(&disk, &SMALL);
    for parts in numbered(16).chunks(8) {
        append(opened.writer.as_mut(), parts);
    }
    let lines: Vec<String> = reader(&disk)
        .segments()
        .unwrap()
        .iter()
        .map(|segment| {
            let first = segment.first.map(|head| (head.commit_lsn.0, head.committed_at.0));
            format!(
                "{} {} {:?} {:?}",
                segment.before,
                segment.identity.slot,
                first,
                segment.last.map(|last| last.to_string())
            )
        })
        .collect();
    expect![[r#"
        1:0/0:0 postrider Some((10, 1)) Some("1:0/50:end")
        1:0/50:end postrider Some((90, 9)) Some("1:0/A0:end")
        1:0/A0:end postrider None None"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn a_time_is_found_as_the_place_before_the_first_transaction_of_that_time() {
    let reader = reader(&written(50, &SMALL));
    // Each was committed at the microsecond of its number.
    let before = |at| reader.before(Timestamp(at)).unwrap();
    for at in 1..=50 {
        let commits: Vec<i64> =
            read(&reader, before(at).unwrap()).unwrap().iter().map(|(head, _)| head.committed_at.0).collect();
        assert_eq!(commits, (at..=50).collect::<Vec<_>>());
    }
    assert_eq!(before(0), before(1));
    assert_eq!(before(51), None);
}

#[test]
fn what_retention_took_is_named_as_gone() {
    let disk = FakeDisk::new();
    let mut opened = open_fake(&disk, &SMALL);
    append(opened.writer.as_mut(), &numbered(8));
    let reader = reader(&disk);
    let mut reading = reader.read(Position::START).unwrap();
    for parts in numbered(60)[8..].chunks(8) {
        append(opened.writer.as_mut(), parts);
    }
    block_on(opened.journal.durable_past(Lsn(600))).unwrap();
    opened.journal.release(whole(600), Timestamp::default()).unwrap();
    while disk.files().len() > 5 {
        std::thread::yield_now();
    }
    let mut batch = TransactionBatch::new();
    let mut late = reader;
    late.refresh().unwrap();
    let error = loop {
        match reading.next(&mut batch) {
            Ok(more) => assert!(more, "it must not look like the end"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::JournalForeign);
    assert_eq!(refusal(late.read(whole(10))).kind(), ErrorKind::JournalForeign);
    assert_eq!(read(&late, Position::START).unwrap().last().unwrap().0.commit_lsn, Lsn(600));
}

#[test]
fn a_directory_that_is_none_or_holds_no_journal_is_refused_with_the_cure() {
    let dir = tempfile::tempdir().unwrap();
    let missing = refusal(Reader::open(&dir.path().join("none")));
    assert_eq!(missing.kind(), ErrorKind::Disk);
    assert!(missing.hint().unwrap().contains("--dir"));
    let foreign = refusal(Reader::open(dir.path()));
    assert_eq!((foreign.kind(), foreign.message()), (ErrorKind::JournalForeign, "the directory holds no journal"));
    assert_eq!(refusal(verify(dir.path(), &mut Heard::default())).kind(), ErrorKind::JournalForeign);
}

#[test]
fn a_whole_journal_has_no_faults() {
    let (verified, faults) = faults(&written(50, &SMALL));
    assert_eq!(faults, []);
    assert_eq!((verified.transactions, verified.changes, verified.frames), (50, 50, 50));
}

#[test]
fn a_flipped_byte_is_found_with_its_place_and_the_rest_is_still_looked_at() {
    let disk = written(50, &SMALL);
    let names: Vec<String> = disk.files().into_keys().filter(|name| name.ends_with(".segment")).collect();
    let (length, second) = (disk.files()[&names[1]].len(), names[1].clone());
    let summary = reader(&disk).segments().unwrap()[1].clone();
    flip(&disk, &second, length - 1);
    let (verified, found) = faults(&disk);
    let [fault] = found.as_slice() else { panic!("{found:?}") };
    let last = summary.last.unwrap();
    assert_eq!((fault.file.as_str(), fault.what.as_str()), (second.as_str(), "a frame does not match its checksum"));
    assert_eq!(fault.offset, (length - 60) as u64);
    let until = Some(last);
    assert_eq!(fault.kind, FaultKind::Damaged { after: whole(last.commit_lsn.0 - 10), until });
    assert_eq!((verified.segments, verified.transactions), (names.len() as u64, 49));
    // Who reads comes to the same place and no further, and who is behind it reads on.
    let reader = reader(&disk);
    let error = refusal(read(&reader, Position::START));
    assert!(error.detail().unwrap().contains(&format!("{second}, at byte {}", fault.offset)));
    assert_eq!(read(&reader, last).unwrap().last().unwrap().0.commit_lsn, Lsn(500));
}

#[test]
fn in_the_last_segment_a_changed_frame_is_told_from_a_torn_end() {
    let disk = FakeDisk::new();
    append(open_fake(&disk, &LARGE).writer.as_mut(), &numbered(10));
    let name = disk.files().into_keys().find(|name| name.ends_with(".segment")).unwrap();
    let length = disk.files()[&name].len();
    let frame_bytes = 60;
    // In the checksum of a frame, in its head, and in its block.
    for place in [0, 20, 59] {
        let copy = disk.kill();
        flip(&copy, &name, length - 3 * frame_bytes + place);
        let (_, found) = faults(&copy);
        assert!(matches!(found[0].kind, FaultKind::Damaged { after, until: None } if after == whole(70)), "{found:?}");
    }
    for (cut, what) in [(1, "a frame is longer than the file"), (58, "the file ends within a frame")] {
        let copy = disk.kill();
        copy.put(&name, disk.files()[&name][..length - cut].to_vec());
        let (verified, found) = faults(&copy);
        assert_eq!((found[0].what.as_str(), found[0].kind, verified.transactions), (what, FaultKind::Unfinished, 9));
        assert_eq!(reader(&copy).last(), whole(90), "what was left unfinished is not shown");
    }
    flip(&disk, &name, length - 1);
    let found = faults(&disk).1;
    assert_eq!(
        found[0].kind,
        FaultKind::Unfinished,
        "nothing tells the last frame from a torn one that was not durable"
    );
}

#[test]
fn what_was_durable_is_damaged_at_the_very_end_too() {
    let disk = written(10, &LARGE);
    let name = disk.files().into_keys().find(|name| name.ends_with(".segment")).unwrap();
    let frame_bytes = 60;
    append(open_fake(&disk, &LARGE).writer.as_mut(), &[(transaction(200, 205, 20), message(b"last"))]);
    assert_eq!(faults(&disk).1, []);
    let durable = disk.files()[&name].len() - frame_bytes;
    let left = |length: usize| {
        let copy = disk.kill();
        copy.put(&name, disk.files()[&name][..length].to_vec());
        faults(&copy).1
    };
    assert_eq!(left(durable), []);
    assert_eq!(left(durable + 1)[0].kind, FaultKind::Unfinished);
    let damaged = FaultKind::Damaged { after: whole(90), until: None };
    for (length, what) in [
        (durable - frame_bytes, "the file ends before what was durable"),
        (durable - 1, "a frame is longer than the file"),
    ] {
        let found = left(length);
        assert_eq!((found[0].what.as_str(), found[0].kind), (what, damaged));
    }
    flip(&disk, &name, durable - 1);
    assert_eq!(faults(&disk).1[0].kind, damaged);
}

#[test]
fn an_open_transaction_at_the_end_is_unfinished_and_no_fault() {
    let disk = FakeDisk::new();
    let mut opened = open_fake(&disk, &LARGE);
    append(opened.writer.as_mut(), &[numbered(1), vec![half(30, false)]].concat());
    let (verified, found) = faults(&disk);
    assert_eq!(found[0].kind, FaultKind::Unfinished);
    assert_eq!((found[0].what.as_str(), verified.transactions), ("the last transaction is not complete", 1));
}

#[test]
fn damaged_heads_missing_segments_foreign_ones_and_positions_are_all_named() {
    let disk = written(50, &SMALL);
    let names: Vec<String> = disk.files().into_keys().filter(|name| name.ends_with(".segment")).collect();
    let other = SourceIdentity { slot: "other".into(), ..identity() };
    let foreign = written_by(&other, 50, &SMALL).files()[&names[5]].clone();
    disk.put(&names[5], foreign);
    flip(&disk, &names[1], 30);
    disk.put(&names[3], Vec::new());
    disk.put("positions", b"nonsense".to_vec());
    let (verified, found) = faults(&disk);
    let told: Vec<String> = found.iter().map(|fault| format!("{}: {}", fault.file, fault.what)).collect();
    assert_eq!(
        told,
        [
            format!("{}: the header does not match its checksum", names[1]),
            format!("{}: the header does not match its checksum", names[3]),
            format!("{}: the segment belongs to another database or slot than the first", names[5]),
            "positions: the file does not match its checksum".to_owned(),
        ]
    );
    assert_eq!(verified.segments, names.len() as u64 - 2, "what has a good head");
}

#[test]
fn a_survey_lists_what_a_damaged_head_and_a_gap_have_left() {
    let disk = written(50, &SMALL);
    let whole_one = reader(&disk).segments().unwrap();
    let names: Vec<String> = whole_one.iter().map(|segment| segment.file_name.clone()).collect();
    let listed = |index: usize| Surveyed::Listed(Box::new(whole_one[index].clone()));
    let all: Vec<Surveyed> = (0..names.len()).map(listed).collect();
    assert_eq!(survey_on(&disk).unwrap().segments, all, "of a whole journal it says what the reader says");
    flip(&disk, &names[1], 30);
    assert_eq!(refusal(Reader::open_on(Arc::new(disk.clone()))).kind(), ErrorKind::JournalCorrupt);
    let mut expected = all;
    let what = "the header does not match its checksum";
    expected[1] = Surveyed::Damaged { file_name: names[1].clone(), offset: 0, what };
    assert_eq!(survey_on(&disk).unwrap().segments, expected);
    disk.remove(&names[3]).unwrap();
    disk.remove(&names[4]).unwrap();
    expected.splice(3..5, [Surveyed::Missing(2)]);
    assert_eq!(survey_on(&disk).unwrap().segments, expected);
}

#[test]
fn what_the_examiner_cannot_use_is_a_fault_with_its_place() {
    let disk = written(4, &LARGE);
    let mut heard = Heard { refuses: Some(numbered(2)[1].1.clone()), ..Heard::default() };
    verify_on(&disk, &mut heard).unwrap();
    let fault = &heard.faults[0];
    assert_eq!(fault.what, "it means nothing");
    assert_eq!(fault.kind, FaultKind::Damaged { after: whole(10), until: None });
}

/// The slot alone would tell, and not what it is.
#[test]
fn a_newest_segment_that_is_missing_is_told_as_such_and_nothing_is_changed() {
    let disk = written(33, &SMALL);
    let before = disk.files();
    let segments: Vec<_> = before.keys().filter(|name| name.ends_with(".segment")).cloned().collect();
    let (newest, older) = segments.split_last().unwrap();
    assert!(older.len() > 1);
    Disk::remove(&disk, newest).unwrap();
    let left = disk.files();
    let error = refusal(open_on(Arc::new(disk.clone()), &identity(), &SMALL));
    assert_eq!(error.kind(), ErrorKind::JournalCorrupt);
    let (number, last) = (segments.len(), older.len());
    let told = format!("segment {number} was durable, and the newest here is segment {last}");
    assert!(error.report().contains(&told) && error.report().contains("remove the file synced"), "{}", error.report());
    assert_eq!(disk.files(), left);
    let (_, found) = faults(&disk);
    assert_eq!(found.iter().map(|fault| fault.what.as_str()).collect::<Vec<_>>(), [told.as_str()]);
    assert!(matches!(found[0].kind, FaultKind::Damaged { after, until: None } if after > whole(100)));

    // Put back, all is well; and whoever takes the note away goes on behind what is there.
    disk.put(newest, before[newest].clone());
    assert_eq!(faults(&disk).1, []);
    assert_eq!(open_on(Arc::new(disk.kill()), &identity(), &SMALL).unwrap().journal.appended(), Lsn(335));
    Disk::remove(&disk, newest).unwrap();
    Disk::remove(&disk, "synced").unwrap();
    let end = open_on(Arc::new(disk.kill()), &identity(), &SMALL).unwrap().journal.appended();
    assert!(end > Lsn(100) && end < Lsn(335), "{end}");
    for name in older {
        Disk::remove(&disk, name).unwrap();
    }
    disk.put("synced", before["synced"].clone());
    let error = refusal(open_on(Arc::new(disk.clone()), &identity(), &SMALL));
    assert!(error.report().contains("and there is none"), "{}", error.report());
}
