use super::ParseError;
use super::cursor::Cursor;
use crate::position::Lsn;
use crate::time::Timestamp;

/// `K`: a prepared transaction committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitPrepared<'a> {
    /// Unused by the server: 0.
    pub flags: u8,
    pub commit_lsn: Lsn,
    /// First byte after the commit record.
    pub end_lsn: Lsn,
    pub committed_at: Timestamp,
    pub xid: u32,
    pub gid: &'a str,
}

impl<'a> CommitPrepared<'a> {
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<CommitPrepared<'a>, ParseError> {
        Ok(CommitPrepared {
            flags: cursor.u8()?,
            commit_lsn: cursor.lsn()?,
            end_lsn: cursor.lsn()?,
            committed_at: cursor.timestamp()?,
            xid: cursor.u32()?,
            gid: cursor.name()?,
        })
    }
}
