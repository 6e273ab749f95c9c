//! Streamed and prepared transactions, over a staging area in memory.

use super::memory::Memory;
use super::messages::{
    abort, begin, begin_prepare, commit_prepared, numbered, of, plain, prepare, rollback_prepared, start, stop,
    stream_commit, stream_prepare,
};
use super::{AT, check, commit, data_type, descriptions, logical, reason, relation, row, tags};
use crate::assemble::{AssembleError, Assembler};
use crate::error::Result;
use crate::pgoutput::{Message, TupleValue};
use crate::ports::Outcomes;
use crate::position::Lsn;
use crate::snapshot::Snapshot;
use crate::transaction::{PART_BYTES_MAX, TransactionBatch};
use expect_test::expect;
use proptest::strategy::Just;
use proptest::{prop_assert_eq, prop_oneof, proptest};
use std::collections::BTreeSet;

/// Pushes and copies, as the intake does.
fn feed(assembler: &mut Assembler, messages: &[Vec<u8>]) -> Result<TransactionBatch> {
    let mut batch = TransactionBatch::new();
    for message in messages {
        assembler.push(message, &mut batch)?;
        while assembler.is_copying() {
            assembler.copy(&mut batch)?;
        }
    }
    Ok(batch)
}

/// The numbers of the rows in a batch, each with its commit LSN and ordinal.
fn rows(batch: &TransactionBatch) -> Vec<(u64, u64, u32)> {
    let mut rows = Vec::new();
    for part in batch.parts() {
        let mut ordinal = part.head.first_ordinal;
        for message in part.messages() {
            let Message::Insert(insert) = Message::parse(message).unwrap() else { continue };
            let Some(TupleValue::Text(text)) = insert.new.columns().next() else { panic!("no value") };
            rows.push((part.head.commit_lsn.0, ordinal, std::str::from_utf8(text).unwrap().parse().unwrap()));
            ordinal += 1;
        }
    }
    rows
}

fn fails(messages: &[Vec<u8>]) -> AssembleError {
    reason(&feed(&mut Memory::default().assembler(0), messages).expect_err("an error"))
}

#[test]
fn a_streamed_transaction_comes_out_as_if_it_had_come_whole() {
    let staging = Memory::default();
    let mut assembler = staging.assembler(0);
    let origin = b"O\0\0\0\0\0\0\0\x03other\0".to_vec();
    let first = [start(9, true), origin, of(9, &data_type(5)), of(9, &relation(1, "a")), numbered(9, 1), stop()];
    assert!(feed(&mut assembler, &first).unwrap().is_empty());
    assert!(!assembler.in_transaction(), "a mark may come between chunks");
    let rest =
        [start(9, false), numbered(9, 2), of(9, &logical(true)), numbered(10, 3), stop(), stream_commit(9, 0x100)];
    check(
        &feed(&mut assembler, &rest).unwrap(),
        expect![[r#"
            Transaction 0/100 end 0/130 xid 9 first last ordinal 0 changes 3 OYRIIMI
        "#]],
    );
    assert_eq!((assembler.received_end(), tags(assembler.schema()).as_str()), (Lsn(0x130), "YR"));
    assert!(staging.open().is_empty());
}

#[test]
fn streamed_transactions_interleave_with_each_other_and_with_whole_ones() {
    let mut assembler = Memory::default().assembler(0);
    let messages = [
        start(9, true),
        numbered(9, 1),
        stop(),
        start(20, true),
        numbered(20, 100),
        stop(),
        begin(30, 0x100),
        plain(7),
        commit(0x100, 0x110),
        start(9, false),
        numbered(9, 2),
        stop(),
        stream_commit(20, 0x200),
        begin(31, 0x300),
        plain(8),
        commit(0x300, 0x310),
        stream_commit(9, 0x400),
    ];
    let found = rows(&feed(&mut assembler, &messages).unwrap());
    assert_eq!(found, [(0x100, 0, 7), (0x200, 0, 100), (0x300, 0, 8), (0x400, 0, 1), (0x400, 1, 2)]);
}

#[test]
fn an_abort_cuts_a_savepoint_with_all_that_nests_in_it() {
    let mut assembler = Memory::default().assembler(0);
    // Savepoint 10 holds 11 (released), whose message belongs to it; the parent's first row comes after its child's.
    let messages = [
        start(9, true),
        numbered(9, 1),
        numbered(11, 2),
        of(9, &logical(true)),
        numbered(10, 3),
        stop(),
        start(9, false),
        numbered(10, 4),
        stop(),
        abort(9, 11),
        abort(9, 10),
        start(9, false),
        numbered(9, 5),
        numbered(12, 6),
        stop(),
        stream_commit(9, 0x100),
    ];
    let batch = feed(&mut assembler, &messages).unwrap();
    assert_eq!(rows(&batch), [(0x100, 0, 1), (0x100, 1, 5), (0x100, 2, 6)]);
    check(
        &batch,
        expect![[r#"
            Transaction 0/100 end 0/130 xid 9 first last ordinal 0 changes 3 III
        "#]],
    );
}

#[test]
fn an_aborted_transaction_leaves_nothing_and_a_stray_abort_does_nothing() {
    let staging = Memory::default();
    let mut assembler = staging.assembler(0);
    let messages = [start(9, true), numbered(9, 1), stop(), abort(9, 9), abort(77, 77), abort(77, 78)];
    assert!(feed(&mut assembler, &messages).unwrap().is_empty());
    assert!(staging.open().is_empty());
    let unstreamed = &mut Assembler::new(Lsn::ZERO);
    unstreamed.push(&abort(77, 77), &mut TransactionBatch::new()).unwrap();
}

/// A logical message names the whole transaction only. Right before the first row of a savepoint it may belong to it.
#[test]
fn messages_that_may_go_with_a_savepoint_are_asked_for_again() {
    let before = [start(9, true), numbered(9, 1), of(9, &logical(true)), numbered(10, 2), stop(), abort(9, 10)];
    assert_eq!(fails(&before), AssembleError::DoubtfulAbort { xid: 9 });
    let alone = [start(9, true), numbered(9, 1), of(9, &logical(true)), stop(), abort(9, 10)];
    assert_eq!(fails(&alone), AssembleError::DoubtfulAbort { xid: 9 });
    // What stands behind a row is of the savepoint, and one of nothing else leaves nothing.
    let clear = [
        start(9, true),
        of(9, &logical(true)),
        numbered(9, 1),
        numbered(10, 2),
        of(9, &logical(true)),
        stop(),
        abort(9, 10),
        abort(9, 11),
        stream_commit(9, 0x100),
    ];
    check(
        &feed(&mut Memory::default().assembler(0), &clear).unwrap(),
        expect![[r#"
            Transaction 0/100 end 0/130 xid 9 first last ordinal 0 changes 1 MI
        "#]],
    );
}

#[test]
fn what_cannot_be_taken_before_its_commit_is_wanted_whole_of_the_next_connection() {
    let staging = Memory::default();
    let mut assembler = staging.assembler(0);
    staging.0.lock().unwrap().full = true;
    let error = feed(&mut assembler, &[start(9, true), numbered(9, 1)]).unwrap_err();
    assert_eq!(reason(&error), AssembleError::StagingFull { xid: 9 });
    expect!["PR012 a transaction cannot be taken before its commit: the staging area is full at transaction 9. It is read again, whole and after its commit: the server keeps it on its own disk until then."].assert_eq(&error.report());
    assembler.restart().unwrap();
    assert!(assembler.wants_whole());
    assembler.restart().unwrap();
    assert!(assembler.wants_whole(), "no connection was to be had");
    // The transaction rolls back, and a server that does not stream says nothing of that.
    feed(&mut assembler, &[begin(8, 0x100), plain(1), commit(0x100, 0x110)]).unwrap();
    assert!(!assembler.wants_whole());
}

#[test]
fn what_commits_below_the_end_of_the_journal_is_dropped() {
    let staging = Memory::default();
    let mut assembler = staging.assembler(0x130);
    let messages = [start(9, true), numbered(9, 1), stop(), stream_commit(9, 0x100)];
    assert!(feed(&mut assembler, &messages).unwrap().is_empty());
    assert!(staging.open().is_empty());
    let next = [start(10, true), numbered(10, 1), stop(), stream_commit(10, 0x130)];
    assert_eq!(rows(&feed(&mut assembler, &next).unwrap()), [(0x130, 0, 1)]);
}

#[test]
fn a_lost_connection_forgets_what_is_in_progress_and_keeps_what_is_prepared() {
    let staging = Memory::default();
    let mut assembler = staging.assembler(0);
    let prepared = [begin_prepare(8, "g", 0x100), relation(1, "a"), plain(1), prepare(8, "g", 0x100)];
    feed(&mut assembler, &[&prepared[..], &[start(9, true), numbered(9, 1), stop()]].concat()).unwrap();
    assembler.restart().unwrap();
    assert_eq!((staging.open(), staging.prepared()), (vec![], vec![8]));
    let error = feed(&mut assembler, &[stream_commit(9, 0x200)]).unwrap_err();
    assert_eq!(reason(&error), AssembleError::UnknownStream { xid: 9 });
}

#[test]
fn a_large_streamed_transaction_passes_through_little_memory() {
    let staging = Memory::default();
    let mut assembler = staging.assembler(0);
    let large = row(PART_BYTES_MAX / 3);
    let mut batch = TransactionBatch::new();
    assembler.push(&start(9, true), &mut batch).unwrap();
    for _ in 0..40 {
        assembler.push(&of(9, &large), &mut batch).unwrap();
    }
    assembler.push(&stop(), &mut batch).unwrap();
    assert!(staging.0.lock().unwrap().block_bytes <= PART_BYTES_MAX);
    assembler.push(&stream_commit(9, 0x100), &mut batch).unwrap();
    let mut changes = 0;
    while assembler.is_copying() {
        assert!(batch.is_empty());
        assembler.copy(&mut batch).unwrap();
        assert!(batch.byte_len() <= 3 * PART_BYTES_MAX, "{} bytes", batch.byte_len());
        changes += batch.parts().map(|part| part.head.changes).sum::<u32>();
        batch.clear();
    }
    assert_eq!(changes, 40);
}

#[test]
fn a_prepared_transaction_waits_for_its_verdict() {
    let staging = Memory::default();
    let mut assembler = staging.assembler(0);
    let messages = [
        begin_prepare(8, "g", 0x100),
        relation(1, "a"),
        plain(1),
        prepare(8, "g", 0x100),
        begin_prepare(9, "h", 0x200),
        plain(2),
        prepare(9, "h", 0x200),
        start(10, true),
        of(10, &relation(1, "a")),
        numbered(10, 3),
        numbered(11, 4),
        stop(),
        abort(10, 11),
        stream_prepare(10, "i", 0x280),
        begin(30, 0x300),
        plain(7),
        commit(0x300, 0x310),
        commit_prepared(10, "i", 0x380),
        rollback_prepared(9, "h", 0x400),
        commit_prepared(8, "g", 0x500),
    ];
    let batch = feed(&mut assembler, &messages).unwrap();
    check(
        &batch,
        expect![[r#"
            Transaction 0/300 end 0/310 xid 30 first last ordinal 0 changes 1 RI
            Transaction 0/380 end 0/3B0 xid 10 first last ordinal 0 changes 1 I
            Transaction 0/500 end 0/530 xid 8 first last ordinal 0 changes 1 I
        "#]],
    );
    assert_eq!(rows(&batch), [(0x300, 0, 7), (0x380, 0, 3), (0x500, 0, 1)]);
    assembler.release(Lsn(0x400)).unwrap();
    assert_eq!(staging.prepared(), [8, 9], "the journal is not durable as far as their verdicts");
    assembler.release(Lsn(0x530)).unwrap();
    assert!(staging.prepared().is_empty());
}

/// A crash may come at any place between the verdict and the moment when it is durable in the journal.
#[test]
fn a_prepared_transaction_lives_through_restarts() {
    let staging = Memory::default();
    let messages = [begin_prepare(8, "g", 0x100), relation(1, "a"), plain(1), prepare(8, "g", 0x100)];
    feed(&mut staging.assembler(0), &messages).unwrap();
    // The slot is confirmed past the prepare: it is not sent again. The journal loses what came of the verdict, twice.
    for _ in 0..2 {
        let mut assembler = staging.assembler(0x180);
        let batch = feed(&mut assembler, &[commit_prepared(8, "g", 0x200)]).unwrap();
        check(
            &batch,
            expect![[r#"
                Transaction 0/200 end 0/230 xid 8 first last ordinal 0 changes 1 RI
            "#]],
        );
        assembler.release(Lsn(0x180)).unwrap();
    }
    let mut assembler = staging.assembler(0x230);
    assembler.release(Lsn(0x230)).unwrap();
    assert!(staging.prepared().is_empty());
    // Sent again from before the end of the journal, as a server does that forgot our confirmation.
    assert!(feed(&mut assembler, &[commit_prepared(8, "g", 0x200)]).unwrap().is_empty());
}

#[test]
fn a_prepare_that_comes_again_takes_the_place_of_the_first() {
    let mut assembler = Memory::default().assembler(0);
    let once = [begin_prepare(8, "g", 0x100), relation(1, "a"), plain(1), prepare(8, "g", 0x100)];
    let messages = [&once[..], &once, &[commit_prepared(8, "g", 0x200)]].concat();
    assert_eq!(rows(&feed(&mut assembler, &messages).unwrap()), [(0x200, 0, 1)]);
}

#[test]
fn an_unknown_verdict_is_an_error_with_the_cure_or_nothing() {
    let mut assembler = Memory::default().assembler(0);
    assert!(feed(&mut assembler, &[rollback_prepared(8, "g", 0x100)]).unwrap().is_empty());
    let error = feed(&mut assembler, &[commit_prepared(8, "g", 0x200)]).unwrap_err();
    expect![[r#"PR014 a prepared transaction was committed that the journal does not hold. It is transaction 8, prepared as "g": the server sent it before, and the journal's directory no longer has it. If the journal's `staging` folder was moved or lost, put it back. To go on without the transaction, drop the slot, run `postrider setup`, start with an empty journal, and bring its rows to the consumers by hand, and those of all that was committed since."#]].assert_eq(&error.report());
}

/// The server counts on a description from the prepare on, even if the transaction is rolled back.
#[test]
fn a_description_within_a_prepared_transaction_reaches_the_next_ordinary_one() {
    let mut assembler = Memory::default().assembler(0);
    let messages = [
        begin_prepare(8, "g", 0x100),
        relation(1, "a"),
        plain(1),
        prepare(8, "g", 0x100),
        rollback_prepared(8, "g", 0x180),
        begin(9, 0x200),
        plain(2),
        commit(0x200, 0x210),
    ];
    check(
        &feed(&mut assembler, &messages).unwrap(),
        expect![[r#"
            Transaction 0/200 end 0/210 xid 9 first last ordinal 0 changes 1 RI
        "#]],
    );
    assert_eq!(tags(assembler.schema()), "R");
}

/// A transaction prepared without a description of its own has the one in force with it, wherever the journal stands later.
#[test]
fn a_prepared_transaction_brings_the_descriptions_in_force() {
    let staging = Memory::default();
    let mut assembler = staging.assembler(0);
    let messages = [
        begin(7, 0x80),
        relation(1, "a"),
        plain(1),
        commit(0x80, 0x90),
        begin_prepare(8, "g", 0x100),
        plain(2),
        prepare(8, "g", 0x100),
    ];
    feed(&mut assembler, &messages).unwrap();
    check(
        &feed(&mut staging.assembler(0x150), &[commit_prepared(8, "g", 0x200)]).unwrap(),
        expect![[r#"
            Transaction 0/200 end 0/230 xid 8 first last ordinal 0 changes 1 RI
        "#]],
    );
}

/// A description that came outside of a stream while it was in progress is the later one, though the stream commits after it.
#[test]
fn an_older_description_of_a_stream_does_not_outlive_its_transaction() {
    let mut assembler = Memory::default().assembler(0);
    let messages = [
        start(9, true),
        of(9, &relation(1, "old")),
        numbered(9, 1),
        stop(),
        begin(10, 0x100),
        relation(1, "new"),
        plain(2),
        commit(0x100, 0x110),
        stream_commit(9, 0x200),
        begin(11, 0x300),
        plain(3),
        commit(0x300, 0x310),
    ];
    check(
        &feed(&mut assembler, &messages).unwrap(),
        expect![[r#"
            Transaction 0/100 end 0/110 xid 10 first last ordinal 0 changes 1 RI
            Transaction 0/200 end 0/230 xid 9 first last ordinal 0 changes 1 RI
            Transaction 0/300 end 0/310 xid 11 first last ordinal 0 changes 1 RI
        "#]],
    );
    assert_eq!(descriptions(&mut assembler), [relation(1, "new")]);
}

#[test]
fn what_cannot_stand_there_is_an_error() {
    let chunk = start(9, true);
    assert_eq!(fails(&[start(9, false)]), AssembleError::UnknownStream { xid: 9 });
    assert_eq!(fails(&[stream_commit(9, 0x100)]), AssembleError::UnknownStream { xid: 9 });
    assert_eq!(fails(&[stream_prepare(9, "g", 0x100)]), AssembleError::UnknownStream { xid: 9 });
    assert_eq!(fails(&[stop()]), AssembleError::OutsideTransaction(b'E'));
    assert_eq!(fails(&[prepare(9, "g", 0x100)]), AssembleError::OutsideTransaction(b'P'));
    for within in [start(10, true), begin(10, 0x100), begin_prepare(10, "g", 0x100)] {
        assert_eq!(fails(&[chunk.clone(), within.clone()]), AssembleError::NestedBegin);
        assert_eq!(fails(&[begin_prepare(9, "g", 0x80), within.clone()]), AssembleError::NestedBegin);
        assert_eq!(fails(&[begin(9, 0x80), within]), AssembleError::NestedBegin);
    }
    assert_eq!(fails(&[chunk.clone(), commit(1, 2)]), AssembleError::OutsideTransaction(b'C'));
    assert_eq!(fails(&[chunk.clone(), abort(9, 9)]), AssembleError::OutsideTransaction(b'A'));
    assert_eq!(fails(&[chunk.clone(), b"x".to_vec()]), AssembleError::UnknownMessage(b'x'));
    let mismatch = AssembleError::CommitMismatch { begun: Lsn(0x80), committed: Lsn(0x90) };
    assert_eq!(fails(&[begin_prepare(9, "g", 0x80), prepare(9, "g", 0x90)]), mismatch);
    let disorder = AssembleError::OutOfOrder { commit_lsn: Lsn(0x80), end_lsn: Lsn(0x110) };
    let late = [chunk, stop(), begin(10, 0x100), commit(0x100, 0x110), stream_commit(9, 0x80)];
    assert_eq!(fails(&late), disorder);
}

#[test]
fn no_message_may_come_before_the_copy_is_done() {
    let mut assembler = Memory::default().assembler(0);
    let mut batch = TransactionBatch::new();
    for message in [start(9, true), numbered(9, 1), stop(), stream_commit(9, 0x100)] {
        assembler.push(&message, &mut batch).unwrap();
    }
    assert!(!assembler.mark(Lsn(0x900), AT, &mut batch));
    let error = assembler.push(&begin(10, 0x200), &mut batch).unwrap_err();
    assert_eq!(reason(&error), AssembleError::CopyPending);
}

/// One step of a transaction with savepoints.
#[derive(Debug, Clone, Copy)]
enum Step {
    Row,
    Save,
    Release,
    RollBack,
    /// The chunk ends, and another begins.
    Chunk,
}

proptest! {
    /// However savepoints nest, a streamed transaction leaves the rows that a database would.
    #[test]
    fn what_is_left_is_what_a_database_would_have(
        steps in proptest::collection::vec(prop_oneof![
            4 => Just(Step::Row), 3 => Just(Step::Save), 2 => Just(Step::Release), 2 => Just(Step::RollBack),
            2 => Just(Step::Chunk),
        ], 0..60),
    ) {
        const TOP: u32 = u32::MAX - 3;
        // A savepoint has an id once it writes, its parents before it; modulo 2^32.
        #[derive(Default)]
        struct Level { xid: Option<u32>, rows: Vec<u32>, children: BTreeSet<u32> }
        let mut levels = vec![Level { xid: Some(TOP), ..Level::default() }];
        let (mut next_xid, mut number) = (TOP, 0);
        let mut messages = vec![start(TOP, true)];
        for step in steps {
            match step {
                Step::Row => {
                    number += 1;
                    for level in &mut levels {
                        if level.xid.is_none() {
                            next_xid = next_xid.wrapping_add(1);
                            level.xid = Some(next_xid);
                        }
                    }
                    let level = levels.last_mut().unwrap();
                    level.rows.push(number);
                    messages.push(numbered(level.xid.unwrap(), number));
                }
                Step::Save => levels.push(Level::default()),
                Step::Release if levels.len() > 1 => {
                    let released = levels.pop().unwrap();
                    let parent = levels.last_mut().unwrap();
                    parent.rows.extend(released.rows);
                    parent.children.extend(released.children);
                    parent.children.extend(released.xid);
                }
                Step::RollBack if levels.len() > 1 => {
                    let aborted = levels.pop().unwrap();
                    messages.push(stop());
                    let aborts = aborted.children.into_iter().chain(aborted.xid);
                    messages.extend(aborts.map(|subxid| abort(TOP, subxid)));
                    messages.push(start(TOP, false));
                }
                Step::Chunk => messages.extend([stop(), start(TOP, false)]),
                Step::Release | Step::RollBack => {}
            }
        }
        messages.extend([stop(), stream_commit(TOP, 0x100)]);
        let left: Vec<u32> = levels.into_iter().flat_map(|level| level.rows).collect();
        let batch = feed(&mut Memory::default().assembler(0), &messages).unwrap();
        let found: Vec<u32> = rows(&batch).into_iter().map(|(_, _, number)| number).collect();
        prop_assert_eq!(found, left);
    }
}

/// The gid is used again by a transaction that is still prepared, and another one waits.
#[test]
fn what_was_decided_before_the_stream_is_missed_once_the_stream_is_past_the_decision() {
    let staging = Memory::default();
    let mut assembler = staging.assembler(0);
    let mut messages = Vec::new();
    for (number, xid) in [(1, 9), (2, 10), (3, 11)] {
        let at = 0x100 * u64::from(number);
        messages.extend([begin_prepare(xid, "g", at), plain(number), prepare(xid, "g", at)]);
    }
    feed(&mut assembler, &messages).unwrap();
    assembler.skip_to(Lsn(0x1000)).unwrap();
    let snapshot = Snapshot::parse("4294967306:4294967330:4294967306").expect("a snapshot");
    assembler.expect_verdicts(&Outcomes { snapshot, logged: Lsn(0x2030) });
    let behind = [begin(20, 0x1800), plain(4), commit(0x1800, 0x1830)];
    feed(&mut assembler, &behind).unwrap();
    assert_eq!(assembler.missed(), [], "the verdict may still come");
    feed(&mut assembler, &[commit_prepared(11, "g", 0x2000)]).unwrap();
    let missed = assembler.missed();
    assert_eq!(
        missed.iter().map(|missed| (missed.prepared.xid, missed.full_xid)).collect::<Vec<_>>(),
        [(9, (1 << 32) + 9)]
    );
    assert_eq!(assembler.missed(), [], "it is told of once");
    assembler.give_up(&missed[0]).unwrap();
    assembler.release(Lsn(0x2030)).unwrap();
    assert_eq!(staging.prepared(), [10]);
}
