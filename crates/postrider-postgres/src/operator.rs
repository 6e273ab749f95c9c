//! What people look up and order by hand: the rows, what happened to them, and orders, each guarded by the fence and on record.

mod expiry;
mod find;
mod order;
mod timeline;

use std::fmt;

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::route::WorkMapping;
use postrider_core::work::WorkVersion;

use crate::check::access;
use crate::client::Connection;
use crate::objects::written_columns;
use crate::options::ConnectOptions;
use crate::store::{OPERATOR_ACTIONS, WORK_HISTORY};
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
}

/// What is going to be done there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Look,
    Order,
    /// And the epoch may rise.
    Reexecute,
}

/// One work row, for a person.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkRow {
    pub version: WorkVersion,
    /// `last_error`.
    pub reason: Option<String>,
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
        let (mut written, mut privileges) = (Vec::new(), "SELECT");
        if access != Access::Look {
            written = written_columns(mapping);
            privileges = OPERATOR_ACTIONS.operate;
        }
        if access == Access::Reexecute {
            let epoch = mapping.epoch.as_deref().ok_or_else(|| {
                Error::new(ErrorKind::Table, "the work table has no epoch, so that a stage has one key for ever")
                    .with_detail("The configuration says that it has no such column: work.columns.epoch is empty.")
                    .with_hint("Add the column, and name it there; `postrider check` prints the statement.")
            })?;
            written.push(epoch);
        }
        let mut store = vec![(&OPERATOR_ACTIONS, privileges)];
        if history {
            store.push((&WORK_HISTORY, privileges));
        }
        access::require(&connection, mapping, &written, &store).await?;
        let layout = Layout::load(&connection, mapping, history).await?;
        Ok(Operator { connection, layout })
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator").finish_non_exhaustive()
    }
}
