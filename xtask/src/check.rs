//! `cargo x check`: what can be known without running the product.

use std::process::Command;

use clap::Args;

use crate::error::Result;
use crate::workspace;

/// Check format, lints, documentation, the rules of the house and the dependencies.
#[derive(Debug, Args)]
pub(crate) struct Check {}

impl Check {
    /// Runs every check, also after one has failed, and says whether all hold.
    pub(crate) fn run(self) -> Result<bool> {
        let mut failed = Vec::new();
        for mut step in steps() {
            let line = workspace::line(&step);
            eprintln!("> {line}");
            if workspace::run(&mut step).is_err() {
                failed.push(line);
            }
        }
        if !has_cargo_deny() {
            eprintln!("cargo-deny is not installed: licences, sources and bans were not checked");
        }
        for line in &failed {
            eprintln!("failed: {line}");
        }
        Ok(failed.is_empty())
    }
}

fn steps() -> Vec<Command> {
    let mut steps = vec![
        cargo(&["fmt", "--all", "--check"]),
        cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
        documentation(),
        cargo(&["test", "--quiet", "--package", "xtask", "--test", "tidy"]),
    ];
    if has_cargo_deny() {
        // Advisories need a database from the network; what is checked here needs only the lock file.
        steps.push(cargo(&["deny", "--log-level", "error", "check", "bans", "licenses", "sources"]));
    }
    steps
}

/// The documentation's build, with every warning an error.
pub(crate) fn documentation() -> Command {
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = workspace::cargo();
    command.args(arguments);
    command
}

fn has_cargo_deny() -> bool {
    cargo(&["deny", "--version"]).output().is_ok_and(|output| output.status.success())
}
