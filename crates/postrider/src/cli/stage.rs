//! `postrider stage`: stages and endpoints, held back by hand and let go.

mod ls;
mod pause;
mod resume;

use crate::cli::block_on;
use crate::cli::work::{Place, Record, open, stage_of};
use crate::config;
use crate::console::report::PausedReport;
use crate::{exit, output};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::paused::{Paused, PausedPart};
use postrider_core::work::{DefinitionName, StageName};
use postrider_delivery::{Endpoint, rfc3339};
use postrider_postgres::Access;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Hold back stages and endpoints, and let them go
#[derive(Debug, clap::Args)]
pub(super) struct Stage {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Ls(ls::Ls),
    Pause(pause::Pause),
    Resume(resume::Resume),
}

/// A stage or an endpoint.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("part").required(true).args(["stage", "endpoint"]))]
struct Part {
    /// The stage, in all definitions.
    stage: Option<String>,
    /// The stage in this definition alone.
    #[arg(long, value_name = "NAME@VERSION", requires = "stage")]
    definition: Option<String>,
    /// An endpoint in place of a stage: all stages whose URL has this scheme, host and port.
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
}

impl Stage {
    pub(super) fn obey(self) -> Result<u8> {
        match self.verb {
            Verb::Ls(verb) => verb.obey(),
            Verb::Pause(verb) => verb.obey(),
            Verb::Resume(verb) => verb.obey(),
        }
    }

    pub(super) fn is_json(&self) -> bool {
        match &self.verb {
            Verb::Ls(verb) => verb.place.json,
            Verb::Pause(verb) => verb.place.json,
            Verb::Resume(verb) => verb.place.json,
        }
    }
}

/// An order for a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Pause,
    Resume,
}

impl Order {
    fn verb(self) -> &'static str {
        match self {
            Order::Pause => "stage pause",
            Order::Resume => "stage resume",
        }
    }
}

/// Gives the order and says what came of it.
fn give(place: &Place, part: &Part, record: Record, order: Order) -> Result<u8> {
    let (work, options) = place.read()?;
    let part = match order {
        Order::Pause => part.known(&work)?,
        // What the configuration no longer has may be let go.
        Order::Resume => part.named()?,
    };
    let (verb, dry_run) = (order.verb(), record.dry_run);
    let note = record.note(&as_typed(verb, &part));
    let is_done = block_on(async {
        let operator = open(&work, &options, Access::Pause).await?;
        let paused = operator.paused().await?.into_iter().find(|paused| paused.part == part);
        match (order, paused) {
            (Order::Pause, Some(paused)) => Err(paused_already(&paused)),
            (Order::Resume, None) => Err(not_paused(&part)),
            _ if dry_run => Ok(true),
            (Order::Pause, None) => operator.pause(&part, &note).await,
            (Order::Resume, Some(_)) => operator.resume(&part, &note).await,
        }
    })?;
    if !is_done {
        return Err(Error::new(ErrorKind::OrderRefused, "somebody else was first")
            .with_hint("Look again: `postrider stage ls`."));
    }
    if place.json {
        output::json(&json!({ "verb": verb, "dry_run": dry_run, "part": part_json(&part) }));
    } else {
        let done = if dry_run { "would be done" } else { "done" };
        output::data(&format!("{verb}: {part}, {done}"));
    }
    Ok(exit::OK)
}

impl Part {
    /// The part, which the configuration must have.
    fn known(&self, work: &config::Work) -> Result<PausedPart> {
        let part = self.named()?;
        match &part {
            PausedPart::Stage { stage, definition } => {
                stage_of(work, stage.as_str())?;
                let steps = work.definitions.steps();
                let mut its = steps.filter(|(step, _)| step.stage == *stage).map(|(step, _)| step.definition);
                if let Some(definition) = definition
                    && its.all(|own| own != *definition)
                {
                    return Err(Error::new(ErrorKind::Configuration, "that definition has no such stage")
                        .with_detail(format!("It is {definition}, and the stage {stage}.")));
                }
            }
            PausedPart::Endpoint(origin) => {
                let known: BTreeSet<&str> = work.endpoints.values().map(Endpoint::origin).collect();
                if !known.contains(&**origin) {
                    let known: Vec<&str> = known.into_iter().collect();
                    return Err(Error::new(ErrorKind::Configuration, "no stage is called at this endpoint")
                        .with_detail(format!("It is {origin}; the stages are called at {}.", known.join(", "))));
                }
            }
        }
        Ok(part)
    }

    /// The part, whatever the configuration has.
    fn named(&self) -> Result<PausedPart> {
        match (&self.stage, &self.endpoint) {
            (Some(stage), _) if !stage.is_empty() => Ok(PausedPart::Stage {
                stage: StageName::new(stage),
                definition: self.definition.as_deref().map(DefinitionName::new),
            }),
            (None, Some(url)) => Ok(PausedPart::Endpoint(Endpoint::parse(url)?.origin().into())),
            _ => Err(Error::new(ErrorKind::Configuration, "neither a stage nor an endpoint is named")
                .with_hint("Name a stage of the configuration, or an endpoint with --endpoint.")),
        }
    }
}

/// The order as it could be typed.
fn as_typed(verb: &str, part: &PausedPart) -> String {
    match part {
        PausedPart::Stage { stage, definition: None } => format!("{verb} {stage}"),
        PausedPart::Stage { stage, definition: Some(definition) } => {
            format!("{verb} {stage} --definition {definition}")
        }
        PausedPart::Endpoint(endpoint) => format!("{verb} --endpoint {endpoint}"),
    }
}

fn paused_already(paused: &Paused) -> Error {
    Error::new(ErrorKind::OrderRefused, "it is paused already").with_detail(format!("{}.", PausedReport::new(paused)))
}

fn not_paused(part: &PausedPart) -> Error {
    Error::new(ErrorKind::OrderRefused, "it is not paused")
        .with_detail(format!("It is the {part}."))
        .with_hint("`postrider stage ls` shows what is paused, and under which name.")
}

fn paused_json(paused: &Paused) -> Value {
    json!({
        "part": part_json(&paused.part),
        "since": rfc3339(paused.since),
        "who": paused.who,
        "why": paused.why,
    })
}

fn part_json(part: &PausedPart) -> Value {
    let [stage, definition, endpoint] = part.columns().map(|column| (!column.is_empty()).then_some(column));
    json!({ "stage": stage, "definition": definition, "endpoint": endpoint })
}
