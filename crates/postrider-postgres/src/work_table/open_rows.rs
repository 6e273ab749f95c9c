//! Reading all open rows in one snapshot, page by page, on a connection of its own.

use std::sync::Arc;

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::paused::Paused;
use postrider_core::ports::{BoxFuture, OpenRows};
use postrider_core::snapshot::Snapshot;
use postrider_core::work::{WorkKey, WorkVersion};

use super::cells::{Cells, LeftOut};
use super::layout::{Layout, unreadable};
use super::pauses;
use super::read::parse_snapshot;
use crate::client::{Connection, Parameters};
use crate::options::ConnectOptions;
use crate::quote::quote_literal;
use crate::store::PAUSES;

/// Rows of one page.
const PAGE_ROWS_MAX: usize = 1_000;

/// What the connection is told first: one snapshot for all that follows, and no plan that sorts or scans the whole table.
const PREAMBLE: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off; SET statement_timeout = 0; \
     SET idle_in_transaction_session_timeout = 0; BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// All open rows as one snapshot has them. Dropping it closes the connection, and with it the transaction.
#[derive(Debug)]
pub(super) struct SnapshotPages {
    /// `None` after the last page.
    connection: Option<Connection>,
    layout: Arc<Layout>,
    snapshot: Snapshot,
    pauses: Vec<Paused>,
    last: Option<WorkKey>,
}

impl SnapshotPages {
    /// Connects and takes the snapshot.
    pub(super) async fn start(options: &ConnectOptions, layout: Arc<Layout>) -> Result<SnapshotPages> {
        let connection = Connection::open(options, PREAMBLE).await?;
        let text = format!(
            "SELECT pg_current_snapshot()::text, {columns} FROM (VALUES (1)) AS always \
             LEFT JOIN {pauses} AS p ON p.work_table = {table}::regclass",
            columns = pauses::COLUMNS,
            pauses = PAUSES.qualified(),
            table = quote_literal(&layout.table),
        );
        let rows = connection.query(&text.into(), &Parameters::new()).await?;
        let row = rows.first().ok_or_else(|| Error::new(ErrorKind::Protocol, "the server gave no snapshot"))?;
        let snapshot = parse_snapshot(row.try_get(0).map_err(unreadable)?)?;
        let pauses = rows.iter().filter_map(|row| pauses::read(row, 1).transpose()).collect::<Result<_>>()?;
        Ok(SnapshotPages { connection: Some(connection), layout, snapshot, pauses, last: None })
    }

    /// The next page with rows that can be read; the others are left out.
    async fn page(&mut self) -> Result<Vec<WorkVersion>> {
        let mut left_out = LeftOut::default();
        let mut versions = Vec::new();
        while let (true, Some(connection)) = (versions.is_empty(), &self.connection) {
            let parameters: Parameters = match &self.last {
                None => Parameters::new(),
                Some(key) => key.parts().map(|part| Box::new(part.to_owned()) as Box<_>).collect(),
            };
            let rows = connection.query(&statement(&self.layout, self.last.is_some()), &parameters).await?;
            versions.extend(rows.iter().filter_map(|row| left_out.sort(self.layout.read_version(row, 0))));
            if rows.len() < PAGE_ROWS_MAX {
                self.connection = None;
            }
            let last = rows.last().map(|row| self.layout.read_key(&mut Cells::new(row, 0)));
            self.last =
                last.transpose().map_err(|_| Error::new(ErrorKind::Internal, "a row without a key was read"))?;
        }
        left_out.report();
        Ok(versions)
    }
}

impl OpenRows for SnapshotPages {
    fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    fn pauses(&self) -> &[Paused] {
        &self.pauses
    }

    fn next_page(&mut self) -> BoxFuture<'_, Result<Vec<WorkVersion>>> {
        Box::pin(self.page())
    }
}

/// A page by the partial index on the key: the first, or the one behind a key.
fn statement(layout: &Layout, behind: bool) -> Arc<str> {
    let number =
        |(index, column): (usize, &super::layout::Column)| format!("${}::text::{}", index + 1, column.type_name);
    let order = layout.key_list();
    let condition = if behind {
        let key = layout.key.iter().enumerate().map(number).collect::<Vec<_>>().join(", ");
        format!(" AND ({order}) > ({key})")
    } else {
        String::new()
    };
    format!(
        "SELECT {columns} FROM {table} AS t WHERE {is_open} AND ({order}) IS NOT NULL{condition} \
         ORDER BY {order} LIMIT {PAGE_ROWS_MAX}",
        columns = layout.version_columns(),
        table = layout.table,
        is_open = layout.is_open,
    )
    .into()
}
