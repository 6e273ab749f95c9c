//! Where a request goes.

use crate::credentials::{HeaderFile, header_value, present};
use crate::from_files::FileWatch;
use crate::header;
use crate::signature::Signers;
use crate::tls::{TlsFiles, TlsRoots, connector};
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{HeaderMap, Uri};
use postrider_core::error::{Error, ErrorKind, Result};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// An HTTP endpoint, valid by construction. Printing it shows neither its path nor the values of its headers, which may hold
/// secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `http://host:port`, which connections are shared by.
    pub(crate) origin: Arc<str>,
    /// Name or address, without the brackets of an IPv6 address.
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
    pub(crate) secure: bool,
    /// Path and query, as the request line has them.
    pub(crate) target: Uri,
    /// What each request carries: `Host`, `Content-Type`, `User-Agent` and the configured headers.
    pub(crate) headers: HeaderMap,
    /// Headers whose values stand in files.
    pub(crate) header_files: Vec<HeaderFile>,
    pub(crate) signing: Signing,
    /// What its connections are made with, where it is not the default.
    pub(crate) tls: Option<Arc<TlsFiles>>,
}

/// What requests are signed with.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Signing {
    Without,
    With(Signers),
    File(PathBuf),
}

/// What connections are shared by: where they lead, and what they were made with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Via {
    origin: Arc<str>,
    tls: Option<Arc<TlsFiles>>,
}

impl Endpoint {
    /// Reads an absolute `http` or `https` URL with a host, without user name, password and fragment.
    ///
    /// # Errors
    /// `Configuration`, with one sentence that says what is wrong.
    pub fn parse(url: &str) -> Result<Endpoint> {
        if url.contains('#') {
            return Err(unusable("It has a fragment (#…), which is never sent to a server."));
        }
        let uri: Uri = url.parse().map_err(|_| unusable("It is not an absolute URL such as http://host:8080/path."))?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) => return Err(unusable("Its scheme is neither http nor https.")),
            None => return Err(unusable("It has no scheme: it must begin with http:// or https://.")),
        };
        let authority = uri.authority().ok_or_else(|| unusable("It has no host."))?;
        if authority.as_str().contains('@') {
            return Err(unusable("It has a user name or password in it; put credentials into a header instead."));
        }
        let bracketed = authority.host();
        let host = bracketed.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(unusable("It has no host."));
        }
        let port = port_of(authority.as_str(), bracketed, secure)?;
        let scheme = if secure { "https" } else { "http" };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Endpoint {
            origin: format!("{scheme}://{bracketed}:{port}").to_ascii_lowercase().into(),
            host: host.into(),
            port,
            secure,
            target: path.parse().map_err(|_| unusable("Its path is not valid."))?,
            headers: fixed_headers(authority.as_str())?,
            header_files: Vec::new(),
            signing: Signing::Without,
            tls: None,
        })
    }

    /// `http://host:port`: where it is, without what may be secret.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Adds a header to each request, an `Authorization` for instance.
    ///
    /// # Errors
    /// `Configuration` where name or value are not valid, or where the name is one that Postrider sets itself.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Endpoint> {
        self.headers.insert(header_name(name)?, header_value(value)?);
        Ok(self)
    }

    /// Adds a header whose value is `before` and the one line of a file, which is read again when it has changed.
    ///
    /// # Errors
    /// `Configuration` where the name is not valid, or one that Postrider sets itself.
    pub fn with_header_file(mut self, name: &str, before: &str, path: PathBuf) -> Result<Endpoint> {
        let name = header_name(name)?;
        header_value(before)?;
        self.header_files.push(HeaderFile { name, before: before.to_owned(), path });
        Ok(self)
    }

    /// Signs each request as Standard Webhooks has it. Several secrets with white space between them make several signatures.
    ///
    /// # Errors
    /// `Configuration` where they are not `whsec_` and base64 of 24 to 64 bytes.
    pub fn with_signing_secret(self, secrets: &str) -> Result<Endpoint> {
        Ok(Endpoint { signing: Signing::With(Signers::parse(secrets)?), ..self })
    }

    /// Signs each request with the secrets of a file, which is read again when it has changed.
    #[must_use]
    pub fn with_signing_secret_file(self, path: PathBuf) -> Endpoint {
        Endpoint { signing: Signing::File(path), ..self }
    }

    /// Makes its connections with these files, which are read again when they have changed.
    ///
    /// # Errors
    /// `Configuration` where the endpoint is not `https`.
    pub fn with_tls(self, files: TlsFiles) -> Result<Endpoint> {
        if !self.secure {
            return Err(unusable("Certificates go with https:// alone."));
        }
        Ok(Endpoint { tls: Some(Arc::new(files)), ..self })
    }

    /// It is `https`.
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// Reads all files once, to see whether they can be read and used.
    ///
    /// # Errors
    /// `Configuration`, with the file and what is wrong with it.
    pub fn read_credentials(&self) -> Result<()> {
        let watch = FileWatch::default();
        present(self, &watch)?;
        if self.secure {
            connector(&TlsRoots::System, self.tls.as_deref(), &watch)?;
        }
        Ok(())
    }

    pub(crate) fn via(&self) -> Via {
        Via { origin: Arc::clone(&self.origin), tls: self.tls.clone() }
    }

    /// Opens a TCP connection and closes it again: what can be known without sending a request. Returns a sentence.
    ///
    /// # Errors
    /// `SinkUnavailable`, with a sentence that says how far it came.
    pub async fn probe(&self, limit: Duration) -> Result<String> {
        let origin = &self.origin;
        let unreachable = |detail: String| {
            Error::new(ErrorKind::SinkUnavailable, "endpoint not reachable")
                .with_detail(detail)
                .with_hint(format!("Start the service at {origin}, or correct the `url` in the configuration. To see what answers there: curl -i {origin}/"))
        };
        match timeout(limit, TcpStream::connect((&*self.host, self.port))).await {
            Ok(Ok(_)) => Ok(format!("{origin} accepts connections.")),
            Ok(Err(error)) => Err(unreachable(format!("{origin} does not accept connections.")).with_source(error)),
            Err(_) => Err(unreachable(format!("{origin} did not answer within {limit:?}."))),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.headers.keys().filter(|name| !is_ours(name.as_str()) && **name != USER_AGENT);
        f.debug_struct("Endpoint")
            .field("origin", &self.origin)
            .field("headers", &set.collect::<Vec<_>>())
            .field("header_files", &self.header_files)
            .field("signing", &self.signing)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Signing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Signing::Without => f.write_str("without"),
            Signing::With(signers) => write!(f, "with {} secrets", signers.len()),
            Signing::File(path) => write!(f, "with the secrets of {}", path.display()),
        }
    }
}

fn port_of(authority: &str, bracketed_host: &str, secure: bool) -> Result<u16> {
    match authority.strip_prefix(bracketed_host) {
        Some("") => Ok(if secure { 443 } else { 80 }),
        Some(rest) => match rest.strip_prefix(':').and_then(|digits| digits.parse().ok()) {
            Some(port) if port != 0 => Ok(port),
            _ => Err(unusable("Its port is not a number from 1 to 65535.")),
        },
        None => Err(unusable("Its host is not valid.")),
    }
}

fn fixed_headers(authority: &str) -> Result<HeaderMap> {
    let host = HeaderValue::from_str(authority).map_err(|_| unusable("Its host is not valid."))?;
    Ok(HeaderMap::from_iter([
        (HOST, host),
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (USER_AGENT, HeaderValue::from_static(concat!("postrider/", env!("CARGO_PKG_VERSION")))),
    ]))
}

fn header_name(name: &str) -> Result<HeaderName> {
    let wrong = |detail: &str| Error::new(ErrorKind::Configuration, "unusable header").with_detail(detail);
    let name: HeaderName = name.parse().map_err(|_| wrong("Its name is not a valid header name."))?;
    if is_ours(name.as_str()) {
        return Err(wrong("Its name is one that Postrider or HTTP itself sets."));
    }
    Ok(name)
}

fn is_ours(name: &str) -> bool {
    let fixed = ["host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"];
    let ours = [header::IDEMPOTENCY_KEY, header::TRACEPARENT, CONTENT_TYPE];
    fixed.contains(&name)
        || ours.iter().any(|own| own == name)
        || name.starts_with("postrider-")
        || name.starts_with("webhook-")
}

fn unusable(detail: &str) -> Error {
    Error::new(ErrorKind::Configuration, "unusable URL of an endpoint").with_detail(detail)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use super::*;
    use tokio::net::TcpListener;

    #[test]
    fn a_url_is_taken_apart() {
        let endpoint = Endpoint::parse("http://quoting-core/stages/pricing?v=1").unwrap();
        assert_eq!((&*endpoint.host, endpoint.port, endpoint.secure), ("quoting-core", 80, false));
        assert_eq!(endpoint.target, "/stages/pricing?v=1");
        assert_eq!(endpoint.headers[HOST], "quoting-core");

        let endpoint = Endpoint::parse("https://[::1]:8443").unwrap();
        assert_eq!((&*endpoint.host, endpoint.port, endpoint.secure), ("::1", 8443, true));
        assert_eq!(endpoint.target, "/");
        assert_eq!(&*endpoint.origin, "https://[::1]:8443");
        assert_eq!(Endpoint::parse("https://A.example/x").unwrap().port, 443);
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said_in_a_sentence() {
        for (url, word) in [
            ("ftp://host/", "scheme"),
            ("host/path", "not an absolute URL"),
            ("/path", "no scheme"),
            ("http://", "not an absolute URL"),
            ("http://user:secret@host/", "user name or password"),
            ("http://host/#top", "fragment"),
            ("http://host:0/", "port"),
            ("http://host:/", "port"),
            ("http://host:99999/", "port"),
            ("http://a b/", "not an absolute URL"),
        ] {
            let error = Endpoint::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration);
            assert!(error.detail().unwrap().contains(word), "{url}: {:?}", error.detail());
            assert!(!format!("{error:?}").contains("secret"));
        }
    }

    #[test]
    fn a_header_is_checked_and_never_printed() {
        let endpoint = Endpoint::parse("http://host/").unwrap();
        let with = endpoint.clone().with_header("Authorization", "Bearer hunter2").unwrap();
        assert_eq!(with.headers["authorization"], "Bearer hunter2");
        assert!(!format!("{with:?}").contains("hunter2"));
        for (name, value) in [
            ("a b", "x"),
            ("x", "a\nb"),
            ("Postrider-Fence", "1"),
            ("Idempotency-Key", "k"),
            ("host", "h"),
            ("Traceparent", "t"),
            ("Webhook-Signature", "s"),
            ("Content-Type", "c"),
            ("Content-Length", "1"),
        ] {
            assert!(endpoint.clone().with_header(name, value).is_err(), "{name}");
            assert_eq!(endpoint.clone().with_header_file(name, "", "f".into()).is_err(), name != "x", "{name}");
        }
    }

    #[tokio::test]
    async fn a_probe_says_whether_somebody_listens() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let limit = Duration::from_secs(10);
        assert!(endpoint.probe(limit).await.unwrap().ends_with("accepts connections."));
        drop(listener);
        assert_eq!(endpoint.probe(limit).await.unwrap_err().kind(), ErrorKind::SinkUnavailable);
    }
}
