//! A connection to an endpoint: name, TCP, TLS, and HTTP/1.1 over it. Nothing of a request has left before it is there.

use crate::endpoint::Endpoint;
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::outcome::NotSent;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

/// The most bytes that the head of an answer may have.
const ANSWER_HEAD_BYTES_MAX: usize = 64 * 1024;

/// Whom `https` endpoints are trusted by.
#[derive(Clone, Default)]
pub enum TlsRoots {
    /// The certificate authorities that the machine trusts.
    #[default]
    System,
    /// The certificates of a PEM text, and no others.
    Pem(Vec<u8>),
}

impl fmt::Debug for TlsRoots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TlsRoots::System => "System",
            TlsRoots::Pem(_) => "Pem",
        })
    }
}

/// One side of an HTTP/1.1 connection; the other side is a task that ends when this is dropped.
pub(crate) type Sender = SendRequest<Full<Bytes>>;

/// Opens connections.
pub(crate) struct Dialer {
    connect_timeout: Duration,
    /// `None` where no endpoint is `https`.
    tls: Option<TlsConnector>,
}

impl Dialer {
    /// Reads the trusted roots only if `secure`: a machine without any can still speak plain HTTP.
    pub(crate) fn new(connect_timeout: Duration, roots: &TlsRoots, secure: bool) -> Result<Dialer> {
        let tls = if secure { Some(TlsConnector::from(Arc::new(client_config(roots)?))) } else { None };
        Ok(Dialer { connect_timeout, tls })
    }

    /// Opens one connection within the connect time-out, which covers name, TCP and TLS.
    pub(crate) async fn dial(&self, endpoint: &Endpoint) -> Result<Sender, NotSent> {
        timeout(self.connect_timeout, self.open(endpoint)).await.unwrap_or(Err(NotSent::ConnectTimeout))
    }

    async fn open(&self, endpoint: &Endpoint) -> Result<Sender, NotSent> {
        let stream = self.connect(endpoint).await?;
        if !endpoint.secure {
            return speak(stream).await;
        }
        let tls = self.tls.as_ref().ok_or(NotSent::Tls)?;
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

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("connect_timeout", &self.connect_timeout).finish_non_exhaustive()
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

fn client_config(roots: &TlsRoots) -> Result<ClientConfig> {
    let wrong = |message: &str| Error::new(ErrorKind::Configuration, message);
    let mut store = RootCertStore::empty();
    match roots {
        TlsRoots::System => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        TlsRoots::Pem(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate =
                    certificate.map_err(|error| wrong("unreadable root certificates").with_source(error))?;
                store.add(certificate).map_err(|error| wrong("unusable root certificate").with_source(error))?;
            }
        }
    }
    if store.is_empty() {
        return Err(wrong("no trusted root certificates for an https endpoint")
            .with_hint("Install the package ca-certificates, or name a file with the certificates to trust."));
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(ErrorKind::Internal, "no TLS version to offer").with_source(error))?
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
