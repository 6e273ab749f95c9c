//! What people look up and order by hand: the rows, what happened to them, and orders, each guarded by the fence and on record.

mod expiry;
mod find;
mod keyed;
mod order;
mod pauses;
mod timeline;

use std::fmt;

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::route::WorkMapping;
use postrider_core::work::WorkVersion;

use crate::check::access::{self, Needs, TO_PAUSE};
use crate::client::Connection;
use crate::objects::written_columns;
use crate::options::ConnectOptions;
use crate::store::{OPERATOR_ACTIONS, PAUSES, StoreTable, WORK_HISTORY};
use crate::work_table::layout::Layout;

pub use expiry::Expired;
pub use find::{FoundRows, RowFilter, UnreadableRow, UnreadableRows};
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
    /// Rows are looked at.
    Look,
    /// And what happened to them.
    LookBack,
    /// What is held back is looked at, and no row.
    LookAtPauses,
    /// Rows are written.
    Order,
    /// And their epoch may rise.
    Reexecute,
    /// Stages and endpoints are held back and let go; no row is looked at.
    Pause,
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
        access::require(&connection, mapping, &access.needs(mapping, history)?).await?;
        let layout = Layout::load(&connection, mapping, history).await?;
        Ok(Operator { connection, layout, pause_prefix: mapping.pause_prefix() })
    }
}

impl Access {
    /// The privileges that its statements use, and no others.
    fn needs(self, mapping: &WorkMapping, history: bool) -> Result<Needs<'_>> {
        let rows = match self {
            Access::Look | Access::LookBack => Some(Vec::new()),
            Access::LookAtPauses | Access::Pause => None,
            Access::Order => Some(written_columns(mapping)),
            Access::Reexecute => {
                let mut written = written_columns(mapping);
                written.push(mapping.epoch.as_deref().ok_or_else(no_epoch)?);
                Some(written)
            }
        };
        let mut store: Vec<(&StoreTable, &str)> = match self {
            Access::Look => Vec::new(),
            Access::LookBack => vec![(&OPERATOR_ACTIONS, "SELECT"), (&WORK_HISTORY, "SELECT")],
            Access::LookAtPauses => vec![(&PAUSES, "SELECT")],
            Access::Order | Access::Reexecute => {
                vec![(&OPERATOR_ACTIONS, "SELECT, INSERT"), (&WORK_HISTORY, "SELECT, INSERT")]
            }
            // Who holds back may let go.
            Access::Pause => vec![(&OPERATOR_ACTIONS, "INSERT"), (&PAUSES, "SELECT, INSERT, DELETE")],
        };
        store.retain(|(table, _)| history || table.name != WORK_HISTORY.name);
        let functions: &[&str] = if self == Access::Pause { &TO_PAUSE } else { &[] };
        Ok(Needs { rows, store, functions })
    }
}

fn no_epoch() -> Error {
    Error::new(ErrorKind::Table, "the work table has no epoch, so that a stage has one key for ever")
        .with_detail("The configuration says that it has no such column: work.columns.epoch is empty.")
        .with_hint("Add the column, and name it there; `postrider check` prints the statement.")
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator").finish_non_exhaustive()
    }
}
