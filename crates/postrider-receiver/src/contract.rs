//! What: checks a receiver of a `same_tx` stage against what it must keep.
//! Where: in the receiver's own tests, against its own endpoint and a database that is for tests.
//! Takes and gives: a way to send a request and one to count its effects; the first rule that is broken, if one is.
//! Never: runs beside an executor, which would take the row.

use std::fmt;

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::advance::{WorkTable, quoted};
use crate::error::Error;

/// A row of the work table that the check may write as it likes.
#[derive(Clone, Debug)]
pub struct ContractRow<'a> {
    /// Its table.
    pub table: WorkTable,
    /// The key columns with the texts that identify the row.
    pub key: Vec<(&'a str, &'a str)>,
    /// The stage that is asked for.
    pub stage: &'a str,
    /// The table's own names for four of its columns, and its word for one state.
    pub columns: ContractColumns<'a>,
}

/// The columns that the check writes and reads.
#[derive(Clone, Copy, Debug)]
pub struct ContractColumns<'a> {
    /// The stage.
    pub stage: &'a str,
    /// The state within the stage.
    pub stage_state: &'a str,
    /// The fence.
    pub fence: &'a str,
    /// When the row was closed; `None`: the table has no such column, and its state says so.
    pub closed_at: Option<&'a str>,
    /// The state of a row that runs.
    pub running: &'a str,
}

impl Default for ContractColumns<'_> {
    /// The names of the canonical table.
    fn default() -> Self {
        ContractColumns {
            stage: "stage",
            stage_state: "stage_state",
            fence: "fence",
            closed_at: Some("closed_at"),
            running: "RUNNING",
        }
    }
}

/// A rule that the receiver breaks.
#[derive(Debug)]
pub enum Breach {
    /// A stale request took effect: its refusal, PRF01, was caught and the transaction committed, or the work stands in another one.
    StaleEffect,
    /// A stale request changed the work row: it is written by other means than the function.
    StaleWrite,
    /// A good request took no effect.
    NoEffect,
    /// A good request left its row where it was.
    NotAdvanced,
    /// A good request that came again took effect again.
    EffectTwice,
    /// The row is not there, or the database cannot be asked.
    Unchecked(Error),
}

/// Sends a stale request, a good one, and the good one again.
///
/// `call` sends a stage request for the row with this fence in `Postrider-Fence`, and may ignore the answer; `effects` counts what the
/// stage's work has left. `client` may update the work table.
///
/// # Errors
///
/// The first rule that is broken.
pub async fn check_same_tx(
    client: &Client,
    row: &ContractRow<'_>,
    mut call: impl AsyncFnMut(i64),
    mut effects: impl AsyncFnMut() -> i64,
) -> Result<(), Breach> {
    let stale = row.run_anew(client).await?;
    let good = row.run_anew(client).await?;
    let before = effects().await;
    call(stale).await;
    ensure(effects().await == before, Breach::StaleEffect)?;
    ensure(row.now(client).await? == (good, true), Breach::StaleWrite)?;
    call(good).await;
    ensure(effects().await > before, Breach::NoEffect)?;
    ensure(row.now(client).await?.0 > good, Breach::NotAdvanced)?;
    let once = effects().await;
    call(good).await;
    ensure(effects().await == once, Breach::EffectTwice)
}

impl ContractRow<'_> {
    /// Puts the row into the stage, running under a fence of its own, and returns that.
    async fn run_anew(&self, client: &Client) -> Result<i64, Breach> {
        let ContractColumns { stage, stage_state, fence, closed_at, running } = self.columns;
        let set = format!(
            "UPDATE {table} SET {stage} = {name}, {state} = {running}, {fence} = {fence} + 1{opened} WHERE {key} RETURNING {fence}",
            table = self.table.quoted(),
            stage = quoted(stage),
            name = literal(self.stage),
            state = quoted(stage_state),
            fence = quoted(fence),
            running = literal(running),
            opened = closed_at.map(|closed_at| format!(", {} = NULL", quoted(closed_at))).unwrap_or_default(),
            key = self.key_matches(),
        );
        Ok(self.ask(client, &set).await?.try_get(0).map_err(Error::from)?)
    }

    /// The row's fence, and whether it runs in the stage.
    async fn now(&self, client: &Client) -> Result<(i64, bool), Breach> {
        let ContractColumns { stage, stage_state, fence, running, .. } = self.columns;
        let text = format!(
            "SELECT {fence}, {stage}::text = {name} AND {state}::text = {running} FROM {table} WHERE {key}",
            fence = quoted(fence),
            stage = quoted(stage),
            name = literal(self.stage),
            state = quoted(stage_state),
            running = literal(running),
            table = self.table.quoted(),
            key = self.key_matches(),
        );
        let found = self.ask(client, &text).await?;
        Ok((found.try_get(0).map_err(Error::from)?, found.try_get(1).map_err(Error::from)?))
    }

    fn key_matches(&self) -> String {
        let equal = |(index, (column, _)): (usize, &(&str, &str))| format!("{}::text = ${}", quoted(column), index + 1);
        self.key.iter().enumerate().map(equal).collect::<Vec<_>>().join(" AND ")
    }

    async fn ask(&self, client: &Client, text: &str) -> Result<tokio_postgres::Row, Breach> {
        let key: Vec<(&(dyn ToSql + Sync), Type)> =
            self.key.iter().map(|(_, part)| (part as &(dyn ToSql + Sync), Type::TEXT)).collect();
        Ok(client.query_typed_one(text, &key).await.map_err(Error::from)?)
    }
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn ensure(holds: bool, breach: Breach) -> Result<(), Breach> {
    if holds { Ok(()) } else { Err(breach) }
}

impl From<Error> for Breach {
    fn from(error: Error) -> Breach {
        Breach::Unchecked(error)
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Breach::StaleEffect => "a stale request took effect: the refusal PRF01 must roll back the whole transaction, and no savepoint may catch it",
            Breach::StaleWrite => "a stale request changed the work row: it is written by postrider_advance_… alone",
            Breach::NoEffect => "a good request took no effect",
            Breach::NotAdvanced => "a good request took effect and did not move its row on in the same transaction",
            Breach::EffectTwice => "a request that came again took effect again",
            Breach::Unchecked(_) => "the receiver could not be checked",
        })
    }
}

impl std::error::Error for Breach {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Breach::Unchecked(error) => Some(error),
            _ => None,
        }
    }
}
