//! What: an answer as the store keeps it and gives it back.
//! Where: between the service's work and the wire.
//! Takes and gives: status, header lines and body; the same, byte for byte, when replayed.
//! Never: parses a body or folds, sorts or joins header lines.

use crate::error::Error;
use crate::outcome::Outcome;

/// The longest body that is stored, in bytes. A service with more to say stores where it can be found.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;

/// The header that names the way on.
const NEXT: &str = "Postrider-Next";

/// An answer to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// Header lines in order, names as they are sent. Lines that belong to the connection (`Date`, `Content-Length`) are
    /// the server's own and do not stand here.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body as sent.
    pub body: Vec<u8>,
}

impl Answer {
    /// An answer without a body.
    pub fn of(status: u16, outcome: Outcome) -> Answer {
        Answer { status, ..Answer::default() }.with(Outcome::HEADER, outcome.as_str())
    }

    /// Adds one header line at the end.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Answer {
        self.headers.push((name.to_owned(), value.as_bytes().to_vec()));
        self
    }

    /// Says which way the workflow goes on: the name of a stage among those that the configuration names as `next`, or `DONE`, which
    /// ends it. It is stored with the answer, so that a repeat says the same.
    #[must_use]
    pub fn with_next(self, stage: &str) -> Answer {
        // What a header cannot carry, and the sign itself, are percent-encoded (RFC 3986, section 2.1).
        let mut value = String::with_capacity(stage.len());
        for byte in stage.bytes() {
            match byte {
                b' '..=b'~' if byte != b'%' => value.push(char::from(byte)),
                _ => value.push_str(&format!("%{byte:02X}")),
            }
        }
        self.with(NEXT, &value)
    }

    /// Whether a repeat may be given this answer for ever: 2xx, and of the 4xx those that a later try cannot change.
    pub fn is_final(&self) -> bool {
        match self.status {
            408 | 409 | 425 | 429 => false,
            200..=299 | 400..=499 => true,
            _ => false,
        }
    }

    pub(crate) fn header_lines(&self) -> Result<Vec<u8>, Error> {
        let mut lines = Vec::new();
        for (name, value) in &self.headers {
            let name_is_token = !name.is_empty() && name.bytes().all(is_token_byte);
            if !name_is_token || value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
                return Err(Error::refused(
                    "answer has a header that cannot be stored",
                    "A header's name is a token and its value is one line.",
                ));
            }
            lines.extend_from_slice(name.as_bytes());
            lines.extend_from_slice(b": ");
            lines.extend_from_slice(value);
            lines.extend_from_slice(b"\r\n");
        }
        Ok(lines)
    }
}

/// An answer that was stored by an earlier request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAnswer(Answer);

impl StoredAnswer {
    pub(crate) fn new(status: i32, header_lines: &[u8], body: Vec<u8>) -> Result<StoredAnswer, Error> {
        let status = u16::try_from(status).map_err(|_| Error::unreadable())?;
        let headers = parse_lines(header_lines).ok_or_else(Error::unreadable)?;
        Ok(StoredAnswer(Answer { status, headers, body }))
    }

    /// The answer as the first request got it.
    pub fn as_stored(&self) -> &Answer {
        &self.0
    }

    /// The answer for the repeat: the stored one, and `Idempotency-Replayed: true` behind its headers.
    pub fn into_replay(self) -> Answer {
        self.0.with("Idempotency-Replayed", "true")
    }
}

fn parse_lines(mut lines: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let mut headers = Vec::new();
    while !lines.is_empty() {
        let end = lines.windows(2).position(|pair| pair == b"\r\n")?;
        let (line, rest) = lines.split_at_checked(end)?;
        let colon = line.windows(2).position(|pair| pair == b": ")?;
        let (name, value) = line.split_at_checked(colon)?;
        headers.push((String::from_utf8(name.to_vec()).ok()?, value.strip_prefix(b": ")?.to_vec()));
        lines = rest.strip_prefix(b"\r\n")?;
    }
    Some(headers)
}

// RFC 9110, section 5.6.2.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is the test's failure")]

    use super::{Answer, StoredAnswer};
    use crate::outcome::Outcome;

    #[test]
    fn header_lines_read_back_as_they_were() {
        let mut answer = Answer::of(200, Outcome::Done).with("Set-Cookie", "a: b").with("Set-Cookie", "");
        answer.headers.push(("X-Latin".to_owned(), vec![0xe9, b' ', 0xff]));
        let lines = answer.header_lines().unwrap();
        let stored = StoredAnswer::new(200, &lines, Vec::new()).unwrap();
        assert_eq!(stored.as_stored(), &answer);
        assert_eq!(stored.into_replay(), answer.with("Idempotency-Replayed", "true"));
    }

    #[test]
    fn a_next_stage_of_any_name_is_one_header_line() {
        let next = |stage| Answer::default().with_next(stage).headers;
        assert_eq!(next("REFERRAL"), [("Postrider-Next".to_owned(), b"REFERRAL".to_vec())]);
        assert_eq!(next("PRÜFUNG 2%\r\n"), [("Postrider-Next".to_owned(), b"PR%C3%9CFUNG 2%25%0D%0A".to_vec())]);
        assert!(Answer::default().with_next("a\r\nb").header_lines().is_ok());
    }

    #[test]
    fn a_header_cannot_smuggle_a_second_line() {
        for (name, value) in [("X", "a\r\nY: b"), ("X", "a\nb"), ("X", "a\0"), ("X: Y", "a"), ("", "a"), ("X Y", "a")] {
            assert!(Answer::default().with(name, value).header_lines().is_err(), "{name:?} {value:?}");
        }
    }

    #[test]
    fn foreign_bytes_are_no_headers() {
        for lines in [b"X".as_slice(), b"X: a", b"X: a\r", b"X:a\r\n", b"\xff: a\r\n", b"\r\n"] {
            assert!(StoredAnswer::new(200, lines, Vec::new()).is_err(), "{lines:?}");
        }
        assert!(StoredAnswer::new(-1, b"", Vec::new()).is_err());
        assert!(StoredAnswer::new(70_000, b"", Vec::new()).is_err());
    }

    #[test]
    fn only_final_answers_are_final() {
        let is_final = |status| Answer { status, ..Answer::default() }.is_final();
        assert!([200, 201, 202, 204, 400, 404, 410, 412, 422].into_iter().all(is_final));
        assert!(![0, 100, 301, 408, 409, 425, 429, 500, 502, 503, 504, 599].into_iter().any(is_final));
    }
}
