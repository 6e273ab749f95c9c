//! Signs requests as Standard Webhooks has it (version 1.0.0): HMAC-SHA256 over `id.timestamp.body`.

use data_encoding::BASE64;
use hmac::{Hmac, KeyInit, Mac};
use postrider_core::error::{Error, ErrorKind, Result};
use sha2::Sha256;
use std::fmt;

/// What a secret begins with.
const PREFIX: &str = "whsec_";

/// A secret has so many bytes.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// The secrets that a request is signed with: one, and while it is exchanged two, with a signature each.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Signers(Vec<Vec<u8>>);

impl Signers {
    /// Reads secrets with white space between them, each `whsec_` and base64.
    pub(crate) fn parse(text: &str) -> Result<Signers> {
        let secrets: Vec<Vec<u8>> = text.split_ascii_whitespace().map(secret).collect::<Result<_>>()?;
        if secrets.is_empty() {
            return Err(unusable("It is empty."));
        }
        Ok(Signers(secrets))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The value of `webhook-signature`.
    pub(crate) fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let signatures = self.0.iter().map(|secret| {
            let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
            mac.update(format!("{id}.{timestamp}.").as_bytes());
            mac.update(body);
            format!("v1,{}", BASE64.encode(&mac.finalize().into_bytes()))
        });
        signatures.collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Debug for Signers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

fn secret(word: &str) -> Result<Vec<u8>> {
    let encoded = word.strip_prefix(PREFIX).ok_or_else(|| unusable("It does not begin with whsec_."))?;
    let bytes = BASE64.decode(encoded.as_bytes()).map_err(|_| unusable("What follows whsec_ is not base64."))?;
    if !SECRET_BYTES.contains(&bytes.len()) {
        return Err(unusable("It has less than 24 or more than 64 bytes."));
    }
    Ok(bytes)
}

fn unusable(detail: &str) -> Error {
    Error::new(ErrorKind::Configuration, "unusable signing secret")
        .with_detail(detail)
        .with_hint("Make one with: echo whsec_$(openssl rand -base64 32)")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use super::*;

    const ONE: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OTHER: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";

    #[test]
    fn a_signature_is_the_one_that_others_compute() {
        // The example of the projects that implement the standard.
        let signature =
            Signers::parse(ONE).unwrap().sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b"{\"test\": 2432232314}");
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn two_secrets_make_two_signatures_in_their_order() {
        let both = Signers::parse(&format!("{ONE}\n {OTHER}\n")).unwrap().sign("id", 1, b"{}");
        let alone = [ONE, OTHER].map(|secret| Signers::parse(secret).unwrap().sign("id", 1, b"{}"));
        assert_eq!(both, alone.join(" "));
        assert_ne!(alone[0], alone[1]);
    }

    #[test]
    fn what_is_no_secret_is_refused_with_the_reason_and_never_printed() {
        for (text, word) in [
            (" \n", "empty"),
            ("hunter2", "whsec_"),
            ("whsec_hunter2!", "base64"),
            ("whsec_aHVudGVyMg==", "less than 24"),
            (&format!("{ONE} whsec_"), "less than 24"),
        ] {
            let error = Signers::parse(text).unwrap_err();
            assert!(error.detail().unwrap().contains(word), "{text}: {:?}", error.detail());
            assert!(!format!("{error:?}").contains("hunter2"));
        }
        assert_eq!(format!("{:?}", Signers::parse(ONE).unwrap()), "…");
    }
}
