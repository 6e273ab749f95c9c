//! What a request presents itself with: the endpoint's headers, and the secrets that sign it, from the configuration or from files.

use crate::endpoint::{Endpoint, Signing};
use crate::from_files::{FileWatch, FromFiles};
use crate::signature::Signers;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use postrider_core::error::{Error, ErrorKind, Result};
use std::fmt;
use std::path::{Path, PathBuf};

/// The headers and secrets of now.
#[derive(Debug)]
pub(crate) struct Presented {
    pub(crate) headers: HeaderMap,
    pub(crate) signers: Signers,
}

/// A header whose value stands in a file.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct HeaderFile {
    pub(crate) name: HeaderName,
    /// What comes before the file's text: `Bearer `.
    pub(crate) before: String,
    pub(crate) path: PathBuf,
}

impl fmt::Debug for HeaderFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}", self.name, self.path.display())
    }
}

/// Reads an endpoint's files, and from now on whenever one has changed.
///
/// # Errors
/// `Configuration` where one cannot be read or used.
pub(crate) fn present(endpoint: &Endpoint, watch: &FileWatch) -> Result<FromFiles<Presented>> {
    let mut paths: Vec<PathBuf> = endpoint.header_files.iter().map(|header| header.path.clone()).collect();
    if let Signing::File(path) = &endpoint.signing {
        paths.push(path.clone());
    }
    let endpoint = endpoint.clone();
    FromFiles::new(paths, watch, move |contents| presented(&endpoint, contents))
}

fn presented(endpoint: &Endpoint, contents: &[Vec<u8>]) -> Result<Presented> {
    let mut headers = endpoint.headers.clone();
    for (header, content) in endpoint.header_files.iter().zip(contents) {
        let value = format!("{}{}", header.before, line(content, &header.path)?);
        headers.insert(&header.name, header_value(&value).map_err(|error| of_file(error, &header.path))?);
    }
    let signers = match &endpoint.signing {
        Signing::Without => Signers::default(),
        Signing::With(signers) => signers.clone(),
        Signing::File(path) => {
            // The last one, behind those of the headers.
            let text = contents.last().map_or(Ok(""), |content| text(content, path))?;
            Signers::parse(text).map_err(|error| of_file(error, path))?
        }
    };
    Ok(Presented { headers, signers })
}

/// A text as the value of a header that nobody prints.
pub(crate) fn header_value(text: &str) -> Result<HeaderValue> {
    let wrong = |detail: &str| Error::new(ErrorKind::Configuration, "unusable header").with_detail(detail);
    if text.contains(['\r', '\n']) {
        return Err(wrong("Its value has a line break."));
    }
    let unsendable = "Its value has characters that a header cannot carry: visible ASCII can.";
    // HTTP's own rule would let other alphabets pass, and every receiver reads them in its own way.
    let sendable = Some(text).filter(|text| text.bytes().all(|byte| matches!(byte, b' '..=b'~')));
    let mut value = sendable.and_then(|text| HeaderValue::from_str(text).ok()).ok_or_else(|| wrong(unsendable))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The one line of a file; the break at its end is not part of it.
fn line<'a>(content: &'a [u8], path: &Path) -> Result<&'a str> {
    let line = text(content, path)?.trim_end_matches(['\r', '\n']);
    if line.trim().is_empty() {
        return Err(of_file(Error::new(ErrorKind::Configuration, "unusable header").with_detail("It is empty."), path));
    }
    Ok(line)
}

fn text<'a>(content: &'a [u8], path: &Path) -> Result<&'a str> {
    std::str::from_utf8(content).map_err(|_| {
        of_file(Error::new(ErrorKind::Configuration, "unusable credentials").with_detail("It is no text."), path)
    })
}

fn of_file(error: Error, path: &Path) -> Error {
    let detail = format!("{}: {}", path.display(), error.detail().unwrap_or_default());
    error.with_detail(detail)
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
