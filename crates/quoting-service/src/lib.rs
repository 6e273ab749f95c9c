//! What: a small service with stages as HTTP endpoints on its own business tables, and a consumer of outbox events.
//! Where: at the far end of the walk; it stands in for an application's core services.
//! Takes and gives: stage calls and events; answers that a repeat gets again.
//! Never: reads or writes the work table or the outbox, or knows who calls.
//!
//! `stages.rs` and `events.rs` are the two files to copy from: each does its business writes in one transaction with the
//! receiver's store. The rest makes it a process (pool, listener) or makes it a test (faults, records).

mod events;
mod faults;
mod line;
mod pool;
mod records;
mod reply;
mod stages;

use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio_postgres::Config;

pub use faults::{Faults, Sabotage};

use line::{Cut, Door};
use pool::Pool;
use records::Records;

/// How many requests work in the database at once; more wait for a connection.
const CONNECTIONS: usize = 12;

/// How many connections write the service's own record of what it was asked.
const RECORD_CONNECTIONS: usize = 2;

/// What the service is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The database of the business tables.
    pub database: Config,
    /// What goes wrong on purpose after a commit.
    pub faults: Faults,
    /// Which safety is taken away, if any.
    pub sabotage: Option<Sabotage>,
}

/// The service: its connections, and what is to go wrong.
#[derive(Debug)]
pub struct Service {
    pool: Pool,
    records: Records,
    faults: Faults,
    /// Events that came once: only their first delivery may meet a fault, else the same one would be lost each time.
    delivered: Mutex<HashSet<String>>,
    sabotage: Option<Sabotage>,
}

impl Service {
    /// Connects and creates the tables that are not there.
    ///
    /// # Errors
    ///
    /// If the database cannot be reached, or the role may not create a schema.
    pub async fn open(settings: Settings) -> Result<Arc<Service>, postrider_receiver::Error> {
        let pool = Pool::new(settings.database.clone(), CONNECTIONS);
        let mut client = pool.lend().await?;
        postrider_receiver::install(&mut client).await?;
        client.batch_execute(include_str!("../sql/0001_create_quoting.sql")).await?;
        drop(client);
        let records = Records::new(settings.database, RECORD_CONNECTIONS);
        let delivered = Mutex::default();
        Ok(Arc::new(Service { pool, records, faults: settings.faults, delivered, sabotage: settings.sabotage }))
    }
}

/// Serves until `stop` is ready, then finishes what was begun.
///
/// # Errors
///
/// If the listener fails for good.
pub async fn serve(
    listener: TcpListener,
    service: Arc<Service>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let routes = Router::new()
        .route("/stages/{stage}", post(stages::stage))
        .route("/events", post(events::event))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(service);
    axum::serve(Door::new(listener), routes.into_make_service_with_connect_info::<Cut>())
        .with_graceful_shutdown(stop)
        .await
}
