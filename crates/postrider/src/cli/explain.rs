//! `postrider explain`: what an error code means, what it costs, and what to type.

use crate::config::reference;
use crate::{exit, explain, output};
use postrider_core::error::{Error, ErrorKind, Result};
use serde_json::{Value, json};

/// Explain an error code, or print the reference of the configuration
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(super) struct Explain {
    /// A code, as in PR004.
    #[arg(conflicts_with_all = ["all", "configuration"])]
    code: Option<String>,
    /// Every code.
    #[arg(long, conflicts_with = "configuration")]
    all: bool,
    /// Every key of the configuration.
    #[arg(long)]
    configuration: bool,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Explain {
    pub(super) fn obey(self) -> Result<u8> {
        if self.configuration {
            self.print(&json!({ "reference": reference() }), &reference());
            return Ok(exit::OK);
        }
        let kinds: Vec<ErrorKind> = match &self.code {
            Some(code) => vec![explain::kind_of(code).ok_or_else(unknown_code)?],
            None => ErrorKind::ALL.to_vec(),
        };
        let pages: Vec<&str> = kinds.iter().map(|kind| explain::page(*kind)).collect();
        let entries: Vec<Value> = kinds.iter().map(|kind| entry(*kind)).collect();
        self.print(&Value::Array(entries), &pages.join("\n"));
        Ok(exit::OK)
    }

    fn print(&self, value: &Value, text: &str) {
        if self.json { output::json(value) } else { output::data(text) }
    }
}

fn entry(kind: ErrorKind) -> Value {
    json!({
        "code": kind.code(),
        "title": explain::title(kind),
        "exit_code": kind.exit_code(),
        "page": explain::page(kind),
    })
}

fn unknown_code() -> Error {
    let codes = ErrorKind::ALL.map(ErrorKind::code);
    Error::new(ErrorKind::Configuration, "there is no error with this code")
        .with_detail(format!("The codes are {}.", codes.join(", ")))
        .with_hint("`postrider explain --all` prints every page.")
}
