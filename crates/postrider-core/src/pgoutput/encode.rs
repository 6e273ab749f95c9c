//! Writes the messages that the rest of this module reads.
//!
//! Postrider never sends them: property tests hold the parser to what is written here, and a simulated server speaks
//! through it. Each function appends one message, its tag first, to `out`. Texts must not hold a zero byte.

use super::{
    Begin, BeginPrepare, Commit, CommitPrepared, DataType, LogicalMessage, Origin, Prepare, RollbackPrepared,
    StreamAbort, StreamCommit, StreamPrepare, StreamStart, TupleValue,
};
use crate::position::Lsn;
use crate::relation::Relation;
use crate::time::Timestamp;

/// The version before an update or a delete, to be written.
#[derive(Debug, Clone, Copy)]
pub enum OldValues<'a> {
    /// The columns of the replica identity; the others as NULL.
    Key(&'a [TupleValue<'a>]),
    Full(&'a [TupleValue<'a>]),
}

pub fn begin(out: &mut Vec<u8>, message: &Begin) {
    out.push(b'B');
    put_lsn(out, message.final_lsn);
    put_timestamp(out, message.committed_at);
    put_u32(out, message.xid);
}

pub fn commit(out: &mut Vec<u8>, message: &Commit) {
    out.extend([b'C', message.flags]);
    put_lsn(out, message.commit_lsn);
    put_lsn(out, message.end_lsn);
    put_timestamp(out, message.committed_at);
}

pub fn origin(out: &mut Vec<u8>, message: &Origin<'_>) {
    out.push(b'O');
    put_lsn(out, message.commit_lsn);
    put_name(out, message.name);
}

pub fn relation(out: &mut Vec<u8>, relation: &Relation) {
    out.push(b'R');
    put_u32(out, relation.oid);
    put_name(out, &relation.schema);
    put_name(out, &relation.name);
    out.push(relation.replica_identity.marker());
    put_count16(out, relation.columns.len());
    for column in &relation.columns {
        out.push(u8::from(column.key));
        put_name(out, &column.name);
        put_u32(out, column.type_oid);
        out.extend_from_slice(&column.type_modifier.to_be_bytes());
    }
}

pub fn data_type(out: &mut Vec<u8>, message: &DataType<'_>) {
    out.push(b'Y');
    put_u32(out, message.oid);
    put_name(out, message.schema);
    put_name(out, message.name);
}

pub fn insert(out: &mut Vec<u8>, relation_oid: u32, new: &[TupleValue<'_>]) {
    out.push(b'I');
    put_u32(out, relation_oid);
    put_tuple(out, b'N', new);
}

pub fn update(out: &mut Vec<u8>, relation_oid: u32, old: Option<OldValues<'_>>, new: &[TupleValue<'_>]) {
    out.push(b'U');
    put_u32(out, relation_oid);
    if let Some(old) = old {
        put_old(out, old);
    }
    put_tuple(out, b'N', new);
}

pub fn delete(out: &mut Vec<u8>, relation_oid: u32, old: OldValues<'_>) {
    out.push(b'D');
    put_u32(out, relation_oid);
    put_old(out, old);
}

pub fn truncate(out: &mut Vec<u8>, relation_oids: &[u32], cascade: bool, restart_identity: bool) {
    out.push(b'T');
    put_count32(out, relation_oids.len());
    out.push(u8::from(cascade) | u8::from(restart_identity) << 1);
    for oid in relation_oids {
        put_u32(out, *oid);
    }
}

pub fn logical_message(out: &mut Vec<u8>, message: &LogicalMessage<'_>) {
    out.extend([b'M', u8::from(message.transactional)]);
    put_lsn(out, message.lsn);
    put_name(out, message.prefix);
    put_count32(out, message.content.len());
    out.extend_from_slice(message.content);
}

pub fn stream_start(out: &mut Vec<u8>, message: &StreamStart) {
    out.push(b'S');
    put_u32(out, message.xid);
    out.push(u8::from(message.first));
}

pub fn stream_stop(out: &mut Vec<u8>) {
    out.push(b'E');
}

pub fn stream_commit(out: &mut Vec<u8>, message: &StreamCommit) {
    out.push(b'c');
    put_u32(out, message.xid);
    out.push(message.flags);
    put_lsn(out, message.commit_lsn);
    put_lsn(out, message.end_lsn);
    put_timestamp(out, message.committed_at);
}

pub fn stream_abort(out: &mut Vec<u8>, message: &StreamAbort) {
    out.push(b'A');
    put_u32(out, message.xid);
    put_u32(out, message.subxid);
    if let Some(place) = message.place {
        put_lsn(out, place.abort_lsn);
        put_timestamp(out, place.aborted_at);
    }
}

pub fn begin_prepare(out: &mut Vec<u8>, message: &BeginPrepare<'_>) {
    out.push(b'b');
    put_lsn(out, message.prepare_lsn);
    put_lsn(out, message.end_lsn);
    put_timestamp(out, message.prepared_at);
    put_u32(out, message.xid);
    put_name(out, message.gid);
}

pub fn prepare(out: &mut Vec<u8>, message: &Prepare<'_>) {
    out.extend([b'P', message.flags]);
    put_lsn(out, message.prepare_lsn);
    put_lsn(out, message.end_lsn);
    put_timestamp(out, message.prepared_at);
    put_u32(out, message.xid);
    put_name(out, message.gid);
}

pub fn commit_prepared(out: &mut Vec<u8>, message: &CommitPrepared<'_>) {
    out.extend([b'K', message.flags]);
    put_lsn(out, message.commit_lsn);
    put_lsn(out, message.end_lsn);
    put_timestamp(out, message.committed_at);
    put_u32(out, message.xid);
    put_name(out, message.gid);
}

pub fn rollback_prepared(out: &mut Vec<u8>, message: &RollbackPrepared<'_>) {
    out.extend([b'r', message.flags]);
    put_lsn(out, message.prepare_end_lsn);
    put_lsn(out, message.end_lsn);
    put_timestamp(out, message.prepared_at);
    put_timestamp(out, message.rolled_back_at);
    put_u32(out, message.xid);
    put_name(out, message.gid);
}

pub fn stream_prepare(out: &mut Vec<u8>, message: &StreamPrepare<'_>) {
    out.extend([b'p', message.flags]);
    put_lsn(out, message.prepare_lsn);
    put_lsn(out, message.end_lsn);
    put_timestamp(out, message.prepared_at);
    put_u32(out, message.xid);
    put_name(out, message.gid);
}

fn put_old(out: &mut Vec<u8>, old: OldValues<'_>) {
    match old {
        OldValues::Key(values) => put_tuple(out, b'K', values),
        OldValues::Full(values) => put_tuple(out, b'O', values),
    }
}

fn put_tuple(out: &mut Vec<u8>, marker: u8, values: &[TupleValue<'_>]) {
    out.push(marker);
    put_count16(out, values.len());
    for value in values {
        match value {
            TupleValue::Null => out.push(b'n'),
            TupleValue::Unchanged => out.push(b'u'),
            TupleValue::Text(bytes) => put_value(out, b't', bytes),
            TupleValue::Binary(bytes) => put_value(out, b'b', bytes),
        }
    }
}

fn put_value(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    out.push(kind);
    put_count32(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(name.as_bytes());
    out.push(0);
}

fn put_lsn(out: &mut Vec<u8>, lsn: Lsn) {
    out.extend_from_slice(&lsn.0.to_be_bytes());
}

fn put_timestamp(out: &mut Vec<u8>, at: Timestamp) {
    out.extend_from_slice(&at.to_postgres_micros().to_be_bytes());
}

fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_be_bytes());
}

fn put_count16(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&i16::try_from(count).expect("a table has at most 1,600 columns").to_be_bytes());
}

fn put_count32(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&i32::try_from(count).expect("a message has less than 2 GiB").to_be_bytes());
}
