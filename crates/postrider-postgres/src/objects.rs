//! What Postrider has or needs in a database, by name.

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::route::{DEFINITION_COLUMN, OutboxColumns, OutboxTable, Routing, WorkMapping};

use crate::quote::{quote_identifier, quote_table};

/// The publication, the slot and the tables of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceObjects {
    pub publication: String,
    pub slot: String,
    /// The slot is to send prepared transactions before their verdict, for good.
    pub two_phase: bool,
    pub failover: Failover,
    /// The server may be a standby (version 16 and later): everything but the slot is made on the primary.
    pub standby: bool,
    /// The executor's own transitions are kept out of the log: the work table has a publication of its own with its inserts only,
    /// and a trigger that tells what every other session does.
    pub quiet: bool,
    /// Receivers of some stages move their rows on themselves, in their own transactions.
    pub same_tx: bool,
    pub routing: Routing,
    /// The attempts at work rows are told in the history.
    pub history: bool,
}

/// Whether standbys are to keep a copy of the slot, so that it is there after a promotion (version 17 and later).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Failover {
    /// A new slot is made so where the server can; one that is there stays as it is.
    #[default]
    WherePossible,
    /// The slot is made so, or changed; a server that cannot is refused.
    Wanted,
    Unwanted,
}

/// The first version whose publications have column lists.
pub(crate) const LISTS_MAJOR: u32 = 15;
/// The first version with slots that standbys keep.
pub(crate) const FAILOVER_MAJOR: u32 = 17;

/// The columns that Postrider reads and writes although no mapping names them.
pub(crate) const UNMAPPED_COLUMNS: [&str; 5] = ["request_hash", "payload", "definition", "last_error", "updated_at"];

/// What to do about a mapped table that is not there.
pub(crate) const MISSING_TABLE_HINT: &str =
    "`postrider setup` creates the canonical tables; for one of your own, correct its name in the configuration.";
/// What to do about a work table whose rows are spread over several.
pub(crate) const SPREAD_TABLE_HINT: &str =
    "Keep the work in one plain table; rows that are closed may be moved to a partitioned one.";

impl SourceObjects {
    /// Says what a server of this major version cannot do of what is asked.
    pub(crate) fn refuse_version(&self, major: u32) -> Result<()> {
        if self.failover == Failover::Wanted && major < FAILOVER_MAJOR {
            return Err(Error::new(ErrorKind::Configuration, "the server cannot have its standbys keep the slot")
                .with_detail(format!("The configuration says source.failover = true, and the server is PostgreSQL {major}."))
                .with_hint("That takes PostgreSQL 17. Take source.failover out; after a promotion the slot is then made anew, and what it did not see is adopted as a gap."));
        }
        Ok(())
    }

    /// A slot that is made on a server of this major version is kept on standbys.
    pub(crate) fn makes_failover_slot(&self, major: u32) -> bool {
        self.failover != Failover::Unwanted && major >= FAILOVER_MAJOR
    }

    /// The publication of the work table, where it has one of its own.
    pub fn work_publication(&self) -> Option<String> {
        (self.quiet && self.routing.work.is_some()).then(|| format!("{}_work", self.publication))
    }

    /// The published tables, quoted, outbox tables first.
    pub(crate) fn tables(&self) -> Vec<String> {
        let outbox = self.routing.outbox_tables.iter().map(outbox_name);
        outbox.chain(self.routing.work.iter().map(work_name)).collect()
    }
}

/// The quoted name of an outbox table.
pub(crate) fn outbox_name(table: &OutboxTable) -> String {
    quote_table(&table.schema, &table.table)
}

/// The quoted name of a work table.
pub(crate) fn work_name(mapping: &WorkMapping) -> String {
    quote_table(&mapping.schema, &mapping.table)
}

/// Why a work table is refused. `table` is quoted.
pub(crate) fn spread_table(table: &str) -> String {
    format!("{table} is not one plain table: it is partitioned, or other tables inherit from it, or it is a view.")
}

/// The columns of an outbox table that the log must carry: all that is mapped, but for the two that events do not need.
pub(crate) fn event_columns(columns: &OutboxColumns) -> Vec<&str> {
    let mut needed = vec![columns.id.as_str(), columns.payload.as_str()];
    let optional = [&columns.key, &columns.event_type, &columns.headers, &columns.topic];
    needed.extend(optional.into_iter().flatten().map(String::as_str));
    needed
}

/// The columns of a work table that the log must carry: all that is mapped, and no payload.
pub(crate) fn streamed_columns(mapping: &WorkMapping) -> Vec<&str> {
    let mut columns: Vec<&str> = mapping.key.iter().map(String::as_str).collect();
    columns.extend([DEFINITION_COLUMN, &mapping.stage, &mapping.stage_state, &mapping.epoch]);
    columns.extend(changing_columns(mapping).into_iter().filter(|column| !UNMAPPED_COLUMNS.contains(column)));
    columns.push(&mapping.closed_at);
    let mut unique: Vec<&str> = Vec::new();
    for column in columns {
        if !unique.contains(&column) {
            unique.push(column);
        }
    }
    unique
}

/// The columns that a transition may write.
pub(crate) fn written_columns(mapping: &WorkMapping) -> Vec<&str> {
    let mut columns = changing_columns(mapping);
    columns.push(&mapping.closed_at);
    columns
}

/// What to do about a column of the work table that is not there. `table` is quoted.
pub(crate) fn missing_column_hint(mapping: &WorkMapping, table: &str, column: &str) -> String {
    let number = [&mapping.attempt_count, &mapping.deferral_count, &mapping.epoch];
    let time = [&mapping.next_attempt_at, &mapping.lease_until, &mapping.closed_at];
    let is_one_of = |columns: &[&String]| columns.iter().any(|own| *own == column);
    let definition = if is_one_of(&number) {
        "int NOT NULL DEFAULT 0"
    } else if column == mapping.fence {
        "bigint NOT NULL DEFAULT 0"
    } else if is_one_of(&time) {
        "timestamptz"
    } else if column == mapping.stage_state {
        "text NOT NULL DEFAULT 'PENDING'"
    } else if column == mapping.lease_owner {
        "text"
    } else {
        match column {
            "request_hash" => "bytea",
            "payload" => "jsonb",
            "definition" | "last_error" => "text",
            "updated_at" => "timestamptz NOT NULL DEFAULT now()",
            // Only the application knows its key and its first stage.
            _ => return "Name the right column in the configuration.".to_owned(),
        }
    };
    format!(
        "Name the right column in the configuration, or add it: ALTER TABLE {table} ADD COLUMN {} {definition};",
        quote_identifier(column)
    )
}

/// The columns that transitions before the last may write: an index on one of them costs every HOT update.
pub(crate) fn changing_columns(mapping: &WorkMapping) -> Vec<&str> {
    vec![
        &mapping.stage,
        &mapping.stage_state,
        &mapping.attempt_count,
        &mapping.deferral_count,
        &mapping.fence,
        &mapping.next_attempt_at,
        &mapping.lease_until,
        &mapping.lease_owner,
        "request_hash",
        "last_error",
        "updated_at",
        DEFINITION_COLUMN,
    ]
}
