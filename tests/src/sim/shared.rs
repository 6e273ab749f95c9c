//! What everything in one seed shares: time, chance, the history, the counts; and the processes that live in it.

use super::faults::{Fault, Hits, Planned, PlannedKind, Point, Side};
use super::time::Clock;
use postrider_core::error::{Error, ErrorKind};
use postrider_core::history::Record;
use postrider_core::ports::BoxFuture;
use postrider_core::time::Timestamp;
use postrider_core::work::OwnerId;
use postrider_engine::World;
use std::collections::VecDeque;
use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

/// 2026-01-01 00:00 UTC in microseconds: where the server's clock starts.
const START_MICROS: i64 = 1_767_225_600_000_000;

/// More awaits than these without any time between are a loop that spins.
const AWAITS_AT_ONCE_MAX: u32 = 20_000;

/// A defect that is built in on purpose; each breaks one invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// I1: receivers do the work for every request.
    ReceiverIgnoresKeys,
    /// I1: a receiver that comes too late to move its row on commits its work all the same.
    AdvanceSwallowed,
    /// I2: a submission is neither in the log nor among the open rows.
    RowForgotten,
    /// I2: a sink takes one event in many for settled and does not have it.
    SinkLoses,
    /// I3: a claim leaves the fence as it is.
    ClaimKeepsFence,
    /// I3: an outcome is written although the receiver has moved the row on.
    CheckpointBesideAdvance,
    /// I4: a checkpoint is written whoever holds the row.
    CheckpointUnguarded,
    /// I5: a repeated request gets a fresh answer instead of the stored one.
    AnswerNotStored,
    /// I6: a sink stores the events of a batch last first.
    SinkReorders,
    /// I7: claims do not count attempts.
    AttemptsUncounted,
    /// I8: a receiver sends an external call again without asking what became of it.
    IntentResent,
    /// I9: the journal takes what is appended for durable.
    JournalLies,
}

/// One seed's world.
pub struct Sim {
    pub clock: Clock,
    pub bug: Option<Bug>,
    /// Share of statements, requests and writes that meet a fault, in thousandths.
    pub fault_rate: u64,
    /// The time of the last await, and how many there were at that time.
    crowd: Mutex<(u64, u32)>,
    faults_on: AtomicBool,
    chance: Mutex<fastrand::Rng>,
    history: Mutex<Vec<Record>>,
    hits: Mutex<Hits>,
}

/// One life of one process: from its start to its crash or end.
pub struct Process {
    pub sim: Arc<Sim>,
    /// Which of the processes.
    pub number: usize,
    pub owner: OwnerId,
    /// How far its clock is from the server's, in microseconds.
    skew: i64,
    plan: Arc<Mutex<VecDeque<Planned>>>,
    dead: AtomicBool,
    power_lost: AtomicBool,
    frozen_until: AtomicU64,
    died: Notify,
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").finish_non_exhaustive()
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Sim {
    pub fn new(seed: u64, clock: Clock, bug: Option<Bug>, fault_rate: u64) -> Arc<Sim> {
        Arc::new(Sim {
            clock,
            bug,
            fault_rate,
            crowd: Mutex::default(),
            faults_on: AtomicBool::new(true),
            chance: Mutex::new(fastrand::Rng::with_seed(seed)),
            history: Mutex::default(),
            hits: Mutex::default(),
        })
    }

    pub fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// From now on nothing goes wrong, so that everything can come to rest.
    pub fn end_faults(&self) {
        self.faults_on.store(false, Ordering::Relaxed);
    }

    pub fn faults_on(&self) -> bool {
        self.faults_on.load(Ordering::Relaxed)
    }

    /// A number below `limit`.
    pub fn below(&self, limit: u64) -> u64 {
        self.chance.lock().unwrap().u64(0..limit.max(1))
    }

    pub fn random(&self) -> u64 {
        self.chance.lock().unwrap().u64(..)
    }

    pub fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Whether a fault strikes here; a share of `weight / 1000` of the fault rate.
    pub fn strikes(&self, weight: u64) -> bool {
        self.faults_on() && self.below(1_000_000) < self.fault_rate * weight
    }

    pub fn millis(&self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from + 1))
    }

    /// The little time that everything takes: mostly some microseconds, now and then some milliseconds.
    pub async fn latency(&self) {
        let micros = if self.one_in(8) { 1_000 + self.below(20_000) } else { 50 + self.below(500) };
        self.clock.sleep(Duration::from_micros(micros)).await;
    }

    /// The server's clock.
    pub fn server_now(&self) -> Timestamp {
        Timestamp(START_MICROS.saturating_add_unsigned(self.clock.now()))
    }

    pub fn record(&self, record: Record) {
        self.history.lock().unwrap().push(record);
    }

    pub fn count(&self, fault: Fault) {
        *self.hits.lock().unwrap().faults.entry(fault).or_default() += 1;
    }

    /// A loop that spins would stop the virtual time for ever.
    fn assert_time_goes_on(&self, point: Point) {
        let now = self.clock.now();
        let mut crowd = self.crowd.lock().unwrap();
        *crowd = if crowd.0 == now { (now, crowd.1 + 1) } else { (now, 0) };
        assert!(crowd.1 < AWAITS_AT_ONCE_MAX, "a loop spins at {}", point.as_str());
    }

    /// The engine counted something of its own.
    pub fn count_seen(&self, what: &'static str, times: u64) {
        *self.hits.lock().unwrap().seen.entry(what).or_default() += times;
    }

    /// How often an await was passed.
    pub fn passes(&self, point: Point, side: Side) -> u64 {
        self.hits.lock().unwrap().passes.get(&(point, side)).copied().unwrap_or(0)
    }

    pub fn take_history(&self) -> Vec<Record> {
        std::mem::take(&mut self.history.lock().unwrap())
    }

    pub fn take_hits(&self) -> Hits {
        std::mem::take(&mut self.hits.lock().unwrap())
    }
}

impl Process {
    pub fn start(sim: &Arc<Sim>, number: usize, plan: &Arc<Mutex<VecDeque<Planned>>>) -> Arc<Process> {
        let skew = i64::try_from(sim.below(6_000_000)).unwrap() - 3_000_000;
        Arc::new(Process {
            sim: sim.clone(),
            number,
            owner: OwnerId(sim.random()),
            skew,
            plan: plan.clone(),
            dead: AtomicBool::new(false),
            power_lost: AtomicBool::new(false),
            frozen_until: AtomicU64::new(0),
            died: Notify::new(),
        })
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// The machine died with the process: what was not durable may be gone.
    pub fn power_lost(&self) -> bool {
        self.power_lost.load(Ordering::Relaxed)
    }

    /// Returns once the process has crashed.
    pub async fn died(&self) {
        self.died.notified().await;
    }

    /// An end without a crash: nothing of it goes on.
    pub fn bury(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// One await of a port: here the process may crash or stop.
    pub async fn point(&self, point: Point, side: Side) {
        *self.sim.hits.lock().unwrap().passes.entry((point, side)).or_default() += 1;
        self.sim.assert_time_goes_on(point);
        self.suffer(point, side);
        loop {
            if self.is_dead() {
                pending::<()>().await;
            }
            let until = self.frozen_until.load(Ordering::Relaxed);
            if until <= self.sim.clock.now() {
                return;
            }
            self.sim.clock.sleep_until(until).await;
        }
    }

    fn suffer(&self, point: Point, side: Side) {
        if self.is_dead() || !self.sim.faults_on() {
            return;
        }
        let mut plan = self.plan.lock().unwrap();
        let now = self.sim.clock.now();
        let Some(next) = plan.front_mut() else { return };
        if now < next.at {
            return;
        }
        // A place that is not passed for long is given up, and the next one is waited for.
        if next.at + 1_500_000 < now {
            plan.pop_front();
            return;
        }
        if (next.point, next.side) != (point, side) {
            return;
        }
        if next.skip > 0 {
            next.skip -= 1;
            return;
        }
        let kind = next.kind;
        plan.pop_front();
        drop(plan);
        self.strike(point, side, kind);
    }

    fn strike(&self, point: Point, side: Side, kind: PlannedKind) {
        let mut hits = self.sim.hits.lock().unwrap();
        let (fault, places) = match kind {
            PlannedKind::Kill => (Fault::Kill, &mut hits.crashes),
            PlannedKind::PowerLoss => (Fault::PowerLoss, &mut hits.crashes),
            PlannedKind::Freeze(_) => (Fault::Freeze, &mut hits.freezes),
        };
        *places.entry((point, side)).or_default() += 1;
        *hits.faults.entry(fault).or_default() += 1;
        drop(hits);
        match kind {
            PlannedKind::Freeze(span) => {
                let until = self.sim.clock.now() + u64::try_from(span.as_micros()).unwrap();
                self.frozen_until.store(until, Ordering::Relaxed);
            }
            PlannedKind::Kill | PlannedKind::PowerLoss => {
                self.power_lost.store(matches!(kind, PlannedKind::PowerLoss), Ordering::Relaxed);
                self.dead.store(true, Ordering::Relaxed);
                self.died.notify_one();
            }
        }
    }
}

/// The engine's door to time and chance in one process.
#[derive(Debug)]
pub struct ProcessWorld(pub Arc<Process>);

impl World for ProcessWorld {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.sim.server_now().0 + self.0.skew)
    }

    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()> {
        let process = self.0.clone();
        let sleep = process.sim.clock.sleep(span);
        Box::pin(async move {
            process.point(Point::Sleep, Side::Dispatch).await;
            sleep.await;
            process.point(Point::Sleep, Side::Completion).await;
        })
    }

    fn random(&self) -> u64 {
        self.0.sim.random()
    }
}

pub fn disconnected() -> Error {
    Error::new(ErrorKind::Disconnected, "the simulated server closed the connection")
}

pub fn transient() -> Error {
    Error::new(ErrorKind::Transient, "the simulated server cannot do this now")
}
