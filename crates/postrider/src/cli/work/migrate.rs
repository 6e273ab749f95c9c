//! `postrider work migrate`: rows go on under another definition.

use super::Place;
use super::give::{Record, Rows, give};
use crate::config::Work;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::order::{Move, Order};
use postrider_core::stage::StageGraph;
use postrider_core::work::{DefinitionName, StageName};
use std::collections::BTreeMap;

/// Move rows that are not running to another definition, as they are
#[derive(Debug, clap::Args)]
pub(super) struct Migrate {
    #[command(flatten)]
    pub(super) place: Place,
    #[command(flatten)]
    rows: Rows,
    /// The definition that they go to, as the configuration has it.
    #[arg(long, value_name = "NAME@VERSION")]
    to: String,
    /// A stage that has another name there. Rows whose stage may have been asked for already are refused: the key would be another.
    #[arg(long, value_name = "OLD=NEW", value_parser = renaming)]
    rename: Vec<(String, String)>,
    #[command(flatten)]
    record: Record,
}

impl Migrate {
    pub(super) fn obey(self) -> Result<u8> {
        let (to, rename) = (self.to, self.rename);
        give(&self.place, &self.rows, self.record, |work| Ok(Order::Migrate(meant(work, &to, &rename)?)))
    }
}

fn renaming(word: &str) -> Result<(String, String), String> {
    let parts = word.split_once('=').filter(|(old, new)| !old.is_empty() && !new.is_empty());
    parts
        .map(|(old, new)| (old.to_owned(), new.to_owned()))
        .ok_or_else(|| "expected two stages, as in TARIFF=RATING".to_owned())
}

fn meant(work: &Work, to: &str, rename: &[(String, String)]) -> Result<Move> {
    if work.mapping.definition.is_none() {
        return Err(Error::new(ErrorKind::Configuration, "the work table has no column for the definition")
            .with_hint("All its rows are under the current definition."));
    }
    let to = DefinitionName::new(to);
    let mut graphs = work.definitions.graphs();
    let Some((_, graph)) = graphs.find(|(name, _)| **name == to) else {
        let known: Vec<&str> = work.definitions.graphs().map(|(name, _)| name.as_str()).collect();
        return Err(Error::new(ErrorKind::Configuration, "the configuration has no such definition")
            .with_detail(format!("Its definitions are {}.", known.join(", "))));
    };
    let mut renamed = BTreeMap::new();
    for (old, new) in rename {
        let new = target(graph, &to, new)?;
        if renamed.insert(StageName::new(old), new).is_some() {
            return Err(
                Error::new(ErrorKind::Configuration, "a stage is renamed twice").with_detail(format!("It is {old}."))
            );
        }
    }
    Ok(Move { to, stages: graph.stages().map(|policy| policy.name.clone()).collect(), renamed })
}

fn target(graph: &StageGraph, to: &DefinitionName, name: &str) -> Result<StageName> {
    let stage = StageName::new(name);
    if graph.stage(&stage).is_some() {
        return Ok(stage);
    }
    let known: Vec<&str> = graph.stages().map(|policy| policy.name.as_str()).collect();
    Err(Error::new(ErrorKind::Configuration, "that definition has no such stage")
        .with_detail(format!("It is {name}; the stages of {to} are {}.", known.join(", "))))
}
