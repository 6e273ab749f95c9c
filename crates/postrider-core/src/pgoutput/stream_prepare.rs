use super::ParseError;
use super::cursor::Cursor;
use crate::position::Lsn;
use crate::time::Timestamp;

/// `p`: a streamed transaction was prepared; its verdict is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamPrepare<'a> {
    /// Unused by the server: 0.
    pub flags: u8,
    pub prepare_lsn: Lsn,
    /// First byte after the prepare record.
    pub end_lsn: Lsn,
    pub prepared_at: Timestamp,
    pub xid: u32,
    pub gid: &'a str,
}

impl<'a> StreamPrepare<'a> {
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<StreamPrepare<'a>, ParseError> {
        Ok(StreamPrepare {
            flags: cursor.u8()?,
            prepare_lsn: cursor.lsn()?,
            end_lsn: cursor.lsn()?,
            prepared_at: cursor.timestamp()?,
            xid: cursor.u32()?,
            gid: cursor.name()?,
        })
    }
}
