//! The endpoint that stages and events are posted to: a small HTTP/1.1 server on a thread of its own, which notes when a request has come.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use xtask::error::{Context, Result};

/// A running endpoint. It ends with the process.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    arrivals: Arc<Arrivals>,
}

/// What it does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Notes it and answers at once that the work is done.
    Prompt,
    /// Takes it and never answers.
    Silent,
}

#[derive(Debug, Default)]
struct Arrivals {
    by_quote: Mutex<HashMap<String, Instant>>,
    news: Notify,
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nPostrider-Outcome: done\r\nContent-Length: 0\r\n\r\n";

impl Endpoint {
    pub(crate) fn start(manner: Manner) -> Result<Self> {
        let arrivals = Arc::new(Arrivals::default());
        let (tell, told) = mpsc::channel();
        let noted = Arc::clone(&arrivals);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                // Nobody waits for the address any more if the bench has ended.
                let _ = tell.send(listener.local_addr()?);
                accept(listener, manner, noted).await
            })
        });
        let address = told.recv().context(|| "the endpoint did not start")?;
        Ok(Self { address, arrivals })
    }

    /// When the first request for this quote had come, for all quotes so far.
    pub(crate) fn arrivals(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.arrivals.lock()
    }

    /// Returns once requests for that many quotes have come.
    pub(crate) async fn wait_for(&self, quotes: usize) {
        loop {
            let news = self.arrivals.news.notified();
            if self.arrivals.lock().len() >= quotes {
                return;
            }
            news.await;
        }
    }
}

impl Arrivals {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.by_quote.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, body: &[u8], at: Instant) {
        if let Some(quote) = quote_of(body) {
            self.lock().entry(quote.to_owned()).or_insert(at);
            self.news.notify_waiters();
            // For one who looked just before and waits only now.
            self.news.notify_one();
        }
    }
}

async fn accept(listener: TcpListener, manner: Manner, arrivals: Arc<Arrivals>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(serve(stream, manner, Arc::clone(&arrivals)));
    }
}

/// Serves one connection, one request after the other.
async fn serve(mut stream: TcpStream, manner: Manner, arrivals: Arc<Arrivals>) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(8 * 1024);
    loop {
        while let Some((head, body)) = lengths(&buffer) {
            let at = Instant::now();
            match manner {
                Manner::Prompt => {
                    stream.write_all(ANSWER).await?;
                    arrivals.note(&buffer[head..head + body], at);
                }
                Manner::Silent => {}
            }
            let _ = buffer.split_to(head + body);
        }
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

/// Lengths of head and body of the first request, once it is there as a whole.
fn lengths(bytes: &[u8]) -> Option<(usize, usize)> {
    const END: &[u8] = b"\r\n\r\n";
    let head = bytes.windows(END.len()).position(|window| window == END)? + END.len();
    let text = std::str::from_utf8(&bytes[..head]).ok()?;
    let body = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let body = body.unwrap_or(0);
    (bytes.len() >= head + body).then_some((head, body))
}

/// The quote in a stage's request, whose body has its members in a fixed order.
fn quote_of(body: &[u8]) -> Option<&str> {
    const NAME: &str = "\"quote_id\":\"";
    let text = std::str::from_utf8(body).ok()?;
    let (_, rest) = text.split_once(NAME)?;
    rest.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_whole_only_with_its_body() {
        let request = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabcPOST";
        assert_eq!(lengths(request), Some((47, 3)));
        assert_eq!(lengths(&request[..49]), None);
        assert_eq!(lengths(&request[..40]), None);
    }

    #[test]
    fn the_quote_is_found_in_the_body() {
        let body = br#"{"group_id":"g","quote_id":"q-17","stage":"PRICING","epoch":0,"payload":{"quote_id":"x"}}"#;
        assert_eq!(quote_of(body), Some("q-17"));
        assert_eq!(quote_of(b"{}"), None);
    }
}
