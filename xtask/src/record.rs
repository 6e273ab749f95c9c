//! `cargo x record`: the golden recordings, made anew.

use clap::Args;

use crate::error::Result;
use crate::workspace;

/// Run every case of the conformance suite on each version, and write down what the server sends and says.
#[derive(Debug, Args)]
pub(crate) struct Record {
    /// Only this major version, 14 to 18.
    #[arg(long, value_name = "NN")]
    postgres: Option<u32>,
    /// Write also what says the same as before, with its new LSNs, ids and times.
    #[arg(long)]
    all: bool,
}

impl Record {
    pub(crate) fn run(self) -> Result<()> {
        let mut command = workspace::cargo();
        command.args(["run", "--quiet", "--package", "postrider-tests", "--bin", "record", "--"]);
        if let Some(version) = self.postgres {
            command.args(["--postgres", &version.to_string()]);
        }
        if self.all {
            command.arg("--all");
        }
        workspace::run(&mut command)
    }
}
