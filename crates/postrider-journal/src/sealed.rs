//! The form of a small file that is written whole: eight bytes that say what it is, its fields, and CRC32C over all before it.
#![deny(clippy::indexing_slicing, clippy::as_conversions, clippy::arithmetic_side_effects)]

use crate::bytes_in::BytesIn;

/// What a file begins with.
pub(crate) type Magic = [u8; 8];

/// Ends a file that begins with its magic.
pub(crate) fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// The fields of a file; `None` where it is damaged, or another one.
pub(crate) fn unseal(bytes: &[u8], magic: Magic) -> Option<BytesIn<'_>> {
    let (content, crc) = bytes.split_last_chunk::<4>()?;
    if crc32c::crc32c(content) != u32::from_le_bytes(*crc) {
        return None;
    }
    let mut fields = BytesIn(content);
    (fields.array() == Some(magic)).then_some(fields)
}
