//! What may be typed after `cargo x`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::Result;
use crate::{bench, check, demo, docs, record, services, sim, test};

/// The repository's own commands.
#[derive(Debug, Parser)]
#[command(name = "cargo x")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Services(services::Services),
    Test(test::Test),
    Check(check::Check),
    Sim(sim::Sim),
    Bench(bench::Bench),
    Docs(docs::Docs),
    Record(record::Record),
    Demo(demo::Demo),
}

/// Reads the command line and does what it says. Exit code 0: done; 1: it did not hold; 2: the command line is wrong.
pub fn run() -> ExitCode {
    let outcome = match Cli::parse().verb {
        Verb::Services(verb) => verb.run().map(|()| true),
        Verb::Test(verb) => verb.run(),
        Verb::Check(verb) => verb.run(),
        Verb::Sim(verb) => verb.run().map(|()| true),
        Verb::Bench(verb) => verb.run().map(|()| true),
        Verb::Docs(verb) => verb.run().map(|()| true),
        Verb::Record(verb) => verb.run().map(|()| true),
        Verb::Demo(verb) => verb.run(),
    };
    exit_code(outcome)
}

fn exit_code(outcome: Result<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {}", error.report());
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
