use super::ParseError;
use super::cursor::Cursor;
use crate::position::Lsn;
use crate::time::Timestamp;

/// `C`: the end of a committed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Unused by the server: 0.
    pub flags: u8,
    pub commit_lsn: Lsn,
    /// First byte after the commit record.
    pub end_lsn: Lsn,
    pub committed_at: Timestamp,
}

impl Commit {
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Commit, ParseError> {
        Ok(Commit {
            flags: cursor.u8()?,
            commit_lsn: cursor.lsn()?,
            end_lsn: cursor.lsn()?,
            committed_at: cursor.timestamp()?,
        })
    }
}
