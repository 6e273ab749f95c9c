//! Which changes are wanted.

use crate::reading::walk::Seen;
use postrider_core::change::Change;
use postrider_core::error::Result;
use postrider_core::event::Event;
use postrider_core::pgoutput::TupleValue;
use postrider_core::relation::Relation;
use postrider_core::route::{Route, Router, Routing};
use postrider_core::shape::{self, WorkChange};
use postrider_core::work::WorkKey;

/// What kind of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Every change of every table, and every logical message, as rows.
    Rows,
    /// Changes of the work table, as rows.
    Work,
    /// Events, as the sinks get them.
    Outbox,
}

/// The filters as they are typed.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FilterArguments {
    /// Only changes of this table: `schema.table`, or `table` in whichever schema. Can be given several times.
    #[arg(long = "table", value_name = "TABLE")]
    pub(crate) tables: Vec<String>,
    /// Only rows with this value in a column of their key (the replica identity), and events with this aggregate key. Can be
    /// given several times.
    #[arg(long = "key", value_name = "VALUE")]
    pub(crate) keys: Vec<String>,
    /// Only versions of work rows in this stage; the same as --kind work with it. Can be given several times.
    #[arg(long = "stage", value_name = "STAGE", conflicts_with = "kind")]
    pub(crate) stages: Vec<String>,
    /// What to show; `work` and `outbox` need the configuration, which names the tables.
    #[arg(long, value_enum, default_value = "rows")]
    pub(crate) kind: Kind,
}

/// The filters as they are used.
#[derive(Debug)]
pub(crate) struct Filter {
    arguments: FilterArguments,
    router: Router,
}

/// A change that came through.
#[derive(Debug)]
pub(crate) enum Wanted {
    No,
    Row,
    Event(Box<Event>),
}

impl FilterArguments {
    /// Whether the configuration must say which tables are meant.
    pub(crate) fn needs_routing(&self) -> bool {
        self.kind != Kind::Rows || !self.stages.is_empty()
    }
}

impl Filter {
    pub(crate) fn new(arguments: FilterArguments, routing: Routing) -> Filter {
        Filter { arguments, router: Router::new(routing) }
    }

    /// Whether a change is wanted, and as what.
    pub(crate) fn admit(&mut self, seen: &Seen<'_>) -> Result<Wanted> {
        if !self.is_table_wanted(seen.change) {
            return Ok(Wanted::No);
        }
        if !self.arguments.needs_routing() {
            return Ok(if self.has_key(seen.change) { Wanted::Row } else { Wanted::No });
        }
        let (keys, stages) = (&self.arguments.keys, &self.arguments.stages);
        let event = match self.router.route(seen.change)? {
            Route::Work(_) | Route::WorkNotice(_) if self.arguments.kind == Kind::Outbox => return Ok(Wanted::No),
            Route::Work(row) => {
                let is_wanted = in_stage(&shape::work_change(&row)?, stages) && self.has_key(seen.change);
                return Ok(if is_wanted { Wanted::Row } else { Wanted::No });
            }
            Route::WorkNotice(notice) => {
                let change = shape::noticed_change(&notice)?;
                let is_wanted = in_stage(&change, stages) && concerns(&change, keys);
                return Ok(if is_wanted { Wanted::Row } else { Wanted::No });
            }
            _ if self.arguments.kind != Kind::Outbox => return Ok(Wanted::No),
            Route::Outbox(row) => shape::outbox_event(&row, seen.position, seen.head.committed_at)?,
            Route::OutboxMessage(message) => shape::message_event(&message, seen.position, seen.head.committed_at),
            Route::Pause(_) | Route::Presence(_) | Route::Ignore(_) | Route::Alarm(_) => return Ok(Wanted::No),
        };
        let has_key = keys.is_empty() || event.key.as_deref().is_some_and(|own| keys.iter().any(|key| key == own));
        Ok(if has_key { Wanted::Event(Box::new(event)) } else { Wanted::No })
    }

    fn is_table_wanted(&self, change: &Change<'_>) -> bool {
        let tables = &self.arguments.tables;
        let wanted = |relation: &Relation| {
            tables.iter().any(|table| {
                let (schema, name) = table.split_once('.').map_or((None, table.as_str()), |(s, n)| (Some(s), n));
                name == relation.name && schema.is_none_or(|schema| schema == relation.schema)
            })
        };
        tables.is_empty()
            || match change {
                Change::Insert { relation, .. } | Change::Update { relation, .. } | Change::Delete { relation, .. } => {
                    wanted(relation)
                }
                Change::Truncate { relations, .. } => relations.iter().any(|relation| wanted(relation)),
                Change::Message(_) => false,
            }
    }

    fn has_key(&self, change: &Change<'_>) -> bool {
        let keys = &self.arguments.keys;
        let wanted = |value| keys.iter().any(|key| value == TupleValue::Text(key.as_bytes()));
        keys.is_empty()
            || match change {
                Change::Insert { relation, new } => any_key(relation, new.columns(), wanted),
                Change::Update { relation, old, new } => {
                    any_key(relation, new.columns(), wanted)
                        || old.is_some_and(|old| any_key(relation, old.tuple().columns(), wanted))
                }
                Change::Delete { relation, old } => any_key(relation, old.tuple().columns(), wanted),
                Change::Truncate { .. } | Change::Message(_) => false,
            }
    }
}

fn in_stage(change: &WorkChange, stages: &[String]) -> bool {
    stages.is_empty()
        || matches!(change, WorkChange::Version { version, .. }
            if stages.iter().any(|stage| stage == version.stage.as_str()))
}

/// Whether a part of the row's key, as it is or was, is wanted.
fn concerns(change: &WorkChange, keys: &[String]) -> bool {
    let is_wanted = |key: &WorkKey| key.parts().any(|part| keys.iter().any(|key| key == part));
    keys.is_empty()
        || match change {
            WorkChange::Version { version, moved_from } => {
                is_wanted(&version.key) || moved_from.as_ref().is_some_and(is_wanted)
            }
            WorkChange::Gone(key) => is_wanted(key),
        }
}

/// Whether a column of the key has a value that is wanted.
fn any_key<'a>(
    relation: &Relation,
    values: impl Iterator<Item = TupleValue<'a>>,
    wanted: impl Fn(TupleValue<'a>) -> bool,
) -> bool {
    relation.columns.iter().zip(values).any(|(column, value)| column.key && wanted(value))
}
