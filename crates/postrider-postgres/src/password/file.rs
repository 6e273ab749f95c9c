//! The password file, by libpq's own rules (manual, "The Password File"): the first line that fits, nothing from a file that others
//! may read.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::Secret;
use crate::options::{ConnectOptions, Endpoint};

/// A socket in one of these directories is looked up as `localhost`, as the server's own packages do.
const DEFAULT_SOCKET_DIRECTORIES: [&str; 3] = ["/tmp", "/var/run/postgresql", "/run/postgresql"];
/// What is longer is no password file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// What a line must fit.
pub(super) struct Wanted<'a> {
    host: String,
    port: String,
    database: &'a str,
    user: &'a str,
}

impl<'a> Wanted<'a> {
    pub(super) fn of(options: &'a ConnectOptions, endpoint: &Endpoint) -> Wanted<'a> {
        let (host, port) = match endpoint {
            Endpoint::Tcp { host, port, .. } => (host.clone(), port),
            Endpoint::Unix { directory, port } => {
                let directory = directory.to_string_lossy().into_owned();
                let is_default = DEFAULT_SOCKET_DIRECTORIES.contains(&directory.as_str());
                (if is_default { "localhost".to_owned() } else { directory }, port)
            }
        };
        Wanted { host, port: port.to_string(), database: &options.database, user: &options.user }
    }
}

/// The password of the first line that fits. A file that is not there is no file; one that is not safe is warned about and not used.
pub(super) fn look_up(path: &Path, wanted: &Wanted<'_>) -> Option<Secret> {
    let metadata = fs::metadata(path).ok()?;
    if !metadata.is_file() {
        tracing::warn!(path = %path.display(), "the password file is not used: it is not a plain file");
        return None;
    }
    if metadata.mode() & 0o077 != 0 {
        tracing::warn!(
            path = %path.display(),
            "the password file is not used: its group or others may access it; give it mode 0600 with chmod"
        );
        return None;
    }
    let mut text = Vec::new();
    if let Err(error) = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut text)) {
        tracing::warn!(path = %path.display(), %error, "the password file is not used: it cannot be read");
        return None;
    }
    password_in(&text, wanted)
}

fn password_in(text: &[u8], wanted: &Wanted<'_>) -> Option<Secret> {
    let fields = [wanted.host.as_str(), wanted.port.as_str(), wanted.database, wanted.user];
    text.split(|&byte| byte == b'\n').find_map(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.starts_with(b"#") {
            return None;
        }
        let password = fields.iter().try_fold(line, |rest, field| rest_after(rest, field.as_bytes()))?;
        Some(Secret::new(unescaped(password)))
    })
}

/// What follows the first field and its colon, if the field is `*` or, with its backslashes taken away, the one that is wanted.
fn rest_after<'a>(line: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    if let Some(rest) = line.strip_prefix(b"*:") {
        return Some(rest);
    }
    let (mut line, mut wanted) = (line, wanted);
    loop {
        let (&first, after) = line.split_first()?;
        if first == b':' && wanted.is_empty() {
            return Some(after);
        }
        let (&byte, rest) = if first == b'\\' { after.split_first()? } else { line.split_first()? };
        let (&next, wanted_rest) = wanted.split_first()?;
        if byte != next {
            return None;
        }
        (line, wanted) = (rest, wanted_rest);
    }
}

/// The password ends with the line or with another colon.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut password = Vec::new();
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b':' => break,
            b'\\' => password.push(bytes.next().copied().unwrap_or(b'\\')),
            byte => password.push(byte),
        }
    }
    password
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str, host: &str, database: &str) -> Option<String> {
        let wanted = Wanted { host: host.to_owned(), port: "5432".to_owned(), database, user: "me" };
        password_in(text.as_bytes(), &wanted).map(|secret| String::from_utf8_lossy(secret.reveal()).into_owned())
    }

    #[test]
    fn the_first_line_that_fits_counts() {
        let text = "# db:5432:q:me:comment\nother:5432:q:me:no\ndb:5432:q:you:no\ndb:*:q:me:yes\ndb:5432:q:me:late\r\n*:*:*:*:any";
        assert_eq!(find(text, "db", "q").as_deref(), Some("yes"));
        assert_eq!(find(text, "elsewhere", "q").as_deref(), Some("any"));
        assert_eq!(find("db:5432:q:me:late\r\n", "db", "q").as_deref(), Some("late"));
        assert_eq!(find("db:5432:q:me", "db", "q"), None);
        assert_eq!(find("db:5432:q:m:x\nd*:5432:q:me:x\n", "db", "q"), None);
    }

    #[test]
    fn backslashes_keep_colons_and_backslashes() {
        let text = "\\:\\:1:5432:a\\\\b:me:p\\:w\\\\\\#:rest\n";
        assert_eq!(find(text, "::1", "a\\b").as_deref(), Some(r"p:w\#"));
        assert_eq!(find(r"*:5432:q:me:p\", "db", "q").as_deref(), Some(r"p\"));
        // A star counts only where it is the whole field.
        assert_eq!(find(r"\*:5432:q:me:p", "*", "q").as_deref(), Some("p"));
        assert_eq!(find(r"\*:5432:q:me:p", "db", "q"), None);
    }
}
