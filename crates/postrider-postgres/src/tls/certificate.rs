//! The client's certificate and its key, which must be as private as libpq wants it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use postrider_core::error::{Error, ErrorKind, Result};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::verify::subject_public_key_info;
use crate::options::ClientCertificate;

/// The certificate with those that vouch for it, and the key. `None`: none is where one is looked for without being named.
pub(super) fn read(named: &ClientCertificate, provider: &CryptoProvider) -> Result<Option<CertifiedKey>> {
    let path = &named.certificate;
    if named.is_optional && !path.exists() {
        return Ok(None);
    }
    let chain = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| {
        unusable("the client certificate cannot be read", path, "Give its PEM file in sslcert.").with_source(error)
    })?;
    let Some(own) = chain.first() else {
        return Err(unusable("the client certificate's file holds none", path, "Give its PEM file in sslcert."));
    };
    let key = read_key(&named.key)?;
    let key = provider.key_provider.load_private_key(key).map_err(|error| {
        unusable("the client certificate's key is of an unknown kind", &named.key, "Use an RSA, ECDSA or Ed25519 key.")
            .with_source(error)
    })?;
    // rustls would compare them, too, but reads no certificate of version 1.
    if let (Some(of_key), Some(of_certificate)) = (key.public_key(), subject_public_key_info(own))
        && of_key.as_ref() != of_certificate
    {
        return Err(unusable(
            "the client certificate and its key do not go together",
            path,
            "Check that sslkey is the key of the certificate in sslcert.",
        ));
    }
    Ok(Some(CertifiedKey::new(chain, key)))
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    check_privacy(path)?;
    let text = fs::read(path).map_err(|error| unreadable(path, error))?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let is_encrypted = text.windows(9).any(|window| window == b"ENCRYPTED");
        let hint = if is_encrypted {
            "Encrypted keys are not read. Decrypt it, and keep the file at mode 0600: openssl pkey -in client.key -out plain.key."
        } else {
            "Give the PEM file of a PKCS#8, PKCS#1 or SEC1 key in sslkey."
        };
        unusable("the client certificate's key cannot be read", path, hint).with_source(error)
    })
}

/// libpq's rule: nobody else may read it; a key that root owns may be read by the group.
fn check_privacy(key: &Path) -> Result<()> {
    let metadata = fs::metadata(key).map_err(|error| unreadable(key, error))?;
    if !metadata.is_file() {
        return Err(unusable("the client certificate's key is no plain file", key, "Give its PEM file in sslkey."));
    }
    let forbidden = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.mode() & forbidden != 0 {
        let hint = "Close it: chmod 0600, or 0640 where root owns it.";
        return Err(unusable("the client certificate's key may be accessed by others", key, hint));
    }
    Ok(())
}

fn unreadable(key: &Path, error: io::Error) -> Error {
    unusable("the client certificate's key cannot be read", key, "Give its PEM file in sslkey.").with_source(error)
}

fn unusable(message: &str, path: &Path, hint: &str) -> Error {
    Error::new(ErrorKind::Configuration, message)
        .with_detail(format!("The file is {}.", path.display()))
        .with_hint(hint)
}
