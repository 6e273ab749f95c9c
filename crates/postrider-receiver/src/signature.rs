//! What: checks that a request was signed by who knows the secret, not long ago.
//! Where: at the receiver's door, before any transaction.
//! Takes and gives: header names and values and the body's bytes, as they came, and the time; whether the request is genuine.
//! Never: parses the body, reads a clock, or says which byte differs.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::BASE64;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::key::{IdempotencyKey, KeyError};

const ID: &str = "webhook-id";
const TIMESTAMP: &str = "webhook-timestamp";
const SIGNATURE: &str = "webhook-signature";
const KEY: &str = "idempotency-key";

/// What a secret begins with.
const PREFIX: &str = "whsec_";

/// The fewest bytes of a secret.
const MIN_SECRET_BYTES: usize = 24;

/// How far the sender's clock may be from ours, where nothing else is said.
const TOLERANCE: Duration = Duration::from_secs(300);

/// The secrets that senders sign with, as Standard Webhooks has it: one, and while it is exchanged the old one and the new one.
#[derive(Clone)]
pub struct SigningSecrets {
    secrets: Vec<Vec<u8>>,
    tolerance: Duration,
}

impl SigningSecrets {
    /// Reads secrets with white space between them, each `whsec_` and base64, as the sender's configuration has them.
    ///
    /// # Errors
    ///
    /// [`SecretError`] where there is none, or one of them is none.
    pub fn parse(text: &str) -> Result<SigningSecrets, SecretError> {
        let secrets: Vec<Vec<u8>> = text.split_ascii_whitespace().map(secret).collect::<Result<_, _>>()?;
        if secrets.is_empty() {
            return Err(SecretError::Empty);
        }
        Ok(SigningSecrets { secrets, tolerance: TOLERANCE })
    }

    /// Lets the time of sending be so far from now, before or after. Five minutes without this.
    #[must_use]
    pub fn with_tolerance(self, tolerance: Duration) -> SigningSecrets {
        SigningSecrets { tolerance, ..self }
    }

    /// Checks one request: `headers` and `body` as they came, `now` as the clock has it.
    ///
    /// The key under which the work is recorded is part of what was signed: a genuine body under another key is refused.
    /// `Postrider-Attempt`, `Postrider-Fence` and the other headers are not signed.
    ///
    /// # Errors
    ///
    /// Every [`SignatureError`] is answered with 401, and nothing is done.
    pub fn verify<'a>(
        &self,
        headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
        body: &[u8],
        now: SystemTime,
    ) -> Result<(), SignatureError> {
        let found = Found::of(headers)?;
        let id = found.id.ok_or(SignatureError::Missing { name: ID })?;
        let timestamp = found.timestamp.ok_or(SignatureError::Missing { name: TIMESTAMP })?;
        let signatures = found.signature.ok_or(SignatureError::Missing { name: SIGNATURE })?;
        self.check_time(timestamp, now)?;
        let genuine = signatures.split(' ').filter_map(|word| word.strip_prefix("v1,")).any(|encoded| {
            BASE64.decode(encoded.as_bytes()).is_ok_and(|given| {
                // Each comparison takes the same time wherever the first difference is.
                self.secrets.iter().any(|secret| signed(secret, [id, timestamp], body).verify_slice(&given).is_ok())
            })
        });
        if !genuine {
            return Err(SignatureError::Wrong);
        }
        let key = IdempotencyKey::parse(found.key)?;
        // A full stop ends the id in what is signed, so the sender encodes those of the key.
        // A key that has them encoded itself is not of ours: it would be another key under the same id.
        if key.as_str().to_ascii_uppercase().contains("%2E") || key.as_str().replace('.', "%2E") != id {
            return Err(SignatureError::OtherKey);
        }
        Ok(())
    }

    fn check_time(&self, timestamp: &str, now: SystemTime) -> Result<(), SignatureError> {
        let malformed = SignatureError::Malformed { name: TIMESTAMP };
        if timestamp.is_empty() || !timestamp.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(malformed);
        }
        let sent = Duration::from_secs(timestamp.parse().map_err(|_| malformed)?);
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        if now.abs_diff(sent) > self.tolerance {
            return Err(SignatureError::Time);
        }
        Ok(())
    }
}

impl fmt::Debug for SigningSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningSecrets").field("tolerance", &self.tolerance).finish_non_exhaustive()
    }
}

/// Why a text holds no secrets. It never shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretError {
    /// There is none in it.
    Empty,
    /// One does not begin with `whsec_`.
    NoPrefix,
    /// What follows `whsec_` is not base64.
    NotBase64,
    /// One has less than 24 bytes.
    TooShort,
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SecretError::Empty => "there is no signing secret",
            SecretError::NoPrefix => "signing secret does not begin with whsec_",
            SecretError::NotBase64 => "signing secret is not base64 behind whsec_",
            SecretError::TooShort => "signing secret has less than 24 bytes",
        })
    }
}

impl std::error::Error for SecretError {}

/// Why a request is not taken for genuine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureError {
    /// A header is not there.
    Missing {
        /// Its name, in lower case.
        name: &'static str,
    },
    /// A header is given more than once.
    Repeated {
        /// Its name, in lower case.
        name: &'static str,
    },
    /// A header is not what it must be.
    Malformed {
        /// Its name, in lower case.
        name: &'static str,
    },
    /// The idempotency key's own reasons.
    Key(KeyError),
    /// It was sent too long ago, or one of the clocks is wrong.
    Time,
    /// No signature fits a secret.
    Wrong,
    /// It was signed under another idempotency key than the one it has.
    OtherKey,
}

impl From<KeyError> for SignatureError {
    fn from(error: KeyError) -> SignatureError {
        SignatureError::Key(error)
    }
}

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SignatureError::Missing { name } => write!(f, "header {name} is missing"),
            SignatureError::Repeated { name } => write!(f, "header {name} is given more than once"),
            SignatureError::Malformed { name } => write!(f, "header {name} is malformed"),
            SignatureError::Key(error) => error.fmt(f),
            SignatureError::Time => f.write_str("request was signed too long ago, or clocks differ"),
            SignatureError::Wrong => f.write_str("signature is wrong"),
            SignatureError::OtherKey => f.write_str("request was signed under another idempotency key"),
        }
    }
}

impl std::error::Error for SignatureError {}

#[derive(Default)]
struct Found<'a> {
    id: Option<&'a str>,
    timestamp: Option<&'a str>,
    signature: Option<&'a str>,
    key: Option<&'a [u8]>,
}

impl<'a> Found<'a> {
    fn of(headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<Found<'a>, SignatureError> {
        let mut found = Found::default();
        for (name, value) in headers {
            if name.eq_ignore_ascii_case(KEY) {
                if found.key.replace(value).is_some() {
                    return Err(KeyError::Repeated.into());
                }
                continue;
            }
            let places = [(ID, &mut found.id), (TIMESTAMP, &mut found.timestamp), (SIGNATURE, &mut found.signature)];
            let Some((name, place)) = places.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) else {
                continue;
            };
            let value = std::str::from_utf8(value).map_err(|_| SignatureError::Malformed { name })?;
            if place.replace(value.trim()).is_some() {
                return Err(SignatureError::Repeated { name });
            }
        }
        Ok(found)
    }
}

fn secret(word: &str) -> Result<Vec<u8>, SecretError> {
    let encoded = word.strip_prefix(PREFIX).ok_or(SecretError::NoPrefix)?;
    let bytes = BASE64.decode(encoded.as_bytes()).map_err(|_| SecretError::NotBase64)?;
    if bytes.len() < MIN_SECRET_BYTES { Err(SecretError::TooShort) } else { Ok(bytes) }
}

fn signed(secret: &[u8], [id, timestamp]: [&str; 2], body: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        mac.update(part);
    }
    mac
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is the test's failure")]

    use super::{BASE64, Mac, SecretError, SignatureError, SigningSecrets, signed};
    use crate::key::KeyError;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OTHER: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";
    const BODY: &[u8] = b"{\"test\": 2432232314}";
    const SENT: u64 = 1_614_265_330;

    /// The example of the projects that implement the standard, as a stage call.
    const GOOD: [(&str, &[u8]); 5] = [
        ("Webhook-Id", b"msg_p5jXN8AQM9LWM0D4loKWxJek"),
        ("webhook-timestamp", b"1614265330"),
        ("webhook-signature", b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        ("Idempotency-Key", b"\"msg_p5jXN8AQM9LWM0D4loKWxJek\""),
        ("accept", b"*/*"),
    ];

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn verify(secrets: &str, headers: &[(&str, &[u8])], body: &[u8]) -> Result<(), SignatureError> {
        SigningSecrets::parse(secrets).unwrap().verify(headers.iter().copied(), body, at(SENT))
    }

    fn with<'a>(name: &str, value: &'a [u8]) -> Vec<(&'a str, &'a [u8])> {
        GOOD.iter().map(|(known, good)| (*known, if *known == name { value } else { *good })).collect()
    }

    #[test]
    fn a_genuine_request_is_known_by_the_old_and_the_new_secret() {
        assert_eq!(verify(SECRET, &GOOD, BODY), Ok(()));
        assert_eq!(verify(&format!("{OTHER}\n{SECRET}"), &GOOD, BODY), Ok(()));
        let two = b"v1a,xyz v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(verify(SECRET, &with("webhook-signature", two), BODY), Ok(()));
    }

    #[test]
    fn whatever_was_changed_is_refused() {
        assert_eq!(verify(OTHER, &GOOD, BODY), Err(SignatureError::Wrong));
        assert_eq!(verify(SECRET, &GOOD, b"{\"test\": 2432232315}"), Err(SignatureError::Wrong));
        assert_eq!(verify(SECRET, &with("Webhook-Id", b"msg_2"), BODY), Err(SignatureError::Wrong));
        assert_eq!(verify(SECRET, &with("webhook-timestamp", b"1614265331"), BODY), Err(SignatureError::Wrong));
        for signature in [&b""[..], b"v1,", b"v1", b"v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", b"v1,%%%"] {
            assert_eq!(verify(SECRET, &with("webhook-signature", signature), BODY), Err(SignatureError::Wrong));
        }
        let other = with("Idempotency-Key", b"\"another\"");
        assert_eq!(verify(SECRET, &other, BODY), Err(SignatureError::OtherKey));
    }

    /// Else a request that was overheard would be new work under a second key.
    #[test]
    fn one_id_stands_for_one_key() {
        let secrets = SigningSecrets::parse(SECRET).unwrap();
        let (id, time) = ("g%2E1/q", "1614265330");
        let signature = BASE64.encode(&signed(&secrets.secrets[0], [id, time], BODY).finalize().into_bytes());
        let signature = format!("v1,{signature}");
        let other = Err(SignatureError::OtherKey);
        for (key, expected) in [("\"g.1/q\"", Ok(())), ("\"g%2E1/q\"", other), ("\"g%2e1/q\"", other)] {
            let headers = [
                ("webhook-id", id),
                ("webhook-timestamp", time),
                ("webhook-signature", &signature),
                ("idempotency-key", key),
            ];
            let headers = headers.map(|(name, value)| (name, value.as_bytes()));
            assert_eq!(verify(SECRET, &headers, BODY), expected, "{key}");
        }
    }

    #[test]
    fn the_time_of_sending_may_be_so_far_away_and_no_further() {
        let verify_at = |tolerance: Option<u64>, now: u64| {
            let secrets = SigningSecrets::parse(SECRET).unwrap();
            let secrets = match tolerance {
                Some(seconds) => secrets.with_tolerance(Duration::from_secs(seconds)),
                None => secrets,
            };
            secrets.verify(GOOD, BODY, at(now))
        };
        for now in [SENT - 300, SENT, SENT + 300] {
            assert_eq!(verify_at(None, now), Ok(()));
        }
        for now in [0, SENT - 301, SENT + 301] {
            assert_eq!(verify_at(None, now), Err(SignatureError::Time));
        }
        assert_eq!(verify_at(Some(3_600), SENT + 3_600), Ok(()));
        for time in [&b""[..], b"-1", b"1614265330.0", b"99999999999999999999", b"now"] {
            let name = "webhook-timestamp";
            assert_eq!(verify(SECRET, &with(name, time), BODY), Err(SignatureError::Malformed { name }));
        }
    }

    #[test]
    fn a_header_that_is_missing_or_given_twice_is_named() {
        for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            let left: Vec<_> = GOOD.into_iter().filter(|(known, _)| !known.eq_ignore_ascii_case(name)).collect();
            assert_eq!(verify(SECRET, &left, BODY), Err(SignatureError::Missing { name }));
            let twice: Vec<_> = GOOD.into_iter().chain([(name, b"x".as_slice())]).collect();
            assert_eq!(verify(SECRET, &twice, BODY), Err(SignatureError::Repeated { name }));
        }
        let keyless: Vec<_> = GOOD.into_iter().filter(|(name, _)| *name != "Idempotency-Key").collect();
        assert_eq!(verify(SECRET, &keyless, BODY), Err(SignatureError::Key(KeyError::Missing)));
    }

    #[test]
    fn what_is_no_secret_is_refused_and_never_printed() {
        for (text, error) in [
            (" ", SecretError::Empty),
            ("hunter2", SecretError::NoPrefix),
            ("whsec_!", SecretError::NotBase64),
            ("whsec_aHVudGVyMg==", SecretError::TooShort),
        ] {
            assert_eq!(SigningSecrets::parse(text).unwrap_err(), error);
        }
        assert!(!format!("{:?}", SigningSecrets::parse(SECRET).unwrap()).contains("MfKQ"));
    }
}
