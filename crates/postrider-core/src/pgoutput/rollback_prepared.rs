use super::ParseError;
use super::cursor::Cursor;
use crate::position::Lsn;
use crate::time::Timestamp;

/// `r`: a prepared transaction rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollbackPrepared<'a> {
    /// Unused by the server: 0.
    pub flags: u8,
    /// First byte after the prepare record.
    pub prepare_end_lsn: Lsn,
    /// First byte after the rollback record.
    pub end_lsn: Lsn,
    pub prepared_at: Timestamp,
    pub rolled_back_at: Timestamp,
    pub xid: u32,
    pub gid: &'a str,
}

impl<'a> RollbackPrepared<'a> {
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<RollbackPrepared<'a>, ParseError> {
        Ok(RollbackPrepared {
            flags: cursor.u8()?,
            prepare_end_lsn: cursor.lsn()?,
            end_lsn: cursor.lsn()?,
            prepared_at: cursor.timestamp()?,
            rolled_back_at: cursor.timestamp()?,
            xid: cursor.u32()?,
            gid: cursor.name()?,
        })
    }
}
