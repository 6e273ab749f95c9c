//! One guarded statement over many rows, without waiting for whoever holds some of them.
//!
//! The batch locks its rows in key order and skips what others hold; a second look tells the rows that were merely locked
//! from those whose guard does not hold; the former are then waited for one by one, for a bounded time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use postrider_core::error::{Error, ErrorKind, Reaction, Result};
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use crate::client::{Connection, Parameters};
use crate::errors::{Phase, map_client_error};

/// How often a statement is sent that the server asks to send again (40P01, 55P03).
const SENDS_MAX: u32 = 3;

/// How long all locked rows of one batch are waited for together.
const LOCKED_ROWS_WAIT: Duration = Duration::from_secs(5);

/// Three forms of one guarded statement; the first column of each is `ord`, the row's number among those asked for, from 1.
#[derive(Debug)]
pub(super) struct GuardedStatement {
    /// Locks in key order, skips what is locked.
    pub(super) batch: Arc<str>,
    /// Reads which rows the guard holds for, and locks nothing.
    pub(super) probe: Arc<str>,
    /// Waits for the row's lock.
    pub(super) single: Arc<str>,
}

impl GuardedStatement {
    /// Runs the statement for `count` rows and returns the rows it answered with, each with its index. What is missing did not
    /// pass its guard, or stayed locked by others for longer than we wait. `parameters` makes those of a selection of rows.
    pub(super) async fn run<P>(&self, connection: &Connection, count: usize, parameters: P) -> Result<Vec<(usize, Row)>>
    where
        P: Fn(&[usize]) -> Result<Parameters>,
    {
        match count {
            0 => return Ok(Vec::new()),
            1 => return send(connection, &self.single, &[0], &parameters).await,
            _ => {}
        }
        let all: Vec<usize> = (0..count).collect();
        let mut answered = send(connection, &self.batch, &all, &parameters).await?;
        if answered.len() == count {
            return Ok(answered);
        }
        let seen: BTreeSet<usize> = answered.iter().map(|(index, _)| *index).collect();
        let missing: Vec<usize> = all.into_iter().filter(|index| !seen.contains(index)).collect();
        let locked = send(connection, &self.probe, &missing, &parameters).await?;
        self.wait_for(connection, locked.into_iter().map(|(index, _)| index), &parameters, &mut answered).await?;
        Ok(answered)
    }

    /// Waits for locked rows one by one. What was written before stands whatever happens here, so a lock that is not given up is
    /// no error of the batch.
    async fn wait_for<P>(
        &self,
        connection: &Connection,
        locked: impl Iterator<Item = usize>,
        parameters: &P,
        answered: &mut Vec<(usize, Row)>,
    ) -> Result<()>
    where
        P: Fn(&[usize]) -> Result<Parameters>,
    {
        let deadline = Instant::now() + LOCKED_ROWS_WAIT;
        let mut left_count = 0_usize;
        for index in locked {
            if Instant::now() >= deadline {
                left_count += 1;
                continue;
            }
            match send(connection, &self.single, &[index], parameters).await {
                Ok(rows) => answered.extend(rows),
                Err(error) if error.kind() == ErrorKind::Transient => left_count += 1,
                Err(error) => return Err(error),
            }
        }
        if left_count > 0 {
            tracing::warn!(rows = left_count, "rows of the work table stayed locked by another session");
        }
        Ok(())
    }
}

async fn send<P>(
    connection: &Connection,
    text: &Arc<str>,
    selection: &[usize],
    parameters: &P,
) -> Result<Vec<(usize, Row)>>
where
    P: Fn(&[usize]) -> Result<Parameters>,
{
    let arrays = parameters(selection)?;
    let mut sends = 1;
    loop {
        let error = match connection.try_query(text, &arrays).await {
            Ok(rows) => return rows.into_iter().map(|row| Ok((index_of(&row, selection)?, row))).collect(),
            Err(error) => error,
        };
        // Another session was first, and a stricter isolation level than ours says so in these words: the guard did not hold.
        if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) {
            return Ok(Vec::new());
        }
        let error = map_client_error(Phase::Query, error);
        let again = error.kind() == ErrorKind::Transient && error.kind().reaction() == Reaction::Retry;
        if !again || sends == SENDS_MAX {
            return Err(error);
        }
        sends += 1;
    }
}

fn index_of(row: &Row, selection: &[usize]) -> Result<usize> {
    let ord: i64 = row.try_get(0).map_err(|error| map_client_error(Phase::Query, error))?;
    usize::try_from(ord)
        .ok()
        .and_then(|ord| ord.checked_sub(1))
        .and_then(|index| selection.get(index).copied())
        .ok_or_else(|| Error::new(ErrorKind::Internal, "a guarded statement answered for a row it was not asked for"))
}
