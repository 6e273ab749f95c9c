//! `latency`: from the return of a commit to the stage's request at its endpoint, the durable claim included.

use std::collections::HashMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Map, json};
use tokio::time::{sleep, sleep_until, timeout};
use tokio_postgres::Statement;
use xtask::error::{Context, Error, Result};

use crate::Bench;
use crate::endpoint::{Endpoint, Manner};
use crate::figure::{Better, Figure, Goal, Report};
use crate::measure::{median, percentile};
use crate::process::{Running, cpu_of_server};
use crate::product;
use crate::server::Server;
use crate::turn::order;

mod poller;

/// Measure commit to request for Postrider, a poller woken by NOTIFY and one woken each second, turn by turn.
#[derive(Debug, clap::Parser)]
#[command(name = "latency")]
pub struct Latency {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// A poller, as a process of its own.
    #[command(hide = true)]
    Poll(poller::Poll),
}

#[derive(Debug, Args)]
struct Options {
    /// One JSON object a line on stdout for each figure.
    #[arg(long)]
    json: bool,
    /// How many turns each side has.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// How long a turn is.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Commits a second, with random gaps.
    #[arg(long, default_value_t = 200.0)]
    rate: f64,
    /// Only these sides; ours is `postrider`.
    #[arg(long)]
    side: Vec<String>,
}

/// Who finds the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Side {
    Postrider,
    /// A poller that is woken by each insert.
    Notify,
    /// The same, and it looks again while a batch is under way.
    Pipelined,
    /// The same poller as [`Side::Notify`], woken once a second.
    Second,
    /// Nobody: what the inserts alone cost the server.
    Nobody,
}

/// What one turn of one side gave.
#[derive(Clone, Copy, Debug)]
struct Turn {
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    /// Of the server, for each row.
    cpu_us: f64,
}

/// One of the values of a turn.
type Measured = fn(&Turn) -> f64;

const SIDES: [Side; 5] = [Side::Postrider, Side::Notify, Side::Pipelined, Side::Second, Side::Nobody];

const SETTINGS: [(&str, &str); 2] = [("synchronous_commit", "on"), ("shared_buffers", "256MB")];

/// Rows before each turn, so that connections are open and statements prepared; all have been requested when the turn begins.
const WARM_UP_ROWS: usize = 100;

/// How long a row may take to be requested.
const PATIENCE: Duration = Duration::from_secs(30);

/// The last checkpoints belong to a turn, too.
const SETTLE: Duration = Duration::from_millis(100);

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::Postrider => "postrider",
            Self::Notify => "LISTEN/NOTIFY poller",
            Self::Pipelined => "pipelined LISTEN/NOTIFY poller",
            Self::Second => "1 s poller",
            Self::Nobody => "nobody",
        }
    }

    fn table(self) -> &'static str {
        match self {
            Self::Postrider => "pending_work",
            Self::Notify => "notify_work",
            Self::Pipelined => "pipelined_work",
            Self::Second => "second_work",
            Self::Nobody => "nobody_work",
        }
    }
}

impl Bench for Latency {
    fn run(self) -> Result<()> {
        // One thread: what says that a commit has returned and what stamps it must not wait for each other.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context(|| "cannot start the runtime")?;
        match self.role {
            Some(Role::Poll(poll)) => runtime.block_on(poll.run()),
            None => runtime.block_on(compare(&self.options)),
        }
    }
}

async fn compare(options: &Options) -> Result<()> {
    let server = Server::start(&SETTINGS).await?;
    let version = server.cluster.installation().version();
    let report = Report::begin("latency", options.json, Server::describe(version, &SETTINGS));
    install_peers(&server).await?;
    let endpoint = Endpoint::start(Manner::Prompt)?;
    write_configuration(&server, &endpoint)?;
    product::set_up(server.cluster.home_dir())?;
    let wanted =
        |side: Side| options.side.is_empty() || options.side.iter().any(|name| side.name().contains(name.as_str()));
    let mut turns: HashMap<Side, Vec<Turn>> = HashMap::new();
    for run in 1..=options.runs {
        for side in order(SIDES, run).into_iter().filter(|side| wanted(*side)) {
            let turn = take_turn(&server, &endpoint, side, options).await?;
            eprintln!(
                "run {run}     {:<22} p50 {:.3} ms, p99 {:.3} ms, max {:.3} ms, server {:.0} us a row",
                side.name(),
                turn.p50_ms,
                turn.p99_ms,
                turn.max_ms,
                turn.cpu_us
            );
            turns.entry(side).or_default().push(turn);
        }
    }
    report.finish(&figures(&turns, options.rate));
    Ok(())
}

fn figures(turns: &HashMap<Side, Vec<Turn>>, rate: f64) -> Vec<Figure> {
    let of = |side: Side, value: Measured| -> Vec<f64> {
        turns.get(&side).map(|turns| turns.iter().map(value).collect()).unwrap_or_default()
    };
    let mut extra = Map::new();
    extra.insert("bare_insert_cpu_us".into(), json!(median(&of(Side::Nobody, |turn| turn.cpu_us)).round()));
    let mut figures = Vec::new();
    for other in [Side::Notify, Side::Pipelined, Side::Second] {
        let against_notify = other == Side::Notify;
        let goals =
            [against_notify.then_some(Goal::Ratio(1.0 / 1.3)), against_notify.then_some(Goal::Ratio(2.0)), None];
        let values: [(&'static str, Measured); 3] =
            [("p50 ms", |turn| turn.p50_ms), ("p99 ms", |turn| turn.p99_ms), ("server cpu us", |turn| turn.cpu_us)];
        for ((unit, value), goal) in values.into_iter().zip(goals) {
            figures.push(Figure {
                case: format!("{rate}/s"),
                unit,
                better: Better::Less,
                ours: of(Side::Postrider, value),
                other_name: other.name(),
                other: of(other, value),
                goal,
                extra: extra.clone(),
            });
        }
    }
    figures
}

/// Starts the side, lets it find the rows of one turn, and stops it.
async fn take_turn(server: &Server, endpoint: &Endpoint, side: Side, options: &Options) -> Result<Turn> {
    let mut running = start(server, endpoint, side)?;
    let insert = format!(
        "INSERT INTO {} (group_id, quote_id, stage, payload) VALUES ('g', $1, 'PRICING', '{{\"premium\": 100.50}}')",
        side.table()
    );
    let insert = server.client.prepare(&insert).await.context(|| "cannot prepare the insert")?;
    endpoint.arrivals().clear();
    let gap = Duration::from_secs_f64(1.0 / options.rate);
    let warm_up = commit(server, &insert, WARM_UP_ROWS, gap).await?;
    wait_for(endpoint, &mut running, warm_up.len()).await?;
    endpoint.arrivals().clear();
    let rows = (options.seconds * options.rate) as usize;
    let postmaster = server.postmaster()?;
    let cpu_before = cpu_of_server(postmaster);
    let commits = commit(server, &insert, rows, gap).await?;
    wait_for(endpoint, &mut running, rows).await?;
    sleep(SETTLE).await;
    let cpu = cpu_of_server(postmaster) - cpu_before;
    if let Some(running) = running {
        check_closed(server, side).await?;
        running.stop()?;
    }
    let arrivals = std::mem::take(&mut *endpoint.arrivals());
    let waits: Vec<f64> = commits
        .iter()
        .filter_map(|(quote, returned)| Some(arrivals.get(quote)?.saturating_duration_since(*returned)))
        .map(|wait| wait.as_secs_f64() * 1e3)
        .collect();
    Ok(Turn {
        p50_ms: percentile(&waits, 0.5),
        p99_ms: percentile(&waits, 0.99),
        max_ms: percentile(&waits, 1.0),
        cpu_us: cpu.as_secs_f64() * 1e6 / rows as f64,
    })
}

/// Commits rows one by one, each in a transaction of its own, with gaps as of independent users: exponentially spread. Returns when each commit
/// had returned.
async fn commit(server: &Server, insert: &Statement, rows: usize, gap: Duration) -> Result<Vec<(String, Instant)>> {
    let mut commits = Vec::with_capacity(rows);
    let mut at = tokio::time::Instant::now();
    for _ in 0..rows {
        at += gap.mul_f64(-fastrand::f64().max(f64::MIN_POSITIVE).ln());
        sleep_until(at).await;
        let quote = format!("{:016x}", fastrand::u64(..));
        server.client.execute(insert, &[&quote]).await.context(|| "cannot commit a row")?;
        commits.push((quote, Instant::now()));
    }
    Ok(commits)
}

/// Waits until so many rows have been requested, if somebody is to request them.
async fn wait_for(endpoint: &Endpoint, running: &mut Option<Running>, rows: usize) -> Result<()> {
    let Some(running) = running else { return Ok(()) };
    if timeout(PATIENCE, endpoint.wait_for(rows)).await.is_err() {
        running.still_runs()?;
        let came = endpoint.arrivals().len();
        return Err(Error::new(format!("{came} of {rows} rows were requested within {PATIENCE:?}")));
    }
    Ok(())
}

/// Every row's stage was checkpointed: the side did all of its work.
async fn check_closed(server: &Server, side: Side) -> Result<()> {
    let open = format!("SELECT count(*)::text FROM {} WHERE closed_at IS NULL", side.table());
    let deadline = Instant::now() + PATIENCE;
    while server.text(&open).await? != "0" {
        if Instant::now() > deadline {
            return Err(Error::new(format!("{} left rows open", side.name())));
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn start(server: &Server, endpoint: &Endpoint, side: Side) -> Result<Option<Running>> {
    let wake = match side {
        Side::Postrider => return product::start(server.cluster.home_dir()).map(Some),
        Side::Notify | Side::Pipelined => "notify",
        Side::Second => "second",
        Side::Nobody => return Ok(None),
    };
    let mut command = Command::new(std::env::current_exe().context(|| "cannot find this program")?);
    command.args(["poll", "--url", &server.url(), "--table", side.table(), "--wake", wake]);
    command.args(["--endpoint", &format!("http://{}/stages/pricing", endpoint.address)]);
    if side == Side::Pipelined {
        command.arg("--pipelined");
    }
    command.stdin(Stdio::null());
    Running::start(side.name(), &mut command).map(Some)
}

/// The pollers' tables: the columns of ours, and the index that a poller needs instead.
async fn install_peers(server: &Server) -> Result<()> {
    for side in [Side::Notify, Side::Pipelined, Side::Second, Side::Nobody] {
        let table = side.table();
        server
            .execute(&format!(
                "CREATE TABLE {table} (LIKE pending_work INCLUDING DEFAULTS, PRIMARY KEY (group_id, quote_id)) WITH (fillfactor = 50);
                 CREATE INDEX ON {table} (created_at) WHERE stage_state IN ('PENDING', 'RETRY')"
            ))
            .await?;
    }
    let wake = format!(
        "CREATE FUNCTION wake_poller() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('{}', ''); RETURN NULL; END $$",
        poller::CHANNEL
    );
    server.execute(&wake).await?;
    for side in [Side::Notify, Side::Pipelined] {
        let table = side.table();
        server
            .execute(&format!(
                "CREATE TRIGGER wake_poller AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION wake_poller()"
            ))
            .await?;
    }
    Ok(())
}

fn write_configuration(server: &Server, endpoint: &Endpoint) -> Result<()> {
    let home = server.cluster.home_dir();
    let text = format!(
        r#"[source]
url = "{}"

[journal]
dir = "{}"

[work]
table = "public.pending_work"

[[work.stage]]
name = "PRICING"
url = "http://{}/stages/pricing"
class = "natural"

[server]
listen = "{}"
"#,
        server.url(),
        home.join("journal").display(),
        endpoint.address,
        product::free_address()?,
    );
    fs::write(home.join(product::CONFIGURATION), text).context(|| "cannot write the configuration")
}
