//! Whom an endpoint is trusted by, and who we are to it.

use crate::from_files::{FileWatch, FromFiles};
use postrider_core::error::{Error, ErrorKind, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_rustls::TlsConnector;

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

/// Files in PEM that an endpoint's connections are made with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TlsFiles {
    /// The authorities that sign the endpoint's certificate, and no others; `None`: those of [`TlsRoots`].
    pub authorities: Option<PathBuf>,
    /// Who we are; `None`: nobody in particular.
    pub client: Option<ClientFiles>,
}

/// A certificate of ours.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientFiles {
    /// The certificate, and behind it those that lead to an authority.
    pub certificate: PathBuf,
    /// Its private key, without a password.
    pub key: PathBuf,
}

/// What connections are made with, from now on whenever one of the files has changed.
pub(crate) fn connector(
    roots: &TlsRoots,
    files: Option<&TlsFiles>,
    watch: &FileWatch,
) -> Result<FromFiles<TlsConnector>> {
    let files = files.cloned().unwrap_or(TlsFiles { authorities: None, client: None });
    let client = files.client.iter().flat_map(|client| [client.certificate.clone(), client.key.clone()]);
    let paths = files.authorities.iter().cloned().chain(client).collect();
    let roots = roots.clone();
    FromFiles::new(paths, watch, move |contents| {
        let config = client_config(&roots, &files, contents)?;
        Ok(TlsConnector::from(Arc::new(config)))
    })
}

/// `contents` are those of the authorities, the certificate and the key, as far as there are such files.
fn client_config(roots: &TlsRoots, files: &TlsFiles, contents: &[Vec<u8>]) -> Result<ClientConfig> {
    let mut contents = contents.iter();
    let store = match files.authorities.as_ref().and_then(|path| Some((path, contents.next()?))) {
        Some((path, pem)) => pem_roots(pem).map_err(|error| of_file(error, path))?,
        None => match roots {
            TlsRoots::System => system_roots(),
            TlsRoots::Pem(pem) => pem_roots(pem)?,
        },
    };
    if store.is_empty() {
        return Err(unusable("no trusted root certificates for an https endpoint")
            .with_hint("Install the package ca-certificates, or name a file with the certificates to trust."));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(ErrorKind::Internal, "no TLS version to offer").with_source(error))?
        .with_root_certificates(store);
    let mut config = match (&files.client, contents.next(), contents.next()) {
        (Some(client), Some(certificate), Some(key)) => {
            let chain = chain_of(certificate).map_err(|error| of_file(error, &client.certificate))?;
            // The parser's own words may hold the line that it does not understand, which can be the key.
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
                let error = unusable("unreadable private key").with_hint(
                    "It must be in PEM and without a password: openssl pkey -in KEY -out PLAIN takes one off.",
                );
                of_file(error, &client.key)
            })?;
            builder.with_client_auth_cert(chain, key).map_err(|error| {
                of_file(
                    unusable("certificate and private key do not go together").with_source(error),
                    &client.certificate,
                )
            })?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn system_roots() -> RootCertStore {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    store
}

fn pem_roots(pem: &[u8]) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    for certificate in chain_of(pem)? {
        store.add(certificate).map_err(|error| unusable("unusable root certificate").with_source(error))?;
    }
    Ok(store)
}

/// The certificates of a PEM text: at least one.
fn chain_of(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| {
            unusable("unreadable certificates").with_hint(
                "It must be in PEM, each between a line BEGIN CERTIFICATE and a line END CERTIFICATE; a private key has its own file.",
            )
        })?;
    if chain.is_empty() {
        return Err(unusable("no certificate in PEM"));
    }
    Ok(chain)
}

fn unusable(message: &str) -> Error {
    Error::new(ErrorKind::Configuration, message)
}

fn of_file(error: Error, path: &std::path::Path) -> Error {
    error.with_detail(format!("The file is {}.", path.display()))
}
