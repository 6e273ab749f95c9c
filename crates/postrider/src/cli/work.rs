//! `postrider work`: rows of the work table, looked at and ordered by hand.

mod cancel;
mod give;
mod ls;
mod migrate;
mod reexecute;
mod resolve;
mod resume;
mod retry;
mod show;
mod skip;

pub(in crate::cli) use give::Record;

use crate::cli::ConfigurationFile;
use crate::config::{self, Mode};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::stage::{END, Next};
use postrider_core::work::{StageName, StageState, WorkKey};
use postrider_postgres::{Access, ConnectOptions, Operator, UnreadableRow, UnreadableRows, WorkRow};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Look at work rows, and order by hand what becomes of them
#[derive(Debug, clap::Args)]
pub(super) struct Work {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Ls(ls::Ls),
    Show(show::Show),
    Resume(resume::Resume),
    Retry(retry::Retry),
    Skip(skip::Skip),
    Cancel(cancel::Cancel),
    Reexecute(reexecute::Reexecute),
    Resolve(resolve::Resolve),
    Migrate(migrate::Migrate),
}

/// Which table, under whose name, and how it is told.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Place {
    #[command(flatten)]
    configuration: ConfigurationFile,
    /// Connect to this address in place of that of the configuration: as a role of your own, for example.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

impl Work {
    pub(super) fn obey(self) -> Result<u8> {
        match self.verb {
            Verb::Ls(verb) => verb.obey(),
            Verb::Show(verb) => verb.obey(),
            Verb::Resume(verb) => verb.obey(),
            Verb::Retry(verb) => verb.obey(),
            Verb::Skip(verb) => verb.obey(),
            Verb::Cancel(verb) => verb.obey(),
            Verb::Reexecute(verb) => verb.obey(),
            Verb::Resolve(verb) => verb.obey(),
            Verb::Migrate(verb) => verb.obey(),
        }
    }

    pub(super) fn is_json(&self) -> bool {
        match &self.verb {
            Verb::Ls(verb) => verb.place.json,
            Verb::Show(verb) => verb.place.json,
            Verb::Resume(verb) => verb.place.json,
            Verb::Retry(verb) => verb.place.json,
            Verb::Skip(verb) => verb.place.json,
            Verb::Cancel(verb) => verb.place.json,
            Verb::Reexecute(verb) => verb.place.json,
            Verb::Resolve(verb) => verb.place.json,
            Verb::Migrate(verb) => verb.place.json,
        }
    }
}

impl Place {
    /// What the configuration says of the work table, and where to connect.
    pub(in crate::cli) fn read(&self) -> Result<(config::Work, ConnectOptions)> {
        let configuration = config::load(&self.configuration.path)?;
        let work = configuration.work.ok_or_else(|| {
            Error::new(ErrorKind::Configuration, "there is no work table: the configuration has no [work]")
        })?;
        if work.mode == Mode::Observe {
            return Err(Error::new(ErrorKind::Configuration, "`work.mode` is \"observe\": nothing is executed here")
                .with_hint(
                    "Take `mode` out of [work] once Postrider is to execute; until then the rows are their poller's.",
                ));
        }
        let options = match &self.url {
            Some(url) => ConnectOptions::parse(url, &config::environment())?,
            None => configuration.source.options,
        };
        Ok((work, options))
    }
}

pub(in crate::cli) async fn open(work: &config::Work, options: &ConnectOptions, access: Access) -> Result<Operator> {
    Operator::open(options, &work.mapping, work.history.is_some(), access).await
}

/// A key as it is typed, a word for each of its columns.
fn key_of(work: &config::Work, parts: &[String]) -> Result<WorkKey> {
    let columns = &work.mapping.key;
    if parts.len() == columns.len() {
        return Ok(WorkKey::new(parts.iter().map(String::as_str)));
    }
    Err(Error::new(ErrorKind::Configuration, "the key has another number of parts than the table's")
        .with_detail(format!("The key of the work table is ({}).", columns.join(", ")))
        .with_hint("Type one word for each of them, in this order."))
}

/// A stage of the configuration, or the workflow's end.
fn next_of(work: &config::Work, word: &str) -> Result<Next> {
    if word == "end" || word == END {
        return Ok(Next::End);
    }
    stage_of(work, word).map(Next::Stage)
}

pub(in crate::cli) fn stage_of(work: &config::Work, word: &str) -> Result<StageName> {
    let stage = StageName::new(word);
    let stages = || work.definitions.graphs().flat_map(|(_, graph)| graph.stages());
    if stages().any(|policy| policy.name == stage) {
        return Ok(stage);
    }
    let known: BTreeSet<&str> = stages().map(|policy| policy.name.as_str()).collect();
    let known: Vec<&str> = known.into_iter().collect();
    Err(Error::new(ErrorKind::Configuration, "the configuration has no such stage")
        .with_detail(format!("Its stages are {}.", known.join(", "))))
}

fn state_of(word: &str) -> Result<StageState, String> {
    word.to_uppercase().parse().map_err(|_| {
        let known: Vec<&str> = StageState::ALL.into_iter().map(StageState::as_str).collect();
        format!("expected one of {}", known.join(", "))
    })
}

fn key_text(key: &WorkKey) -> String {
    key.parts().collect::<Vec<_>>().join(" ")
}

fn row_text(row: &WorkRow) -> String {
    let version = &row.version;
    let mut text = format!(
        "{}  {} {}  attempts {}, deferrals {}, fence {}, epoch {}",
        key_text(&version.key),
        version.stage,
        version.state.as_str(),
        version.attempt_count,
        version.deferral_count,
        version.fence,
        version.epoch
    );
    if let Some(updated_at) = &row.updated_at {
        text.push_str(&format!("  since {updated_at}"));
    }
    if let Some(reason) = &row.reason {
        text.push_str(&format!("  {reason}"));
    }
    text
}

fn row_json(row: &WorkRow) -> Value {
    let version = &row.version;
    json!({
        "key": version.key.parts().collect::<Vec<_>>(),
        "stage": version.stage.as_str(),
        "state": version.state.as_str(),
        "attempts": version.attempt_count,
        "deferrals": version.deferral_count,
        "fence": version.fence,
        "epoch": version.epoch,
        "owner": version.lease_owner.map(|owner| owner.to_string()),
        "closed": version.closed,
        "reason": row.reason,
        "definition": version.definition.as_ref().map(|definition| definition.as_str()),
        "updated_at": row.updated_at,
        "age_seconds": row.age_seconds,
    })
}

/// The first of the rows that cannot be read.
fn unreadable_json(rows: &UnreadableRows) -> Value {
    let row = |row: &UnreadableRow| {
        let key: Vec<&str> = row.key.parts().collect();
        json!({ "key": key, "column": row.column, "word": row.word })
    };
    rows.first.iter().map(row).collect()
}
