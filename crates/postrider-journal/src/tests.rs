//! What the doors promise, on the real disk and on the fake one.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::testing::{Chance, FakeDisk};
use crate::{Opened, Reader, Settings, SyncPoint, open, open_on};
use expect_test::expect;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{Follower, JournalWriter, Room, SchemaBlock, SourceIdentity};
use postrider_core::position::{Generation, Lsn, Position};
use postrider_core::time::Timestamp;
use postrider_core::transaction::{PART_BYTES_MAX, PartHead, PartKind, TransactionBatch, push_message};
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

pub(crate) fn identity() -> SourceIdentity {
    SourceIdentity {
        system_identifier: 7_300_000_000_000_000_001,
        timeline: 1,
        database: "quoting".to_owned(),
        slot: "postrider".to_owned(),
    }
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

pub(crate) fn message(bytes: &[u8]) -> Vec<u8> {
    let mut block = Vec::new();
    assert!(push_message(&mut block, bytes));
    block
}

pub(crate) fn transaction(commit: u64, end: u64, xid: u32) -> PartHead {
    PartHead {
        kind: PartKind::Transaction,
        commit_lsn: Lsn(commit),
        end_lsn: Lsn(end),
        xid,
        committed_at: Timestamp(i64::from(xid)),
        first_ordinal: 0,
        changes: 1,
        first: true,
        last: true,
    }
}

pub(crate) fn mark(end: u64) -> PartHead {
    PartHead { kind: PartKind::Mark, changes: 0, ..transaction(end, end, 0) }
}

/// All parts that the follower gives without waiting. Each poll is a call of its own, given up if it waits.
pub(crate) fn drain(follower: &mut dyn Follower) -> Result<Vec<(PartHead, Vec<u8>)>> {
    let mut found = Vec::new();
    let mut batch = TransactionBatch::new();
    let mut waited = 0;
    // A follower that passes over much waits once a read; at the end it waits for ever.
    while waited < 100 {
        let polled = block_on(async {
            let mut next = pin!(follower.next(&mut batch));
            poll_fn(|context| match next.as_mut().poll(context) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending => Poll::Ready(None),
            })
            .await
        });
        match polled {
            None => waited += 1,
            Some(result) => {
                result?;
                waited = 0;
                found.extend(batch.parts().map(|part| (part.head, part.block().to_vec())));
            }
        }
    }
    Ok(found)
}

pub(crate) fn open_fake(disk: &FakeDisk, settings: &Settings) -> Opened {
    open_on(Arc::new(disk.clone()), &identity(), settings).unwrap()
}

pub(crate) fn append(writer: &mut dyn JournalWriter, parts: &[(PartHead, Vec<u8>)]) -> Lsn {
    let mut batch = TransactionBatch::new();
    for (head, block) in parts {
        batch.push(*head, block);
    }
    writer.append(&batch, &SchemaBlock(message(b"Rnow"))).unwrap()
}

pub(crate) fn numbered(count: u32) -> Vec<(PartHead, Vec<u8>)> {
    let head = |n: u32| transaction(u64::from(n) * 10, u64::from(n) * 10 + 5, n);
    (1..=count).map(|n| (head(n), message(&n.to_le_bytes()))).collect()
}

pub(crate) fn whole(commit: u64) -> Position {
    Position::whole(Generation::FIRST, Lsn(commit))
}

pub(crate) fn refusal(result: Result<impl std::fmt::Debug>) -> Error {
    result.unwrap_err()
}

pub(crate) const SMALL: Settings = Settings { segment_bytes: 500, retain_bytes: 1_000, retain_age: None };

#[test]
fn what_is_appended_is_followed_and_found_again_on_the_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new").join("journal");
    let all = numbered(50);
    {
        let mut opened = open(&path, &identity(), &SMALL).unwrap();
        let mut live = opened.journal.follow(Position::START).unwrap();
        for parts in all.chunks(7) {
            append(opened.writer.as_mut(), parts);
        }
        assert_eq!(drain(live.as_mut()).unwrap(), all);
        assert_eq!(opened.journal.durable(), Lsn::ZERO);
        assert_eq!(block_on(opened.journal.durable_past(Lsn(10))).unwrap(), Lsn(505));
        block_on(opened.positions.save(&[("events".into(), whole(30))])).unwrap();
    }
    let opened = open(&path, &identity(), &SMALL).unwrap();
    assert_eq!((opened.journal.appended(), opened.journal.durable()), (Lsn(505), Lsn(505)));
    assert_eq!(opened.positions.load("events").unwrap(), Some(whole(30)));
    assert_eq!(opened.positions.load("others").unwrap(), None);
    for after in [0, 10, 115, 490, 500, 900] {
        let mut follower = opened.journal.follow(whole(after)).unwrap();
        let expected: Vec<_> = all.iter().filter(|(head, _)| head.commit_lsn.0 > after).cloned().collect();
        assert_eq!(drain(follower.as_mut()).unwrap(), expected, "after {after}");
    }
}

#[test]
fn a_second_process_is_told_which_directory_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let opened = open(dir.path(), &identity(), &SMALL).unwrap();
    let error = refusal(open(dir.path(), &identity(), &SMALL));
    assert_eq!(error.message(), "another process has the journal open");
    assert!(error.detail().unwrap().contains(&dir.path().display().to_string()));
    drop(opened);
    open(dir.path(), &identity(), &SMALL).unwrap();
}

#[test]
fn a_journal_of_another_source_is_refused_with_what_differs() {
    let disk = FakeDisk::new();
    drop(open_fake(&disk, &SMALL));
    let other = SourceIdentity { system_identifier: 8, slot: "other".to_owned(), ..identity() };
    let error = refusal(open_on(Arc::new(disk), &other, &SMALL));
    expect!["PR014 the journal belongs to another source. Of the journal in /fake, its system identifier is 7300000000000000001, the server's is 8; its slot is postrider, the server's is other. Connect to the server it belongs to, or give this one an empty directory. If this server is its successor (a restore, another cluster), `postrider adopt` goes on with it in a new generation."].assert_eq(&error.report());
}

#[test]
fn a_transaction_is_seen_with_its_last_part_and_a_partial_one_can_be_cut() {
    let disk = FakeDisk::new();
    let mut opened = open_fake(&disk, &SMALL);
    let mut follower = opened.journal.follow(Position::START).unwrap();
    let first = (PartHead { last: false, end_lsn: Lsn::ZERO, ..transaction(10, 15, 1) }, message(&[1; 600]));
    let second = (PartHead { first: false, first_ordinal: 1, ..transaction(10, 15, 1) }, message(b"2"));
    assert_eq!(append(opened.writer.as_mut(), std::slice::from_ref(&first)), Lsn::ZERO);
    assert_eq!(drain(follower.as_mut()).unwrap(), []);
    opened.writer.discard_partial().unwrap();
    opened.writer.discard_partial().unwrap();
    assert_eq!(append(opened.writer.as_mut(), std::slice::from_ref(&first)), Lsn::ZERO);
    assert_eq!(append(opened.writer.as_mut(), std::slice::from_ref(&second)), Lsn(15));
    assert_eq!(drain(follower.as_mut()).unwrap(), [first, second]);
}

#[test]
fn a_writer_out_of_order_is_stopped() {
    for wrong in
        [transaction(4, 9, 2), mark(4), PartHead { first: false, ..transaction(10, 12, 2) }, transaction(7, 7, 2)]
    {
        let mut opened = open_fake(&FakeDisk::new(), &SMALL);
        append(opened.writer.as_mut(), &[(transaction(1, 5, 1), Vec::new())]);
        let mut batch = TransactionBatch::new();
        batch.push(wrong, &[]);
        let error = refusal(opened.writer.append(&batch, &SchemaBlock::default()));
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert_eq!(opened.journal.appended(), Lsn(5));
    }
}

#[test]
fn one_fsync_serves_all_who_wait_and_none_happens_while_nobody_does() {
    let disk = FakeDisk::new();
    let mut opened = open_fake(&disk, &Settings::default());
    for parts in numbered(100).chunks(1) {
        append(opened.writer.as_mut(), parts);
    }
    assert_eq!(disk.syncs().get(&SyncPoint::SegmentData), None);
    block_on(async {
        let (one, other) = tokio::join!(opened.journal.durable_past(Lsn::ZERO), opened.journal.durable_past(Lsn(500)));
        assert_eq!((one.unwrap(), other.unwrap()), (Lsn(1_005), Lsn(1_005)));
    });
    assert_eq!(disk.syncs()[&SyncPoint::SegmentData], 1);
}

#[test]
fn a_large_transaction_is_on_its_way_to_the_disk_before_it_ends() {
    let disk = FakeDisk::new();
    let mut opened = open_fake(&disk, &Settings::default());
    let head = transaction(10, 15, 1);
    let block = message(&vec![7; 1 << 20]);
    let synced = || disk.syncs().get(&SyncPoint::SegmentData).copied().unwrap_or(0);
    for part in 0..31 {
        append(
            opened.writer.as_mut(),
            &[(
                PartHead { first: part == 0, first_ordinal: part, last: false, end_lsn: Lsn::ZERO, ..head },
                block.clone(),
            )],
        );
    }
    assert_eq!(synced(), 0);
    for part in 31..33 {
        append(
            opened.writer.as_mut(),
            &[(PartHead { first: false, first_ordinal: part, last: false, end_lsn: Lsn::ZERO, ..head }, block.clone())],
        );
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while synced() == 0 {
        assert!(Instant::now() < deadline, "nothing was synced");
        std::thread::yield_now();
    }
    assert_eq!(opened.journal.durable(), Lsn::ZERO, "and nothing is durable by that");
}

#[test]
fn a_follower_of_history_lets_others_have_a_turn_between_two_batches() {
    let mut opened = open_fake(&FakeDisk::new(), &Settings::default());
    let block = message(&vec![7; PART_BYTES_MAX]);
    for n in 1..=10 {
        append(opened.writer.as_mut(), &[(transaction(n * 10, n * 10 + 5, 1), block.clone())]);
    }
    let mut follower = opened.journal.follow(Position::START).unwrap();
    let (over, turns) = (Cell::new(false), Cell::new(0));
    block_on(async {
        let reading = async {
            let mut batch = TransactionBatch::new();
            for _ in 1..=10 {
                follower.next(&mut batch).await.unwrap();
            }
            over.set(true);
        };
        let other = async {
            while !over.get() {
                turns.set(turns.get() + 1);
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(reading, other);
    });
    assert!(turns.get() >= 9, "{} turns", turns.get());
}

#[test]
fn who_waits_for_what_is_not_appended_yet_is_served_when_it_is() {
    let mut opened = open_fake(&FakeDisk::new(), &SMALL);
    block_on(async {
        let journal = Arc::clone(&opened.journal);
        let (durable, ()) = tokio::join!(journal.durable_past(Lsn::ZERO), async {
            append(opened.writer.as_mut(), &numbered(1));
        });
        assert_eq!(durable.unwrap(), Lsn(15));
    });
}

#[test]
fn after_a_failed_write_nothing_is_accepted_and_the_rest_can_be_read() {
    let disk = FakeDisk::new();
    let mut opened = open_fake(&disk, &SMALL);
    append(opened.writer.as_mut(), &numbered(1));
    disk.power_off_after(0);
    let mut batch = TransactionBatch::new();
    batch.push(transaction(20, 25, 2), &[]);
    for _ in 0..2 {
        let error = refusal(opened.writer.append(&batch, &SchemaBlock::default()));
        assert_eq!((error.kind(), opened.journal.appended()), (ErrorKind::Disk, Lsn(15)));
        disk.power_off_after(1_000);
    }
    assert_eq!(drain(opened.journal.follow(Position::START).unwrap().as_mut()).unwrap(), numbered(1));
    drop(opened);
    assert_eq!(open_fake(&disk, &SMALL).journal.durable(), Lsn(15));
}

#[test]
fn after_a_failed_fsync_nothing_is_accepted() {
    let disk = FakeDisk::new();
    let mut opened = open_fake(&disk, &SMALL);
    append(opened.writer.as_mut(), &numbered(1));
    disk.power_off_after(0);
    assert_eq!(refusal(block_on(opened.journal.durable_past(Lsn::ZERO))).kind(), ErrorKind::Disk);
    disk.power_off_after(1_000);
    assert_eq!(refusal(block_on(opened.journal.durable_past(Lsn::ZERO))).kind(), ErrorKind::Disk);
    assert_eq!(
        refusal(opened.writer.append(&TransactionBatch::new(), &SchemaBlock::default())).kind(),
        ErrorKind::Disk
    );
    assert_eq!(refusal(block_on(opened.positions.save(&[]))).kind(), ErrorKind::Disk);
    assert_eq!(opened.journal.durable(), Lsn::ZERO);
}

/// Segments come, get their names and go while everybody works.
#[test]
fn writer_followers_and_syncs_go_on_side_by_side() {
    const COUNT: u32 = 3_000;
    let dir = tempfile::tempdir().unwrap();
    let opened =
        open(dir.path(), &identity(), &Settings { segment_bytes: 2_000, retain_bytes: 4_000, retain_age: None })
            .unwrap();
    let Opened { mut writer, journal, .. } = opened;
    let last = Lsn(u64::from(COUNT) * 10 + 5);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            let mut follower = journal.follow(Position::START).unwrap();
            threads.spawn(move || {
                let (mut found, mut batch) = (Vec::new(), TransactionBatch::new());
                while found.len() < numbered(COUNT).len() {
                    block_on(follower.next(&mut batch)).unwrap();
                    found.extend(batch.parts().map(|part| (part.head, part.block().to_vec())));
                }
                assert_eq!(found, numbered(COUNT));
            });
        }
        threads.spawn(|| {
            let mut durable = Lsn::ZERO;
            while durable < last {
                durable = block_on(journal.durable_past(durable)).unwrap();
            }
        });
        threads.spawn(move || {
            for parts in numbered(COUNT).chunks(3) {
                append(writer.as_mut(), parts);
            }
        });
    });
    assert_eq!(journal.durable(), last);
    journal.release(whole(last.0), Timestamp::default()).unwrap();
}

#[test]
fn the_schema_at_any_position_is_that_of_the_segment_and_what_was_passed_over() {
    let mut opened = open_fake(&FakeDisk::new(), &Settings { segment_bytes: 300, ..SMALL });
    let schema = |text: &[u8]| SchemaBlock(message(text));
    let mut append = |commit: u64, block: Vec<u8>, after: &[u8]| {
        let mut batch = TransactionBatch::new();
        batch.push(transaction(commit, commit + 5, 1), &block);
        opened.writer.append(&batch, &schema(after)).unwrap();
    };
    append(10, [message(b"Ra1"), message(b"Irow")].concat(), b"Ra1");
    append(20, [message(b"Ra2"), message(b"Yt1")].concat(), b"Ra2");
    append(30, [message(b"Ra1"), message(&[b'I'; 200])].concat(), b"Ra1");
    append(40, message(b"Irow"), b"unused");
    let schema_after = |after: u64| {
        let mut follower = opened.journal.follow(whole(after)).unwrap();
        let mut batch = TransactionBatch::new();
        block_on(follower.next(&mut batch)).unwrap();
        let first = follower.schema();
        assert_eq!(follower.schema(), None, "it is told once");
        first.unwrap().0
    };
    assert_eq!(schema_after(0), b"");
    assert_eq!(schema_after(10), message(b"Ra1"));
    assert_eq!(schema_after(20), [message(b"Ra1"), message(b"Ra2"), message(b"Yt1")].concat());
    assert_eq!(schema_after(30), message(b"Ra1"), "the head of the second segment");
}

#[test]
fn retention_keeps_what_is_not_released_and_tells_who_comes_too_late() {
    let disk = FakeDisk::new();
    let mut opened = open_fake(&disk, &SMALL);
    let mut early = opened.journal.follow(Position::START).unwrap();
    let all = numbered(100);
    for parts in all.chunks(5) {
        append(opened.writer.as_mut(), parts);
    }
    let segments = || disk.files().keys().filter(|name| name.contains("segment")).count();
    block_on(opened.journal.durable_past(Lsn::ZERO)).unwrap();
    let before = segments();
    // A save is done after retention has looked.
    block_on(opened.positions.save(&[])).unwrap();
    assert_eq!(segments(), before, "nothing was released");
    opened.journal.release(whole(500), Timestamp::default()).unwrap();
    block_on(opened.positions.save(&[])).unwrap();
    assert!(segments() < before);
    assert_eq!(drain(opened.journal.follow(whole(500)).unwrap().as_mut()).unwrap(), all[50..]);
    let error = refusal(opened.journal.follow(whole(20)));
    assert_eq!(error.kind(), ErrorKind::JournalForeign);
    let oldest = drain(opened.journal.follow(Position::START).unwrap().as_mut()).unwrap();
    assert!(all.ends_with(&oldest) && oldest.len() < all.len());
    assert_eq!(refusal(drain(early.as_mut())).kind(), ErrorKind::JournalForeign, "its next segment is gone");
}

/// Whoever only reads says the same, to the bytes that stand behind the last frame of each file.
fn check_read_room(opened: &Opened, disk: &FakeDisk, settings: &Settings, now: Timestamp) {
    let reader = Reader::open_on(Arc::new(disk.clone())).unwrap();
    let read = reader.room(settings.retain_bytes, settings.retain_age, now).unwrap();
    let of = |room: Room| (room.oldest, room.expired, room.over);
    assert_eq!(of(read), of(opened.journal.room(now)));
}

#[test]
fn the_room_says_what_has_to_go_by_size_and_a_little_before() {
    let disk = FakeDisk::new();
    let mut opened = open_fake(&disk, &SMALL);
    for parts in numbered(100).chunks(5) {
        append(opened.writer.as_mut(), parts);
    }
    let now = Timestamp::default();
    block_on(opened.journal.durable_past(Lsn::ZERO)).unwrap();
    let room = opened.journal.room(now);
    assert!(room.held_bytes > 2 * room.limit_bytes && room.limit_bytes == 1_000, "{room:?}");
    assert!(room.over.is_some() && room.near >= room.over && room.expired == room.over, "{room:?}");
    assert!(room.oldest < room.over.unwrap());
    check_read_room(&opened, &disk, &SMALL, now);
    opened.journal.release(room.over.unwrap(), now).unwrap();
    block_on(opened.positions.save(&[])).unwrap();
    let made = opened.journal.room(now);
    assert!(made.held_bytes <= made.limit_bytes && made.over.is_none() && Some(made.oldest) == room.over, "{made:?}");
}

/// The transactions were committed a microsecond after each other.
#[test]
fn retention_by_age_takes_what_is_old_and_not_needed_and_knows_the_times_again() {
    let disk = FakeDisk::new();
    let settings = Settings { retain_bytes: 1 << 20, retain_age: Some(Duration::from_micros(50)), ..SMALL };
    let mut opened = open_fake(&disk, &settings);
    for parts in numbered(100).chunks(5) {
        append(opened.writer.as_mut(), parts);
    }
    block_on(opened.journal.durable_past(Lsn::ZERO)).unwrap();
    assert_eq!(opened.journal.room(Timestamp(50)).expired, None, "nothing is older");
    let now = Timestamp(110);
    let room = opened.journal.room(now);
    let expired = room.expired.unwrap();
    assert!((Lsn(400)..Lsn(590)).contains(&expired.commit_lsn), "what was committed at 60 is kept: {room:?}");
    assert_eq!((room.over, room.near), (None, None), "there is room");
    check_read_room(&opened, &disk, &settings, now);
    opened.journal.release(Position::START, now).unwrap();
    block_on(opened.positions.save(&[])).unwrap();
    assert_eq!(opened.journal.room(now).oldest, room.oldest, "somebody needs it");
    opened.journal.release(whole(1_000), now).unwrap();
    block_on(opened.positions.save(&[])).unwrap();
    assert_eq!(opened.journal.room(now).oldest, expired);
    drop(opened);
    let opened = open_fake(&disk, &settings);
    assert_eq!(opened.journal.room(now).expired, None);
    assert!(opened.journal.room(Timestamp(140)).expired > Some(expired));
}

#[test]
fn a_follower_past_the_end_waits_for_what_comes_after_its_position() {
    let mut opened = open_fake(&FakeDisk::new(), &SMALL);
    append(opened.writer.as_mut(), &numbered(10));
    let mut follower = opened.journal.follow(whole(150)).unwrap();
    assert_eq!(drain(follower.as_mut()).unwrap(), []);
    append(opened.writer.as_mut(), &numbered(20)[10..]);
    assert_eq!(drain(follower.as_mut()).unwrap(), numbered(20)[15..]);
}

#[test]
fn a_commit_record_at_the_lsn_of_a_mark_is_not_passed_over() {
    let mut opened = open_fake(&FakeDisk::new(), &SMALL);
    let all = [(mark(10), Vec::new()), (transaction(10, 20, 1), Vec::new())];
    append(opened.writer.as_mut(), &all);
    assert_eq!(drain(opened.journal.follow(whole(9)).unwrap().as_mut()).unwrap(), all[1..]);
    assert_eq!(drain(opened.journal.follow(whole(8)).unwrap().as_mut()).unwrap(), all);
}

#[test]
fn parts_of_any_size_come_through() {
    let disk = FakeDisk::new();
    let mut opened = open_fake(&disk, &Settings { segment_bytes: 3_000_000, ..SMALL });
    let sizes = [0, 1, PART_BYTES_MAX - 100, PART_BYTES_MAX, PART_BYTES_MAX + 1, 3 * PART_BYTES_MAX, 2_000_000, 5];
    let all: Vec<_> =
        (1u32..).zip(sizes).map(|(n, size)| (numbered(n).pop().unwrap().0, message(&vec![7; size]))).collect();
    append(opened.writer.as_mut(), &all);
    append(opened.writer.as_mut(), &[(mark(1_000), Vec::new())]);
    let found = drain(opened.journal.follow(Position::START).unwrap().as_mut()).unwrap();
    assert_eq!(found.len(), all.len() + 1);
    assert!(found.starts_with(&all));
}

#[test]
fn a_damaged_frame_is_an_error_with_its_place_except_at_the_torn_end() {
    let disk = FakeDisk::new();
    let all = numbered(25);
    {
        let mut opened = open_fake(&disk, &SMALL);
        for parts in all.chunks(5) {
            append(opened.writer.as_mut(), parts);
        }
        block_on(opened.journal.durable_past(Lsn::ZERO)).unwrap();
    }
    let files = disk.kill().files();
    let segments: Vec<_> = files.keys().filter(|name| name.ends_with(".segment")).cloned().collect();
    let damage = |name: &str, at: usize| {
        let disk = disk.kill();
        let mut bytes = files[name].clone();
        bytes[at] ^= 1;
        disk.put(name, bytes);
        disk
    };
    let in_old = damage(&segments[0], 300);
    let opened = open_fake(&in_old, &SMALL);
    let error = refusal(drain(opened.journal.follow(Position::START).unwrap().as_mut()));
    expect!["PR015 the journal is damaged. In /fake, file 00000001-0000000000000000-00000001.segment, at byte 268: a frame does not match its checksum. Restore the directory from a copy, or start with an empty one and rebuild the consumers."].assert_eq(&error.report());

    let last = segments.last().unwrap();
    let length = files[last].len();
    let at_end = damage(last, length - 1);
    let error = refusal(open_on(Arc::new(at_end.kill()), &identity(), &SMALL));
    expect!["PR015 the journal is damaged. In /fake, file 00000001-00000000000000cd-00000003.segment, at byte 396: a frame does not match its checksum, and it was durable. Restore the file from a copy. Where that cannot be, remove the file synced beside it: the next start cuts the journal at its last whole transaction, and the server sends the rest again if it still has it; if it does not, the start says so."].assert_eq(&error.report());
    assert_eq!(at_end.files()[last].len(), length, "nothing was cut");
    // Without the note of the last fsync, and of a copy, it cannot be told from what a crash tore.
    crate::Disk::remove(&at_end, "synced").unwrap();
    assert_eq!(open_fake(&at_end, &SMALL).journal.appended(), Lsn(245));
    let copy = damage(last, length - 1);
    let bytes = copy.files()[last].clone();
    crate::Disk::remove(&copy, last).unwrap();
    copy.put(last, bytes);
    assert_eq!(open_fake(&copy, &SMALL).journal.appended(), Lsn(245));
    let error = refusal(open_on(Arc::new(damage(last, 3)), &identity(), &SMALL));
    assert_eq!(error.kind(), ErrorKind::JournalCorrupt);
    let missing = disk.kill();
    crate::Disk::remove(&missing, &segments[1]).unwrap();
    assert_eq!(refusal(open_on(Arc::new(missing), &identity(), &SMALL)).kind(), ErrorKind::JournalCorrupt);
}

#[test]
fn damaged_positions_are_an_error() {
    let disk = FakeDisk::new();
    {
        let opened = open_fake(&disk, &SMALL);
        block_on(opened.positions.save(&[("a".into(), whole(1))])).unwrap();
    }
    let bytes = disk.files()["positions"].clone();
    for bit in 0..bytes.len() * 8 {
        let disk = disk.kill();
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        disk.put("positions", bytes);
        assert_eq!(refusal(open_on(Arc::new(disk), &identity(), &SMALL)).kind(), ErrorKind::JournalCorrupt);
    }
}

/// Whatever stands in the files: an error, or the beginning of what was appended.
#[test]
fn no_content_of_the_files_is_believed_or_brings_the_process_down() {
    let disk = FakeDisk::new();
    let all = numbered(25);
    {
        let mut opened = open_fake(&disk, &SMALL);
        for parts in all.chunks(4) {
            append(opened.writer.as_mut(), parts);
        }
        block_on(opened.journal.durable_past(Lsn::ZERO)).unwrap();
    }
    let files = disk.kill().files();
    let names: Vec<_> = files.keys().filter(|name| name.contains("segment")).cloned().collect();
    let (mut errors, mut prefixes) = (0, 0);
    for seed in 0..3_000 {
        let mut chance = Chance::new(seed);
        let disk = disk.kill();
        for _ in 0..=chance.below(2) {
            let name = &names[usize::try_from(chance.below(u64::try_from(names.len()).unwrap())).unwrap()];
            disk.put(name, mutate(disk.files()[name].clone(), &mut chance));
        }
        if seed % 2 == 0 {
            // Nothing says how far it was durable.
            crate::Disk::remove(&disk, "synced").unwrap();
        }
        let found = open_on(Arc::new(disk), &identity(), &SMALL)
            .and_then(|opened| drain(opened.journal.follow(Position::START)?.as_mut()));
        match found {
            Ok(found) => {
                assert!(all.starts_with(&found), "seed {seed}");
                prefixes += 1;
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::JournalCorrupt | ErrorKind::JournalForeign), "seed {seed}");
                errors += 1;
            }
        }
    }
    assert!(errors > 100 && prefixes > 100, "both happen: {errors} errors, {prefixes} beginnings");
}

fn mutate(mut bytes: Vec<u8>, chance: &mut Chance) -> Vec<u8> {
    let at = usize::try_from(chance.below(u64::try_from(bytes.len()).unwrap())).unwrap();
    let length = usize::try_from(chance.below(80)).unwrap().min(bytes.len() - at);
    match chance.below(6) {
        0 => bytes[at] ^= 1 << chance.below(8),
        1 => bytes.truncate(at),
        2 => bytes[at..at + length].fill(u8::try_from(chance.below(256)).unwrap()),
        3 => drop(bytes.drain(at..at + length)),
        4 => {
            let copy = bytes[at..at + length].to_vec();
            bytes.splice(at..at, copy);
        }
        _ => bytes.extend((0..length).map(|_| u8::try_from(chance.below(256)).unwrap())),
    }
    bytes
}
