//! What: tells whether two requests under one key are the same request.
//! Where: beside the key in `postrider_receiver.idempotency_keys`.
//! Takes and gives: method, path, query and body as they came; 32 bytes.
//! Never: covers a header, since headers differ from attempt to attempt.

use sha2::{Digest, Sha256};

/// SHA-256 over method, path, query and body, each behind its length as eight bytes, most significant first.
///
/// The SQL function `postrider_receiver.request_fingerprint` computes the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Computes the fingerprint of a request; one without a query has an empty `query`.
    pub fn of(method: &str, path: &str, query: &str, body: &[u8]) -> Fingerprint {
        let mut digest = Sha256::new();
        for part in [method.as_bytes(), path.as_bytes(), query.as_bytes(), body] {
            let bytes = u64::try_from(part.len()).expect("a length in memory fits 64 bits");
            digest.update(bytes.to_be_bytes());
            digest.update(part);
        }
        Fingerprint(digest.finalize().into())
    }

    /// The 32 bytes as the store keeps them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Fingerprint;

    #[test]
    fn every_part_counts_and_none_runs_into_the_next() {
        let all = [
            Fingerprint::of("POST", "/p", "", b"body"),
            Fingerprint::of("PUT", "/p", "", b"body"),
            Fingerprint::of("POST", "/pb", "", b"ody"),
            Fingerprint::of("POST", "/p", "b", b"ody"),
            Fingerprint::of("POST", "/p", "", b"bodi"),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all.iter().skip(at + 1).all(|other| other != one), "{at}");
        }
    }
}
