//! Takes `sslmode` and `sslrootcert` out of a connection string: tokio-postgres knows only some of the modes and no
//! root certificate.

use postrider_core::error::{Error, ErrorKind, Result};

/// The connection string without its TLS part, and that part.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) rest: String,
    pub(crate) ssl_mode: Option<String>,
    pub(crate) ssl_root: Option<String>,
}

/// Splits a URL or `key=value` text; the last of a repeated key wins.
pub(crate) fn take_tls(text: &str) -> Result<Taken> {
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        return take_from_url(text);
    }
    take_from_pairs(text)
}

fn take_from_url(text: &str) -> Result<Taken> {
    let Some((before, query)) = text.split_once('?') else {
        return Ok(Taken { rest: text.to_owned(), ..Taken::default() });
    };
    let mut taken = Taken::default();
    let mut kept = Vec::new();
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("sslmode", value)) => taken.ssl_mode = Some(decode(value)?),
            Some(("sslrootcert", value)) => taken.ssl_root = Some(decode(value)?),
            _ => kept.push(pair),
        }
    }
    taken.rest = if kept.is_empty() { before.to_owned() } else { format!("{before}?{}", kept.join("&")) };
    Ok(taken)
}

fn take_from_pairs(text: &str) -> Result<Taken> {
    let mut taken = Taken::default();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let start = rest;
        let (key, after_key) = rest.split_once('=').ok_or_else(malformed)?;
        let (value, after_value) = value(after_key.trim_start())?;
        match key.trim() {
            "sslmode" => taken.ssl_mode = Some(value),
            "sslrootcert" => taken.ssl_root = Some(value),
            _ => {
                let len = start.len().saturating_sub(after_value.len());
                taken.rest.push_str(start.get(..len).unwrap_or(start));
                taken.rest.push(' ');
            }
        }
        rest = after_value.trim_start();
    }
    Ok(taken)
}

/// One value, bare or in single quotes, with backslashes taken away, and the text after it.
fn value(text: &str) -> Result<(String, &str)> {
    let (quoted, body) = text.strip_prefix('\'').map_or((false, text), |body| (true, body));
    let mut value = String::new();
    let mut characters = body.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => return Ok((value, body.get(at.saturating_add(1)..).unwrap_or(""))),
            character if !quoted && character.is_whitespace() => return Ok((value, body.get(at..).unwrap_or(""))),
            character => value.push(character),
        }
    }
    if quoted { Err(malformed()) } else { Ok((value, "")) }
}

fn decode(value: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte != b'%' {
            bytes.push(byte);
            rest = tail;
            continue;
        }
        let (digits, tail) = tail.split_first_chunk::<2>().ok_or_else(malformed)?;
        let digits = std::str::from_utf8(digits).map_err(|_| malformed())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| malformed())?);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| malformed())
}

fn malformed() -> Error {
    Error::new(ErrorKind::Configuration, "the connection string is not valid")
        .with_hint("Write postgres://user@host:port/database?sslmode=…, or key=value pairs with values of spaces in single quotes.")
}
