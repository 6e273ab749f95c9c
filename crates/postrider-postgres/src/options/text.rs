//! Takes a connection string apart, as libpq's `conninfo_parse` and `conninfo_uri_parse` do: a URL or `key=value` pairs.
//!
//! No error quotes the text: it may hold a password, and a password that was not quoted well looks like anything.

use postrider_core::error::{Error, ErrorKind, Result};

use super::keyword::{self, Keyword};

/// What stands in the string, in its order; the last of a repeated key wins.
pub(crate) type Pairs = Vec<(&'static Keyword, String)>;

/// The server's own marks of a URL.
const SCHEMES: [&str; 2] = ["postgresql://", "postgres://"];

/// Reads the whole string.
///
/// # Errors
/// `Configuration`, with what is wrong and the cure.
pub(crate) fn pairs(text: &str) -> Result<Pairs> {
    match SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme)) {
        Some(rest) => from_url(rest.trim_end_matches(is_blank)),
        None if text.split('=').next().is_some_and(|key| key.contains("://")) => {
            Err(invalid("Its scheme is neither postgres nor postgresql.", "Write postgres://user@host:5432/database."))
        }
        None => from_pairs(text),
    }
}

/// Something about the string that is wrong, and what to write.
pub(crate) fn invalid(detail: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::new(ErrorKind::Configuration, "the connection string is not valid").with_detail(detail).with_hint(hint)
}

fn from_pairs(text: &str) -> Result<Pairs> {
    let mut pairs = Pairs::new();
    let mut rest = text.trim_start_matches(is_blank);
    // What follows a bare password may be the rest of it, and must not be named.
    let mut after_bare_password = false;
    while !rest.is_empty() {
        let (name, after_name) = rest.split_at(rest.find(|c| c == '=' || is_blank(c)).unwrap_or(rest.len()));
        let after_equals = after_name
            .trim_start_matches(is_blank)
            .strip_prefix('=')
            .ok_or_else(|| unseparated(after_bare_password))?
            .trim_start_matches(is_blank);
        let (value, after_value) = value(after_equals)?;
        let keyword = match keyword::find(name) {
            None if after_bare_password => return Err(unseparated(true)),
            None => return Err(keyword::unknown(name)),
            Some(keyword) => keyword,
        };
        after_bare_password = keyword.name == "password" && !after_equals.starts_with('\'');
        pairs.push((keyword, value));
        rest = after_value.trim_start_matches(is_blank);
    }
    Ok(pairs)
}

/// One value, bare or in single quotes, with backslashes taken away, and the text after it.
fn value(text: &str) -> Result<(String, &str)> {
    let (quoted, body) = text.strip_prefix('\'').map_or((false, text), |body| (true, body));
    let mut value = String::new();
    let mut characters = body.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => {
                let rest = body.get(at.saturating_add(1)..).unwrap_or("");
                // SQL's way to write a quote; libpq takes it for the end of the value.
                return if rest.starts_with('\'') { Err(doubled_quote()) } else { Ok((value, rest)) };
            }
            character if !quoted && is_blank(character) => return Ok((value, body.get(at..).unwrap_or(""))),
            character => value.push(character),
        }
    }
    if quoted {
        return Err(invalid("A value in single quotes has no end.", "Close it, and write \\' for a quote within it."));
    }
    Ok((value, ""))
}

fn from_url(rest: &str) -> Result<Pairs> {
    let mut pairs = Pairs::new();
    let mut store = |name: &str, text: &str| -> Result<()> {
        if let Some(keyword) = keyword::find(name).filter(|_| !text.is_empty()) {
            pairs.push((keyword, decode(text)?));
        }
        Ok(())
    };
    let (credentials, rest) = match rest.split_once('@') {
        Some((credentials, after)) if !credentials.contains('/') => (credentials, after),
        _ => ("", rest),
    };
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    store("user", user)?;
    store("password", password)?;
    let (hosts, ports, rest) = hosts_and_ports(rest)?;
    store("host", &hosts)?;
    store("port", &ports)?;
    let (database, query) = rest.split_once('?').unwrap_or((rest, ""));
    store("dbname", database.strip_prefix('/').unwrap_or(database))?;
    pairs.extend(query_pairs(query)?);
    Ok(pairs)
}

/// The lists of hosts and of ports, still encoded, and what follows them: `/…`, `?…` or nothing.
fn hosts_and_ports(text: &str) -> Result<(String, String, &str)> {
    let (mut hosts, mut ports) = (String::new(), String::new());
    let mut rest = text;
    loop {
        let host;
        if let Some(bracketed) = rest.strip_prefix('[') {
            (host, rest) = bracketed.split_once(']').filter(|(host, _)| !host.is_empty()).ok_or_else(bad_brackets)?;
            if !rest.is_empty() && !rest.starts_with([':', '/', '?', ',']) {
                return Err(bad_brackets());
            }
        } else {
            (host, rest) = rest.split_at(rest.find([':', '/', '?', ',']).unwrap_or(rest.len()));
        }
        hosts.push_str(host);
        if let Some(after) = rest.strip_prefix(':') {
            let (port, after) = after.split_at(after.find(['/', '?', ',']).unwrap_or(after.len()));
            ports.push_str(port);
            rest = after;
        }
        let Some(next) = rest.strip_prefix(',') else { return Ok((hosts, ports, rest)) };
        rest = next;
        hosts.push(',');
        ports.push(',');
    }
}

fn query_pairs(query: &str) -> Result<Pairs> {
    let mut pairs = Pairs::new();
    // A last `&` has nothing behind it; one before that has, as in libpq.
    for pair in query.strip_suffix('&').unwrap_or(query).split('&').filter(|_| !query.is_empty()) {
        let (name, value) = pair
            .split_once('=')
            .filter(|(_, value)| !value.contains('='))
            .ok_or_else(|| invalid("A parameter of the URL is not of the form key=value.", ENCODE))?;
        let (mut name, mut value) = (decode(name)?, decode(value)?);
        // As JDBC says it.
        if name == "ssl" && value == "true" {
            (name, value) = ("sslmode".to_owned(), "require".to_owned());
        }
        match keyword::find(&name) {
            Some(keyword) => pairs.push((keyword, value)),
            // Then it may be the rest of a password that holds a slash.
            None if query.contains('@') => return Err(invalid("A parameter of the URL is unknown.", ENCODE)),
            None => return Err(keyword::unknown(&name)),
        }
    }
    Ok(pairs)
}

fn decode(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte != b'%' {
            bytes.push(byte);
            rest = tail;
            continue;
        }
        let (digits, tail) = tail.split_first_chunk::<2>().ok_or_else(badly_encoded)?;
        // `from_str_radix` would take a sign.
        let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let decoded = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|&byte| byte != 0);
        bytes.push(decoded.ok_or_else(badly_encoded)?);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| invalid("The URL is not UTF-8 once it is decoded.", ENCODE))
}

const ENCODE: &str = "In a URL write what has a meaning there as %XX of its UTF-8 bytes: %25 for %, %2F for /, %3A for :, %40 for @, %3F for ?, %26 for &, %3D for =.";

fn badly_encoded() -> Error {
    invalid("A % in the URL is not followed by two hexadecimal digits, or stands for a zero byte.", ENCODE)
}

fn bad_brackets() -> Error {
    invalid("The brackets of an IPv6 address are not closed, or hold nothing.", "Write [::1]:5432.")
}

fn doubled_quote() -> Error {
    invalid(
        "A value in single quotes is followed by another quote.",
        "Within single quotes write \\' for a quote, and \\\\ for a backslash.",
    )
}

fn unseparated(after_bare_password: bool) -> Error {
    if after_bare_password {
        return invalid(
            "What follows the password is no parameter.",
            "Put a password with spaces into single quotes, with \\' for a quote and \\\\ for a backslash.",
        );
    }
    invalid(
        "A key is not followed by an equals sign.",
        "Write postgres://user@host:port/database, or key=value pairs with values of spaces in single quotes.",
    )
}

/// What C's `isspace` takes for space.
fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t'..='\r')
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(text: &str, wanted: Expect) {
        let found = match pairs(text) {
            Ok(pairs) => {
                pairs.iter().map(|(key, value)| format!("{}={value}", key.name)).collect::<Vec<_>>().join(" | ")
            }
            Err(error) => format!("{} {}", error.detail().unwrap_or(""), error.hint().unwrap_or("")),
        };
        wanted.assert_eq(&found);
    }

    #[test]
    fn pairs_are_read_with_their_quoting() {
        check(r"host = a  user= 'me and\'you\\' port=1", expect![[r"host=a | user=me and'you\ | port=1"]]);
        check(r"user=a\ b\'c host='' dbname='x'port=2", expect![[r"user=a b'c | host= | dbname=x | port=2"]]);
        check("password=p@ss:w/ord%#?é user=me", expect!["password=p@ss:w/ord%#?é | user=me"]);
        check(
            "password='it''s'",
            expect![[
                r"A value in single quotes is followed by another quote. Within single quotes write \' for a quote, and \\ for a backslash."
            ]],
        );
        check(
            "password='open",
            expect![[r"A value in single quotes has no end. Close it, and write \' for a quote within it."]],
        );
        check(
            "mysql://me@h/q",
            expect!["Its scheme is neither postgres nor postgresql. Write postgres://user@host:5432/database."],
        );
        check(
            "user",
            expect![
                "A key is not followed by an equals sign. Write postgres://user@host:port/database, or key=value pairs with values of spaces in single quotes."
            ],
        );
    }

    #[test]
    fn urls_are_read_with_their_encoding() {
        check(
            "postgres://me:p%40ss%3Aw%2Ford%25%23%3F%C3%A9@db.example:6000/quo%20ting?sslmode=verify-full&sslrootcert=/a%20b.crt",
            expect![
                "user=me | password=p@ss:w/ord%#?é | host=db.example | port=6000 | dbname=quo ting | sslmode=verify-full | sslrootcert=/a b.crt"
            ],
        );
        check("postgresql://a,b:1,[::1]:2?ssl=true", expect!["host=a,b,::1 | port=,1,2 | sslmode=require"]);
        check("postgres://%2Frun%2Fpg/q", expect!["host=/run/pg | dbname=q"]);
        check("postgres://me:a?b#c@h", expect!["user=me | password=a?b#c | host=h"]);
        check("postgres:///", expect![""]);
        check("postgres://@:/?", expect![""]);
        check(
            "postgres://[::1",
            expect!["The brackets of an IPv6 address are not closed, or hold nothing. Write [::1]:5432."],
        );
        check(
            "postgres://a/b?user",
            expect![
                "A parameter of the URL is not of the form key=value. In a URL write what has a meaning there as %XX of its UTF-8 bytes: %25 for %, %2F for /, %3A for :, %40 for @, %3F for ?, %26 for &, %3D for =."
            ],
        );
        check(
            "postgres://a%0/",
            expect![
                "A % in the URL is not followed by two hexadecimal digits, or stands for a zero byte. In a URL write what has a meaning there as %XX of its UTF-8 bytes: %25 for %, %2F for /, %3A for :, %40 for @, %3F for ?, %26 for &, %3D for =."
            ],
        );
    }

    #[test]
    fn an_unknown_key_is_named_with_the_nearest_unless_it_may_be_part_of_a_password() {
        check("host=a sslmod=require", expect!["`sslmod` is no connection parameter. Did you mean `sslmode`?"]);
        check(
            "postgres://a/b?aplication_name=x",
            expect!["`aplication_name` is no connection parameter. Did you mean `application_name`?"],
        );
        check("host=a zzz=1", expect!["`zzz` is no connection parameter. docs/connections.md names them all."]);
        check(
            "password=hush hush=x",
            expect![[
                r"What follows the password is no parameter. Put a password with spaces into single quotes, with \' for a quote and \\ for a backslash."
            ]],
        );
        check(
            "postgres://me:hu/s?h=x@db/q",
            expect![
                "A parameter of the URL is unknown. In a URL write what has a meaning there as %XX of its UTF-8 bytes: %25 for %, %2F for /, %3A for :, %40 for @, %3F for ?, %26 for &, %3D for =."
            ],
        );
    }
}
