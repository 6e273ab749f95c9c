use super::ParseError;
use super::cursor::Cursor;
use crate::position::Lsn;
use crate::time::Timestamp;

/// `b`: the start of a prepared transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BeginPrepare<'a> {
    pub prepare_lsn: Lsn,
    /// First byte after the prepare record.
    pub end_lsn: Lsn,
    pub prepared_at: Timestamp,
    pub xid: u32,
    pub gid: &'a str,
}

impl<'a> BeginPrepare<'a> {
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<BeginPrepare<'a>, ParseError> {
        Ok(BeginPrepare {
            prepare_lsn: cursor.lsn()?,
            end_lsn: cursor.lsn()?,
            prepared_at: cursor.timestamp()?,
            xid: cursor.u32()?,
            gid: cursor.name()?,
        })
    }
}
