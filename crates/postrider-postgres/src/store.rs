//! Postrider's own tables, in the schema `postrider` of the source's database: which there are, and who needs what of them.

use crate::objects::SourceObjects;

/// The schema that they all stand in.
pub(crate) const STORE_SCHEMA: &str = "postrider";

/// One of the tables.
#[derive(Debug)]
pub(crate) struct StoreTable {
    /// Without its schema; no character of it needs quotation marks.
    pub(crate) name: &'static str,
    /// The SQL that creates it, and does nothing where it is there.
    pub(crate) create: &'static str,
    /// What `setup` says that it is for.
    pub(crate) purpose: &'static str,
    /// What the role that runs needs on it; empty: nothing.
    pub(crate) run: &'static str,
    /// What to do where it is missing.
    pub(crate) missing: &'static str,
}

/// One row for each attempt that ended.
pub(crate) const WORK_HISTORY: StoreTable = StoreTable {
    name: "work_history",
    create: include_str!("../../../sql/store/0001_create_work_history.sql"),
    purpose: "Creates the history of attempts, which each transition writes in its own statement.",
    run: "SELECT, INSERT, DELETE",
    missing: "`postrider setup` creates it; with `history = { enabled = false }` under [work] none is kept.",
};

/// One row for each order of a person.
pub(crate) const OPERATOR_ACTIONS: StoreTable = StoreTable {
    name: "operator_actions",
    create: include_str!("../../../sql/store/0002_create_operator_actions.sql"),
    purpose: "Creates the record of what people order by hand.",
    run: "SELECT",
    missing: "`postrider setup` creates it.",
};

/// One row for each stage or endpoint that people hold back.
pub(crate) const PAUSES: StoreTable = StoreTable {
    name: "pauses",
    create: include_str!("../../../sql/store/0003_create_pauses.sql"),
    purpose: "Creates the list of stages and endpoints that people hold back.",
    run: "SELECT",
    missing: "`postrider setup` creates it.",
};

impl StoreTable {
    /// Schema and table, as statements name it.
    pub(crate) fn qualified(&self) -> String {
        format!("{STORE_SCHEMA}.{}", self.name)
    }
}

/// The tables that a source needs.
pub(crate) fn store_tables(objects: &SourceObjects) -> Vec<&'static StoreTable> {
    if objects.routing.work.is_none() || objects.observe {
        return Vec::new();
    }
    let history = objects.history.then_some(&WORK_HISTORY);
    history.into_iter().chain([&OPERATOR_ACTIONS, &PAUSES]).collect()
}
