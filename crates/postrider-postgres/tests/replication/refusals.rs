//! What is refused when the stream is opened.

use std::fs;

use postrider_core::error::ErrorKind;
use postrider_core::ports::LogSource;
use postrider_core::position::Lsn;
use postrider_postgres::{ReplicationSource, connect_client, create_slot, drop_slot};
use xtask::postgres::Builder;

use crate::{PATIENCE, Server, options, refused};

#[tokio::test]
async fn what_is_not_as_it_must_be_is_refused_in_one_sentence() {
    let server = Server::with_slot(|builder| builder).await;
    let url = server.cluster.url();
    let source = |slot: &str, publication: &str| ReplicationSource::new(options(&url), slot, publication);
    refused(&source("nope", "p"), ErrorKind::SlotMissing, "\"nope\"").await;
    refused(&source("s", "it's \"not\""), ErrorKind::PublicationMissing, "it's \"not\"").await;
    refused(&source("s", "nope"), ErrorKind::PublicationMissing, "SELECT pg_drop_replication_slot('s');").await;

    let _reading = server.source().open(Lsn::ZERO).await.unwrap();
    let holder = server.text("SELECT active_pid FROM pg_replication_slots WHERE slot_name = 's'").await;
    refused(&server.source(), ErrorKind::SlotInUse, &format!("process {holder}, application \"postrider\"")).await;
    let ends_it = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 's';";
    refused(&server.source(), ErrorKind::SlotInUse, ends_it).await;
    let in_use = drop_slot(&options(&url), "s").await.unwrap_err();
    assert!(in_use.hint().unwrap().ends_with(ends_it), "{}", in_use.report());

    server.run("CREATE DATABASE other").await;
    refused(&server.source_at(&server.cluster.url_of("other")), ErrorKind::SlotForeign, "\"other\"").await;
    refused(&server.source_at(&server.cluster.url_of("nowhere")), ErrorKind::Configuration, "3D000").await;
    server.run("CREATE ROLE reader LOGIN PASSWORD 'pw'").await;
    refused(&server.source_at(&server.cluster.url_as("reader", "pw", "postgres")), ErrorKind::Privilege, "REPLICATION")
        .await;
    let wrong = server.cluster.url_as("reader", "hush", "postgres");
    refused(&server.source_at(&wrong), ErrorKind::Authentication, "28P01").await;
    let error = connect_client(&options(&wrong)).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Authentication, "{}", error.report());
    let nobody = server.source_at("postgres://me@127.0.0.1:1/x");
    refused(&nobody, ErrorKind::Disconnected, "127.0.0.1:1").await;

    server.run("SELECT pg_create_physical_replication_slot('phys')").await;
    refused(&source("phys", "p"), ErrorKind::SlotForeign, "physical").await;
    let taken = create_slot(&options(&url), "s", PATIENCE).await.unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::SlotForeign, "{}", taken.report());
    assert!(taken.hint().unwrap().ends_with("SELECT pg_drop_replication_slot('s');"), "{}", taken.report());
}

#[tokio::test]
async fn a_server_without_a_logical_log_is_refused_with_the_cure() {
    let server = Server::start(|builder| builder.setting("wal_level", "replica")).await;
    refused(&server.source(), ErrorKind::WalLevel, "ALTER SYSTEM SET wal_level").await;
    let error = create_slot(&options(&server.cluster.url()), "s", PATIENCE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WalLevel, "{}", error.report());
}

#[tokio::test]
async fn a_lost_slot_is_told_from_a_missing_one() {
    let server =
        Server::with_slot(|builder| builder.setting("max_slot_wal_keep_size", "1MB").setting("max_wal_size", "64MB"))
            .await;
    for id in 0..4 {
        server.run(&format!("INSERT INTO public.t VALUES ({id}, 'x')")).await;
        server.run("SELECT pg_switch_wal()").await;
    }
    server.run("CHECKPOINT").await;
    server.wait_for("SELECT wal_status FROM pg_replication_slots WHERE slot_name = 's'", "lost").await;
    refused(&server.source(), ErrorKind::SlotLost, "max_slot_wal_keep_size").await;
    refused(&server.source(), ErrorKind::SlotLost, "SELECT pg_drop_replication_slot('s');").await;
}

#[tokio::test]
async fn a_standby_is_refused() {
    let mut server = Server::with_slot(|builder| builder).await;
    server.cluster.stop_fast().unwrap();
    fs::write(server.cluster.data_dir().join("standby.signal"), "").unwrap();
    server.cluster.start().unwrap();
    refused(&server.source(), ErrorKind::Configuration, "the server is a standby").await;
    refused(&server.source(), ErrorKind::Configuration, "Give the primary's address.").await;
    let (port, password) = (server.cluster.port(), server.cluster.password());
    let of_several = server.source_at(&format!(
        "host=127.0.0.1,127.0.0.1 port={port},{port} user=postgres dbname=postgres password={password}"
    ));
    refused(&of_several, ErrorKind::Configuration, "Add target_session_attrs=primary to the address").await;
}

#[tokio::test]
async fn another_server_behind_the_same_address_is_refused() {
    let mut server = Server::with_slot(Builder::own_identity).await;
    let other = Server::with_slot(Builder::own_identity).await;
    let password = server.cluster.password().to_owned();
    other.run(&format!("ALTER ROLE postgres PASSWORD '{password}'")).await;
    let source = server.source_at(&format!(
        "host=127.0.0.1,127.0.0.1 port={},{} user=postgres dbname=postgres password={password}",
        server.cluster.port(),
        other.cluster.port(),
    ));
    let identity = source.identify().await.unwrap();
    server.cluster.stop_fast().unwrap();
    refused(&source, ErrorKind::JournalForeign, &format!("its system identifier is {}", identity.system_identifier))
        .await;
    // Whoever asks this server first may read from it.
    drop(other.source_at(&other.cluster.url_as("postgres", &password, "postgres")).open(Lsn::ZERO).await.unwrap());
}
