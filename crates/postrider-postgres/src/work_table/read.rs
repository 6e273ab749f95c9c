//! What: reads work rows by key, with the snapshot that they were read in.
//! Where: beside the walk: after a *claim* or a *checkpoint* that left rows in doubt.
//! Takes and gives: keys; the rows that are there, closed ones too, and the snapshot.
//! Never: locks a row, or reads a payload.

use std::sync::Arc;

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::Reading;
use postrider_core::snapshot::Snapshot;
use postrider_core::work::WorkKey;

use super::asked::key_parameters;
use super::cells::LeftOut;
use super::layout::{Layout, unreadable};
use crate::client::Connection;

/// The statement for a table. Parameters: the key arrays. One statement has one snapshot, and `pg_current_snapshot()` is that one; the
/// outer join gives it even where no row matches.
pub(super) fn statement(layout: &Layout) -> Arc<str> {
    format!(
        "SELECT pg_current_snapshot()::text, found.* FROM (VALUES (1)) AS always \
         LEFT JOIN (SELECT {columns} FROM {rows}) AS found ON true",
        columns = layout.version_columns(),
        rows = layout.asked_rows(&layout.asked(&[])),
    )
    .into()
}

/// Reads the rows of these keys as far as there are any. Those that cannot be read are left out.
pub(super) async fn read(
    connection: &Connection,
    text: &Arc<str>,
    layout: &Layout,
    keys: &[WorkKey],
) -> Result<Reading> {
    let rows = connection.query(text, &key_parameters(layout.key.len(), keys.iter())?).await?;
    let mut reading = Reading::default();
    let mut left_out = LeftOut::default();
    for (index, row) in rows.iter().enumerate() {
        if index == 0 {
            reading.snapshot = parse_snapshot(row.try_get(0).map_err(unreadable)?)?;
        }
        // A key is never NULL, unless there is no row at all.
        if row.try_get::<_, Option<&str>>(1).map_err(unreadable)?.is_some() {
            reading.rows.extend(left_out.sort(layout.read_version(row, 1)));
        }
    }
    left_out.report();
    Ok(reading)
}

/// Reads the text of `pg_current_snapshot()`.
pub(super) fn parse_snapshot(text: &str) -> Result<Snapshot> {
    Snapshot::parse(text).ok_or_else(|| Error::new(ErrorKind::Protocol, "cannot read the server's snapshot"))
}
