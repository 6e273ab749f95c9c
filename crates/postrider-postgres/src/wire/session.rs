//! Hands a connection that has been opened over to tokio-postgres, which then drives an ordinary session on it.
//!
//! tokio-postgres wants to open a connection itself. So it is let talk: its start-up message goes nowhere, and what it reads first is
//! what the server said to ours.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, BufMut as _, BytesMut};
use postrider_core::error::Result;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{Client, Config, Connection, NoTls};

use super::socket::Socket;
use super::{Wire, message};
use crate::errors::{Phase, map_client_error};

/// An open session's socket, which begins with the server's greeting.
pub(crate) struct SessionSocket {
    socket: Socket,
    /// What tokio-postgres has not read yet of what the server has said.
    greeting: BytesMut,
    /// Its start-up message has gone nowhere.
    is_introduced: bool,
}

/// Gives the connection to a client of tokio-postgres and the task behind it.
pub(crate) async fn hand_over(wire: Wire) -> Result<(Client, Connection<SessionSocket, NoTlsStream>)> {
    let greeting = greeting(&wire);
    let mut config = Config::new();
    // It says who it is to nobody; without a name it would ask the system for one.
    config.user("postrider").ssl_mode(SslMode::Disable);
    let socket = SessionSocket { socket: wire.socket, greeting, is_introduced: false };
    config.connect_raw(socket, NoTls).await.map_err(|error| map_client_error(Phase::Connect, error))
}

/// AuthenticationOk, the parameters, the key to cancel by, ReadyForQuery, and what came since.
fn greeting(wire: &Wire) -> BytesMut {
    let mut bytes = BytesMut::new();
    put(&mut bytes, message::AUTHENTICATION, &[&[0; 4]]);
    for (name, value) in &wire.parameters {
        put(&mut bytes, message::PARAMETER_STATUS, &[name.as_bytes(), &[0], value.as_bytes(), &[0]]);
    }
    if !wire.key.is_empty() {
        put(&mut bytes, message::BACKEND_KEY_DATA, &[&wire.key]);
    }
    put(&mut bytes, message::READY_FOR_QUERY, &[b"I"]);
    bytes.extend_from_slice(&wire.received);
    bytes
}

fn put(bytes: &mut BytesMut, tag: u8, parts: &[&[u8]]) {
    let length = parts.iter().map(|part| part.len()).sum::<usize>().saturating_add(4);
    bytes.put_u8(tag);
    bytes.put_u32(
        u32::try_from(length).expect("a message that came in one piece is no longer than the protocol allows"),
    );
    for part in parts {
        bytes.extend_from_slice(part);
    }
}

impl AsyncRead for SessionSocket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.greeting.is_empty() {
            return Pin::new(&mut self.socket).poll_read(cx, buffer);
        }
        let count = self.greeting.len().min(buffer.remaining());
        buffer.put_slice(self.greeting.get(..count).unwrap_or_default());
        self.greeting.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SessionSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // The first thing that a client says is its start-up message, in one piece.
        if !self.is_introduced {
            self.is_introduced = true;
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
