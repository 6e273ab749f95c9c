//! `memory`: the most memory the product has while it drains gigabytes and one of its sinks takes nothing.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Map, json};
use tokio::time::sleep;
use xtask::error::{Context, Error, Result};

use crate::backlog::{self, Load};
use crate::endpoint::{Endpoint, Manner};
use crate::figure::{Better, Figure, Goal, Report};
use crate::process::{Running, peak_resident};
use crate::product;
use crate::recvlogical::{self, Format};
use crate::server::{PUBLICATION, Server};
use crate::turn::{SIDES, Side, order};
use crate::{Bench, no_such_case};

/// Measure the peak of resident memory of `postrider run` and of `pg_recvlogical`, turn by turn.
#[derive(Debug, clap::Parser)]
#[command(name = "memory")]
pub struct Memory {
    /// One JSON object a line on stdout for each figure.
    #[arg(long)]
    json: bool,
    /// How often each side drains the backlog.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// The size of the backlog, 1 being the one that the goal is for.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// The case of this name; without it those that do not take long.
    #[arg(long)]
    case: Option<String>,
}

/// One backlog.
struct Case {
    name: &'static str,
    /// What is written, in this order.
    loads: &'static [Load],
    /// It takes far more than three minutes: only where it is asked for.
    long: bool,
    /// How long one drain may take.
    patience: Duration,
}

/// Rows of about a kilobyte, in the log as well as in what is sent.
const PADDING_BYTES: u64 = 750;

const fn load(transactions: u64, rows_each: u64) -> Load {
    Load { transactions, rows_each, padding_bytes: PADDING_BYTES }
}

const CASES: [Case; 2] = [
    // 300 MB in transactions of a thousand rows on both sides of 400 MB in one.
    Case {
        name: "1 GB, one sink blocked",
        loads: &[load(300, 1_000), load(1, 400_000), load(300, 1_000)],
        long: false,
        patience: Duration::from_secs(300),
    },
    Case { name: "5 GB transaction", loads: &[load(1, 5_000_000)], long: true, patience: Duration::from_secs(1_800) },
];

const GOAL_MB: f64 = 64.0;

const SETTINGS: [(&str, &str); 3] = [("autovacuum", "off"), ("max_wal_size", "16GB"), ("checkpoint_timeout", "1h")];

const LOOK_EVERY: Duration = Duration::from_millis(20);

const SLOT: &str = "drained";

/// What was written.
struct Backlog {
    end: String,
    rows: u64,
    wal_bytes: u64,
}

impl Bench for Memory {
    fn run(self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.context(|| "cannot start the runtime")?.block_on(compare(&self))
    }
}

async fn compare(options: &Memory) -> Result<()> {
    let wanted = |case: &&Case| options.case.as_deref().map_or(!case.long, |only| only == case.name);
    let mut report = None;
    let mut figures = Vec::new();
    for case in CASES.iter().filter(wanted) {
        let server = Server::start(&SETTINGS).await?;
        report.get_or_insert_with(|| {
            let version = server.cluster.installation().version();
            let ours = "ours: postrider run, ack=sinks, a required ndjson sink that takes all and an http sink that is never answered";
            Report::begin("memory", options.json, format!("{}; {ours}", Server::describe(version, &SETTINGS)))
        });
        figures.push(measure(&server, case, options).await?);
    }
    let report = report.ok_or_else(|| no_such_case(CASES.iter().map(|case| case.name)))?;
    report.finish(&figures);
    Ok(())
}

async fn measure(server: &Server, case: &Case, options: &Memory) -> Result<Figure> {
    let backlog = write_backlog(server, case, options.scale).await?;
    eprintln!("backlog   {}: {} rows, {} MB of log", case.name, backlog.rows, backlog.wal_bytes / 1_000_000);
    let endpoint = Endpoint::start(Manner::Silent)?;
    write_configuration(server, &endpoint)?;
    let (mut ours, mut other) = (Vec::new(), Vec::new());
    for run in 1..=options.runs {
        for side in order(SIDES, run) {
            match side {
                Side::Ours => ours.push(megabytes(drain_ours(server, &backlog, case.patience).await?)),
                Side::Other => other.push(megabytes(drain_other(server, &backlog.end).await?)),
            }
        }
        eprintln!("run {run}     ours {:.1} MB, other {:.1} MB", ours[run - 1], other[run - 1]);
    }
    let mut extra = Map::new();
    extra.insert("backlog_bytes".into(), json!(backlog.wal_bytes));
    Ok(Figure {
        case: case.name.into(),
        unit: "MB",
        better: Better::Less,
        ours,
        other_name: recvlogical::NAME,
        other,
        goal: Some(Goal::AtMost(GOAL_MB)),
        extra,
    })
}

async fn write_backlog(server: &Server, case: &Case, scale: f64) -> Result<Backlog> {
    backlog::begin(server).await?;
    let before = server.text("SELECT pg_current_wal_lsn()::text").await?;
    let mut rows = 0;
    for load in case.loads {
        let load = load.scaled(scale);
        backlog::write(server, load).await?;
        rows += load.rows();
    }
    let end = backlog::end(server).await?;
    let wal = server.text(&format!("SELECT pg_wal_lsn_diff('{end}', '{before}')::bigint::text")).await?;
    let wal_bytes = wal.parse().context(|| "cannot read the size of the backlog")?;
    Ok(Backlog { end, rows, wal_bytes })
}

/// Drains the backlog with the product, and returns its peak.
async fn drain_ours(server: &Server, backlog: &Backlog, patience: Duration) -> Result<u64> {
    let Backlog { end, rows, .. } = backlog;
    backlog::copy_slot(server, SLOT).await?;
    let home = server.cluster.home_dir();
    let mut running = product::start(home)?;
    let confirmed =
        format!("SELECT (confirmed_flush_lsn >= '{end}')::text FROM pg_replication_slots WHERE slot_name = '{SLOT}'");
    let deadline = Instant::now() + patience;
    while server.text(&confirmed).await? != "true" {
        running.still_runs()?;
        if Instant::now() > deadline {
            return Err(Error::new("the backlog was not confirmed in time"));
        }
        sleep(LOOK_EVERY).await;
    }
    let peak = peak_resident(running.pid()).ok_or_else(|| Error::new("the product's memory cannot be read"))?;
    running.stop()?;
    backlog::check_and_drop_slot(server, SLOT, end).await?;
    let delivered = count_lines(&home.join("events.ndjson"))?;
    if delivered < *rows {
        return Err(Error::new(format!("the sink took {delivered} of {rows} events")));
    }
    fs::remove_file(home.join("events.ndjson")).context(|| "cannot remove the events")?;
    fs::remove_dir_all(home.join("journal")).context(|| "cannot remove the journal")?;
    Ok(peak)
}

/// Drains the backlog with the other, and returns its peak: the last one that was seen.
async fn drain_other(server: &Server, end: &str) -> Result<u64> {
    backlog::copy_slot(server, SLOT).await?;
    let mut command = recvlogical::command(server, SLOT, end, Path::new("/dev/null"), Format::Fastest);
    let mut running = Running::start(recvlogical::NAME, &mut command)?;
    let mut peak = 0;
    let status = loop {
        peak = peak_resident(running.pid()).unwrap_or(0).max(peak);
        if let Some(status) = running.ended()? {
            break status;
        }
        sleep(LOOK_EVERY).await;
    };
    if !status.success() {
        return Err(Error::new(format!("{} failed ({status})", recvlogical::NAME)));
    }
    backlog::check_and_drop_slot(server, SLOT, end).await?;
    Ok(peak)
}

/// Line by line: the file is as large as the backlog.
fn count_lines(path: &Path) -> Result<u64> {
    use std::io::{BufReader, Read as _};
    let file = fs::File::open(path).context(|| "cannot read the events")?;
    let (mut reader, mut buffer, mut lines) = (BufReader::new(file), vec![0; 1 << 16], 0);
    loop {
        let read = reader.read(&mut buffer).context(|| "cannot read the events")?;
        if read == 0 {
            return Ok(lines);
        }
        lines += buffer[..read].iter().filter(|byte| **byte == b'\n').count() as u64;
    }
}

fn write_configuration(server: &Server, endpoint: &Endpoint) -> Result<()> {
    let home = server.cluster.home_dir();
    let text = format!(
        r#"[source]
url = "{}"
slot = "{SLOT}"
publication = "{PUBLICATION}"

[journal]
dir = "{}"

[[outbox]]
table = "public.outbox_event"

[[sink]]
name = "taken"
kind = "ndjson"
path = "{}"

[[sink]]
name = "blocked"
kind = "http"
url = "http://{}/events"
required = false
timeout = "1h"

[server]
listen = "{}"
"#,
        server.url(),
        home.join("journal").display(),
        home.join("events.ndjson").display(),
        endpoint.address,
        product::free_address()?,
    );
    fs::write(home.join(product::CONFIGURATION), text).context(|| "cannot write the configuration")
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
