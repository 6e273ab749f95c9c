use super::ParseError;
use super::cursor::Cursor;

/// `S`: the following messages belong to a transaction still in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamStart {
    pub xid: u32,
    /// The first block of this transaction.
    pub first: bool,
}

impl StreamStart {
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<StreamStart, ParseError> {
        Ok(StreamStart { xid: cursor.u32()?, first: cursor.u8()? == 1 })
    }
}
