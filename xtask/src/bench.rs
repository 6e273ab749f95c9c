//! `cargo x bench`: one bench, in the release profile, with the product's own binary beside it.

use clap::Args;

use crate::error::Result;
use crate::services::Service;
use crate::workspace;

/// Run a bench of the package `postrider-benches` by its name.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// The bench.
    name: String,
    /// One JSON object a line on stdout for each figure.
    #[arg(long)]
    json: bool,
    /// What else the bench takes: `-- --runs 2`; `-- --help` says what.
    #[arg(last = true)]
    arguments: Vec<String>,
}

impl Bench {
    pub(crate) fn run(self) -> Result<()> {
        Service::Postgres.ensure()?;
        workspace::run(workspace::cargo().args(["build", "--quiet", "--release", "--package", "postrider"]))?;
        let mut bench = workspace::cargo();
        bench.args(["run", "--quiet", "--release", "--package", "postrider-benches", "--bin", &self.name, "--"]);
        if self.json {
            bench.arg("--json");
        }
        bench.args(&self.arguments);
        workspace::run(&mut bench)
    }
}
