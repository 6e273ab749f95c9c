#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use super::*;
use crate::assemble::Assembler;
use crate::pgoutput::{LogicalMessage, TupleValue, encode};
use crate::position::Lsn;
use crate::relation::{Column, ReplicaIdentity};
use crate::time::Timestamp;
use crate::transaction::{PartHead, PartKind, TransactionBatch, push_message};
use expect_test::expect;
use std::fmt::Write;

const ALL_KINDS: &str = include_str!("../../tests/golden/pg15/all_kinds.hex");

fn head(first_ordinal: u64) -> PartHead {
    PartHead {
        kind: PartKind::Transaction,
        commit_lsn: Lsn(1),
        end_lsn: Lsn(2),
        xid: 1,
        committed_at: Timestamp(0),
        first_ordinal,
        changes: 0,
        first: true,
        last: true,
    }
}

fn block(messages: &[Vec<u8>]) -> Vec<u8> {
    let mut block = Vec::new();
    for message in messages {
        assert!(push_message(&mut block, message));
    }
    block
}

fn message(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    bytes
}

fn table(name: &str) -> Vec<u8> {
    let column = Column { name: "id".into(), type_oid: 23, type_modifier: -1, key: true };
    let columns = vec![column];
    let replica_identity = ReplicaIdentity::Default;
    let relation = Relation { oid: 5, schema: "public".into(), name: name.into(), replica_identity, columns };
    message(|out| encode::relation(out, &relation))
}

fn insert(oid: u32, columns: usize) -> Vec<u8> {
    message(|out| encode::insert(out, oid, &vec![TupleValue::Null; columns]))
}

fn read(decoder: &mut Decoder, messages: &[Vec<u8>]) -> Result<String, DecodeError> {
    let block = block(messages);
    let mut changes = decoder.changes(Part::new(head(10), &block));
    let mut text = String::new();
    while let Some(change) = changes.next() {
        let (ordinal, change) = change?;
        match change {
            Change::Insert { relation, .. } => writeln!(text, "{ordinal} insert {}", relation.name).unwrap(),
            Change::Truncate { relations, .. } => {
                writeln!(text, "{ordinal} truncate {}", relations.iter().count()).unwrap();
            }
            Change::Message(message) => writeln!(text, "{ordinal} message {}", message.prefix).unwrap(),
            other => writeln!(text, "{ordinal} {other:?}").unwrap(),
        }
    }
    Ok(text)
}

#[test]
fn ordinals_count_changes_and_tables_change_on_the_way() {
    let logical = LogicalMessage { transactional: true, lsn: Lsn(3), prefix: "p", content: b"" };
    let logical = message(|out| encode::logical_message(out, &logical));
    let truncate = message(|out| encode::truncate(out, &[5, 5], false, false));
    let messages = [table("before"), insert(5, 1), logical.clone(), logical, truncate, table("after"), insert(5, 1)];
    let text = read(&mut Decoder::new(), &messages).unwrap();
    expect![[r#"
        10 insert before
        11 message p
        11 message p
        11 truncate 2
        12 insert after
    "#]]
    .assert_eq(&text);
}

#[test]
fn a_loaded_schema_names_the_tables_of_what_follows() {
    let mut decoder = Decoder::new();
    decoder.load(&SchemaBlock(block(&[table("known")]))).unwrap();
    assert_eq!(read(&mut decoder, &[insert(5, 1)]).unwrap(), "10 insert known\n");
    let wrong = decoder.load(&SchemaBlock(block(&[insert(5, 1)])));
    assert_eq!(wrong, Err(DecodeError::UnexpectedMessage(b'I')));
}

#[test]
fn what_cannot_be_read_is_an_error_that_names_the_table() {
    let fails = |messages: &[Vec<u8>]| read(&mut Decoder::new(), messages).expect_err("an error");
    assert_eq!(fails(&[insert(8, 1)]), DecodeError::UnknownRelation { oid: 8 });
    assert_eq!(fails(&[table("t"), insert(5, 2)]), DecodeError::ColumnCount { oid: 5, expected: 1, found: 2 });
    let truncate = message(|out| encode::truncate(out, &[5, 6], false, false));
    assert_eq!(fails(&[table("t"), truncate]), DecodeError::UnknownRelation { oid: 6 });
    assert_eq!(fails(&[b"E".to_vec()]), DecodeError::UnexpectedMessage(b'E'));
    assert!(matches!(fails(&[b"I\0".to_vec()]), DecodeError::Malformed(_)));
    expect![
        "PR013 cannot decode a transaction of the journal: a change of the table with oid 8 came before its description"
    ]
    .assert_eq(&Error::from(DecodeError::UnknownRelation { oid: 8 }).report());
}

#[test]
fn a_table_described_again_without_a_change_stays_the_same() {
    let mut decoder = Decoder::new();
    decoder.load(&SchemaBlock(block(&[table("t")]))).unwrap();
    let before = Arc::clone(decoder.relations().table(5).unwrap());
    decoder.load(&SchemaBlock(block(&[table("t")]))).unwrap();
    assert!(Arc::ptr_eq(&before, decoder.relations().table(5).unwrap()));
    decoder.load(&SchemaBlock(block(&[table("renamed")]))).unwrap();
    assert!(!Arc::ptr_eq(&before, decoder.relations().table(5).unwrap()));
}

/// A server's recording, through *assemble* and *decode*: a second decoder that starts in the middle, from the schema that
/// the assembler remembers, reads the same changes.
#[test]
fn a_follower_that_starts_in_the_middle_reads_the_same() {
    let mut assembler = Assembler::new(Lsn::ZERO);
    let mut all = TransactionBatch::new();
    let mut schemas = Vec::new();
    for line in ALL_KINDS.lines().filter(|line| !line.starts_with('#')) {
        let message = data_encoding::HEXLOWER.decode(line.as_bytes()).unwrap();
        assembler.push(&message, &mut all).unwrap();
        if !assembler.in_transaction() {
            schemas.resize(all.len() + 1, SchemaBlock::default());
            *schemas.last_mut().unwrap() = assembler.schema().clone();
        }
    }
    let render = |decoder: &mut Decoder, part: Part<'_>| {
        let mut text = String::new();
        let mut changes = decoder.changes(part);
        while let Some(change) = changes.next() {
            writeln!(text, "{:?}", change.unwrap()).unwrap();
        }
        text
    };
    let mut from_start = Decoder::new();
    let texts: Vec<_> = all.parts().map(|part| render(&mut from_start, part)).collect();
    assert!(texts.len() > 10);
    for start in 0..texts.len() {
        let mut decoder = Decoder::new();
        decoder.load(&schemas[start]).unwrap();
        let text = all.parts().nth(start).map(|part| render(&mut decoder, part)).unwrap();
        assert_eq!(text, texts[start], "part {start}");
    }
}
