//! The replication client against real servers.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use postrider_core::error::{Error, ErrorKind};
use postrider_core::frame::Frame;
use postrider_core::ports::{Confirmer, LogReader, LogSession, LogSource};
use postrider_core::position::Lsn;
use postrider_postgres::{ConnectOptions, ReplicationSource, connect_client, create_slot, drop_slot};
use tokio_postgres::Client;
use xtask::postgres::{Builder, Cluster, find};

mod refusals;
mod tls;

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// With so many asks for one position the answers are already slowed down.
const STORM_ASKS: usize = 52;

/// A cluster with a table, a publication and a slot.
struct Server {
    cluster: Cluster,
    admin: Client,
}

/// What a reader has seen so far.
#[derive(Default)]
struct Seen {
    /// First bytes of the pgoutput messages.
    kinds: String,
    payload_bytes: usize,
    last_payload: Vec<u8>,
    commits: usize,
    /// End LSN of the last commit.
    end: Lsn,
    wal_end: Lsn,
    asks: usize,
}

impl Server {
    async fn start(adjust: impl FnOnce(Builder) -> Builder) -> Server {
        let version = std::env::var("POSTRIDER_TEST_POSTGRES").ok().map(|major| major.parse().unwrap());
        let cluster = adjust(Cluster::builder(&find(version).unwrap())).start().unwrap();
        let admin = connect_client(&options(&cluster.url())).await.unwrap().0;
        Server { cluster, admin }
    }

    async fn with_slot(adjust: impl FnOnce(Builder) -> Builder) -> Server {
        let server = Server::start(adjust).await;
        server.run("CREATE TABLE public.t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE public.t").await;
        create_slot(&options(&server.cluster.url()), "s", PATIENCE).await.unwrap();
        server
    }

    async fn run(&self, sql: &str) {
        self.admin.batch_execute(sql).await.unwrap();
    }

    fn source(&self) -> ReplicationSource {
        self.source_at(&self.cluster.url())
    }

    fn source_at(&self, url: &str) -> ReplicationSource {
        ReplicationSource::new(options(url), "s", "p")
    }

    async fn text(&self, sql: &str) -> String {
        let rows = self.admin.simple_query(sql).await.unwrap();
        let row = rows.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        row.and_then(|row| row.get(0)).unwrap_or("").to_owned()
    }

    async fn wait_for(&self, sql: &str, wanted: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.text(sql).await;
            if found == wanted {
                return;
            }
            assert!(Instant::now() < deadline, "{sql}: {found:?}, not {wanted:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

impl Seen {
    /// Reads one batch and takes note of it.
    async fn read(&mut self, session: &mut LogSession) -> Result<(), Error> {
        let batch = tokio::time::timeout(PATIENCE, session.reader.read()).await.expect("nothing comes")?;
        for frame in batch.frames() {
            match frame.unwrap() {
                Frame::XLogData { payload, .. } => self.note(payload),
                Frame::KeepAlive { wal_end, reply_requested, .. } => {
                    self.wal_end = self.wal_end.max(wal_end);
                    self.asks += usize::from(reply_requested);
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, payload: &[u8]) {
        self.kinds.push(char::from(payload[0]));
        self.payload_bytes += payload.len();
        if payload[0] == b'I' {
            self.last_payload = payload.to_vec();
        }
        // Commit: flags, commit LSN, end LSN, time.
        if payload[0] == b'C' {
            self.commits += 1;
            self.end = Lsn(u64::from_be_bytes(payload[10..18].try_into().unwrap()));
            self.wal_end = self.wal_end.max(self.end);
        }
    }

    async fn read_commits(&mut self, session: &mut LogSession, count: usize) {
        while self.commits < count {
            self.read(session).await.unwrap();
        }
    }
}

fn options(url: &str) -> ConnectOptions {
    ConnectOptions::parse(url, &BTreeMap::new()).unwrap()
}

async fn open_error(source: &ReplicationSource, durable_end: Lsn) -> Error {
    let error = source.open(durable_end).await.expect_err("it opens");
    assert!(error.hint().is_some() || error.kind() == ErrorKind::Disconnected, "no hint: {}", error.report());
    error
}

async fn refused(source: &ReplicationSource, kind: ErrorKind, words: &str) {
    let error = open_error(source, Lsn::ZERO).await;
    assert_eq!(error.kind(), kind, "{}", error.report());
    assert!(error.report().contains(words), "{words:?} is not in: {}", error.report());
}

#[tokio::test]
async fn transactions_arrive_and_confirming_moves_the_slot() {
    let server = Server::with_slot(|builder| builder).await;
    let identity = server.source().identify().await.unwrap();
    assert_eq!((identity.database.as_str(), identity.slot.as_str(), identity.timeline), ("postgres", "s", 1));
    let system = server.text("SELECT system_identifier FROM pg_control_system()").await;
    assert_eq!(identity.system_identifier.to_string(), system);

    let mut session = server.source().open(Lsn::ZERO).await.unwrap();
    for id in 0..3 {
        server.run(&format!("INSERT INTO public.t VALUES ({id}, 'row {id}')")).await;
    }
    server.run("INSERT INTO public.t VALUES (3, repeat('x', 20000000))").await;
    let mut seen = Seen::default();
    seen.read_commits(&mut session, 4).await;
    assert_eq!(seen.kinds, "BRICBICBICBIC");
    assert!(seen.payload_bytes > 20_000_000 && seen.last_payload.ends_with(b"xxxx"));

    // Not received yet as far as the confirmer knows, so that nothing may be confirmed.
    session.confirmer.confirm(seen.end, true);
    session.confirmer.received(seen.end);
    let confirmed = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 's'";
    server.wait_for(confirmed, &seen.end.to_string()).await;
    session.confirmer.finish().await.unwrap();
    drop(session);
    server.wait_for("SELECT active FROM pg_replication_slots WHERE slot_name = 's'", "f").await;

    // What is durable is not sent again, and what another reader took is noticed.
    let mut session = server.source().open(seen.end).await.unwrap();
    server.run("INSERT INTO public.t VALUES (4, 'the fifth')").await;
    let mut again = Seen::default();
    again.read_commits(&mut session, 1).await;
    assert_eq!(again.kinds, "BRIC");
    assert!(again.last_payload.ends_with(b"the fifth"));
    drop(session);
    server.wait_for("SELECT active FROM pg_replication_slots WHERE slot_name = 's'", "f").await;
    let behind = open_error(&server.source(), Lsn(seen.end.0 - 1)).await;
    assert_eq!(behind.kind(), ErrorKind::SlotForeign);
    assert!(behind.detail().unwrap().contains(&seen.end.to_string()), "{}", behind.report());
    let ahead = open_error(&server.source(), Lsn(seen.end.0 + (1 << 40))).await;
    assert_eq!(
        (ahead.kind(), ahead.message()),
        (ErrorKind::SlotForeign, "the server's log ends before our journal does")
    );
    drop_slot(&options(&server.cluster.url()), "s").await.unwrap();
}

#[tokio::test]
async fn a_publication_younger_than_the_slot_is_an_error_and_no_silence() {
    let server = Server::with_slot(|builder| builder).await;
    server
        .run("DROP PUBLICATION p; INSERT INTO public.t VALUES (1, 'x'); CREATE PUBLICATION p FOR TABLE public.t")
        .await;
    let mut session = server.source().open(Lsn::ZERO).await.unwrap();
    let error = loop {
        if let Err(error) = Seen::default().read(&mut session).await {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::PublicationMissing, "{}", error.report());
    assert!(error.hint().unwrap().contains("SELECT pg_drop_replication_slot('s');"), "{}", error.report());
}

#[tokio::test]
async fn an_idle_slot_follows_the_log_by_keepalives() {
    let server = Server::with_slot(|builder| builder.setting("wal_sender_timeout", "2s")).await;
    let mut session = server.source().open(Lsn::ZERO).await.unwrap();
    server.run("CREATE TABLE public.unpublished AS SELECT n FROM generate_series(1, 1000) AS n").await;
    let wanted: Lsn = server.text("SELECT pg_current_wal_flush_lsn()").await.parse().unwrap();
    let mut seen = Seen::default();
    while seen.wal_end < wanted {
        seen.read(&mut session).await.unwrap();
        session.confirmer.received(seen.wal_end);
        session.confirmer.confirm(seen.wal_end, false);
    }
    // Version 14 sends a begin and a commit for what is not published; nothing else may come.
    assert!(seen.kinds.chars().all(|kind| "BC".contains(kind)), "{}", seen.kinds);
    let reached = format!("SELECT confirmed_flush_lsn >= '{wanted}' FROM pg_replication_slots WHERE slot_name = 's'");
    server.wait_for(&reached, "t").await;
}

#[tokio::test]
async fn a_blocked_reader_does_not_lose_the_connection() {
    let server = Server::with_slot(|builder| builder.setting("wal_sender_timeout", "1s")).await;
    let mut session = server.source().open(Lsn::ZERO).await.unwrap();
    let holder = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 's'";
    let pid = server.text(holder).await;
    // More than the socket's buffers take, so that the server is held up in the middle of it.
    server.run("INSERT INTO public.t SELECT n, repeat(md5(n::text), 300) FROM generate_series(1, 5000) AS n").await;
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(5) {
        assert_eq!(server.text(holder).await, pid, "after {:?}", since.elapsed());
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let mut seen = Seen::default();
    seen.read_commits(&mut session, 1).await;
    assert_eq!(seen.kinds.matches('I').count(), 5000);
    assert_eq!(server.text(holder).await, pid);
}

#[tokio::test]
async fn a_fast_shutdown_is_not_held_up() {
    let server = Server::with_slot(|builder| builder).await;
    let mut session = server.source().open(Lsn::ZERO).await.unwrap();
    server.run("INSERT INTO public.t VALUES (1, 'x')").await;
    let mut seen = Seen::default();
    seen.read_commits(&mut session, 1).await;
    let stopping = stop_fast(server);
    let error = loop {
        session.confirmer.received(seen.wal_end);
        session.confirmer.confirm(seen.wal_end, true);
        if let Err(error) = seen.read(&mut session).await {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{}", error.report());
    session.confirmer.finish().await.unwrap();
    let (_cluster, took) = stopping.join().unwrap();
    assert!(took < Duration::from_secs(3), "it took {took:?}");
}

#[tokio::test]
async fn a_server_that_waits_in_vain_is_answered_ten_times_a_second_and_then_left() {
    let server = Server::with_slot(|builder| builder).await;
    let mut session = server.source().open(Lsn::ZERO).await.unwrap();
    server.run("INSERT INTO public.t VALUES (1, 'x')").await;
    let mut seen = Seen::default();
    seen.read_commits(&mut session, 1).await;
    let stopping = stop_fast(server);
    // The sink is down: nothing is confirmed, and the server asks on and on. Fifty of that is no storm yet.
    while seen.asks < STORM_ASKS {
        seen.read(&mut session).await.unwrap();
    }
    let storming_since = Instant::now();
    let error = loop {
        if let Err(error) = seen.read(&mut session).await {
            break error;
        }
    };
    let borne = storming_since.elapsed();
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{}", error.report());
    // One ask for each answer; a busy machine makes them fewer, and the last one may come with the goodbye.
    let asks = seen.asks - STORM_ASKS;
    let asks_max = usize::try_from(borne.as_millis() / 100).unwrap() + 2;
    assert!((5..=asks_max).contains(&asks), "{asks} keep-alives in {borne:?}");
    assert!((Duration::from_millis(1_500)..Duration::from_secs(4)).contains(&borne), "it was borne for {borne:?}");
    // What was not confirmed comes again.
    let server = start_again(stopping).await;
    let mut session = server.source().open(Lsn::ZERO).await.unwrap();
    let mut again = Seen::default();
    again.read_commits(&mut session, 1).await;
    assert_eq!((again.end, again.last_payload), (seen.end, seen.last_payload));
}

#[tokio::test]
async fn a_server_that_waits_may_go_as_soon_as_it_hears_what_it_waits_for() {
    let server = Server::with_slot(|builder| builder).await;
    let mut session = server.source().open(Lsn::ZERO).await.unwrap();
    server.run("INSERT INTO public.t VALUES (1, 'x')").await;
    let mut seen = Seen::default();
    seen.read_commits(&mut session, 1).await;
    let stopping = stop_fast(server);
    while seen.asks < STORM_ASKS + 3 {
        seen.read(&mut session).await.unwrap();
    }
    let asks = seen.asks;
    let error = loop {
        session.confirmer.received(seen.wal_end);
        session.confirmer.confirm(seen.wal_end, true);
        if let Err(error) = seen.read(&mut session).await {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{}", error.report());
    // Not heard, it would have asked until it was left, at least ten times more.
    assert!(seen.asks <= asks + 3, "{} keep-alives after the confirmation", seen.asks - asks);
    session.confirmer.finish().await.unwrap();
    let (_cluster, took) = stopping.join().unwrap();
    assert!(took < Duration::from_secs(3), "it took {took:?}");
}

#[tokio::test]
async fn a_slot_that_waits_for_a_transaction_says_which_and_leaves_nothing_behind() {
    let server = Server::start(|builder| builder.setting("max_prepared_transactions", "1")).await;
    server.run("CREATE TABLE public.t (id int); BEGIN; INSERT INTO public.t VALUES (1)").await;
    let xid = server.text("SELECT pg_current_xact_id()::xid").await;
    let error = create_slot(&options(&server.cluster.url()), "s", Duration::from_secs(3)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{}", error.report());
    assert!(error.detail().unwrap().contains(&format!("transaction {xid} (")), "{}", error.report());
    let pid = server.text("SELECT pg_backend_pid()").await;
    assert!(error.hint().unwrap().ends_with(&format!("SELECT pg_terminate_backend({pid});")), "{}", error.report());
    server.run("PREPARE TRANSACTION 'it''s'").await;
    let error = create_slot(&options(&server.cluster.url()), "s", Duration::from_secs(3)).await.unwrap_err();
    assert!(error.hint().unwrap().ends_with("ROLLBACK PREPARED 'it''s';"), "{}", error.report());
    server.run("ROLLBACK PREPARED 'it''s'").await;
    server.wait_for("SELECT count(*) FROM pg_replication_slots", "0").await;
    server.wait_for("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'", "0").await;
    server.wait_for("SELECT count(*) FROM pg_replication_slots", "0").await;
}

#[tokio::test]
async fn sessions_are_pinned_whatever_the_database_says() {
    let server = Server::with_slot(|builder| builder).await;
    server
        .run("ALTER DATABASE postgres SET timezone = 'Asia/Kathmandu'; ALTER DATABASE postgres SET datestyle = 'SQL, DMY';
              ALTER DATABASE postgres SET intervalstyle = 'iso_8601'; ALTER DATABASE postgres SET bytea_output = 'escape';
              ALTER DATABASE postgres SET extra_float_digits = 0;
              CREATE TABLE public.pinned (f float8 PRIMARY KEY, t timestamptz, b bytea, i interval); ALTER PUBLICATION p ADD TABLE public.pinned;
              INSERT INTO public.pinned VALUES (0.1::float8 + 0.2::float8, '2024-02-03 04:05+00', '\\x00ff41', '1 day 2:03')")
        .await;
    let mut session = server.source().open(Lsn::ZERO).await.unwrap();
    let mut seen = Seen::default();
    while seen.last_payload.is_empty() {
        seen.read(&mut session).await.unwrap();
    }
    let row = String::from_utf8_lossy(&seen.last_payload).into_owned();
    for value in ["0.30000000000000004", "2024-02-03 04:05:00+00", "\\x00ff41", "1 day 02:03:00"] {
        assert!(row.contains(value), "{value} is not in {row:?}");
    }
}

/// Stops the server in the background, and gives it back with how long that took.
fn stop_fast(server: Server) -> JoinHandle<(Cluster, Duration)> {
    let Server { mut cluster, admin } = server;
    drop(admin);
    std::thread::spawn(move || {
        let took = cluster.stop_fast().unwrap();
        (cluster, took)
    })
}

/// Starts a server again once it has stopped.
async fn start_again(stopping: JoinHandle<(Cluster, Duration)>) -> Server {
    let (mut cluster, _) = stopping.join().unwrap();
    cluster.start().unwrap();
    let admin = connect_client(&options(&cluster.url())).await.unwrap().0;
    Server { cluster, admin }
}

/// The port's parts can be shared and sent between tasks.
#[test]
fn a_session_may_move_between_threads() {
    fn assert_send<T: Send + ?Sized>() {}
    assert_send::<Box<dyn LogReader>>();
    assert_send::<Arc<dyn Confirmer>>();
    assert_send::<ReplicationSource>();
}
