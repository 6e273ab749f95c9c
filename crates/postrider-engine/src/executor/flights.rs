//! All that the executor has on its way: calls, statements, and reads.

use super::state::CallTicket;
use crate::limits::Limits;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use postrider_core::error::Result;
use postrider_core::outcome::Outcome;
use postrider_core::ports::{
    BoxFuture, Checkpoint, CheckpointReply, ClaimReply, ClaimRequest, OpenRows, Reading, STATEMENTS_AT_ONCE_MAX,
};
use postrider_core::work::{OwnerId, WorkKey, WorkVersion};
use std::collections::BTreeSet;

/// While the claims in flight name at most so many rows, the next one need not wait for them: its requests leave the earlier. Outcomes wait for the
/// statement before them, since fewer statements cost the server less.
const SHORT_CLAIM_ROWS: usize = 4;

/// So many answers that are there are taken in before the loop looks for anything else: a claim that came back waits so long at most.
const ANSWERS_AT_ONCE_MAX: usize = 64;

/// What is on its way.
pub(super) struct Flights {
    pub(super) calls: FuturesUnordered<BoxFuture<'static, (CallTicket, Outcome)>>,
    pub(super) checkpoints: Statements<Checkpoint, CheckpointReply>,
    pub(super) claims: Statements<ClaimRequest, ClaimReply>,
    pub(super) read: Flight<(Vec<WorkKey>, Result<Reading>)>,
    pub(super) owners: Flight<Result<Option<BTreeSet<OwnerId>>>>,
    pub(super) page: Flight<Page>,
    pub(super) second_look: Flight<Result<Reading>>,
}

/// Something on its way, or nothing.
pub(super) type Flight<T> = Option<BoxFuture<'static, T>>;

/// One page of the open rows, with the reader to go on with; an empty page is the end.
pub(super) type Page = Result<(Box<dyn OpenRows>, Vec<WorkVersion>)>;

/// A statement that came back: what it asked for, and what it was answered.
type Landed<Asked, Reply> = (Vec<Asked>, Result<Vec<Reply>>);

/// The statements of one kind, at most [`STATEMENTS_AT_ONCE_MAX`].
pub(super) struct Statements<Asked, Reply> {
    flights: FuturesUnordered<BoxFuture<'static, Landed<Asked, Reply>>>,
    /// That they name.
    rows: usize,
    /// Up to so many, the next statement need not wait.
    short_rows: usize,
}

impl Default for Flights {
    fn default() -> Self {
        Flights {
            calls: FuturesUnordered::new(),
            checkpoints: Statements::new(0),
            claims: Statements::new(SHORT_CLAIM_ROWS),
            read: None,
            owners: None,
            page: None,
            second_look: None,
        }
    }
}

impl Flights {
    /// Calls that have ended by now, besides one that the loop waited for: they need no round of the loop for each.
    pub(super) fn further_answers(&mut self) -> impl Iterator<Item = (CallTicket, Outcome)> {
        std::iter::from_fn(|| self.calls.next().now_or_never().flatten()).take(ANSWERS_AT_ONCE_MAX)
    }
}

impl<Asked, Reply> Statements<Asked, Reply> {
    fn new(short_rows: usize) -> Self {
        Statements { flights: FuturesUnordered::new(), rows: 0, short_rows }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Few rows need not wait for few others, nor half a statement for another; what gathers behind one otherwise goes in one
    /// statement. `waiting`: how many rows there are for the next.
    pub(super) fn has_room(&self, limits: &Limits, waiting: impl FnOnce() -> usize) -> bool {
        self.flights.len() < STATEMENTS_AT_ONCE_MAX
            && (self.rows <= self.short_rows || waiting().saturating_mul(2) >= limits.statement_rows_max)
    }

    pub(super) fn push(&mut self, rows: usize, flight: BoxFuture<'static, Landed<Asked, Reply>>) {
        self.rows += rows;
        self.flights.push(flight);
    }

    /// Waits for the next to come back, for ever if there is none.
    pub(super) async fn landed(&mut self) -> Landed<Asked, Reply> {
        match self.flights.next().await {
            Some(landed) => {
                self.rows -= landed.0.len();
                landed
            }
            None => std::future::pending().await,
        }
    }
}

/// Waits for a flight to land, for ever if there is none.
pub(super) async fn landed<T>(flight: &mut Flight<T>) -> T {
    match flight {
        Some(future) => {
            let value = future.await;
            *flight = None;
            value
        }
        None => std::future::pending().await,
    }
}
