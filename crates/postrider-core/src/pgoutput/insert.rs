use super::cursor::Cursor;
use super::{ParseError, ParseProblem, Tuple};

/// `I`: a new row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insert<'a> {
    pub relation_oid: u32,
    pub new: Tuple<'a>,
}

impl<'a> Insert<'a> {
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Insert<'a>, ParseError> {
        let relation_oid = cursor.u32()?;
        let at = cursor.offset();
        match cursor.u8()? {
            b'N' => Ok(Insert { relation_oid, new: Tuple::read(cursor)? }),
            marker => Err(cursor.error_at(at, ParseProblem::UnknownMarker(marker))),
        }
    }
}
