//! Which version of a row that is, as the server tells it: where it lies, who wrote it, and when.

use std::error::Error as StdError;

use bytes::{BufMut as _, BytesMut};
use postrider_core::ports::RowVersion;
use postrider_core::time::Timestamp;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::cells::{Cells, Unreadable};
use super::layout::{Layout, Micros};

/// The number of a transaction (`xid`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Xid(pub(super) u32);

/// The place of a version in its table (`tid`): page, and place on the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tid(pub(super) (u32, u16));

/// What an answer says of the version that the row `t` has, where the table tells versions. When it was written, only the history asks.
pub(super) fn columns(layout: &Layout) -> Vec<String> {
    if !layout.tells_versions {
        return Vec::new();
    }
    let mut columns = vec!["t.ctid".to_owned(), "t.xmin".to_owned()];
    if layout.history {
        columns.push(format!("t.{}::timestamptz", layout.updated_at.name));
    }
    columns
}

/// Reads what [`columns`] asked for.
pub(super) fn read<'c>(layout: &'c Layout, cells: &mut Cells<'_>) -> Result<Option<RowVersion>, Unreadable<'c>> {
    if !layout.tells_versions {
        return Ok(None);
    }
    let column = &layout.updated_at;
    let Tid(place) = cells.take(column)?;
    let Xid(xid) = cells.take(column)?;
    let written_at = if layout.history { cells.take::<Micros>(column)?.0 } else { Timestamp::default() };
    Ok(Some(RowVersion { xid, place, written_at }))
}

impl<'a> FromSql<'a> for Xid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Xid(u32::from_be_bytes(raw.try_into()?)))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::XID
    }
}

impl ToSql for Xid {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.put_u32(self.0);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::XID
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Tid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        let [page @ .., high, low] = <[u8; 6]>::try_from(raw)?;
        Ok(Tid((u32::from_be_bytes(page), u16::from_be_bytes([high, low]))))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::TID
    }
}

impl ToSql for Tid {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.put_u32(self.0.0);
        out.put_u16(self.0.1);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::TID
    }

    to_sql_checked!();
}
