//! What people hold back: stages and endpoints for which nothing is claimed until they are resumed.

use crate::stage::Step;
use crate::time::Timestamp;
use crate::work::{DefinitionName, StageName};
use std::fmt;
use std::sync::Arc;

/// What can be paused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PausedPart {
    /// A stage, in one definition or in all.
    Stage { stage: StageName, definition: Option<DefinitionName> },
    /// All stages that are called there, by its origin.
    Endpoint(Arc<str>),
}

/// A part that is paused, since when, by whom and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paused {
    pub part: PausedPart,
    /// By the server's clock.
    pub since: Timestamp,
    pub who: String,
    pub why: String,
}

/// What a person ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PauseChange {
    Pause(Paused),
    Resume(PausedPart),
}

impl PausedPart {
    /// The part that three columns name, of which some are empty; `None` where they name none.
    pub fn of([stage, definition, endpoint]: [&str; 3]) -> Option<PausedPart> {
        match (stage, endpoint) {
            ("", "") => None,
            ("", endpoint) => Some(PausedPart::Endpoint(endpoint.into())),
            (stage, _) => Some(PausedPart::Stage {
                stage: StageName::new(stage),
                definition: (!definition.is_empty()).then(|| DefinitionName::new(definition)),
            }),
        }
    }

    /// Stage, definition and endpoint; what the part is not named by is empty.
    pub fn columns(&self) -> [&str; 3] {
        match self {
            PausedPart::Stage { stage, definition } => {
                [stage.as_str(), definition.as_ref().map_or("", DefinitionName::as_str), ""]
            }
            PausedPart::Endpoint(endpoint) => ["", "", endpoint],
        }
    }

    /// Whether nothing is claimed for the step, which is called at `endpoint`, while this is paused.
    pub fn covers(&self, step: &Step, endpoint: Option<&str>) -> bool {
        match self {
            PausedPart::Stage { stage, definition } => {
                *stage == step.stage && definition.as_ref().is_none_or(|definition| *definition == step.definition)
            }
            PausedPart::Endpoint(paused) => endpoint == Some(&**paused),
        }
    }
}

impl fmt::Display for PausedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PausedPart::Stage { stage, definition: None } => write!(f, "stage {stage}"),
            PausedPart::Stage { stage, definition: Some(definition) } => write!(f, "stage {stage} of {definition}"),
            PausedPart::Endpoint(endpoint) => write!(f, "endpoint {endpoint}"),
        }
    }
}

impl PauseChange {
    pub fn part(&self) -> &PausedPart {
        match self {
            PauseChange::Pause(paused) => &paused.part,
            PauseChange::Resume(part) => part,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_its_columns_and_covers_the_steps_that_they_name() {
        let steps = [Step::new("quote@1", "A"), Step::new("quote@2", "A"), Step::new("quote@2", "B")];
        let cases = [
            (["A", "", ""], "stage A", [true, true, false]),
            (["A", "quote@2", ""], "stage A of quote@2", [false, true, false]),
            (["", "", "http://b:80"], "endpoint http://b:80", [false, false, true]),
        ];
        for (columns, text, covered) in cases {
            let part = PausedPart::of(columns).expect("a part");
            assert_eq!((part.columns(), part.to_string().as_str()), (columns, text));
            let endpoint = |step: &Step| if step.stage.as_str() == "A" { "http://a:80" } else { "http://b:80" };
            let covers: Vec<bool> = steps.iter().map(|step| part.covers(step, Some(endpoint(step)))).collect();
            assert_eq!(covers, covered, "{text}");
        }
        assert_eq!(PausedPart::of(["", "quote@2", ""]), None);
        let gone = PausedPart::of(["", "", "http://b:80"]).expect("a part");
        assert!(!gone.covers(&steps[0], None), "a step that the configuration lacks has no endpoint");
    }
}
