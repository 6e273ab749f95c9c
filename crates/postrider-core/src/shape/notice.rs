//! What the work table's trigger tells, as a change of the row.
//!
//! Where an executor's own transitions are kept out of the log, the publication has the work table's inserts only. What every
//! other session does comes as a transactional logical message that a trigger writes, which
//! `postrider setup` makes: a JSON object with the columns under their canonical names, all of them text or null.

use super::{ShapeError, Words, WorkChange, version_of};
use crate::pgoutput::TupleValue;
use crate::route::{NO_COLUMN, VERSION_COLUMNS, WorkNotice, work_slot};
use crate::value::ValueProblem;
use crate::work::WorkKey;
use serde_json::Value;

/// The change that a notice tells: `{"gone": [key]}`, or a version with its `key`, and `was` where the key was another one.
pub fn noticed_change(notice: &WorkNotice<'_>) -> Result<WorkChange, ShapeError> {
    let members = notice.members("notice")?;
    let key = |member: &str| read_key(members.get(member)).map_err(|problem| notice.error(member, problem));
    if members.contains_key("gone") {
        return Ok(WorkChange::Gone(key("gone")?));
    }
    let mut columns = NO_COLUMN;
    for (column, member) in columns.iter_mut().zip(VERSION_COLUMNS) {
        match members.get(member) {
            Some(Value::String(text)) => *column = TupleValue::Text(text.as_bytes()),
            Some(_) => *column = TupleValue::Null,
            // The trigger tells of no column that the table does not have.
            None => {}
        }
    }
    let has_closed_at = VERSION_COLUMNS.get(work_slot::CLOSED_AT).is_some_and(|member| members.contains_key(*member));
    let words = Words { states: notice.states, closes_by_state: !has_closed_at };
    let version = version_of(key("key")?, columns, words, |slot, problem| {
        notice.error(VERSION_COLUMNS.get(slot).copied().unwrap_or_default(), problem)
    })?;
    let moved_from = members.contains_key("was").then(|| key("was")).transpose()?;
    Ok(WorkChange::Version { version, moved_from })
}

fn read_key(parts: Option<&Value>) -> Result<WorkKey, ValueProblem> {
    let parts = parts.and_then(Value::as_array).filter(|parts| !parts.is_empty()).ok_or(ValueProblem::Null)?;
    let texts: Option<Vec<&str>> = parts.iter().map(Value::as_str).collect();
    Ok(WorkKey::new(texts.ok_or(ValueProblem::Null)?))
}
