//! What any bytes must do to the parsers of foreign bytes: give an answer or an error, and no more memory than they are long.
//!
//! Each target takes bytes. `tests/fuzz` gives them to cargo-fuzz; the test gives them the recordings and what [`mutate`] makes of these.

pub mod corpus;
pub mod mutate;

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use postrider_core::assemble::Assembler;
use postrider_core::change::Change;
use postrider_core::decode::Decoder;
use postrider_core::frame::FrameBatch;
use postrider_core::json::{RowShape, write_value};
use postrider_core::pgoutput::Message;
use postrider_core::ports::SchemaBlock;
use postrider_core::position::Lsn;
use postrider_core::time::Timestamp;
use postrider_core::transaction::{Messages, Part, PartHead, PartKind, TransactionBatch};
use postrider_core::value::{Type, Value};
use postrider_journal::testing::FakeDisk;
use postrider_journal::{Examiner, Fault, verify_on};

/// A target: its name and what it does with bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All targets. Each has a corpus of its name in [`corpus::of`].
pub const TARGETS: [Target; 6] = [
    ("pgoutput", pgoutput),
    ("assembler", assembler),
    ("decoder", decoder),
    ("values", values),
    ("journal", journal),
    ("copy_data", copy_data),
];

/// One message, within a stream and outside.
pub fn pgoutput(bytes: &[u8]) {
    if let Ok(message) = Message::parse(bytes) {
        look_at(&message, bytes.len());
    }
    if let Ok((_, message)) = Message::parse_streamed(bytes) {
        look_at(&message, bytes.len());
    }
}

/// A block of messages, as the stream of one connection.
pub fn assembler(bytes: &[u8]) {
    let mut assembler = Assembler::new(Lsn::ZERO);
    let mut batch = TransactionBatch::new();
    for message in Messages::new(bytes) {
        if assembler.push(message, &mut batch).is_err() && assembler.restart().is_err() {
            return;
        }
    }
    assert!(batch.byte_len() <= bytes.len(), "no message is given out twice");
    assert!(assembler.schema().0.len() <= bytes.len(), "no description is remembered twice");
}

/// A block of messages, as a part of a transaction, with every row as JSON.
pub fn decoder(bytes: &[u8]) {
    let mut decoder = Decoder::new();
    let mut changes = decoder.changes(Part::new(head(), bytes));
    let mut json = String::new();
    while let Some(change) = changes.next_with_relations() {
        let Ok((_, change, relations)) = change else { return };
        json.clear();
        let written = match change {
            Change::Insert { relation, new } | Change::Update { relation, new, .. } => {
                RowShape::of(relation, relations).write_new(&mut json, new)
            }
            Change::Delete { relation, old } => RowShape::of(relation, relations).write_old(&mut json, old),
            _ => continue,
        };
        if written.is_ok() {
            assert!(serde_json::from_str::<BTreeMap<String, &serde_json::value::RawValue>>(&json).is_ok(), "{json}");
        } else {
            assert!(json.is_empty(), "after an error nothing is left");
        }
    }
}

/// Four bytes of a type's oid, then a value's text.
pub fn values(bytes: &[u8]) {
    let Some((oid, text)) = bytes.split_first_chunk::<4>() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let data_type = Type::of(u32::from_be_bytes(*oid), None);
    let mut json = String::new();
    if write_value(&mut json, &data_type, text).is_ok() {
        assert!(serde_json::from_str::<&serde_json::value::RawValue>(&json).is_ok(), "{json}");
        assert!(json.len() <= 8 * text.len() + 64, "JSON of {} bytes for {}", json.len(), text.len());
    } else {
        assert!(json.is_empty(), "after an error nothing is left");
    }
    if let Ok(value) = Value::read(&data_type, text) {
        let written = value.to_string();
        let again = Value::read(&data_type, &written).map(|value| value.to_string());
        assert_eq!(again.as_deref(), Ok(written.as_str()), "{text:?} as {data_type:?}");
    }
}

/// The bytes of a journal's only segment.
pub fn journal(bytes: &[u8]) {
    let disk = FakeDisk::new();
    disk.put(corpus::SEGMENT, bytes.to_vec());
    let mut counted = Counted(0);
    if let Ok(verified) = verify_on(&disk, &mut counted) {
        assert!(counted.0 <= bytes.len(), "no part is larger than the file");
        assert!(verified.bytes <= bytes.len() as u64, "no more is verified than there is");
    }
}

/// What came from a socket, in whole messages.
pub fn copy_data(bytes: &[u8]) {
    let batch = FrameBatch::new(Bytes::copy_from_slice(&BytesMut::from(bytes)));
    let frames: Vec<_> = batch.frames().collect();
    assert!(frames.len() <= bytes.len() / 5 + 1, "a frame has a header");
    assert!(frames.iter().rev().skip(1).all(Result::is_ok), "after an error there is nothing more");
}

fn look_at(message: &Message<'_>, length: usize) {
    let columns = match message {
        Message::Insert(insert) => insert.new.columns().count(),
        Message::Update(update) => {
            update.new.columns().count() + update.old.map_or(0, |old| old.tuple().columns().count())
        }
        Message::Delete(delete) => delete.old.tuple().columns().count(),
        Message::Relation(relation) => relation.columns().count(),
        Message::Truncate(truncate) => truncate.relation_oids.iter().count(),
        _ => 0,
    };
    assert!(columns <= length, "a column takes at least a byte");
}

fn head() -> PartHead {
    PartHead {
        kind: PartKind::Transaction,
        commit_lsn: Lsn(1),
        end_lsn: Lsn(2),
        xid: 1,
        committed_at: Timestamp(0),
        first_ordinal: 0,
        changes: 0,
        first: true,
        last: true,
    }
}

/// Bytes of all parts.
struct Counted(usize);

impl Examiner for Counted {
    fn schema(&mut self, schema: &SchemaBlock) -> Result<(), String> {
        self.0 += schema.0.len();
        Ok(())
    }

    fn part(&mut self, part: Part<'_>) -> Result<(), String> {
        self.0 += part.block().len();
        Ok(())
    }

    fn found(&mut self, _fault: Fault) {}
}
