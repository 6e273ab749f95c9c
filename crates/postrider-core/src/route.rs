//! What: says what a change is to us.
//! Where: after *decode*, before *shape* and *observe*.
//! Takes and gives: one change; its [`Route`], with the columns that matter already found.
//! Never: reads a value beyond what tells the kinds apart, keeps a row, or compares names for a table it has seen.

use crate::change::Change;
use crate::error::{Error, ErrorKind};
use crate::pgoutput::{OldTuple, Tuple};
use crate::relation::Relation;
use crate::position::Lsn;
use std::sync::Arc;

/// Which tables and messages are ours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routing {
    pub outbox_tables: Vec<OutboxTable>,
    pub outbox_prefixes: Vec<OutboxPrefix>,
    pub work: Option<WorkMapping>,
}

/// A table whose inserts are events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxTable {
    pub schema: String,
    pub table: String,
    pub columns: OutboxColumns,
}

/// The names of an outbox table's columns. A name given here must be a published column, but for `created_at` and
/// `published_at`, which are used where they are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxColumns {
    /// Identifies the event for ever; never NULL.
    pub id: String,
    /// Events with the same key are delivered in commit order; NULL: the event stands by itself.
    pub key: Option<String>,
    pub event_type: Option<String>,
    pub payload: String,
    pub headers: Option<String>,
    pub topic: Option<String>,
    /// Not part of the event, which has the time of its commit.
    pub created_at: Option<String>,
    /// Set by a poller beside us.
    pub published_at: Option<String>,
}

/// Transactional logical messages with this prefix are events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxPrefix {
    pub prefix: String,
}

/// The work table and the names of its columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkMapping {
    pub schema: String,
    pub table: String,
    /// The columns of the key, in the order of a [`crate::work::WorkKey`].
    pub key: Vec<String>,
    pub stage: String,
    pub stage_state: String,
    pub attempt_count: String,
    pub deferral_count: String,
    pub fence: String,
    pub epoch: String,
    pub next_attempt_at: String,
    pub lease_until: String,
    pub lease_owner: String,
    pub closed_at: String,
}

/// Finds the route of each change.
#[derive(Debug)]
pub struct Router {}

/// What a change is to us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route<'a> {
    /// An event: `shape::outbox_event`.
    Outbox(OutboxRow<'a>),
    /// An event: `shape::message_event`.
    OutboxMessage(OutboxMessage<'a>),
    /// A version of a work row, or its end: `shape::work_change`.
    Work(WorkRow<'a>),
    /// Nothing; the reason is for a counter.
    Ignore(Ignored),
    /// Somebody did to a table of ours what the protocol does not allow. The default policy is to say so and go on.
    Alarm(Alarm),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow<'a> {
    pub(crate) plan: &'a OutboxPlan,
    pub(crate) new: Tuple<'a>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxPlan {}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkPlan {}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxMessage<'a> {
    pub(crate) source: &'a Arc<str>,
    pub(crate) lsn: Lsn,
    pub(crate) content: &'a [u8],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkRow<'a> {
    Version { plan: &'a WorkPlan, old: Option<OldTuple<'a>>, new: Tuple<'a> },
    Gone { plan: &'a WorkPlan, old: OldTuple<'a> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ignored {
    /// A table that no part of the configuration names.
    UnrelatedTable,
    /// A logical message with a prefix that no part of the configuration names.
    UnrelatedPrefix,
    /// An outbox row was deleted: it was delivered from its insert.
    OutboxDelete,
    /// A poller beside us marked an outbox row as published.
    PublishedMark,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alarm {
    /// An outbox row was changed in more than its `published_at`: what was delivered stays delivered.
    OutboxUpdated { table: Arc<str> },
    /// Tables of ours were truncated.
    Truncated { tables: Vec<(TableRole, Arc<str>)> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableRole {
    Outbox,
    Work,
}

/// A table of ours lacks a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteError {
    /// `schema.table`
    pub table: Arc<str>,
    pub column: String,
}

impl Router {
    pub fn new(routing: Routing) -> Router { todo!() }
    /// What `change` is to us.
    pub fn route<'a>(&'a mut self, change: &Change<'a>) -> Result<Route<'a>, RouteError> { todo!() }
}

impl From<RouteError> for Error {
    fn from(error: RouteError) -> Error { Error::new(ErrorKind::Table, "x") }
}
