//! Which executors are alive, by the advisory lock that each holds while it lives.
//!
//! The lock is held on an idle connection of its own, straight to the server: a pooler would hand the session, and the lock with
//! it, to somebody else. Others read it in `pg_locks` and never try it. It decides only when a row is taken over.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::work::OwnerId;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Client;

use super::layout::{micros, unreadable};
use crate::client::{Connection, Parameters, connect_client};
use crate::errors::{Phase, map_client_error};
use crate::options::ConnectOptions;

/// The pause before another try to connect, doubled up to the second.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// For all hosts to be reached, and for the whole try. With the pause it is below the grace that others give us: a host that is
/// silent must not cost us the try that would have succeeded.
const REACH_MAX: Duration = Duration::from_secs(2);
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// What the session that holds the lock is told first: nobody may end it because it is idle, for it always is.
const PREAMBLE: &str = "SET lock_timeout = '10s'; SET statement_timeout = 0; SET idle_session_timeout = 0; \
     SET application_name = 'postrider owner lock'";

/// Our own lock, held again after each loss of its connection until this value is dropped.
#[derive(Debug)]
pub(super) struct OwnerLock {
    state: Arc<State>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    held: AtomicBool,
    /// When the lock was taken again after a loss; `None` if it never was lost.
    taken_again_at: Mutex<Option<Instant>>,
}

/// The lock's session; dropping the client ends it.
struct Held {
    client: Client,
    connection: JoinHandle<Result<()>>,
}

impl OwnerLock {
    /// Takes the lock, and returns once it is held: before that, others would take our claims for a dead executor's.
    pub(super) async fn take(options: ConnectOptions, owner: OwnerId) -> Result<OwnerLock> {
        let held = lock(&options, owner).await?;
        let state = Arc::new(State { held: AtomicBool::new(true), taken_again_at: Mutex::new(None) });
        let task = tokio::spawn(hold(options, owner, held, Arc::clone(&state)));
        Ok(OwnerLock { state, task })
    }

    /// Whether the locks say who is alive: ours is held, and was not taken again within `grace`. What cost us our connection may have cost
    /// the others theirs, and they may still be reconnecting.
    pub(super) fn says_who_lives(&self, grace: Duration) -> bool {
        let again = *self.state.taken_again_at.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.held.load(Ordering::Acquire) && again.is_none_or(|at| at.elapsed() >= grace)
    }
}

impl Drop for OwnerLock {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Who holds such a lock now; `None` while the server itself was started less than `grace` ago, since the others may still be
/// reconnecting. Advisory locks of the application look the same and do no harm: they name no owner.
pub(super) async fn living(connection: &Connection, grace: Duration) -> Result<Option<BTreeSet<OwnerId>>> {
    // The manual, "pg_locks": a bigint key has its high half in classid, its low half in objid, and objsubid 1.
    let text = "SELECT now() >= pg_postmaster_start_time() + $1::int8 * interval '1 microsecond', \
         ARRAY(SELECT classid::int8 << 32 | objid::int8 FROM pg_locks \
               WHERE locktype = 'advisory' AND objsubid = 1 AND granted \
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))";
    let parameters: Parameters = vec![Box::new(micros(grace))];
    let rows = connection.query(&text.into(), &parameters).await?;
    let row = rows.first().ok_or_else(|| Error::new(ErrorKind::Protocol, "the server did not say who holds locks"))?;
    if !row.try_get::<_, bool>(0).map_err(unreadable)? {
        return Ok(None);
    }
    let keys: Vec<i64> = row.try_get(1).map_err(unreadable)?;
    Ok(Some(keys.into_iter().map(|key| OwnerId(key.cast_unsigned())).collect()))
}

async fn hold(options: ConnectOptions, owner: OwnerId, mut held: Held, state: Arc<State>) {
    loop {
        let ended = (&mut held.connection).await;
        state.held.store(false, Ordering::Release);
        report_loss(ended.ok().and_then(Result::err).as_ref());
        held = lock_again(&options.clone().reaching_within(REACH_MAX), owner).await;
        *state.taken_again_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        state.held.store(true, Ordering::Release);
        tracing::info!(%owner, "the executor's advisory lock is held again");
    }
}

fn report_loss(error: Option<&Error>) {
    let reason = error.map_or_else(|| "the server closed it".to_owned(), Error::report);
    tracing::warn!(reason, "the connection that holds the executor's advisory lock is lost");
}

async fn lock_again(options: &ConnectOptions, owner: OwnerId) -> Held {
    let (mut pause, pause_max) = RETRY_PAUSE;
    loop {
        // Only connecting is cut short. Waiting at the server for the lock leaves no moment in which nobody holds it.
        let taken = match connect_soon(options).await {
            Ok(connected) => lock_on(connected, owner).await,
            Err(error) => Err(error),
        };
        match taken {
            Ok(held) => return held,
            Err(error) => tracing::debug!(reason = error.report(), "cannot take the executor's advisory lock yet"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(pause_max);
    }
}

/// A password command may take longer than a server that is well.
async fn connect_soon(options: &ConnectOptions) -> Result<Held> {
    let options = options.clone().with_password_at_hand().await?;
    match timeout(CONNECT_MAX, connect(&options)).await {
        Ok(outcome) => outcome,
        Err(_elapsed) => Err(Error::new(ErrorKind::Disconnected, "the server did not let us in in time")),
    }
}

async fn lock(options: &ConnectOptions, owner: OwnerId) -> Result<Held> {
    lock_on(connect(options).await?, owner).await
}

async fn connect(options: &ConnectOptions) -> Result<Held> {
    let (client, connection) = connect_client(options).await?;
    client.batch_execute(PREAMBLE).await.map_err(|error| map_client_error(Phase::Query, error))?;
    Ok(Held { client, connection })
}

/// Waits for the lock where the server has not noticed yet that our last connection is gone, but not for ever: two tables opened
/// for one owner would wait for each other.
async fn lock_on(connected: Held, owner: OwnerId) -> Result<Held> {
    let locked = connected.client.execute("SELECT pg_advisory_lock($1)", &[&owner.0.cast_signed()]).await;
    locked.map_err(|error| map_client_error(Phase::Query, error))?;
    Ok(connected)
}
