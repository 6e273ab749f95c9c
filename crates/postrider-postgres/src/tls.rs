//! TLS to PostgreSQL by rustls: what `sslmode` asks for, and the channel binding of SCRAM.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use postrider_core::error::{Error, ErrorKind, Result};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, SupportedProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::options::{TlsMode, TlsPolicy, TlsRoots, TlsVersions};
use verify::Verifier;

mod certificate;
mod verify;

/// Makes TLS sessions by one policy.
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
        let (mode, roots) = resolve(policy)?;
        let verifier = Verifier::new(mode, roots, &provider)?;
        let own = policy.certificate.as_ref().map(|named| certificate::read(named, &provider)).transpose()?.flatten();
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions(policy.versions))
            .map_err(|error| unusable("TLS cannot be set up").with_source(error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own))),
        };
        config.enable_sni = policy.names_host;
        // A server of version 17 or later wants to hear it where TLS comes first; older ones do not listen.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
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

impl<S> Encrypted<S> {
    /// The socket below.
    pub(crate) fn socket(&self) -> &S {
        self.0.get_ref().0
    }
}

impl<S> std::fmt::Debug for Encrypted<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encrypted")
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

/// How much is to be proved, and by whose word.
fn resolve(policy: &TlsPolicy) -> Result<(TlsMode, Vec<CertificateDer<'static>>)> {
    let file = match &policy.roots {
        TlsRoots::System => None,
        TlsRoots::File(path) => Some(path),
        TlsRoots::Home(path) => Some(path).filter(|path| path.exists()),
    };
    let mode = match policy.mode {
        TlsMode::Require if file.is_some() => TlsMode::VerifyCa,
        mode => mode,
    };
    let roots = match (mode, file) {
        (TlsMode::Disable | TlsMode::Prefer | TlsMode::Require, _) => return Ok((mode, Vec::new())),
        // What of the system's certificates cannot be read is left out, as every client does.
        (_, None) => rustls_native_certs::load_native_certs().certs,
        (_, Some(path)) => read_roots(path)?,
    };
    if roots.is_empty() {
        return Err(unusable("there is no root certificate to check the server by")
            .with_hint("Give the file in sslrootcert, or install the package ca-certificates."));
    }
    Ok((mode, roots))
}

fn read_roots(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|error| {
        unusable("the root certificate cannot be read")
            .with_detail(format!("The file is {}.", path.display()))
            .with_hint("Give the PEM file of the authority that signed the server's certificate in sslrootcert.")
            .with_source(error)
    })
}

fn versions(versions: TlsVersions) -> Vec<&'static SupportedProtocolVersion> {
    match versions {
        TlsVersions::Both => vec![&rustls::version::TLS13, &rustls::version::TLS12],
        TlsVersions::Only12 => vec![&rustls::version::TLS12],
        TlsVersions::Only13 => vec![&rustls::version::TLS13],
    }
}

fn unusable(message: &str) -> Error {
    Error::new(ErrorKind::Configuration, message)
}
