//! What an executor says of itself through the log.

use super::ShapeError;
use crate::members::{Presence, Together};
use crate::route::WorkNotice;
use crate::value::ValueProblem;
use crate::work::DefinitionName;
use serde_json::Value;

/// The presence that a message tells: a JSON object with `op`, `here` or `leaving`, the executor's id as `owner`, and the names of
/// its `definitions`, and as `together` the number of a part of the key, `all`, or null.
pub fn presence(notice: &WorkNotice<'_>) -> Result<Presence, ShapeError> {
    let members = notice.members("presence")?;
    let text = |member: &str| members.get(member).and_then(Value::as_str).unwrap_or_default();
    let owner = text("owner").parse().map_err(|_| notice.error("owner", ValueProblem::NotInteger))?;
    let leaving = match text("op") {
        "here" => false,
        "leaving" => true,
        _ => return Err(notice.error("op", ValueProblem::Malformed("here or leaving"))),
    };
    let names = members.get("definitions").and_then(Value::as_array);
    let names = names.ok_or_else(|| notice.error("definitions", ValueProblem::Null))?;
    let definitions = names.iter().filter_map(Value::as_str).map(DefinitionName::new).collect();
    let together = match members.get("together") {
        Some(Value::Null) => Together::No,
        Some(Value::String(word)) if word == "all" => Together::All,
        Some(number) => {
            let part = number.as_u64().and_then(|part| u32::try_from(part).ok());
            Together::Part(part.ok_or_else(|| notice.error("together", ValueProblem::NotInteger))?)
        }
        None => return Err(notice.error("together", ValueProblem::Null)),
    };
    Ok(Presence { owner, leaving, definitions, together })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::{OwnerId, StateWords};
    use std::sync::Arc;

    fn read(content: &str) -> Result<Presence, String> {
        let (table, states) = ("public.work".into(), Arc::new(StateWords::default()));
        let notice = WorkNotice { table: &table, states: &states, content: content.as_bytes() };
        presence(&notice).map_err(|error| crate::error::Error::from(error).report())
    }

    #[test]
    fn what_one_says_another_reads() {
        for (leaving, together) in [(false, Together::No), (true, Together::All), (false, Together::Part(1))] {
            let definitions = ["quote@1", "a \"quote\"@2"].map(DefinitionName::new).into();
            let said = Presence { owner: OwnerId(0x00AB_0000_0000_0001), leaving, definitions, together };
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
            (r#"{"op": "here", "owner": "1"}"#, "definitions"),
            (r#"{"op": "here", "owner": "1", "definitions": []}"#, "together"),
            (r#"{"op": "here", "owner": "1", "definitions": [], "together": -1}"#, "together"),
        ] {
            let error = read(content).expect_err(content);
            assert!(error.contains(member), "{content}: {error}");
        }
    }
}
