//! What: brings one sink what is for it, in order, until it has it.
//! Where: the second branch behind the journal: *route*, *shape*, *batch*, *write*, *settle*.
//! Takes and gives: the routes of changes; events for the sink, and its position in the ledger.
//! Never: skips an event, or holds up another sink, the stages or the slot's feedback.

use crate::follow::{Cursor, Visit};
use crate::limits::Limits;
use crate::pause::Pause;
use crate::run::SinkPart;
use crate::settle::{Ledger, Settled};
use crate::shutdown::Shutdown;
use crate::sight::Sight;
use crate::telemetry::{ConsumerLabel, Telemetry};
use crate::world::World;
use postrider_core::error::{Error, ErrorKind, Reaction, Result};
use postrider_core::event::{Event, Payload};
use postrider_core::ports::{Journal, PositionStore};
use postrider_core::position::{Generation, Lsn, Position};
use postrider_core::route::{Route, Routing};
use postrider_core::shape;
use postrider_core::transaction::PartHead;
use std::sync::Arc;

/// Why a sink waits that takes nothing before it can be read back.
const KEPT_WAITING: &str = "waits for the end of a commit: it is in the log, and the server keeps it from every session, for a synchronous standby for example";

/// What a sink's loop works with.
#[derive(Debug)]
pub(crate) struct Delivering {
    pub(crate) sink: SinkPart,
    /// For a sink that reads back.
    pub(crate) sight: Option<Sight>,
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) positions: Arc<dyn PositionStore>,
    pub(crate) routing: Arc<Routing>,
    pub(crate) ledger: Ledger,
    pub(crate) limits: Limits,
    pub(crate) world: Arc<dyn World>,
    pub(crate) telemetry: Arc<Telemetry>,
}

/// The events of one read of the journal.
#[derive(Debug)]
struct Batch<'a> {
    events: Vec<Event>,
    /// The transaction of each event; 0 for one of an earlier generation, whose ids say nothing about the server of this one.
    xids: Vec<u32>,
    current: Generation,
    /// Events at or before are settled already.
    after: Position,
    /// What will be settled once all events are.
    end: Option<Settled>,
    name: &'a Arc<str>,
    telemetry: &'a Telemetry,
}

impl Delivering {
    /// Delivers until `stop`. A sink in trouble is retried for ever: nothing is lost and nobody else waits.
    pub(crate) async fn run(mut self, stop: Shutdown) -> Result<()> {
        let after = tokio::select! {
            biased;
            () = stop.requested() => return Ok(()),
            after = self.resume() => after?,
        };
        let mut cursor = match Cursor::new(&*self.journal, after, &self.routing) {
            Ok(cursor) => cursor,
            Err(error) => {
                // The journal no longer has what this sink lacks: it stands still, and nobody else does.
                self.stand_still(&error, &stop).await;
                return Ok(());
            }
        };
        let mut settled = Settled { position: after, end: Lsn::ZERO };
        loop {
            tokio::select! {
                biased;
                () = stop.requested() => return Ok(()),
                more = cursor.next() => match more {
                    // Retention overtook a sink that nobody waits for.
                    Err(error) if error.kind() == ErrorKind::JournalForeign => {
                        self.stand_still(&error, &stop).await;
                        return Ok(());
                    }
                    more => more?,
                },
            }
            let mut batch = Batch {
                events: Vec::new(),
                xids: Vec::new(),
                current: self.journal.generation(),
                after,
                end: None,
                name: &self.sink.name,
                telemetry: &self.telemetry,
            };
            let walked = cursor.walk(&mut batch);
            let Batch { events, xids, end, .. } = batch;
            if !self.write((&events, &xids), &mut settled, &stop).await {
                return Ok(());
            }
            if let Some(end) = end {
                settled = settled.and(end);
                self.ledger.settle(&self.sink.name, settled);
            }
            if let Err(error) = walked {
                self.stand_still(&error, &stop).await;
                return Ok(());
            }
        }
    }

    /// Where to go on: the sink's own position where it keeps one, else the saved one, whichever is further.
    async fn resume(&mut self) -> Result<Position> {
        let saved = self.positions.load(&self.sink.name)?.unwrap_or(Position::START);
        let mut pause = Pause::new(&self.limits);
        loop {
            match self.sink.sink.position().await {
                Ok(kept) => {
                    self.trouble(None);
                    return Ok(kept.map_or(saved, |kept| kept.max(saved)));
                }
                Err(error) => self.fail(&error, &mut pause).await,
            }
        }
    }

    /// Writes all events, those of these transactions, however often it takes. `false`: `stop` came first.
    async fn write(&mut self, (events, xids): (&[Event], &[u32]), settled: &mut Settled, stop: &Shutdown) -> bool {
        let (mut rest, mut xids) = (events, xids);
        let mut pause = Pause::new(&self.limits);
        if let Some(sight) = &mut self.sight {
            sight.forget();
        }
        let label = ConsumerLabel { consumer: self.sink.name.to_string() };
        while !rest.is_empty() {
            let Some(visible) = self.visible(&xids[..chunk_len(rest, &self.limits)], stop).await else { return false };
            let chunk = &rest[..visible];
            let (world, finish) = (self.world.clone(), self.limits.finish);
            let written = tokio::select! {
                biased;
                written = self.sink.sink.write(chunk) => written,
                // What is on its way may arrive: cut off, it would be sent again.
                () = async { stop.requested().await; world.sleep(finish).await } => return false,
            };
            if let Some(last) = chunk[..written.settled].last() {
                // A message shares its ordinal with the change after it, so within a transaction the last position may
                // not be wholly settled yet; the one before it is.
                settled.position = settled.position.max(last.position.just_before());
                self.ledger.settle(&self.sink.name, *settled);
                self.telemetry.events_settled.get_or_create(&label).inc_by(written.settled as u64);
                pause.reset();
                self.trouble(None);
            }
            (rest, xids) = (&rest[written.settled..], &xids[written.settled..]);
            if let Some(error) = written.error {
                tokio::select! {
                    biased;
                    () = stop.requested() => return false,
                    () = self.fail(&error, &mut pause) => {}
                }
            }
        }
        true
    }

    /// How many of these events, from the front, may be written now: at least one. `None`: `stop` came first.
    async fn visible(&mut self, xids: &[u32], stop: &Shutdown) -> Option<usize> {
        let Some(mut sight) = self.sight.take() else { return Some(xids.len()) };
        let visible = tokio::select! {
            biased;
            () = stop.requested() => None,
            visible = self.wait_visible(&mut sight, xids) => Some(visible),
        };
        self.sight = Some(sight);
        visible
    }

    async fn wait_visible(&self, sight: &mut Sight, xids: &[u32]) -> usize {
        let mut pause = Pause::new(&self.limits);
        let mut told = false;
        loop {
            let visible = sight.seen(xids);
            if visible > 0 {
                if told || pause.is_failing() {
                    self.trouble(None);
                }
                return visible;
            }
            if sight.is_kept_waiting() && !told {
                told = true;
                self.trouble(Some(KEPT_WAITING.to_owned()));
            }
            self.world.sleep(sight.pause()).await;
            match sight.look().await {
                Ok(()) => pause.reset(),
                Err(error) => {
                    if !pause.is_failing() {
                        tracing::warn!(sink = %self.sink.name, error = error.report(), "the primary cannot be asked what is visible; events wait for it before they go to this sink");
                    }
                    self.trouble(Some(format!("The primary cannot be asked what is visible: {}", error.report())));
                    self.world.sleep(pause.next(self.world.random())).await;
                }
            }
        }
    }

    /// It cannot go on without losing something: this sink stands still until `stop` and keeps its position, the others go on.
    async fn stand_still(&self, error: &Error, stop: &Shutdown) {
        tracing::error!(sink = %self.sink.name, error = error.report(), "a sink stands still; nothing is skipped");
        self.trouble(Some(error.report()));
        stop.requested().await;
    }

    /// Says what is wrong, and waits.
    async fn fail(&self, error: &Error, pause: &mut Pause) {
        let first = !pause.is_failing();
        let span = match error.kind().reaction() {
            Reaction::Retry => pause.next(self.world.random()),
            // It will not get better by itself, but a person may mend it while we run.
            Reaction::Park | Reaction::Halt => {
                pause.next(self.world.random());
                self.limits.retry_max
            }
        };
        if first {
            tracing::warn!(sink = %self.sink.name, error = error.report(), "a sink does not take events; it is retried, and what is for it is kept");
        }
        self.telemetry.sink_failures.get_or_create(&ConsumerLabel { consumer: self.sink.name.to_string() }).inc();
        self.trouble(Some(error.report()));
        self.world.sleep(span).await;
    }

    fn trouble(&self, trouble: Option<String>) {
        let required = self.sink.required;
        self.telemetry.update_consumer(&self.sink.name, |status| {
            status.required = required;
            status.trouble = trouble;
        });
    }
}

impl Visit for Batch<'_> {
    fn visit(&mut self, head: &PartHead, position: Position, route: Route<'_>) -> Result<()> {
        if position <= self.after {
            return Ok(());
        }
        let event = match route {
            Route::Outbox(row) => shape::outbox_event(&row, position, head.committed_at)?,
            Route::OutboxMessage(message) => shape::message_event(&message, position, head.committed_at),
            Route::Alarm(alarm) => {
                let label = ConsumerLabel { consumer: self.name.to_string() };
                self.telemetry.alarms.get_or_create(&label).inc();
                tracing::error!(sink = %self.name, %position, %alarm, "an outbox was changed in a way that no event can tell");
                return Ok(());
            }
            Route::Work(_) | Route::WorkNotice(_) | Route::Pause(_) | Route::Presence(_) | Route::Ignore(_) => {
                return Ok(());
            }
        };
        self.events.push(event);
        self.xids.push(if position.generation == self.current { head.xid } else { 0 });
        Ok(())
    }

    fn settles(&mut self, settled: Settled) {
        self.end = Some(settled);
    }
}

/// How many events from the front make one write.
fn chunk_len(events: &[Event], limits: &Limits) -> usize {
    let mut bytes = 0usize;
    let mut count = 0;
    for event in events.iter().take(limits.batch_events_max) {
        bytes = bytes.saturating_add(payload_len(&event.payload));
        if count > 0 && bytes > limits.batch_bytes_max {
            break;
        }
        count += 1;
    }
    count
}

fn payload_len(payload: &Payload) -> usize {
    match payload {
        Payload::Null => 0,
        Payload::Json(bytes) | Payload::Text(bytes) | Payload::Binary(bytes) => bytes.len(),
    }
}
