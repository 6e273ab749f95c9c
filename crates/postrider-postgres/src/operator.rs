//! What people look up and order by hand: the rows, what happened to them, and orders, each guarded by the fence and on record.

mod expiry;
mod find;
mod order;
mod pauses;
mod timeline;

use std::fmt;

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::route::WorkMapping;
use postrider_core::work::WorkVersion;

use crate::check::access;
use crate::client::Connection;
use crate::objects::written_columns;
use crate::options::ConnectOptions;
use crate::store::{OPERATOR_ACTIONS, PAUSES, StoreTable, WORK_HISTORY};
use crate::work_table::layout::Layout;

pub use expiry::Expired;
pub use find::RowFilter;
pub use order::Note;
pub use timeline::{Deed, TimelineEntry, TriedOnce};

/// A person's session. Orders wait some seconds for whoever holds a row.
const PREAMBLE: &str = "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off; \
     SET lock_timeout = '5s'; SET jit = off; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";

/// A person's door to one work table.
pub struct Operator {
    connection: Connection,
    layout: Layout,
    /// Of the messages that tell executors what is paused.
    pause_prefix: String,
}

/// What is going to be done there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Look,
    /// And what is held back is looked at.
    LookAtPauses,
    Order,
    /// And the epoch may rise.
    Reexecute,
    /// Stages and endpoints may be held back; no row is written.
    Pause,
}

/// One work row, for a person.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkRow {
    pub version: WorkVersion,
    /// `last_error`.
    pub reason: Option<String>,
    /// A request for its stage may have left.
    pub was_sent: bool,
    /// When it was last written, as the server writes times.
    pub updated_at: Option<String>,
    /// The seconds since.
    pub age_seconds: Option<f64>,
}

impl Operator {
    /// Connects, and looks whether our role may do what is going to be done. `history`: it is kept, by the configuration.
    ///
    /// # Errors
    /// `Privilege` with every grant that is missing, `Table` for a table that is, and what connecting gives.
    pub async fn open(
        options: &ConnectOptions,
        mapping: &WorkMapping,
        history: bool,
        access: Access,
    ) -> Result<Operator> {
        let connection = Connection::open(options, PREAMBLE).await?;
        let orders = access == Access::Order || access == Access::Reexecute;
        let mut written = if orders { written_columns(mapping) } else { Vec::new() };
        if access == Access::Reexecute {
            let epoch = mapping.epoch.as_deref().ok_or_else(|| {
                Error::new(ErrorKind::Table, "the work table has no epoch, so that a stage has one key for ever")
                    .with_detail("The configuration says that it has no such column: work.columns.epoch is empty.")
                    .with_hint("Add the column, and name it there; `postrider check` prints the statement.")
            })?;
            written.push(epoch);
        }
        let needed = |table: &'static StoreTable, orders: bool| (table, if orders { table.operate } else { "SELECT" });
        let mut store = vec![needed(&OPERATOR_ACTIONS, orders || access == Access::Pause)];
        if history {
            store.push(needed(&WORK_HISTORY, orders));
        }
        if access == Access::Pause || access == Access::LookAtPauses {
            store.push(needed(&PAUSES, access == Access::Pause));
        }
        access::require(&connection, mapping, &written, &store).await?;
        let layout = Layout::load(&connection, mapping, history).await?;
        Ok(Operator { connection, layout, pause_prefix: mapping.pause_prefix() })
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator").finish_non_exhaustive()
    }
}
