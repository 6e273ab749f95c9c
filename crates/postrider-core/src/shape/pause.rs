//! What a person's order tells the executors of a stage or an endpoint, as a change of what is paused.

use super::ShapeError;
use crate::paused::{PauseChange, Paused, PausedPart};
use crate::route::WorkNotice;
use crate::time::Timestamp;
use crate::value::ValueProblem;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The change that a message tells: a JSON object with `op`, `pause` or `resume`, the texts `stage`, `definition` and `endpoint`,
/// of which some are empty, and for a pause `who`, `why`, and `since`, in microseconds since 1970.
pub fn pause_change(notice: &WorkNotice<'_>) -> Result<PauseChange, ShapeError> {
    let error =
        |member: &str, problem| ShapeError { table: Arc::clone(notice.table), column: member.to_owned(), problem };
    let members: Map<String, Value> =
        serde_json::from_slice(notice.content).map_err(|_| error("pause", ValueProblem::NotJsonObject))?;
    let text = |member: &str| members.get(member).and_then(Value::as_str).unwrap_or_default();
    let part = PausedPart::of(["stage", "definition", "endpoint"].map(text));
    let part = part.ok_or_else(|| error("stage", ValueProblem::Null))?;
    match text("op") {
        "resume" => Ok(PauseChange::Resume(part)),
        "pause" => {
            let since = members.get("since").and_then(Value::as_i64);
            let since = since.ok_or_else(|| error("since", ValueProblem::NotInteger))?;
            let [who, why] = ["who", "why"].map(|member| text(member).to_owned());
            Ok(PauseChange::Pause(Paused { part, since: Timestamp(since), who, why }))
        }
        _ => Err(error("op", ValueProblem::Null)),
    }
}
