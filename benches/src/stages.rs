//! `stages`: rows that are due until the last stage of the last of them is done, and what that costs the server.

use std::collections::HashMap;

use clap::Args;
use serde_json::Map;
use xtask::error::{Context, Result};

use crate::figure::{Better, Figure, Goal, Report};
use crate::server::Server;
use crate::turn::order;
use crate::work::turn::{POSTGRES, SETTINGS, Side, Turn, install, take};
use crate::work::{Load, Role};
use crate::{Bench, no_such_case};

/// Measure how fast due rows go through their stages, for Postrider and for a tuned poller, turn by turn.
#[derive(Debug, clap::Parser)]
#[command(name = "stages")]
pub struct Stages {
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
    /// Rows that are due when a turn begins.
    #[arg(long, default_value_t = 50_000)]
    rows: u64,
    /// Calls of one stage that ours may have in flight at once; the poller has four batches of 200.
    #[arg(long, default_value_t = 1_000)]
    concurrency: u32,
    /// Only the case of this name.
    #[arg(long)]
    case: Option<String>,
}

/// One kind of work.
struct Case {
    name: &'static str,
    /// The same with our own transitions in the log.
    loud_name: Option<&'static str>,
    stages: u32,
    history: bool,
    goals: Goals,
    loud_goals: Goals,
}

/// The least ratios to the poller.
#[derive(Clone, Copy)]
struct Goals {
    rate: Option<f64>,
    cpu: Option<f64>,
    wal: Option<f64>,
    /// In per cent.
    hot: Option<f64>,
}

const NO_GOALS: Goals = Goals { rate: None, cpu: None, wal: None, hot: None };

/// The rate is to be the poller's at least, whether the history is on or off. What it costs is told of the work table alone: both sides write the
/// same history.
const CASES: [Case; 4] = [
    Case {
        name: "1 stage",
        loud_name: Some("1 stage, not quiet"),
        stages: 1,
        history: false,
        goals: Goals { rate: Some(1.0), cpu: Some(1.0 / 0.8), wal: Some(1.0 / 0.65), hot: Some(HOT_PER_CENT) },
        loud_goals: NO_GOALS,
    },
    Case {
        name: "4 stages",
        loud_name: Some("4 stages, not quiet"),
        stages: 4,
        history: false,
        goals: Goals { rate: Some(1.0), cpu: Some(1.0 / 0.5), wal: Some(1.0 / 0.45), hot: Some(HOT_PER_CENT) },
        loud_goals: Goals { rate: Some(1.0), cpu: Some(1.0 / 0.7), ..NO_GOALS },
    },
    Case {
        name: "1 stage, history",
        loud_name: None,
        stages: 1,
        history: true,
        goals: Goals { rate: Some(1.0), ..NO_GOALS },
        loud_goals: NO_GOALS,
    },
    Case {
        name: "4 stages, history",
        loud_name: None,
        stages: 4,
        history: true,
        goals: Goals { rate: Some(1.0), ..NO_GOALS },
        loud_goals: NO_GOALS,
    },
];

const HOT_PER_CENT: f64 = 95.0;

const SIDES: [Side; 3] = [Side::Quiet, Side::Loud, Side::Poller];

/// All turns of one case.
type Turns = HashMap<Side, Vec<Turn>>;

/// One of the values of a turn.
type Measured = fn(&Turn) -> f64;

impl Bench for Stages {
    fn run(self) -> Result<()> {
        // As `postrider run` has it, and it is enough for all.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context(|| "cannot start the runtime")?;
        match self.role {
            Some(role) => runtime.block_on(role.run()),
            None => runtime.block_on(compare(&self.options)),
        }
    }
}

async fn compare(options: &Options) -> Result<()> {
    let wanted = |case: &&Case| options.case.as_deref().is_none_or(|only| only == case.name);
    let cases: Vec<&Case> = CASES.iter().filter(wanted).collect();
    if cases.is_empty() {
        return Err(no_such_case(CASES.iter().map(|case| case.name)));
    }
    let server = Server::start_version(Some(POSTGRES), &SETTINGS).await?;
    install(&server).await?;
    let version = server.cluster.installation().version();
    let settings = format!(
        "{}; {} rows; ours: {} calls of a stage at once; poller: 4 loops, batches of 200",
        Server::describe(version, &SETTINGS),
        options.rows,
        options.concurrency
    );
    let report = Report::begin("stages", options.json, settings);
    let mut figures = Vec::new();
    for case in cases {
        let turns = take_turns(&server, case, options).await?;
        figures.extend(figures_of(case.name, case.goals, Side::Quiet, &turns));
        if let Some(name) = case.loud_name {
            figures.extend(figures_of(name, case.loud_goals, Side::Loud, &turns));
        }
    }
    report.finish(&figures);
    Ok(())
}

async fn take_turns(server: &Server, case: &Case, options: &Options) -> Result<Turns> {
    let Options { rows, concurrency, .. } = *options;
    let load = Load { rows, stages: case.stages, history: case.history, concurrency, call_ms: 0 };
    let mut turns = Turns::new();
    for run in 1..=options.runs {
        for side in order(SIDES, run).into_iter().filter(|side| *side != Side::Loud || case.loud_name.is_some()) {
            let turn = take(server, side, load).await?;
            eprintln!("run {run}     {:<18} {:<22} {}", case.name, side.name(), turn.say());
            turns.entry(side).or_default().push(turn);
        }
    }
    Ok(turns)
}

fn figures_of(case: &str, goals: Goals, ours: Side, turns: &Turns) -> Vec<Figure> {
    let of = |side: Side, value: Measured| -> Vec<f64> {
        turns.get(&side).map(|turns| turns.iter().map(value).collect()).unwrap_or_default()
    };
    let values: [(&'static str, Better, Measured, Option<Goal>); 6] = [
        ("transitions/s", Better::More, |turn| turn.per_second, goals.rate.map(Goal::Ratio)),
        ("server cpu us", Better::Less, |turn| turn.cpu_us, goals.cpu.map(Goal::Ratio)),
        ("wal bytes", Better::Less, |turn| turn.wal_bytes, goals.wal.map(Goal::Ratio)),
        ("commits", Better::Less, |turn| turn.commits, None),
        ("dead tuples", Better::Less, |turn| turn.dead_tuples, None),
        ("hot share", Better::More, |turn| turn.hot_share, goals.hot.map(Goal::AtLeast)),
    ];
    let figure = |(unit, better, value, goal)| Figure {
        case: case.into(),
        unit,
        better,
        ours: of(ours, value),
        other_name: Side::Poller.name(),
        other: of(Side::Poller, value),
        goal,
        extra: Map::new(),
    };
    values.into_iter().map(figure).collect()
}
