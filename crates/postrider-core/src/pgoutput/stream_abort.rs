use super::ParseError;
use super::cursor::Cursor;
use crate::position::Lsn;
use crate::time::Timestamp;

/// `A`: a streamed transaction, or a subtransaction of it, rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamAbort {
    pub xid: u32,
    /// The same as `xid` where the whole transaction rolled back.
    pub subxid: u32,
    /// Sent by version 4 with `streaming = parallel` only.
    pub place: Option<AbortPlace>,
}

/// Where and when it rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbortPlace {
    pub abort_lsn: Lsn,
    pub aborted_at: Timestamp,
}

impl StreamAbort {
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<StreamAbort, ParseError> {
        let (xid, subxid) = (cursor.u32()?, cursor.u32()?);
        let place = if cursor.is_empty() {
            None
        } else {
            Some(AbortPlace { abort_lsn: cursor.lsn()?, aborted_at: cursor.timestamp()? })
        };
        Ok(StreamAbort { xid, subxid, place })
    }
}
