//! Cases that are about the session and not about what it brings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use postrider_core::error::ErrorKind;
use postrider_core::frame::Frame;
use postrider_core::ports::LogSource;
use postrider_core::position::Lsn;
use postrider_postgres::{ConnectOptions, ReplicationSource, connect_client, create_slot};
use tokio::time::timeout;
use tokio_postgres::Client;
use xtask::postgres::{Cluster, shared};

use super::{LOOK_EVERY, PATIENCE};

/// A database with a table `t` and a slot of the database's name.
struct Scene {
    client: Client,
    options: ConnectOptions,
    name: String,
    _cluster: Arc<Cluster>,
}

impl Scene {
    async fn new(version: u32, publication: &str) -> Scene {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let cluster = shared(version).unwrap();
        let name = format!("scene_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let options = |url: &str| ConnectOptions::parse(url, &BTreeMap::new()).unwrap();
        let maintenance = connect_client(&options(&cluster.url())).await.unwrap().0;
        maintenance.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0")).await.unwrap();
        let options = options(&cluster.url_of(&name));
        let client = connect_client(&options).await.unwrap().0;
        client.batch_execute(&format!("CREATE TABLE public.t (id int PRIMARY KEY); {publication}")).await.unwrap();
        create_slot(&options, &name, PATIENCE).await.unwrap();
        Scene { client, options, name, _cluster: cluster }
    }

    async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    fn source(&self) -> ReplicationSource {
        ReplicationSource::new(self.options.clone(), self.name.clone(), "p")
    }
}

/// The publication that the server looks for is the one at the change's place in the log: one made later does not help. From 18 on
/// the server only warns, and would leave the change out.
pub(super) async fn d_08_a_publication_younger_than_a_change_is_an_error_for_ever(version: u32) {
    let scene = Scene::new(version, "").await;
    scene.run("INSERT INTO public.t VALUES (1)").await;
    scene.run("CREATE PUBLICATION p FOR TABLE public.t").await;
    for _ in 0..2 {
        let mut session = scene.source().open(Lsn::ZERO).await.unwrap();
        let error = loop {
            if let Err(error) = timeout(PATIENCE, session.reader.read()).await.expect("nothing comes") {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::PublicationMissing, "{}", error.report());
        drop(session);
        wait_until_free(&scene).await;
    }
}

/// The server itself would take it, and be silent until something must be decoded.
pub(super) async fn d_09_a_missing_publication_is_found_before_the_stream_starts(version: u32) {
    let scene = Scene::new(version, "").await;
    let error = scene.source().open(Lsn::ZERO).await.expect_err("it opens");
    assert_eq!(error.kind(), ErrorKind::PublicationMissing, "{}", error.report());
}

/// With nothing in flight the slot follows the log over what is not for us; with one event that is not settled it does not.
pub(super) async fn p_14_the_slot_moves_over_what_is_not_for_us_and_over_nothing_else(version: u32) {
    let scene = Scene::new(version, "CREATE PUBLICATION p FOR TABLE public.t").await;
    let mut session = scene.source().open(Lsn::ZERO).await.unwrap();
    scene.run("CREATE TABLE public.other AS SELECT n FROM generate_series(1, 1000) AS n").await;
    let wanted = lsn(&scene, "SELECT pg_current_wal_flush_lsn()::text").await;
    let mut reached = Lsn::ZERO;
    while reached < wanted {
        for frame in timeout(PATIENCE, session.reader.read()).await.expect("nothing comes").unwrap().frames() {
            if let Frame::KeepAlive { wal_end, .. } = frame.unwrap() {
                reached = reached.max(wal_end);
            }
        }
        session.confirmer.received(reached);
        session.confirmer.confirm(reached, true);
    }
    let confirmed =
        format!("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{}'", scene.name);
    let deadline = Instant::now() + PATIENCE;
    while lsn(&scene, &confirmed).await < wanted {
        assert!(Instant::now() < deadline, "the slot stands still");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let before = lsn(&scene, &confirmed).await;
    scene
        .run("INSERT INTO public.t VALUES (1); INSERT INTO public.other SELECT n FROM generate_series(1, 1000) AS n")
        .await;
    let mut arrived = false;
    while !arrived {
        for frame in timeout(PATIENCE, session.reader.read()).await.expect("nothing comes").unwrap().frames() {
            arrived |= matches!(frame.unwrap(), Frame::XLogData { payload, .. } if payload[0] == b'I');
        }
    }
    session.confirmer.finish().await.unwrap();
    drop(session);
    wait_until_free(&scene).await;
    assert_eq!(lsn(&scene, &confirmed).await, before, "it was not settled");
}

/// While a transaction is read more slowly than the server's time-out allows for any silence, the server hears from us.
pub(super) async fn s_05_a_huge_transaction_that_is_read_slowly_costs_no_connection(version: u32) {
    const MESSAGES: usize = 300;
    const TIME_OUT: Duration = Duration::from_secs(2);
    let scene = Scene::new(version, "CREATE PUBLICATION p FOR TABLE public.t").await;
    scene.run(&format!("ALTER DATABASE {} SET wal_sender_timeout = '{}ms'", scene.name, TIME_OUT.as_millis())).await;
    let mut session = scene.source().open(Lsn::ZERO).await.unwrap();
    // More than the socket's buffers take, so that the server is in the middle of it all the time.
    let huge =
        format!("SELECT pg_logical_emit_message(true, 'p', repeat('x', 100000)) FROM generate_series(1, {MESSAGES})");
    scene.run(&huge).await;
    let (mut read, began) = (0, Instant::now());
    while read < MESSAGES {
        for frame in timeout(PATIENCE, session.reader.read()).await.expect("nothing comes").unwrap().frames() {
            read += usize::from(matches!(frame.unwrap(), Frame::XLogData { payload, .. } if payload[0] == b'M'));
        }
        if began.elapsed() < 3 * TIME_OUT {
            // The pace of a reader that is busy with what it has.
            tokio::time::sleep(TIME_OUT / 10).await;
        }
    }
    assert!(began.elapsed() > 2 * TIME_OUT, "it was read in {:?}", began.elapsed());
}

async fn lsn(scene: &Scene, sql: &str) -> Lsn {
    scene.client.query_one(sql, &[]).await.unwrap().get::<_, String>(0).parse().unwrap()
}

async fn wait_until_free(scene: &Scene) {
    let active = format!("SELECT FROM pg_replication_slots WHERE slot_name = '{}' AND active", scene.name);
    let deadline = Instant::now() + PATIENCE;
    while !scene.client.query(&active, &[]).await.unwrap().is_empty() {
        assert!(Instant::now() < deadline, "somebody still reads from the slot");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
