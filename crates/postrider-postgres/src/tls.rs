//! TLS to PostgreSQL by rustls: what `sslmode` asks for, and the channel binding of SCRAM.

use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use postrider_core::error::{Error, ErrorKind, Result};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::options::{TlsMode, TlsPolicy, TlsRoots};
use verify::Verifier;

mod verify;

/// Makes TLS sessions by one policy; tokio-postgres asks it, and so does the replication client.
#[derive(Clone)]
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
}

/// A TLS session over a socket.
pub(crate) struct Encrypted<S>(TlsStream<S>);

impl Tls {
    /// Reads the certificates that the policy names.
    ///
    /// # Errors
    /// `Configuration` where they cannot be read, or there are none.
    pub(crate) fn new(policy: &TlsPolicy) -> Result<Tls> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = match policy.mode {
            TlsMode::Disable | TlsMode::Prefer | TlsMode::Require => Vec::new(),
            TlsMode::VerifyCa | TlsMode::VerifyFull => read_roots(&policy.roots)?,
        };
        let verifier = Verifier::new(policy.mode, roots, &provider)?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable("TLS cannot be set up").with_source(error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(Tls { config: Arc::new(config) })
    }

    /// Shakes hands over a socket on which the server has agreed to TLS.
    pub(crate) async fn connect<S>(&self, host: &str, socket: S) -> io::Result<Encrypted<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        TlsConnector::from(Arc::clone(&self.config)).connect(name, socket).await.map(Encrypted)
    }
}

impl<S> Encrypted<S> {
    /// The hash of the server's certificate that SCRAM-SHA-256-PLUS binds to (RFC 5929, section 4); `None` for
    /// signature algorithms
    /// without one that we can compute.
    pub(crate) fn end_point(&self) -> Option<Vec<u8>> {
        let (_, session) = self.0.get_ref();
        verify::end_point(session.peer_certificates()?.first()?)
    }
}

impl<S: AsRawFd> Encrypted<S> {
    /// The socket below.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.get_ref().0.as_raw_fd()
    }
}

impl<S> std::fmt::Debug for Encrypted<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encrypted")
    }
}

impl<S> tokio_postgres::tls::TlsStream for Encrypted<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn channel_binding(&self) -> ChannelBinding {
        self.end_point().map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

impl<S> AsyncRead for Encrypted<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S> AsyncWrite for Encrypted<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// What tokio-postgres shakes hands by: the policy and the host that it connects to.
pub(crate) struct Handshake {
    tls: Tls,
    host: String,
}

impl<S> MakeTlsConnect<S> for Tls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        Ok(Handshake { tls: self.clone(), host: host.to_owned() })
    }
}

impl<S> TlsConnect<S> for Handshake
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted<S>>> + Send>>;

    fn connect(self, socket: S) -> Self::Future {
        Box::pin(async move { self.tls.connect(&self.host, socket).await })
    }
}

fn read_roots(roots: &TlsRoots) -> Result<Vec<CertificateDer<'static>>> {
    let certificates = match roots {
        // What of the system's certificates cannot be read is left out, as every client does.
        TlsRoots::System => rustls_native_certs::load_native_certs().certs,
        TlsRoots::File(path) => CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|error| {
            unusable("the root certificate cannot be read")
                .with_detail(format!("The file is {}.", path.display()))
                .with_hint("Give the PEM file of the authority that signed the server's certificate in sslrootcert.")
                .with_source(error)
        })?,
    };
    if certificates.is_empty() {
        return Err(unusable("there is no root certificate to check the server by")
            .with_hint("Give the file in sslrootcert, or install the package ca-certificates."));
    }
    Ok(certificates)
}

fn unusable(message: &str) -> Error {
    Error::new(ErrorKind::Configuration, message)
}
