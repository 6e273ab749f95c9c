//! `postrider adopt`: goes on with a server that the journal does not simply follow from, and accepts what is left out by that.

use crate::cli::{ConfigurationFile, block_on};
use crate::succession::{Succession, describe, look};
use crate::{config, exit, output};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::time::Timestamp;
use postrider_journal::Adoption;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Go on after a failover, a restore, or a slot that was moved: says what is left out, and does it with --yes
#[derive(Debug, clap::Args)]
pub(super) struct Adopt {
    #[command(flatten)]
    configuration: ConfigurationFile,
    /// Do it: what is said to be left out is accepted, and put on record in the journal.
    #[arg(long)]
    yes: bool,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Adopt {
    pub(super) fn obey(self) -> Result<u8> {
        let configuration = config::load(&self.configuration.path)?;
        let dir = configuration.journal.dir.as_path();
        let succession = block_on(look(&configuration))?.ok_or_else(|| no_journal(dir))?;
        let adoption = succession.adoption(now())?;
        let pending: Vec<String> =
            succession.journal.gaps()?.iter().filter(|gap| !gap.accepted).map(describe).collect();
        if self.yes {
            if let Some(adoption) = &adoption {
                postrider_journal::adopt(dir, adoption)?;
            }
            if !pending.is_empty() {
                postrider_journal::accept(dir)?;
            }
        }
        self.show(&succession, adoption.as_ref(), &pending);
        let open = adoption.is_some() || !pending.is_empty();
        Ok(if open && !self.yes { exit::NOT_READY } else { exit::OK })
    }

    fn show(&self, succession: &Succession, adoption: Option<&Adoption>, pending: &[String]) {
        if self.json {
            let plan = adoption.map(plan_json);
            output::json(&json!({
                "done": self.yes, "story": succession.story(), "adoption": plan, "gaps": pending,
            }));
            return;
        }
        succession.story().iter().for_each(|line| output::data(line));
        if let Some(adoption) = adoption {
            output::data(&plan_text(succession, adoption));
        }
        for gap in pending {
            output::data(&format!("On record as left out, for {gap}"));
        }
        output::data(match (adoption.is_some() || !pending.is_empty(), self.yes) {
            (false, _) => "There is nothing to adopt.",
            (true, true) => "Done. It is on record in the journal.",
            (true, false) => "Nothing was changed. With --yes it is done.",
        });
    }
}

fn plan_text(succession: &Succession, adoption: &Adoption) -> String {
    let generation = succession.journal.generation().0;
    let mut text = if adoption.new_generation {
        format!(
            "The journal goes on at {} of that server in generation {}: every position and version rises.",
            adoption.begins,
            generation.saturating_add(1)
        )
    } else {
        format!("The journal goes on at {}, in generation {generation} as before.", adoption.begins)
    };
    if let Some(cut) = adoption.cut {
        text.push_str(&format!(
            "\nWhat the journal has from {cut} on is given to no consumer any more; those who had it keep it."
        ));
    }
    text
}

fn plan_json(adoption: &Adoption) -> Value {
    json!({
        "begins": adoption.begins.to_string(),
        "cut": adoption.cut.map(|cut| cut.to_string()),
        "new_generation": adoption.new_generation,
        "from": adoption.gap.from.to_string(),
        "to": adoption.gap.to.to_string(),
        "reason": adoption.gap.reason,
    })
}

fn no_journal(dir: &Path) -> Error {
    Error::new(ErrorKind::Configuration, "there is no journal to go on with")
        .with_detail(format!("The directory is {}.", dir.display()))
        .with_hint("`postrider run` makes a new one.")
}

/// A record for people: nothing is decided by it.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
