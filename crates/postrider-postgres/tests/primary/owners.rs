//! Which executors live, as their advisory locks on a real server say.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::database::{Database, canonical_mapping, eventually, parse};
use crate::work_table::{ONE, TWO, ask, claim_one, insert_rows, key, open, with_rows};
use postrider_core::error::ErrorKind;
use postrider_core::ports::WorkTable;
use postrider_postgres::{PgWorkTable, WorkTableSettings};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use xtask::postgres::Shutdown;

#[tokio::test]
async fn the_locks_say_who_lives() {
    let database = with_rows(0).await;
    let (one, two) = (open(&database, ONE).await, open(&database, TWO).await);
    database.run("SELECT pg_advisory_lock(7, 8)").await;
    assert_eq!(one.living_owners().await.unwrap(), Some(BTreeSet::from([ONE, TWO])));
    drop(two);
    eventually("the other's lock is gone", async || one.living_owners().await.unwrap() == Some(BTreeSet::from([ONE])))
        .await;
}

#[tokio::test]
async fn after_a_restart_of_the_server_the_locks_say_nothing_for_a_while() {
    let mut database = Database::create_alone().await;
    database.install_work_table().await;
    insert_rows(&database, 0..1).await;
    let grace = Duration::from_secs(1);
    let settings = WorkTableSettings { owner_grace: grace, history: true, ..WorkTableSettings::new(ONE) };
    let table = PgWorkTable::open(database.options(), &canonical_mapping(), &settings).await.unwrap();
    eventually("the server is old enough", async || table.living_owners().await.unwrap().is_some()).await;
    database.restart(Shutdown::Immediate).await;
    let mut unsaid = 0;
    eventually("the locks say who lives", async || match table.living_owners().await {
        Ok(Some(living)) => {
            assert_eq!(living, BTreeSet::from([ONE]));
            true
        }
        Ok(None) => {
            unsaid += 1;
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Disconnected, "{}", error.report());
            false
        }
    })
    .await;
    assert!(unsaid > 0);
    assert!(claim_one(&table, ONE, ask(key(0), 0)).await.is_some());
}

#[tokio::test]
async fn a_server_that_was_started_a_moment_ago_does_not_say_who_lives() {
    let database = with_rows(0).await;
    let patient =
        WorkTableSettings { owner_grace: Duration::from_secs(3_600), history: true, ..WorkTableSettings::new(ONE) };
    let table = PgWorkTable::open(database.options(), &canonical_mapping(), &patient).await.unwrap();
    assert_eq!(table.living_owners().await.unwrap(), None);
    let hasty = open(&database, TWO).await;
    assert_eq!(hasty.living_owners().await.unwrap(), Some(BTreeSet::from([ONE, TWO])));
}

#[tokio::test]
async fn the_lock_outlives_a_server_that_ends_idle_sessions() {
    let database = with_rows(0).await;
    let name = database.name();
    database.run(&format!("ALTER DATABASE {name} SET idle_session_timeout = '100ms'")).await;
    let _table = open(&database, ONE).await;
    let held = "SELECT coalesce(string_agg(pid::text, ' '), '') FROM pg_locks WHERE locktype = 'advisory' \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let holder = database.text(held).await;
    // The lock's session has been idle for longer than this one, and longer than the table's own that read its columns.
    let bystander = database.another_client().await;
    eventually("the server ends an idle session", async || bystander.is_closed()).await;
    assert_eq!(database.text(held).await, holder);
    assert!(!holder.is_empty());
}

#[tokio::test]
async fn a_server_that_says_nothing_does_not_keep_us_from_taking_the_lock_again() {
    let database = with_rows(0).await;
    let relay = Relay::start(database.cluster.port()).await;
    let url = database.cluster.url_of(database.name());
    let options = parse(&url.replace(&format!(":{}/", database.cluster.port()), &format!(":{}/", relay.port)));
    let settings = WorkTableSettings::new(ONE);
    let _table = PgWorkTable::open(options, &canonical_mapping(), &settings).await.unwrap();
    let held = "SELECT coalesce(string_agg(pid::text, ' '), '') FROM pg_locks WHERE locktype = 'advisory' \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let holder = database.text(held).await;
    relay.silent.store(true, Ordering::SeqCst);
    database.run(&format!("SELECT pg_terminate_backend({holder})")).await;
    eventually("another try", async || relay.silenced.load(Ordering::SeqCst) > 0).await;
    let silenced_at = Instant::now();
    relay.silent.store(false, Ordering::SeqCst);
    eventually("the lock is held again", async || ![holder.as_str(), ""].contains(&database.text(held).await.as_str()))
        .await;
    let took = silenced_at.elapsed();
    assert!(took < settings.owner_grace, "it took {took:?}");
}

/// Stands before a server and lets new connections through, or accepts them and never answers.
struct Relay {
    port: u16,
    silent: Arc<AtomicBool>,
    silenced: Arc<AtomicUsize>,
}

impl Relay {
    async fn start(server: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let relay = Relay { port, silent: Arc::default(), silenced: Arc::default() };
        let (silent, silenced) = (Arc::clone(&relay.silent), Arc::clone(&relay.silenced));
        tokio::spawn(async move {
            let mut kept = Vec::new();
            while let Ok((mut near, _)) = listener.accept().await {
                if silent.load(Ordering::SeqCst) {
                    kept.push(near);
                    silenced.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                    // Either end may break off.
                    let _ = copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        relay
    }
}
