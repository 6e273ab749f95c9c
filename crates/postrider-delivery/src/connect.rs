//! A connection to an endpoint: name, TCP, TLS, and HTTP/1.1 over it. Nothing of a request has left before it is there.

use crate::endpoint::Endpoint;
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use postrider_core::outcome::NotSent;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

/// The most bytes that the head of an answer may have.
const ANSWER_HEAD_BYTES_MAX: usize = 64 * 1024;

/// One side of an HTTP/1.1 connection; the other side is a task that ends when this is dropped.
pub(crate) type Sender = SendRequest<Full<Bytes>>;

/// Opens connections.
#[derive(Debug)]
pub(crate) struct Dialer {
    pub(crate) connect_timeout: Duration,
}

impl Dialer {
    /// Opens one connection within the connect time-out, which covers name, TCP and TLS.
    pub(crate) async fn dial(&self, endpoint: &Endpoint, tls: Option<&TlsConnector>) -> Result<Sender, NotSent> {
        timeout(self.connect_timeout, self.open(endpoint, tls)).await.unwrap_or(Err(NotSent::ConnectTimeout))
    }

    async fn open(&self, endpoint: &Endpoint, tls: Option<&TlsConnector>) -> Result<Sender, NotSent> {
        let stream = self.connect(endpoint).await?;
        if !endpoint.secure {
            return speak(stream).await;
        }
        let tls = tls.ok_or(NotSent::Tls)?;
        let name = ServerName::try_from(endpoint.host.to_string()).map_err(|_| NotSent::Tls)?;
        speak(tls.connect(name, stream).await.map_err(|_| NotSent::Tls)?).await
    }

    /// Tries the host's addresses in turn, each with an equal share of the time that is left, so that one that swallows
    /// packets does not hide the next.
    async fn connect(&self, endpoint: &Endpoint) -> Result<TcpStream, NotSent> {
        let started = Instant::now();
        let found = lookup_host((&*endpoint.host, endpoint.port)).await.map_err(|_| NotSent::Resolve)?;
        let addresses: Vec<SocketAddr> = found.collect();
        let mut failure = NotSent::Resolve;
        for (address, untried) in addresses.iter().zip((1..=addresses.len()).rev()) {
            let left = self.connect_timeout.saturating_sub(started.elapsed());
            let share = left / u32::try_from(untried).unwrap_or(u32::MAX);
            failure = match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Without it a small request can wait for the acknowledgement of the one before.
                    stream.set_nodelay(true).map_err(|_| NotSent::Refused)?;
                    return Ok(stream);
                }
                Ok(Err(_)) => NotSent::Refused,
                Err(_) => NotSent::ConnectTimeout,
            };
        }
        Err(failure)
    }
}

async fn speak<S>(stream: S) -> Result<Sender, NotSent>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = Builder::new().max_buf_size(ANSWER_HEAD_BYTES_MAX).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(|_| NotSent::Refused)?;
    // The task's errors reach whoever waits for an answer; on an idle connection they are of no interest.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}
