//! `stages`: rows that are due until the last stage of the last of them is done, and what that costs the server.

use std::collections::HashMap;

use clap::Args;
use serde_json::Map;
use xtask::error::Result;

use crate::figure::{Better, Figure, Goal, Report};
use crate::peers::{Peer, Peers, Wanted};
use crate::server::Server;
use crate::turn::order;
use crate::work::turn::{POSTGRES, SETTINGS, Side, Turn, install, take};
use crate::work::{Load, Role, peer, run_role};
use crate::{Bench, no_such_case};

/// Measure how fast due rows go through their stages, for Postrider, for a tuned poller and for job queues of others, turn by turn.
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
    #[arg(long, default_value_t = 2_000)]
    concurrency: u32,
    /// Only the case of this name.
    #[arg(long)]
    case: Option<String>,
    #[command(flatten)]
    peers: Wanted,
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

/// The least ratios to one of the other sides.
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

const OWN_SIDES: [Side; 3] = [Side::Quiet, Side::Loud, Side::Poller];

/// All turns of one case.
type Turns = HashMap<Side, Vec<Turn>>;

/// One of the values of a turn.
type Measured = fn(&Turn) -> f64;

impl Bench for Stages {
    fn run(self) -> Result<()> {
        run_role(self.role, compare(&self.options))
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
    let peers = options.peers.install(|_| cases.iter().any(|case| !case.history))?;
    for one in &peers.installed {
        peer::set_up(&server, *one)?;
    }
    let version = server.cluster.installation().version();
    let settings = format!(
        "{}; {} rows; ours: {} calls of a stage at once; poller: 4 loops, batches of 200; {}",
        Server::describe(version, &SETTINGS),
        options.rows,
        options.concurrency,
        peers.say()
    );
    let report = Report::begin("stages", options.json, settings);
    let mut figures = Vec::new();
    for case in cases {
        let turns = take_turns(&server, case, &peers, options).await?;
        let quiet = Pair { case: case.name, ours: Side::Quiet, other: Side::Poller };
        figures.extend(figures_of(&quiet, case.goals, &turns));
        for one in case.peers(&peers) {
            let quiet = Pair { other: Side::Peer(one), ..quiet };
            figures.extend(figures_of(&quiet, goals_beside(one), &turns));
        }
        if let Some(name) = case.loud_name {
            let loud = Pair { case: name, ours: Side::Loud, other: Side::Poller };
            figures.extend(figures_of(&loud, case.loud_goals, &turns));
        }
    }
    report.finish(&figures);
    Ok(())
}

impl Case {
    /// A queue of others keeps no history of ours.
    fn peers(&self, peers: &Peers) -> Vec<Peer> {
        if self.history { Vec::new() } else { peers.installed.clone() }
    }

    fn sides(&self, peers: &Peers) -> Vec<Side> {
        let own = OWN_SIDES.into_iter().filter(|side| *side != Side::Loud || self.loud_name.is_some());
        own.chain(self.peers(peers).into_iter().map(Side::Peer)).collect()
    }
}

/// The rate alone has a goal beside a queue of others.
fn goals_beside(peer: Peer) -> Goals {
    let rate = match peer {
        Peer::GraphileWorker => 3.5,
        Peer::Awa => 4.0,
    };
    Goals { rate: Some(rate), ..NO_GOALS }
}

async fn take_turns(server: &Server, case: &Case, peers: &Peers, options: &Options) -> Result<Turns> {
    let Options { rows, concurrency, .. } = *options;
    let load = Load { rows, stages: case.stages, history: case.history, concurrency, call_ms: 0 };
    let mut turns = Turns::new();
    for run in 1..=options.runs {
        for side in order(case.sides(peers), run) {
            let turn = take(server, side, load).await?;
            eprintln!("run {run}     {:<18} {:<22} {}", case.name, side.name(), turn.say());
            turns.entry(side).or_default().push(turn);
        }
    }
    Ok(turns)
}

/// Two sides of one case.
struct Pair {
    case: &'static str,
    ours: Side,
    other: Side,
}

/// Figures that one of the sides has not are left out.
fn figures_of(pair: &Pair, goals: Goals, turns: &Turns) -> Vec<Figure> {
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
        case: pair.case.into(),
        unit,
        better,
        ours: of(pair.ours, value),
        other_name: pair.other.name(),
        other: of(pair.other, value),
        goal,
        extra: Map::new(),
    };
    let is_whole = |figure: &Figure| figure.other.iter().chain(&figure.ours).all(|value| !value.is_nan());
    values.into_iter().map(figure).filter(is_whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_of_others_takes_part_where_no_history_is_kept() {
        let mut peers = Peers::default();
        peers.installed.push(Peer::GraphileWorker);
        for case in &CASES {
            let sides = case.sides(&peers);
            assert_eq!(sides.contains(&Side::Peer(Peer::GraphileWorker)), !case.history, "{}", case.name);
            assert_eq!(sides.contains(&Side::Loud), !case.history, "{}", case.name);
            assert_eq!(sides[0], Side::Quiet);
        }
    }

    #[test]
    fn a_figure_that_a_side_has_not_is_left_out() {
        let turn = |hot_share| Turn {
            per_second: 1.0,
            cpu_us: 1.0,
            wal_bytes: 1.0,
            commits: 1.0,
            dead_tuples: 1.0,
            hot_share,
            peak: 1.0,
        };
        let other = Side::Peer(Peer::GraphileWorker);
        let pair = Pair { case: "1 stage", ours: Side::Quiet, other };
        for (hot_share, figures) in [(0.0, 6), (f64::NAN, 5)] {
            let turns = Turns::from([(Side::Quiet, vec![turn(100.0)]), (other, vec![turn(hot_share)])]);
            assert_eq!(figures_of(&pair, NO_GOALS, &turns).len(), figures);
        }
    }
}
