//! What: moves a work row on in the receiver's own transaction, for stages of class `same_tx`.
//! Where: the last statement before the commit of the transaction that does the stage's work, on the database of the work table.
//! Takes and gives: the request's key, stage and fence, and where the row goes; the commit, or its refusal.
//! Never: commits work whose row was not moved on with it.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Transaction};

use crate::error::{Error, ErrorKind};
use crate::stage_request::StageRequest;

/// The work table, by the names that the configuration has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkTable {
    schema: String,
    table: String,
}

/// Where the row goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// Another stage.
    Stage(&'a str),
    /// The workflow ends.
    End,
}

/// The right of one request to move its row on, and what became of it.
///
/// A stale request makes [`Advance::to`] an error, and the error is what undoes the business writes. Where it is caught, at a savepoint for
/// instance, [`Advance::commit`] still refuses the transaction: so commit through it.
#[derive(Debug)]
#[must_use = "work whose row is not moved on with it is done a second time"]
pub struct Advance {
    call: String,
    key: Vec<String>,
    stage: String,
    fence: i64,
    moved: AtomicBool,
    stale: AtomicBool,
}

impl WorkTable {
    /// A table as the configuration names it, without quotation marks.
    pub fn new(schema: &str, table: &str) -> WorkTable {
        WorkTable { schema: schema.to_owned(), table: table.to_owned() }
    }

    /// Schema and table as statements name them.
    pub(crate) fn quoted(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&self.table))
    }

    /// The function that `postrider setup` makes for the table.
    fn function(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&format!("postrider_advance_{}", self.table)))
    }
}

impl Default for WorkTable {
    /// The canonical table.
    fn default() -> WorkTable {
        WorkTable::new("public", "pending_work")
    }
}

impl Advance {
    /// For a request, and the row whose key stands in its body: the texts of the key columns, in their order.
    pub fn of<S: Into<String>>(table: &WorkTable, request: &StageRequest, key: impl IntoIterator<Item = S>) -> Advance {
        Advance {
            call: format!("SELECT {}($1, $2, $3, $4)", table.function()),
            key: key.into_iter().map(Into::into).collect(),
            stage: request.stage.clone(),
            fence: request.fence,
            moved: AtomicBool::new(false),
            stale: AtomicBool::new(false),
        }
    }

    /// Moves the row on, in this transaction or in a savepoint of it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Stale`] where the row has gone on without this request: roll back, and answer 412 with
    /// [`Outcome::Stale`](crate::Outcome::Stale). Otherwise as the database gives them.
    pub async fn to(&self, transaction: &impl GenericClient, next: Next<'_>) -> Result<(), Error> {
        let next = match next {
            Next::Stage(name) => name,
            Next::End => "DONE",
        };
        let called = transaction
            .query_typed(
                &self.call,
                &[
                    (&self.key, Type::TEXT_ARRAY),
                    (&self.stage, Type::TEXT),
                    (&self.fence, Type::INT8),
                    (&next, Type::TEXT),
                ],
            )
            .await;
        let outcome = called.map(drop).map_err(Error::from);
        match &outcome {
            Ok(()) => self.moved.store(true, Ordering::Relaxed),
            Err(error) if error.kind() == ErrorKind::Stale => self.stale.store(true, Ordering::Relaxed),
            Err(_) => {}
        }
        outcome
    }

    /// Commits the work together with the row's advance, or neither.
    ///
    /// A row that was moved on in a savepoint which was rolled back later is not noticed here; Postrider then parks it (`NOT_ADVANCED`).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Stale`] where the request was stale, whoever caught that; [`ErrorKind::Refused`] where the row was never moved on.
    /// In both the transaction is rolled back. Otherwise as the database gives them.
    pub async fn commit(self, transaction: Transaction<'_>) -> Result<(), Error> {
        if self.stale.into_inner() {
            transaction.rollback().await?;
            return Err(Error::stale());
        }
        if !self.moved.into_inner() {
            transaction.rollback().await?;
            return Err(Error::refused(
                "work of a same_tx stage is not committed without its row",
                "Call Advance::to() in the same transaction, or roll it back and answer that nothing was done.",
            ));
        }
        Ok(transaction.commit().await?)
    }
}

/// An identifier as SQL has it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
