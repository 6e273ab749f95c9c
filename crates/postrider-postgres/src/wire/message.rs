//! What: takes single messages of the server apart (manual, "Message Formats").
//! Where: before *read*, while the connection is not yet a stream; *read* uses the header.
//! Takes and gives: the bytes received so far; a whole message's type and body.
//! Never: trusts a length, or reads past one.

use bytes::{Buf as _, Bytes, BytesMut};
use postrider_core::error::Result;

use super::TextRow;
use crate::errors::protocol_violation;

pub(crate) const AUTHENTICATION: u8 = b'R';
pub(crate) const BACKEND_KEY_DATA: u8 = b'K';
pub(crate) const COMMAND_COMPLETE: u8 = b'C';
pub(crate) const COPY_BOTH_RESPONSE: u8 = b'W';
pub(crate) const COPY_DATA: u8 = b'd';
pub(crate) const COPY_DONE: u8 = b'c';
pub(crate) const DATA_ROW: u8 = b'D';
pub(crate) const EMPTY_QUERY_RESPONSE: u8 = b'I';
pub(crate) const ERROR_RESPONSE: u8 = b'E';
pub(crate) const NEGOTIATE_PROTOCOL_VERSION: u8 = b'v';
pub(crate) const NOTICE_RESPONSE: u8 = b'N';
pub(crate) const NOTIFICATION_RESPONSE: u8 = b'A';
pub(crate) const PARAMETER_STATUS: u8 = b'S';
pub(crate) const READY_FOR_QUERY: u8 = b'Z';
pub(crate) const ROW_DESCRIPTION: u8 = b'T';

/// The type byte and the length.
pub(crate) const HEADER_BYTES: usize = 5;
/// The longest message there can be: the server's own limit on one allocation, which no row outgrows.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// The type of the message at the front, and its length in bytes with the header; `None` while the header is not whole.
pub(crate) fn header(bytes: &[u8]) -> Result<Option<(u8, usize)>> {
    let Some((&tag, rest)) = bytes.split_first() else { return Ok(None) };
    let Some((length, _)) = rest.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length);
    match usize::try_from(length) {
        Ok(length) if (4..=MESSAGE_BYTES_MAX).contains(&length) => Ok(Some((tag, length.saturating_add(1)))),
        _ => Err(protocol_violation(format!("A message of type '{}' claims {length} bytes.", tag.escape_ascii()))),
    }
}

/// Takes the message at the front out, if it is whole: its type and its body.
pub(crate) fn take(received: &mut BytesMut) -> Result<Option<(u8, Bytes)>> {
    let Some((tag, len)) = header(received)? else { return Ok(None) };
    if received.len() < len {
        return Ok(None);
    }
    let mut body = received.split_to(len).freeze();
    body.advance(HEADER_BYTES);
    Ok(Some((tag, body)))
}

/// Name and value of a `ParameterStatus`; `None` where it ends within a field.
pub(crate) fn parameter(body: &[u8]) -> Option<(String, String)> {
    let mut fields = body.strip_suffix(&[0])?.split(|&byte| byte == 0);
    let (name, value) = (fields.next()?, fields.next()?);
    Some((String::from_utf8_lossy(name).into_owned(), String::from_utf8_lossy(value).into_owned()))
}

/// The columns of a `DataRow`; `None` where it ends within a field.
pub(crate) fn text_row(body: &[u8]) -> Option<TextRow> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let mut row = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let length = i32::from_be_bytes(*length);
        if length < 0 {
            row.push(None);
            rest = after;
            continue;
        }
        let (text, after) = after.split_at_checked(usize::try_from(length).ok()?)?;
        row.push(Some(String::from_utf8_lossy(text).into_owned()));
        rest = after;
    }
    Some(row)
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

    #[test]
    fn impossible_lengths_are_refused() {
        for length in [0u32, 3, (1 << 30) + 1, u32::MAX] {
            let bytes = [b"d", &length.to_be_bytes()[..]].concat();
            assert!(header(&bytes).is_err(), "{length}");
        }
        assert_eq!(header(b"Z\0\0\0\x04").unwrap(), Some((b'Z', 5)));
        assert_eq!(header(b"Z\0\0\0").unwrap(), None);
    }

    #[test]
    fn a_message_is_taken_once_it_is_whole() {
        let mut received = BytesMut::from(&b"Z\0\0\0\x05"[..]);
        assert_eq!(take(&mut received).unwrap(), None);
        received.extend_from_slice(b"IZ");
        assert_eq!(take(&mut received).unwrap(), Some((b'Z', Bytes::from_static(b"I"))));
        assert_eq!(&received[..], b"Z");
    }

    #[test]
    fn a_row_reads_its_nulls_and_every_cut_is_refused() {
        let body = b"\0\x03\0\0\0\x02ab\xFF\xFF\xFF\xFF\0\0\0\0";
        assert_eq!(text_row(body), Some(vec![Some("ab".into()), None, Some(String::new())]));
        for cut in 0..body.len() {
            assert_eq!(text_row(&body[..cut]), None, "cut at {cut}");
        }
    }
}
