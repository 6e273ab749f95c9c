//! Work that is due in the table: who does it, and what that costs the server. Shared by the benches over a burst of rows.

use std::io::Write as _;
use std::time::Duration;

use clap::{Args, Subcommand};
use postrider_core::stage::{Backoff, Definitions, Next, StageClass, StageGraph, StagePolicy};
use postrider_core::work::{DefinitionName, StageName};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use xtask::error::{Context, Error, Result};

pub(crate) mod executor;
pub(crate) mod peer;
pub(crate) mod poller;
pub(crate) mod trivial;
pub(crate) mod turn;

use trivial::Trivial;

/// A side, as a process of its own.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Ours.
    #[command(hide = true)]
    Execute(executor::Execute),
    /// The poller.
    #[command(hide = true)]
    Poll(poller::Poll),
}

/// How much there is to do.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Load {
    /// Rows that are due when a turn begins.
    #[arg(long, default_value_t = 50_000)]
    pub(crate) rows: u64,
    /// Stages of each row.
    #[arg(long, default_value_t = 1)]
    pub(crate) stages: u32,
    /// Each stage that ends is told in a history.
    #[arg(long)]
    pub(crate) history: bool,
    /// Calls of one stage that may be in flight at once, for who can bound them.
    #[arg(long, default_value_t = 2_000)]
    pub(crate) concurrency: u32,
    /// How long a call takes, in milliseconds.
    #[arg(long, default_value_t = 0)]
    pub(crate) call_ms: u64,
}

impl Role {
    pub(crate) async fn run(self) -> Result<()> {
        match self {
            Role::Execute(execute) => execute.run().await,
            Role::Poll(poll) => poll.run().await,
        }
    }
}

/// Plays the side's role that the process was started for, or else compares the sides.
pub(crate) fn run_role(role: Option<Role>, compare: impl Future<Output = Result<()>>) -> Result<()> {
    // As `postrider run` has it, and it is enough for all.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context(|| "cannot start the runtime")?;
    match role {
        Some(role) => runtime.block_on(role.run()),
        None => runtime.block_on(compare),
    }
}

impl Load {
    /// A transition is one stage of one row that has ended.
    pub(crate) fn transitions(self) -> u64 {
        self.rows * u64::from(self.stages)
    }

    fn call(self) -> Duration {
        Duration::from_millis(self.call_ms)
    }

    /// The stages are of the only definition.
    fn definitions(self) -> Result<Definitions> {
        Ok(Definitions::new(DefinitionName::new("quoting@1"), self.graph()?))
    }

    /// The stages, one after the other.
    fn graph(self) -> Result<StageGraph> {
        let policies = (1..=self.stages).map(|number| self.policy(number)).collect();
        StageGraph::new(policies).map_err(|problems| Error::new(format!("the stages are no workflow: {problems:?}")))
    }

    /// A stage as `postrider run` has it by default, but for how many calls it takes at once.
    fn policy(self, number: u32) -> StagePolicy {
        let next = if number == self.stages { Next::End } else { Next::Stage(stage_name(number + 1)) };
        StagePolicy {
            name: stage_name(number),
            class: StageClass::Natural,
            endpoint: "http://trivial:80".into(),
            next: vec![next],
            attempt_limit: 5,
            deferral_limit: Some(20),
            timeout: Duration::from_secs(30),
            lease: Duration::from_secs(60),
            backoff: Backoff { first: Duration::from_secs(1), max: Duration::from_secs(300) },
            concurrency: self.concurrency,
            rate: None,
            serial: false,
            priority: 0,
            by_others: false,
            request_bytes_max: 16 << 20,
        }
    }
}

/// The name of a stage, from 1.
fn stage_name(number: u32) -> StageName {
    StageName::new(&format!("STAGE_{number}"))
}

/// Says that this side has its connections and statements, and waits for the word to go.
async fn wait_for_go() -> Result<()> {
    say("ready")?;
    let waited = spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await;
    match waited.context(|| "cannot wait for the word to go")? {
        Ok(1..) => Ok(()),
        _ => Err(Error::new("nobody gives the word to go")),
    }
}

/// Says that the last row is done, and what was called.
fn say_done(calls: &Trivial) -> Result<()> {
    say(&json!({ "calls": calls.calls(), "peak": calls.peak() }).to_string())
}

/// What [`say_done`] said: calls, and the most that were in flight at once.
fn heard_done(line: &str) -> Result<(u64, u64)> {
    let said: Value = serde_json::from_str(line).context(|| "a side did not say what it did")?;
    match (said["calls"].as_u64(), said["peak"].as_u64()) {
        (Some(calls), Some(peak)) => Ok((calls, peak)),
        _ => Err(Error::new(format!("a side did not say what it did: {line}"))),
    }
}

fn say(line: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).context(|| "nobody listens to this side")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stages_lead_from_the_first_to_the_end() {
        let load = Load { rows: 10, stages: 3, history: false, concurrency: 7, call_ms: 0 };
        let graph = load.graph().unwrap();
        let ways: Vec<_> = graph.stages().map(|stage| (stage.name.as_str(), stage.next[0].as_str())).collect();
        assert_eq!(ways, [("STAGE_1", "STAGE_2"), ("STAGE_2", "STAGE_3"), ("STAGE_3", "DONE")]);
        assert_eq!(load.transitions(), 30);
    }

    #[test]
    fn what_a_side_did_is_read_or_refused() {
        assert_eq!(heard_done(r#"{"calls":3,"peak":2}"#).unwrap(), (3, 2));
        assert!(heard_done(r#"{"calls":3}"#).is_err());
        assert!(heard_done("").is_err());
    }
}
