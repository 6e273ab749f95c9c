//! The server and the connection to it: numbered cases, each on every version at once.

use super::fixture::{
    Database, Endpoint, Play, Scene, lsn, on_every_version, on_versions, outbox, sink_http, sink_ndjson, stage,
    wait_for, wait_until, work,
};
use super::life::{adopt, assert_refused_and_checked, scribe, text, wait_delivered};
use postrider_core::error::ErrorKind;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use xtask::postgres::Builder;
use xtask::process::signal;

const SLOT: &str = "rider_rider";

/// A server with a time-out of two seconds is asked how far it is within this time.
const ASKED_WITHIN: Duration = Duration::from_millis(750);

/// How long a server that is held up goes on in between: much shorter than a long stretch of its log.
const STEP: Duration = Duration::from_millis(15);

/// How often the server has heard from the reader, by the time in what it said last.
const HEARD: &str = "SELECT reply_time FROM pg_stat_replication WHERE application_name LIKE 'postrider%'";

fn impatient(builder: Builder) -> Builder {
    builder.setting("wal_sender_timeout", "2s")
}

pub(super) fn lines(scene: &Scene) -> Vec<String> {
    let text = std::fs::read_to_string(scene.file("rider.ndjson")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Writes log that is for nobody: so many rows in transactions of a thousand.
pub(super) fn make_noise(scene: &Scene, rows: u32) {
    scene.db.run("CREATE TABLE IF NOT EXISTS noise (n int, pad text)");
    scene.db.run(&format!(
        "DO $$ BEGIN FOR i IN 1..{} LOOP
             INSERT INTO noise SELECT n, repeat('x', 60) FROM generate_series(1, 1000) AS n; COMMIT;
         END LOOP; END $$",
        rows / 1000
    ));
}

/// Where the server would begin to read for the slot.
fn restart(scene: &Scene) -> u64 {
    let sql = format!("SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = '{SLOT}'");
    lsn(&scene.db.text(&sql))
}

#[test]
fn s04_a_server_without_a_time_out_hears_from_us_all_the_same() {
    on_every_version(|version| {
        let scene = Scene::of(version, |builder| builder.setting("wal_sender_timeout", "0"));
        let blocked = Endpoint::alone(|_, _| Play::Hold);
        let mut rider = scene.rider("rider", outbox() + &sink_http("blocked", &blocked.address(), "timeout = \"10m\""));
        rider.setup();
        rider.start_ready();
        let end = scene.db.log_end();
        wait_until("what is not for us is confirmed", || scene.db.confirmed(SLOT) >= end);
        scene.db.submit(0..1);
        wait_until("the sink is blocked", || blocked.held() == 1);
        // Nothing can be confirmed and the server does not ask: what it hears it hears because time has passed.
        let heard = scene.db.text(HEARD);
        wait_until("the server hears from us", || scene.db.text(HEARD) != heard);
        rider.still_runs();
    });
}

#[test]
fn s06_a_crash_of_the_server_sets_the_slot_back_and_everything_comes_once() {
    on_every_version(|version| {
        let mut scene = Scene::of(version, |builder| builder);
        let mut rider = scribe(&scene, "rider", "");
        rider.setup();
        rider.start_ready();
        let mut count = 0;
        // A slot is saved now and then: the crash that comes between a confirm and its saving is soon there.
        wait_until("a crash sets the slot back", || {
            scene.db.submit(count..count + 5);
            count += 5;
            let end = scene.db.log_end();
            wait_until("all is confirmed", || scene.db.confirmed(SLOT) >= end);
            let confirmed = scene.db.confirmed(SLOT);
            rider.signal("STOP");
            scene.cluster.kill9().unwrap();
            scene.cluster.start().unwrap();
            scene.db = Database::connect(&scene.url());
            let after = scene.db.confirmed(SLOT);
            rider.signal("CONT");
            after < confirmed
        });
        scene.db.submit(count..count + 5);
        wait_delivered(&scene, "rider", 0..count + 5);
        let end = scene.db.log_end();
        wait_until("the slot goes on", || scene.db.confirmed(SLOT) >= end);
        assert_eq!(lines(&scene).len(), usize::try_from(count + 5).unwrap(), "nothing came twice");
        rider.still_runs();
    });
}

#[test]
fn s14_a_slot_that_idled_out_is_told_from_others_and_the_journal_goes_on_behind_it() {
    on_versions(18..=18, |version| {
        let scene = Scene::of(version, |builder| builder.setting("idle_replication_slot_timeout", "1s"));
        let mut rider = scribe(&scene, "rider", "");
        rider.setup();
        rider.start_ready();
        scene.db.submit(0..1);
        wait_delivered(&scene, "rider", 0..1);
        rider.kill9();
        let reason =
            format!("SELECT coalesce(invalidation_reason, '') FROM pg_replication_slots WHERE slot_name = '{SLOT}'");
        wait_until("the slot has idled for too long", || {
            scene.db.run("CHECKPOINT");
            scene.db.text(&reason) == "idle_timeout"
        });
        assert_refused_and_checked(&mut rider, ErrorKind::SlotLost, "longer than idle_replication_slot_timeout");
        scene.db.submit(1..2);
        scene.db.run(&format!("SELECT pg_drop_replication_slot('{SLOT}')"));
        rider.setup();
        adopt(&rider, &["cannot be read any more"]);
        rider.start_ready();
        scene.db.submit(2..3);
        wait_delivered(&scene, "rider", [0, 2]);
    });
}

#[test]
fn s18_a_long_stretch_of_log_that_is_for_nobody_is_one_connection_and_its_progress_is_seen() {
    on_every_version(|version| {
        let scene = Scene::of(version, impatient);
        let mut rider = scribe(&scene, "rider", "");
        rider.setup();
        let begin = scene.db.log_end();
        make_noise(&scene, 400_000);
        scene.db.submit(0..1);
        let end = scene.db.log_end();
        assert!(end > begin + 40_000_000, "others wrote {} bytes", end - begin);
        rider.start();
        let reader = wait_for("the log is read", || scene.db.reader(SLOT));
        let sender = [u32::try_from(reader).unwrap()];
        let received = || u64::try_from(rider.metric("postrider_received_lsn_bytes")).unwrap();
        // The server is held up within the stretch, for less than its time-out, so that there is time to look.
        signal("STOP", &sender).unwrap();
        wait_until("the progress is seen", || {
            thread::sleep(ASKED_WITHIN);
            signal("CONT", &sender).unwrap();
            thread::sleep(STEP);
            signal("STOP", &sender).unwrap();
            received() > begin
        });
        assert!(received() < end, "it is seen while there is more to come");
        signal("CONT", &sender).unwrap();
        wait_delivered(&scene, "rider", 0..1);
        assert_eq!(scene.db.reader(SLOT), Some(reader), "on one connection");
        assert_eq!(rider.metric("postrider_reconnects_total"), 0);
    });
}

#[test]
fn p14_the_server_forgets_what_is_not_for_us_and_nothing_that_is_not_settled() {
    on_every_version(|version| {
        let scene = Scene::of(version, |builder| builder);
        let blocked = Endpoint::alone(|_, _| Play::Hold);
        let mut rider = scene.rider("rider", outbox() + &sink_http("blocked", &blocked.address(), "timeout = \"10m\""));
        rider.setup();
        rider.start_ready();
        make_noise(&scene, 50_000);
        let noise_end = scene.db.log_end();
        wait_until("the server may forget what is not for us", || {
            scene.db.run("CHECKPOINT");
            restart(&scene) >= noise_end
        });
        let before_event = scene.db.log_end();
        scene.db.submit(0..1);
        let event_end = scene.db.log_end();
        wait_until("the sink is blocked", || blocked.held() == 1);
        make_noise(&scene, 50_000);
        let received = scene.db.log_end();
        wait_until("the rest is received", || {
            scene.db.run("CHECKPOINT");
            u64::try_from(rider.metric("postrider_received_lsn_bytes")).unwrap() >= received
        });
        assert!(scene.db.confirmed(SLOT) < event_end, "the event is not settled");
        assert!(restart(&scene) <= event_end && before_event <= event_end);
        blocked.release();
        wait_until("the slot goes on with the sink", || scene.db.confirmed(SLOT) >= received);
    });
}

#[test]
fn p18_what_is_in_the_log_and_waits_is_claimed_and_told_as_soon_as_it_is_visible_and_never_counted_as_lost() {
    on_every_version(|version| {
        let scene = Scene::of(version, |builder| builder);
        let endpoint = Endpoint::alone(|_, _| Play::Answer);
        let (events, stage) = (Endpoint::alone(|_, _| Play::Answer), stage("PRICING", &endpoint.address(), None, ""));
        let sink = sink_http("reads_back", &events.address(), "wait_visible = true");
        let lines = sink_ndjson("lines", &scene.file("rider.ndjson"));
        let mut rider = scene.rider("rider", outbox() + &sink + &lines + &work(&[stage]));
        rider.setup();
        rider.start_ready();
        scene.db.submit(0..1);
        wait_until("all is delivered", || scene.open_rows() == 0 && events.requests().len() == 1);
        let kept = KeptBack::start(&scene);
        let url = scene.url();
        let submission = thread::spawn(move || Database::connect(&url).submit(1..2));
        wait_until("the log shows a row that nobody can see", || rider.metric("postrider_unseen_rows") == 1);
        wait_delivered(&scene, "rider", 0..2);
        let waits = |status: Output| text(&status).contains("waits for the end of a commit");
        wait_until("the sink says that it waits", || waits(rider.end_of(&["status"])));
        assert_eq!(scene.db.number("SELECT count(*) FROM pending_work"), 1, "nobody can see the second row");
        assert_eq!((endpoint.requests().len(), events.requests().len()), (1, 1));
        assert!(!submission.is_finished());
        kept.end(&scene);
        submission.join().unwrap();
        let done = "SELECT count(*) = 2 AND bool_and(closed_at IS NOT NULL) FROM pending_work";
        wait_until("the stage is done", || scene.db.is(done));
        wait_until("the event is told", || events.requests().len() == 2);
        assert_eq!(endpoint.requests().len(), 2);
        for metric in ["claims_lost", "sweep_hits", "stale_checkpoints", "alarms"] {
            assert_eq!(rider.metric(&format!("postrider_{metric}_total")), 0, "{metric}");
        }
        wait_until("every row is seen", || rider.metric("postrider_unseen_rows") == 0);
        wait_until("nobody waits", || !waits(rider.end_of(&["status"])));
    });
}

/// While it lasts every commit is in the log and visible to nobody: it waits for a standby that does not exist.
struct KeptBack {
    over: Arc<AtomicBool>,
    probe: thread::JoinHandle<()>,
}

impl KeptBack {
    fn start(scene: &Scene) -> KeptBack {
        scene.db.run("CREATE TABLE probe (n int)");
        scene.cluster.set("synchronous_standby_names", "nobody").unwrap();
        scene.cluster.reload().unwrap();
        let (url, over) = (scene.url(), Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&over);
        // The setting holds from the moment on in which a commit is kept back.
        let probe = thread::spawn(move || {
            let db = Database::connect(&url);
            while !told.load(Ordering::Relaxed) {
                db.run("INSERT INTO probe VALUES (1)");
            }
        });
        let waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        wait_until("a commit is kept back", || scene.db.is(waits));
        KeptBack { over, probe }
    }

    fn end(self, scene: &Scene) {
        self.over.store(true, Ordering::Relaxed);
        scene.cluster.set("synchronous_standby_names", "").unwrap();
        scene.cluster.reload().unwrap();
        self.probe.join().unwrap();
    }
}
