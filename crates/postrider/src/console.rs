//! The HTTP server for people and for what watches: `/healthz`, `/readyz`, `/metrics`, `/status`.
//!
//! It answers from memory alone. No request of it reaches the database, so it answers while the database does not.

mod answer;
mod observed;
mod readiness;
pub(crate) mod report;

pub(crate) use answer::Console;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use postrider_core::error::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at once; the next ones wait.
const CONNECTIONS_MAX: usize = 64;

/// A client that does not finish its request head within this is cut off.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// After a failed accept (no file descriptors left, as a rule), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Opens the listening socket.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        Error::new(ErrorKind::Configuration, "cannot listen on the address of the HTTP server")
            .with_source(error)
            .with_detail(format!("The address is {address}."))
            .with_hint("Another Postrider may have it; `[server] listen` names another one.")
    })
}

/// Serves until it is dropped.
pub(crate) async fn serve(listener: TcpListener, console: Arc<Console>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the HTTP server cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let console = console.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| std::future::ready(console.answer(&request)));
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).keep_alive(true);
            if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!(%error, "a client of the HTTP server went away");
            }
            drop(permit);
        });
    }
}
