//! `burst`: rows that are all due at once, drained without a call beyond the stage's concurrency.

use clap::Args;
use serde_json::Map;
use xtask::error::Result;

use crate::Bench;
use crate::figure::{Better, Figure, Goal, Report};
use crate::server::Server;
use crate::turn::order;
use crate::work::turn::{POSTGRES, SETTINGS, Side, Turn, install, take};
use crate::work::{Load, Role, run_role};

/// Drain a burst of due rows with Postrider, whose calls are bounded, and with a tuned poller, turn by turn.
#[derive(Debug, clap::Parser)]
#[command(name = "burst")]
pub struct Burst {
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
    /// Rows that are due at once.
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// Calls that ours may have in flight at once; the default is that of a stage.
    #[arg(long, default_value_t = 64)]
    concurrency: u32,
}

/// As long as a quick endpoint takes: calls are in flight while others are started.
const CALL_MS: u64 = 1;

const SIDES: [Side; 2] = [Side::Quiet, Side::Poller];

impl Bench for Burst {
    fn run(self) -> Result<()> {
        run_role(self.role, compare(&self.options))
    }
}

async fn compare(options: &Options) -> Result<()> {
    let Options { rows, concurrency, .. } = *options;
    let load = Load { rows, stages: 1, history: false, concurrency, call_ms: CALL_MS };
    let server = Server::start_version(Some(POSTGRES), &SETTINGS).await?;
    install(&server).await?;
    let version = server.cluster.installation().version();
    let settings = format!("{}; {rows} rows; a call takes {CALL_MS} ms", Server::describe(version, &SETTINGS));
    let report = Report::begin("burst", options.json, settings);
    let (mut ours, mut other) = (Vec::new(), Vec::new());
    for run in 1..=options.runs {
        for side in order(SIDES, run) {
            let turn = take(&server, side, load).await?;
            eprintln!("run {run}     {:<22} {}, at most {} calls in flight", side.name(), turn.say(), turn.peak);
            if side == Side::Quiet { ours.push(turn) } else { other.push(turn) }
        }
    }
    report.finish(&figures(&ours, &other, load));
    Ok(())
}

fn figures(ours: &[Turn], other: &[Turn], load: Load) -> [Figure; 2] {
    let figure = |unit, better, value: fn(&Turn) -> f64, goal| Figure {
        case: format!("{} rows", load.rows),
        unit,
        better,
        ours: ours.iter().map(value).collect(),
        other_name: Side::Poller.name(),
        other: other.iter().map(value).collect(),
        goal,
        extra: Map::new(),
    };
    [
        figure("rows/s", Better::More, |turn| turn.per_second, None),
        figure("calls in flight", Better::Less, |turn| turn.peak, Some(Goal::AtMost(load.concurrency.into()))),
    ]
}
