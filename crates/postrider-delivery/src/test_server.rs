//! A small HTTP/1.1 server over a real socket that does what it is told to each request: answer, stall, trickle, reset.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What to do with a request that was read.
pub(crate) enum Act {
    Answer(String),
    AnswerAfter(Duration, String),
    AnswerOnce(watch::Receiver<bool>, String),
    AnswerThenClose(String),
    /// The text, then a byte from time to time for ever.
    Trickle(String),
    /// The text, then chunks of a body for ever, as fast as they are taken.
    Flood(String),
    /// Close without a word.
    Close,
    /// Close with an RST.
    Reset,
    /// Keep the connection open and say nothing.
    Hang,
}

#[derive(Debug, Clone)]
pub(crate) struct Received {
    /// Counts connections from 0.
    pub(crate) connection: usize,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    accept: tokio::task::JoinHandle<()>,
}

impl TestServer {
    pub(crate) async fn start(act: impl Fn(&Received) -> Act + Send + Sync + 'static) -> TestServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&received);
        let act = Arc::new(act);
        let accept = tokio::spawn(async move {
            for connection in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let (act, log) = (Arc::clone(&act), Arc::clone(&log));
                tokio::spawn(async move { serve(stream, connection, &*act, &log).await });
            }
        });
        TestServer { address, received, accept }
    }

    pub(crate) async fn always(answer: &str) -> TestServer {
        let answer = answer.to_owned();
        TestServer::start(move |_| Act::Answer(answer.clone())).await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/in?x=1", self.address)
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

/// An answer with a body and its length.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len())
}

async fn serve(mut stream: TcpStream, connection: usize, act: &impl Fn(&Received) -> Act, log: &Mutex<Vec<Received>>) {
    let mut buffer = Vec::new();
    while let Some(request) = read_request(&mut stream, connection, &mut buffer).await {
        log.lock().unwrap().push(request.clone());
        match act(&request) {
            Act::Answer(text) => drop(stream.write_all(text.as_bytes()).await),
            Act::AnswerAfter(delay, text) => {
                tokio::time::sleep(delay).await;
                drop(stream.write_all(text.as_bytes()).await);
            }
            Act::AnswerOnce(mut open, text) => {
                open.wait_for(|open| *open).await.unwrap();
                drop(stream.write_all(text.as_bytes()).await);
            }
            Act::AnswerThenClose(text) => {
                drop(stream.write_all(text.as_bytes()).await);
                return;
            }
            Act::Trickle(text) => {
                drop(stream.write_all(text.as_bytes()).await);
                while stream.write_all(b"x").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            Act::Flood(text) => {
                drop(stream.write_all(text.as_bytes()).await);
                let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
                while stream.write_all(chunk.as_bytes()).await.is_ok() {}
                return;
            }
            Act::Close => return,
            Act::Reset => return stream.set_zero_linger().unwrap(),
            Act::Hang => {
                // Ends when the client closes.
                drop(stream.read(&mut [0; 1]).await);
                return;
            }
        }
    }
}

async fn read_request(stream: &mut TcpStream, connection: usize, buffer: &mut Vec<u8>) -> Option<Received> {
    loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(buffer[..at].to_vec()).unwrap();
            let mut request = Received { connection, head, body: String::new() };
            let length: usize = request.header("content-length").map_or(0, |text| text.parse().unwrap());
            if buffer.len() >= at + 4 + length {
                request.body = String::from_utf8(buffer[at + 4..at + 4 + length].to_vec()).unwrap();
                buffer.drain(..at + 4 + length);
                return Some(request);
            }
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}
