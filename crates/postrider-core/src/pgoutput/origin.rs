use super::ParseError;
use super::cursor::Cursor;
use crate::position::Lsn;

/// `O`: where a replayed transaction came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// LSN of the commit on the origin server.
    pub commit_lsn: Lsn,
    pub name: &'a str,
}

impl<'a> Origin<'a> {
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Origin<'a>, ParseError> {
        Ok(Origin { commit_lsn: cursor.lsn()?, name: cursor.name()? })
    }
}
