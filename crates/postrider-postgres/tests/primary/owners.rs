//! Which executors live, as their advisory locks on a real server say.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::database::{Database, canonical_mapping, eventually};
use crate::work_table::{ONE, TWO, ask, claim_one, insert_rows, key, open, with_rows};
use postrider_core::error::ErrorKind;
use postrider_core::ports::WorkTable;
use postrider_postgres::{PgWorkTable, WorkTableSettings};
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
    let settings = WorkTableSettings { owner: ONE, owner_grace: grace };
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
    let patient = WorkTableSettings { owner: ONE, owner_grace: Duration::from_secs(3_600) };
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
