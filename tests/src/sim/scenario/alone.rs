//! One process without faults, at a moment that chance seldom finds: what must be begun with soon, although neither its log nor the first read
//! of the open rows has brought it.

use super::{GIVE_UP, Machine};
use crate::sim::database::{Change, Database, new_row};
use crate::sim::endpoint::Receivers;
use crate::sim::faults::{Point, Side};
use crate::sim::journal::JournalDisk;
use crate::sim::shared::Sim;
use crate::sim::sink::Consumer;
use crate::sim::stage_set::STAGES;
use crate::sim::staging::StagingDisk;
use crate::sim::time::{Clock, in_virtual_time};
use postrider_core::history::ConfirmPolicy;
use postrider_core::paused::{PauseChange, Paused, PausedPart};
use postrider_core::work::WorkKey;
use postrider_engine::Shutdown;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// When what is to be hidden is committed, in microseconds.
const COMMIT_AT: u64 = 1_500_000;
/// When the process is asked to end; within a second it begins anew.
const END_AT: u64 = 2_200_000;

/// What is in the log while nobody sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hidden {
    Row,
    /// The order that lets a row's stage go on.
    Resume,
}

/// What came of it.
#[derive(Debug)]
pub struct Found {
    /// How long the rows were due, for all that anybody could see, until the last was begun with.
    pub waited: Duration,
    pub early_sweep_hits: u64,
    pub sweep_hits: u64,
}

/// A commit is in the log before the process ends, with its position saved behind it, and visible only after the process has begun anew.
pub fn begun_anew_meanwhile(hidden: Hidden, hidden_for: Duration) -> Found {
    in_virtual_time(|clock| async move {
        let alone = Alone::start(clock, Some(END_AT));
        let Alone { sim, database, .. } = &alone;
        if hidden == Hidden::Resume {
            database.commit_unseen_for(database.begin(), vec![pause(sim)], Duration::ZERO);
        }
        sim.clock.sleep_until(COMMIT_AT).await;
        let change = if hidden == Hidden::Row { row(0) } else { resume() };
        database.commit_unseen_for(database.begin(), vec![change], hidden_for);
        sim.clock.sleep(hidden_for).await;
        if hidden == Hidden::Resume {
            database.commit_unseen_for(database.begin(), vec![row(0)], Duration::ZERO);
        }
        alone.until_all_began().await
    })
}

/// The journal drops what the executor has not read, while a sweep is in the middle of the rows.
pub fn overtaken_within_a_sweep() -> Found {
    in_virtual_time(|clock| async move {
        let alone = Alone::start(clock, None);
        let Alone { sim, database, machine, .. } = &alone;
        database.commit_unseen_for(database.begin(), vec![pause(sim)], Duration::ZERO);
        database.commit_unseen_for(database.begin(), (0..400).map(row).collect(), Duration::ZERO);
        sim.clock.sleep_until(COMMIT_AT).await;
        let pages = sim.passes(Point::WorkNextPage, Side::Completion);
        while sim.passes(Point::WorkNextPage, Side::Completion) < pages + 4 {
            sim.clock.sleep(Duration::from_micros(20)).await;
        }
        machine.disk.overtake();
        database.commit_unseen_for(database.begin(), vec![resume()], Duration::ZERO);
        alone.until_all_began().await
    })
}

/// The one process on its machine, and the database.
struct Alone {
    sim: Arc<Sim>,
    database: Arc<Database>,
    machine: Arc<Machine>,
    life: tokio::task::JoinHandle<()>,
}

impl Alone {
    fn start(clock: Clock, end_at: Option<u64>) -> Alone {
        let sim = Sim::new(1, clock, None, 0);
        sim.end_faults();
        let database = Database::new(&sim, 1);
        let machine = Arc::new(Machine {
            sim: sim.clone(),
            number: 0,
            database: database.clone(),
            receivers: Receivers::new(&sim, &database),
            disk: JournalDisk::default(),
            staging: StagingDisk::default(),
            consumer: Consumer::new("consumer_0", false),
            policy: ConfirmPolicy::Journal,
            plan: Arc::default(),
            attempt_limit: 5,
            terminate_at: Mutex::new(end_at.into_iter().collect()),
            last: Shutdown::default(),
            telemetry: Mutex::default(),
            troubles: Arc::default(),
        });
        let life = tokio::spawn(machine.clone().live());
        Alone { sim, database, machine, life }
    }

    async fn until_all_began(self) -> Found {
        let Alone { sim, database, machine, life } = self;
        let due_at = sim.clock.now();
        while database.rows().iter().any(|row| row.version.fence == 0) {
            assert!(sim.clock.now() < GIVE_UP, "a row waits for ever");
            sim.clock.sleep(Duration::from_millis(10)).await;
        }
        let waited = Duration::from_micros(sim.clock.now() - due_at);
        machine.last.request();
        life.await.unwrap();
        assert_eq!(*machine.troubles.lock().unwrap(), Vec::<String>::new());
        let lives = machine.telemetry.lock().unwrap();
        let total = |count: fn(&postrider_engine::Telemetry) -> u64| lives.iter().map(|life| count(life)).sum();
        Found {
            waited,
            early_sweep_hits: total(|life| life.early_sweep_hits.get()),
            sweep_hits: total(|life| life.sweep_hits.get()),
        }
    }
}

fn row(number: usize) -> Change {
    Change::InsertWork(new_row(WorkKey::new(["g".to_owned(), number.to_string()]), STAGES[0], "{}"))
}

fn part() -> PausedPart {
    PausedPart::of([STAGES[0], "", ""]).unwrap()
}

fn pause(sim: &Sim) -> Change {
    let [who, why] = ["ada", "because"].map(str::to_owned);
    Change::Pause(PauseChange::Pause(Paused { part: part(), since: sim.server_now(), who, why }))
}

fn resume() -> Change {
    Change::Pause(PauseChange::Resume(part()))
}
