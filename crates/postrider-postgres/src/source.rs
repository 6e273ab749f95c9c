//! What: the primary's logical replication stream as a port.
//! Where: before *read*; opened at the start and after each lost connection.
//! Takes and gives: an address, a slot and a publication; a session's reader and confirmer, or why there is none.
//! Never: retries, starts where the slot says something else than the journal, or at another server than the journal's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{Before, BoxFuture, LogSession, LogSource, SourceIdentity, foreign_journal};
use postrider_core::position::Lsn;

use crate::identity::identify;
use crate::options::ConnectOptions;
use crate::replication::plugin::{PluginOptions, Wishes};
use crate::replication::slot::create_temporary_slot;
use crate::replication::{Start, start_stream};
use crate::timeline::{Kinship, kinship};
use crate::wire::Wire;
use preflight::{Cleared, Wanted};

pub(crate) mod preflight;

/// One slot's stream of its publications.
#[derive(Debug, Clone)]
pub struct ReplicationSource {
    options: ConnectOptions,
    slot: String,
    publications: Vec<String>,
    wishes: Wishes,
    /// A standby will do.
    standby: bool,
    /// The slot is made for each session, and goes with it.
    temporary: bool,
    /// Whose log our journal holds: an address may come to lead to another server later.
    known: Arc<Mutex<Option<SourceIdentity>>>,
    /// Since our last session one of us was seen to read from the slot.
    peer_seen: Arc<AtomicBool>,
}

/// A server beside a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    pub identity: SourceIdentity,
    pub kinship: Kinship,
    /// It is a standby.
    pub in_recovery: bool,
    /// The end of what it has of its log on disk.
    pub log_end: Lsn,
    /// Where its slot of our name is confirmed; `None`: there is no such slot.
    pub confirmed: Option<Lsn>,
}

impl ReplicationSource {
    /// Every transaction comes whole, after its commit. Nothing is asked of the server yet.
    pub fn new(options: ConnectOptions, slot: impl Into<String>, publication: impl Into<String>) -> ReplicationSource {
        ReplicationSource {
            options,
            slot: slot.into(),
            publications: vec![publication.into()],
            wishes: Wishes::default(),
            standby: false,
            temporary: false,
            known: Arc::default(),
            peer_seen: Arc::default(),
        }
    }

    /// What this publication lets through comes as well.
    #[must_use]
    pub fn and(mut self, publication: impl Into<String>) -> ReplicationSource {
        self.publications.push(publication.into());
        self
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

    /// The server may be a standby (version 16 and later).
    #[must_use]
    pub fn standby(mut self, standby: bool) -> ReplicationSource {
        self.standby = standby;
        self
    }

    /// The slot is made for each session, and goes with it: nothing of the log is kept for us in between.
    #[must_use]
    pub fn temporary(mut self, temporary: bool) -> ReplicationSource {
        self.temporary = temporary;
        self
    }

    /// The journal that is written holds the log of this source. Without it, the first server that is asked is the one.
    #[must_use]
    pub fn of_journal(self, identity: SourceIdentity) -> ReplicationSource {
        ReplicationSource { known: Arc::new(Mutex::new(Some(identity))), ..self }
    }

    /// Checks all that `open` checks, and opens nothing. `durable_end` as there.
    ///
    /// # Errors
    /// As `open`, but for a slot in use.
    pub async fn check(&self, durable_end: Lsn) -> Result<()> {
        let mut wire = Wire::connect(&self.options).await?;
        let identity = identify(&mut wire, &self.slot).await?;
        self.check_kinship(&mut wire, &identity, durable_end).await?;
        if self.temporary {
            let checked = preflight::check_server(&mut wire, &self.wanted(Lsn::ZERO, false)).await;
            wire.close().await;
            return checked.map(|_server| ());
        }
        let checked = preflight::check(&mut wire, &self.wanted(durable_end, false)).await;
        wire.close().await;
        match checked {
            Err(error) if error.kind() != ErrorKind::SlotInUse => Err(error),
            Err(_) => Ok(()),
            Ok(cleared) => {
                PluginOptions::choose(cleared.server_version, self.wishes, cleared.two_phase).map(|_plugin| ())
            }
        }
    }

    /// How the server is related to the one that `held` names.
    ///
    /// # Errors
    /// What connecting and asking lead to.
    pub async fn compare(&self, held: &SourceIdentity) -> Result<Comparison> {
        let mut wire = Wire::connect(&self.options).await?;
        let identity = identify(&mut wire, &self.slot).await?;
        let kinship = kinship(&mut wire, held, &identity).await?;
        let server = preflight::ask_server(&mut wire, &self.publications).await?;
        let slot = preflight::ask_slot(&mut wire, &self.slot).await?;
        wire.close().await;
        let confirmed = slot.and_then(|slot| slot.confirmed);
        Ok(Comparison { identity, kinship, in_recovery: server.in_recovery, log_end: server.flushed, confirmed })
    }

    fn wanted(&self, durable_end: Lsn, after_peer: bool) -> Wanted<'_> {
        Wanted {
            options: &self.options,
            slot: &self.slot,
            publications: &self.publications,
            standby: self.standby,
            durable_end,
            after_peer,
        }
    }

    async fn ask_identity(&self) -> Result<SourceIdentity> {
        let mut wire = Wire::connect(&self.options).await?;
        let identity = identify(&mut wire, &self.slot).await?;
        wire.close().await;
        self.known().get_or_insert_with(|| identity.clone());
        Ok(identity)
    }

    async fn open_session(&self, durable_end: Lsn, wishes: Wishes) -> Result<LogSession> {
        let mut wire = Wire::connect(&self.options).await?;
        let identity = identify(&mut wire, &self.slot).await?;
        // A slot that is made now begins wherever the server is now.
        let goes_on_from = if self.temporary { Lsn::ZERO } else { durable_end };
        self.check_kinship(&mut wire, &identity, goes_on_from).await?;
        if self.temporary {
            return self.open_anew(wire, identity, (durable_end, wishes)).await;
        }
        let after_peer = self.peer_seen.load(Ordering::Relaxed);
        let cleared = match preflight::check(&mut wire, &self.wanted(durable_end, after_peer)).await {
            Err(error) if error.kind() == ErrorKind::SlotInUse => return Err(self.name_holder(error).await),
            cleared => cleared?,
        };
        let plugin = PluginOptions::choose(cleared.server_version, wishes, cleared.two_phase)?;
        let known = identity.clone();
        let start = Start {
            slot: &self.slot,
            publications: &self.publications,
            durable_end,
            cleared,
            plugin,
            identity,
            before: if after_peer { Before::Peer } else { Before::Ourselves },
            options: &self.options,
        };
        match start_stream(wire, start).await {
            Err(error) if error.kind() == ErrorKind::SlotInUse => Err(self.name_holder(error).await),
            Err(error) => Err(error),
            Ok(session) => {
                *self.known() = Some(known);
                self.peer_seen.store(false, Ordering::Relaxed);
                Ok(session)
            }
        }
    }

    /// Makes the slot of this session, and begins where it does.
    async fn open_anew(
        &self,
        mut wire: Wire,
        identity: SourceIdentity,
        (durable_end, wishes): (Lsn, Wishes),
    ) -> Result<LogSession> {
        let cleared = preflight::check_server(&mut wire, &self.wanted(Lsn::ZERO, false)).await?;
        let created = create_temporary_slot(&mut wire, &self.options, &self.slot).await;
        let begins = created.map_err(not_yet)?.consistent_point;
        if begins < durable_end {
            return Err(Error::new(ErrorKind::JournalForeign, "the server's log ends before what was read of it")
                .with_detail(format!(
                    "A slot that was made now begins at {begins}; the log was read up to {durable_end}."
                ))
                .with_hint("The server was promoted or set back. Start the process again: its journal is made anew."));
        }
        let start = Start {
            slot: &self.slot,
            publications: &self.publications,
            durable_end: begins,
            cleared: Cleared { confirmed: begins, ..cleared },
            plugin: PluginOptions::choose(cleared.server_version, wishes, false)?,
            identity: identity.clone(),
            before: Before::Nobody,
            options: &self.options,
        };
        let session = start_stream(wire, start).await?;
        *self.known() = Some(identity);
        Ok(session)
    }

    /// In another server's log, or past the point where a promoted one left its timeline, our positions mean something else.
    async fn check_kinship(&self, wire: &mut Wire, now: &SourceIdentity, durable_end: Lsn) -> Result<()> {
        let held = self.known().get_or_insert_with(|| now.clone()).clone();
        match kinship(wire, &held, now).await? {
            Kinship::Same => Ok(()),
            Kinship::Promoted { left_at } if durable_end <= left_at => {
                tracing::info!(
                    timeline = now.timeline,
                    %left_at,
                    "the server was promoted, and has all that the journal has: its log goes on from the journal's end"
                );
                Ok(())
            }
            Kinship::Promoted { left_at } => Err(Error::new(
                ErrorKind::JournalForeign,
                "the journal is further than the server was when it was promoted",
            )
            .with_detail(format!(
                "The server left timeline {} at {left_at}, the journal ends at {durable_end}.",
                held.timeline
            ))
            .with_hint("`postrider check` names what the server never had; `postrider adopt` goes on without it, in a new generation.")),
            Kinship::Stranger(differs) => Err(foreign_journal("the journal that we write", &differs)),
        }
    }

    /// Says who reads from the slot, if that can still be found out.
    async fn name_holder(&self, error: Error) -> Error {
        let holder = async {
            let mut wire = Wire::connect(&self.options).await?;
            let slot = preflight::ask_slot(&mut wire, &self.slot).await?;
            wire.close().await;
            Ok::<_, Error>(slot.and_then(|slot| slot.holder))
        };
        match holder.await {
            Ok(Some(holder)) => {
                if holder.application == self.options.application_name {
                    self.peer_seen.store(true, Ordering::Relaxed);
                }
                error.with_detail(format!("The slot is \"{}\"; its reader is {holder}.", self.slot))
            }
            Ok(None) | Err(_) => error,
        }
    }

    fn known(&self) -> MutexGuard<'_, Option<SourceIdentity>> {
        // One value is put in at a time: whole even if a holder panicked.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server may not have noticed yet that our last connection is gone, and its slot has our name; or all slots are taken for a while.
fn not_yet(error: Error) -> Error {
    match error.kind() {
        ErrorKind::SlotForeign | ErrorKind::Configuration => {
            Error::new(ErrorKind::Transient, "the temporary replication slot cannot be made yet")
                .with_detail(error.report())
                .with_hint(
                    "It is tried again. If that goes on, look at what holds slots: SELECT * FROM pg_replication_slots;",
                )
        }
        _ => error,
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
