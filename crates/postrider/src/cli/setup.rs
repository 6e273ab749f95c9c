//! `postrider setup`: makes in the database what is missing, or prints what it would do.

use crate::cli::check::{finding_json, finding_text};
use crate::cli::{ConfigurationFile, block_on};
use crate::{config, exit, output, wiring};
use postrider_core::error::Result;
use postrider_postgres::{Circumstances, SetupReport, SetupSettings, Step, StepOutcome, apply, plan};
use serde_json::{Value, json};

/// Create publication, slot, tables and grants: what is missing of them, in the right order
#[derive(Debug, clap::Args)]
pub(super) struct Setup {
    #[command(flatten)]
    configuration: ConfigurationFile,
    /// Print the SQL and do nothing; the server is not asked.
    #[arg(long)]
    print: bool,
    /// Create this role, if it is missing, and grant it what `run` needs and no more.
    #[arg(long, value_name = "NAME")]
    role: Option<String>,
    /// With --print: the major version of the server that the SQL is for.
    #[arg(long, value_name = "MAJOR", default_value_t = 15, value_parser = clap::value_parser!(u32).range(14..=18))]
    server_version: u32,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Setup {
    pub(super) fn obey(self) -> Result<u8> {
        let configuration = config::load(&self.configuration.path)?;
        let settings = SetupSettings { objects: wiring::objects(&configuration), role: self.role.clone() };
        if self.print {
            self.show_plan(&plan(&settings, &Circumstances::unseen(self.server_version, &settings.objects))?);
            return Ok(exit::OK);
        }
        let report = block_on(apply(&configuration.source.options, &settings))?;
        self.show_report(&report, &settings.objects.slot);
        Ok(exit::OK)
    }

    fn show_plan(&self, steps: &[Step]) {
        if self.json {
            output::json(&json!({ "steps": steps.iter().map(step_json).collect::<Vec<_>>() }));
            return;
        }
        for step in steps {
            output::data(&format!("-- {}\n{}\n", step.purpose, terminated(&step.sql)));
        }
    }

    fn show_report(&self, report: &SetupReport, slot: &str) {
        let wait = report.wait_statement(slot);
        if self.json {
            let steps: Vec<Value> = report.steps.iter().map(|(step, outcome)| outcome_json(step, *outcome)).collect();
            let differences: Vec<Value> = report.differences.iter().map(finding_json).collect();
            let wait_for = report.wait_for.map(|place| place.to_string());
            output::json(
                &json!({ "steps": steps, "differences": differences, "wait_for": wait_for, "wait_until": wait }),
            );
            return;
        }
        for (step, outcome) in &report.steps {
            let word = outcome_word(*outcome);
            output::data(&format!("{word:<5} {}", step.purpose));
        }
        for finding in &report.differences {
            output::data(&finding_text(finding));
        }
        if let Some(statement) = wait {
            output::data(&format!(
                "wait  The slot is older than what is published, or may be. Before `run` is started with this configuration, the process that reads from the slot must have come so far, which is so once this says true: {statement}"
            ));
        }
    }
}

fn step_json(step: &Step) -> Value {
    json!({ "purpose": step.purpose, "sql": step.sql })
}

fn outcome_json(step: &Step, outcome: StepOutcome) -> Value {
    json!({ "purpose": step.purpose, "sql": step.sql, "outcome": outcome_word(outcome) })
}

fn outcome_word(outcome: StepOutcome) -> &'static str {
    match outcome {
        StepOutcome::Done => "done",
        StepOutcome::Kept => "kept",
    }
}

fn terminated(sql: &str) -> String {
    let sql = sql.trim_end();
    if sql.ends_with(';') { sql.to_owned() } else { format!("{sql};") }
}
