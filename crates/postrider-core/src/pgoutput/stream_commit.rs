use super::ParseError;
use super::cursor::Cursor;
use crate::position::Lsn;
use crate::time::Timestamp;

/// `c`: a streamed transaction committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamCommit {
    pub xid: u32,
    /// Unused by the server: 0.
    pub flags: u8,
    pub commit_lsn: Lsn,
    /// First byte after the commit record.
    pub end_lsn: Lsn,
    pub committed_at: Timestamp,
}

impl StreamCommit {
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<StreamCommit, ParseError> {
        Ok(StreamCommit {
            xid: cursor.u32()?,
            flags: cursor.u8()?,
            commit_lsn: cursor.lsn()?,
            end_lsn: cursor.lsn()?,
            committed_at: cursor.timestamp()?,
        })
    }
}
