//! The roof over the loops: starts them, and ends them in order.

use crate::clock::ServerClock;
use crate::confirm::Confirming;
use crate::deliver::Delivering;
use crate::executor::Executing;
use crate::health::Health;
use crate::intake::Intake;
use crate::onlooker::Onlooking;
use crate::purge::Purging;
use crate::settings::{Ack, Settings, WhenFull, WorkSettings};
use crate::settle::Ledger;
use crate::shutdown::Shutdown;
use crate::sight::Sight;
use crate::telemetry::Telemetry;
use crate::world::World;
use postrider_core::assemble::Assembler;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{
    Confirmer, Journal, JournalWriter, LogSource, PositionStore, Primary, Sink, StageCaller, Staging, WorkTable,
};
use postrider_core::route::Routing;
use postrider_core::stage::Definitions;
use postrider_core::time::Timestamp;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinSet};

/// The neighbours of one run.
#[derive(Debug)]
pub struct Parts {
    pub source: Arc<dyn LogSource>,
    pub writer: Box<dyn JournalWriter>,
    /// Where transactions wait for their outcome.
    pub staging: Box<dyn Staging>,
    pub journal: Arc<dyn Journal>,
    pub positions: Arc<dyn PositionStore>,
    pub primary: Arc<dyn Primary>,
    pub routing: Arc<Routing>,
    pub work: Option<WorkPart>,
    /// In the place of `work`: somebody else works on the rows, and we look on.
    pub onlook: Option<OnlookPart>,
    pub sinks: Vec<SinkPart>,
    pub world: Arc<dyn World>,
    pub telemetry: Arc<Telemetry>,
}

/// What stage execution needs.
#[derive(Debug)]
pub struct WorkPart {
    pub settings: WorkSettings,
    pub table: Arc<dyn WorkTable>,
    pub caller: Arc<dyn StageCaller>,
}

/// What looking on needs.
#[derive(Debug)]
pub struct OnlookPart {
    pub definitions: Definitions,
}

/// One consumer of events.
#[derive(Debug)]
pub struct SinkPart {
    /// Its name among the consumers; `work` is the executor's.
    pub name: Arc<str>,
    /// The slot is not confirmed past this sink under [`crate::Ack::Sinks`], and the journal keeps what it lacks.
    pub required: bool,
    /// It reads back what an event tells of: none comes before its transaction is visible to every new session.
    pub wait_visible: bool,
    pub sink: Box<dyn Sink>,
}

/// The three groups of loops, in the order in which they end: those that act, the one that confirms what they did, and the
/// ones that it needs for that.
#[derive(Debug, Default)]
struct Stops {
    acting: Shutdown,
    confirming: Shutdown,
    reading: Shutdown,
}

/// Runs until `shutdown` is requested (`Ok`), or until an error that a person must act on.
///
/// Dropping the future ends every loop where it stands, as a crash would.
pub async fn run(parts: Parts, settings: Settings, shutdown: Shutdown) -> Result<()> {
    let stops = Stops::default();
    let mut acting = JoinSet::new();
    let mut confirming = JoinSet::new();
    let mut reading = JoinSet::new();
    let world = parts.world.clone();
    start_purge(&parts, &settings, &stops, &mut acting);
    let confirmer = start(parts, &settings, &stops, [&mut acting, &mut confirming, &mut reading]);
    let first_end = tokio::select! {
        biased;
        () = shutdown.requested() => Ok(()),
        ended = any_end(&mut acting) => ended,
        ended = any_end(&mut confirming) => ended,
        ended = any_end(&mut reading) => ended,
    };
    // A loop that failed cannot be ended in order, but the others can.
    let limits = settings.limits;
    stops.acting.request();
    let acted = all_end(&mut acting, &*world, limits.drain.saturating_add(limits.finish)).await;
    stops.confirming.request();
    let confirmed = all_end(&mut confirming, &*world, limits.finish).await;
    stops.reading.request();
    let read = all_end(&mut reading, &*world, limits.finish).await;
    let last = confirmer.borrow().clone();
    let closed = match last {
        Some(confirmer) => confirmer.finish().await,
        None => Ok(()),
    };
    first_end.and(acted).and(confirmed).and(read).and(closed)
}

/// The connection of the moment, to be closed in order at the end.
type LastWord = watch::Receiver<Option<Arc<dyn Confirmer>>>;

fn start(parts: Parts, settings: &Settings, stops: &Stops, sets: [&mut JoinSet<Result<()>>; 3]) -> LastWord {
    let [acting, confirming, reading] = sets;
    let Parts { source, writer, staging, journal, positions, primary, routing, work, onlook, sinks, world, telemetry } =
        parts;
    let ledger = Ledger::default();
    let guard = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicBool::new(false));
    let reread = Arc::new(AtomicBool::new(false));
    let beat_soon = Arc::new(Notify::new());
    // Each consumer knows its own tables only: what is wrong with another's stops nobody else.
    let outbox_routing = Arc::new(Routing { work: None, ..(*routing).clone() });
    let work_routing = Arc::new(Routing { work: routing.work.clone(), ..Routing::default() });
    let clock = ServerClock::new(world.clone());
    let ((confirmer, confirmer_seen), (blocked, blocked_seen)) = (watch::channel(None), watch::channel(false));
    let last_word = confirmer_seen.clone();
    let appended = journal.appended();
    let (received, received_seen) = watch::channel(appended);
    telemetry.update(|status| status.work_ready = work.is_none());
    let confirm = Confirming {
        journal: journal.clone(),
        positions: positions.clone(),
        ledger: ledger.clone(),
        sinks: sinks.iter().map(|sink| (sink.name.clone(), sink.required)).collect(),
        blocked,
        confirmer: confirmer_seen,
        asked: asked.clone(),
        guard: guard.clone(),
        world: world.clone(),
        telemetry: telemetry.clone(),
    };
    spawn(confirming, settings, &stops.confirming, |settings, stop| async move { confirm.run(&settings, stop).await });
    let intake = Intake {
        source,
        writer,
        journal: journal.clone(),
        peer_loses_nothing: waits_for_all(settings, &sinks),
        beat_soon: beat_soon.clone(),
        reread: reread.clone(),
        confirmer,
        received,
        blocked: blocked_seen,
        asked,
        assembler: Assembler::with_staging(appended, staging),
        clock: clock.clone(),
        world: world.clone(),
        telemetry: telemetry.clone(),
        appended,
        last_mark: Timestamp::default(),
        was_connected: false,
    };
    spawn(reading, settings, &stops.reading, |settings, stop| async move { intake.run(&settings, stop).await });
    let seeing = primary.clone();
    let health = Health {
        primary,
        received: received_seen,
        confirmer: last_word.clone(),
        executor: work.as_ref().map(|work| work.settings.presence()),
        beat_soon: beat_soon.clone(),
        guard,
        world: world.clone(),
        telemetry: telemetry.clone(),
    };
    spawn(acting, settings, &stops.acting, |settings, stop| async move { health.run(&settings, stop).await });
    let log = FollowedLog { journal, positions, routing: work_routing, ledger, clock, world, telemetry };
    let of_outboxes = FollowedLog { routing: outbox_routing, ..log.clone() };
    start_deliveries(sinks, &seeing, &of_outboxes, settings, (&stops.acting, acting));
    start_work((work, onlook), log, Signals { reread, beat_soon }, settings, (&stops.acting, acting));
    last_word
}

/// The log as whoever follows it has it, and where to say how far.
#[derive(Clone)]
struct FollowedLog {
    journal: Arc<dyn Journal>,
    positions: Arc<dyn PositionStore>,
    routing: Arc<Routing>,
    ledger: Ledger,
    clock: ServerClock,
    world: Arc<dyn World>,
    telemetry: Arc<Telemetry>,
}

fn start_deliveries(
    sinks: Vec<SinkPart>,
    seeing: &Arc<dyn Primary>,
    log: &FollowedLog,
    settings: &Settings,
    (stop, acting): (&Shutdown, &mut JoinSet<Result<()>>),
) {
    for sink in sinks {
        let FollowedLog { journal, positions, routing, ledger, world, telemetry, clock: _ } = log.clone();
        let sight = sink.wait_visible.then(|| Sight::new(seeing.clone()));
        let limits = settings.limits;
        let deliver = Delivering { sight, sink, journal, positions, routing, ledger, limits, world, telemetry };
        spawn(acting, settings, stop, |_, stop| deliver.run(stop));
    }
}

/// What the executor is told by others, and tells them.
struct Signals {
    reread: Arc<AtomicBool>,
    beat_soon: Arc<Notify>,
}

/// Starts the executor, or who looks on in its place.
fn start_work(
    (work, onlook): (Option<WorkPart>, Option<OnlookPart>),
    log: FollowedLog,
    signals: Signals,
    settings: &Settings,
    (stop, acting): (&Shutdown, &mut JoinSet<Result<()>>),
) {
    let FollowedLog { journal, positions, routing, ledger, clock, world, telemetry } = log;
    let (limits, periods) = (settings.limits, settings.periods);
    if let Some(work) = work {
        let Signals { reread, beat_soon } = signals;
        let execute = Executing {
            work,
            journal,
            positions,
            routing,
            ledger,
            reread,
            beat_soon,
            limits,
            periods,
            clock,
            world,
            telemetry,
        };
        spawn(acting, settings, stop, |_, stop| execute.run(stop));
    } else if let Some(OnlookPart { definitions }) = onlook {
        let period = periods.summary;
        let onlook = Onlooking { definitions, period, journal, positions, routing, ledger, clock, world, telemetry };
        spawn(acting, settings, stop, |_, stop| onlook.run(stop));
    }
}

fn start_purge(parts: &Parts, settings: &Settings, stops: &Stops, acting: &mut JoinSet<Result<()>>) {
    let Some(work) = &parts.work else { return };
    let Some(retention) = work.settings.history else { return };
    let purge = Purging { table: work.table.clone(), retention, world: parts.world.clone() };
    spawn(acting, settings, &stops.acting, |_, stop| purge.run(stop));
}

/// Nothing is confirmed that a sink still lacks, whichever.
fn waits_for_all(settings: &Settings, sinks: &[SinkPart]) -> bool {
    let all_hold = settings.ack == Ack::Sinks && settings.when_full == WhenFull::Block;
    all_hold && settings.wal_guard_bytes.is_none() && sinks.iter().all(|sink| sink.required)
}

fn spawn<F>(
    set: &mut JoinSet<Result<()>>,
    settings: &Settings,
    stop: &Shutdown,
    run: impl FnOnce(Settings, Shutdown) -> F,
) where
    F: Future<Output = Result<()>> + Send + 'static,
{
    set.spawn(run(settings.clone(), stop.clone()));
}

/// The first loop of a set that ends; never, for an empty set.
async fn any_end(set: &mut JoinSet<Result<()>>) -> Result<()> {
    match set.join_next().await {
        Some(ended) => flatten(ended),
        None => std::future::pending().await,
    }
}

/// Waits for all loops of a set, but not longer than `within`; what is left then is ended where it stands.
async fn all_end(set: &mut JoinSet<Result<()>>, world: &dyn World, within: Duration) -> Result<()> {
    let mut result = Ok(());
    let mut over = world.sleep(within);
    loop {
        tokio::select! {
            biased;
            ended = set.join_next() => match ended {
                Some(ended) => result = result.and(flatten(ended)),
                None => return result,
            },
            () = &mut over => {
                tracing::warn!(loops = set.len(), "loops did not end in time and are ended where they stand");
                set.shutdown().await;
                return result;
            }
        }
    }
}

fn flatten(ended: std::result::Result<Result<()>, JoinError>) -> Result<()> {
    ended.unwrap_or_else(|error| Err(Error::new(ErrorKind::Internal, "a loop of the engine failed").with_source(error)))
}
