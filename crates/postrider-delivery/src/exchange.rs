//! One request and its whole answer, within one deadline, over connections that are kept.
//!
//! The connections are pooled here, over hyper's own HTTP/1.1 connection, and not by a ready-made client: it has to be
//! known at each moment whether a byte of the request may have left, because a request that did not leave may be sent
//! again by anybody and one that did may not.

use crate::connect::{Dialer, Sender};
use crate::endpoint::{Endpoint, Via};
use crate::from_files::{FileWatch, FromFiles};
use crate::header::POSTRIDER_DEADLINE;
use crate::tls::{TlsFiles, TlsRoots, connector};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request, Response};
use postrider_core::error::Result;
use postrider_core::outcome::{Lost, NotSent};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

/// The most bytes of an answer's body that are read; nothing in them decides. After more the connection is closed.
const ANSWER_BODY_BYTES_MAX: usize = 64 * 1024;

/// How connections are made and kept.
#[derive(Debug, Clone)]
pub struct HttpSettings {
    /// For name, TCP and TLS together.
    pub connect_timeout: Duration,
    /// Connections kept open without a request, for each scheme, host, port and certificate of ours.
    pub idle_per_host_max: usize,
    /// A connection idle for longer is not used again: shorter than what servers allow (often 5 s), since a request that
    /// meets the server's closing is lost in doubt.
    pub idle_max: Duration,
    pub roots: TlsRoots,
    pub files: FileWatch,
}

impl Default for HttpSettings {
    fn default() -> HttpSettings {
        HttpSettings {
            connect_timeout: Duration::from_secs(3),
            idle_per_host_max: 256,
            idle_max: Duration::from_secs(4),
            roots: TlsRoots::System,
            files: FileWatch::default(),
        }
    }
}

/// What a request adds to its endpoint.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// From now to the last byte of the answer.
    pub(crate) timeout: Duration,
}

/// The head of an answer whose body came, too.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// Of the body, where the status is no 2xx and the body is neither empty nor too long.
    pub(crate) body_sha256: Option<[u8; 32]>,
}

/// Why there is no answer. All that is in doubt is `Lost`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unanswered {
    NotSent(NotSent),
    Lost(Lost),
}

/// Sends requests to a fixed set of endpoints.
pub(crate) struct HttpClient {
    dialer: Dialer,
    idle_per_host_max: usize,
    idle_max: Duration,
    pools: HashMap<Via, Pool>,
}

/// What connections are made with, until its files change.
type Tls = Option<Arc<TlsConnector>>;

/// The connections to one place, made with the same files.
pub(crate) struct Pool {
    /// `None` for `http`. Pools with the same files share it.
    tls: Option<Arc<FromFiles<TlsConnector>>>,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    sender: Sender,
    since: Instant,
    tls: Tls,
}

impl HttpClient {
    pub(crate) fn new<'a>(
        settings: &HttpSettings,
        endpoints: impl IntoIterator<Item = &'a Endpoint>,
    ) -> Result<HttpClient> {
        let mut connectors: HashMap<Option<Arc<TlsFiles>>, Arc<FromFiles<TlsConnector>>> = HashMap::new();
        let mut pools = HashMap::new();
        for endpoint in endpoints {
            let tls = match connectors.get(&endpoint.tls) {
                _ if !endpoint.secure => None,
                Some(made) => Some(Arc::clone(made)),
                // Only where an endpoint is `https`: a machine without trusted roots can still speak plain HTTP.
                None => {
                    let made = Arc::new(connector(&settings.roots, endpoint.tls.as_deref(), &settings.files)?);
                    connectors.insert(endpoint.tls.clone(), Arc::clone(&made));
                    Some(made)
                }
            };
            pools.insert(endpoint.via(), Pool { tls, idle: Mutex::new(Vec::new()) });
        }
        Ok(HttpClient {
            dialer: Dialer { connect_timeout: settings.connect_timeout },
            idle_per_host_max: settings.idle_per_host_max,
            idle_max: settings.idle_max,
            pools,
        })
    }

    /// Sends a `POST` once and waits for the whole answer. Follows no redirect.
    pub(crate) async fn send(&self, endpoint: &Endpoint, outgoing: Outgoing) -> Result<Reply, Unanswered> {
        let left = AtomicBool::new(false);
        let limit = outgoing.timeout;
        let result = match timeout(limit, self.exchange(endpoint, outgoing, &left)).await {
            Ok(result) => result,
            Err(_) if left.load(Ordering::Relaxed) => Err(Unanswered::Lost(Lost::Timeout)),
            Err(_) => Err(Unanswered::NotSent(NotSent::ConnectTimeout)),
        };
        if let Err(unanswered) = &result {
            tracing::debug!(endpoint = &*endpoint.origin, ?unanswered, "no answer");
        }
        result
    }

    /// Sets `left` as soon as a byte of the request may have been written.
    async fn exchange(&self, endpoint: &Endpoint, outgoing: Outgoing, left: &AtomicBool) -> Result<Reply, Unanswered> {
        let started = Instant::now();
        let limit = outgoing.timeout;
        // Every endpoint was there when the pools were made.
        let pool = self.pools.get(&endpoint.via()).ok_or(Unanswered::NotSent(NotSent::Resolve))?;
        let tls: Tls = pool.tls.as_ref().map(|tls| tls.current());
        let mut request = request_to(endpoint, outgoing);
        loop {
            let (mut sender, reused) = match self.idle_connection(pool, &tls).await {
                Some(sender) => (sender, true),
                None => (self.dialer.dial(endpoint, tls.as_deref()).await.map_err(Unanswered::NotSent)?, false),
            };
            let millis_left = limit.saturating_sub(started.elapsed()).as_millis();
            request.headers_mut().insert(POSTRIDER_DEADLINE, u64::try_from(millis_left).unwrap_or(u64::MAX).into());
            left.store(true, Ordering::Relaxed);
            let mut error = match sender.try_send_request(request).await {
                Ok(response) => return self.finish(pool, (sender, tls), response).await,
                Err(error) => error,
            };
            // hyper hands the request back only if it was still queued when the connection ended. Going on with another
            // connection is then no repetition. It ends: each lap takes one connection out of the pool.
            request = match error.take_message() {
                Some(unsent) if reused => unsent,
                Some(_) => return Err(Unanswered::NotSent(NotSent::Refused)),
                None => return Err(Unanswered::Lost(Lost::Reset)),
            };
            left.store(false, Ordering::Relaxed);
        }
    }

    /// Reads the body to its end and keeps the connection.
    async fn finish(
        &self,
        pool: &Pool,
        (sender, tls): (Sender, Tls),
        response: Response<Incoming>,
    ) -> Result<Reply, Unanswered> {
        let (head, mut body) = response.into_parts();
        let mut reply = Reply { status: head.status.as_u16(), headers: head.headers, body_sha256: None };
        let mut hash = (!head.status.is_success()).then(Sha256::new);
        let mut bytes_read: usize = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Unanswered::Lost(Lost::Reset))?;
            let data = frame.data_ref().map_or(&[][..], |data| &data[..]);
            if let Some(hash) = &mut hash {
                hash.update(data);
            }
            bytes_read = bytes_read.saturating_add(data.len());
            if bytes_read > ANSWER_BODY_BYTES_MAX {
                // Dropping body and sender closes the connection.
                return Ok(reply);
            }
        }
        self.keep(pool, sender, tls);
        reply.body_sha256 = hash.filter(|_| bytes_read > 0).map(|hash| hash.finalize().into());
        Ok(reply)
    }

    /// The connection that was used last, if it can be used again.
    async fn idle_connection(&self, pool: &Pool, tls: &Tls) -> Option<Sender> {
        loop {
            let idle = pool.idle().pop()?;
            if idle.since.elapsed() > self.idle_max {
                // Those below it are older still.
                pool.idle().retain(|older| older.since > idle.since);
                continue;
            }
            // On a connection from before the files changed we are still who we were.
            if idle.tls.as_ref().map(Arc::as_ptr) != tls.as_ref().map(Arc::as_ptr) {
                continue;
            }
            let mut sender = idle.sender;
            // Also waits until the connection's task has seen the end of the exchange before.
            if sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    fn keep(&self, pool: &Pool, sender: Sender, tls: Tls) {
        if sender.is_closed() {
            return;
        }
        let mut idle = pool.idle();
        if idle.len() < self.idle_per_host_max {
            idle.push(Idle { sender, since: Instant::now(), tls });
        }
    }
}

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        // A list of idle connections is valid whoever panicked while holding it.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").field("pools", &self.pools.keys()).finish_non_exhaustive()
    }
}

fn request_to(endpoint: &Endpoint, outgoing: Outgoing) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(outgoing.body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = endpoint.target.clone();
    *request.headers_mut() = outgoing.headers;
    request
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
