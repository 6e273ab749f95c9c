//! An ordinary session that lives as long as its owner: connected at its first use, replaced at the next use once it broke.
//!
//! A statement whose connection is lost is never sent again from here: whether it took effect is for the caller to find out.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use postrider_core::error::Result;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::errors::{Phase, map_client_error};
use crate::options::ConnectOptions;
use crate::wire::session::hand_over;
use crate::wire::{Purpose, Wire};

/// Parameters of a statement, which may be sent again with the same.
pub(crate) type Parameters<'a> = Vec<Box<dyn ToSql + Sync + Send + 'a>>;

/// Where a session comes from and what it is told first.
pub(crate) struct Session {
    options: ConnectOptions,
    /// Statements that are sent as the first on each new connection.
    preamble: &'static str,
    current: Mutex<Option<Arc<Connection>>>,
}

/// One connection and its prepared statements.
pub(crate) struct Connection {
    client: Client,
    prepared: StdMutex<HashMap<Arc<str>, Statement>>,
    /// A plan no longer fits its table: only a new connection helps.
    spoiled: AtomicBool,
}

impl Session {
    /// A session that is not connected yet.
    pub(crate) fn new(options: ConnectOptions, preamble: &'static str) -> Session {
        Session { options, preamble, current: Mutex::new(None) }
    }

    /// The connection, a new one if there was none or it broke.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>> {
        let mut current = self.current.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| connection.is_usable()) {
            return Ok(Arc::clone(connection));
        }
        *current = None;
        let connection = Arc::new(Connection::open(&self.options, self.preamble).await?);
        *current = Some(Arc::clone(&connection));
        Ok(connection)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects and sends the preamble.
    pub(crate) async fn open(options: &ConnectOptions, preamble: &str) -> Result<Connection> {
        // The connection's task ends by itself once the client is dropped; why it ended, the next statement says.
        let (client, _task) = connect_client(options).await?;
        client.batch_execute(preamble).await.map_err(|error| map_client_error(Phase::Query, error))?;
        Ok(Connection { client, prepared: StdMutex::default(), spoiled: AtomicBool::new(false) })
    }

    /// Whether the connection is open, as far as one knows without asking the server.
    pub(crate) fn is_usable(&self) -> bool {
        !self.client.is_closed() && !self.spoiled.load(Ordering::Relaxed)
    }

    /// Sends statements without parameters, whose rows nobody needs.
    pub(crate) async fn execute(&self, statements: &str, phase: Phase) -> Result<()> {
        self.client.batch_execute(statements).await.map_err(|error| map_client_error(phase, error))
    }

    /// Runs a statement, prepared at its first use on this connection.
    pub(crate) async fn query(&self, text: &Arc<str>, parameters: &Parameters<'_>) -> Result<Vec<Row>> {
        self.try_query(text, parameters).await.map_err(|error| map_client_error(Phase::Query, error))
    }

    /// As `query`, with the server's error as it came.
    pub(crate) async fn try_query(
        &self,
        text: &Arc<str>,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let outcome = self.run(text, parameters).await;
        if let Err(error) = &outcome {
            // "cached plan must not change result type", and a prepared statement that a pooler lost.
            let spoils = [SqlState::FEATURE_NOT_SUPPORTED, SqlState::INVALID_SQL_STATEMENT_NAME];
            if error.code().is_some_and(|code| spoils.contains(code)) {
                self.spoiled.store(true, Ordering::Relaxed);
            }
        }
        outcome
    }

    async fn run(&self, text: &Arc<str>, parameters: &Parameters<'_>) -> Result<Vec<Row>, tokio_postgres::Error> {
        let statement = self.prepare(text).await?;
        let references: Vec<&(dyn ToSql + Sync)> =
            parameters.iter().map(|parameter| parameter.as_ref() as &(dyn ToSql + Sync)).collect();
        self.client.query(&statement, &references).await
    }

    async fn prepare(&self, text: &Arc<str>) -> Result<Statement, tokio_postgres::Error> {
        let known = self.prepared.lock().unwrap_or_else(PoisonError::into_inner).get(text).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client.prepare(text).await?;
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).insert(Arc::clone(text), statement.clone());
        Ok(statement)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("usable", &self.is_usable()).finish_non_exhaustive()
    }
}

/// Opens a session with the pinned settings. The task drives the connection and ends with it: once the client is
/// dropped, or with the error that the connection ended by.
///
/// # Errors
/// `Authentication`, `Privilege`, `Configuration` (no such database, TLS), `Disconnected` with the places that were
/// tried, `Transient` where a password command is of no use this time.
pub async fn connect_client(options: &ConnectOptions) -> Result<(Client, JoinHandle<Result<()>>)> {
    let (client, connection) = hand_over(Wire::open(options, Purpose::Ordinary).await?).await?;
    let task = tokio::spawn(async move { connection.await.map_err(|error| map_client_error(Phase::Query, error)) });
    Ok((client, task))
}
