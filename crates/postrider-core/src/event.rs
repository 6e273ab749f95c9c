//! Events as sinks get them.

use crate::position::Position;
use crate::time::Timestamp;
use bytes::Bytes;
use std::sync::Arc;

/// One outbox event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What identifies it for ever: the outbox row's `id`; for a logical message without one, its position as text.
    pub id: Arc<str>,
    /// What orders it.
    pub position: Position,
    /// The server's clock at commit.
    pub committed_at: Timestamp,
    /// Where it comes from: `schema.table`, or the prefix of a logical message.
    pub source: Arc<str>,
    /// Events with the same key are delivered in commit order. `None`: by itself.
    pub key: Option<Arc<str>>,
    pub event_type: Option<Arc<str>>,
    pub topic: Option<Arc<str>>,
    /// A JSON object in its own text, as the `headers` column has it.
    pub headers: Option<Bytes>,
    pub payload: Payload,
}

/// The payload, byte for byte as the column or message has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// The column is NULL, or there is none.
    Null,
    /// Valid JSON text.
    Json(Bytes),
    /// UTF-8 text that is not JSON.
    Text(Bytes),
    /// Anything else.
    Binary(Bytes),
}
