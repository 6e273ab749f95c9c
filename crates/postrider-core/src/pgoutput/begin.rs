use super::ParseError;
use super::cursor::Cursor;
use crate::position::Lsn;
use crate::time::Timestamp;

/// `B`: the start of a committed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// LSN of the transaction's commit record; the same as [`super::Commit::commit_lsn`].
    pub final_lsn: Lsn,
    pub committed_at: Timestamp,
    pub xid: u32,
}

impl Begin {
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Begin, ParseError> {
        Ok(Begin { final_lsn: cursor.lsn()?, committed_at: cursor.timestamp()?, xid: cursor.u32()? })
    }
}
