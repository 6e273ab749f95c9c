//! What: a connection to PostgreSQL, message by message, until it becomes a stream or an ordinary session.
//! Where: before *read*; the ordinary sessions are tokio-postgres's once they are open.
//! Takes and gives: `ConnectOptions`; rows of simple queries as text, then the two halves of the stream.
//! Never: keeps more than one command in flight, or trusts a length.
#![deny(clippy::indexing_slicing, clippy::as_conversions, clippy::arithmetic_side_effects)]

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use postgres_protocol::message::frontend;
use postrider_core::error::{Error, ErrorKind, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::errors::{Phase, ServerMessage, map_io_error, map_server_message, protocol_violation};
use crate::options::{ConnectOptions, Endpoint, Target};
use socket::Socket;

mod authenticate;
pub(crate) mod message;
pub(crate) mod session;
pub(crate) mod socket;
mod startup;

/// The longest that the server may take for an answer to a command that only reads.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Room that each read of an answer finds.
const READ_BYTES: usize = 8 * 1024;

/// An open connection. Dropping it closes the socket.
pub(crate) struct Wire {
    pub(crate) socket: Socket,
    /// What was received and not yet taken apart.
    pub(crate) received: BytesMut,
    /// `host:port` or the socket's path.
    pub(crate) endpoint: String,
    /// The server's process.
    pub(crate) process_id: i32,
    /// The body of the message that named it, with the key to cancel by.
    key: Bytes,
    /// What the server reports of the session, by name.
    parameters: BTreeMap<String, String>,
}

/// What a session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Replication commands and simple queries, in the database that the options name.
    Replication,
    Ordinary,
}

/// One row of a simple query: the texts of its columns.
pub(crate) type TextRow = Vec<Option<String>>;

impl Wire {
    /// Opens a replication session on the first place that will do.
    ///
    /// # Errors
    /// `Disconnected` with the places, `Authentication`, `Privilege`, `Configuration`, `Protocol`, `Transient` where a password
    /// command is of no use this time.
    pub(crate) async fn connect(options: &ConnectOptions) -> Result<Wire> {
        Wire::open(options, Purpose::Replication).await
    }

    /// As `connect`, for either purpose.
    pub(crate) async fn open(options: &ConnectOptions, purpose: Purpose) -> Result<Wire> {
        let options = &options.clone().with_password_at_hand().await?;
        let targets: &[Target] = match options.target {
            Target::PreferStandby => &[Target::Standby, Target::Any],
            ref target => std::slice::from_ref(target),
        };
        let mut failures = Vec::new();
        for &target in targets {
            failures.clear();
            for endpoint in &options.endpoints {
                match open_at(options, endpoint, purpose, target).await {
                    // The next host is for a server that is not there or will not do, not for one that says no.
                    Err(error) if error.kind() == ErrorKind::Disconnected => failures.push((endpoint, error)),
                    outcome => return outcome,
                }
            }
        }
        Err(none_will_do(failures))
    }

    /// Nothing is said yet.
    fn over(socket: Socket, endpoint: String) -> Wire {
        Wire {
            socket,
            received: BytesMut::new(),
            endpoint,
            process_id: 0,
            key: Bytes::new(),
            parameters: BTreeMap::new(),
        }
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

    /// The next message that is an answer: notices are logged, parameter changes noted, notifications left out.
    pub(crate) async fn next_message(&mut self) -> Result<(u8, Bytes)> {
        loop {
            while let Some((tag, body)) = message::take(&mut self.received)? {
                match tag {
                    message::NOTICE_RESPONSE => {
                        log_notice(&ServerMessage::parse(&body).ok_or_else(|| malformed("NoticeResponse"))?);
                    }
                    message::PARAMETER_STATUS => {
                        let (name, value) = message::parameter(&body).ok_or_else(|| malformed("ParameterStatus"))?;
                        self.parameters.insert(name, value);
                    }
                    message::NOTIFICATION_RESPONSE => {}
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

async fn open_at(options: &ConnectOptions, endpoint: &Endpoint, purpose: Purpose, target: Target) -> Result<Wire> {
    let attempt = startup::connect(options, endpoint, purpose);
    let wire = match options.sockets.connect_timeout {
        None => attempt.await?,
        Some(limit) => timeout(limit, attempt).await.map_err(|_elapsed| unreachable(endpoint, limit))??,
    };
    match startup::check_target(&wire, target) {
        Ok(()) => Ok(wire),
        Err(error) => {
            wire.close().await;
            Err(error)
        }
    }
}

/// The failure of the only place, or all of them.
fn none_will_do(mut failures: Vec<(&Endpoint, Error)>) -> Error {
    if failures.len() == 1
        && let Some((_, failure)) = failures.pop()
    {
        return failure;
    }
    let story = |(endpoint, error): &(&Endpoint, Error)| {
        let cause = std::error::Error::source(error).map_or_else(String::new, |cause| format!(": {cause}"));
        format!("{endpoint}: {}{cause}.", error.message())
    };
    Error::new(ErrorKind::Disconnected, "none of the servers will do")
        .with_detail(failures.iter().map(story).collect::<Vec<_>>().join(" "))
        .with_hint("Check that they run, that hosts and ports in the address are their own, and target_session_attrs.")
}

fn unreachable(endpoint: &Endpoint, after: Duration) -> Error {
    Error::new(ErrorKind::Disconnected, "cannot connect to the server")
        .with_detail(format!("The server is {endpoint}; it did not answer within {} s.", after.as_secs_f32()))
        .with_hint(endpoint.unreachable_hint())
}
