//! What: the primary's logical replication stream as a port.
//! Where: before *read*; opened at the start and after each lost connection.
//! Takes and gives: an address, a slot and a publication; a session's reader and confirmer, or why there is none.
//! Never: retries, or starts where the slot says something else than the journal, or at another server than the first time.

use std::sync::{Arc, OnceLock};

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{BoxFuture, LogSession, LogSource, SourceIdentity};
use postrider_core::position::Lsn;

use crate::identity::identify;
use crate::options::ConnectOptions;
use crate::replication::plugin::{PluginOptions, Wishes};
use crate::replication::start_stream;
use crate::wire::Wire;

pub(crate) mod preflight;

/// One slot's stream of one publication.
#[derive(Debug, Clone)]
pub struct ReplicationSource {
    options: ConnectOptions,
    slot: String,
    publication: String,
    wishes: Wishes,
    /// Who the server was when it was first asked: an address may come to lead to another one later.
    first: Arc<OnceLock<SourceIdentity>>,
}

impl ReplicationSource {
    /// Every transaction comes whole, after its commit. Nothing is asked of the server yet.
    pub fn new(options: ConnectOptions, slot: impl Into<String>, publication: impl Into<String>) -> ReplicationSource {
        let (slot, publication) = (slot.into(), publication.into());
        ReplicationSource { options, slot, publication, wishes: Wishes::default(), first: Arc::default() }
    }

    /// Large transactions come while they are in progress, so that the server need not keep them on its disk.
    #[must_use]
    pub fn streaming(mut self, streaming: bool) -> ReplicationSource {
        self.wishes.streaming = streaming;
        self
    }

    /// Prepared transactions come before their verdict (version 15 and later). This marks the slot for good; they come from a
    /// slot that is marked already, whether it is asked for or not.
    #[must_use]
    pub fn two_phase(mut self, two_phase: bool) -> ReplicationSource {
        self.wishes.two_phase = two_phase;
        self
    }

    /// Checks all that `open` checks, and opens nothing. `durable_end` as there.
    ///
    /// # Errors
    /// As `open`, but for a slot in use.
    pub async fn check(&self, durable_end: Lsn) -> Result<()> {
        let mut wire = Wire::connect(&self.options).await?;
        let cleared = preflight::check(&mut wire, &self.options, &self.slot, &self.publication, durable_end).await?;
        PluginOptions::choose(cleared.server_version, self.wishes, cleared.two_phase)?;
        wire.close().await;
        Ok(())
    }

    async fn ask_identity(&self) -> Result<SourceIdentity> {
        let mut wire = Wire::connect(&self.options).await?;
        let identity = identify(&mut wire, &self.slot).await?;
        wire.close().await;
        let _first = self.first.get_or_init(|| identity.clone());
        Ok(identity)
    }

    async fn open_session(&self, durable_end: Lsn, wishes: Wishes) -> Result<LogSession> {
        let mut wire = Wire::connect(&self.options).await?;
        let identity = identify(&mut wire, &self.slot).await?;
        check_identity(self.first.get_or_init(|| identity.clone()), &identity)?;
        let cleared = preflight::check(&mut wire, &self.options, &self.slot, &self.publication, durable_end).await?;
        let plugin = PluginOptions::choose(cleared.server_version, wishes, cleared.two_phase)?;
        let started = start_stream(wire, &self.slot, &self.publication, durable_end, (cleared, plugin)).await;
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
        Box::pin(self.open_session(durable_end, self.wishes))
    }

    fn open_whole(&self, durable_end: Lsn) -> BoxFuture<'_, Result<LogSession>> {
        Box::pin(self.open_session(durable_end, Wishes { streaming: false, ..self.wishes }))
    }
}

/// In another server's log, or on another timeline, our positions mean something else.
fn check_identity(first: &SourceIdentity, now: &SourceIdentity) -> Result<()> {
    let differs: Vec<String> = [
        ("system identifier", first.system_identifier.to_string(), now.system_identifier.to_string()),
        ("timeline", first.timeline.to_string(), now.timeline.to_string()),
    ]
    .into_iter()
    .filter(|(_, first, now)| first != now)
    .map(|(what, first, now)| format!("its {what} is {first}, the server's is {now}"))
    .collect();
    if differs.is_empty() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::JournalForeign, "the journal belongs to another source")
        .with_detail(format!("Of the journal that we write, {}.", differs.join("; ")))
        .with_hint("Connect to the server it belongs to, or give this one an empty directory."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_system_or_timeline_is_another_source() {
        let first = SourceIdentity { system_identifier: 7, timeline: 1, database: "d".into(), slot: "s".into() };
        assert!(check_identity(&first, &first.clone()).is_ok());
        for (now, words) in [
            (
                SourceIdentity { system_identifier: 8, ..first.clone() },
                "its system identifier is 7, the server's is 8.",
            ),
            (SourceIdentity { timeline: 2, ..first.clone() }, "its timeline is 1, the server's is 2."),
        ] {
            let error = check_identity(&first, &now).err().map(|error| (error.kind(), error.report()));
            assert!(
                error
                    .as_ref()
                    .is_some_and(|(kind, report)| *kind == ErrorKind::JournalForeign && report.contains(words)),
                "{error:?}"
            );
        }
    }
}
