//! The messages of streamed and prepared transactions.

use super::{AT, message};
use crate::pgoutput::{
    Begin, BeginPrepare, CommitPrepared, Prepare, RollbackPrepared, StreamAbort, StreamCommit, StreamPrepare,
    StreamStart, TupleValue, encode,
};
use crate::position::Lsn;

pub(super) fn start(xid: u32, first: bool) -> Vec<u8> {
    message(|out| encode::stream_start(out, &StreamStart { xid, first }))
}

pub(super) fn stop() -> Vec<u8> {
    message(encode::stream_stop)
}

/// A message as it stands in a chunk.
pub(super) fn of(xid: u32, message: &[u8]) -> Vec<u8> {
    [&message[..1], &xid.to_be_bytes(), &message[1..]].concat()
}

pub(super) fn numbered(xid: u32, number: u32) -> Vec<u8> {
    of(xid, &plain(number))
}

pub(super) fn plain(number: u32) -> Vec<u8> {
    message(|out| encode::insert(out, 1, &[TupleValue::Text(number.to_string().as_bytes())]))
}

pub(super) fn stream_commit(xid: u32, lsn: u64) -> Vec<u8> {
    let (commit_lsn, end_lsn) = (Lsn(lsn), Lsn(lsn + 0x30));
    message(|out| encode::stream_commit(out, &StreamCommit { xid, flags: 0, commit_lsn, end_lsn, committed_at: AT }))
}

pub(super) fn abort(xid: u32, subxid: u32) -> Vec<u8> {
    message(|out| encode::stream_abort(out, &StreamAbort { xid, subxid, place: None }))
}

pub(super) fn begin(xid: u32, lsn: u64) -> Vec<u8> {
    message(|out| encode::begin(out, &Begin { final_lsn: Lsn(lsn), committed_at: AT, xid }))
}

pub(super) fn begin_prepare(xid: u32, gid: &str, lsn: u64) -> Vec<u8> {
    let (prepare_lsn, end_lsn) = (Lsn(lsn), Lsn(lsn + 0x30));
    message(|out| encode::begin_prepare(out, &BeginPrepare { prepare_lsn, end_lsn, prepared_at: AT, xid, gid }))
}

pub(super) fn prepare(xid: u32, gid: &str, lsn: u64) -> Vec<u8> {
    let (prepare_lsn, end_lsn) = (Lsn(lsn), Lsn(lsn + 0x30));
    message(|out| encode::prepare(out, &Prepare { flags: 0, prepare_lsn, end_lsn, prepared_at: AT, xid, gid }))
}

pub(super) fn stream_prepare(xid: u32, gid: &str, lsn: u64) -> Vec<u8> {
    let (prepare_lsn, end_lsn) = (Lsn(lsn), Lsn(lsn + 0x30));
    let prepare = StreamPrepare { flags: 0, prepare_lsn, end_lsn, prepared_at: AT, xid, gid };
    message(|out| encode::stream_prepare(out, &prepare))
}

pub(super) fn commit_prepared(xid: u32, gid: &str, lsn: u64) -> Vec<u8> {
    let (commit_lsn, end_lsn) = (Lsn(lsn), Lsn(lsn + 0x30));
    let commit = CommitPrepared { flags: 0, commit_lsn, end_lsn, committed_at: AT, xid, gid };
    message(|out| encode::commit_prepared(out, &commit))
}

pub(super) fn rollback_prepared(xid: u32, gid: &str, lsn: u64) -> Vec<u8> {
    let rollback = RollbackPrepared {
        flags: 0,
        prepare_end_lsn: Lsn(1),
        end_lsn: Lsn(lsn + 0x30),
        prepared_at: AT,
        rolled_back_at: AT,
        xid,
        gid,
    };
    message(|out| encode::rollback_prepared(out, &rollback))
}
