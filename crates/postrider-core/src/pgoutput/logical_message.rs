use super::ParseError;
use super::cursor::Cursor;
use crate::position::Lsn;

/// `M`: what `pg_logical_emit_message` wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// Part of its transaction (flag bit 0). Otherwise it is sent at once, also from a transaction that rolls back.
    pub transactional: bool,
    /// End of the message's own record. It can equal the LSN of a commit record.
    pub lsn: Lsn,
    pub prefix: &'a str,
    pub content: &'a [u8],
}

impl<'a> LogicalMessage<'a> {
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<LogicalMessage<'a>, ParseError> {
        Ok(LogicalMessage {
            transactional: cursor.u8()? & 1 != 0,
            lsn: cursor.lsn()?,
            prefix: cursor.name()?,
            content: cursor.sized()?,
        })
    }
}
