//! The fakes of the simulation, without faults.

use postrider_core::history::{ConfirmPolicy, Record};
use postrider_core::paused::PauseChange;
use postrider_core::ports::{BoxFuture, LogSource, Sink, StageCaller, Staging, WorkTable};
use postrider_core::position::Lsn;
use postrider_core::work::{OwnerId, WorkKey};
use postrider_tests::port_tests::{journal, log, sink, stage_caller, staging, work_table};
use postrider_tests::sim::database::{Change, Database, new_row};
use postrider_tests::sim::endpoint::{FakeCaller, Receivers};
use postrider_tests::sim::journal::{FakeJournal, JournalDisk};
use postrider_tests::sim::log::FakeSource;
use postrider_tests::sim::shared::{Process, Sim};
use postrider_tests::sim::sink::{Consumer, FakeSink};
use postrider_tests::sim::staging::{FakeStaging, StagingDisk};
use postrider_tests::sim::time::{Clock, in_virtual_time};
use postrider_tests::sim::work_table::FakeWorkTable;
use std::sync::Arc;
use std::time::Duration;

/// One process in a world where nothing goes wrong.
struct Calm {
    sim: Arc<Sim>,
    process: Arc<Process>,
    database: Arc<Database>,
}

impl Calm {
    fn new(seed: u64, clock: Clock) -> Calm {
        let sim = Sim::new(seed, clock, None, 0);
        sim.end_faults();
        let process = Process::start(&sim, 0, &Arc::default());
        let database = Database::new(&sim, 1);
        database.lock_owner(process.owner);
        Calm { sim, process, database }
    }
}

/// Runs a suite for some seeds: they differ in how long things take.
fn for_seeds(suite: impl AsyncFn(Calm)) {
    for seed in 0..20 {
        in_virtual_time(|clock| suite(Calm::new(seed, clock)));
    }
}

struct Work(FakeWorkTable);

impl work_table::Fixture for Work {
    fn table(&self) -> &dyn WorkTable {
        &self.0
    }

    fn owner(&self) -> OwnerId {
        self.0.process.owner
    }

    fn submit<'a>(&'a self, key: &'a WorkKey, stage: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let database = &self.0.database;
            let xid = database.begin();
            database.commit(xid, vec![Change::InsertWork(new_row(key.clone(), stage, "{\"n\": 1}"))]);
            while database.is_running(xid) {
                database.sim.clock.sleep(Duration::from_millis(1)).await;
            }
        })
    }

    fn order(&self, change: PauseChange) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let database = &self.0.database;
            let xid = database.begin();
            database.commit(xid, vec![Change::Pause(change)]);
            while database.is_running(xid) {
                database.sim.clock.sleep(Duration::from_millis(1)).await;
            }
        })
    }

    fn pass(&self, span: Duration) -> BoxFuture<'_, ()> {
        Box::pin(self.0.process.sim.clock.sleep(span))
    }
}

#[test]
fn the_fake_work_table_is_one() {
    for_seeds(async |calm| {
        work_table::suite(&Work(FakeWorkTable { database: calm.database, process: calm.process })).await;
    });
}

struct Journals(Arc<Process>, JournalDisk);

impl journal::Fixture for Journals {
    fn open(&self) -> journal::Doors {
        self.1.recover(&self.0.sim, false);
        let journal = FakeJournal::open(&self.0, &self.1);
        journal::Doors { writer: journal.writer(), journal: journal.door(), positions: journal }
    }
}

#[test]
fn the_fake_journal_is_one() {
    for_seeds(async |calm| journal::suite(&Journals(calm.process, JournalDisk::default())).await);
}

struct Stagings(Arc<Process>, StagingDisk);

impl staging::Fixture for Stagings {
    fn open(&self) -> Box<dyn Staging> {
        FakeStaging::open(&self.0, &self.1)
    }
}

#[test]
fn the_fake_staging_area_is_one() {
    for_seeds(async |calm| staging::suite(&Stagings(calm.process, StagingDisk::default())));
}

struct Source(FakeSource);

impl log::Fixture for Source {
    fn source(&self) -> &dyn LogSource {
        &self.0
    }

    fn emit<'a>(&'a self, text: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let xid = self.0.database.begin();
            let message = Change::Message { prefix: "port".to_owned(), content: text.as_bytes().to_vec() };
            self.0.database.commit(xid, vec![message]);
        })
    }

    fn confirmed(&self) -> BoxFuture<'_, Lsn> {
        Box::pin(async move { self.0.database.state().slots[0].confirmed })
    }
}

#[test]
fn the_fake_log_is_one() {
    for_seeds(async |calm| {
        let (database, process) = (calm.database, calm.process);
        let (disk, policy) = (JournalDisk::default(), ConfirmPolicy::Journal);
        let consumer = Consumer::new("nobody", false);
        log::suite(&Source(FakeSource { database, process, disk, consumer, policy })).await;
    });
}

struct Sinks(Arc<Process>, Arc<Consumer>);

impl sink::Fixture for Sinks {
    fn open(&self) -> Box<dyn Sink> {
        Box::new(FakeSink { process: self.0.clone(), consumer: self.1.clone() })
    }

    fn ids(&self) -> Vec<String> {
        self.1.ids()
    }
}

#[test]
fn the_fake_sink_is_one() {
    for keeps_position in [false, true] {
        for_seeds(async |calm| sink::suite(&Sinks(calm.process, Consumer::new("consumer", keeps_position))).await);
    }
}

struct Calls(Arc<Sim>, FakeCaller);

impl stage_caller::Fixture for Calls {
    fn caller(&self) -> &dyn StageCaller {
        &self.1
    }

    fn play(&self, play: stage_caller::Play) {
        self.1.receivers.play(play);
    }

    fn requests(&self) -> Vec<String> {
        let history = self.0.take_history();
        let keys = history.iter().filter_map(|record| match record {
            Record::RequestReceived { idempotency_key, .. } => Some(idempotency_key.to_string()),
            _ => None,
        });
        keys.collect()
    }
}

#[test]
fn the_fake_stage_caller_is_one() {
    for_seeds(async |calm| {
        let receivers = Receivers::new(&calm.sim, &calm.database);
        stage_caller::suite(&Calls(calm.sim, FakeCaller { process: calm.process, receivers })).await;
    });
}
