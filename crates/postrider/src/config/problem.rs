//! What is wrong with a configuration: all of it, in the order of the file.

use crate::config::place::{LineColumn, Place};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

/// Collects problems while a configuration is read; reading goes on after each.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    found: Vec<Found>,
    /// Keys whose value is there and has a wrong type: they are not missing.
    mistyped: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    place: Place,
    message: String,
    hint: Option<String>,
}

/// One problem, ready to be shown. It names keys and words, never a value that may be secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    /// From 1; absent where something is missing from the file as a whole.
    pub(crate) line: Option<usize>,
    /// In characters, from 1.
    pub(crate) column: Option<usize>,
    pub(crate) message: String,
    /// What to type instead.
    pub(crate) hint: Option<String>,
}

impl Problems {
    pub(crate) fn report(&mut self, place: Place, message: impl Into<String>) {
        self.found.push(Found { place, message: message.into(), hint: None });
    }

    pub(crate) fn report_with_hint(&mut self, place: Place, message: impl Into<String>, hint: impl Into<String>) {
        self.found.push(Found { place, message: message.into(), hint: Some(hint.into()) });
    }

    pub(crate) fn report_wrong_type(&mut self, place: Place, path: &str, message: impl Into<String>) {
        self.mistyped.insert(path.to_owned());
        self.report(place, message);
    }

    /// Reports that a key is missing, unless it was reported for its type.
    pub(crate) fn report_missing(&mut self, place: Place, path: &str) {
        if !self.mistyped.contains(path) {
            self.report(place, format!("`{path}` is missing"));
        }
    }

    /// Some value of the key at `path` was reported for its type.
    pub(crate) fn is_mistyped(&self, path: &str) -> bool {
        self.mistyped.contains(path)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// All problems in the order of the file, each once.
    pub(crate) fn into_sorted(mut self, text: &str) -> Vec<Problem> {
        self.found.sort_by_key(|found| found.place);
        self.found.dedup();
        self.found.into_iter().map(|found| found.located(text)).collect()
    }
}

impl Found {
    fn located(self, text: &str) -> Problem {
        let at = self.place.line_and_column(text);
        Problem { line: at.map(|at| at.line), column: at.map(|at| at.column), message: self.message, hint: self.hint }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, "{}: ", LineColumn { line, column })?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}
