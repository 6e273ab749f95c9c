//! The work table on the primary: claims, checkpoints and reads, each on a session of its own.
//!
//! Claims and checkpoints go apart so that a burst of the one never delays the other, and claims on two sessions, so that a row that
//! has just come need not wait until the one before it is on the server's disk; reads go apart so that nothing waits for them.
//! Every writing statement is guarded by the fence, and is sent once: what became of one whose reply was lost, a read tells.

pub(crate) mod asked;
pub(crate) mod cells;
mod checkpoint;
mod claim;
pub(crate) mod expiry;
pub(crate) mod guarded;
pub(crate) mod history;
mod known;
pub(crate) mod layout;
mod open_rows;
mod owners;
pub(crate) mod pauses;
mod read;
mod row_version;
mod taking;
mod untold;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use postrider_core::error::Result;
use postrider_core::ports::{
    BoxFuture, Checkpoint, CheckpointReply, ClaimReply, ClaimRequest, OpenRows, Purged, Reading,
    STATEMENTS_AT_ONCE_MAX, WorkTable,
};
use postrider_core::route::WorkMapping;
use postrider_core::stage::Step;
use postrider_core::work::{OwnerId, WorkKey};
use tokio::sync::{Mutex, MutexGuard};

use crate::check::access::{self, Needs, TO_RUN};
use crate::client::Session;
use crate::objects::written_columns;
use crate::options::ConnectOptions;
use crate::states;
use crate::store::{OPERATOR_ACTIONS, PAUSES, WORK_HISTORY};
use checkpoint::CheckpointStatements;
use claim::ClaimStatements;
use layout::Layout;
use open_rows::SnapshotPages;
use owners::OwnerLock;

/// What a writing session is told first. A claim must be durable before its request leaves, else a crash of the server issues the
/// same fence twice; `remote_apply` is stricter and stays. Every statement reaches its rows by the key, so plans are made once
/// and cannot tip over into scanning the table while its statistics are young. No row is waited for that is held when we look: the lock
/// time-out is for whoever takes one in the very moment ([`taking`]), and for whoever locks the whole table. The work table's triggers leave these sessions alone ([`crate::notices`]).
const WRITING_PREAMBLE: &str = "SELECT set_config('synchronous_commit', \
       CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false); \
     SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off; \
     SET postrider.quiet = 'on'; SET lock_timeout = '500ms'; SET plan_cache_mode = force_generic_plan; SET jit = off; \
     SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";

/// What the reading session is told first. It purges the history, too, whatever the role's own settings are.
const READING_PREAMBLE: &str = "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off; \
     SET lock_timeout = '5s'; \
     SET plan_cache_mode = force_generic_plan; SET jit = off; \
     SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";

/// Sessions that write. Each is used by one statement at a time; the second is connected when it is first needed.
#[derive(Debug)]
struct Sessions([Mutex<Session>; STATEMENTS_AT_ONCE_MAX]);

impl Sessions {
    fn new(options: &ConnectOptions) -> Sessions {
        Sessions(std::array::from_fn(|_| Mutex::new(Session::new(options.clone(), WRITING_PREAMBLE))))
    }

    /// One that is not in use, or the last once it is free.
    async fn free(&self) -> MutexGuard<'_, Session> {
        let [first, second] = &self.0;
        match first.try_lock() {
            Ok(session) => session,
            Err(_busy) => second.lock().await,
        }
    }
}

/// What a work table needs beside its mapping.
#[derive(Debug, Clone)]
pub struct WorkTableSettings {
    /// Who claims here; its advisory lock says that we live.
    pub owner: OwnerId,
    /// After the server was started, and after our own lock was lost and taken again, for so long the locks say nothing about the
    /// others. It must be longer than the four seconds that a try to connect and the pause before the next may take.
    pub owner_grace: Duration,
    /// Each attempt that ends is told in `postrider.work_history`, by the statement that writes its end.
    pub history: bool,
    /// How long the receivers of steps keep a key, where that is known: the claim of a row that was asked for longer ago says so.
    pub key_retention: BTreeMap<Step, Duration>,
}

impl WorkTableSettings {
    /// The settings for an owner, with a grace of five seconds, and with the history.
    pub fn new(owner: OwnerId) -> WorkTableSettings {
        WorkTableSettings { owner, owner_grace: Duration::from_secs(5), history: true, key_retention: BTreeMap::new() }
    }
}

/// The work table behind its port.
///
/// Beyond what the port promises: rows with values that we cannot read are left out everywhere, and reported once for each call.
/// A table that is locked as a whole for more than a second or two is a `Transient` error. A lost connection is replaced at
/// the next call.
#[derive(Debug)]
pub struct PgWorkTable {
    options: ConnectOptions,
    layout: Arc<Layout>,
    claim: ClaimStatements,
    checkpoint: CheckpointStatements,
    read: Arc<str>,
    /// `None` where there is no history.
    purge: Option<Arc<str>>,
    key_retention: BTreeMap<Step, Duration>,
    claims: Sessions,
    checkpoints: Sessions,
    reads: Session,
    owner: OwnerId,
    owner_lock: OwnerLock,
    owner_grace: Duration,
}

impl PgWorkTable {
    /// Takes the owner's lock, reads the table's column types and prepares the statements' texts. Does not retry.
    ///
    /// # Errors
    /// `Privilege` where our role could not claim, `Table` where the table or a mapped column is missing, and what connecting gives.
    pub async fn open(
        options: ConnectOptions,
        mapping: &WorkMapping,
        settings: &WorkTableSettings,
    ) -> Result<PgWorkTable> {
        let reads = Session::new(options.clone(), READING_PREAMBLE);
        let connection = reads.connection().await?;
        let mut store = vec![(&OPERATOR_ACTIONS, OPERATOR_ACTIONS.run), (&PAUSES, PAUSES.run)];
        if settings.history {
            store.push((&WORK_HISTORY, WORK_HISTORY.run));
        }
        let needs = Needs { rows: Some(written_columns(mapping)), store, functions: &TO_RUN };
        access::require(&connection, mapping, &needs).await?;
        let layout = Layout::load(&connection, mapping, settings.history).await?;
        states::require(&connection, mapping).await?;
        drop(connection);
        let owner_lock = OwnerLock::take(options.clone(), settings.owner).await?;
        Ok(PgWorkTable {
            claim: ClaimStatements::new(&layout),
            checkpoint: CheckpointStatements::new(&layout),
            read: read::statement(&layout),
            purge: settings.history.then(|| history::purge_statement(&layout)),
            claims: Sessions::new(&options),
            checkpoints: Sessions::new(&options),
            layout: Arc::new(layout),
            reads,
            key_retention: settings.key_retention.clone(),
            owner: settings.owner,
            owner_lock,
            owner_grace: settings.owner_grace,
            options,
        })
    }
}

impl WorkTable for PgWorkTable {
    fn claim<'a>(
        &'a self,
        owner: OwnerId,
        requests: &'a [ClaimRequest],
        dead: &'a [OwnerId],
    ) -> BoxFuture<'a, Result<Vec<ClaimReply>>> {
        Box::pin(async move {
            let session = self.claims.free().await;
            let connection = session.connection().await?;
            let mut replies = claim::claim(&connection, &self.claim, &self.layout, owner, (requests, dead)).await?;
            if !self.key_retention.is_empty() {
                expiry::note(&connection, &self.layout, &self.key_retention, requests, &mut replies).await?;
            }
            Ok(replies)
        })
    }

    fn checkpoint<'a>(
        &'a self,
        owner: OwnerId,
        checkpoints: &'a [Checkpoint],
    ) -> BoxFuture<'a, Result<Vec<CheckpointReply>>> {
        Box::pin(async move {
            let session = self.checkpoints.free().await;
            let connection = session.connection().await?;
            checkpoint::checkpoint(&connection, &self.checkpoint, &self.layout, owner, checkpoints).await
        })
    }

    fn read<'a>(&'a self, keys: &'a [WorkKey]) -> BoxFuture<'a, Result<Reading>> {
        Box::pin(async move {
            let connection = self.reads.connection().await?;
            read::read(&connection, &self.read, &self.layout, keys).await
        })
    }

    fn open_rows(&self) -> BoxFuture<'_, Result<Box<dyn OpenRows>>> {
        Box::pin(async move {
            let pages = SnapshotPages::start(&self.options, Arc::clone(&self.layout)).await?;
            Ok(Box::new(pages) as Box<dyn OpenRows>)
        })
    }

    fn living_owners(&self) -> BoxFuture<'_, Result<Option<BTreeSet<OwnerId>>>> {
        Box::pin(async move {
            if !self.owner_lock.says_who_lives(self.owner_grace) {
                return Ok(None);
            }
            let living = owners::living(&*self.reads.connection().await?, self.owner_grace).await?;
            // Without ourselves it is the answer of a server that has just started, before we noticed that our lock is gone.
            Ok(living.filter(|living| living.contains(&self.owner) && self.owner_lock.says_who_lives(self.owner_grace)))
        })
    }

    fn purge_history(&self, retention: Duration, stretch: u64) -> BoxFuture<'_, Result<Purged>> {
        Box::pin(async move {
            let Some(statement) = &self.purge else { return Ok(Purged::default()) };
            history::purge(&*self.reads.connection().await?, statement, retention, stretch).await
        })
    }
}
