//! Reads fields one after the other, and never past the end.

use super::{ParseError, ParseProblem};
use crate::position::Lsn;
use crate::time::Timestamp;

/// A place in the bytes of one message.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    tag: u8,
    whole: usize,
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { tag: 0, whole: bytes.len(), rest: bytes }
    }

    /// Reads the message's tag and remembers it for errors.
    pub(super) fn tag(&mut self) -> Result<u8, ParseError> {
        self.tag = self.u8()?;
        Ok(self.tag)
    }

    pub(super) fn current_tag(&self) -> u8 {
        self.tag
    }

    pub(super) fn u8(&mut self) -> Result<u8, ParseError> {
        self.chunk::<1>().map(|[byte]| byte)
    }

    pub(super) fn i16(&mut self) -> Result<i16, ParseError> {
        self.chunk().map(i16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, ParseError> {
        self.chunk().map(u32::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, ParseError> {
        self.chunk().map(i32::from_be_bytes)
    }

    pub(super) fn lsn(&mut self) -> Result<Lsn, ParseError> {
        self.chunk().map(|bytes| Lsn(u64::from_be_bytes(bytes)))
    }

    /// Microseconds since 2000-01-01.
    pub(super) fn timestamp(&mut self) -> Result<Timestamp, ParseError> {
        self.chunk().map(|bytes| Timestamp::from_postgres_micros(i64::from_be_bytes(bytes)))
    }

    /// A count of 16 bits, which is not below zero.
    pub(super) fn count16(&mut self) -> Result<u16, ParseError> {
        let at = self.offset();
        u16::try_from(self.i16()?).map_err(|_| self.error_at(at, ParseProblem::NegativeLength))
    }

    /// A length of 32 bits, which is not below zero, and so many bytes.
    pub(super) fn sized(&mut self) -> Result<&'a [u8], ParseError> {
        let at = self.offset();
        let length = usize::try_from(self.i32()?).map_err(|_| self.error_at(at, ParseProblem::NegativeLength))?;
        self.take(length)
    }

    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], ParseError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(|| self.truncated())?;
        self.rest = rest;
        Ok(taken)
    }

    /// Text that ends with a zero byte.
    pub(super) fn name(&mut self) -> Result<&'a str, ParseError> {
        let at = self.offset();
        let length = self.rest.iter().position(|&byte| byte == 0).ok_or_else(|| self.truncated())?;
        let bytes = self.take(length)?;
        self.u8()?;
        std::str::from_utf8(bytes).map_err(|_| self.error_at(at, ParseProblem::NotUtf8))
    }

    /// What is still unread.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Takes what another reader of [`Cursor::rest`] left over.
    pub(super) fn advance_to(&mut self, rest: &'a [u8]) {
        self.rest = rest;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn offset(&self) -> usize {
        self.whole.saturating_sub(self.rest.len())
    }

    pub(super) fn finish(&self) -> Result<(), ParseError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.error_at(self.offset(), ParseProblem::TrailingBytes)) }
    }

    pub(super) fn truncated(&self) -> ParseError {
        self.error_at(self.whole, ParseProblem::Truncated)
    }

    pub(super) fn error_at(&self, offset: usize, problem: ParseProblem) -> ParseError {
        ParseError { tag: self.tag, offset, problem }
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let (chunk, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| self.truncated())?;
        self.rest = rest;
        Ok(*chunk)
    }
}
