//! What a person's order tells the executors of a stage or an endpoint, as a change of what is paused.

use super::ShapeError;
use crate::paused::{PauseChange, Paused, PausedPart};
use crate::route::WorkNotice;
use crate::time::Timestamp;
use crate::value::ValueProblem;
use serde_json::Value;

/// The change that a message tells: a JSON object with `op`, `pause` or `resume`, the texts `stage`, `definition` and `endpoint`,
/// of which some are empty, and for a pause `who`, `why`, and `since`, in microseconds since 1970.
pub fn pause_change(notice: &WorkNotice<'_>) -> Result<PauseChange, ShapeError> {
    let members = notice.members("pause")?;
    let text = |member: &str| members.get(member).and_then(Value::as_str).unwrap_or_default();
    let part = PausedPart::of(["stage", "definition", "endpoint"].map(text));
    let part = part.ok_or_else(|| notice.error("stage", ValueProblem::Null))?;
    match text("op") {
        "resume" => Ok(PauseChange::Resume(part)),
        "pause" => {
            let since = members.get("since").and_then(Value::as_i64);
            let since = since.ok_or_else(|| notice.error("since", ValueProblem::NotInteger))?;
            let [who, why] = ["who", "why"].map(|member| text(member).to_owned());
            Ok(PauseChange::Pause(Paused { part, since: Timestamp(since), who, why }))
        }
        _ => Err(notice.error("op", ValueProblem::Null)),
    }
}
