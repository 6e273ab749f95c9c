//! The command line: one file for each verb.

mod adopt;
mod check;
mod explain;
mod journal;
mod replay;
mod run;
mod setup;
mod stage;
mod status;
mod tail;
mod verify_history;
mod work;

use crate::{exit, log, output};
use clap::{Parser, Subcommand};
use postrider_core::error::{Error, ErrorKind, Result};
use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::runtime::Runtime;

/// Rides PostgreSQL's log: calls the stages of workflows and delivers outbox events.
#[derive(Debug, Parser)]
#[command(name = "postrider", version, after_help = exit::HELP)]
pub(crate) struct Arguments {
    /// What is logged: a level or a filter such as `postrider_engine=debug,info`; else the variable POSTRIDER_LOG.
    #[arg(long, global = true, value_name = "FILTER")]
    log: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Run(run::Run),
    Check(check::Check),
    Setup(setup::Setup),
    Status(status::Status),
    Adopt(adopt::Adopt),
    Journal(journal::Journal),
    Tail(tail::Tail),
    Replay(replay::Replay),
    VerifyHistory(verify_history::VerifyHistory),
    Work(work::Work),
    Stage(stage::Stage),
    Explain(explain::Explain),
}

/// The configuration file, for every verb that has one.
#[derive(Debug, clap::Args)]
struct ConfigurationFile {
    /// The configuration file.
    #[arg(short = 'c', long = "config", value_name = "FILE", default_value = "postrider.toml")]
    path: PathBuf,
}

impl Arguments {
    /// Does what was asked, prints the error if there is one, and says how the process ends.
    pub(crate) fn obey(self) -> ExitCode {
        // Only `run` is watched by its log; the others speak for themselves.
        let default = if matches!(self.verb, Verb::Run(_)) { "info" } else { "warn" };
        let json = self.verb.is_json();
        let outcome = log::start(self.log.as_deref(), default).and_then(|()| self.verb.obey());
        match outcome {
            Ok(code) => ExitCode::from(code),
            Err(error) => {
                if json {
                    output::json(&serde_json::json!({ "error": output::error_json(&error) }));
                }
                output::error(&error);
                ExitCode::from(error.kind().exit_code())
            }
        }
    }
}

impl Verb {
    fn obey(self) -> Result<u8> {
        match self {
            Verb::Run(verb) => verb.obey(),
            Verb::Check(verb) => verb.obey(),
            Verb::Setup(verb) => verb.obey(),
            Verb::Status(verb) => verb.obey(),
            Verb::Adopt(verb) => verb.obey(),
            Verb::Journal(verb) => verb.obey(),
            Verb::Tail(verb) => verb.obey(),
            Verb::Replay(verb) => verb.obey(),
            Verb::VerifyHistory(verb) => verb.obey(),
            Verb::Work(verb) => verb.obey(),
            Verb::Stage(verb) => verb.obey(),
            Verb::Explain(verb) => verb.obey(),
        }
    }

    fn is_json(&self) -> bool {
        match self {
            // Their lines are a log, or changes: an error is neither.
            Verb::Run(_) | Verb::Tail(_) => false,
            Verb::Check(verb) => verb.json,
            Verb::Setup(verb) => verb.json,
            Verb::Status(verb) => verb.json,
            Verb::Adopt(verb) => verb.json,
            Verb::Journal(verb) => verb.is_json(),
            Verb::Replay(verb) => verb.json,
            Verb::VerifyHistory(verb) => verb.json,
            Verb::Work(verb) => verb.is_json(),
            Verb::Stage(verb) => verb.is_json(),
            Verb::Explain(verb) => verb.json,
        }
    }
}

/// Drives `future` on a runtime of one thread. The walk hands each batch on from step to step: on one thread that is a call, on two it
/// is a wake-up of the other one. No step works for longer than a part of a transaction takes, so feedback is never held up.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime: Runtime =
        runtime.map_err(|error| Error::new(ErrorKind::Internal, "cannot start the runtime").with_source(error))?;
    let outcome = runtime.block_on(future);
    // What still blocks a thread, a name look-up for instance, must not hold up the end of the process.
    runtime.shutdown_background();
    outcome
}
