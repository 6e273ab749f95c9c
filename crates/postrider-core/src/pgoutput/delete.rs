use super::cursor::Cursor;
use super::{OldTuple, ParseError, ParseProblem, Tuple};

/// `D`: a row is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delete<'a> {
    pub relation_oid: u32,
    pub old: OldTuple<'a>,
}

impl<'a> Delete<'a> {
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Delete<'a>, ParseError> {
        let relation_oid = cursor.u32()?;
        let at = cursor.offset();
        let old = match cursor.u8()? {
            b'K' => OldTuple::Key(Tuple::read(cursor)?),
            b'O' => OldTuple::Full(Tuple::read(cursor)?),
            marker => return Err(cursor.error_at(at, ParseProblem::UnknownMarker(marker))),
        };
        Ok(Delete { relation_oid, old })
    }
}
