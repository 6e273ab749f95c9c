//! `latency`: from the return of a commit to the stage's request at its endpoint, the durable claim included.

use std::collections::HashMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum as _};
use futures_util::future::try_join_all;
use serde_json::{Map, json};
use tokio::time::{sleep, sleep_until, timeout};
use tokio_postgres::{Client, Statement};
use xtask::error::{Context, Error, Result};

use crate::endpoint::{Endpoint, Manner};
use crate::figure::{Better, Figure, Goal, Report};
use crate::measure::{median, percentile};
use crate::peers::{Peer, Peers, Wanted};
use crate::process::{Running, cpu_of_server};
use crate::product;
use crate::server::{Server, connect};
use crate::turn::order;
use crate::{Bench, no_such_case};

mod poller;

/// Measure commit to request for Postrider, a poller woken by NOTIFY, one woken each second, and job queues of others, turn by turn.
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
    /// Only the case of this name.
    #[arg(long)]
    case: Option<String>,
    /// Only these sides; ours is `postrider`.
    #[arg(long)]
    side: Vec<String>,
    #[command(flatten)]
    peers: Wanted,
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
    /// A queue of others.
    Peer(Peer),
}

#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    load: Load,
}

/// How much there is to do.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// So many commits a second, from one session.
    Rate(f64),
    /// This share of what the slower of ours and [`Side::Notify`] keeps up with, in per cent.
    Share(f64),
}

/// Commits with random gaps, from some sessions.
struct Commits {
    sessions: usize,
    /// All sessions together; `None`: each commits as fast as it can.
    rate: Option<f64>,
    rows: usize,
}

/// What one turn of one side gave.
#[derive(Clone, Copy, Debug)]
struct Turn {
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    /// Of the server, for each row.
    cpu_us: f64,
    /// Rows a second, from the first commit to the last request.
    per_second: f64,
}

/// One of the values of a turn.
type Measured = fn(&Turn) -> f64;

const OWN_SIDES: [Side; 5] = [Side::Postrider, Side::Notify, Side::Pipelined, Side::Second, Side::Nobody];

const CASES: [Case; 3] = [
    Case { name: "200/s", load: Load::Rate(200.0) },
    Case { name: "50 % of capacity", load: Load::Share(50.0) },
    Case { name: "80 % of capacity", load: Load::Share(80.0) },
];

/// Those that a share of the capacity is for: a poller of one second is not to be compared under load, and the capacity is none of a peer's.
const LOADED_SIDES: [Side; 4] = [Side::Postrider, Side::Notify, Side::Pipelined, Side::Nobody];

/// Where one session could not commit so fast.
const LOADING_SESSIONS: usize = 8;

/// How many rows a side's capacity is measured over.
const CAPACITY_ROWS: usize = 8_000;

const SETTINGS: [(&str, &str); 2] = [("synchronous_commit", "on"), ("shared_buffers", "256MB")];

/// Rows before each turn, so that connections are open and statements prepared; all have been requested when the turn begins.
const WARM_UP_ROWS: usize = 100;

/// A second, where the turn itself has no rate.
const WARM_UP_RATE: f64 = 200.0;

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
            Self::Peer(peer) => peer.name(),
        }
    }

    /// The statement that submits a row, with its quote as the parameter.
    fn insertion(self) -> String {
        if let Self::Peer(peer) = self {
            return peer.insertion().into();
        }
        format!(
            "INSERT INTO {} (group_id, quote_id, stage, payload) VALUES ('g', $1, 'PRICING', '{{\"premium\": 100.50}}')",
            self.table()
        )
    }

    /// A query for how many of so many rows are not closed.
    fn open(self, rows: usize) -> String {
        match self {
            Self::Peer(peer) => format!("SELECT ({})::text", peer.undone(rows as u64)),
            _ => format!("SELECT count(*)::text FROM {} WHERE closed_at IS NULL", self.table()),
        }
    }

    fn table(self) -> &'static str {
        match self {
            Self::Postrider => "pending_work",
            Self::Notify => "notify_work",
            Self::Pipelined => "pipelined_work",
            Self::Second => "second_work",
            Self::Nobody => "nobody_work",
            // It has tables of its own.
            Self::Peer(peer) => peer.schema(),
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
    let cases: Vec<Case> =
        CASES.into_iter().filter(|case| options.case.as_deref().is_none_or(|only| only == case.name)).collect();
    if cases.is_empty() {
        return Err(no_such_case(CASES.iter().map(|case| case.name)));
    }
    let server = Server::start(&SETTINGS).await?;
    let version = server.cluster.installation().version();
    let is_of_use = |peer| cases.iter().any(|case| case.load.is_for_peers()) && options.wants(Side::Peer(peer));
    let peers = options.peers.install(is_of_use)?;
    let settings = format!("{}; {}", Server::describe(version, &SETTINGS), peers.say());
    let report = Report::begin("latency", options.json, settings);
    install_pollers(&server).await?;
    for one in &peers.installed {
        xtask::process::run(&mut one.command("set-up", &one.settings(&server.url()))?)?;
    }
    let endpoint = Endpoint::start(Manner::Prompt)?;
    write_configuration(&server, &endpoint)?;
    product::set_up(server.cluster.home_dir())?;
    let capacity = match cases.iter().any(|case| matches!(case.load, Load::Share(_))) {
        true => capacity(&server, &endpoint).await?,
        false => f64::NAN,
    };
    let mut figures = Vec::new();
    for case in cases {
        let setting = Setting { server: &server, endpoint: &endpoint, peers: &peers, capacity };
        let turns = take_turns(&setting, case, options).await?;
        figures.extend(figures_of(case, capacity, &turns));
    }
    report.finish(&figures);
    Ok(())
}

/// Rows a second that ours and the poller of NOTIFY both keep up with.
async fn capacity(server: &Server, endpoint: &Endpoint) -> Result<f64> {
    let mut least = f64::INFINITY;
    for side in [Side::Postrider, Side::Notify] {
        let commits = Commits { sessions: LOADING_SESSIONS, rate: None, rows: CAPACITY_ROWS };
        let turn = take_turn(server, endpoint, side, &commits).await?;
        eprintln!("capacity  {:<22} {:.0} rows/s", side.name(), turn.per_second);
        least = least.min(turn.per_second);
    }
    Ok(least)
}

/// What all cases have in common.
struct Setting<'a> {
    server: &'a Server,
    endpoint: &'a Endpoint,
    peers: &'a Peers,
    capacity: f64,
}

impl Options {
    fn wants(&self, side: Side) -> bool {
        self.side.is_empty() || self.side.iter().any(|name| side.name().contains(name.as_str()))
    }
}

async fn take_turns(setting: &Setting<'_>, case: Case, options: &Options) -> Result<HashMap<Side, Vec<Turn>>> {
    let Setting { server, endpoint, peers, capacity } = *setting;
    let (rate, sessions) = case.load.commits(capacity);
    let commits = Commits { sessions, rate: Some(rate), rows: (options.seconds * rate) as usize };
    let mut turns: HashMap<Side, Vec<Turn>> = HashMap::new();
    for run in 1..=options.runs {
        for side in order(case.load.sides(peers), run).into_iter().filter(|side| options.wants(*side)) {
            let turn = take_turn(server, endpoint, side, &commits).await?;
            eprintln!(
                "run {run}     {:<16} {:<22} p50 {:.3} ms, p99 {:.3} ms, max {:.3} ms, server {:.0} us a row",
                case.name,
                side.name(),
                turn.p50_ms,
                turn.p99_ms,
                turn.max_ms,
                turn.cpu_us
            );
            turns.entry(side).or_default().push(turn);
        }
    }
    Ok(turns)
}

impl Load {
    /// Commits a second, and from how many sessions.
    fn commits(self, capacity: f64) -> (f64, usize) {
        match self {
            Self::Rate(rate) => (rate, 1),
            Self::Share(share) => (capacity * share / 100.0, LOADING_SESSIONS),
        }
    }

    fn is_for_peers(self) -> bool {
        matches!(self, Self::Rate(_))
    }

    fn sides(self, peers: &Peers) -> Vec<Side> {
        match self {
            Self::Rate(_) => OWN_SIDES.into_iter().chain(peers.installed.iter().copied().map(Side::Peer)).collect(),
            Self::Share(_) => LOADED_SIDES.into(),
        }
    }

    /// The least ratios to the poller of NOTIFY: of the median, of the 99th percentile, and of the server's time.
    fn goals(self) -> [f64; 3] {
        match self {
            Self::Rate(_) => [1.0 / 1.3, 2.0, 1.0 / 1.25],
            Self::Share(_) => [1.0; 3],
        }
    }
}

fn figures_of(case: Case, capacity: f64, turns: &HashMap<Side, Vec<Turn>>) -> Vec<Figure> {
    let of = |side: Side, value: Measured| -> Vec<f64> {
        turns.get(&side).map(|turns| turns.iter().map(value).collect()).unwrap_or_default()
    };
    let mut extra = Map::new();
    extra.insert("bare_insert_cpu_us".into(), json!(median(&of(Side::Nobody, |turn| turn.cpu_us)).round()));
    extra.insert("commits_per_second".into(), json!(case.load.commits(capacity).0.round()));
    let mut figures = Vec::new();
    let peers = Peer::value_variants().iter().copied().map(Side::Peer);
    let others = [Side::Notify, Side::Pipelined, Side::Second].into_iter().chain(peers);
    for other in others.filter(|side| turns.contains_key(side)) {
        let goals = case.load.goals().map(|goal| (other == Side::Notify).then_some(Goal::Ratio(goal)));
        let values: [(&'static str, Measured); 3] =
            [("p50 ms", |turn| turn.p50_ms), ("p99 ms", |turn| turn.p99_ms), ("server cpu us", |turn| turn.cpu_us)];
        for ((unit, value), goal) in values.into_iter().zip(goals) {
            figures.push(Figure {
                case: case.name.into(),
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
async fn take_turn(server: &Server, endpoint: &Endpoint, side: Side, commits: &Commits) -> Result<Turn> {
    let mut running = start(server, endpoint, side)?;
    let sessions = inserters(server, side, commits.sessions).await?;
    endpoint.arrivals().clear();
    let warm_up = Commits { rows: WARM_UP_ROWS, rate: Some(commits.rate.unwrap_or(WARM_UP_RATE)), ..*commits };
    let warm = commit(&sessions, &warm_up).await?;
    wait_for(endpoint, &mut running, warm.len()).await?;
    endpoint.arrivals().clear();
    let postmaster = server.postmaster()?;
    let cpu_before = cpu_of_server(postmaster);
    let began = Instant::now();
    let returned = commit(&sessions, commits).await?;
    wait_for(endpoint, &mut running, returned.len()).await?;
    sleep(SETTLE).await;
    let cpu = cpu_of_server(postmaster) - cpu_before;
    if let Some(running) = running {
        check_closed(server, side, warm.len() + returned.len()).await?;
        running.stop()?;
    }
    let arrivals = std::mem::take(&mut *endpoint.arrivals());
    let last = arrivals.values().max().map_or(0.0, |last| last.saturating_duration_since(began).as_secs_f64());
    let waits: Vec<f64> = returned
        .iter()
        .filter_map(|(quote, returned)| Some(arrivals.get(quote)?.saturating_duration_since(*returned)))
        .map(|wait| wait.as_secs_f64() * 1e3)
        .collect();
    Ok(Turn {
        p50_ms: percentile(&waits, 0.5),
        p99_ms: percentile(&waits, 0.99),
        max_ms: percentile(&waits, 1.0),
        cpu_us: cpu.as_secs_f64() * 1e6 / returned.len() as f64,
        per_second: returned.len() as f64 / last,
    })
}

/// Sessions with the statement that submits a row to the side.
async fn inserters(server: &Server, side: Side, sessions: usize) -> Result<Vec<(Client, Statement)>> {
    let insert = side.insertion();
    let session = || async {
        let client = connect(&server.url()).await?;
        let statement = client.prepare(&insert).await.context(|| "cannot prepare the insert")?;
        Ok((client, statement))
    };
    try_join_all((0..sessions).map(|_| session())).await
}

/// Commits rows one by one, each in a transaction of its own, with gaps as of independent users: exponentially spread. Returns when each commit
/// had returned.
async fn commit(sessions: &[(Client, Statement)], commits: &Commits) -> Result<Vec<(String, Instant)>> {
    let rows = commits.rows / sessions.len();
    let gap = commits.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(sessions.len() as f64 / rate));
    let all = sessions.iter().map(|session| commit_from(session, rows, gap));
    Ok(try_join_all(all).await?.concat())
}

async fn commit_from(
    (client, insert): &(Client, Statement),
    rows: usize,
    gap: Duration,
) -> Result<Vec<(String, Instant)>> {
    let mut returned = Vec::with_capacity(rows);
    let mut at = tokio::time::Instant::now();
    for _ in 0..rows {
        at += gap.mul_f64(-fastrand::f64().max(f64::MIN_POSITIVE).ln());
        if !gap.is_zero() {
            sleep_until(at).await;
        }
        let quote = format!("{:016x}", fastrand::u64(..));
        client.execute(insert, &[&quote]).await.context(|| "cannot commit a row")?;
        returned.push((quote, Instant::now()));
    }
    Ok(returned)
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
async fn check_closed(server: &Server, side: Side, rows: usize) -> Result<()> {
    let open = side.open(rows);
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
        Side::Peer(peer) => return start_peer(server, endpoint, peer).map(Some),
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

/// With empty tables.
fn start_peer(server: &Server, endpoint: &Endpoint, peer: Peer) -> Result<Running> {
    let mut settings = peer.settings(&server.url());
    for (name, value) in [
        ("rows", json!(0)),
        ("group_rows", json!(1)),
        ("endpoint", json!(format!("http://{}/stages/pricing", endpoint.address))),
    ] {
        settings[name] = value;
    }
    xtask::process::run(&mut peer.command("fill", &settings)?)?;
    let mut command = peer.command("serve", &settings)?;
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Running::start(peer.name(), &mut command)
}

/// The pollers' tables: the columns of ours, and the index that a poller needs instead.
async fn install_pollers(server: &Server) -> Result<()> {
    for side in [Side::Notify, Side::Pipelined, Side::Second, Side::Nobody] {
        let table = side.table();
        server
            .execute(&format!(
                "CREATE TABLE {table} (LIKE pending_work INCLUDING DEFAULTS, PRIMARY KEY (group_id, quote_id)) WITH (fillfactor = 45);
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
