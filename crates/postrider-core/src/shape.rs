//! What: makes of a routed row or message what the consumers take.
//! Where: after *route*; events go to *batch*, work rows to *observe*.
//! Takes and gives: a [`Route`](crate::route::Route)'s content; an [`Event`] or a [`WorkChange`], owned.
//! Never: reads meaning into a payload, or puts a value into an error.

use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::position::Position;
use crate::route::{OutboxMessage, OutboxRow, WorkRow};
use crate::time::Timestamp;
use crate::work::{WorkKey, WorkVersion};

/// What the log says about a work row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkChange {
    /// A new version. `moved_from` is there where an update changed the key: that key is gone.
    Version { version: WorkVersion, moved_from: Option<WorkKey> },
    /// The row was deleted.
    Gone(WorkKey),
}

/// A column whose value cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeError {}

/// The event that an inserted outbox row is.
pub fn outbox_event(row: &OutboxRow<'_>, position: Position, committed_at: Timestamp) -> Result<Event, ShapeError> { todo!() }

/// The event that a logical message is.
pub fn message_event(message: &OutboxMessage<'_>, position: Position, committed_at: Timestamp) -> Event { todo!() }

/// The version of a work row, or the key of one that is gone.
pub fn work_change(row: &WorkRow<'_>) -> Result<WorkChange, ShapeError> { todo!() }

impl From<ShapeError> for Error {
    fn from(error: ShapeError) -> Error { Error::new(ErrorKind::Table, "x") }
}
