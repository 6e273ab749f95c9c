//! SIGKILL at any time: nothing is lost, nothing doubled, the journal opens, and no position goes back.

use super::fixture::{Database, Endpoint, Play, Rider, Scene, outbox, sink_http, stage, wait_until, work};
use postrider_core::ports::SourceIdentity;
use postrider_core::position::{Lsn, Position};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const SEED: u64 = 20_260_115;
const KILLS: u32 = 30;
/// The longest life between a start and its kill; the shortest ends before the configuration is read.
const LIFE_MAX: Duration = Duration::from_millis(500);
/// What a few of the lives have beside it: positions are saved once in a second.
const LONG_LIFE: Duration = Duration::from_millis(1_200);
/// The pause between two submissions.
const PACE: Duration = Duration::from_millis(15);
const STAGES: [&str; 4] = ["PRICING", "APPROVAL", "BINDING", "ISSUING"];

/// What must not go back from one life to the next.
#[derive(Debug, Default)]
struct Progress {
    confirmed: u64,
    journal_end: Lsn,
    positions: BTreeMap<&'static str, Position>,
}

impl Progress {
    #[track_caller]
    fn note_confirmed(&mut self, confirmed: u64) {
        assert!(confirmed >= self.confirmed, "the slot went back from {:X} to {confirmed:X}", self.confirmed);
        self.confirmed = confirmed;
    }

    /// Opens what the dead process left.
    #[track_caller]
    fn note_journal(&mut self, rider: &Rider, identity: &SourceIdentity) {
        if !rider.plan.journal.exists() {
            return;
        }
        let settings =
            postrider_journal::Settings { segment_bytes: 64 << 20, retain_bytes: 20 << 30, retain_age: None };
        let opened = postrider_journal::open(&rider.plan.journal, identity, &settings)
            .unwrap_or_else(|error| panic!("the journal does not open: {}", error.report()));
        let end = opened.journal.appended();
        assert!(end >= self.journal_end, "the journal's end went back from {} to {end}", self.journal_end);
        assert!(
            end.0 >= self.confirmed,
            "the slot is confirmed at {:X}, beyond the journal's end {end}",
            self.confirmed
        );
        self.journal_end = end;
        for consumer in ["work", "events"] {
            let Some(position) = opened.positions.load(consumer).unwrap() else {
                assert!(!self.positions.contains_key(consumer), "{consumer} has lost its position");
                continue;
            };
            let before = self.positions.insert(consumer, position);
            assert!(before.is_none_or(|before| before <= position), "{consumer}: {before:?} after {position}");
        }
    }
}

#[test]
fn thirty_kills_under_load_lose_nothing_double_nothing_and_move_no_position_back() {
    let mut scene = Scene::start();
    let service = scene.start_service();
    let endpoint = Endpoint::before(&service, |_, _| Play::Answer);
    let mut rider = scene.rider("rider", everything(&endpoint));
    rider.setup();
    let identity = identity_of(&scene, &rider);
    let submitter = Database::connect(&scene.url());
    let (submitted, over) = (AtomicU32::new(0), AtomicBool::new(false));
    let mut progress = Progress::default();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let number = submitted.load(Ordering::Relaxed);
                submitter.submit(number..number + 1);
                submitted.store(number + 1, Ordering::Relaxed);
                std::thread::sleep(PACE);
            }
        });
        // However this ends, the other thread must.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            live_and_die(&scene, &mut rider, &identity, &mut progress);
        }));
        over.store(true, Ordering::Relaxed);
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    rider.start();
    let submitted = i64::from(submitted.load(Ordering::Relaxed));
    assert!(submitted > i64::from(KILLS), "there was load: {submitted} quotes");
    let undelivered = "SELECT count(*) FROM outbox_event o
        WHERE NOT EXISTS (SELECT FROM quoting.event_effects e WHERE e.event_id = o.id)";
    wait_until("every row is closed and every event acted on", || {
        rider.still_runs();
        progress.note_confirmed(scene.db.confirmed("rider_rider"));
        scene.open_rows() == 0 && scene.db.number(undelivered) == 0
    });
    assert_nothing_lost_or_doubled(&scene, submitted);
    assert_first_deliveries_in_order(&endpoint, submitted);
    let absorbed = scene.db.number("SELECT count(*) FROM quoting.requests WHERE replayed");
    println!("seed {SEED}: {submitted} quotes, {KILLS} kills, {absorbed} repeats absorbed");
    assert!(absorbed > 0, "no kill fell between a commit and its checkpoint: the test has shown nothing");
    assert!(progress.positions.contains_key("work"), "positions were saved, and could have gone back: {progress:?}");
    rider.signal("TERM");
    assert_eq!(rider.wait().0, Some(0));
    progress.note_journal(&rider, &identity);
    assert_eq!(progress.positions.len(), 2, "both consumers' positions are saved at the end: {progress:?}");
}

fn everything(endpoint: &Endpoint) -> String {
    let address = endpoint.address();
    let keys = "attempts = 1000\nbackoff = { first = \"20ms\", max = \"200ms\" }\n";
    let next = STAGES.into_iter().skip(1).map(Some).chain([None]);
    let stages: Vec<_> = STAGES.into_iter().zip(next).map(|(name, next)| stage(name, &address, next, keys)).collect();
    outbox() + &sink_http("events", &address, "") + &work(&stages)
}

fn live_and_die(scene: &Scene, rider: &mut Rider, identity: &SourceIdentity, progress: &mut Progress) {
    let mut chance = fastrand::Rng::with_seed(SEED);
    for kill in 0..KILLS {
        rider.start();
        let mut life = LIFE_MAX.mul_f64(chance.f64());
        if kill % 3 == 0 {
            // Some of them come to work for certain, however slow the machine is.
            let before = rider_requests(scene);
            wait_until("the orchestrator works", || {
                rider.still_runs();
                rider_requests(scene) > before
            });
            life /= 5;
        }
        if kill % 10 == 5 {
            life += LONG_LIFE;
        }
        let dies_at = Instant::now() + life;
        while Instant::now() < dies_at {
            progress.note_confirmed(scene.db.confirmed("rider_rider"));
            std::thread::sleep(Duration::from_millis(5));
        }
        rider.still_runs();
        rider.kill9();
        progress.note_confirmed(scene.db.confirmed("rider_rider"));
        progress.note_journal(rider, identity);
    }
}

fn rider_requests(scene: &Scene) -> i64 {
    scene.db.number("SELECT count(*) FROM quoting.requests")
}

#[track_caller]
fn assert_nothing_lost_or_doubled(scene: &Scene, submitted: i64) {
    assert_eq!(scene.db.text("SELECT DISTINCT stage_state FROM pending_work"), "DONE");
    assert_eq!(scene.effects(), (submitted * 4, 0), "one effect for each stage of each quote");
    let events = "SELECT count(*) FROM quoting.event_effects";
    assert_eq!(scene.db.number(events), submitted, "each event was acted on once");
}

/// Each event came, and for each key the first deliveries are in the order of the commits.
#[track_caller]
fn assert_first_deliveries_in_order(endpoint: &Endpoint, submitted: i64) {
    let mut seen = BTreeSet::new();
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for request in endpoint.requests().iter().filter(|request| request.path == "/events") {
        if !seen.insert(request.header("webhook-id").to_owned()) {
            continue;
        }
        let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        let sequence = body["payload"]["seq"].as_u64().unwrap();
        let before = last.insert(body["key"].as_str().unwrap().to_owned(), sequence);
        assert!(before.is_none_or(|before| before < sequence), "{before:?} came before {sequence}");
    }
    assert_eq!(i64::try_from(seen.len()), Ok(submitted));
}

fn identity_of(scene: &Scene, rider: &Rider) -> SourceIdentity {
    use postrider_core::ports::LogSource;
    let options = postrider_postgres::ConnectOptions::parse(&scene.url(), &BTreeMap::new()).unwrap();
    let source =
        postrider_postgres::ReplicationSource::new(options, rider.plan.slot.as_str(), rider.plan.publication.as_str());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(source.identify()).unwrap()
}
