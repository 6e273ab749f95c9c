//! `postrider work ls`: rows by what they have in common.

use super::{Place, key_of, open, row_json, row_text, stage_of, state_of, unreadable_json};
use crate::cli::block_on;
use crate::config::Span;
use crate::{exit, output};
use postrider_core::error::Result;
use postrider_core::work::{DefinitionName, StageState};
use postrider_postgres::{Access, FoundRows, RowFilter};
use serde_json::{Value, json};

/// List work rows in the order of their keys: open ones, or those in a state
#[derive(Debug, clap::Args)]
pub(super) struct Ls {
    #[command(flatten)]
    pub(super) place: Place,
    #[command(flatten)]
    filter: Filter,
    /// Begin behind this key: a word for each of its columns.
    #[arg(long, value_name = "KEY", num_args = 1..)]
    after: Vec<String>,
    /// How many.
    #[arg(short = 'n', long, default_value_t = 100)]
    limit: u32,
}

/// What rows have in common.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Filter {
    /// Rows in this stage.
    #[arg(long)]
    stage: Option<String>,
    /// Rows in this state: PENDING, RETRY, RUNNING, NON_RESUMABLE, UNKNOWN and so on.
    #[arg(long, value_parser = state_of)]
    state: Option<StageState>,
    /// Rows that are under this definition.
    #[arg(long, value_name = "NAME@VERSION")]
    definition: Option<String>,
    /// Rows whose reason (`last_error`) matches this pattern of LIKE, as in 'PERMANENT%'.
    #[arg(long, value_name = "PATTERN")]
    reason_like: Option<String>,
    /// Rows that were last written longer ago than this: 30m, 12h, 3d.
    #[arg(long, value_name = "SPAN", value_parser = span_of)]
    older_than: Option<Span>,
}

fn span_of(word: &str) -> Result<Span, String> {
    word.parse().map_err(|_| "expected a whole number and ms, s, m, h or d, as in 12h".to_owned())
}

impl Filter {
    pub(super) fn meant(&self, work: &crate::config::Work) -> Result<RowFilter> {
        Ok(RowFilter {
            stage: self.stage.as_deref().map(|stage| stage_of(work, stage)).transpose()?,
            state: self.state,
            definition: self.definition.as_deref().map(DefinitionName::new),
            reason_like: self.reason_like.clone(),
            older_than: self.older_than.map(|span| span.0),
        })
    }
}

impl Ls {
    pub(super) fn obey(self) -> Result<u8> {
        let (work, options) = self.place.read()?;
        let filter = self.filter.meant(&work)?;
        let after = if self.after.is_empty() { None } else { Some(key_of(&work, &self.after)?) };
        let FoundRows { rows, unreadable } = block_on(async {
            open(&work, &options, Access::Look).await?.find(&filter, after.as_ref(), self.limit).await
        })?;
        if self.place.json {
            let rows: Vec<Value> = rows.iter().map(row_json).collect();
            let unreadable_rows = unreadable_json(&unreadable);
            output::json(&json!({ "rows": rows, "unreadable": unreadable.count, "unreadable_rows": unreadable_rows }));
        } else {
            rows.iter().for_each(|row| output::data(&row_text(row)));
            if rows.len() == usize::try_from(self.limit).unwrap_or(usize::MAX) {
                output::talk("There may be more: go on with --after and the last key.");
            }
            if let Some(sentence) = unreadable.sentence() {
                output::talk(&format!("Left out: {sentence} {}", unreadable.cure()));
            }
        }
        Ok(exit::OK)
    }
}
