//! The columns of a work table: of which type each may be, how it is added, and what it costs to be without it.

use postrider_core::route::WorkMapping;

use crate::quote::quote_identifier;

/// A column of the work table beside its key, its stage and its state, which every work table has.
#[derive(Debug, PartialEq, Eq)]
pub struct WorkColumn {
    /// As the configuration names it, and the canonical table.
    pub name: &'static str,
    /// What adds it behind `ADD COLUMN`.
    pub(crate) definition: &'static str,
    /// The types that it may have, as `pg_type` names them.
    pub(crate) types: &'static [&'static str],
    pub without: Without,
}

/// What becomes of a table that does not have the column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// No stage is executed there; why, as a sentence.
    Refused(&'static str),
    /// Something is lost; what, as a sentence.
    Loses(&'static str),
}

const TEXT: &[&str] = &["text", "varchar"];
const COUNT: &[&str] = &["int2", "int4", "int8"];
const TIME: &[&str] = &["timestamptz"];

static ATTEMPT_COUNT: WorkColumn = WorkColumn {
    name: "attempt_count",
    definition: "int NOT NULL DEFAULT 0",
    types: COUNT,
    without: Without::Refused("Nobody would count the attempts of a stage, and no limit would hold."),
};
static DEFERRAL_COUNT: WorkColumn = WorkColumn {
    name: "deferral_count",
    definition: "int NOT NULL DEFAULT 0",
    types: COUNT,
    without: Without::Loses(
        "A row that its endpoint puts off (429 or 503 with Retry-After, in-progress) uses an attempt each time.",
    ),
};
static FENCE: WorkColumn = WorkColumn {
    name: "fence",
    definition: "bigint NOT NULL DEFAULT 0",
    // A fence that runs out of numbers would have to fall.
    types: &["int8"],
    without: Without::Refused(
        "The fence alone decides who may write a row, and attempt_count cannot take its place: it falls when a stage ends.",
    ),
};
static EPOCH: WorkColumn = WorkColumn {
    name: "epoch",
    definition: "int NOT NULL DEFAULT 0",
    types: COUNT,
    without: Without::Loses(
        "A stage cannot be executed a second time under a new key: `postrider work reexecute` refuses.",
    ),
};
static NEXT_ATTEMPT_AT: WorkColumn = WorkColumn {
    name: "next_attempt_at",
    definition: "timestamptz",
    types: TIME,
    without: Without::Refused(
        "A row that is to wait before its next attempt would be tried at once by every other process, and after a restart.",
    ),
};
static LEASE_UNTIL: WorkColumn = WorkColumn {
    name: "lease_until",
    definition: "timestamptz",
    types: TIME,
    without: Without::Refused("Nobody could tell a row that is being executed from one whose process died."),
};
static LEASE_OWNER: WorkColumn = WorkColumn {
    name: "lease_owner",
    definition: "text",
    types: TEXT,
    without: Without::Loses(
        "The rows of a process that died, and claims whose reply was lost, wait until their lease ends.",
    ),
};
static CLOSED_AT: WorkColumn = WorkColumn {
    name: "closed_at",
    definition: "timestamptz",
    types: TIME,
    without: Without::Loses(
        "A row is closed by its state alone, and each start and each sweep reads all rows of the table, the closed ones with them.",
    ),
};
static DEFINITION: WorkColumn = WorkColumn {
    name: "definition",
    definition: "text",
    types: TEXT,
    without: Without::Loses(
        "Every row is under the current definition: a change of the stages holds for the rows under way, too.",
    ),
};
static REQUEST_HASH: WorkColumn = WorkColumn {
    name: "request_hash",
    definition: "bytea",
    types: &["bytea"],
    without: Without::Loses(
        "A payload that is changed between two attempts is not noticed: the receiver gets its key with another body.",
    ),
};
static PAYLOAD: WorkColumn = WorkColumn {
    name: "payload",
    definition: "jsonb",
    types: &["jsonb", "json", "text"],
    without: Without::Loses("A request says key and stage; its payload is null."),
};
static LAST_ERROR: WorkColumn = WorkColumn {
    name: "last_error",
    definition: "text",
    types: &["text"],
    without: Without::Loses(
        "Why a row waits or was set aside does not stand in it; the history tells it, where it is kept.",
    ),
};
static UPDATED_AT: WorkColumn = WorkColumn {
    name: "updated_at",
    definition: "timestamptz NOT NULL DEFAULT now()",
    types: TIME,
    without: Without::Refused("Nobody could tell when an attempt began, or how long a row has been as it is."),
};

/// Each column with the table's own name for it; `None`: the table has none.
pub fn work_columns(mapping: &WorkMapping) -> [(&'static WorkColumn, Option<&str>); 13] {
    [
        (&ATTEMPT_COUNT, mapping.attempt_count.as_deref()),
        (&DEFERRAL_COUNT, mapping.deferral_count.as_deref()),
        (&FENCE, mapping.fence.as_deref()),
        (&EPOCH, mapping.epoch.as_deref()),
        (&NEXT_ATTEMPT_AT, mapping.next_attempt_at.as_deref()),
        (&LEASE_UNTIL, mapping.lease_until.as_deref()),
        (&LEASE_OWNER, mapping.lease_owner.as_deref()),
        (&CLOSED_AT, mapping.closed_at.as_deref()),
        (&REQUEST_HASH, mapping.request_hash.as_deref()),
        (&PAYLOAD, mapping.payload.as_deref()),
        (&DEFINITION, mapping.definition.as_deref()),
        (&LAST_ERROR, mapping.last_error.as_deref()),
        (&UPDATED_AT, mapping.updated_at.as_deref()),
    ]
}

impl WorkColumn {
    /// The statement that adds the column under a name. `table` is quoted.
    pub(crate) fn addition(&self, table: &str, name: &str) -> String {
        format!("ALTER TABLE {table} ADD COLUMN {} {};", quote_identifier(name), self.definition)
    }

    /// What to do about a table that has no column of the mapped name. `table` is quoted.
    pub(crate) fn cure(&self, table: &str, name: &str) -> String {
        let addition = self.addition(table, name);
        match self.without {
            Without::Refused(_) => format!("Name the right column in the configuration, or add it: {addition}"),
            Without::Loses(_) => format!(
                "Name the right column in the configuration, or add it: {addition} Or do without: work.columns.{} = \"\".",
                self.name
            ),
        }
    }
}

/// The columns without which no stage is executed in this table, each with the reason and with the statement that adds it.
pub fn refused_columns(mapping: &WorkMapping) -> Vec<(&'static str, &'static str, String)> {
    let table = crate::objects::work_name(mapping);
    let lacking = work_columns(mapping).into_iter().filter(|(_, own)| own.is_none());
    lacking
        .filter_map(|(column, _)| match column.without {
            Without::Refused(why) => Some((column.name, why, column.addition(&table, column.name))),
            Without::Loses(_) => None,
        })
        .collect()
}
