use super::cursor::Cursor;
use super::{ParseError, ParseProblem};
use crate::relation::ReplicaIdentity;

/// `R`: the layout of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relation<'a> {
    pub oid: u32,
    /// The schema; the server sends an empty name for `pg_catalog`.
    pub schema: &'a str,
    pub name: &'a str,
    pub replica_identity: ReplicaIdentity,
    column_count: u16,
    columns: &'a [u8],
}

/// One column of a [`Relation`] message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnField<'a> {
    /// The column belongs to the replica identity (flag bit 0). Under FULL every column does.
    pub key: bool,
    pub name: &'a str,
    pub type_oid: u32,
    /// `atttypmod`; -1 where the type has none.
    pub type_modifier: i32,
}

/// Iterator over the columns of a [`Relation`] message.
#[derive(Debug, Clone)]
pub struct ColumnFields<'a> {
    left: u16,
    cursor: Cursor<'a>,
}

impl<'a> Relation<'a> {
    /// The columns in the order of the tuples.
    pub fn columns(&self) -> ColumnFields<'a> {
        ColumnFields { left: self.column_count, cursor: Cursor::new(self.columns) }
    }

    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Relation<'a>, ParseError> {
        let oid = cursor.u32()?;
        let schema = cursor.name()?;
        let name = cursor.name()?;
        let at = cursor.offset();
        let marker = cursor.u8()?;
        let replica_identity = ReplicaIdentity::from_marker(marker)
            .ok_or_else(|| cursor.error_at(at, ParseProblem::UnknownMarker(marker)))?;
        let column_count = cursor.count16()?;
        let columns = cursor.rest();
        for _ in 0..column_count {
            ColumnField::read(cursor)?;
        }
        Ok(Relation { oid, schema, name, replica_identity, column_count, columns })
    }
}

impl<'a> ColumnField<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<ColumnField<'a>, ParseError> {
        Ok(ColumnField {
            key: cursor.u8()? & 1 != 0,
            name: cursor.name()?,
            type_oid: cursor.u32()?,
            type_modifier: cursor.i32()?,
        })
    }
}

impl<'a> Iterator for ColumnFields<'a> {
    type Item = ColumnField<'a>;

    /// Cannot meet a malformed column: the parser of the message has read them all.
    fn next(&mut self) -> Option<ColumnField<'a>> {
        self.left = self.left.checked_sub(1)?;
        ColumnField::read(&mut self.cursor).ok()
    }
}
