//! `postrider journal`: what is in the journal, for people and scripts. Nothing is locked, repaired or written.

mod cat;
mod ls;
mod verify;

use postrider_core::error::Result;

/// Look at the journal, beside the process that writes it or at a copy
#[derive(Debug, clap::Args)]
pub(super) struct Journal {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Ls(ls::Ls),
    Cat(cat::Cat),
    Verify(verify::Verify),
}

impl Journal {
    pub(super) fn obey(self) -> Result<u8> {
        match self.verb {
            Verb::Ls(verb) => verb.obey(),
            Verb::Cat(verb) => verb.obey(),
            Verb::Verify(verb) => verb.obey(),
        }
    }

    pub(super) fn is_json(&self) -> bool {
        match &self.verb {
            Verb::Ls(verb) => verb.json,
            // Its lines are changes; an error is no change.
            Verb::Cat(_) => false,
            Verb::Verify(verb) => verb.json,
        }
    }
}
