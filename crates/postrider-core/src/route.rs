//! What: says what a change is to us.
//! Where: after *decode*, before *shape* and *observe*.
//! Takes and gives: one change; its [`Route`], with the columns that matter already found.
//! Never: reads a value beyond what tells the kinds apart, keeps a row, or compares names for a table it has seen.

mod notices;

use crate::change::{Change, Row};
use crate::error::{Error, ErrorKind};
use crate::pgoutput::{LogicalMessage, OldTuple, TupleValue};
use crate::position::Lsn;
use crate::relation::{OidMap, Relation};
use crate::work::StateWords;
use notices::Notices;
use std::collections::hash_map::Entry;
use std::fmt;
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

/// The work table and the names of its columns. `None`: the table has no such column; what that costs, `check` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkMapping {
    pub schema: String,
    pub table: String,
    /// The columns of the key, in the order of a [`crate::work::WorkKey`].
    pub key: Vec<String>,
    pub stage: String,
    pub stage_state: String,
    /// The words in `stage_state`.
    pub states: Arc<StateWords>,
    pub attempt_count: Option<String>,
    pub deferral_count: Option<String>,
    pub fence: Option<String>,
    pub epoch: Option<String>,
    pub next_attempt_at: Option<String>,
    pub lease_until: Option<String>,
    pub lease_owner: Option<String>,
    pub closed_at: Option<String>,
    pub definition: Option<String>,
    pub request_hash: Option<String>,
    pub payload: Option<String>,
    pub last_error: Option<String>,
    pub updated_at: Option<String>,
}

/// Finds the route of each change.
#[derive(Debug)]
pub struct Router {
    routing: Routing,
    prefixes: Vec<Arc<str>>,
    notices: Option<Notices>,
    tables: OidMap<Known>,
}

/// A table as it was when it was first seen, and what it is to us. It is looked up again once the log describes it anew.
#[derive(Debug)]
struct Known {
    relation: Arc<Relation>,
    role: Role,
}

#[derive(Debug)]
enum Role {
    Unrelated,
    Outbox(OutboxPlan),
    Work(WorkPlan),
}

/// What a change is to us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route<'a> {
    /// An event: [`crate::shape::outbox_event`].
    Outbox(OutboxRow<'a>),
    /// An event: [`crate::shape::message_event`].
    OutboxMessage(OutboxMessage<'a>),
    /// A version of a work row, or its end: [`crate::shape::work_change`].
    Work(WorkRow<'a>),
    /// The same, told by the work table's trigger: [`crate::shape::noticed_change`].
    WorkNotice(WorkNotice<'a>),
    /// A person paused or resumed a stage or an endpoint: [`crate::shape::pause_change`].
    Pause(WorkNotice<'a>),
    /// An executor said that it is there, or that it leaves: [`crate::shape::presence`].
    Presence(WorkNotice<'a>),
    /// Nothing; the reason is for a counter.
    Ignore(Ignored),
    /// Somebody did to a table of ours what the protocol does not allow. The default policy is to say so and go on.
    Alarm(Alarm),
}

/// A row inserted into an outbox table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboxRow<'a> {
    pub(crate) plan: &'a OutboxPlan,
    pub(crate) new: Row<'a>,
}

/// A logical message with a prefix of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboxMessage<'a> {
    pub(crate) source: &'a Arc<str>,
    pub(crate) lsn: Lsn,
    pub(crate) content: &'a [u8],
}

/// A change of the work table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkRow<'a> {
    pub(crate) plan: &'a WorkPlan,
    pub(crate) old: Option<OldTuple<'a>>,
    /// `None`: the row was deleted.
    pub(crate) new: Option<Row<'a>>,
}

/// A logical message about the work table: what its trigger says of a change that the publication leaves out, or what people hold back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkNotice<'a> {
    /// `schema.table`
    pub(crate) table: &'a Arc<str>,
    pub(crate) states: &'a StateWords,
    pub(crate) content: &'a [u8],
}

/// Why a change is nothing to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// What somebody did to a table of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alarm {
    /// An outbox row was changed in more than its `published_at`: what was delivered stays delivered.
    OutboxUpdated { table: Arc<str> },
    /// Tables of ours were truncated. What the outbox held was delivered from its inserts; the work rows are gone.
    Truncated { tables: Vec<(TableRole, Arc<str>)> },
}

/// What a table is to us.
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

/// Where the parts of an event stand in a row of one outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxPlan {
    /// `schema.table`
    pub(crate) table: Arc<str>,
    pub(crate) picks: Picks,
    pub(crate) payload_type: u32,
    published_at: Option<usize>,
}

/// Where the parts of a work row's version stand in a row of the work table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkPlan {
    /// `schema.table`
    pub(crate) table: Arc<str>,
    pub(crate) picks: Picks,
    pub(crate) states: Arc<StateWords>,
    /// Indexes of the key's columns, and their names.
    pub(crate) key: Vec<(usize, String)>,
}

/// Which columns of a tuple are wanted, found by name once for each table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Picks {
    /// For each column of the table the slot that wants it, or [`NO_SLOT`].
    slots: Box<[usize]>,
    /// For each slot the column's name, for errors.
    names: Vec<Option<String>>,
}

const NO_SLOT: usize = usize::MAX;

/// The canonical names of the columns of a version, in the order of [`work_slot`].
pub(crate) const VERSION_COLUMNS: [&str; work_slot::COUNT] = [
    "stage",
    "stage_state",
    "attempt_count",
    "deferral_count",
    "fence",
    "epoch",
    "next_attempt_at",
    "lease_until",
    "lease_owner",
    "closed_at",
    "definition",
];

/// What a version has where the table has no such column, in the order of [`work_slot`].
pub(crate) const NO_COLUMN: [TupleValue<'static>; work_slot::COUNT] = [
    TupleValue::Null,
    TupleValue::Null,
    TupleValue::Text(b"0"),
    TupleValue::Text(b"0"),
    TupleValue::Text(b"0"),
    TupleValue::Text(b"0"),
    TupleValue::Null,
    TupleValue::Null,
    TupleValue::Null,
    TupleValue::Null,
    TupleValue::Null,
];

/// Slots of [`OutboxPlan::picks`], in the order of the names in [`OutboxPlan::new`].
pub(crate) mod outbox_slot {
    pub(crate) const ID: usize = 0;
    pub(crate) const KEY: usize = 1;
    pub(crate) const EVENT_TYPE: usize = 2;
    pub(crate) const PAYLOAD: usize = 3;
    pub(crate) const HEADERS: usize = 4;
    pub(crate) const TOPIC: usize = 5;
    pub(crate) const COUNT: usize = 6;
}

/// Slots of [`WorkPlan::picks`], in the order of [`VERSION_COLUMNS`].
pub(crate) mod work_slot {
    pub(crate) const STAGE: usize = 0;
    pub(crate) const STAGE_STATE: usize = 1;
    pub(crate) const ATTEMPT_COUNT: usize = 2;
    pub(crate) const DEFERRAL_COUNT: usize = 3;
    pub(crate) const FENCE: usize = 4;
    pub(crate) const EPOCH: usize = 5;
    pub(crate) const NEXT_ATTEMPT_AT: usize = 6;
    pub(crate) const LEASE_UNTIL: usize = 7;
    pub(crate) const LEASE_OWNER: usize = 8;
    pub(crate) const CLOSED_AT: usize = 9;
    pub(crate) const DEFINITION: usize = 10;
    pub(crate) const COUNT: usize = 11;
}

impl Default for OutboxColumns {
    /// The names in `sql/source/0002_create_outbox_event.sql`.
    fn default() -> OutboxColumns {
        OutboxColumns {
            id: "id".into(),
            key: Some("aggregate_key".into()),
            event_type: Some("event_type".into()),
            payload: "payload".into(),
            headers: Some("headers".into()),
            topic: Some("topic".into()),
            created_at: Some("created_at".into()),
            published_at: Some("published_at".into()),
        }
    }
}

impl Default for OutboxTable {
    fn default() -> OutboxTable {
        OutboxTable { schema: "public".into(), table: "outbox_event".into(), columns: OutboxColumns::default() }
    }
}

impl Default for WorkMapping {
    /// The names in `sql/source/0001_create_pending_work.sql`.
    fn default() -> WorkMapping {
        WorkMapping {
            schema: "public".into(),
            table: "pending_work".into(),
            key: vec!["group_id".into(), "quote_id".into()],
            stage: "stage".into(),
            stage_state: "stage_state".into(),
            states: Arc::default(),
            attempt_count: Some("attempt_count".into()),
            deferral_count: Some("deferral_count".into()),
            fence: Some("fence".into()),
            epoch: Some("epoch".into()),
            next_attempt_at: Some("next_attempt_at".into()),
            lease_until: Some("lease_until".into()),
            lease_owner: Some("lease_owner".into()),
            closed_at: Some("closed_at".into()),
            definition: Some("definition".into()),
            request_hash: Some("request_hash".into()),
            payload: Some("payload".into()),
            last_error: Some("last_error".into()),
            updated_at: Some("updated_at".into()),
        }
    }
}

impl WorkMapping {
    /// What a version of a row consists of beside its key, in the order of `work_slot`: the canonical name of each column, and the
    /// table's own, if it has one.
    pub fn version_columns(&self) -> [(&'static str, Option<&str>); work_slot::COUNT] {
        let own = [
            Some(self.stage.as_str()),
            Some(self.stage_state.as_str()),
            self.attempt_count.as_deref(),
            self.deferral_count.as_deref(),
            self.fence.as_deref(),
            self.epoch.as_deref(),
            self.next_attempt_at.as_deref(),
            self.lease_until.as_deref(),
            self.lease_owner.as_deref(),
            self.closed_at.as_deref(),
            self.definition.as_deref(),
        ];
        let mut canonical = VERSION_COLUMNS.into_iter();
        own.map(|own| (canonical.next().unwrap_or_default(), own))
    }

    /// The prefix of the logical messages in which the table's trigger tells what other sessions than an executor's did.
    pub fn notice_prefix(&self) -> String {
        format!("postrider.work:{}.{}", self.schema, self.table)
    }

    /// The prefix of the logical messages in which orders of people tell what is paused and resumed.
    pub fn pause_prefix(&self) -> String {
        format!("postrider.stages:{}.{}", self.schema, self.table)
    }

    /// The prefix of the logical messages in which executors say that they are there.
    pub fn presence_prefix(&self) -> String {
        format!("postrider.executors:{}.{}", self.schema, self.table)
    }
}

impl Router {
    /// A table that is named both as an outbox and as the work table is an outbox; the configuration refuses it.
    pub fn new(routing: Routing) -> Router {
        let prefixes = routing.outbox_prefixes.iter().map(|outbox| outbox.prefix.as_str().into()).collect();
        let notices = routing.work.as_ref().map(Notices::new);
        Router { routing, prefixes, notices, tables: OidMap::default() }
    }

    /// What `change` is to us. `Err` where a table of ours lacks a column that the configuration names.
    #[inline]
    pub fn route<'a>(&'a mut self, change: &Change<'a>) -> Result<Route<'a>, RouteError> {
        match *change {
            Change::Insert { relation, new } => Ok(match self.role(relation)? {
                Role::Unrelated => Route::Ignore(Ignored::UnrelatedTable),
                Role::Outbox(plan) => Route::Outbox(OutboxRow { plan, new }),
                Role::Work(plan) => Route::Work(WorkRow { plan, old: None, new: Some(new) }),
            }),
            Change::Update { relation, old, new } => Ok(match self.role(relation)? {
                Role::Unrelated => Route::Ignore(Ignored::UnrelatedTable),
                Role::Outbox(plan) => plan.route_update(old, new),
                Role::Work(plan) => Route::Work(WorkRow { plan, old, new: Some(new) }),
            }),
            Change::Delete { relation, old } => Ok(match self.role(relation)? {
                Role::Unrelated => Route::Ignore(Ignored::UnrelatedTable),
                Role::Outbox(_) => Route::Ignore(Ignored::OutboxDelete),
                Role::Work(plan) => Route::Work(WorkRow { plan, old: Some(old), new: None }),
            }),
            Change::Truncate { relations, .. } => {
                let mut tables = Vec::new();
                for relation in relations.iter() {
                    match self.role(relation)? {
                        Role::Unrelated => {}
                        Role::Outbox(plan) => tables.push((TableRole::Outbox, Arc::clone(&plan.table))),
                        Role::Work(plan) => tables.push((TableRole::Work, Arc::clone(&plan.table))),
                    }
                }
                let unrelated = tables.is_empty();
                Ok(if unrelated {
                    Route::Ignore(Ignored::UnrelatedTable)
                } else {
                    Route::Alarm(Alarm::Truncated { tables })
                })
            }
            Change::Message(message) => Ok(self.route_message(&message)),
        }
    }

    /// Names are compared once for each description of a table; later changes of it cost one look-up.
    #[inline]
    fn role(&mut self, relation: &Arc<Relation>) -> Result<&Role, RouteError> {
        let known = match self.tables.entry(relation.oid) {
            Entry::Occupied(entry) => {
                let known = entry.into_mut();
                if !Arc::ptr_eq(&known.relation, relation) {
                    *known = Known::new(&self.routing, relation)?;
                }
                known
            }
            Entry::Vacant(entry) => entry.insert(Known::new(&self.routing, relation)?),
        };
        Ok(&known.role)
    }

    fn route_message<'a>(&'a self, message: &LogicalMessage<'a>) -> Route<'a> {
        if let Some(route) = self.notices.as_ref().and_then(|notices| notices.route(message)) {
            return route;
        }
        match self.prefixes.iter().find(|prefix| ***prefix == *message.prefix) {
            Some(source) => Route::OutboxMessage(OutboxMessage { source, lsn: message.lsn, content: message.content }),
            None => Route::Ignore(Ignored::UnrelatedPrefix),
        }
    }
}

impl Known {
    fn new(routing: &Routing, relation: &Arc<Relation>) -> Result<Known, RouteError> {
        let outbox = routing.outbox_tables.iter().find(|t| t.schema == relation.schema && t.table == relation.name);
        let work = routing.work.as_ref().filter(|t| t.schema == relation.schema && t.table == relation.name);
        let role = match (outbox, work) {
            (Some(outbox), _) => Role::Outbox(OutboxPlan::new(&outbox.columns, relation)?),
            (None, Some(work)) => Role::Work(WorkPlan::new(work, relation)?),
            (None, None) => Role::Unrelated,
        };
        Ok(Known { relation: Arc::clone(relation), role })
    }
}

impl OutboxPlan {
    fn new(columns: &OutboxColumns, relation: &Relation) -> Result<OutboxPlan, RouteError> {
        let table = qualified_name(relation);
        let names = [
            Some(columns.id.as_str()),
            columns.key.as_deref(),
            columns.event_type.as_deref(),
            Some(&columns.payload),
            columns.headers.as_deref(),
            columns.topic.as_deref(),
        ];
        let picks = Picks::new(&table, relation, &names)?;
        let payload_at = find_column(&table, relation, &columns.payload)?;
        let payload_type = relation.columns.get(payload_at).map_or(0, |column| column.type_oid);
        let published_at = columns.published_at.as_ref().and_then(|name| relation.column_index(name));
        Ok(OutboxPlan { table, picks, payload_type, published_at })
    }

    /// An update of `published_at` alone is a poller's mark. Under the default replica identity the log does not have the
    /// row before, and nothing can be compared: an update that leaves `published_at` set is then taken for the mark.
    fn route_update(&self, old: Option<OldTuple<'_>>, new: Row<'_>) -> Route<'static> {
        let is_mark = match (self.published_at, old) {
            (None, _) | (_, Some(OldTuple::Key(_))) => false,
            (Some(index), None) => matches!(new.column(index), Some(TupleValue::Text(_) | TupleValue::Binary(_))),
            (Some(index), Some(OldTuple::Full(old))) => {
                old.columns().zip(new.columns()).enumerate().all(|(at, (before, after))| at == index || before == after)
            }
        };
        if is_mark {
            Route::Ignore(Ignored::PublishedMark)
        } else {
            Route::Alarm(Alarm::OutboxUpdated { table: Arc::clone(&self.table) })
        }
    }
}

impl WorkPlan {
    fn new(mapping: &WorkMapping, relation: &Relation) -> Result<WorkPlan, RouteError> {
        let table = qualified_name(relation);
        // A publication may leave it out: the claim then finds under what the row is, and `check` says so.
        let mut names = mapping.version_columns().map(|(_, column)| column);
        if let Some(name) = names.get_mut(work_slot::DEFINITION) {
            *name = name.filter(|name| relation.column_index(name).is_some());
        }
        let picks = Picks::new(&table, relation, &names)?;
        let key = mapping
            .key
            .iter()
            .map(|name| Ok((find_column(&table, relation, name)?, name.clone())))
            .collect::<Result<_, RouteError>>()?;
        Ok(WorkPlan { table, picks, states: Arc::clone(&mapping.states), key })
    }
}

impl Picks {
    fn new(table: &Arc<str>, relation: &Relation, names: &[Option<&str>]) -> Result<Picks, RouteError> {
        let mut slots = vec![NO_SLOT; relation.columns.len()];
        for (slot, name) in names.iter().enumerate() {
            let Some(name) = name else { continue };
            let index = find_column(table, relation, name)?;
            match slots.get_mut(index) {
                Some(free) if *free == NO_SLOT => *free = slot,
                // Two parts are mapped to one column: only one can have it.
                _ => return Err(RouteError { table: Arc::clone(table), column: (*name).to_owned() }),
            }
        }
        let names = names.iter().map(|name| name.map(str::to_owned)).collect();
        Ok(Picks { slots: slots.into(), names })
    }

    /// The wanted columns by slot, in one walk over the tuple; a slot that no column was mapped to is left as it is.
    pub(crate) fn pick<'a, const COUNT: usize>(
        &self,
        row: Row<'a>,
        mut picked: [TupleValue<'a>; COUNT],
    ) -> [TupleValue<'a>; COUNT] {
        for (value, slot) in row.columns().zip(self.slots.iter()) {
            if let Some(place) = picked.get_mut(*slot) {
                *place = value;
            }
        }
        picked
    }

    /// A column was mapped to the slot.
    pub(crate) fn has(&self, slot: usize) -> bool {
        self.names.get(slot).is_some_and(Option::is_some)
    }

    pub(crate) fn name(&self, slot: usize) -> &str {
        self.names.get(slot).and_then(Option::as_deref).unwrap_or_default()
    }
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table \"{}\" has no published column \"{}\" of its own", self.table, self.column)
    }
}

impl std::error::Error for RouteError {}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Alarm::OutboxUpdated { table } => write!(f, "{table} was updated after its rows were delivered"),
            Alarm::Truncated { tables } => {
                f.write_str("truncated:")?;
                tables.iter().try_for_each(|(_, table)| write!(f, " {table}"))
            }
        }
    }
}

impl From<RouteError> for Error {
    fn from(error: RouteError) -> Error {
        Error::new(ErrorKind::Table, "a table lacks a column that the configuration names")
            .with_detail(format!("Column \"{}\" of table \"{}\" is missing from the log.", error.column, error.table))
            .with_hint("Map the column to its name in the table, and see that the publication's column list has it.")
    }
}

fn qualified_name(relation: &Relation) -> Arc<str> {
    format!("{}.{}", relation.schema, relation.name).into()
}

fn find_column(table: &Arc<str>, relation: &Relation, name: &str) -> Result<usize, RouteError> {
    relation.column_index(name).ok_or_else(|| RouteError { table: Arc::clone(table), column: name.to_owned() })
}

#[cfg(test)]
mod tests;
