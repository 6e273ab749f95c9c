//! One part of a transaction as the journal keeps it: a fixed header and the messages' block.
//!
//! All numbers are little-endian.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | CRC32C over the rest of the frame, started with the CRC of the frame before (of the segment's header for the first) |
//! | 4 | 4 | length of the block in bytes |
//! | 8 | 1 | kind: 1 part of a transaction, 2 mark, 3 schema |
//! | 9 | 1 | flags: 1 first part, 2 last part |
//! | 10 | 2 | zero |
//! | 12 | 4 | xid |
//! | 16 | 8 | LSN of the commit record |
//! | 24 | 8 | end LSN |
//! | 32 | 8 | time of commit, signed, microseconds since 1970-01-01 UTC |
//! | 40 | 8 | ordinal of the first change in the part |
//! | 48 | 4 | changes in the part |
//! | 52 | … | the block: each message with its length in 32 bits before it |
//!
//! The CRCs form a chain: a frame proves the one before it. So what an earlier life of the file left behind a cut, and what
//! an unfinished write left in the wrong place, never passes for the next frame.
#![deny(clippy::indexing_slicing, clippy::as_conversions, clippy::arithmetic_side_effects)]

use crate::bytes_in::BytesIn;
use postrider_core::position::Lsn;
use postrider_core::time::Timestamp;
use postrider_core::transaction::{PartHead, PartKind};

/// Bytes before the block.
pub(crate) const HEADER_BYTES: usize = 52;

const KIND_TRANSACTION: u8 = 1;
const KIND_MARK: u8 = 2;
const KIND_SCHEMA: u8 = 3;
const FLAG_FIRST: u8 = 1;
const FLAG_LAST: u8 = 2;

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameHead {
    /// A part of a transaction, or a mark.
    Part(PartHead),
    /// RELATION and TYPE messages in force where the segment begins; only at its head.
    Schema,
}

/// A header before its CRC is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawHeader {
    pub(crate) crc: u32,
    pub(crate) block_length: u32,
}

/// Appends a frame and returns its CRC, which the next one starts with. `None`, and writes nothing, for a block of
/// 4 GiB or more.
pub(crate) fn push_frame(out: &mut Vec<u8>, chain: u32, head: &FrameHead, block: &[u8]) -> Option<u32> {
    let length = u32::try_from(block.len()).ok()?;
    let fields = encode(head, length);
    let crc = crc32c::crc32c_append(crc32c::crc32c_append(chain, &fields), block);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&fields);
    out.extend_from_slice(block);
    Some(crc)
}

/// Reads the CRC and the length of the block; nothing is believed yet.
pub(crate) fn raw_header(bytes: &[u8]) -> Option<RawHeader> {
    let mut fields = BytesIn(bytes);
    Some(RawHeader { crc: fields.u32()?, block_length: fields.u32()? })
}

/// Checks a whole frame against the chain and reads it. `None`: it is not the next frame of this chain.
pub(crate) fn read_frame(frame: &[u8], chain: u32) -> Option<(FrameHead, &[u8])> {
    let mut rest = BytesIn(frame);
    let stored = rest.u32()?;
    if crc(frame, chain) != stored {
        return None;
    }
    let block = frame.get(HEADER_BYTES..)?;
    Some((decode(rest)?, block))
}

/// The CRC that a frame behind `chain` has to begin with.
pub(crate) fn crc(frame: &[u8], chain: u32) -> u32 {
    crc32c::crc32c_append(chain, frame.get(4..).unwrap_or_default())
}

fn encode(head: &FrameHead, length: u32) -> [u8; HEADER_BYTES - 4] {
    let mut fields = [0; HEADER_BYTES - 4];
    fields[0..4].copy_from_slice(&length.to_le_bytes());
    let FrameHead::Part(part) = head else {
        fields[4] = KIND_SCHEMA;
        return fields;
    };
    fields[4] = match part.kind {
        PartKind::Transaction => KIND_TRANSACTION,
        PartKind::Mark => KIND_MARK,
    };
    fields[5] = if part.first { FLAG_FIRST } else { 0 } | if part.last { FLAG_LAST } else { 0 };
    fields[8..12].copy_from_slice(&part.xid.to_le_bytes());
    fields[12..20].copy_from_slice(&part.commit_lsn.0.to_le_bytes());
    fields[20..28].copy_from_slice(&part.end_lsn.0.to_le_bytes());
    fields[28..36].copy_from_slice(&part.committed_at.0.to_le_bytes());
    fields[36..44].copy_from_slice(&part.first_ordinal.to_le_bytes());
    fields[44..48].copy_from_slice(&part.changes.to_le_bytes());
    fields
}

fn decode(mut fields: BytesIn<'_>) -> Option<FrameHead> {
    let _block_length = fields.u32()?;
    let (kind, flags, _zero) = (fields.u8()?, fields.u8()?, fields.u16()?);
    let kind = match kind {
        KIND_TRANSACTION => PartKind::Transaction,
        KIND_MARK => PartKind::Mark,
        KIND_SCHEMA => return Some(FrameHead::Schema),
        _ => return None,
    };
    let (xid, commit_lsn, end_lsn) = (fields.u32()?, Lsn(fields.u64()?), Lsn(fields.u64()?));
    let (committed_at, first_ordinal, changes) = (Timestamp(fields.i64()?), fields.u64()?, fields.u32()?);
    let (first, last) = (flags & FLAG_FIRST != 0, flags & FLAG_LAST != 0);
    Some(FrameHead::Part(PartHead {
        kind,
        commit_lsn,
        end_lsn,
        xid,
        committed_at,
        first_ordinal,
        changes,
        first,
        last,
    }))
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        clippy::as_conversions,
        clippy::arithmetic_side_effects,
        reason = "a test may stop at the first surprise"
    )]
    use super::*;
    use expect_test::expect;

    fn head() -> FrameHead {
        FrameHead::Part(PartHead {
            kind: PartKind::Transaction,
            commit_lsn: Lsn(0x0102),
            end_lsn: Lsn(0x0304),
            xid: 5,
            committed_at: Timestamp(-6),
            first_ordinal: 7,
            changes: 8,
            first: true,
            last: false,
        })
    }

    #[test]
    fn the_bytes_are_those_of_the_table() {
        let mut out = Vec::new();
        push_frame(&mut out, 0, &head(), b"abc").unwrap();
        let lines: Vec<_> = out.chunks(16).map(|line| format!("{line:02x?}")).collect();
        expect![[r#"
            [bd, 4b, f9, e3, 03, 00, 00, 00, 01, 01, 00, 00, 05, 00, 00, 00]
            [02, 01, 00, 00, 00, 00, 00, 00, 04, 03, 00, 00, 00, 00, 00, 00]
            [fa, ff, ff, ff, ff, ff, ff, ff, 07, 00, 00, 00, 00, 00, 00, 00]
            [08, 00, 00, 00, 61, 62, 63]"#]]
        .assert_eq(&lines.join("\n"));
    }

    #[test]
    fn a_frame_reads_back_only_behind_its_own_predecessor() {
        let mut out = Vec::new();
        push_frame(&mut out, 17, &head(), b"abc").unwrap();
        assert_eq!(read_frame(&out, 17), Some((head(), &b"abc"[..])));
        assert_eq!(read_frame(&out, 18), None);
        assert_eq!(read_frame(&out[..out.len() - 1], 17), None);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let mut out = Vec::new();
        push_frame(&mut out, 17, &head(), b"abc").unwrap();
        for bit in 0..out.len() * 8 {
            let mut bytes = out.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read_frame(&bytes, 17), None, "bit {bit}");
        }
    }
}
