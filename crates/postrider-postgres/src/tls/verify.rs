//! Judges the server's certificate by `sslmode`, and hashes it for channel binding.

use std::sync::Arc;

use postrider_core::error::{Error, ErrorKind, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::options::TlsMode;

/// Object identifiers of signature algorithms, as DER content, and the hash that RFC 5929 names for each.
const SIGNATURE_HASHES: [(&[u8], Hash); 7] = [
    // md5WithRSAEncryption and the SHA-1 ones are raised to SHA-256.
    (&[0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x04], Hash::Sha256),
    (&[0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x05], Hash::Sha256),
    (&[0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x04, 0x01], Hash::Sha256),
    (&[0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x0B], Hash::Sha256),
    (&[0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x04, 0x03, 0x02], Hash::Sha256),
    (&[0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x0C], Hash::Sha384),
    (&[0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x04, 0x03, 0x03], Hash::Sha384),
];

const DER_SEQUENCE: u8 = 0x30;
const DER_OBJECT_IDENTIFIER: u8 = 0x06;
const DER_EXPLICIT_VERSION: u8 = 0xA0;

#[derive(Debug, Clone, Copy)]
enum Hash {
    Sha256,
    Sha384,
}

/// Checks as much of the certificate as the mode asks for.
#[derive(Debug)]
pub(crate) struct Verifier {
    mode: TlsMode,
    store: RootCertStore,
    /// The same roots as they were read: a server's own certificate among them is trusted as it is, as by libpq.
    /// webpki does not take one that
    /// calls itself an authority, as the usual self-signed ones do.
    pinned: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    pub(crate) fn new(
        mode: TlsMode,
        roots: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Verifier> {
        let mut store = RootCertStore::empty();
        let (added, _refused) = store.add_parsable_certificates(roots.iter().cloned());
        if added == 0 && !roots.is_empty() {
            return Err(Error::new(ErrorKind::Configuration, "the root certificate cannot be read"));
        }
        Ok(Verifier { mode, store, pinned: roots, algorithms: provider.signature_verification_algorithms })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if !matches!(self.mode, TlsMode::VerifyCa | TlsMode::VerifyFull) {
            return Ok(ServerCertVerified::assertion());
        }
        let is_pinned = self.pinned.iter().any(|root| root == end_entity);
        if is_pinned && self.mode == TlsMode::VerifyCa {
            return Ok(ServerCertVerified::assertion());
        }
        let certificate = ParsedCertificate::try_from(end_entity).map_err(|error| explain(end_entity, error))?;
        if !is_pinned {
            verify_server_cert_signed_by_trust_anchor(
                &certificate,
                &self.store,
                intermediates,
                now,
                self.algorithms.all,
            )?;
        }
        if self.mode == TlsMode::VerifyFull {
            verify_server_name(&certificate, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        match subject_public_key_info(certificate) {
            // By the key alone: what the certificate says of itself is judged above, and webpki reads none of version 1.
            Some(key) if is_version_1(certificate) => rustls::crypto::verify_tls13_signature_with_raw_key(
                message,
                &SubjectPublicKeyInfoDer::from(key),
                signature,
                &self.algorithms,
            ),
            _ => rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// `tls-server-end-point`: the certificate's hash by the hash of its signature, at least SHA-256 (RFC 5929, section
/// 4.1).
pub(crate) fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let identifier = signature_algorithm(certificate)?;
    let (_, hash) = SIGNATURE_HASHES.iter().find(|(known, _)| *known == identifier)?;
    let suite = match hash {
        Hash::Sha256 => rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        Hash::Sha384 => rustls::crypto::ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
    };
    Some(suite.tls13()?.common.hash_provider.hash(certificate).as_ref().to_vec())
}

/// The certificate's public key with its algorithm, in DER.
pub(crate) fn subject_public_key_info(certificate: &[u8]) -> Option<&[u8]> {
    let mut fields = to_be_signed(certificate)?;
    if fields.first() == Some(&DER_EXPLICIT_VERSION) {
        (_, fields) = der_split(fields)?;
    }
    // serialNumber, signature, issuer, validity, subject
    for _ in 0..5 {
        (_, fields) = der_split(fields)?;
    }
    der_split(fields).map(|(key, _)| key).filter(|key| key.first() == Some(&DER_SEQUENCE))
}

/// Version 1 is the one that is not written down.
fn is_version_1(certificate: &[u8]) -> bool {
    to_be_signed(certificate).is_some_and(|fields| fields.first() != Some(&DER_EXPLICIT_VERSION))
}

/// `openssl x509 -req` makes such certificates unless it is told to do otherwise; nothing in one says for which host it is.
fn explain(certificate: &[u8], error: rustls::Error) -> rustls::Error {
    if is_version_1(certificate) {
        return rustls::Error::General(
            "the server's certificate is of X.509 version 1; make it anew with the extension subjectAltName, by openssl x509 -req -extfile …".to_owned(),
        );
    }
    error
}

/// `Certificate ::= SEQUENCE { tbsCertificate SEQUENCE, … }`.
fn to_be_signed(certificate: &[u8]) -> Option<&[u8]> {
    let (outer, _) = der_value(certificate, DER_SEQUENCE)?;
    der_value(outer, DER_SEQUENCE).map(|(fields, _)| fields)
}

/// `Certificate ::= SEQUENCE { tbsCertificate SEQUENCE, signatureAlgorithm SEQUENCE { algorithm OBJECT IDENTIFIER, …
/// }, … }`.
fn signature_algorithm(certificate: &[u8]) -> Option<&[u8]> {
    let (outer, _) = der_value(certificate, DER_SEQUENCE)?;
    let (_to_be_signed, rest) = der_value(outer, DER_SEQUENCE)?;
    let (algorithm, _) = der_value(rest, DER_SEQUENCE)?;
    der_value(algorithm, DER_OBJECT_IDENTIFIER).map(|(identifier, _)| identifier)
}

/// The value at the front as a whole, tag and length included, and what comes after it.
fn der_split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_content, rest) = der_value(bytes, *bytes.first()?)?;
    bytes.split_at_checked(bytes.len().checked_sub(rest.len())?)
}

/// The content of the value at the front, which must have this tag, and what comes after it.
fn der_value(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    if found != tag {
        return None;
    }
    let (len, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7F))?;
        let mut len = 0usize;
        for &digit in digits {
            len = len.checked_mul(256)?.checked_add(usize::from(digit))?;
        }
        (len, rest)
    };
    rest.split_at_checked(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_algorithm_is_found_and_every_cut_refused() {
        let oid = [0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x0B];
        let mut certificate = vec![0x30, 0x81, 19, 0x30, 2, 5, 0, 0x30, 13, 0x06, 9];
        certificate.extend(oid);
        certificate.extend([5, 0]);
        assert_eq!(signature_algorithm(&certificate), Some(&oid[..]));
        assert_eq!(end_point(&certificate).map(|hash| hash.len()), Some(32));
        for cut in 0..certificate.len() {
            assert_eq!(signature_algorithm(&certificate[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn the_public_key_is_found_in_every_version_and_every_cut_refused() {
        let key = [0x30, 3, 2, 1, 9];
        for version in [&[0xA0, 3, 2, 1, 2][..], &[]] {
            let fields: Vec<u8> = [version, &[2, 1, 7], &[0x30, 0].repeat(4), &key].concat();
            let mut certificate = vec![0x30, u8::try_from(fields.len() + 2).expect("short"), 0x30];
            certificate.push(u8::try_from(fields.len()).expect("short"));
            certificate.extend(fields);
            assert_eq!(subject_public_key_info(&certificate), Some(&key[..]));
            assert_eq!(is_version_1(&certificate), version.is_empty());
            for cut in 0..certificate.len() {
                assert_eq!(subject_public_key_info(&certificate[..cut]), None, "cut at {cut}");
            }
        }
    }
}
