//! `sharing`: rows that become due in one commit, done by two executors that share them, and by one.

use std::io::{BufRead as _, BufReader};
use std::process::{ChildStdout, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Map;
use xtask::error::{Context, Error, Result};

use crate::Bench;
use crate::figure::{Better, Figure, Goal, Report};
use crate::process::Running;
use crate::server::Server;
use crate::turn::order;
use crate::work::turn::{POSTGRES, SETTINGS, Side, drop_slot, insert, install, role, set_up};
use crate::work::{Load, Role, run_role};

/// Do rows that become due in one commit with two executors, and with one, turn by turn.
#[derive(Debug, clap::Parser)]
#[command(name = "sharing")]
pub struct Sharing {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Args)]
struct Options {
    /// One JSON object a line on stdout for each figure.
    #[arg(long)]
    json: bool,
    /// How many turns each side has.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Rows that become due in one commit.
    #[arg(long, default_value_t = 50_000)]
    rows: u64,
    /// Stages of each row.
    #[arg(long, default_value_t = 4)]
    stages: u32,
    /// Calls of one stage that each executor may have in flight at once.
    #[arg(long, default_value_t = 2_000)]
    concurrency: u32,
}

/// A side is so many executors.
const SIDES: [usize; 2] = [2, 1];

/// How long an executor may say nothing.
const PATIENCE: Duration = Duration::from_secs(60);

impl Bench for Sharing {
    fn run(self) -> Result<()> {
        run_role(self.role, compare(&self.options))
    }
}

async fn compare(options: &Options) -> Result<()> {
    let Options { rows, stages, concurrency, .. } = *options;
    let load = Load { rows, stages, history: false, concurrency, call_ms: 0 };
    let server = Server::start_version(Some(POSTGRES), &SETTINGS).await?;
    install(&server).await?;
    let version = server.cluster.installation().version();
    let settings = format!("{}; {rows} rows in one commit, {stages} stages", Server::describe(version, &SETTINGS));
    let report = Report::begin("sharing", options.json, settings);
    let (mut two, mut one) = (Vec::new(), Vec::new());
    for run in 1..=options.runs {
        for executors in order(SIDES, run) {
            let per_second = take(&server, executors, load).await?;
            eprintln!("run {run}     {executors} executors {per_second:.0}/s");
            if executors == 2 { two.push(per_second) } else { one.push(per_second) }
        }
    }
    report.finish(&[Figure {
        case: format!("{rows} rows in one commit, {stages} stages"),
        unit: "transitions/s",
        better: Better::More,
        ours: two,
        other_name: "one executor",
        other: one,
        goal: Some(Goal::Ratio(1.0)),
        extra: Map::new(),
    }]);
    Ok(())
}

/// Has the executors do the rows, and says how many transitions they made in a second, from before the commit on.
///
/// # Errors
/// When they did not do all of them, or one twice.
async fn take(server: &Server, executors: usize, load: Load) -> Result<f64> {
    let side = Side::Quiet;
    server.execute("TRUNCATE quiet.pending_work, postrider.work_history").await?;
    server.execute("CHECKPOINT").await?;
    set_up(server, side).await?;
    let (words, heard) = mpsc::channel();
    let mut running = Vec::new();
    for number in 0..executors {
        let mut executor = start(server, number, executors, load)?;
        listen(executor.stdout()?, words.clone());
        running.push(executor);
    }
    for _ in 0..executors {
        hear(&heard, "ready")?;
    }
    let began = Instant::now();
    insert(server, side, load).await?;
    let mut left = load.transitions();
    while left > 0 {
        let word = next(&heard)?;
        let written: u64 = word.parse().context(|| format!("an executor said `{word}`"))?;
        left =
            left.checked_sub(written).ok_or_else(|| Error::new("the executors wrote more outcomes than there are"))?;
    }
    let took = began.elapsed();
    running.into_iter().try_for_each(Running::stop)?;
    let open = server.text("SELECT count(*)::text FROM quiet.pending_work WHERE closed_at IS NULL").await?;
    if open != "0" {
        return Err(Error::new(format!("{open} rows are open, and all outcomes are written")));
    }
    drop_slot(server, side).await?;
    Ok(load.transitions() as f64 / took.as_secs_f64())
}

fn start(server: &Server, number: usize, executors: usize, load: Load) -> Result<Running> {
    let mut command = role(server, Side::Quiet, load, &format!("journal_{number}"))?;
    command.args(["--together", &executors.to_string()]);
    if number > 0 {
        command.args(["--slot", &format!("quiet_{number}")]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Running::start("an executor", &mut command)
}

/// Passes on what an executor says, until it ends.
fn listen(said: ChildStdout, words: Sender<String>) {
    thread::spawn(move || {
        // Whoever listens may be gone.
        BufReader::new(said).lines().map_while(std::result::Result::ok).try_for_each(|line| words.send(line)).ok();
    });
}

fn hear(heard: &Receiver<String>, expected: &str) -> Result<()> {
    match next(heard)? {
        word if word == expected => Ok(()),
        word => Err(Error::new(format!("an executor said `{word}`, not `{expected}`"))),
    }
}

fn next(heard: &Receiver<String>) -> Result<String> {
    heard.recv_timeout(PATIENCE).context(|| format!("no executor said anything for {PATIENCE:?}"))
}
