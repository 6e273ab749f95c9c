//! Where a request goes.

use crate::header;
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{HeaderMap, Uri};
use postrider_core::error::{Error, ErrorKind, Result};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// An HTTP endpoint, valid by construction. Printing it shows neither its path nor its headers, which may hold secrets.
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
        let wrong = |detail: &str| Error::new(ErrorKind::Configuration, "unusable header").with_detail(detail);
        let name: HeaderName = name.parse().map_err(|_| wrong("Its name is not a valid header name."))?;
        if is_ours(name.as_str()) {
            return Err(wrong("Its name is one that Postrider or HTTP itself sets."));
        }
        let mut value = HeaderValue::from_str(value)
            .map_err(|_| wrong("Its value has characters that a header cannot carry: visible ASCII can."))?;
        value.set_sensitive(true);
        self.headers.insert(name, value);
        Ok(self)
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
        f.debug_tuple("Endpoint").field(&self.origin).finish()
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
        for (name, value) in
            [("a b", "x"), ("x", "a\nb"), ("Postrider-Fence", "1"), ("Idempotency-Key", "k"), ("host", "h")]
        {
            assert!(endpoint.clone().with_header(name, value).is_err(), "{name}");
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
