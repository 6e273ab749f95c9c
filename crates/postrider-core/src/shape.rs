//! What: makes of a routed row or message what the consumers take.
//! Where: after *route*; events go to *batch*, work rows to *observe*.
//! Takes and gives: a [`Route`](crate::route::Route)'s content; an [`Event`] or a [`WorkChange`], owned.
//! Never: reads meaning into a payload, or puts a value into an error.

mod envelope;
mod notice;
mod pause;
mod presence;

use crate::change::Row;
use crate::error::{Error, ErrorKind};
use crate::event::{Event, Payload};
use crate::pgoutput::{OldTuple, TupleValue};
use crate::position::Position;
use crate::route::{
    NO_COLUMN, OutboxMessage, OutboxPlan, OutboxRow, Picks, WorkNotice, WorkPlan, WorkRow, outbox_slot, work_slot,
};
use crate::time::Timestamp;
use crate::value::{self, ValueKind, ValueProblem};
use crate::work::{DefinitionName, StageName, StateWords, WorkKey, WorkVersion};
use bytes::Bytes;
use envelope::Envelope;
use serde_json::{Map, Value};
use std::fmt;
use std::sync::Arc;

pub use notice::noticed_change;
pub use pause::pause_change;
pub use presence::presence;

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
pub struct ShapeError {
    /// `schema.table`
    pub table: Arc<str>,
    pub column: String,
    pub problem: ValueProblem,
}

impl WorkNotice<'_> {
    /// The message's members: it is a JSON object. `name`: what it is called where it is none.
    fn members(&self, name: &str) -> Result<Map<String, Value>, ShapeError> {
        serde_json::from_slice(self.content).map_err(|_| self.error(name, ValueProblem::NotJsonObject))
    }

    fn error(&self, member: &str, problem: ValueProblem) -> ShapeError {
        ShapeError { table: Arc::clone(self.table), column: member.to_owned(), problem }
    }
}

/// The event that an inserted outbox row is.
///
/// The payload is taken by the type of its column: `json` and `jsonb` as JSON, `bytea` as the bytes it stands for, every
/// other type as text, even where that text would be JSON. A NULL key is an event by itself; a NULL id is an error.
pub fn outbox_event(row: &OutboxRow<'_>, position: Position, committed_at: Timestamp) -> Result<Event, ShapeError> {
    let plan = row.plan;
    let columns = plan.picks.pick(row.new, [TupleValue::Null; outbox_slot::COUNT]);
    let [id, key, event_type, payload, headers, topic] = columns;
    let optional = |value, slot| value::text(value).map(|text| text.map(Arc::from)).map_err(|p| plan.error(slot, p));
    Ok(Event {
        id: value::required_text(id).map_err(|problem| plan.error(outbox_slot::ID, problem))?.into(),
        position,
        committed_at,
        source: Arc::clone(&plan.table),
        key: optional(key, outbox_slot::KEY)?,
        event_type: optional(event_type, outbox_slot::EVENT_TYPE)?,
        topic: optional(topic, outbox_slot::TOPIC)?,
        headers: read_headers(headers).map_err(|problem| plan.error(outbox_slot::HEADERS, problem))?,
        payload: read_payload(plan.payload_type, payload).map_err(|p| plan.error(outbox_slot::PAYLOAD, p))?,
    })
}

/// The event that a logical message is.
///
/// Content that is a JSON object with a field `payload`, and otherwise only fields of `id`, `key`, `type`, `topic` (text,
/// number or null) and `headers` (object or null), is an envelope: its fields are the event's, and the payload keeps its
/// text byte for byte. Any other content is the payload as a whole: JSON where it is a JSON object or array, else text
/// where it is UTF-8, else binary. An event without an `id` is identified by its position and the LSN of its message,
/// since messages do not count in the ordinals and several can share a position.
pub fn message_event(message: &OutboxMessage<'_>, position: Position, committed_at: Timestamp) -> Event {
    let Envelope { id, key, event_type, topic, headers, payload } = Envelope::of(message.content);
    Event {
        id: id.unwrap_or_else(|| format!("{position}:{}", message.lsn).into()),
        position,
        committed_at,
        source: Arc::clone(message.source),
        key,
        event_type,
        topic,
        headers,
        payload,
    }
}

/// The version of a work row, or the key of one that is gone.
pub fn work_change(row: &WorkRow<'_>) -> Result<WorkChange, ShapeError> {
    let plan = row.plan;
    match (row.old, row.new) {
        (old, Some(new)) => Ok(WorkChange::Version {
            version: work_version(plan, new)?,
            moved_from: match old {
                Some(old) if key_differs(plan, old, new) => Some(key_of(plan, old_column(Some(old)))?),
                _ => None,
            },
        }),
        (old, None) => Ok(WorkChange::Gone(key_of(plan, old_column(old))?)),
    }
}

impl OutboxPlan {
    fn error(&self, slot: usize, problem: ValueProblem) -> ShapeError {
        column_error(&self.table, &self.picks, slot, problem)
    }
}

impl WorkPlan {
    fn error(&self, slot: usize, problem: ValueProblem) -> ShapeError {
        column_error(&self.table, &self.picks, slot, problem)
    }
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column \"{}\" of table \"{}\" {}", self.column, self.table, self.problem)
    }
}

impl std::error::Error for ShapeError {}

impl From<ShapeError> for Error {
    fn from(error: ShapeError) -> Error {
        let detail = format!("Column \"{}\" of table \"{}\" {}.", error.column, error.table, error.problem);
        let public = Error::new(ErrorKind::Table, "a row has a value that cannot be taken").with_detail(detail);
        match error.problem {
            ValueProblem::NotUtf8 => public.with_hint(
                "The table holds text that is not in the database's encoding. Correct the row, and whatever wrote it.",
            ),
            ValueProblem::NotStageState => public.with_hint(
                "Say in work.states which state the word is of, or correct the row: `postrider work ls` names such rows with their words, and the statement.",
            ),
            _ => public,
        }
    }
}

fn column_error(table: &Arc<str>, picks: &Picks, slot: usize, problem: ValueProblem) -> ShapeError {
    ShapeError { table: Arc::clone(table), column: picks.name(slot).to_owned(), problem }
}

/// A JSON object. The JSON value `null` counts as none, like NULL.
fn read_headers(value: TupleValue<'_>) -> Result<Option<Bytes>, ValueProblem> {
    match value::text(value)? {
        None => Ok(None),
        Some(text) => envelope::json_object(text).ok_or(ValueProblem::NotJsonObject),
    }
}

fn read_payload(type_oid: u32, value: TupleValue<'_>) -> Result<Payload, ValueProblem> {
    let Some(bytes) = value::bytes(value)? else { return Ok(Payload::Null) };
    Ok(match ValueKind::of(type_oid) {
        ValueKind::Json => Payload::Json(Bytes::copy_from_slice(bytes)),
        ValueKind::Bytea => Payload::Binary(value::parse_bytea(bytes)?.into()),
        ValueKind::Text => Payload::Text(Bytes::copy_from_slice(bytes)),
    })
}

fn work_version(plan: &WorkPlan, new: Row<'_>) -> Result<WorkVersion, ShapeError> {
    let columns = plan.picks.pick(new, NO_COLUMN);
    let words = Words { states: &plan.states, closes_by_state: !plan.picks.has(work_slot::CLOSED_AT) };
    version_of(key_of(plan, |index| new.column(index))?, columns, words, |slot, problem| plan.error(slot, problem))
}

/// How a version's state is read.
#[derive(Clone, Copy)]
struct Words<'a> {
    states: &'a StateWords,
    /// The table has no column that says whether a row is closed.
    closes_by_state: bool,
}

/// Reads the columns of a version, in the order of their slots. `error` names the column of a slot.
fn version_of(
    key: WorkKey,
    columns: [TupleValue<'_>; work_slot::COUNT],
    words: Words<'_>,
    error: impl Fn(usize, ValueProblem) -> ShapeError,
) -> Result<WorkVersion, ShapeError> {
    let [
        stage,
        state,
        attempts,
        deferrals,
        fence,
        epoch,
        next_attempt_at,
        lease_until,
        lease_owner,
        closed_at,
        definition,
    ] = columns;
    let at = |slot| {
        let error = &error;
        move |problem| error(slot, problem)
    };
    let text = |value, slot| value::required_text(value).map_err(at(slot));
    let count = |value, slot| value::integer::<u32>(value).map_err(at(slot));
    let time = |value, slot| value::timestamp(value).map_err(at(slot));
    let stage = StageName::new(text(stage, work_slot::STAGE)?);
    let state = words.states.state(text(state, work_slot::STAGE_STATE)?);
    let state = state.ok_or_else(|| error(work_slot::STAGE_STATE, ValueProblem::NotStageState))?;
    Ok(WorkVersion {
        key,
        definition: value::text(definition).map_err(at(work_slot::DEFINITION))?.map(DefinitionName::new),
        stage,
        state,
        attempt_count: count(attempts, work_slot::ATTEMPT_COUNT)?,
        deferral_count: count(deferrals, work_slot::DEFERRAL_COUNT)?,
        fence: value::integer(fence).map_err(at(work_slot::FENCE))?,
        epoch: count(epoch, work_slot::EPOCH)?,
        next_attempt_at: time(next_attempt_at, work_slot::NEXT_ATTEMPT_AT)?,
        lease_until: time(lease_until, work_slot::LEASE_UNTIL)?,
        lease_owner: value::text(lease_owner).map_err(at(work_slot::LEASE_OWNER))?.and_then(|owner| owner.parse().ok()),
        closed: match words.closes_by_state {
            true => state.is_closed(),
            false => value::bytes(closed_at).map_err(at(work_slot::CLOSED_AT))?.is_some(),
        },
    })
}

/// The columns of the version before, each NULL where there is none.
fn old_column<'a>(old: Option<OldTuple<'a>>) -> impl Fn(usize) -> Option<TupleValue<'a>> {
    move |index| old?.tuple().column(index)
}

fn key_of<'a>(plan: &WorkPlan, column: impl Fn(usize) -> Option<TupleValue<'a>>) -> Result<WorkKey, ShapeError> {
    let mut parts = Vec::with_capacity(plan.key.len());
    for (index, name) in &plan.key {
        let value = column(*index).unwrap_or(TupleValue::Null);
        let text = value::required_text(value).map_err(|problem| ShapeError {
            table: Arc::clone(&plan.table),
            column: name.clone(),
            problem,
        })?;
        parts.push(text);
    }
    Ok(WorkKey::new(parts))
}

/// By the key's own columns: under REPLICA IDENTITY FULL the log marks every column as key, and a key that is stored out of
/// line comes with every update.
fn key_differs(plan: &WorkPlan, old: OldTuple<'_>, new: Row<'_>) -> bool {
    plan.key.iter().any(|(index, _)| {
        let after = new.column(*index);
        after != Some(TupleValue::Unchanged) && after != old.tuple().column(*index)
    })
}

#[cfg(test)]
mod tests;
