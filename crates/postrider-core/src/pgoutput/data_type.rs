use super::ParseError;
use super::cursor::Cursor;

/// `Y`: the name of a type that is not built in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataType<'a> {
    pub oid: u32,
    /// The schema; the server sends an empty name for `pg_catalog`.
    pub schema: &'a str,
    pub name: &'a str,
}

impl<'a> DataType<'a> {
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<DataType<'a>, ParseError> {
        Ok(DataType { oid: cursor.u32()?, schema: cursor.name()?, name: cursor.name()? })
    }
}
