//! One guarded statement over many rows, which it takes in key order, so that two batches never deadlock.

use std::sync::Arc;

use postrider_core::error::{Error, ErrorKind, Reaction, Result};
use postrider_core::work::WorkKey;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use super::asked::find_asked;
use crate::client::{Connection, Parameters};
use crate::errors::{Phase, map_client_error};

/// How often a statement is sent that the server asks to send again (40P01, and 55P03 where the whole table is locked).
const SENDS_MAX: u32 = 3;

/// What is asked for in the order in which the statement locks it: that of the keys, which is the same for all executors.
pub(super) fn in_key_order<T>(asked: &[T], key: impl Fn(&T) -> &WorkKey) -> Vec<&T> {
    let mut asked: Vec<&T> = asked.iter().collect();
    // Outcomes come in the order of the claims that they end: a sort that goes by what is in order already has little to do.
    asked.sort_by(|left, right| key(left).cmp(key(right)));
    asked
}

/// Runs the statement and returns the rows it answered with, each with what was asked for it. The first column of an answer is
/// `ord`, the number among those asked for, from 1. What is missing did not pass its guard, or was locked by another session.
pub(crate) async fn run<'a, T>(
    connection: &Connection,
    text: &Arc<str>,
    asked: &'a [T],
    parameters: &Parameters<'_>,
) -> Result<Vec<(&'a T, Row)>> {
    let mut sends = 1;
    loop {
        match send(connection, text, asked, parameters).await {
            Err(error) if asks_again(&error) && sends < SENDS_MAX => sends += 1,
            answers => return answers,
        }
    }
}

/// As `run`, once.
pub(crate) async fn send<'a, T>(
    connection: &Connection,
    text: &Arc<str>,
    asked: &'a [T],
    parameters: &Parameters<'_>,
) -> Result<Vec<(&'a T, Row)>> {
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    match connection.try_query(text, parameters).await {
        Ok(rows) => rows.into_iter().map(|row| Ok((find_asked(&row, asked)?.1, row))).collect(),
        // Another session was first, and a stricter isolation level than ours says so in these words: the guard did not hold.
        Err(error) if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => Ok(Vec::new()),
        Err(error) => Err(map_client_error(Phase::Query, error)),
    }
}

/// The server asks to send the statement again.
pub(crate) fn asks_again(error: &Error) -> bool {
    error.kind() == ErrorKind::Transient && error.kind().reaction() == Reaction::Retry
}
