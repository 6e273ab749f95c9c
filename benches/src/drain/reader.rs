//! Our side of `drain`: what `postrider run` consists of, but for its console, and a follower that decodes every row.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use postrider_core::change::Change;
use postrider_core::decode::Decoder;
use postrider_core::ports::{Journal, LogSource};
use postrider_core::position::{Lsn, Position};
use postrider_core::route::Routing;
use postrider_core::transaction::TransactionBatch;
use postrider_engine::{Ack, Limits, Parts, Periods, Settings, Shutdown, SystemWorld, Telemetry, WhenFull, run};
use postrider_postgres::{ConnectOptions, PgPrimary, ReplicationSource};
use serde_json::json;
use xtask::error::{Context, Error, Result};

use crate::measure::Tally;
use crate::recvlogical::bytes_of;
use crate::server::PUBLICATION;

/// What the reader reads, and up to where.
#[derive(Debug, Args)]
pub(super) struct Read {
    #[arg(long)]
    url: String,
    #[arg(long)]
    slot: String,
    #[arg(long)]
    journal: PathBuf,
    /// All below this is to be read, durable and confirmed.
    #[arg(long)]
    end: String,
    /// Large transactions come while they are in progress.
    #[arg(long)]
    streaming: bool,
}

/// Without anything new for so long the reader gives up.
const PATIENCE: Duration = Duration::from_secs(120);

impl Read {
    pub(super) fn run(self) -> Result<()> {
        // As `postrider run` has it.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let tally = runtime.context(|| "cannot start the runtime")?.block_on(self.drain())?;
        println!("{}", json!({ "rows": tally.rows, "values": tally.values, "checksum": tally.checksum }));
        Ok(())
    }

    async fn drain(self) -> Result<Tally> {
        let end: Lsn = self.end.parse().context(|| "cannot read the end")?;
        let options = ConnectOptions::parse(&self.url, &BTreeMap::new()).context(|| "cannot read the address")?;
        let source = ReplicationSource::new(options.clone(), &*self.slot, PUBLICATION).streaming(self.streaming);
        let source = Arc::new(source);
        let identity = source.identify().await.context(|| "cannot ask the server who it is")?;
        let opened = postrider_journal::open(&self.journal, &identity, &postrider_journal::Settings::default())
            .context(|| "cannot open the journal")?;
        let staging = postrider_journal::open_staging(&self.journal, opened.life, u64::MAX)
            .context(|| "cannot open the staging area")?;
        let telemetry = Arc::new(Telemetry::default());
        let parts = Parts {
            source,
            writer: opened.writer,
            staging,
            journal: opened.journal.clone(),
            positions: opened.positions,
            primary: Arc::new(PgPrimary::new(options, &self.slot)),
            routing: Arc::new(Routing::default()),
            work: None,
            onlook: None,
            sinks: Vec::new(),
            world: Arc::new(SystemWorld::new(1)),
            telemetry: telemetry.clone(),
        };
        let settings = Settings {
            ack: Ack::Journal,
            when_full: WhenFull::Block,
            wal_guard_bytes: None,
            periods: Periods::default(),
            limits: Limits::default(),
        };
        let shutdown = Shutdown::default();
        let followed = tokio::spawn(follow(opened.journal, end));
        let engine = tokio::spawn(run(parts, settings, shutdown.clone()));
        let tally = followed.await.context(|| "the follower failed")??;
        wait_until_confirmed(&telemetry, end).await?;
        shutdown.request();
        engine.await.context(|| "the engine failed")?.context(|| "the engine failed")?;
        Ok(tally)
    }
}

/// Decodes every row up to `end`.
async fn follow(journal: Arc<dyn Journal>, end: Lsn) -> Result<Tally> {
    let mut follower = journal.follow(Position::START).context(|| "cannot follow the journal")?;
    let (mut decoder, mut batch, mut tally) = (Decoder::new(), TransactionBatch::new(), Tally::default());
    loop {
        let more = tokio::time::timeout(PATIENCE, follower.next(&mut batch)).await;
        more.context(|| "nothing came any more")?.context(|| "cannot read the journal")?;
        if let Some(schema) = follower.schema() {
            decoder.load(&schema).context(|| "cannot load the schema")?;
        }
        for part in batch.parts() {
            let head = part.head;
            let mut changes = decoder.changes(part);
            while let Some(change) = changes.next() {
                if let (_, Change::Insert { new, .. }) = change.context(|| "cannot decode a change")? {
                    tally.row(new.columns().map(bytes_of));
                }
            }
            if head.last && head.end_lsn >= end {
                return Ok(tally);
            }
        }
    }
}

async fn wait_until_confirmed(telemetry: &Telemetry, end: Lsn) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while telemetry.status().confirmed < end {
        if Instant::now() > deadline {
            return Err(Error::new("the end was not confirmed"));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}
