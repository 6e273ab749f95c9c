//! What: turns a connection into the logical replication stream of a slot.
//! Where: between *open* and *read*.
//! Takes and gives: a `Wire`, a slot, a publication and an LSN; the session's reader and its confirmer.
//! Never: asks for `two_phase`, which changes the slot for good, unless the user wants it.

use std::sync::Arc;

use postrider_core::error::Result;
use postrider_core::ports::{Before, LogReader, LogSession, SourceIdentity};
use postrider_core::position::Lsn;

use crate::confirm::{Feedback, StreamConfirmer};
use crate::errors::{Phase, name_slot};
use crate::options::ConnectOptions;
use crate::quote::quote_identifier;
use crate::read::timeline::TimelineReader;
use crate::read::{Incoming, StreamReader};
use crate::source::preflight::Cleared;
use crate::wire::Wire;
use plugin::PluginOptions;

pub(crate) mod plugin;
pub(crate) mod slot;

/// What is to be streamed, and what was found out about it.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) slot: &'a str,
    pub(crate) publications: &'a [String],
    /// The end of our journal.
    pub(crate) durable_end: Lsn,
    pub(crate) cleared: Cleared,
    pub(crate) plugin: PluginOptions,
    pub(crate) identity: SourceIdentity,
    pub(crate) before: Before,
    /// For a second session, where the server is a standby.
    pub(crate) options: &'a ConnectOptions,
}

/// Starts the stream after the journal's end; the server moves that up to the slot's own position by itself.
pub(crate) async fn start_stream(mut wire: Wire, start: Start<'_>) -> Result<LogSession> {
    let Start { slot, publications, durable_end, cleared, plugin, identity, before, options: address } = start;
    let begins = durable_end.max(cleared.confirmed);
    let options = plugin.list(publications);
    let started = wire.start_copy(Phase::StartReplication, &start_command(slot, durable_end, &options)).await;
    started.map_err(|refusal| name_slot(refusal, slot))?;
    tracing::info!(server_version = cleared.server_version, options, "asked for the stream");
    let Wire { socket, received, endpoint, .. } = wire;
    let mark = socket.low_water_mark();
    let (reading, writing) = tokio::io::split(socket);
    let feedback = Arc::new(Feedback::new(begins, cleared.confirmed));
    let asked_at = address.clone().at(&endpoint);
    let incoming = Incoming::new(reading, received, endpoint, mark);
    let reader = StreamReader::new(incoming, Arc::clone(&feedback), slot);
    let reader: Box<dyn LogReader> = if cleared.in_recovery {
        Box::new(TimelineReader::new(reader, &asked_at, identity.clone()).await?)
    } else {
        Box::new(reader)
    };
    Ok(LogSession {
        identity,
        begins,
        before,
        outcomes: cleared.outcomes,
        reader,
        confirmer: Arc::new(StreamConfirmer::spawn(writing, feedback, cleared.wal_sender_timeout)),
    })
}

fn start_command(slot: &str, from: Lsn, options: &str) -> String {
    format!("START_REPLICATION SLOT {} LOGICAL {from} ({options})", quote_identifier(slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_is_where_our_journal_ends() {
        assert_eq!(
            start_command("s", Lsn(0x1_0000_00AB), "proto_version '1'"),
            r#"START_REPLICATION SLOT "s" LOGICAL 1/AB (proto_version '1')"#,
        );
    }
}
