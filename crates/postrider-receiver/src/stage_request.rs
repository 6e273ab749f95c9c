//! What: reads the headers of a stage call.
//! Where: at the receiver's door, before any transaction.
//! Takes and gives: header names and values as they came; what a stage call carries beside its body.
//! Never: reads the body, or acts on what it read.

use std::fmt;
use std::time::Duration;

use crate::key::{IdempotencyKey, KeyError};

const KEY: &str = "idempotency-key";
const ATTEMPT: &str = "postrider-attempt";
const FENCE: &str = "postrider-fence";
const DEADLINE: &str = "postrider-deadline";
const STAGE: &str = "postrider-stage";
const DEFINITION: &str = "postrider-definition";

/// The headers of one stage call: what may differ from one attempt to the next, and is therefore not in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageRequest {
    /// `Idempotency-Key`: the same on every attempt.
    pub key: IdempotencyKey,
    /// `Postrider-Attempt`: how often the stage was tried, this time included.
    pub attempt: u32,
    /// `Postrider-Fence`: rises with every claim of the row; a request with a lower one than another's is the older.
    pub fence: i64,
    /// `Postrider-Deadline`, sent in milliseconds: how long the caller waits from the moment of sending.
    pub deadline: Option<Duration>,
    /// `Postrider-Stage`: the stage's name as configured.
    pub stage: String,
    /// `Postrider-Definition`: `name@version` of the workflow's definition, where it has one.
    pub definition: Option<String>,
}

impl StageRequest {
    /// Reads the headers of a request. Names may be in any case; names that mean nothing here are passed over.
    ///
    /// # Errors
    ///
    /// Every [`HeaderError`] is answered with 400.
    pub fn parse<'a>(headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<StageRequest, HeaderError> {
        let mut found = Found::default();
        for (name, value) in headers {
            found.take(name, value)?;
        }
        Ok(StageRequest {
            key: IdempotencyKey::parse(found.key)?,
            attempt: number(ATTEMPT, required(ATTEMPT, found.attempt)?)?,
            fence: number(FENCE, required(FENCE, found.fence)?)?,
            deadline: found.deadline.map(|value| number(DEADLINE, value)).transpose()?.map(Duration::from_millis),
            stage: text(STAGE, required(STAGE, found.stage)?)?,
            definition: found.definition.map(|value| text(DEFINITION, value)).transpose()?,
        })
    }
}

/// Why the headers are not those of a stage call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// The key's own reasons.
    Key(KeyError),
    /// A header that every stage call has is not there.
    Missing {
        /// Its name, in lower case.
        name: &'static str,
    },
    /// A header that stands once is there more often.
    Repeated {
        /// Its name, in lower case.
        name: &'static str,
    },
    /// A number that is none, is negative or is too large, or a text that is empty or not printable ASCII.
    Malformed {
        /// Its name, in lower case.
        name: &'static str,
    },
}

impl From<KeyError> for HeaderError {
    fn from(error: KeyError) -> HeaderError {
        HeaderError::Key(error)
    }
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeaderError::Key(error) => error.fmt(f),
            HeaderError::Missing { name } => write!(f, "header {name} is missing"),
            HeaderError::Repeated { name } => write!(f, "header {name} is given more than once"),
            HeaderError::Malformed { name } => write!(f, "header {name} is malformed"),
        }
    }
}

impl std::error::Error for HeaderError {}

#[derive(Default)]
struct Found<'a> {
    key: Option<&'a [u8]>,
    attempt: Option<&'a [u8]>,
    fence: Option<&'a [u8]>,
    deadline: Option<&'a [u8]>,
    stage: Option<&'a [u8]>,
    definition: Option<&'a [u8]>,
}

impl<'a> Found<'a> {
    fn take(&mut self, name: &str, value: &'a [u8]) -> Result<(), HeaderError> {
        let places = [
            (KEY, &mut self.key),
            (ATTEMPT, &mut self.attempt),
            (FENCE, &mut self.fence),
            (DEADLINE, &mut self.deadline),
            (STAGE, &mut self.stage),
            (DEFINITION, &mut self.definition),
        ];
        let Some((known, place)) = places.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) else {
            return Ok(());
        };
        match place.replace(value) {
            None => Ok(()),
            Some(_) if known == KEY => Err(KeyError::Repeated.into()),
            Some(_) => Err(HeaderError::Repeated { name: known }),
        }
    }
}

fn required<'a>(name: &'static str, value: Option<&'a [u8]>) -> Result<&'a [u8], HeaderError> {
    value.ok_or(HeaderError::Missing { name })
}

// The standard library's parsers take a plus sign, and the signed ones a minus; a header has neither.
fn number<T: std::str::FromStr>(name: &'static str, value: &[u8]) -> Result<T, HeaderError> {
    let digits = text(name, value)?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(HeaderError::Malformed { name });
    }
    digits.parse().map_err(|_| HeaderError::Malformed { name })
}

fn text(name: &'static str, value: &[u8]) -> Result<String, HeaderError> {
    let value = value.trim_ascii();
    let printable = !value.is_empty() && value.iter().all(|byte| matches!(byte, b' '..=b'~'));
    match std::str::from_utf8(value) {
        Ok(value) if printable => Ok(value.to_owned()),
        _ => Err(HeaderError::Malformed { name }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is the test's failure")]

    use super::{HeaderError, StageRequest};
    use crate::key::KeyError;
    use std::time::Duration;

    const GOOD: [(&str, &[u8]); 6] = [
        ("Idempotency-Key", b"\"g/q/PRICING/0\""),
        ("postrider-attempt", b"3"),
        ("Postrider-Fence", b"7"),
        ("Postrider-Deadline", b"29500"),
        ("Postrider-Stage", b"PRICING"),
        ("Postrider-Definition", b"quote@2"),
    ];

    fn with(name: &str, value: &'static [u8]) -> Result<StageRequest, HeaderError> {
        let others = GOOD.into_iter().filter(|(known, _)| !known.eq_ignore_ascii_case(name));
        StageRequest::parse(others.chain([(name, value)]))
    }

    fn without(name: &str) -> Result<StageRequest, HeaderError> {
        StageRequest::parse(GOOD.into_iter().filter(|(known, _)| !known.eq_ignore_ascii_case(name)))
    }

    #[test]
    fn reads_every_header() {
        let request = StageRequest::parse(GOOD.into_iter().chain([("accept", b"*/*".as_slice())])).unwrap();
        assert_eq!(request.key.as_str(), "g/q/PRICING/0");
        assert_eq!((request.attempt, request.fence), (3, 7));
        assert_eq!(request.deadline, Some(Duration::from_millis(29_500)));
        assert_eq!((request.stage.as_str(), request.definition.as_deref()), ("PRICING", Some("quote@2")));
    }

    #[test]
    fn says_which_header_is_missing() {
        assert_eq!(without("idempotency-key"), Err(HeaderError::Key(KeyError::Missing)));
        for name in ["postrider-attempt", "postrider-fence", "postrider-stage"] {
            assert_eq!(without(name), Err(HeaderError::Missing { name }));
        }
        assert_eq!(without("postrider-deadline").unwrap().deadline, None);
        assert_eq!(without("postrider-definition").unwrap().definition, None);
    }

    #[test]
    fn refuses_numbers_that_are_none() {
        let name = "postrider-fence";
        for value in [b"".as_slice(), b"-1", b"+1", b"1.0", b"0x1", b"9223372036854775808", b"1 2", b"\xff"] {
            assert_eq!(with(name, value), Err(HeaderError::Malformed { name }), "{value:?}");
        }
        assert_eq!(with(name, b"9223372036854775807").unwrap().fence, i64::MAX);
        let name = "postrider-attempt";
        assert_eq!(with(name, b"4294967296"), Err(HeaderError::Malformed { name }));
    }

    #[test]
    fn refuses_a_header_given_twice() {
        let twice = |name, value: &'static [u8]| StageRequest::parse(GOOD.into_iter().chain([(name, value)]));
        assert_eq!(twice("IDEMPOTENCY-KEY", b"\"other\""), Err(HeaderError::Key(KeyError::Repeated)));
        assert_eq!(twice("postrider-fence", b"7"), Err(HeaderError::Repeated { name: "postrider-fence" }));
    }
}
