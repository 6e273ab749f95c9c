#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod held;
mod memory;
mod messages;

use super::*;
use crate::pgoutput::{Commit, DataType, LogicalMessage, Origin, TupleValue, encode};
use crate::relation::{Column, Relation, ReplicaIdentity};
use crate::transaction::Messages;
use expect_test::{Expect, expect};
use proptest::prelude::*;
use std::fmt::Write;

const AT: Timestamp = Timestamp(1_700_000_000_000_000);

fn message(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    bytes
}

fn begin(lsn: u64) -> Vec<u8> {
    let begin = Begin { final_lsn: Lsn(lsn), committed_at: AT, xid: 7 };
    message(|out| encode::begin(out, &begin))
}

fn commit(lsn: u64, end: u64) -> Vec<u8> {
    let commit = Commit { flags: 0, commit_lsn: Lsn(lsn), end_lsn: Lsn(end), committed_at: AT };
    message(|out| encode::commit(out, &commit))
}

fn row(bytes: usize) -> Vec<u8> {
    let value = vec![b'x'; bytes];
    message(|out| encode::insert(out, 1, &[TupleValue::Text(&value)]))
}

fn logical(transactional: bool) -> Vec<u8> {
    let logical = LogicalMessage { transactional, lsn: Lsn(1), prefix: "p", content: b"c" };
    message(|out| encode::logical_message(out, &logical))
}

fn relation(oid: u32, name: &str) -> Vec<u8> {
    let column = Column { name: "id".into(), type_oid: 23, type_modifier: -1, key: true };
    let relation = Relation {
        oid,
        schema: "public".into(),
        name: name.into(),
        replica_identity: ReplicaIdentity::Default,
        columns: vec![column],
    };
    message(|out| encode::relation(out, &relation))
}

fn data_type(oid: u32) -> Vec<u8> {
    message(|out| encode::data_type(out, &DataType { oid, schema: "public", name: "mood" }))
}

fn reason(error: &Error) -> AssembleError {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<AssembleError>());
    source.unwrap_or_else(|| panic!("another error: {error:?}")).clone()
}

fn push_all(assembler: &mut Assembler, messages: &[Vec<u8>]) -> TransactionBatch {
    let mut batch = TransactionBatch::new();
    for message in messages {
        assembler.push(message, &mut batch).unwrap();
    }
    batch
}

fn check(batch: &TransactionBatch, expected: Expect) {
    let mut text = String::new();
    for part in batch.parts() {
        let head = part.head;
        let tags: String = part.messages().map(|message| char::from(message[0])).collect();
        let edges = format!("{}{}", if head.first { "first " } else { "" }, if head.last { "last " } else { "" });
        writeln!(
            text,
            "{:?} {} end {} xid {} {edges}ordinal {} changes {} {tags}",
            head.kind, head.commit_lsn, head.end_lsn, head.xid, head.first_ordinal, head.changes
        )
        .unwrap();
    }
    expected.assert_eq(&text);
}

fn descriptions(assembler: &mut Assembler) -> Vec<Vec<u8>> {
    Messages::new(&assembler.schema().0).map(<[u8]>::to_vec).collect()
}

fn tags(schema: &SchemaBlock) -> String {
    Messages::new(&schema.0).map(|message| char::from(message[0])).collect()
}

#[test]
fn a_transaction_becomes_one_part_without_begin_and_commit() {
    let mut assembler = Assembler::new(Lsn::ZERO);
    let origin = message(|out| encode::origin(out, &Origin { commit_lsn: Lsn(3), name: "other" }));
    let mut batch = TransactionBatch::new();
    assembler.push(&begin(0x100), &mut batch).unwrap();
    assert!(assembler.in_transaction());
    let rest = [origin, relation(1, "a"), row(1), logical(true), logical(false), row(2), commit(0x100, 0x130)];
    for message in rest {
        assembler.push(&message, &mut batch).unwrap();
    }
    assert!(!assembler.in_transaction());
    assert_eq!((assembler.received_end(), assembler.ignored_messages()), (Lsn(0x130), 1));
    check(
        &batch,
        expect![[r#"
        Transaction 0/100 end 0/130 xid 7 first last ordinal 0 changes 2 ORIMI
    "#]],
    );
    assert_eq!(batch.parts().next().unwrap().head.committed_at, AT);
}

/// A ends where B's commit record starts. After a restart at A's end the server sends B only, but a server that forgot
/// our confirmation sends A, too: A goes, B stays.
#[test]
fn only_what_commits_below_the_end_of_the_journal_is_dropped() {
    let resent = [begin(0x100), row(1), commit(0x100, 0x130), begin(0x130), row(1), commit(0x130, 0x160)];
    check(
        &push_all(&mut Assembler::new(Lsn(0x130)), &resent),
        expect![[r#"
        Transaction 0/130 end 0/160 xid 7 first last ordinal 0 changes 1 I
    "#]],
    );
    check(
        &push_all(&mut Assembler::new(Lsn(0x100)), &resent),
        expect![[r#"
        Transaction 0/100 end 0/130 xid 7 first last ordinal 0 changes 1 I
        Transaction 0/130 end 0/160 xid 7 first last ordinal 0 changes 1 I
    "#]],
    );
    assert!(push_all(&mut Assembler::new(Lsn(0x160)), &resent).is_empty());
}

#[test]
fn a_large_transaction_comes_in_parts_whose_ordinals_go_on() {
    let mut assembler = Assembler::new(Lsn::ZERO);
    let third = PART_BYTES_MAX / 3;
    let messages = [
        begin(0x100),
        relation(1, "a"),
        row(third),
        row(third),
        row(third),
        row(2 * PART_BYTES_MAX),
        row(1),
        commit(0x100, 0x130),
    ];
    check(
        &push_all(&mut assembler, &messages),
        expect![[r#"
        Transaction 0/100 end 0/0 xid 7 first ordinal 0 changes 2 RII
        Transaction 0/100 end 0/0 xid 7 ordinal 2 changes 1 I
        Transaction 0/100 end 0/0 xid 7 ordinal 3 changes 1 I
        Transaction 0/100 end 0/130 xid 7 last ordinal 4 changes 1 I
    "#]],
    );
}

#[test]
fn a_large_transaction_in_the_journal_leaves_no_part_when_it_comes_again() {
    let messages = [begin(0x100), row(PART_BYTES_MAX), row(PART_BYTES_MAX), row(1), commit(0x100, 0x130)];
    assert!(push_all(&mut Assembler::new(Lsn(0x130)), &messages).is_empty());
}

#[test]
fn a_lost_connection_forgets_the_open_transaction_and_the_schema() {
    let mut assembler = Assembler::new(Lsn::ZERO);
    let complete = [begin(0x100), relation(1, "a"), row(1), commit(0x100, 0x130)];
    push_all(&mut assembler, &complete);
    push_all(&mut assembler, &[begin(0x140), row(1), row(PART_BYTES_MAX)]);
    assembler.restart().unwrap();
    assert!(!assembler.in_transaction());
    assert_eq!((assembler.received_end(), tags(assembler.schema()).as_str()), (Lsn(0x130), ""));
    let resent = [&complete[..], &[begin(0x140), relation(1, "a"), row(1), row(1), commit(0x140, 0x170)]].concat();
    check(
        &push_all(&mut assembler, &resent),
        expect![[r#"
        Transaction 0/140 end 0/170 xid 7 first last ordinal 0 changes 2 RII
    "#]],
    );
    assert_eq!(tags(assembler.schema()), "R");
}

#[test]
fn an_empty_transaction_leaves_no_part_and_the_next_mark_moves_over_it() {
    let mut assembler = Assembler::new(Lsn(0x80));
    let mut batch = push_all(&mut assembler, &[begin(0x100), commit(0x100, 0x130)]);
    assert!(batch.is_empty());
    assert_eq!(assembler.received_end(), Lsn(0x130));
    assert!(assembler.mark(Lsn(0x130), AT, &mut batch));
    assert!(!assembler.mark(Lsn(0x130), AT, &mut batch), "the journal is there already");
    assert!(!assembler.mark(Lsn(0x120), AT, &mut batch), "a mark never goes back");
    check(
        &batch,
        expect![[r#"
        Mark 0/130 end 0/130 xid 0 first last ordinal 0 changes 0 
    "#]],
    );

    // Sent again after a restart that lost the mark's confirmation.
    push_all(&mut assembler, &[begin(0x150), commit(0x150, 0x180)]);
    assembler.restart().unwrap();
    push_all(&mut assembler, &[begin(0x150), commit(0x150, 0x180)]);
    assert_eq!(assembler.received_end(), Lsn(0x180));
}

#[test]
fn no_mark_is_made_within_a_transaction() {
    let mut assembler = Assembler::new(Lsn::ZERO);
    let mut batch = push_all(&mut assembler, &[begin(0x100), row(1)]);
    assert!(!assembler.mark(Lsn(0x200), AT, &mut batch));
    assembler.push(&commit(0x100, 0x130), &mut batch).unwrap();
    assert!(assembler.mark(Lsn(0x200), AT, &mut batch));
    check(
        &batch,
        expect![[r#"
        Transaction 0/100 end 0/130 xid 7 first last ordinal 0 changes 1 I
        Mark 0/200 end 0/200 xid 0 first last ordinal 0 changes 0 
    "#]],
    );
}

#[test]
fn the_schema_has_the_latest_of_each_with_types_first() {
    let mut assembler = Assembler::new(Lsn(0x130));
    let first = [begin(0x100), relation(2, "b"), data_type(9), relation(1, "a"), row(1), commit(0x100, 0x130)];
    assert!(push_all(&mut assembler, &first).is_empty());
    assert_eq!(tags(assembler.schema()), "", "what is dropped may not be in this journal");
    let batch = push_all(&mut assembler, &[begin(0x140), row(1), relation(1, "a"), commit(0x140, 0x150)]);
    check(
        &batch,
        expect![[r#"
        Transaction 0/140 end 0/150 xid 7 first last ordinal 0 changes 1 YRRIR
    "#]],
    );
    assert_eq!(tags(assembler.schema()), "YRR");
    push_all(&mut assembler, &[begin(0x160), relation(1, "renamed"), commit(0x160, 0x170)]);
    let expected = [data_type(9), relation(1, "renamed"), relation(2, "b")];
    assert_eq!(descriptions(&mut assembler), expected);
}

/// A segment can begin while a transaction is open: what stands in its head must hold for that transaction's first row.
#[test]
fn a_description_within_an_open_transaction_is_not_in_force_yet() {
    let mut assembler = Assembler::new(Lsn::ZERO);
    push_all(&mut assembler, &[begin(0x100), relation(1, "a"), row(1), commit(0x100, 0x130)]);
    push_all(&mut assembler, &[begin(0x140), row(1), relation(1, "renamed"), relation(2, "b"), row(1)]);
    assert_eq!(descriptions(&mut assembler), [relation(1, "a")]);
    push_all(&mut assembler, &[commit(0x140, 0x170)]);
    assert_eq!(descriptions(&mut assembler), [relation(1, "renamed"), relation(2, "b")]);
}

#[test]
fn what_cannot_stand_there_is_an_error() {
    let fails = |messages: &[Vec<u8>]| {
        let mut assembler = Assembler::new(Lsn::ZERO);
        let mut batch = TransactionBatch::new();
        let mut results = messages.iter().map(|message| assembler.push(message, &mut batch));
        reason(&results.find_map(Result::err).expect("an error"))
    };
    assert_eq!(fails(&[row(1)]), AssembleError::OutsideTransaction(b'I'));
    assert_eq!(fails(&[logical(true)]), AssembleError::OutsideTransaction(b'M'));
    assert_eq!(fails(&[commit(1, 2)]), AssembleError::OutsideTransaction(b'C'));
    assert_eq!(fails(&[begin(1), begin(2)]), AssembleError::NestedBegin);
    let mismatch = AssembleError::CommitMismatch { begun: Lsn(1), committed: Lsn(2) };
    assert_eq!(fails(&[begin(1), row(1), commit(2, 3)]), mismatch);
    let disorder = AssembleError::OutOfOrder { commit_lsn: Lsn(0x120), end_lsn: Lsn(0x130) };
    assert_eq!(fails(&[begin(0x100), row(1), commit(0x100, 0x130), begin(0x120)]), disorder);
    assert_eq!(fails(&[b"S\0\0\0\x01\x01".to_vec()]), AssembleError::UnsupportedMessage(b'S'));
    assert_eq!(fails(&[b"b".to_vec()]), AssembleError::UnsupportedMessage(b'b'));
    assert_eq!(fails(&[vec![]]), AssembleError::UnknownMessage(0));
    assert!(matches!(fails(&[b"B\0".to_vec()]), AssembleError::Malformed(_)));
}

#[test]
fn the_public_error_tells_the_cause_once() {
    let error = Error::from(AssembleError::UnsupportedMessage(b'b'));
    expect!["PR013 cannot assemble the logical replication stream: message 0x62 of a streamed or prepared transaction, which was not asked for"].assert_eq(&error.report());
}

proptest! {
    /// However the server repeats itself after lost connections, each transaction comes out once, whole and in order.
    #[test]
    fn each_transaction_comes_out_once(
        sizes in prop::collection::vec((0..4_usize, 0..40_u64), 1..12),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..6),
    ) {
        let mut transactions = Vec::new();
        let mut at = 0x100;
        for (rows, gap) in sizes {
            let end = at + 0x30;
            let rows = std::iter::repeat_with(|| row(PART_BYTES_MAX / 2 + 9)).take(rows);
            let messages: Vec<_> = std::iter::once(begin(at)).chain(rows).chain([commit(at, end)]).collect();
            transactions.push((at, end, messages));
            at = end + gap;
        }
        let mut assembler = Assembler::new(Lsn(0x100));
        let mut journal: Vec<(Lsn, u64, u32)> = Vec::new();
        let mut partial = Vec::new();
        let mut feed = |assembler: &mut Assembler, messages: &[&Vec<u8>]| {
            let mut batch = TransactionBatch::new();
            for message in messages {
                assembler.push(message, &mut batch).unwrap();
            }
            for part in batch.parts() {
                partial.push((part.head.commit_lsn, part.head.first_ordinal, part.head.changes));
                if part.head.last {
                    journal.append(&mut partial);
                }
            }
            // What the journal does when the connection is lost, and nothing where it is not.
            partial.clear();
        };
        for (from, upto) in cuts {
            // A server resumes at a whole transaction, at or before the end of ours.
            let resumable = transactions.iter().filter(|(at, ..)| Lsn(*at) <= assembler.received_end()).count();
            let from = from.index(resumable.max(1));
            let rest: Vec<_> = transactions.iter().skip(from).flat_map(|(_, _, messages)| messages).collect();
            feed(&mut assembler, rest.get(..upto.index(rest.len() + 1)).unwrap());
            assembler.restart().unwrap();
        }
        let all: Vec<_> = transactions.iter().flat_map(|(_, _, messages)| messages).collect();
        feed(&mut assembler, &all);

        let mut expected = Vec::new();
        let mut reference = Assembler::new(Lsn(0x100));
        let mut batch = TransactionBatch::new();
        for message in all {
            reference.push(message, &mut batch).unwrap();
        }
        expected.extend(batch.parts().map(|part| (part.head.commit_lsn, part.head.first_ordinal, part.head.changes)));
        prop_assert_eq!(journal, expected);
        prop_assert_eq!(assembler.received_end(), transactions.last().map(|(_, end, _)| Lsn(*end)).unwrap());
    }
}
