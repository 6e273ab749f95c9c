//! Reads numbers from bytes that may be anything.
#![deny(clippy::indexing_slicing, clippy::as_conversions, clippy::arithmetic_side_effects)]

use postrider_core::position::{Generation, Lsn, Position};

/// What is left of some bytes; every read is checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BytesIn<'a>(pub(crate) &'a [u8]);

impl<'a> BytesIn<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn slice(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(head)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// A string with its length in 16 bits before it.
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let length = self.u16()?;
        std::str::from_utf8(self.slice(usize::from(length))?).ok()
    }

    /// Generation (32 bits), LSN of the commit record (64) and ordinal (64).
    pub(crate) fn position(&mut self) -> Option<Position> {
        let (generation, commit_lsn) = (Generation(self.u32()?), Lsn(self.u64()?));
        Some(Position { generation, commit_lsn, ordinal: self.u64()? })
    }
}

/// Writes a string with its length in 16 bits before it; `None`, and writes nothing, if it is longer than that can say.
pub(crate) fn push_text(out: &mut Vec<u8>, text: &str) -> Option<()> {
    out.extend_from_slice(&u16::try_from(text.len()).ok()?.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    Some(())
}

/// Writes a position as it is read.
pub(crate) fn push_position(out: &mut Vec<u8>, position: Position) {
    out.extend_from_slice(&position.generation.0.to_le_bytes());
    out.extend_from_slice(&position.commit_lsn.0.to_le_bytes());
    out.extend_from_slice(&position.ordinal.to_le_bytes());
}
