//! A segment's name and its head.
//!
//! A segment is named `GGGGGGGG-EEEEEEEEEEEEEEEE-SSSSSSSS.segment`: generation, end LSN of what stands before it, and
//! number, in hexadecimal digits, so that names sort as positions do. Until everything before it, and its own head, are on
//! the disk, `.new` follows: a segment without `.new` says that all before it is whole.
//!
//! It starts with a header (numbers little-endian), then a schema frame, then the frames of parts and marks ([`crate::frame`]).
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | `PSTRJRNL` |
//! | 8 | 4 | format version, 2 |
//! | 12 | 4 | CRC32C over the header's other bytes |
//! | 16 | 4 | length of the header in bytes |
//! | 20 | 4 | timeline |
//! | 24 | 8 | system identifier |
//! | 32 | 4 | generation |
//! | 36 | 4 | CRC of the last frame of the segment before, 0 for the first |
//! | 40 | 8 | number of the segment, from 1 |
//! | 48 | 8 | end LSN of what stands before |
//! | 56 | 8 | LSN of the last commit record before |
//! | 64 | 4 | generation of that commit record |
//! | 68 | 8 | in the first segment of a generation: up to where the generation before holds; 0 where it holds as a whole |
//! | 76 | 2 + n | database: length, then UTF-8 |
//! | … | 2 + n | slot: length, then UTF-8 |
#![deny(clippy::indexing_slicing, clippy::as_conversions, clippy::arithmetic_side_effects)]

use crate::bytes_in::{BytesIn, push_text};
use crate::frame::{FrameHead, push_frame};
use crate::order::Order;
use postrider_core::ports::{SchemaBlock, SourceIdentity};
use postrider_core::position::{Generation, Lsn, Position};

/// A header is never longer.
pub(crate) const HEADER_BYTES_MAX: usize = 4096;

const MAGIC: [u8; 8] = *b"PSTRJRNL";
const VERSION: u32 = 2;
const FIXED_BYTES: usize = 16;
const SUFFIX: &str = ".segment";
const PROVISIONAL: &str = ".new";

/// What a segment's file is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SegmentName {
    pub(crate) generation: Generation,
    /// End LSN of what stands before the segment.
    pub(crate) start: Lsn,
    /// Counts from 1 and never starts again.
    pub(crate) number: u64,
}

impl SegmentName {
    /// The name once everything before the segment is on the disk.
    pub(crate) fn proven(self) -> String {
        format!("{:08x}-{:016x}-{:08x}{SUFFIX}", self.generation.0, self.start.0, self.number)
    }

    /// The name until then.
    pub(crate) fn provisional(self) -> String {
        self.proven() + PROVISIONAL
    }

    /// Reads a file's name; `true` where it is the proven one.
    pub(crate) fn parse(name: &str) -> Option<(SegmentName, bool)> {
        let (stem, proven) = match name.strip_suffix(PROVISIONAL) {
            Some(stem) => (stem, false),
            None => (name, true),
        };
        let mut fields = stem.strip_suffix(SUFFIX)?.split('-').map(|digits| u64::from_str_radix(digits, 16).ok());
        let (generation, start, number) = (fields.next()??, fields.next()??, fields.next()??);
        let generation = Generation(u32::try_from(generation).ok()?);
        let parsed = SegmentName { generation, start: Lsn(start), number };
        // What does not print as it reads is not a name of ours.
        (parsed.proven() == stem).then_some((parsed, proven))
    }
}

/// The header of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) identity: SourceIdentity,
    pub(crate) name: SegmentName,
    /// CRC of the last frame before this segment.
    pub(crate) chain: u32,
    /// LSN of the last commit record before this segment.
    pub(crate) commit: Lsn,
    /// The generation of that commit record: another one than the segment's where the segment begins one.
    pub(crate) commit_generation: Generation,
    /// Where the segment begins a generation of a server that went another way than the one before: what commits at or after
    /// this in the generations before never happened there. [`Lsn::ZERO`]: all of it did.
    pub(crate) cut: Lsn,
}

/// Why bytes are no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InvalidHeader {
    /// Not ours, cut, or changed.
    Damaged,
    /// Ours, of another version of the format.
    Version(u32),
}

impl SegmentHeader {
    /// The position of the last transaction before this segment: who is there, goes on here.
    pub(crate) fn before(&self) -> Position {
        if self.name.start == Lsn::ZERO {
            return Position { generation: self.commit_generation, ..Position::START };
        }
        Position::whole(self.commit_generation, self.commit)
    }

    /// The segment is the first of its generation, and there was one before.
    pub(crate) fn begins_generation(&self) -> bool {
        self.commit_generation != self.name.generation
    }

    /// The segment goes on from one that ends at `end` with a frame of this CRC: right there, or behind it where something was left
    /// out knowingly. In another generation log positions begin anew.
    pub(crate) fn follows(&self, chain: u32, end: Lsn) -> bool {
        self.chain == chain && (self.name.start >= end || self.begins_generation())
    }

    /// What came before the first frame: of another generation's positions nothing is known in this one.
    pub(crate) fn order(&self) -> Order {
        Order::starting_at(self.name.start, if self.begins_generation() { Lsn::ZERO } else { self.commit })
    }

    /// The header and the schema frame, and the CRC that the first frame of a part starts with. `None` where database and
    /// slot are longer than a header holds, or the schema than a frame does.
    pub(crate) fn encode(&self, schema: &SchemaBlock) -> Option<(Vec<u8>, u32)> {
        let mut rest = Vec::new();
        rest.extend_from_slice(&self.identity.timeline.to_le_bytes());
        rest.extend_from_slice(&self.identity.system_identifier.to_le_bytes());
        rest.extend_from_slice(&self.name.generation.0.to_le_bytes());
        rest.extend_from_slice(&self.chain.to_le_bytes());
        rest.extend_from_slice(&self.name.number.to_le_bytes());
        rest.extend_from_slice(&self.name.start.0.to_le_bytes());
        rest.extend_from_slice(&self.commit.0.to_le_bytes());
        rest.extend_from_slice(&self.commit_generation.0.to_le_bytes());
        rest.extend_from_slice(&self.cut.0.to_le_bytes());
        push_text(&mut rest, &self.identity.database)?;
        push_text(&mut rest, &self.identity.slot)?;
        let length = rest.len().checked_add(FIXED_BYTES + 4).filter(|length| *length <= HEADER_BYTES_MAX)?;
        let length = u32::try_from(length).ok()?.to_le_bytes();
        let crc = header_crc(&[&length, rest.as_slice()].concat());
        let mut out = [&MAGIC, &VERSION.to_le_bytes()[..], &crc.to_le_bytes(), &length, &rest].concat();
        let chain = push_frame(&mut out, crc, &FrameHead::Schema, &schema.0)?;
        Some((out, chain))
    }

    /// Reads a header from the first bytes of a file; with it come its length and its CRC, which the schema frame
    /// starts with.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(SegmentHeader, usize, u32), InvalidHeader> {
        let mut fields = BytesIn(bytes);
        let magic = fields.array().ok_or(InvalidHeader::Damaged)?;
        if magic != MAGIC {
            return Err(InvalidHeader::Damaged);
        }
        match fields.u32() {
            Some(VERSION) => decode_rest(bytes, fields).ok_or(InvalidHeader::Damaged),
            Some(other) => Err(InvalidHeader::Version(other)),
            None => Err(InvalidHeader::Damaged),
        }
    }
}

fn decode_rest(bytes: &[u8], mut fields: BytesIn<'_>) -> Option<(SegmentHeader, usize, u32)> {
    let crc = fields.u32()?;
    let length = usize::try_from(BytesIn(fields.0).u32()?).ok()?;
    if header_crc(bytes.get(..length)?.get(FIXED_BYTES..)?) != crc {
        return None;
    }
    let (_length, timeline, system_identifier) = (fields.u32()?, fields.u32()?, fields.u64()?);
    let (generation, chain, number) = (Generation(fields.u32()?), fields.u32()?, fields.u64()?);
    let (start, commit) = (Lsn(fields.u64()?), Lsn(fields.u64()?));
    let (commit_generation, cut) = (Generation(fields.u32()?), Lsn(fields.u64()?));
    let (database, slot) = (fields.text()?.to_owned(), fields.text()?.to_owned());
    let identity = SourceIdentity { system_identifier, timeline, database, slot };
    let name = SegmentName { generation, start, number };
    Some((SegmentHeader { identity, name, chain, commit, commit_generation, cut }, length, crc))
}

/// The CRC over magic, version, and what stands behind the CRC.
fn header_crc(rest: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&MAGIC), &VERSION.to_le_bytes()), rest)
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

    fn header() -> SegmentHeader {
        SegmentHeader {
            identity: SourceIdentity {
                system_identifier: 7_000_000_000_000_000_001,
                timeline: 3,
                database: "quoting".to_owned(),
                slot: "postrider".to_owned(),
            },
            name: SegmentName { generation: Generation(2), start: Lsn(0x16_B374_D848), number: 19 },
            chain: 5,
            commit: Lsn(0x16_B374_D800),
            commit_generation: Generation(1),
            cut: Lsn(0x16_B374_D840),
        }
    }

    #[test]
    fn a_name_reads_back_and_sorts_as_its_position() {
        let name = header().name;
        assert_eq!(name.proven(), "00000002-00000016b374d848-00000013.segment");
        assert_eq!(SegmentName::parse(&name.proven()), Some((name, true)));
        assert_eq!(SegmentName::parse(&name.provisional()), Some((name, false)));
        for foreign in ["lock", "positions", "2-3-4.segment", "00000002-00000016B374D848-00000013.segment"] {
            assert_eq!(SegmentName::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_header_reads_back_and_every_flipped_bit_is_found() {
        let (bytes, _) = header().encode(&SchemaBlock(vec![1, 2, 3])).unwrap();
        let (read, length, _) = SegmentHeader::decode(&bytes).unwrap();
        assert_eq!(read, header());
        for bit in 0..length * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&bytes).is_err(), "bit {bit}");
        }
    }
}
