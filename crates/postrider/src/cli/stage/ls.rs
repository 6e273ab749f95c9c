//! `postrider stage ls`: the stages of the configuration, and what is held back.

use super::paused_json;
use crate::cli::block_on;
use crate::cli::work::{Place, open};
use crate::config::Work;
use crate::console::report::PausedReport;
use crate::{exit, output};
use postrider_core::error::Result;
use postrider_core::paused::Paused;
use postrider_core::stage::Step;
use postrider_delivery::Endpoint;
use postrider_postgres::Access;
use serde_json::{Value, json};

/// List the stages with their endpoints, and what is paused
#[derive(Debug, clap::Args)]
pub(super) struct Ls {
    #[command(flatten)]
    pub(super) place: Place,
}

/// A stage, and whether it is held back, by itself or with its endpoint.
struct Line<'a> {
    step: Step,
    endpoint: &'a str,
    paused: bool,
}

impl Ls {
    pub(super) fn obey(self) -> Result<u8> {
        let (work, options) = self.place.read()?;
        let paused = block_on(async { open(&work, &options, Access::LookAtPauses).await?.paused().await })?;
        let lines = lines(&work, &paused);
        if self.place.json {
            let stages: Vec<Value> = lines.iter().map(Line::to_json).collect();
            let paused: Vec<Value> = paused.iter().map(paused_json).collect();
            output::json(&json!({ "stages": stages, "paused": paused }));
        } else {
            lines.iter().for_each(|line| output::data(&line.to_text()));
            paused.iter().for_each(|paused| output::data(&PausedReport::new(paused).to_string()));
        }
        Ok(exit::OK)
    }
}

fn lines<'a>(work: &'a Work, paused: &[Paused]) -> Vec<Line<'a>> {
    let line = |step: Step| {
        let endpoint = work.endpoints.get(&step).map_or("", Endpoint::origin);
        let paused = paused.iter().any(|paused| paused.part.covers(&step, Some(endpoint)));
        Line { step, endpoint, paused }
    };
    work.definitions.steps().map(|(step, _)| line(step)).collect()
}

impl Line<'_> {
    fn to_text(&self) -> String {
        let paused = if self.paused { "  paused" } else { "" };
        format!("{}  {}{paused}", self.step, self.endpoint)
    }

    fn to_json(&self) -> Value {
        json!({
            "stage": self.step.stage.as_str(),
            "definition": self.step.definition.as_str(),
            "endpoint": self.endpoint,
            "paused": self.paused,
        })
    }
}
