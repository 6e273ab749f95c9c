//! What an executor says of itself through the log.

use super::ShapeError;
use crate::members::Presence;
use crate::route::WorkNotice;
use crate::value::ValueProblem;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The presence that a message tells: a JSON object with `op`, `here` or `leaving`, and the executor's id as `owner`.
pub fn presence(notice: &WorkNotice<'_>) -> Result<Presence, ShapeError> {
    let error =
        |member: &str, problem| ShapeError { table: Arc::clone(notice.table), column: member.to_owned(), problem };
    let members: Map<String, Value> =
        serde_json::from_slice(notice.content).map_err(|_| error("presence", ValueProblem::NotJsonObject))?;
    let text = |member: &str| members.get(member).and_then(Value::as_str).unwrap_or_default();
    let owner = text("owner").parse().map_err(|_| error("owner", ValueProblem::NotInteger))?;
    match text("op") {
        "here" => Ok(Presence { owner, leaving: false }),
        "leaving" => Ok(Presence { owner, leaving: true }),
        _ => Err(error("op", ValueProblem::Null)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::{OwnerId, StateWords};

    fn read(content: &str) -> Result<Presence, String> {
        let (table, states) = ("public.work".into(), Arc::new(StateWords::default()));
        let notice = WorkNotice { table: &table, states: &states, content: content.as_bytes() };
        presence(&notice).map_err(|error| crate::error::Error::from(error).report())
    }

    #[test]
    fn what_one_says_another_reads() {
        for leaving in [false, true] {
            let said = Presence { owner: OwnerId(0x00AB_0000_0000_0001), leaving };
            assert_eq!(read(&said.content()), Ok(said));
        }
    }

    #[test]
    fn what_nobody_says_is_refused_with_its_member() {
        for (content, member) in [
            ("x", "presence"),
            ("[]", "presence"),
            (r#"{"op": "here"}"#, "owner"),
            (r#"{"op": "here", "owner": "xyz"}"#, "owner"),
            (r#"{"op": "gone", "owner": "1"}"#, "op"),
        ] {
            let error = read(content).expect_err(content);
            assert!(error.contains(member), "{content}: {error}");
        }
    }
}
