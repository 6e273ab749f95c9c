//! `postrider work show`: one row, and all that happened to it.

use super::give::no_such_row;
use super::{Place, key_of, open, row_json, row_text};
use crate::cli::block_on;
use crate::{exit, output};
use postrider_core::error::Result;
use postrider_postgres::{Access, Deed, TimelineEntry};
use serde_json::{Value, json};

/// Show a work row and its timeline: each attempt, and each order of a person
#[derive(Debug, clap::Args)]
pub(super) struct Show {
    #[command(flatten)]
    pub(super) place: Place,
    /// The row's key: a word for each of its columns.
    #[arg(required = true)]
    key: Vec<String>,
}

impl Show {
    pub(super) fn obey(self) -> Result<u8> {
        let (work, options) = self.place.read()?;
        let key = key_of(&work, &self.key)?;
        let (row, timeline) = block_on(async {
            let operator = open(&work, &options, Access::LookBack).await?;
            let row = operator.row(&key).await?.ok_or_else(|| no_such_row(&key))?;
            let timeline = operator.timeline(&row.version.key).await?;
            Ok((row, timeline))
        })?;
        if self.place.json {
            let timeline: Vec<Value> = timeline.iter().map(entry_json).collect();
            output::json(&json!({ "row": row_json(&row), "timeline": timeline }));
        } else {
            output::data(&row_text(&row));
            timeline.iter().for_each(|entry| output::data(&entry_text(entry)));
        }
        Ok(exit::OK)
    }
}

fn entry_text(entry: &TimelineEntry) -> String {
    let TimelineEntry { at, stage, fence, next_stage, next_state, .. } = entry;
    let deed = match &entry.deed {
        Deed::Tried(tried) => {
            let mut text = format!("attempt {}: {}", tried.attempt, tried.outcome);
            if let Some(status) = tried.http_status {
                text.push_str(&format!(", HTTP {status}"));
            }
            if let Some(seconds) = tried.seconds {
                text.push_str(&format!(", {seconds:.3} s"));
            }
            if let Some(owner) = &tried.owner {
                text.push_str(&format!(", by {owner}"));
            }
            if let Some(reason) = &tried.reason {
                text.push_str(&format!(", {reason}"));
            }
            text
        }
        Deed::Ordered { verb, who, database_user, why, evidence } => {
            let evidence = evidence.as_ref().map(|evidence| format!(" ({evidence})")).unwrap_or_default();
            format!("{verb} by {who}, as {database_user}: {why}{evidence}")
        }
    };
    format!("{at}  {stage}  fence {fence}  {deed} -> {next_stage} {next_state}")
}

fn entry_json(entry: &TimelineEntry) -> Value {
    let TimelineEntry { at, stage, fence, next_stage, next_state, .. } = entry;
    let mut value = json!({
        "at": at, "stage": stage, "fence": fence, "next_stage": next_stage, "next_state": next_state,
    });
    let deed = match &entry.deed {
        Deed::Tried(tried) => json!({
            "epoch": tried.epoch,
            "attempt": tried.attempt,
            "deferrals": tried.deferrals,
            "owner": tried.owner,
            "outcome": tried.outcome,
            "http_status": tried.http_status,
            "reason": tried.reason,
            "seconds": tried.seconds,
        }),
        Deed::Ordered { verb, who, database_user, why, evidence } => json!({
            "verb": verb, "who": who, "database_user": database_user, "why": why, "evidence": evidence,
        }),
    };
    let kind = if matches!(entry.deed, Deed::Tried(_)) { "attempt" } else { "order" };
    value[kind] = deed;
    value
}
