//! The private clusters, on the PostgreSQL of this machine.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::net::TcpListener;
use std::time::Duration;

use tokio_postgres::{Client, NoTls};
use xtask::postgres::{Cluster, Shutdown, find};

fn cluster() -> Cluster {
    Cluster::builder(&find(None).unwrap()).setting("wal_sender_timeout", "10s").start().unwrap()
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn value(client: &Client, sql: &str) -> String {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_cluster_decodes_and_listens_on_loopback_only() {
    let cluster = cluster();
    let client = connect(&cluster.url()).await;
    assert_eq!(value(&client, "SHOW wal_level").await, "logical");
    assert_eq!(value(&client, "SHOW listen_addresses").await, "127.0.0.1");
    assert_eq!(value(&client, "SHOW unix_socket_directories").await, "");
    assert_eq!(value(&client, "SHOW wal_sender_timeout").await, "10s");
    assert_eq!(value(&client, "SHOW server_version_num").await[..2], cluster.installation().major().to_string());
    client.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')", &[]).await.unwrap();
}

#[tokio::test]
async fn a_wrong_password_is_refused() {
    let cluster = cluster();
    let url = cluster.url_as("postgres", "wrong", "postgres");
    let error = tokio_postgres::connect(&url, NoTls).await.err().expect("a refusal");
    assert_eq!(error.code().map(|code| code.code()), Some("28P01"));
}

#[tokio::test]
async fn what_is_committed_outlives_a_kill_and_every_kind_of_stop() {
    let mut cluster = cluster();
    let port = cluster.port();
    connect(&cluster.url()).await.batch_execute("CREATE TABLE t AS SELECT 42::text AS v").await.unwrap();
    cluster.kill9().unwrap();
    assert!(tokio_postgres::connect(&cluster.url(), NoTls).await.is_err());
    cluster.start().unwrap();
    for mode in [Shutdown::Smart, Shutdown::Fast, Shutdown::Immediate] {
        cluster.restart(mode).unwrap();
        let client = connect(&cluster.url()).await;
        assert_eq!(value(&client, "SELECT v FROM t").await, "42");
    }
    assert_eq!(cluster.port(), port);
    assert!(cluster.stop_fast().unwrap() < Duration::from_secs(30));
    assert!(cluster.read_log().unwrap().contains("database system was interrupted"));
}

#[test]
fn dropping_stops_the_server_and_removes_its_files() {
    let cluster = cluster();
    let (home, port) = (cluster.home_dir().to_path_buf(), cluster.port());
    assert!(TcpListener::bind(("127.0.0.1", port)).is_err());
    drop(cluster);
    assert!(!home.exists());
    TcpListener::bind(("127.0.0.1", port)).unwrap();
}

#[test]
fn a_start_that_fails_shows_what_the_server_said() {
    let builder = Cluster::builder(&find(None).unwrap()).setting("no_such_setting", "1");
    let error = builder.start().unwrap_err().to_string();
    assert!(error.contains("no_such_setting"), "{error}");
}

#[tokio::test]
async fn copies_share_an_identifier_and_own_identities_do_not() {
    let installation = find(None).unwrap();
    let builder = Cluster::builder(&installation);
    let clusters = [builder.clone(), builder.clone(), builder.own_identity()].map(|b| b.start().unwrap());
    let mut identifiers = Vec::new();
    for cluster in &clusters {
        let client = connect(&cluster.url()).await;
        identifiers.push(value(&client, "SELECT system_identifier::text FROM pg_control_system()").await);
    }
    assert_eq!(identifiers[0], identifiers[1]);
    assert_ne!(identifiers[0], identifiers[2]);
}

#[tokio::test]
async fn tls_is_on_where_it_was_asked_for() {
    let cluster = Cluster::builder(&find(None).unwrap()).tls(true).start().unwrap();
    let client = connect(&cluster.url()).await;
    assert_eq!(value(&client, "SHOW ssl").await, "on");
    assert!(std::fs::read_to_string(cluster.certificate_path()).unwrap().contains("BEGIN CERTIFICATE"));
}
