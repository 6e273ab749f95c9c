use super::ParseError;
use super::cursor::Cursor;

/// `T`: all rows of one or more tables are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncate<'a> {
    pub cascade: bool,
    pub restart_identity: bool,
    /// The tables.
    pub relation_oids: Oids<'a>,
}

/// Oids as the message has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Oids<'a> {
    bytes: &'a [u8],
}

impl<'a> Truncate<'a> {
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Truncate<'a>, ParseError> {
        let at = cursor.offset();
        let count =
            u32::try_from(cursor.i32()?).map_err(|_| cursor.error_at(at, super::ParseProblem::NegativeLength))?;
        let options = cursor.u8()?;
        let start = cursor.rest();
        for _ in 0..count {
            cursor.u32()?;
        }
        let length = start.len().saturating_sub(cursor.rest().len());
        let bytes = start.get(..length).unwrap_or_default();
        Ok(Truncate { cascade: options & 1 != 0, restart_identity: options & 2 != 0, relation_oids: Oids { bytes } })
    }
}

impl<'a> Oids<'a> {
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.bytes.chunks_exact(4).filter_map(|chunk| chunk.try_into().ok()).map(u32::from_be_bytes)
    }
}
