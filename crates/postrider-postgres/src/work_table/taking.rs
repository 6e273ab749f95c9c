//! How a guarded statement takes its rows: those that nobody holds as they are, then those that are left, each locked first.
//!
//! A lock is a write of its own to the row's page and to the log, and nearly always in vain. Whether a row is held it tells itself: its `xmax`
//! is who has locked, changed or deleted this version of it. So the first statement leaves out what may be held; a second one, which is
//! sent only where rows are left, locks them and skips what others hold. Neither waits for a row, but for one that is taken between the
//! look at its `xmax` and its update: that ends with the session's lock time-out, and then the second statement has all rows.

use std::collections::BTreeSet;

use postrider_core::error::Result;
use tokio_postgres::Row;

use super::asked::{Asked, Shape, Statement, find_asked};
use super::guarded;
use super::layout::Layout;
use crate::client::Connection;

/// Nobody holds this version of the row `t`, as far as its `xmax` tells: nobody ever locked it, or only who had ended before the oldest
/// transaction that ran when our snapshot was taken. A number that may stand for several lockers together says nothing.
pub(super) const IS_FREE: &str = "(t.xmax = 0 OR (mxid_age(t.xmax) < 0 \
     AND age(t.xmax) > (SELECT age(pg_snapshot_xmin(pg_current_snapshot())::xid))))";

/// Which rows a statement takes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Taking {
    /// Those that nobody holds.
    Free,
    /// All, each locked first, but those that others hold.
    Locked,
}

/// A statement in both forms.
#[derive(Debug)]
pub(super) struct TakingStatement {
    free: Statement,
    locked: Statement,
}

/// What a statement asks, looks at and does, as SQL about `asked` and the row `t`.
pub(super) struct Parts {
    /// The rows that it names.
    pub(super) asked: String,
    /// What `held` keeps of the row as it was: columns, each with a comma before it.
    pub(super) before: String,
    pub(super) guard: String,
    /// The SET list.
    pub(super) change: String,
}

impl Taking {
    /// The statement up to its RETURNING: the CTEs `asked` and `held`, and the UPDATE of what is held.
    ///
    /// The update is of the very version that passed the guard: where another session writes the row in between, its new version has
    /// another `xmin`. The `ctid` alone does not say so, since older servers do not look at it again after a wait.
    pub(super) fn statement(self, layout: &Layout, parts: &Parts) -> (String, String) {
        let Parts { asked, before, guard, change } = parts;
        let (table, keys) = (&layout.table, layout.key_matches());
        // Either end keeps the planner from looking at the whole table for all rows together, where that is small when it plans.
        let (only, end) = match self {
            Taking::Free => (format!(" AND {IS_FREE}"), "OFFSET 0"),
            Taking::Locked => (String::new(), "FOR NO KEY UPDATE OF t SKIP LOCKED"),
        };
        let held = format!(
            "WITH asked AS ({asked}), held AS (SELECT asked.*, t.* FROM asked CROSS JOIN LATERAL (\
               SELECT t.ctid AS row_id, t.xmin AS row_version{before} FROM {table} AS t WHERE {keys} AND {guard}{only} {end}) AS t \
               ORDER BY asked.ord)"
        );
        let update = format!(
            "UPDATE {table} AS t SET {change} FROM held AS asked \
             WHERE t.ctid = asked.row_id AND t.xmin = asked.row_version"
        );
        (held, update)
    }
}

impl TakingStatement {
    pub(super) fn new(text: impl Fn(Taking, Shape) -> String) -> TakingStatement {
        let statement = |taking| Statement::new(|shape| text(taking, shape));
        TakingStatement { free: statement(Taking::Free), locked: statement(Taking::Locked) }
    }

    /// Runs it over these rows, which are in key order, and returns the answers, each with the row that it is for. What is missing did not
    /// pass the guard, or was held by another session.
    pub(super) async fn run<'a, T>(
        &self,
        connection: &Connection,
        rows: &[&'a T],
        parameters: impl Fn(&[&'a T]) -> Result<Asked<'a>>,
    ) -> Result<Vec<(&'a T, Row)>> {
        let (shape, values) = parameters(rows)?.finish();
        let answers = match guarded::send(connection, self.free.text(shape), rows, &values).await {
            // A row was taken in the very moment: nothing is written.
            Err(error) if guarded::asks_again(&error) => Vec::new(),
            answers => answers?,
        };
        let answered: BTreeSet<usize> =
            answers.iter().map(|(_, row)| Ok(find_asked(row, rows)?.0)).collect::<Result<_>>()?;
        let mut answers: Vec<(&T, Row)> = answers.into_iter().map(|(asked, row)| (*asked, row)).collect();
        let left: Vec<&T> =
            rows.iter().enumerate().filter(|(place, _)| !answered.contains(place)).map(|(_, asked)| *asked).collect();
        if left.is_empty() {
            return Ok(answers);
        }
        // Where it fails, what the first has written is read anew with the rest: by now the leases may be over, and which row the server
        // refuses is found out one by one.
        answers.extend(self.run_locked(connection, &left, parameters).await?);
        Ok(answers)
    }

    /// As [`TakingStatement::run`] for rows that are known to be held, or were a moment ago: each is locked first.
    pub(super) async fn run_locked<'a, T>(
        &self,
        connection: &Connection,
        rows: &[&'a T],
        parameters: impl Fn(&[&'a T]) -> Result<Asked<'a>>,
    ) -> Result<Vec<(&'a T, Row)>> {
        let (shape, values) = parameters(rows)?.finish();
        let answers = guarded::run(connection, self.locked.text(shape), rows, &values).await?;
        Ok(answers.into_iter().map(|(asked, row)| (*asked, row)).collect())
    }
}
