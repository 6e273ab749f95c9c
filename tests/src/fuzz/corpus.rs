//! What the targets start from: the recordings, in each target's own form.

use std::collections::BTreeSet;
use std::sync::Arc;

use postrider_core::pgoutput::{Message, Tuple, TupleValue};
use postrider_core::ports::{SchemaBlock, SourceIdentity};
use postrider_core::relation::Relations;
use postrider_core::transaction::{TransactionBatch, push_message};
use postrider_journal::testing::FakeDisk;
use postrider_journal::{Settings, open_on};

use super::mutate::BYTES_MAX;
use crate::conformance::case::{Case, VERSIONS};
use crate::conformance::oracle::assemble;
use crate::conformance::recording::Recording;

/// The name of a new journal's first segment.
pub const SEGMENT: &str = "00000001-0000000000000000-00000001.segment";

/// The inputs of a target, each once.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    let mut inputs = BTreeSet::new();
    for (case, recording) in recordings() {
        let payloads: Vec<&[u8]> = recording.messages.iter().map(|sent| sent.payload.as_slice()).collect();
        match target {
            "pgoutput" => inputs.extend(payloads.iter().map(|payload| payload.to_vec())),
            "assembler" => drop(inputs.insert(block(&payloads))),
            "decoder" if case.protocol() == 1 => {
                let batch = assemble(payloads.iter().copied());
                inputs.insert(batch.parts().flat_map(|part| part.block().to_vec()).collect());
            }
            "values" if case.protocol() == 1 => values(&payloads, &mut inputs),
            "journal" if case.protocol() == 1 => drop(inputs.insert(segment(&assemble(payloads.iter().copied())))),
            "copy_data" => drop(inputs.insert(payloads.iter().flat_map(|payload| copy_data(payload)).collect())),
            _ => {}
        }
    }
    inputs.into_iter().filter(|input| input.len() <= BYTES_MAX).collect()
}

fn recordings() -> impl Iterator<Item = (Case, Recording)> {
    VERSIONS.flat_map(|version| {
        let of_version = Case::all().into_iter().filter(move |case| case.is_of(version));
        of_version.map(move |case| (case.clone(), Recording::read(&case, version)))
    })
}

fn block(payloads: &[&[u8]]) -> Vec<u8> {
    let mut block = Vec::new();
    for payload in payloads {
        assert!(push_message(&mut block, payload));
    }
    block
}

fn values(payloads: &[&[u8]], inputs: &mut BTreeSet<Vec<u8>>) {
    let mut relations = Relations::new();
    let mut add = |relations: &Relations, oid: u32, tuple: Tuple<'_>| {
        let columns = &relations.table(oid).expect("it was described").columns;
        for (column, value) in columns.iter().zip(tuple.columns()) {
            if let TupleValue::Text(text) = value {
                inputs.insert([&column.type_oid.to_be_bytes()[..], text].concat());
            }
        }
    };
    for payload in payloads {
        match Message::parse(payload).expect("it was recorded") {
            Message::Relation(relation) => relations.apply_relation(&relation),
            Message::Insert(insert) => add(&relations, insert.relation_oid, insert.new),
            Message::Update(update) => add(&relations, update.relation_oid, update.new),
            _ => {}
        }
    }
}

/// What a journal writes of these transactions.
fn segment(batch: &TransactionBatch) -> Vec<u8> {
    let disk = FakeDisk::new();
    let identity = SourceIdentity { system_identifier: 7, timeline: 1, database: "d".into(), slot: "s".into() };
    let mut opened = open_on(Arc::new(disk.clone()), &identity, &Settings::default()).expect("it opens");
    opened.writer.append(batch, &SchemaBlock::default()).expect("it is in memory");
    drop(opened);
    let mut files = disk.files();
    files.remove(SEGMENT).unwrap_or_else(|| panic!("no {SEGMENT} in {:?}", files.keys()))
}

fn copy_data(payload: &[u8]) -> Vec<u8> {
    let body = [b"w", &[0; 24][..], payload].concat();
    let length = u32::try_from(body.len() + 4).expect("short").to_be_bytes();
    [b"d", &length[..], &body].concat()
}
