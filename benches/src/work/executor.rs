//! Our side: what `postrider run` consists of, with a trivial endpoint in the place of the HTTP client.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use postrider_core::error as core;
use postrider_core::ports::{
    BoxFuture, Checkpoint, CheckpointReply, ClaimReply, ClaimRequest, LogSource, OpenRows, Reading, WorkTable,
};
use postrider_core::route::{Routing, WorkMapping};
use postrider_core::work::{OwnerId, WorkKey};
use postrider_engine::{
    Ack, Limits, Parts, Periods, Settings, Shutdown, SystemWorld, Telemetry, UnfencedWrites, WhenFull, WorkPart,
    WorkSettings, run,
};
use postrider_postgres::{
    ConnectOptions, Failover, PgPrimary, PgWorkTable, ReplicationSource, SourceObjects, WorkTableSettings,
};
use tokio::sync::Notify;
use tokio::time::sleep;
use xtask::error::{Context, Error, Result};

use super::{Load, Trivial, say, say_done, wait_for_go};
use crate::process::on_terminate;

/// Between two looks whether the executors know each other.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The rows of which table are executed, and how.
#[derive(Debug, Args)]
pub(crate) struct Execute {
    #[arg(long)]
    url: String,
    /// The schema of the work table; the slot and the publication have its name.
    #[arg(long)]
    schema: String,
    #[arg(long)]
    journal: PathBuf,
    /// Our own transitions come back through the log.
    #[arg(long)]
    loud: bool,
    /// The rows come once this says that so many executors know each other, and each outcome that is written is said.
    #[arg(long)]
    together: Option<i64>,
    /// The slot is a temporary one of this name: another has the schema's.
    #[arg(long)]
    slot: Option<String>,
    #[command(flatten)]
    load: Load,
}

/// What is set up for a side of ours, all named after the schema of its work table.
pub(super) fn objects(schema: &str, quiet: bool) -> SourceObjects {
    SourceObjects {
        publication: schema.to_owned(),
        slot: schema.to_owned(),
        two_phase: false,
        failover: Failover::Unwanted,
        standby: false,
        quiet,
        same_tx: false,
        observe: false,
        routing: Routing { work: Some(mapping(schema)), ..Routing::default() },
        history: true,
    }
}

pub(super) fn connect_options(url: &str) -> Result<ConnectOptions> {
    ConnectOptions::parse(url, &BTreeMap::new()).context(|| "cannot read the address")
}

fn mapping(schema: &str) -> WorkMapping {
    WorkMapping { schema: schema.to_owned(), ..WorkMapping::default() }
}

impl Execute {
    /// Executes until it is told to end, which is some time after all rows are done.
    pub(crate) async fn run(self) -> Result<()> {
        let mut terminated = on_terminate()?;
        let telemetry = Arc::new(Telemetry::default());
        let endpoint = Arc::new(Trivial::new(self.load.call()));
        let table = Arc::new(Watched::open(&self).await?);
        let parts = Parts { telemetry: telemetry.clone(), ..self.parts(table.clone(), endpoint.clone()).await? };
        let settings = Settings {
            ack: Ack::Journal,
            when_full: WhenFull::Block,
            wal_guard_bytes: None,
            periods: Periods::default(),
            limits: Limits::default(),
        };
        let shutdown = Shutdown::default();
        let mut engine = tokio::spawn(run(parts, settings, shutdown.clone()));
        if let Some(executors) = self.together {
            while telemetry.executors.get() != executors {
                sleep(LOOK_EVERY).await;
            }
            say("ready")?;
        } else {
            tokio::select! {
                ended = &mut engine => ended.context(|| "the engine failed")?.context(|| "the engine failed")?,
                () = table.done.notified() => {}
            }
            say_done(&endpoint)?;
        }
        terminated.recv().await;
        shutdown.request();
        engine.await.context(|| "the engine failed")?.context(|| "the engine failed")
    }

    async fn parts(&self, table: Arc<Watched>, caller: Arc<Trivial>) -> Result<Parts> {
        let objects = objects(&self.schema, !self.loud);
        let options = connect_options(&self.url)?;
        let slot = self.slot.as_ref().unwrap_or(&objects.slot);
        let source = ReplicationSource::new(options.clone(), slot, &objects.publication)
            .streaming(true)
            .temporary(self.slot.is_some());
        let source = match objects.work_publication() {
            Some(publication) => source.and(publication),
            None => source,
        };
        let identity = source.identify().await.context(|| "cannot ask the server who it is")?;
        let opened = open_journal(&self.journal, &identity)?;
        let staging = postrider_journal::open_staging(&self.journal, opened.life, u64::MAX)
            .context(|| "cannot open the staging area")?;
        let settings = WorkSettings {
            definitions: self.load.definitions()?,
            endpoints: BTreeMap::new(),
            key_names: mapping(&self.schema).key,
            fair_by: Some(0),
            owner: table.owner,
            quiet: !self.loud,
            unfenced: UnfencedWrites::Park,
            names_owner: true,
            // Nothing is old enough to be purged.
            history: None,
        };
        Ok(Parts {
            source: Arc::new(source.of_journal(opened.identity)),
            writer: opened.writer,
            staging,
            journal: opened.journal,
            positions: opened.positions,
            primary: Arc::new(
                PgPrimary::new(options, slot).of_work(&mapping(&self.schema)).temporary(self.slot.is_some()),
            ),
            routing: Arc::new(objects.routing),
            work: Some(WorkPart { settings, table, caller }),
            onlook: None,
            sinks: Vec::new(),
            world: Arc::new(SystemWorld::new(1)),
            telemetry: Arc::new(Telemetry::default()),
        })
    }
}

fn failed(error: Error) -> core::Error {
    core::Error::new(core::ErrorKind::Internal, error.report())
}

fn open_journal(dir: &Path, identity: &postrider_core::ports::SourceIdentity) -> Result<postrider_journal::Opened> {
    postrider_journal::open(dir, identity, &postrider_journal::Settings::default())
        .context(|| "cannot open the journal")
}

/// The work table, with an eye on what is written to it: it holds back the first read of the open rows until the turn begins, and
/// tells when the last transition is written.
#[derive(Debug)]
struct Watched {
    table: PgWorkTable,
    owner: OwnerId,
    began: AtomicBool,
    /// Each outcome that is written is said.
    says_each: bool,
    /// Transitions that are not written yet.
    left: AtomicU64,
    done: Notify,
}

impl Watched {
    async fn open(execute: &Execute) -> Result<Self> {
        let owner = OwnerId(fastrand::u64(..));
        let settings = WorkTableSettings { history: execute.load.history, ..WorkTableSettings::new(owner) };
        let table = PgWorkTable::open(connect_options(&execute.url)?, &mapping(&execute.schema), &settings).await;
        let table = table.context(|| "cannot open the work table")?;
        let left = AtomicU64::new(execute.load.transitions());
        let says_each = execute.together.is_some();
        Ok(Self { table, owner, began: AtomicBool::new(says_each), says_each, left, done: Notify::new() })
    }

    /// What a process that has run for a while has: its connections.
    async fn warm_up(&self) -> core::Result<()> {
        self.table.claim(self.owner, &[], &[]).await?;
        self.table.checkpoint(self.owner, &[]).await?;
        self.table.read(&[]).await.map(drop)
    }
}

impl WorkTable for Watched {
    fn claim<'a>(
        &'a self,
        owner: OwnerId,
        requests: &'a [ClaimRequest],
        dead: &'a [OwnerId],
    ) -> BoxFuture<'a, core::Result<Vec<ClaimReply>>> {
        self.table.claim(owner, requests, dead)
    }

    fn checkpoint<'a>(
        &'a self,
        owner: OwnerId,
        checkpoints: &'a [Checkpoint],
    ) -> BoxFuture<'a, core::Result<Vec<CheckpointReply>>> {
        Box::pin(async move {
            let replies = self.table.checkpoint(owner, checkpoints).await?;
            let written = replies.len() as u64;
            if self.says_each {
                say(&written.to_string()).map_err(failed)?;
            }
            if self.left.fetch_sub(written, Ordering::Relaxed) == written {
                self.done.notify_one();
            }
            Ok(replies)
        })
    }

    fn read<'a>(&'a self, keys: &'a [WorkKey]) -> BoxFuture<'a, core::Result<Reading>> {
        self.table.read(keys)
    }

    fn open_rows(&self) -> BoxFuture<'_, core::Result<Box<dyn OpenRows>>> {
        Box::pin(async move {
            if !self.began.swap(true, Ordering::Relaxed) {
                self.warm_up().await?;
                wait_for_go().await.map_err(failed)?;
            }
            self.table.open_rows().await
        })
    }

    fn living_owners(&self) -> BoxFuture<'_, core::Result<Option<BTreeSet<OwnerId>>>> {
        self.table.living_owners()
    }
}
