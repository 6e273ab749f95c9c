//! One turn of one side: rows that are due, a process that does them, and what the server says about it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use postrider_postgres::{SetupSettings, apply};
use tokio::time::sleep;
use xtask::error::{Context, Error, Result};

use super::executor::{connect_options, objects};
use super::{Load, heard_done, peer, poller};
use crate::peers::Peer;
use crate::process::{Running, cpu_of_server};
use crate::server::Server;

/// Who does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    /// Ours, as it is by default: its own transitions stay out of the log.
    Quiet,
    /// Ours with `work.quiet = false`.
    Loud,
    Poller,
    /// A queue of others.
    Peer(Peer),
}

/// What one turn of one side gave; the server's figures are for each transition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) per_second: f64,
    pub(crate) cpu_us: f64,
    pub(crate) wal_bytes: f64,
    pub(crate) commits: f64,
    pub(crate) dead_tuples: f64,
    /// HOT updates among all that leave their row open, in per cent: the last one of each row cannot be one where an index knows what is open. Not a
    /// number where there are none.
    pub(crate) hot_share: f64,
    /// The most calls that were in flight at once.
    pub(crate) peak: f64,
}

impl Turn {
    pub(crate) fn say(&self) -> String {
        let hot = if self.hot_share.is_nan() { String::new() } else { format!(", {:.1} % HOT", self.hot_share) };
        format!(
            "{:.0}/s, server {:.1} us, {:.0} bytes of log, {:.4} commits, {:.2} dead{hot}",
            self.per_second, self.cpu_us, self.wal_bytes, self.commits, self.dead_tuples
        )
    }
}

/// Nothing else is to move meanwhile: neither vacuum nor a checkpoint falls into one turn and not into another.
pub(crate) const SETTINGS: [(&str, &str); 5] = [
    ("synchronous_commit", "on"),
    ("autovacuum", "off"),
    ("max_wal_size", "16GB"),
    ("checkpoint_timeout", "1h"),
    ("shared_buffers", "256MB"),
];

/// Rows of one group, which were inserted together.
pub(super) const GROUP_ROWS: u64 = 100;

pub(crate) const POSTGRES: u32 = 17;

/// How long what follows a turn may take: the log's end at the reader, the end of the sessions.
const PATIENCE: Duration = Duration::from_secs(30);

const LOOK_EVERY: Duration = Duration::from_millis(5);

impl Side {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Quiet => "postrider",
            Self::Loud => "postrider, not quiet",
            Self::Poller => "SKIP LOCKED poller",
            Self::Peer(peer) => peer.name(),
        }
    }

    fn is_ours(self) -> bool {
        matches!(self, Self::Quiet | Self::Loud)
    }

    fn schema(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Loud => "loud",
            Self::Poller => "poller",
            Self::Peer(peer) => peer.schema(),
        }
    }

    /// The tables of the work, as a condition: one, and all that a peer has.
    fn tables(self) -> String {
        let all = format!("schemaname = '{}'", self.schema());
        if let Self::Peer(_) = self { all } else { format!("{all} AND relname = 'pending_work'") }
    }

    fn hot_share(self, before: &Counters, after: &Counters, load: Load) -> f64 {
        let closing = match self {
            Self::Peer(peer) if !peer.updates_jobs() => return f64::NAN,
            // It deletes a job that is done.
            Self::Peer(_) => 0.0,
            Self::Quiet | Self::Loud | Self::Poller => load.rows as f64,
        };
        100.0 * (after.hot - before.hot) / (after.updates - before.updates - closing)
    }

    fn history(self) -> &'static str {
        match self {
            Self::Poller => "poller.work_history",
            // A peer takes no part where a history is kept.
            Self::Quiet | Self::Loud | Self::Peer(_) => "postrider.work_history",
        }
    }
}

/// Installs what all sides need but the slots.
pub(crate) async fn install(server: &Server) -> Result<()> {
    server.execute("CREATE EXTENSION pg_walinspect").await?;
    for side in [Side::Quiet, Side::Loud, Side::Poller] {
        server.execute(&format!("CREATE SCHEMA {}", side.schema())).await?;
    }
    server.execute(&poller::tables(Side::Poller.schema())).await?;
    for side in [Side::Quiet, Side::Loud] {
        set_up(server, side).await?;
        drop_slot(server, side).await?;
    }
    Ok(())
}

/// Gives the side its rows and has it do them.
///
/// # Errors
/// When it did not do all of them, or one twice.
pub(crate) async fn take(server: &Server, side: Side, load: Load) -> Result<Turn> {
    fill(server, side, load).await?;
    let mut running = start(server, side, load)?;
    let mut said = BufReader::new(running.stdout()?).lines();
    let mut hear = || match said.next() {
        Some(Ok(line)) => Ok(line),
        _ => Err(Error::new(format!("{} ended before its work was done", side.name()))),
    };
    hear()?;
    let before = Counters::look(server, side).await?;
    let began = Instant::now();
    running.tell("go\n")?;
    let line = hear()?;
    let took = began.elapsed();
    let (calls, peak) = heard_done(&line)?;
    let end = wait_for_log(server, side).await?;
    let cpu = cpu_of_server(server.postmaster()?);
    running.stop()?;
    wait_for_sessions(server).await?;
    check(server, side, load, calls).await?;
    check_peak(side, load, peak)?;
    let after = Counters::look(server, side).await?;
    let transitions = load.transitions() as f64;
    let turn = Turn {
        per_second: transitions / took.as_secs_f64(),
        cpu_us: (cpu - before.cpu).as_secs_f64() * 1e6 / transitions,
        wal_bytes: number(server, &format!("SELECT ('{end}'::pg_lsn - '{}')::text", before.lsn)).await? / transitions,
        commits: commits(server, &before.lsn, &end).await? / transitions,
        dead_tuples: (after.dead - before.dead) / transitions,
        hot_share: side.hot_share(&before, &after, load),
        peak: peak as f64,
    };
    if side.is_ours() {
        drop_slot(server, side).await?;
    }
    Ok(turn)
}

/// What the server counts.
struct Counters {
    lsn: String,
    cpu: Duration,
    updates: f64,
    hot: f64,
    dead: f64,
}

impl Counters {
    async fn look(server: &Server, side: Side) -> Result<Self> {
        let tables = side.tables();
        let of = |column: &str| format!("SELECT sum({column})::text FROM pg_stat_user_tables WHERE {tables}");
        Ok(Self {
            updates: number(server, &of("n_tup_upd")).await?,
            hot: number(server, &of("n_tup_hot_upd")).await?,
            dead: number(server, &of("n_dead_tup")).await?,
            lsn: server.text("SELECT pg_current_wal_insert_lsn()::text").await?,
            cpu: cpu_of_server(server.postmaster()?),
        })
    }
}

/// Makes the rows, and after them the slot where the side has one. They are as a table in use is: vacuumed, and written since the last checkpoint,
/// so that no side pays for the first change of a page.
async fn fill(server: &Server, side: Side, load: Load) -> Result<()> {
    if let Side::Peer(peer) = side {
        return peer::fill(server, peer, load).await;
    }
    let (schema, history) = (side.schema(), side.history());
    server.execute(&format!("TRUNCATE {schema}.pending_work, {history}")).await?;
    server.execute("CHECKPOINT").await?;
    insert(server, side, load).await?;
    server.execute(&format!("VACUUM (ANALYZE) {schema}.pending_work")).await?;
    if side.is_ours() {
        set_up(server, side).await?;
    }
    Ok(())
}

/// Submits all rows of a turn in one transaction.
pub(crate) async fn insert(server: &Server, side: Side, load: Load) -> Result<()> {
    let insert = format!(
        "INSERT INTO {schema}.pending_work (group_id, quote_id, stage, definition, payload, created_at)
         SELECT left(md5((i / {GROUP_ROWS})::text), 12), lpad(i::text, 8, '0'), 'STAGE_1', 'quoting@1', '{{\"premium\": 100.50}}',
             now() - ({rows} - i) * interval '1 ms'
         FROM generate_series(1, {rows}) AS i",
        schema = side.schema(),
        rows = load.rows
    );
    server.execute(&insert).await
}

/// As `postrider setup` does: what is there already stays.
pub(crate) async fn set_up(server: &Server, side: Side) -> Result<()> {
    let settings = SetupSettings { objects: objects(side.schema(), side == Side::Quiet), role: None };
    apply(&connect_options(&server.url())?, &settings).await.context(|| "cannot set up").map(drop)
}

/// Without a slot nobody keeps the log of the other sides' turns.
pub(crate) async fn drop_slot(server: &Server, side: Side) -> Result<()> {
    server.execute(&format!("SELECT pg_drop_replication_slot('{}')", side.schema())).await
}

fn start(server: &Server, side: Side, load: Load) -> Result<Running> {
    let mut command = match side {
        Side::Peer(peer) => peer::work(server, peer, load)?,
        Side::Quiet | Side::Loud | Side::Poller => role(server, side, load, "journal")?,
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    Running::start(side.name(), &mut command)
}

/// This program as a side. `journal`: the name of its journal, which is made anew.
pub(crate) fn role(server: &Server, side: Side, load: Load, journal: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context(|| "cannot find this program")?);
    command.arg(if side == Side::Poller { "poll" } else { "execute" });
    command.args(["--url", &server.url(), "--schema", side.schema()]);
    for (option, value) in [
        ("--rows", load.rows),
        ("--stages", load.stages.into()),
        ("--concurrency", load.concurrency.into()),
        ("--call-ms", load.call_ms),
    ] {
        command.args([option, &value.to_string()]);
    }
    if load.history {
        command.arg("--history");
    }
    if side.is_ours() {
        command.arg("--journal").arg(fresh_journal(server, journal)?);
    }
    if side == Side::Loud {
        command.arg("--loud");
    }
    Ok(command)
}

fn fresh_journal(server: &Server, name: &str) -> Result<PathBuf> {
    let journal = server.cluster.home_dir().join(name);
    if journal.exists() {
        fs::remove_dir_all(&journal).context(|| "cannot remove the journal of the turn before")?;
    }
    Ok(journal)
}

/// The log's end, once a walsender has read up to it: its work belongs to the turn.
async fn wait_for_log(server: &Server, side: Side) -> Result<String> {
    let end = server.text("SELECT pg_current_wal_insert_lsn()::text").await?;
    if side.is_ours() {
        let read = format!("SELECT coalesce(bool_and(sent_lsn >= '{end}'), false)::text FROM pg_stat_replication");
        wait_until(server, &read, "true", "the log was not read to its end").await?;
    }
    Ok(end)
}

/// A session tells its statistics when it ends.
async fn wait_for_sessions(server: &Server) -> Result<()> {
    let others = "SELECT count(*)::text FROM pg_stat_activity
                  WHERE backend_type IN ('client backend', 'walsender') AND pid <> pg_backend_pid()";
    wait_until(server, others, "0", "sessions did not end").await
}

async fn wait_until(server: &Server, query: &str, wanted: &str, failure: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while server.text(query).await? != wanted {
        if Instant::now() > deadline {
            return Err(Error::new(failure));
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Each row is done, each stage was called once, and each is told where the history is on.
async fn check(server: &Server, side: Side, load: Load, calls: u64) -> Result<()> {
    let done = match side {
        Side::Peer(peer) => format!("SELECT ({} - ({}))::text", load.rows, peer.undone(load.transitions())),
        Side::Quiet | Side::Loud | Side::Poller => format!(
            "SELECT count(*)::text FROM {}.pending_work WHERE stage_state = 'DONE' AND closed_at IS NOT NULL",
            side.schema()
        ),
    };
    let told = format!("SELECT count(*)::text FROM {}", side.history());
    let expected_told = if load.history { load.transitions() } else { 0 };
    for (what, found, expected) in [
        ("rows are done", number(server, &done).await?, load.rows),
        ("calls were made", calls as f64, load.transitions()),
        ("stages are told", number(server, &told).await?, expected_told),
    ] {
        if found != expected as f64 {
            return Err(Error::new(format!("{}: {found} {what}, not {expected}", side.name())));
        }
    }
    Ok(())
}

/// Ours never had more calls in flight than its stages allow. The others' limits are their own.
fn check_peak(side: Side, load: Load, peak: u64) -> Result<()> {
    let most = u64::from(load.concurrency) * u64::from(load.stages);
    if side.is_ours() && peak > most {
        return Err(Error::new(format!("{}: {peak} calls were in flight, and {most} are allowed", side.name())));
    }
    Ok(())
}

/// Commits that wrote something.
async fn commits(server: &Server, begin: &str, end: &str) -> Result<f64> {
    let count = format!(
        "SELECT coalesce(sum(count), 0)::text FROM pg_get_wal_stats('{begin}', '{end}', true)
         WHERE \"resource_manager/record_type\" = 'Transaction/COMMIT'"
    );
    number(server, &count).await
}

async fn number(server: &Server, query: &str) -> Result<f64> {
    server.text(query).await?.parse().context(|| format!("no number came of: {query}"))
}
