//! `drain`: how fast a backlog is read, decoded, made durable and confirmed, and what that costs the reader.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use xtask::error::{Context, Error, Result};

use crate::backlog::{self, Load};
use crate::figure::{Better, Figure, Goal, Report};
use crate::measure::{Tally, median};
use crate::process::{cpu_of_ended_children, cpu_of_server};
use crate::recvlogical::{self, Format};
use crate::server::Server;
use crate::turn::{SIDES, Side, order};
use crate::{Bench, no_such_case};

mod reader;

/// Drain a backlog with Postrider's walk and with `pg_recvlogical`, turn by turn.
#[derive(Debug, clap::Parser)]
#[command(name = "drain")]
pub struct Drain {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Our side, as a process of its own.
    #[command(hide = true)]
    Read(reader::Read),
}

#[derive(Debug, Args)]
struct Options {
    /// One JSON object a line on stdout for each figure.
    #[arg(long)]
    json: bool,
    /// How often each side drains each backlog.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// The size of the backlogs, 1 being the one that the goals are for.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Only the case of this name.
    #[arg(long)]
    case: Option<String>,
    /// The server's major version, 14 to 18; else that of the first installation that is found.
    #[arg(long)]
    postgres: Option<u32>,
}

/// One kind of backlog.
struct Case {
    name: &'static str,
    load: Load,
    /// Both sides read large transactions while they are in progress, as `postrider run` does unless told otherwise.
    streaming: bool,
    least_speed_ratio: Option<f64>,
    least_cpu_ratio: Option<f64>,
}

const CASES: [Case; 5] = [
    case("1 row", load(1_000_000, 1), Some(2.5), Some(LEAST_CPU_RATIO)),
    case("10 rows", load(100_000, 10), None, None),
    case("1000 rows", load(2_000, 1_000), Some(1.8), Some(LEAST_CPU_RATIO)),
    Case { streaming: false, ..case("500000 rows", load(1, 500_000), Some(1.6), None) },
    case("500000 rows streamed", load(1, 500_000), Some(2.4), None),
];

/// The reader is to need at most a fifth of the other's processor time.
const LEAST_CPU_RATIO: f64 = 5.0;

/// Nothing but the backlog is to move while it is read. The log says what a reader asked for.
const SETTINGS: [(&str, &str); 5] = [
    ("autovacuum", "off"),
    ("max_wal_size", "16GB"),
    ("checkpoint_timeout", "1h"),
    ("shared_buffers", "256MB"),
    ("log_replication_commands", "on"),
];

const OUR_SLOT: &str = "ours";

/// One drain of one side.
#[derive(Clone, Copy, Debug, Default)]
struct Drained {
    wall: Duration,
    cpu: Duration,
    server_cpu: Duration,
}

const fn case(name: &'static str, load: Load, least_speed_ratio: Option<f64>, least_cpu_ratio: Option<f64>) -> Case {
    Case { name, load, streaming: true, least_speed_ratio, least_cpu_ratio }
}

const fn load(transactions: u64, rows_each: u64) -> Load {
    Load { transactions, rows_each, padding_bytes: 0 }
}

impl Bench for Drain {
    fn run(self) -> Result<()> {
        match self.role {
            Some(Role::Read(read)) => read.run(),
            None => {
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
                runtime.context(|| "cannot start the runtime")?.block_on(compare(&self.options))
            }
        }
    }
}

async fn compare(options: &Options) -> Result<()> {
    let mut report = None;
    let mut figures = Vec::new();
    for case in CASES.iter().filter(|case| options.case.as_deref().is_none_or(|only| only == case.name)) {
        let server = Server::start_version(options.postgres, &SETTINGS).await?;
        report.get_or_insert_with(|| {
            let version = server.cluster.installation().version();
            let ours = "ours: engine, journal with fsync, a follower that decodes every row";
            let other = "other: pg_recvlogical -o proto_version=2 -o binary=true -o streaming=on -f /dev/null, without streaming where ours is";
            let settings = format!("{}; {ours}; {other}", Server::describe(version, &SETTINGS));
            Report::begin("drain", options.json, settings)
        });
        figures.extend(drain_case(&server, case, options).await?);
    }
    let report = report.ok_or_else(|| no_such_case(CASES.iter().map(|case| case.name)))?;
    report.finish(&figures);
    Ok(())
}

async fn drain_case(server: &Server, case: &Case, options: &Options) -> Result<[Figure; 2]> {
    let load = case.load.scaled(options.scale);
    backlog::begin(server).await?;
    backlog::write(server, load).await?;
    let end = backlog::end(server).await?;
    eprintln!("backlog   {}: {} rows, up to {end}", case.name, load.rows());
    // The first drain of all is for comparison, and warms the server's caches for both sides.
    let (reference, to_file) = drain_to_file(server, &end).await?;
    if reference.rows != load.rows() {
        return Err(Error::new(format!("{} saw {} of {} rows", recvlogical::NAME, reference.rows, load.rows())));
    }
    let (format, contrast) =
        if case.streaming { (Format::Fastest, Format::Whole) } else { (Format::Whole, Format::Fastest) };
    let null = Path::new("/dev/null");
    let (mut ours, mut other) = (Vec::new(), Vec::new());
    for run in 1..=options.runs {
        for side in order(SIDES, run) {
            match side {
                Side::Ours => {
                    let (tally, drained) = drain_ours(server, &end, case.streaming).await?;
                    if tally != reference {
                        return Err(Error::new(format!("the sides read different rows: {tally:?} and {reference:?}")));
                    }
                    ours.push(drained);
                }
                Side::Other => other.push(drain_other(server, &end, null, format).await?),
            }
        }
        eprintln!("run {run}     ours {}, other {}", say(ours.last()), say(other.last()));
    }
    let mut figures = figures(case, load, [&ours, &other], to_file);
    if load.transactions == 1 {
        let contrast = drain_other(server, &end, null, contrast).await?;
        eprintln!("other     the other way, once: {}", say(Some(&contrast)));
        let speed = load.rows() as f64 / contrast.wall.as_secs_f64();
        figures[0].extra.insert("other_the_other_way_once".into(), json!((speed * 1e3).round() / 1e3));
    }
    let plugin = plugin_options(&server.cluster.read_log()?, OUR_SLOT)?;
    eprintln!("ours      {plugin}");
    for figure in &mut figures {
        figure.extra.insert("ours_plugin_options".into(), json!(plugin));
    }
    Ok(figures)
}

fn figures(case: &Case, load: Load, [ours, other]: [&[Drained]; 2], to_file: Drained) -> [Figure; 2] {
    let rows = load.rows() as f64;
    let speed = |all: &[Drained]| all.iter().map(|one| rows / one.wall.as_secs_f64()).collect();
    let cpu = |all: &[Drained]| all.iter().map(|one| one.cpu.as_secs_f64()).collect();
    let server_cpu =
        |all: &[Drained]| json!(median(&all.iter().map(|one| one.server_cpu.as_secs_f64()).collect::<Vec<_>>()));
    let extra = |to_file: f64| {
        let members = [
            ("rows", json!(load.rows())),
            ("other_to_file_once", json!((to_file * 1e3).round() / 1e3)),
            ("ours_server_cpu_s", server_cpu(ours)),
            ("other_server_cpu_s", server_cpu(other)),
        ];
        members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>()
    };
    [
        Figure {
            case: case.name.into(),
            unit: "events/s",
            better: Better::More,
            ours: speed(ours),
            other_name: recvlogical::NAME,
            other: speed(other),
            goal: case.least_speed_ratio.map(Goal::Ratio),
            extra: extra(rows / to_file.wall.as_secs_f64()),
        },
        Figure {
            case: case.name.into(),
            unit: "reader cpu s",
            better: Better::Less,
            ours: cpu(ours),
            other_name: recvlogical::NAME,
            other: cpu(other),
            goal: case.least_cpu_ratio.map(Goal::Ratio),
            extra: extra(to_file.cpu.as_secs_f64()),
        },
    ]
}

/// Our side: the engine with its journal, and a follower, in a process that ends once all is confirmed.
async fn drain_ours(server: &Server, end: &str, streaming: bool) -> Result<(Tally, Drained)> {
    backlog::copy_slot(server, OUR_SLOT).await?;
    let journal = fresh(server.cluster.home_dir().join("journal"))?;
    let mut command = Command::new(std::env::current_exe().context(|| "cannot find this program")?);
    command.args(["read", "--url", &server.url(), "--slot", OUR_SLOT, "--end", end, "--journal"]).arg(&journal);
    if streaming {
        command.arg("--streaming");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let server_cpu_before = cpu_of_server(server.postmaster()?);
    let (mut drained, said) = timed(&mut command)?;
    backlog::check_and_drop_slot(server, OUR_SLOT, end).await?;
    drained.server_cpu = cpu_of_server(server.postmaster()?).saturating_sub(server_cpu_before);
    fs::remove_dir_all(&journal).context(|| "cannot remove the journal")?;
    let said: Value = serde_json::from_slice(&said).context(|| "the reader did not say what it read")?;
    let number = |key: &str| said[key].as_u64().unwrap_or(0);
    let tally = Tally { rows: number("rows"), values: number("values"), checksum: number("checksum") };
    Ok((tally, drained))
}

async fn drain_other(server: &Server, end: &str, output: &Path, format: Format) -> Result<Drained> {
    const SLOT: &str = "other";
    backlog::copy_slot(server, SLOT).await?;
    let server_cpu_before = cpu_of_server(server.postmaster()?);
    let (mut drained, _) = timed(&mut recvlogical::command(server, SLOT, end, output, format))?;
    backlog::check_and_drop_slot(server, SLOT, end).await?;
    drained.server_cpu = cpu_of_server(server.postmaster()?).saturating_sub(server_cpu_before);
    Ok(drained)
}

/// The other side into a file, which it syncs, in the same format as ours: what both are to have read.
async fn drain_to_file(server: &Server, end: &str) -> Result<(Tally, Drained)> {
    let output = server.cluster.home_dir().join("recvlogical.out");
    File::create(&output).context(|| "cannot make the output file")?;
    let drained = drain_other(server, end, &output, Format::Comparable).await?;
    let tally = recvlogical::tally(&output)?;
    fs::remove_file(&output).context(|| "cannot remove the output file")?;
    Ok((tally, drained))
}

/// What a slot's last reader asked the output plugin for, by the server's log.
fn plugin_options(log: &str, slot: &str) -> Result<String> {
    let asked = format!("START_REPLICATION SLOT \"{slot}\" ");
    let options = log.lines().rev().filter_map(|line| line.split_once(&asked)?.1.split_once('('));
    let found = options.map(|(_, options)| options.trim_end_matches(')').to_owned()).next();
    found.ok_or_else(|| Error::new("the server's log does not say what was asked for"))
}

/// From the start of a process to its end, and what it printed.
fn timed(command: &mut Command) -> Result<(Drained, Vec<u8>)> {
    let cpu_before = cpu_of_ended_children();
    let began = Instant::now();
    let output = command.stderr(Stdio::inherit()).output().context(|| "cannot start a side")?;
    let wall = began.elapsed();
    if !output.status.success() {
        return Err(Error::new(format!("a side failed ({})", output.status)));
    }
    let cpu = cpu_of_ended_children() - cpu_before;
    Ok((Drained { wall, cpu, ..Drained::default() }, output.stdout))
}

fn fresh(dir: PathBuf) -> Result<PathBuf> {
    if dir.exists() {
        fs::remove_dir_all(&dir).context(|| "cannot remove the journal of the run before")?;
    }
    Ok(dir)
}

fn say(drained: Option<&Drained>) -> String {
    let Drained { wall, cpu, server_cpu } = drained.copied().unwrap_or_default();
    let [wall, cpu, server_cpu] = [wall, cpu, server_cpu].map(|time| time.as_secs_f64());
    format!("{wall:.2} s, processor {cpu:.2} s, server's {server_cpu:.2} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_what_the_last_reader_of_a_slot_asked_for() {
        let line = |slot: &str, version: u32| {
            format!(
                "2026-01-01 [7] STATEMENT:  START_REPLICATION SLOT \"{slot}\" LOGICAL 0/AB (proto_version '{version}', \
                 publication_names '\"postrider\"')\n"
            )
        };
        let log = [line("ours", 1), line("ours", 2), line("other", 4), "2026-01-01 [7] LOG:  (\n".into()].concat();
        assert_eq!(plugin_options(&log, "ours").unwrap(), "proto_version '2', publication_names '\"postrider\"'");
        assert!(plugin_options(&log, "our").is_err());
    }
}
