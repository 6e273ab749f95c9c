//! What: reads the header `Idempotency-Key`.
//! Where: at the receiver's door, before any transaction.
//! Takes and gives: a header value as it came; the key inside the quotes.
//! Never: makes a key up, shortens one, or looks into its parts.

use std::fmt;

/// The longest key, in characters. A sender with more to say sends a hash.
pub const MAX_KEY_CHARS: usize = 255;

/// An idempotency key: opaque text of 1 to 255 printable ASCII characters, the same on every attempt of one piece of work.
///
/// On the wire it is a structured-field string (RFC 8941, section 3.3.3), as draft-ietf-httpapi-idempotency-key-header
/// asks for. Its parts are percent-encoded, so a stray per cent sign is refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Reads the header's value. `None` stands for a request without the header.
    ///
    /// # Errors
    ///
    /// Every [`KeyError`] is answered with 400.
    pub fn parse(value: Option<&[u8]>) -> Result<IdempotencyKey, KeyError> {
        let value = value.ok_or(KeyError::Missing)?.trim_ascii();
        let inner = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).ok_or(KeyError::NotQuoted)?;
        let key = unescape(inner)?;
        check_percent(&key)?;
        match key.len() {
            0 => Err(KeyError::Empty),
            chars if chars > MAX_KEY_CHARS => Err(KeyError::TooLong { chars }),
            _ => Ok(IdempotencyKey(key)),
        }
    }

    /// The key without its quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a header value is no key. Offsets count bytes behind the opening quote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The request has no such header.
    Missing,
    /// The request has the header more than once.
    Repeated,
    /// The value does not stand between two double quotes.
    NotQuoted,
    /// The quotes are empty.
    Empty,
    /// The key has more than [`MAX_KEY_CHARS`] characters.
    TooLong {
        /// How many it has.
        chars: usize,
    },
    /// A character that a structured-field string cannot hold, or holds only behind a backslash.
    BadCharacter {
        /// Where it stands.
        offset: usize,
    },
    /// A per cent sign without two hexadecimal digits behind it; the offset counts characters of the key.
    BadPercent {
        /// Where it stands.
        offset: usize,
    },
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyError::Missing => "idempotency key is missing",
            KeyError::Repeated => "idempotency key is given more than once",
            KeyError::NotQuoted => "idempotency key is not a quoted string",
            KeyError::Empty => "idempotency key is empty",
            KeyError::TooLong { .. } => "idempotency key is too long",
            KeyError::BadCharacter { .. } => "idempotency key has a character that it must not have",
            KeyError::BadPercent { .. } => "idempotency key has a broken percent-encoding",
        })
    }
}

impl std::error::Error for KeyError {}

fn unescape(inner: &[u8]) -> Result<String, KeyError> {
    let mut key = String::with_capacity(inner.len());
    let mut bytes = inner.iter().copied().enumerate();
    while let Some((offset, byte)) = bytes.next() {
        let plain = match byte {
            b'\\' => match bytes.next() {
                Some((_, escaped @ (b'"' | b'\\'))) => escaped,
                _ => return Err(KeyError::BadCharacter { offset }),
            },
            b'"' => return Err(KeyError::BadCharacter { offset }),
            b' '..=b'~' => byte,
            _ => return Err(KeyError::BadCharacter { offset }),
        };
        key.push(char::from(plain));
    }
    Ok(key)
}

fn check_percent(key: &str) -> Result<(), KeyError> {
    let mut bytes = key.bytes().enumerate();
    while let Some((offset, byte)) = bytes.next() {
        let whole = byte != b'%' || (0..2).all(|_| bytes.next().is_some_and(|(_, digit)| digit.is_ascii_hexdigit()));
        if !whole {
            return Err(KeyError::BadPercent { offset });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{IdempotencyKey, KeyError, MAX_KEY_CHARS};

    fn check(value: &str, expected: Result<&str, KeyError>) {
        let parsed = IdempotencyKey::parse(Some(value.as_bytes()));
        assert_eq!(parsed.as_ref().map(IdempotencyKey::as_str), expected.as_ref().copied(), "{value}");
    }

    #[test]
    fn takes_what_is_between_the_quotes() {
        check(r#""g1/q1/PRICING/0""#, Ok("g1/q1/PRICING/0"));
        check("\t \"a%2Fb/q/S/1\" ", Ok("a%2Fb/q/S/1"));
        check(r#""pr1:MFRGG""#, Ok("pr1:MFRGG"));
        check(r#""a\"b\\c""#, Ok(r#"a"b\c"#));
        check(r#"" ""#, Ok(" "));
    }

    #[test]
    fn refuses_what_is_no_structured_string() {
        check("", Err(KeyError::NotQuoted));
        check("g1/q1/PRICING/0", Err(KeyError::NotQuoted));
        check("\"", Err(KeyError::NotQuoted));
        check(r#""a";b"#, Err(KeyError::NotQuoted));
        check(r#""""#, Err(KeyError::Empty));
        check(r#""a"b""#, Err(KeyError::BadCharacter { offset: 1 }));
        check(r#""a", "b""#, Err(KeyError::BadCharacter { offset: 1 }));
        check(r#""ab\c""#, Err(KeyError::BadCharacter { offset: 2 }));
        check(r#""ab\""#, Err(KeyError::BadCharacter { offset: 2 }));
        check("\"a\u{7f}\"", Err(KeyError::BadCharacter { offset: 1 }));
        check("\"a\0\"", Err(KeyError::BadCharacter { offset: 1 }));
        check("\"é\"", Err(KeyError::BadCharacter { offset: 0 }));
    }

    #[test]
    fn refuses_a_broken_percent_encoding() {
        check(r#""a%""#, Err(KeyError::BadPercent { offset: 1 }));
        check(r#""a%4""#, Err(KeyError::BadPercent { offset: 1 }));
        check(r#""ab%4g/x""#, Err(KeyError::BadPercent { offset: 2 }));
        check(r#""%41%zz""#, Err(KeyError::BadPercent { offset: 3 }));
    }

    #[test]
    fn holds_the_limit_exactly() {
        let longest = "k".repeat(MAX_KEY_CHARS);
        check(&format!("\"{longest}\""), Ok(&longest));
        check(&format!("\"{longest}k\""), Err(KeyError::TooLong { chars: 256 }));
    }

    #[test]
    fn tells_a_missing_header_from_a_bad_one() {
        assert_eq!(IdempotencyKey::parse(None), Err(KeyError::Missing));
        assert_eq!(IdempotencyKey::parse(Some(&[0xff, 0xfe])), Err(KeyError::NotQuoted));
    }
}
