//! What: the primary's logical replication stream as a port.
//! Where: before *read*; opened at the start and after each lost connection.
//! Takes and gives: an address, a slot and a publication; a session's reader and confirmer, or why there is none.
//! Never: retries, or starts where the slot says something else than the journal.

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{BoxFuture, LogSession, LogSource, SourceIdentity};
use postrider_core::position::Lsn;

use crate::identity::identify;
use crate::options::ConnectOptions;
use crate::replication::start_stream;
use crate::wire::Wire;

pub(crate) mod preflight;

/// One slot's stream of one publication.
#[derive(Debug, Clone)]
pub struct ReplicationSource {
    options: ConnectOptions,
    slot: String,
    publication: String,
}

impl ReplicationSource {
    /// Nothing is asked of the server yet.
    pub fn new(options: ConnectOptions, slot: impl Into<String>, publication: impl Into<String>) -> ReplicationSource {
        ReplicationSource { options, slot: slot.into(), publication: publication.into() }
    }

    /// Checks all that `open` checks, and opens nothing. `durable_end` as there.
    ///
    /// # Errors
    /// As `open`, but for a slot in use.
    pub async fn check(&self, durable_end: Lsn) -> Result<()> {
        let mut wire = Wire::connect(&self.options).await?;
        preflight::check(&mut wire, &self.slot, &self.publication, durable_end).await?;
        wire.close().await;
        Ok(())
    }

    async fn ask_identity(&self) -> Result<SourceIdentity> {
        let mut wire = Wire::connect(&self.options).await?;
        let identity = identify(&mut wire, &self.slot).await?;
        wire.close().await;
        Ok(identity)
    }

    async fn open_session(&self, durable_end: Lsn) -> Result<LogSession> {
        let mut wire = Wire::connect(&self.options).await?;
        let cleared = preflight::check(&mut wire, &self.slot, &self.publication, durable_end).await?;
        let started = start_stream(wire, &self.slot, &self.publication, durable_end, cleared.wal_sender_timeout).await;
        match started {
            Err(error) if error.kind() == ErrorKind::SlotInUse => Err(self.name_holder(error).await),
            outcome => outcome,
        }
    }

    /// Says who reads from the slot, if that can still be found out.
    async fn name_holder(&self, error: Error) -> Error {
        let holder = async {
            let mut wire = Wire::connect(&self.options).await?;
            let holder = preflight::slot_holder(&mut wire, &self.slot).await?;
            wire.close().await;
            Ok::<_, Error>(holder)
        };
        match holder.await {
            Ok(Some(holder)) => error.with_detail(format!("The slot is \"{}\"; its reader is {holder}.", self.slot)),
            Ok(None) | Err(_) => error,
        }
    }
}

impl LogSource for ReplicationSource {
    fn identify(&self) -> BoxFuture<'_, Result<SourceIdentity>> {
        Box::pin(self.ask_identity())
    }

    fn open(&self, durable_end: Lsn) -> BoxFuture<'_, Result<LogSession>> {
        Box::pin(self.open_session(durable_end))
    }
}
