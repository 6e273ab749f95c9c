//! `cargo x sim`: the simulation, for as many seeds as one likes.

use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::error::Result;
use crate::workspace;

/// Run engine and executor on fake ports in virtual time, with faults from a seed.
#[derive(Debug, Args)]
pub(crate) struct Sim {
    /// How many seeds.
    #[arg(long, value_name = "N", conflicts_with = "seed")]
    seeds: Option<u32>,
    /// Only this seed.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Write what happened to this file, as lines that `postrider verify-history` reads.
    #[arg(long, value_name = "FILE", requires = "seed")]
    lines: Option<PathBuf>,
}

impl Sim {
    pub(crate) fn run(self) -> Result<()> {
        workspace::run(&mut self.command())
    }

    fn command(&self) -> Command {
        let mut command = workspace::cargo();
        command.args(["run", "--quiet", "--package", "postrider-tests", "--bin", "sim", "--"]);
        if let Some(seeds) = self.seeds {
            command.args(["--seeds", &seeds.to_string()]);
        }
        if let Some(seed) = self.seed {
            command.args(["--seed", &seed.to_string()]);
        }
        if let Some(lines) = &self.lines {
            // The simulation runs in the workspace's folder.
            command.arg("--lines").arg(std::path::absolute(lines).unwrap_or_else(|_| lines.clone()));
        }
        command
    }
}
