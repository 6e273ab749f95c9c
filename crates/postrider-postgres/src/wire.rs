//! What: a connection to PostgreSQL in replication mode, message by message, until it becomes a stream.
//! Where: before *read*; the ordinary sessions are tokio-postgres's, which has no replication mode.
//! Takes and gives: `ConnectOptions`; rows of simple queries as text, then the two halves of the stream.
//! Never: keeps more than one command in flight, or trusts a length.

use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use postgres_protocol::message::frontend;
use postrider_core::error::{Error, ErrorKind, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::errors::{Phase, ServerMessage, map_io_error, map_server_message, protocol_violation};
use crate::options::ConnectOptions;
use socket::Socket;

pub(crate) mod message;
pub(crate) mod socket;
mod startup;

/// The longest that the server may take for an answer to a command that only reads.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Room that each read of an answer finds.
const READ_BYTES: usize = 8 * 1024;

/// A connection in replication mode. Dropping it closes the socket.
pub(crate) struct Wire {
    pub(crate) socket: Socket,
    /// What was received and not yet taken apart.
    pub(crate) received: BytesMut,
    /// `host:port` or the socket's path.
    pub(crate) endpoint: String,
    /// The server's process.
    pub(crate) process_id: i32,
}

/// One row of a simple query: the texts of its columns.
pub(crate) type TextRow = Vec<Option<String>>;

impl Wire {
    /// Connects to the first place that answers, starts a session with `replication=database`, and proves who we are.
    ///
    /// # Errors
    /// `Disconnected` with the place, `Authentication`, `Privilege`, `Configuration`, `Protocol`.
    pub(crate) async fn connect(options: &ConnectOptions) -> Result<Wire> {
        let mut failure = None;
        for endpoint in &options.endpoints {
            let attempt = timeout(options.connect_timeout(), startup::connect(options, endpoint));
            match attempt.await {
                Ok(Ok(wire)) => return Ok(wire),
                // The next host is for a server that is not there, not for one that says no.
                Ok(Err(error)) if error.kind() != ErrorKind::Disconnected => return Err(error),
                Ok(Err(error)) => failure = Some(error),
                Err(_elapsed) => failure = Some(unreachable(&endpoint.to_string(), options.connect_timeout())),
            }
        }
        Err(failure.unwrap_or_else(|| Error::new(ErrorKind::Configuration, "the connection string names no host")))
    }

    /// Runs one simple query and returns the rows of its only result.
    pub(crate) async fn query(&mut self, phase: Phase, sql: &str) -> Result<Vec<TextRow>> {
        match timeout(ANSWER_TIMEOUT, self.query_unbounded(phase, sql)).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(self.silent()),
        }
    }

    /// As `query`, for a command that may wait for others. Cancelling leaves the connection in the middle of an
    /// answer: only dropping it is left.
    pub(crate) async fn query_unbounded(&mut self, phase: Phase, sql: &str) -> Result<Vec<TextRow>> {
        self.send_query(sql).await?;
        let mut rows = Vec::new();
        let mut refusal = None;
        loop {
            let (tag, body) = self.next_or(&mut refusal).await?;
            match tag {
                message::DATA_ROW => rows.push(message::text_row(&body).ok_or_else(|| malformed("DataRow"))?),
                message::ERROR_RESPONSE => refusal = Some(self.refusal(phase, &body)),
                message::READY_FOR_QUERY => return refusal.map_or(Ok(rows), Err),
                message::ROW_DESCRIPTION | message::COMMAND_COMPLETE | message::EMPTY_QUERY_RESPONSE => {}
                other => return Err(unexpected(other)),
            }
        }
    }

    /// Sends a command that turns the connection into a stream, and waits for the server's `CopyBothResponse`.
    pub(crate) async fn start_copy(&mut self, phase: Phase, command: &str) -> Result<()> {
        match timeout(ANSWER_TIMEOUT, self.start_copy_unbounded(phase, command)).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(self.silent()),
        }
    }

    async fn start_copy_unbounded(&mut self, phase: Phase, command: &str) -> Result<()> {
        self.send_query(command).await?;
        let mut refusal = None;
        loop {
            let (tag, body) = self.next_or(&mut refusal).await?;
            match tag {
                message::COPY_BOTH_RESPONSE => return Ok(()),
                message::ERROR_RESPONSE => refusal = Some(self.refusal(phase, &body)),
                message::READY_FOR_QUERY => {
                    return Err(refusal.unwrap_or_else(|| unexpected(message::READY_FOR_QUERY)));
                }
                other => return Err(unexpected(other)),
            }
        }
    }

    /// The next message. After a FATAL the connection just ends; the refusal says why.
    async fn next_or(&mut self, refusal: &mut Option<Error>) -> Result<(u8, Bytes)> {
        self.next_message().await.map_err(|ended| refusal.take().unwrap_or(ended))
    }

    /// Says goodbye. The server then ends the session at once instead of at its next look at the socket.
    pub(crate) async fn close(mut self) {
        let mut farewell = BytesMut::new();
        frontend::terminate(&mut farewell);
        // Either way the connection is over: the server reads the same from a closed socket, only later.
        if timeout(ANSWER_TIMEOUT, self.socket.write_all(&farewell)).await.is_ok_and(|sent| sent.is_ok()) {
            let _closed = self.socket.shutdown().await;
        }
    }

    async fn send_query(&mut self, sql: &str) -> Result<()> {
        let mut query = BytesMut::new();
        frontend::query(sql, &mut query)
            .map_err(|error| Error::new(ErrorKind::Configuration, "a name holds a zero byte").with_source(error))?;
        self.send(&query).await
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let sent = async {
            self.socket.write_all(bytes).await?;
            self.socket.flush().await
        };
        sent.await.map_err(|error| self.lost(error))
    }

    /// The next message that is an answer: notices are logged, parameter changes and notifications left out.
    pub(crate) async fn next_message(&mut self) -> Result<(u8, Bytes)> {
        loop {
            while let Some((tag, body)) = message::take(&mut self.received)? {
                match tag {
                    message::NOTICE_RESPONSE => {
                        log_notice(&ServerMessage::parse(&body).ok_or_else(|| malformed("NoticeResponse"))?);
                    }
                    message::PARAMETER_STATUS | message::NOTIFICATION_RESPONSE => {}
                    _ => return Ok((tag, body)),
                }
            }
            self.received.reserve(READ_BYTES);
            let count = self.socket.read_buf(&mut self.received).await.map_err(|error| self.lost(error))?;
            if count == 0 {
                return Err(Error::new(ErrorKind::Disconnected, "the server closed the connection")
                    .with_detail(format!("The server is {}.", self.endpoint)));
            }
        }
    }

    /// An `ErrorResponse` as an error.
    pub(crate) fn refusal(&self, phase: Phase, body: &[u8]) -> Error {
        ServerMessage::parse(body)
            .map_or_else(|| malformed("ErrorResponse"), |refusal| map_server_message(phase, &refusal))
    }

    fn silent(&self) -> Error {
        Error::new(ErrorKind::Disconnected, "the server does not answer").with_detail(format!(
            "The server is {}; {} s passed.",
            self.endpoint,
            ANSWER_TIMEOUT.as_secs()
        ))
    }

    fn lost(&self, error: std::io::Error) -> Error {
        map_io_error("the connection to the server is lost", &self.endpoint, error)
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// Passes a notice of the server on to the log, at its own level.
pub(crate) fn log_notice(notice: &ServerMessage) {
    let ServerMessage { severity, sqlstate, message, .. } = notice;
    match severity.as_str() {
        "WARNING" => tracing::warn!(sqlstate, "the server warns: {message}"),
        "NOTICE" | "INFO" | "LOG" => tracing::info!(sqlstate, "the server says: {message}"),
        _ => tracing::debug!(sqlstate, severity, "the server says: {message}"),
    }
}

/// A message whose fields do not fit its length.
pub(crate) fn malformed(what: &str) -> Error {
    protocol_violation(format!("A message {what} ends within a field."))
}

/// A message that has no place here.
pub(crate) fn unexpected(tag: u8) -> Error {
    protocol_violation(format!("A message of type '{}' has no place here.", tag.escape_ascii()))
}

fn unreachable(endpoint: &str, after: Duration) -> Error {
    Error::new(ErrorKind::Disconnected, "cannot connect to the server")
        .with_detail(format!("The server is {endpoint}; it did not answer within {} s.", after.as_secs_f32()))
        .with_hint("Check that the server runs, and that host and port in the address are its own.")
}
