//! The executor: work rows become stage calls, and their answers checkpoints.
//!
//! One loop waits for whatever comes first, hands it to [`State`], which decides without waiting, and then starts what the
//! state asks for. Claims, checkpoints and reads are batched by what gathers while one of their kind is on its way, never by
//! a timer.

mod advanced;
mod checkpoint;
mod circuit;
mod claim;
mod flights;
mod judge;
mod members;
mod observe;
mod owners;
mod pace;
mod paused;
#[cfg(test)]
mod play;
mod queue;
mod resolve;
mod rows;
mod settling;
mod state;
mod sweep;
mod timetable;
mod unfenced;
mod waiting;

use crate::clock::ServerClock;
use crate::follow::{Cursor, Visit};
use crate::limits::Limits;
use crate::pause::Pause;
use crate::run::WorkPart;
use crate::settings::Periods;
use crate::settle::{Ledger, Settled};
use crate::shutdown::Shutdown;
use crate::telemetry::{ConsumerLabel, Telemetry};
use crate::world::World;
use flights::{Flights, Page, landed};
use futures_util::StreamExt;
use postrider_core::error::{Error, ErrorKind, Reaction, Result};
use postrider_core::outcome::Outcome;
use postrider_core::ports::{
    Checkpoint, CheckpointReply, ClaimReply, ClaimRequest, Journal, OpenRows, PositionStore, Reading,
};
use postrider_core::position::{Lsn, Position};
use postrider_core::route::{Route, Routing};
use postrider_core::shape::{self, ShapeError, WorkChange};
use postrider_core::snapshot::Snapshot;
use postrider_core::time::Timestamp;
use postrider_core::transaction::PartHead;
use postrider_core::work::{OwnerId, WorkKey};
use state::{CallTicket, State};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use timetable::{SecondLook, Sweep, Timetable};
use tokio::sync::Notify;

/// The executor's name among the consumers.
pub(crate) const CONSUMER: &str = "work";

/// What the executor works with.
#[derive(Debug)]
pub(crate) struct Executing {
    pub(crate) work: WorkPart,
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) positions: Arc<dyn PositionStore>,
    pub(crate) routing: Arc<Routing>,
    pub(crate) ledger: Ledger,
    /// Set when the log goes on behind something that we have not read: the open rows are read anew.
    pub(crate) reread: Arc<AtomicBool>,
    /// Asks for a heartbeat at once, which says that we are there.
    pub(crate) beat_soon: Arc<Notify>,
    pub(crate) limits: Limits,
    pub(crate) periods: Periods,
    pub(crate) clock: ServerClock,
    pub(crate) world: Arc<dyn World>,
    pub(crate) telemetry: Arc<Telemetry>,
}

/// What came first.
enum Event {
    Shutdown,
    DrainOver,
    Called(CallTicket, Outcome),
    Checkpointed(Vec<Checkpoint>, Result<Vec<CheckpointReply>>),
    Claimed(Vec<ClaimRequest>, Result<Vec<ClaimReply>>),
    Read(Vec<WorkKey>, Result<Reading>),
    Owners(Result<Option<BTreeSet<OwnerId>>>),
    Page(Page),
    SecondLook(Result<Reading>),
    Log(Result<()>),
    Alarm,
}

/// Whether all open rows are being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loading {
    No,
    /// At the start, and where the log has a gap: it waits until they are.
    Before,
    /// Our share grew: the log goes on beside it, and whichever version is the newer counts.
    Beside,
}

/// The loop's own state, beside that of the rows.
struct Loop {
    executing: Executing,
    state: State,
    flights: Flights,
    cursor: Cursor,
    loading: Loading,
    /// Versions that this snapshot sees were read at start.
    snapshot: Option<Snapshot>,
    consumer: Arc<str>,
    settled: Settled,
    pause: Pause,
    /// The database failed: no statement before this time of our own clock.
    resume_at: Option<Timestamp>,
    timetable: Timetable,
    drain_until: Option<Timestamp>,
}

impl Executing {
    /// Executes stages until `stop`, then until what is on its way has landed or the drain time is over.
    pub(crate) async fn run(self, stop: Shutdown) -> Result<()> {
        let after = self.positions.load(CONSUMER)?.unwrap_or(Position::START);
        let cursor = match Cursor::new(&*self.journal, after, &self.routing) {
            // The rows are the truth and are read at start: what the journal no longer has is not missed.
            Err(error) if error.kind() == ErrorKind::JournalForeign => {
                Cursor::new(&*self.journal, Position::START, &self.routing)?
            }
            cursor => cursor?,
        };
        let state = State::new(
            self.work.settings.clone(),
            self.limits,
            self.world.clone(),
            self.clock.clone(),
            self.telemetry.clone(),
        );
        let timetable = Timetable::new(self.world.now(), self.periods.sweep);
        let pause = Pause::new(&self.limits);
        let mut executor = Loop {
            executing: self,
            state,
            flights: Flights::default(),
            cursor,
            loading: Loading::Before,
            snapshot: None,
            consumer: CONSUMER.into(),
            settled: Settled { position: after, end: Lsn::ZERO },
            pause,
            resume_at: None,
            timetable,
            drain_until: None,
        };
        executor.run(&stop).await
    }
}

impl Loop {
    async fn run(&mut self, stop: &Shutdown) -> Result<()> {
        loop {
            self.start();
            if self.is_drained() {
                return Ok(());
            }
            let event = self.next_event(stop).await;
            if matches!(event, Event::DrainOver) {
                tracing::warn!(
                    calls = self.flights.calls.len(),
                    "calls did not end within the drain time; their rows are taken over when their leases end"
                );
                return Ok(());
            }
            self.apply(event)?;
            self.state.report();
        }
    }

    /// Starts every statement and call that the state asks for and that may start now.
    fn start(&mut self) {
        let now = self.executing.world.now();
        for (ticket, call) in self.state.take_calls() {
            let caller = self.executing.work.caller.clone();
            self.flights.calls.push(Box::pin(async move {
                let outcome = caller.call(call).await;
                (ticket, outcome)
            }));
        }
        if self.resume_at.is_some_and(|at| at > now) {
            return;
        }
        self.resume_at = None;
        self.state.fire_timers();
        self.start_checkpoint();
        self.start_claim();
        self.start_read();
        self.start_owners(now);
        self.start_page(now);
        self.start_second_look();
    }

    fn start_checkpoint(&mut self) {
        if !self.flights.checkpoints.has_room(&self.executing.limits, || self.state.settling.waiting()) {
            return;
        }
        let checkpoints = self.state.next_checkpoints();
        if !checkpoints.is_empty() {
            let (table, owner) = (self.executing.work.table.clone(), self.executing.work.settings.owner);
            let rows = checkpoints.len();
            let flight = async move {
                let replies = table.checkpoint(owner, &checkpoints).await;
                (checkpoints, replies)
            };
            self.flights.checkpoints.push(rows, Box::pin(flight));
        }
    }

    fn start_claim(&mut self) {
        if !self.flights.claims.has_room(&self.executing.limits, || self.state.claimable_count()) {
            return;
        }
        let (requests, dead) = self.state.next_claims();
        if !requests.is_empty() {
            let (table, owner) = (self.executing.work.table.clone(), self.executing.work.settings.owner);
            let rows = requests.len();
            let flight = async move {
                let replies = table.claim(owner, &requests, &dead).await;
                (requests, replies)
            };
            self.flights.claims.push(rows, Box::pin(flight));
        }
    }

    fn start_read(&mut self) {
        if self.flights.read.is_some() {
            return;
        }
        let keys = self.state.next_reads();
        if !keys.is_empty() {
            let table = self.executing.work.table.clone();
            self.flights.read = Some(Box::pin(async move {
                let reading = table.read(&keys).await;
                (keys, reading)
            }));
        }
    }

    fn start_owners(&mut self, now: Timestamp) {
        let due = self.state.owners_mut().until_ask(now) == Some(Duration::ZERO);
        if self.flights.owners.is_none() && due && self.drain_until.is_none() {
            self.state.owners_mut().asked(now);
            let table = self.executing.work.table.clone();
            self.flights.owners = Some(Box::pin(async move { table.living_owners().await }));
        }
    }

    /// Starts to read the open rows: at start, and for each sweep.
    fn start_page(&mut self, now: Timestamp) {
        if self.flights.page.is_none() {
            if self.executing.reread.swap(false, Ordering::Relaxed) {
                self.state.forget_what_waits();
                self.loading = Loading::Before;
            }
            if self.state.take_reread(now) && self.loading == Loading::No {
                self.loading = Loading::Beside;
            }
        }
        let loads = self.loading != Loading::No;
        let sweep = self.timetable.due(now).filter(|_| !loads);
        if self.flights.page.is_some() || self.drain_until.is_some() || !(loads || sweep.is_some()) {
            return;
        }
        self.timetable.begins(now, sweep);
        self.state.read_begins(sweep);
        let table = self.executing.work.table.clone();
        self.flights.page = Some(Box::pin(async move { next_page(table.open_rows().await?).await }));
    }

    /// Looks again at what a sweep found, once the log has had its chance to bring it.
    fn start_second_look(&mut self) {
        let Some(second_look) = self.timetable.second_look else { return };
        let status = self.executing.telemetry.status();
        match second_look {
            SecondLook::AfterHeartbeat(since) if status.heartbeat_seen_at.is_some_and(|seen| seen > since) => {
                self.timetable.second_look = Some(SecondLook::AfterLog(status.received));
                return;
            }
            SecondLook::AfterLog(end) if self.settled.end >= end && self.flights.second_look.is_none() => {}
            _ => return,
        }
        let keys = self.state.suspects();
        let table = self.executing.work.table.clone();
        self.flights.second_look = Some(Box::pin(async move { table.read(&keys).await }));
    }

    /// Waits for whatever comes first; of what is there at once, the first in this list.
    async fn next_event(&mut self, stop: &Shutdown) -> Event {
        let draining = self.drain_until.is_some();
        let drain_over = self.until(self.drain_until);
        let alarm = self.until_alarm();
        let world = self.executing.world.clone();
        let flights = &mut self.flights;
        tokio::select! {
            biased;
            // 1. the end
            () = stop.requested(), if !draining => Event::Shutdown,
            () = wait(&*world, drain_over), if draining => Event::DrainOver,
            // 2. rows claimed: their requests leave before anything else is said
            (requests, replies) = flights.claims.landed() => Event::Claimed(requests, replies),
            // 3. answers
            Some((ticket, outcome)) = flights.calls.next() => Event::Called(ticket, outcome),
            // 4. outcomes written
            (checkpoints, replies) = flights.checkpoints.landed() => Event::Checkpointed(checkpoints, replies),
            // 5. rows read because a statement left them open
            (keys, reading) = landed(&mut flights.read) => Event::Read(keys, reading),
            // 6. who lives
            owners = landed(&mut flights.owners) => Event::Owners(owners),
            // 7. open rows, at start and for the sweep
            page = landed(&mut flights.page) => Event::Page(page),
            reading = landed(&mut flights.second_look) => Event::SecondLook(reading),
            // 8. the log
            log = self.cursor.next(), if self.loading != Loading::Before && !draining => Event::Log(log),
            // 9. time
            () = wait(&*world, alarm) => Event::Alarm,
        }
    }

    fn apply(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Shutdown => {
                self.state.drain();
                self.drain_until = Some(self.executing.world.now().after(self.executing.limits.drain));
            }
            Event::Called(ticket, outcome) => {
                self.state.called(&ticket, &outcome);
                for (ticket, outcome) in self.flights.further_answers() {
                    self.state.called(&ticket, &outcome);
                }
            }
            Event::Checkpointed(checkpoints, Ok(replies)) => {
                self.pause.reset();
                self.state.checkpoints_replied(checkpoints, replies);
            }
            Event::Checkpointed(checkpoints, Err(error)) if error.kind() == ErrorKind::Table => {
                self.state.checkpoints_refused(checkpoints, &error);
            }
            Event::Checkpointed(checkpoints, Err(error)) => {
                self.state.checkpoints_lost(checkpoints);
                self.fail(error)?;
            }
            Event::Claimed(requests, Ok(replies)) => {
                self.pause.reset();
                self.state.claims_replied(&requests, replies);
            }
            Event::Claimed(requests, Err(error)) if error.kind() == ErrorKind::Table => {
                self.state.claims_refused(&requests, &error);
            }
            Event::Claimed(requests, Err(error)) => {
                self.state.claims_lost(&requests);
                self.fail(error)?;
            }
            Event::Read(keys, Ok(reading)) => {
                self.pause.reset();
                self.state.resolve(&keys, reading);
            }
            Event::Read(keys, Err(error)) => {
                self.state.reads_failed(keys);
                self.fail(error)?;
            }
            Event::Owners(Ok(living)) => {
                self.state.owners_replied(living.as_ref());
                if self.state.take_answer() {
                    self.executing.beat_soon.notify_one();
                }
            }
            Event::Owners(Err(error)) => {
                self.state.owners_replied(None);
                self.fail(error)?;
            }
            Event::Page(page) => self.page(page)?,
            Event::SecondLook(Ok(reading)) => {
                self.timetable.second_look = None;
                self.state.convict(reading);
            }
            Event::SecondLook(Err(error)) => self.fail(error)?,
            Event::Log(Err(error)) if error.kind() == ErrorKind::JournalForeign => self.begin_anew()?,
            Event::Log(more) => {
                more?;
                self.walk()?;
            }
            Event::DrainOver | Event::Alarm => {}
        }
        Ok(())
    }

    /// A page of open rows came: the load at start takes them in, a sweep looks for what is not known.
    fn page(&mut self, page: Page) -> Result<()> {
        let (reader, rows) = match page {
            Ok(page) => page,
            // The load begins anew; a sweep is left to the next one.
            Err(error) => return self.fail(error),
        };
        self.state.pauses_read(reader.pauses(), reader.snapshot());
        match (rows.is_empty(), self.loading) {
            (false, Loading::Before | Loading::Beside) => {
                self.state.observe_page(rows);
                self.flights.page = Some(Box::pin(next_page(reader)));
            }
            (false, Loading::No) => {
                self.state.suspect(&rows);
                self.flights.page = Some(Box::pin(next_page(reader)));
            }
            (true, loaded @ (Loading::Before | Loading::Beside)) => {
                self.loading = Loading::No;
                self.state.open_rows_read(reader.snapshot());
                if loaded == Loading::Before {
                    self.timetable.loaded(self.executing.world.now(), reader.snapshot());
                    self.snapshot = Some(reader.snapshot().clone());
                }
                self.executing.telemetry.update(|status| status.work_ready = true);
            }
            (true, Loading::No) => self.swept(reader.snapshot()),
        }
        Ok(())
    }

    /// A sweep has seen every row.
    fn swept(&mut self, seen: &Snapshot) {
        let now = self.executing.world.now();
        let sweep = self.state.sweep_ended();
        if sweep == Sweep::Early {
            self.timetable.early_ended(now, seen);
        }
        if self.state.suspects().is_empty() {
            return;
        }
        self.timetable.second_look = Some(SecondLook::AfterHeartbeat(now));
        // What an early one found is due now.
        if sweep == Sweep::Early {
            self.executing.beat_soon.notify_one();
        }
    }

    /// Retention overtook us: the rows are read anew, and the log goes on with the oldest part that there is.
    fn begin_anew(&mut self) -> Result<()> {
        tracing::warn!("the journal dropped what the executor had not read yet; the open rows are read anew");
        self.cursor = Cursor::new(&*self.executing.journal, Position::START, &self.executing.routing)?;
        self.state.forget_what_waits();
        self.loading = Loading::Before;
        // What is being read of them now would lack the rows that it has passed.
        self.flights.page = None;
        Ok(())
    }

    fn walk(&mut self) -> Result<()> {
        let mut versions = Versions {
            state: &mut self.state,
            snapshot: &mut self.snapshot,
            settled: &mut self.settled,
            telemetry: &self.executing.telemetry,
        };
        self.cursor.walk(&mut versions)?;
        if self.state.may_forget() && self.settled.end > Lsn::ZERO {
            self.executing.ledger.settle(&self.consumer, self.settled);
        }
        Ok(())
    }

    /// A statement failed: a pause, or the end.
    fn fail(&mut self, error: Error) -> Result<()> {
        if error.kind().reaction() == Reaction::Halt {
            return Err(error);
        }
        if !self.pause.is_failing() {
            tracing::warn!(error = error.report(), "the work table cannot be reached; stages wait");
        }
        let pause = self.pause.next(self.executing.world.random());
        self.resume_at = Some(self.executing.world.now().after(pause));
        Ok(())
    }

    fn is_drained(&self) -> bool {
        let flights = &self.flights;
        self.drain_until.is_some()
            && self.state.is_idle()
            && flights.calls.is_empty()
            && flights.checkpoints.is_empty()
            && flights.claims.is_empty()
            && flights.read.is_none()
    }

    /// The next time at which something must start although nothing happens.
    fn until_alarm(&mut self) -> Option<Duration> {
        let now = self.executing.world.now();
        if self.resume_at.is_some() || self.drain_until.is_some() {
            return self.until(self.resume_at);
        }
        let timer = self.state.until_next_timer();
        let owners = self.state.owners_mut().until_ask(now).filter(|_| self.flights.owners.is_none());
        let looking = self.flights.second_look.is_some();
        let sweep = self.timetable.until(now, looking).filter(|_| self.flights.page.is_none());
        let reread = self.state.until_reread(now).filter(|_| self.flights.page.is_none());
        [timer, owners, sweep, reread].into_iter().flatten().min()
    }

    fn until(&self, at: Option<Timestamp>) -> Option<Duration> {
        at.map(|at| at.since(self.executing.world.now()))
    }
}

/// Takes the work rows out of what the log brings.
struct Versions<'a> {
    state: &'a mut State,
    snapshot: &'a mut Option<Snapshot>,
    settled: &'a mut Settled,
    telemetry: &'a Telemetry,
}

impl Versions<'_> {
    /// The version was read at start, or something newer was.
    fn was_read(&mut self, xid: u32) -> bool {
        let Some(snapshot) = self.snapshot.as_ref() else { return false };
        if snapshot.sees(xid) {
            return true;
        }
        // The first transaction that began later stands behind nearly all that the snapshot sees. What does come after it
        // (a commit can be in the log for a while before anybody sees it) is observed once more, and the fence tells.
        if snapshot.began_after(xid) {
            *self.snapshot = None;
        }
        false
    }

    fn take(&mut self, change: Result<WorkChange, ShapeError>, xid: u32, position: Position) {
        let was_read = self.was_read(xid);
        match change {
            Ok(WorkChange::Version { version, .. }) if was_read => self.state.observe_read(version, xid),
            Ok(WorkChange::Gone(_)) if was_read => {}
            Ok(change) => self.observe(change, xid),
            // The row stays as it is, and so does every other: one that nobody can read is for a person.
            Err(error) => self.alarm(position, &Error::from(error).report()),
        }
    }

    fn observe(&mut self, change: WorkChange, xid: u32) {
        match change {
            WorkChange::Version { version, moved_from } => {
                if let Some(key) = moved_from {
                    self.state.observe_gone(&key);
                }
                self.state.observe_version(version, xid);
            }
            WorkChange::Gone(key) => self.state.observe_gone(&key),
        }
    }

    fn alarm(&self, position: Position, what: &str) {
        self.telemetry.alarms.get_or_create(&ConsumerLabel { consumer: CONSUMER.to_owned() }).inc();
        tracing::error!(%position, what, "a change of the work table cannot be taken in");
    }
}

impl Visit for Versions<'_> {
    fn visit(&mut self, head: &PartHead, position: Position, route: Route<'_>) -> Result<()> {
        match route {
            Route::Work(row) => self.take(shape::work_change(&row), head.xid, position),
            Route::WorkNotice(notice) => self.take(shape::noticed_change(&notice), head.xid, position),
            Route::Pause(notice) => self.state.pause_heard(shape::pause_change(&notice), head.xid, position),
            Route::Presence(notice) => self.state.presence_heard(shape::presence(&notice), head.committed_at, position),
            Route::Alarm(alarm) => self.alarm(position, &alarm.to_string()),
            Route::Outbox(_) | Route::OutboxMessage(_) | Route::Ignore(_) => {}
        }
        Ok(())
    }

    fn settles(&mut self, settled: Settled) {
        *self.settled = self.settled.and(settled);
    }
}

async fn next_page(mut reader: Box<dyn OpenRows>) -> Page {
    let rows = reader.next_page().await?;
    Ok((reader, rows))
}

/// Waits for a span, for ever if there is none.
async fn wait(world: &dyn World, span: Option<Duration>) {
    match span {
        Some(span) => world.sleep(span).await,
        None => std::future::pending().await,
    }
}
