//! What Postrider has or needs in a database, by name.

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::route::{OutboxColumns, OutboxTable, Routing, WorkMapping};
use postrider_core::work::StageState;

use crate::columns::work_columns;
use crate::quote::{quote_identifier, quote_literal, quote_table};
use crate::words;

/// How a function of ours runs: with the privileges of whoever made it, and whatever the session is that calls it. What a session has of its
/// own in `pg_temp` comes last, since it would come first where it is not named ("Writing SECURITY DEFINER Functions Safely").
pub(crate) const DEFINER: &str = "SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres' SET timezone = 'UTC'
    SET extra_float_digits = 3 SET bytea_output = 'hex'";

/// One of its settings, as `pg_proc.proconfig` has it.
pub(crate) const SEARCH_PATH: &str = "search_path=pg_catalog, pg_temp";

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
    /// Somebody else works on the rows of the work table, and we look on: nothing of it is written.
    pub observe: bool,
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
        (self.quiet && self.routing.work.is_some()).then(|| self.work_publication_name())
    }

    /// What the publication of the work table is called, whether these objects have one or not.
    pub(crate) fn work_publication_name(&self) -> String {
        format!("{}_work", self.publication)
    }

    /// The publications that the stream is read with.
    pub(crate) fn publications(&self) -> Vec<String> {
        [self.publication.clone()].into_iter().chain(self.work_publication()).collect()
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

/// The row `t` is open, as a condition.
pub(crate) fn is_open(mapping: &WorkMapping) -> String {
    if let Some(closed_at) = &mapping.closed_at {
        return format!("t.{} IS NULL", quote_identifier(closed_at));
    }
    let closed: Vec<StageState> = StageState::ALL.into_iter().filter(|state| state.is_closed()).collect();
    format!("t.{}::text {}", quote_identifier(&mapping.stage_state), words::none_of(&mapping.states, &closed))
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

/// The columns of a work table that the log must carry: all that a row version is made of, and no payload.
pub(crate) fn streamed_columns(mapping: &WorkMapping) -> Vec<&str> {
    let mut columns: Vec<&str> = mapping.key.iter().map(String::as_str).collect();
    columns.extend(mapping.version_columns().into_iter().filter_map(|(_, own)| own));
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
    columns.extend(mapping.closed_at.as_deref());
    columns
}

/// What to do about a column of the work table that is not there. `table` is quoted.
pub(crate) fn missing_column_hint(mapping: &WorkMapping, table: &str, column: &str) -> String {
    if column == mapping.stage_state {
        let addition = format!("text NOT NULL DEFAULT {};", quote_literal(mapping.states.word(StageState::Pending)));
        let column = quote_identifier(column);
        return format!(
            "Name the right column in the configuration, or add it: ALTER TABLE {table} ADD COLUMN {column} {addition}"
        );
    }
    let known = work_columns(mapping).into_iter().find(|(_, own)| *own == Some(column));
    // Only the application knows its key and its first stage.
    known.map_or_else(
        || "Name the right column in the configuration.".to_owned(),
        |(known, _)| known.cure(table, column),
    )
}

/// The columns that transitions before the last may write: an index on one of them costs every HOT update.
pub(crate) fn changing_columns(mapping: &WorkMapping) -> Vec<&str> {
    let optional = [
        &mapping.attempt_count,
        &mapping.deferral_count,
        &mapping.fence,
        &mapping.next_attempt_at,
        &mapping.lease_until,
        &mapping.lease_owner,
        &mapping.request_hash,
        &mapping.last_error,
        &mapping.updated_at,
        &mapping.definition,
    ];
    let mut columns = vec![mapping.stage.as_str(), &mapping.stage_state];
    columns.extend(optional.into_iter().flatten().map(String::as_str));
    columns
}
