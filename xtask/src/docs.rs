//! `cargo x docs`: the documentation, built, with every link in it checked.

use clap::Args;

use crate::check;
use crate::error::{Error, Result};
use crate::tidy::{self, links};
use crate::workspace;

/// Build the API documentation and check the links of every Markdown page.
#[derive(Debug, Args)]
pub(crate) struct Docs {}

impl Docs {
    pub(crate) fn run(self) -> Result<()> {
        workspace::run(&mut check::documentation())?;
        let exists = |path: &str| workspace::root().join(path).exists();
        let sources = tidy::sources()?;
        let findings: Vec<_> = sources.iter().flat_map(|source| links::check(source, &exists)).collect();
        for finding in &findings {
            eprintln!("{finding}");
        }
        match findings.len() {
            0 => Ok(()),
            broken => Err(Error::new(format!("{broken} links lead nowhere"))),
        }
    }
}
