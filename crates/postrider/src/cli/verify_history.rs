//! `postrider verify-history`: whether what a system wrote down of itself keeps what is promised.

use crate::{exit, output};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::history::{self, Violation, lines};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Check a recorded history against the invariants I1 to I9
///
/// Exit code 0: none is broken. Exit code 1: each that is broken is named, with the row or event and the lines of the file.
#[derive(Debug, clap::Args)]
pub(super) struct VerifyHistory {
    /// Lines of JSON; docs/history-format.md has their fields.
    #[arg(value_name = "FILE")]
    path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl VerifyHistory {
    pub(super) fn obey(self) -> Result<u8> {
        let path = self.path.display();
        let text = std::fs::read_to_string(&self.path).map_err(|error| {
            Error::new(ErrorKind::Configuration, "cannot read the history")
                .with_detail(format!("The file is {path}."))
                .with_source(error)
        })?;
        let history = lines::read(&text).map_err(|bad| {
            Error::new(ErrorKind::Configuration, "a line of the history cannot be read")
                .with_detail(format!("{path}, {bad}."))
                .with_hint(bad.cure)
        })?;
        let violations = history::check(&history.records, &history.rules);
        let code = if violations.is_empty() { exit::OK } else { exit::VIOLATED };
        let lines_of = |violation: &Violation| -> Vec<usize> {
            violation.records.iter().filter_map(|record| history.lines.get(*record).copied()).collect()
        };
        if self.json {
            let list: Vec<Value> =
                violations.iter().map(|violation| violation_json(violation, &lines_of(violation))).collect();
            let records = history.records.len();
            output::json(&json!({ "ok": list.is_empty(), "exit_code": code, "records": records, "violations": list }));
        } else {
            violations.iter().for_each(|violation| output::data(&violation_text(violation, &lines_of(violation))));
            let (records, broken) = (history.records.len(), violations.len());
            output::data(&format!("{path}: records {records}, violations {broken}"));
        }
        Ok(code)
    }
}

fn violation_text(violation: &Violation, lines: &[usize]) -> String {
    let numbers: Vec<String> = lines.iter().map(ToString::to_string).collect();
    format!("{violation} (line{} {})", if lines.len() == 1 { "" } else { "s" }, numbers.join(" and "))
}

fn violation_json(violation: &Violation, lines: &[usize]) -> Value {
    json!({
        "invariant": violation.invariant.to_string(),
        "about": violation.about,
        "sentence": violation.sentence,
        "lines": lines,
    })
}
