//! One seed: submissions, two executors on one database, faults for a while, then rest; and what the checker says of it.

pub mod alone;

use super::database::{Change, Database, new_row, routing};
use super::endpoint::{FakeCaller, Receivers};
use super::faults::{Fault, Hits, Planned, PlannedKind, Point, Side};
use super::journal::{FakeJournal, JournalDisk};
use super::log::FakeSource;
use super::shared::{Bug, Process, ProcessWorld, Sim};
use super::sink::{Consumer, FakeSink};
use super::stage_set::{DEFINITION, ENDPOINT, LEASE, STAGES, definitions};
use super::staging::{FakeStaging, StagingDisk};
use super::time::{Clock, in_virtual_time};
use super::work_table::{FakeWorkTable, cancel};
use postrider_core::error::Result;
use postrider_core::history::{ConfirmPolicy, Record, Rules, StageRule, Violation, check};
use postrider_core::paused::{PauseChange, Paused, PausedPart};
use postrider_core::work::{StageName, StageState, WorkKey};
use postrider_engine::{
    Ack, Limits, MemberLabel, Parts, Periods, Settings, Shutdown, SinkPart, StageLabel, Telemetry, UnfencedWrites,
    WhenFull, WorkPart, WorkSettings, run,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Executors on the one database.
const PROCESSES: usize = 2;
/// Virtual time in microseconds after which a seed that has not come to rest has lost something.
const GIVE_UP: u64 = 120_000_000;

/// How the other executor came and went, as an executor counts it.
const MEMBERS: [(&str, &str); 4] = [
    ("joined", "another executor joined"),
    ("left", "another executor left"),
    ("died", "another executor died"),
    ("silent", "another executor fell silent"),
];

/// Between rest and the last look at what the processes still hold: the log shows them their own last writes.
const SETTLE: Duration = Duration::from_secs(5);

/// What a seed is run with.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    pub rows: u64,
    pub attempt_limit: u32,
    /// In thousandths.
    pub fault_rate: u64,
    pub bug: Option<Bug>,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario { rows: 110, attempt_limit: 12, fault_rate: 30, bug: None }
    }
}

/// What came of a seed.
#[derive(Debug)]
pub struct Report {
    pub violations: Vec<Violation>,
    /// What went wrong beside the invariants: a loop that ended with an error, a row that the log did not bring.
    pub troubles: Vec<String>,
    pub hits: Hits,
    pub history: Vec<Record>,
    pub rules: Rules,
    /// Virtual time until rest.
    pub elapsed: Duration,
}

/// One machine: what survives a process.
struct Machine {
    sim: Arc<Sim>,
    number: usize,
    database: Arc<Database>,
    receivers: Arc<Receivers>,
    disk: JournalDisk,
    staging: StagingDisk,
    consumer: Arc<Consumer>,
    policy: ConfirmPolicy,
    plan: Arc<Mutex<VecDeque<Planned>>>,
    attempt_limit: u32,
    /// Times at which the process is asked to end and is started again.
    terminate_at: Mutex<VecDeque<u64>>,
    last: Shutdown,
    telemetry: Mutex<Vec<Arc<Telemetry>>>,
    troubles: Arc<Mutex<Vec<String>>>,
}

impl Scenario {
    /// Runs one seed to its end.
    pub fn run(self, seed: u64) -> Report {
        in_virtual_time(|clock| self.live(seed, clock))
    }

    async fn live(self, seed: u64, clock: Clock) -> Report {
        let sim = Sim::new(seed, clock, self.bug, self.fault_rate);
        let database = Database::new(&sim, PROCESSES);
        let receivers = Receivers::new(&sim, &database);
        let troubles = Arc::new(Mutex::new(Vec::new()));
        let faults_end = 4_000_000 + sim.below(4_000_000);
        let machines: Vec<Arc<Machine>> = (0..PROCESSES)
            .map(|number| {
                let consumer = Consumer::new(&format!("consumer_{number}"), sim.one_in(2));
                Arc::new(Machine {
                    sim: sim.clone(),
                    number,
                    database: database.clone(),
                    receivers: receivers.clone(),
                    disk: JournalDisk::default(),
                    staging: StagingDisk::default(),
                    consumer,
                    policy: if sim.one_in(2) { ConfirmPolicy::Sinks } else { ConfirmPolicy::Journal },
                    plan: Arc::new(Mutex::new(plan(&sim, faults_end))),
                    attempt_limit: self.attempt_limit,
                    terminate_at: Mutex::new(terminations(&sim, faults_end)),
                    last: Shutdown::default(),
                    telemetry: Mutex::default(),
                    troubles: troubles.clone(),
                })
            })
            .collect();
        let lives: Vec<_> = machines.iter().map(|machine| tokio::spawn(machine.clone().live())).collect();
        tokio::spawn(submit(database.clone(), self.rows));
        tokio::spawn(disturb(database.clone(), machines.clone()));
        tokio::spawn(hold_back(database.clone()));
        sim.clock.sleep_until(faults_end).await;
        sim.end_faults();
        let rested = rest(&sim, &database, &machines, self.rows).await;
        let elapsed = Duration::from_micros(sim.clock.now());
        sim.clock.sleep(SETTLE).await;
        for (machine, life) in machines.iter().zip(lives) {
            machine.judge_rest();
            machine.last.request();
            life.await.unwrap();
        }
        if let Err(missing) = rested {
            troubles.lock().unwrap().push(missing);
        }
        let history = sim.take_history();
        let rules = self.rules(&machines);
        let violations = check(&history, &rules);
        let troubles = std::mem::take(&mut *troubles.lock().unwrap());
        Report { violations, troubles, hits: sim.take_hits(), history, rules, elapsed }
    }

    fn rules(&self, machines: &[Arc<Machine>]) -> Rules {
        let stage = |name: &&str| StageRule { name: StageName::new(name), attempt_limit: self.attempt_limit };
        let consumers = machines.iter().map(|machine| machine.consumer.name.clone()).collect();
        Rules { stages: STAGES.iter().map(stage).collect(), consumers, at_rest: true }
    }
}

impl Machine {
    /// Starts the process again and again, until the last shutdown.
    async fn live(self: Arc<Machine>) {
        loop {
            let process = Process::start(&self.sim, self.number, &self.plan);
            self.database.lock_owner(process.owner);
            let shutdown = Shutdown::default();
            let telemetry = Arc::new(Telemetry::default());
            self.telemetry.lock().unwrap().push(telemetry.clone());
            let running = run(self.parts(&process, telemetry), self.settings(), shutdown.clone());
            let ended = {
                tokio::pin!(running);
                tokio::select! {
                    biased;
                    () = process.died() => None,
                    ended = &mut running => Some(ended),
                    () = self.terminate() => {
                        shutdown.request();
                        tokio::select! {
                            biased;
                            () = process.died() => None,
                            ended = &mut running => Some(ended),
                        }
                    }
                }
            };
            process.bury();
            let orderly = ended.is_some();
            self.judge_end(ended);
            let late = if orderly || self.sim.one_in(2) { 0 } else { self.sim.below(200_000) };
            self.database.unlock_owner(process.owner, self.sim.clock.now() + late);
            self.disk.recover(&self.sim, process.power_lost());
            if self.last.is_requested() || self.troubles.lock().unwrap().len() > 3 {
                return;
            }
            self.sim.clock.sleep(self.sim.millis(5, 600)).await;
        }
    }

    /// Returns when the process is to be asked to end.
    async fn terminate(&self) {
        let at = self.terminate_at.lock().unwrap().front().copied();
        tokio::select! {
            biased;
            () = self.last.requested() => {}
            () = self.sim.clock.sleep_until(at.unwrap_or(u64::MAX)) => {
                self.terminate_at.lock().unwrap().pop_front();
                self.sim.count(Fault::Terminate);
            }
        }
    }

    fn judge_end(&self, ended: Option<Result<()>>) {
        if let Some(Err(error)) = ended {
            let trouble = format!("process {} ended: {}", self.number, error.report());
            self.troubles.lock().unwrap().push(trouble);
        }
    }

    /// Nothing is left to do: the executor holds no row, and the log has brought every one it had to work on.
    fn judge_rest(&self) {
        let lives = self.telemetry.lock().unwrap();
        let mut troubles = self.troubles.lock().unwrap();
        let held = lives.last().map_or(0, |telemetry| telemetry.open_rows.get());
        if held != 0 {
            troubles.push(format!("process {} still holds {held} rows at rest", self.number));
        }
        let paused = lives.last().map_or(0, |telemetry| telemetry.status().paused.len());
        if paused != 0 {
            troubles.push(format!("process {} still holds back {paused} parts that were resumed", self.number));
        }
        let staged = self.staging.prepared();
        if staged != 0 {
            troubles.push(format!("process {} still keeps {staged} prepared transactions at rest", self.number));
        }
        let total = |count: fn(&Telemetry) -> u64| lives.iter().map(|telemetry| count(telemetry)).sum::<u64>();
        let hits = total(|telemetry| telemetry.sweep_hits.get());
        if hits != 0 {
            troubles
                .push(format!("the sweep of process {} found {hits} rows that the log had not brought", self.number));
        }
        let unfenced = total(|telemetry| {
            let of = |stage: &&str| {
                telemetry.unfenced_writes.get_or_create(&StageLabel { stage: (*stage).to_owned() }).get()
            };
            STAGES.iter().map(of).sum()
        });
        if unfenced != 0 {
            let number = self.number;
            troubles
                .push(format!("process {number} took {unfenced} writes for unfenced, and everybody raises the fence"));
        }
        self.sim.count_seen("stale checkpoints", total(|telemetry| telemetry.stale_checkpoints.get()));
        for (how, what) in MEMBERS {
            let count = |telemetry: &Telemetry| telemetry.executor_changes.get_or_create(&MemberLabel { how }).get();
            self.sim.count_seen(what, lives.iter().map(|telemetry| count(telemetry)).sum());
        }
        self.sim.count_seen("take-overs", total(|telemetry| telemetry.take_overs.get()));
        self.sim.count_seen("claims lost to another executor", total(|telemetry| telemetry.claims_lost.get()));
        self.sim.count_seen("reconnects", total(|telemetry| telemetry.reconnects.get()));
    }

    fn parts(&self, process: &Arc<Process>, telemetry: Arc<Telemetry>) -> Parts {
        let journal = FakeJournal::open(process, &self.disk);
        let source = Arc::new(FakeSource {
            database: self.database.clone(),
            process: process.clone(),
            disk: self.disk.clone(),
            consumer: self.consumer.clone(),
            policy: self.policy,
        });
        let work = WorkPart {
            settings: WorkSettings {
                definitions: definitions(self.attempt_limit),
                endpoints: BTreeMap::new(),
                key_names: vec!["group_id".into(), "quote_id".into()],
                fair_by: Some(0),
                owner: process.owner,
                quiet: self.database.quiet,
                unfenced: UnfencedWrites::Park,
                names_owner: true,
                history: None,
            },
            table: Arc::new(FakeWorkTable { database: self.database.clone(), process: process.clone() }),
            caller: Arc::new(FakeCaller { process: process.clone(), receivers: self.receivers.clone() }),
        };
        let sink = FakeSink { process: process.clone(), consumer: self.consumer.clone() };
        Parts {
            source: source.clone(),
            writer: journal.writer(),
            staging: FakeStaging::open(process, &self.staging),
            journal: journal.door(),
            positions: journal,
            primary: source,
            routing: Arc::new(routing()),
            work: Some(work),
            onlook: None,
            sinks: vec![SinkPart {
                name: self.consumer.name.clone(),
                required: true,
                // One of the processes has a sink that reads back.
                wait_visible: self.number == 1,
                sink: Box::new(sink),
            }],
            world: Arc::new(ProcessWorld(process.clone())),
            telemetry,
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            ack: if self.policy == ConfirmPolicy::Sinks { Ack::Sinks } else { Ack::Journal },
            when_full: WhenFull::Block,
            wal_guard_bytes: None,
            periods: Periods {
                heartbeat: Duration::from_secs(1),
                slot_health: Duration::from_secs(2),
                sweep: Duration::from_secs(20),
                positions: Duration::from_millis(200),
                summary: Duration::from_secs(60),
            },
            limits: Limits {
                statement_rows_max: 20,
                batch_events_max: 10,
                retry_max: Duration::from_millis(500),
                heartbeat_overdue: Duration::from_secs(3),
                ..Limits::default()
            },
        }
    }
}

/// The awaits at which a process will crash or stop: each place as often as every other, over many seeds.
fn plan(sim: &Sim, faults_end: u64) -> VecDeque<Planned> {
    let mut planned = VecDeque::new();
    let mut at = 200_000 + sim.below(1_500_000);
    while at < faults_end {
        let point = Point::ALL[usize::try_from(sim.below(Point::ALL.len() as u64)).unwrap()];
        let side = Side::ALL[usize::try_from(sim.below(2)).unwrap()];
        let often = matches!(point, Point::Sleep | Point::StageCall | Point::LogRead | Point::JournalFollow);
        let skip = u32::try_from(sim.below(if often { 60 } else { 2 })).unwrap();
        let kind = match sim.below(7) {
            0 => PlannedKind::PowerLoss,
            1 | 2 => PlannedKind::Freeze(LEASE + sim.millis(100, 1_500)),
            _ => PlannedKind::Kill,
        };
        planned.push_back(Planned { at, point, side, skip, kind });
        at += 300_000 + sim.below(1_500_000);
    }
    planned
}

fn terminations(sim: &Sim, faults_end: u64) -> VecDeque<u64> {
    let count = sim.below(3);
    let mut times: Vec<u64> = (0..count).map(|_| 300_000 + sim.below(faults_end - 300_000)).collect();
    times.sort_unstable();
    times.into()
}

/// Commits all submissions: each a work row and an event, in transactions of one to three.
async fn submit(database: Arc<Database>, rows: u64) {
    let sim = database.sim.clone();
    let mut number = 0;
    while number < rows {
        let count = (1 + sim.below(3)).min(rows - number);
        let numbers = number..number + count;
        number += count;
        let database = database.clone();
        tokio::spawn(async move { submit_together(&database, numbers).await });
        sim.clock.sleep(Duration::from_micros(sim.below(80_000))).await;
    }
}

async fn submit_together(database: &Arc<Database>, numbers: std::ops::Range<u64>) {
    let sim = &database.sim;
    loop {
        let xid = database.begin();
        sim.clock.sleep(Duration::from_micros(sim.below(30_000))).await;
        if sim.strikes(2_000) {
            sim.count(Fault::RolledBack);
            if database.two_phase {
                database.prepare(xid, &[super::log::ghost(sim)]);
                sim.clock.sleep(Duration::from_micros(sim.below(200_000))).await;
            }
            database.roll_back(xid);
            continue;
        }
        let mut changes = Vec::new();
        for number in numbers.clone() {
            let group = format!("g{}", number % 9);
            let key = WorkKey::new([group.clone(), format!("q{number}")]);
            sim.record(Record::Submitted { key: key.clone(), stage: StageName::new(STAGES[0]) });
            changes.push(Change::InsertWork(new_row(key, STAGES[0], &format!("{{\"n\": {number}}}"))));
            let id: Arc<str> = format!("event-{number}").into();
            changes.push(Change::InsertEvent { id: id.clone(), key: group.into() });
            if sim.one_in(4) {
                changes.push(Change::DeleteEvent { id });
            }
        }
        // The application may end its transaction in two phases, and other commits come between.
        if database.two_phase && sim.one_in(4) {
            database.prepare(xid, &changes);
            sim.clock.sleep(Duration::from_micros(sim.below(200_000))).await;
            sim.count(Fault::PreparedCommitted);
        }
        return database.commit(xid, changes);
    }
}

/// What goes wrong beside the processes: the server, its sessions, and people.
async fn disturb(database: Arc<Database>, machines: Vec<Arc<Machine>>) {
    let sim = database.sim.clone();
    while sim.faults_on() {
        sim.clock.sleep(sim.millis(100, 900)).await;
        database.unrelated_log(sim.below(10_000));
        match sim.below(8) {
            0 => database.restart(sim.millis(10, 400)),
            1 | 2 => {
                sim.count(Fault::OwnerLockLost);
                let living = database.living_owners().unwrap_or_default();
                let lost: Vec<_> = living.into_iter().filter(|_| sim.one_in(2)).collect();
                lost.iter().for_each(|owner| database.unlock_owner(*owner, 0));
                sim.clock.sleep(sim.millis(50, 500)).await;
                // A process that ended meanwhile holds no lock again.
                lost.iter().filter(|owner| database.held(**owner)).for_each(|owner| database.lock_owner(*owner));
            }
            3 => {
                let rows = database.rows();
                if let Some(row) = rows.get(usize::try_from(sim.below(rows.len() as u64)).unwrap()) {
                    cancel(&database, row.version.key.clone()).await;
                }
            }
            _ => {}
        }
    }
    drop(machines);
}

/// A person pauses one part after the other, and resumes it a while later.
async fn hold_back(database: Arc<Database>) {
    let sim = database.sim.clone();
    let order = |change| {
        let xid = database.begin();
        database.commit(xid, vec![Change::Pause(change)]);
        xid
    };
    while sim.one_in(2) && sim.faults_on() {
        sim.clock.sleep(sim.millis(50, 1_500)).await;
        let stage = STAGES[usize::try_from(sim.below(STAGES.len() as u64)).unwrap()];
        let columns = match sim.below(3) {
            0 => [stage, "", ""],
            1 => [stage, DEFINITION, ""],
            _ => ["", "", ENDPOINT],
        };
        let part = PausedPart::of(columns).unwrap();
        let [who, why] = ["ada", "because"].map(str::to_owned);
        sim.count(Fault::Paused);
        let xid = order(PauseChange::Pause(Paused { part: part.clone(), since: sim.server_now(), who, why }));
        sim.clock.sleep(sim.millis(50, 1_500)).await;
        // A resume takes away the row of the pause, and so must see it.
        while database.is_running(xid) {
            let seen = database.revealed.count();
            if database.is_running(xid) {
                database.revealed.changed_since(seen).await;
            }
        }
        order(PauseChange::Resume(part));
    }
}

/// Waits until nothing is left to do, and says what is if that takes too long.
async fn rest(
    sim: &Sim,
    database: &Database,
    machines: &[Arc<Machine>],
    expected: u64,
) -> std::result::Result<(), String> {
    loop {
        sim.clock.sleep(Duration::from_millis(250)).await;
        let missing = missing(database, machines, expected);
        if missing.is_empty() {
            return Ok(());
        }
        let failed = machines.iter().any(|machine| machine.troubles.lock().unwrap().len() > 3);
        if sim.clock.now() > GIVE_UP || failed {
            return Err(format!("no rest: {missing}"));
        }
    }
}

fn missing(database: &Database, machines: &[Arc<Machine>], expected: u64) -> String {
    let rows = database.rows();
    if (rows.len() as u64) < expected {
        return format!("{} of {expected} rows are submitted", rows.len());
    }
    let active = [StageState::Pending, StageState::Running, StageState::Retry];
    let open: Vec<_> = rows.iter().filter(|row| active.contains(&row.version.state)).collect();
    if let Some(row) = open.first() {
        return format!("{} rows are open, one of them {:?}", open.len(), row.version);
    }
    let state = database.state();
    let end = state.log.last().map(|logged| logged.end_lsn).unwrap_or_default();
    let events = state.events.clone();
    let confirmed: Vec<_> = state.slots.iter().map(|slot| slot.confirmed).collect();
    drop(state);
    for machine in machines {
        if let Some((id, _)) = events.iter().find(|(id, _)| !machine.consumer.has(id)) {
            return format!("{id} did not come to {}", machine.consumer.name);
        }
        // Heartbeats go on; what is older than two of them must be confirmed.
        let slack = 2 * 600;
        if confirmed[machine.number].0 + slack < end.0 {
            return format!("slot {} is at {} and the log at {end}", machine.number, confirmed[machine.number]);
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_itself() {
        for seed in 0..20 {
            let (one, other) = (Scenario::default().run(seed), Scenario::default().run(seed));
            assert!(one.history == other.history && one.hits == other.hits, "seed {seed} runs in two ways");
        }
    }
}
