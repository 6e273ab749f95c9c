//! What: takes the replication stream in and keeps it.
//! Where: *read*, *frame*, *assemble* and *append*: from the socket to the journal.
//! Takes and gives: batches of frames; transactions in the journal, and the connection to confirm on.
//! Never: waits for a consumer or a sink but with a full journal, or for the disk but with a prepared transaction, or ends because a connection did.

use crate::clock::ServerClock;
use crate::pause::Pause;
use crate::settings::{Ack, Settings};
use crate::shutdown::Shutdown;
use crate::telemetry::Telemetry;
use crate::world::World;
use postrider_core::assemble::Assembler;
use postrider_core::error::{Error, ErrorKind, Reaction, Result};
use postrider_core::frame::{Frame, FrameBatch, FrameError};
use postrider_core::ports::{Before, Confirmer, Gap, Journal, JournalWriter, LogSession, LogSource, SourceIdentity};
use postrider_core::position::{Lsn, Position};
use postrider_core::time::Timestamp;
use postrider_core::transaction::TransactionBatch;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};

mod missed;

/// Least time between two marks while the server does not wait for one.
const MARK_PERIOD: Duration = Duration::from_secs(1);

/// Longest pause while another process reads from the slot: its death must be noticed within seconds.
const SLOT_RETRY_MAX: Duration = Duration::from_secs(1);

/// What intake works with.
#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) source: Arc<dyn LogSource>,
    pub(crate) writer: Box<dyn JournalWriter>,
    /// To know what of the journal is durable.
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) confirmer: watch::Sender<Option<Arc<dyn Confirmer>>>,
    /// Every sink is waited for before anything is confirmed, whoever confirms it.
    pub(crate) peer_loses_nothing: bool,
    /// Asks for a heartbeat at once: the other executors are to hear of ours as soon as it hears of the rows.
    pub(crate) beat_soon: Arc<Notify>,
    /// Tells the executor to read the open rows anew.
    pub(crate) reread: Arc<AtomicBool>,
    /// End of what is in the journal, for those who wait for it.
    pub(crate) received: watch::Sender<Lsn>,
    /// Set while the journal has no room for more.
    pub(crate) blocked: watch::Receiver<bool>,
    /// Set when the server waits for a confirm.
    pub(crate) asked: Arc<AtomicBool>,
    pub(crate) assembler: Assembler,
    pub(crate) clock: ServerClock,
    pub(crate) world: Arc<dyn World>,
    pub(crate) telemetry: Arc<Telemetry>,
    /// End of what is in the journal.
    pub(crate) appended: Lsn,
    pub(crate) last_mark: Timestamp,
    /// There was a connection before.
    pub(crate) was_connected: bool,
}

impl Intake {
    /// Reads until `stop`, through every loss of the connection.
    pub(crate) async fn run(mut self, settings: &Settings, stop: Shutdown) -> Result<()> {
        let mut pause = Pause::new(&settings.limits);
        self.assembler.restart()?;
        self.telemetry.stage(self.assembler.staged());
        loop {
            tokio::select! {
                biased;
                () = stop.requested() => return Ok(()),
                // Whoever could set it again has ended: there is nothing to wait for.
                _ = self.blocked.wait_for(|blocked| !blocked) => {}
            }
            let whole = self.assembler.wants_whole();
            let opened = if whole { self.source.open_whole(self.appended) } else { self.source.open(self.appended) };
            let session = tokio::select! {
                biased;
                () = stop.requested() => return Ok(()),
                session = opened => session,
            };
            let ended = match session {
                Ok(session) => {
                    let begun = (session.identity.clone(), session.begins, session.before);
                    self.go_on(begun, settings.ack).await?;
                    if let Some(outcomes) = &session.outcomes {
                        self.assembler.expect_verdicts(outcomes);
                    }
                    self.connected(&session);
                    self.read(session, &mut pause, &stop).await
                }
                Err(error) => Err(error),
            };
            let Err(error) = ended else { return Ok(()) };
            self.disconnected(&error);
            if error.kind().reaction() == Reaction::Halt {
                return Err(error);
            }
            self.assembler.restart()?;
            self.writer.discard_partial()?;
            if !pause.is_failing() {
                tracing::warn!(
                    error = error.report(),
                    "the replication stream ended; it is opened again from the journal's end"
                );
            }
            let mut span = pause.next(self.world.random());
            if error.kind() == ErrorKind::SlotInUse {
                span = span.min(SLOT_RETRY_MAX);
            }
            tokio::select! {
                biased;
                () = stop.requested() => return Ok(()),
                () = self.world.sleep(span) => {}
            }
        }
    }

    /// The journal goes on where the stream begins: what another process of ours confirmed meanwhile is put on record first.
    async fn go_on(&mut self, begun: (SourceIdentity, Lsn, Before), ack: Ack) -> Result<()> {
        let (identity, begins, before) = begun;
        if before == Before::Ourselves {
            if self.appended == Lsn::ZERO && begins > Lsn::ZERO {
                say_empty(begins, ack);
            }
            return self.writer.go_on(&identity, self.appended, self.assembler.schema());
        }
        // What became of the work rows meanwhile is not in our log.
        self.reread.store(true, Ordering::Relaxed);
        if begins > self.appended {
            if before == Before::Peer {
                self.put_on_record(begins, ack).await?;
            }
            self.appended = begins;
            self.assembler.skip_to(begins)?;
        }
        self.writer.go_on(&identity, self.appended, self.assembler.schema())?;
        self.received.send_replace(self.appended);
        Ok(())
    }

    async fn put_on_record(&mut self, begins: Lsn, ack: Ack) -> Result<()> {
        if self.peer_loses_nothing {
            tracing::info!(from = %self.appended, to = %begins, "another process read from the slot until now; its sinks have everything");
            return Ok(());
        }
        let generation = self.journal.generation();
        let place = |lsn: Lsn| Position::whole(generation, Lsn(lsn.0.saturating_sub(1)));
        let gap = Gap {
            at: self.world.now(),
            consumer: None,
            from: if self.appended == Lsn::ZERO { Position::START } else { place(self.appended) },
            to: place(begins),
            reason: taken_over(ack).to_owned(),
            accepted: false,
        };
        tracing::warn!(from = %gap.from, to = %gap.to, "{}", gap.reason);
        self.journal.record(gap).await?;
        let gaps = self.journal.gaps();
        self.telemetry.update(|status| status.gaps = gaps);
        Ok(())
    }

    fn connected(&mut self, session: &LogSession) {
        if self.was_connected {
            self.telemetry.reconnects.inc();
        }
        self.was_connected = true;
        session.confirmer.received(self.appended);
        self.confirmer.send_replace(Some(session.confirmer.clone()));
        self.beat_soon.notify_one();
        self.telemetry.update(|status| {
            status.connected = true;
            status.trouble = None;
        });
        tracing::info!(after = %self.appended, "reading the log");
    }

    fn disconnected(&self, error: &Error) {
        self.confirmer.send_replace(None);
        self.telemetry.update(|status| {
            status.connected = false;
            status.trouble = Some(error.report());
        });
    }

    /// Reads one connection until it ends (`Err`) or `stop` (`Ok`).
    async fn read(&mut self, session: LogSession, pause: &mut Pause, stop: &Shutdown) -> Result<()> {
        let LogSession { mut reader, confirmer, begins, .. } = session;
        let mut batch = TransactionBatch::new();
        loop {
            let frames = tokio::select! {
                biased;
                () = stop.requested() => return Ok(()),
                // Left, and not just unread: a server that shuts down would wait for us.
                Ok(_) = self.blocked.wait_for(|blocked| *blocked) => return Err(no_room()),
                frames = reader.read() => frames?,
            };
            let assembled = self.assemble(&frames, &mut batch, stop).await;
            // What came before a failure is given out, and does not come again.
            if !batch.is_empty() {
                self.append(&mut batch)?;
                pause.reset();
            }
            assembled?;
            if self.assembler.is_copying() {
                // Asked to stop in the middle of it.
                return Ok(());
            }
            confirmer.received(self.assembler.received_end());
            self.give_up_missed(begins).await?;
            self.assembler.release(self.journal.durable())?;
            self.telemetry.stage(self.assembler.staged());
        }
    }

    async fn assemble(&mut self, frames: &FrameBatch, batch: &mut TransactionBatch, stop: &Shutdown) -> Result<()> {
        let mut last_sent = None;
        for frame in frames.frames() {
            match frame.map_err(torn_frame)? {
                Frame::XLogData { sent_at, payload, .. } => {
                    last_sent = Some(sent_at);
                    self.assembler.push(payload, batch)?;
                    self.copy(batch, stop).await?;
                    if self.assembler.is_copying() {
                        return Ok(());
                    }
                }
                Frame::KeepAlive { wal_end, sent_at, reply_requested } => {
                    last_sent = Some(sent_at);
                    self.mark(wal_end, sent_at, reply_requested, batch);
                }
            }
        }
        let ignored = self.assembler.ignored_messages();
        self.telemetry.messages_ignored.inc_by(ignored.saturating_sub(self.telemetry.messages_ignored.get()));
        if let Some(sent_at) = last_sent {
            self.clock.observe(sent_at);
        }
        Ok(())
    }

    /// Brings a transaction that was held until its commit into the journal, a part at a time. Whoever stops us meanwhile leaves a
    /// transaction without its end there, which the next start cuts.
    async fn copy(&mut self, batch: &mut TransactionBatch, stop: &Shutdown) -> Result<()> {
        while self.assembler.is_copying() && !stop.is_requested() {
            self.assembler.copy(batch)?;
            self.append(batch)?;
            // Behind the last part there is more to take in at once: what stands there can become durable with it.
            if self.assembler.is_copying() {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Lets the slot move while our tables are idle; at once where the server asks, since it may be waiting to shut down.
    fn mark(&mut self, wal_end: Lsn, sent_at: Timestamp, asked: bool, batch: &mut TransactionBatch) {
        let now = self.world.now();
        if asked {
            self.asked.store(true, Ordering::Relaxed);
        }
        if (asked || now.since(self.last_mark) >= MARK_PERIOD) && self.assembler.mark(wal_end, sent_at, batch) {
            self.last_mark = now;
        }
    }

    fn append(&mut self, batch: &mut TransactionBatch) -> Result<()> {
        self.appended = self.writer.append(batch, self.assembler.schema())?;
        let transactions = batch.parts().filter(|part| part.head.last && part.head.xid != 0).count();
        self.telemetry.transactions_appended.inc_by(transactions as u64);
        self.telemetry.bytes_appended.inc_by(batch.byte_len() as u64);
        self.telemetry.received_lsn.set(self.appended.0.cast_signed());
        let received = self.appended;
        self.received.send_replace(received);
        self.telemetry.update(|status| status.received = received);
        batch.clear();
        Ok(())
    }
}

/// What a start without a journal means: it may be the first one, or the old directory may be lost.
fn say_empty(begins: Lsn, ack: Ack) {
    match ack {
        Ack::Sinks => tracing::warn!(
            confirmed = %begins,
            "the journal is empty and the slot has a position: at the first start nothing is missing; if the journal was lost, required sinks have everything up to that position, unless wal_guard had passed them, and optional ones lack what they had not taken; open work rows are read in any case"
        ),
        Ack::Journal => tracing::warn!(
            confirmed = %begins,
            "the journal is empty and the slot has a position: at the first start nothing is missing; if the journal was lost, every sink lacks what it had not taken of the log up to that position, which the server has forgotten; open work rows are read in any case"
        ),
    }
}

/// Why there is a gap after another process of ours.
fn taken_over(ack: Ack) -> &'static str {
    match ack {
        Ack::Sinks => {
            "Another process read from the slot before this one: what it confirmed is in its journal and not in this one. Required sinks have it, unless wal_guard had passed them; an optional sink may lack it."
        }
        Ack::Journal => {
            "Another process read from the slot before this one: what it confirmed is in its journal and not in this one. A sink that had not taken it by then lacks it; start that process on its journal, without its slot, or send it again from the tables."
        }
    }
}

fn no_room() -> Error {
    Error::new(ErrorKind::Transient, "the journal is full, and a required sink lacks the oldest of it")
        .with_detail("Nothing is read until there is room; the server keeps its log.")
        .with_hint("`postrider status` names the sink, and says what to type.")
}

fn torn_frame(error: FrameError) -> Error {
    Error::new(ErrorKind::Protocol, "the replication stream holds a frame that cannot be read").with_source(error)
}
