//! What: turns a connection into the logical replication stream of a slot.
//! Where: between *open* and *read*.
//! Takes and gives: a `Wire`, a slot, a publication and an LSN; the session's reader and its confirmer.
//! Never: asks for an option that changes the slot for good, as `two_phase` does.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::error::Result;
use postrider_core::ports::LogSession;
use postrider_core::position::Lsn;

use crate::confirm::{Feedback, StreamConfirmer};
use crate::errors::Phase;
use crate::quote::quote_identifier;
use crate::read::{Incoming, StreamReader};
use crate::wire::Wire;

pub(crate) mod slot;

/// Starts the stream after `durable_end`; the server moves that up to the slot's own position by itself.
pub(crate) async fn start_stream(
    mut wire: Wire,
    slot: &str,
    publication: &str,
    durable_end: Lsn,
    wal_sender_timeout: Duration,
) -> Result<LogSession> {
    wire.start_copy(Phase::StartReplication, &start_command(slot, publication, durable_end)).await?;
    let Wire { socket, received, endpoint, .. } = wire;
    let mark = socket.low_water_mark();
    let (reading, writing) = tokio::io::split(socket);
    let feedback = Arc::new(Feedback::new(durable_end));
    let incoming = Incoming::new(reading, received, endpoint, mark);
    Ok(LogSession {
        reader: Box::new(StreamReader::new(incoming, Arc::clone(&feedback))),
        confirmer: Arc::new(StreamConfirmer::spawn(writing, feedback, wal_sender_timeout)),
    })
}

/// The publication's name is an identifier within a list within a literal.
fn start_command(slot: &str, publication: &str, from: Lsn) -> String {
    let publications = quote_identifier(publication).replace('\'', "''");
    format!(
        "START_REPLICATION SLOT {} LOGICAL {from} (proto_version '1', publication_names '{publications}', messages 'true')",
        quote_identifier(slot),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_once_for_each_layer() {
        assert_eq!(
            start_command("s", "it's a \"p\"", Lsn(0x1_0000_00AB)),
            r#"START_REPLICATION SLOT "s" LOGICAL 1/AB (proto_version '1', publication_names '"it''s a ""p"""', messages 'true')"#,
        );
    }
}
