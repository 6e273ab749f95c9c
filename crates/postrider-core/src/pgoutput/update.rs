use super::cursor::Cursor;
use super::{OldTuple, ParseError, ParseProblem, Tuple};

/// `U`: a row in its new version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update<'a> {
    pub relation_oid: u32,
    /// Sent where the replica identity's columns changed, and always under REPLICA IDENTITY FULL.
    pub old: Option<OldTuple<'a>>,
    pub new: Tuple<'a>,
}

impl<'a> Update<'a> {
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Update<'a>, ParseError> {
        let relation_oid = cursor.u32()?;
        let mut at = cursor.offset();
        let mut marker = cursor.u8()?;
        let old = match marker {
            b'K' => Some(OldTuple::Key(Tuple::read(cursor)?)),
            b'O' => Some(OldTuple::Full(Tuple::read(cursor)?)),
            _ => None,
        };
        if old.is_some() {
            at = cursor.offset();
            marker = cursor.u8()?;
        }
        match marker {
            b'N' => Ok(Update { relation_oid, old, new: Tuple::read(cursor)? }),
            _ => Err(cursor.error_at(at, ParseProblem::UnknownMarker(marker))),
        }
    }
}
