//! TLS and the ways to prove who one is.

use std::fs;
use std::process::Command;

use postrider_core::error::ErrorKind;
use postrider_core::ports::LogSource;
use postrider_core::position::Lsn;
use postrider_postgres::{ReplicationSource, connect_client};
use xtask::postgres::Shutdown;

use crate::{Seen, Server, options, refused};

#[tokio::test]
async fn tls_is_taken_where_it_proves_what_it_is_asked_to_prove() {
    let server = Server::with_slot(|builder| builder.tls(true)).await;
    let root = server.cluster.certificate_path().display().to_string();
    for accepted in [
        "host=127.0.0.1 sslmode=require channel_binding=require".to_owned(),
        "host=127.0.0.1 sslmode=prefer".to_owned(),
        format!("host=127.0.0.1 sslmode=verify-full sslrootcert={root}"),
        format!("host=localhost hostaddr=127.0.0.1 sslmode=verify-full sslrootcert={root}"),
        format!("host=elsewhere.example hostaddr=127.0.0.1 sslmode=verify-ca sslrootcert={root}"),
    ] {
        let mut session = at(&server, &accepted)
            .open(Lsn::ZERO)
            .await
            .unwrap_or_else(|error| panic!("{accepted}: {}", error.report()));
        let encrypted =
            "SELECT ssl FROM pg_stat_ssl JOIN pg_replication_slots ON active_pid = pid WHERE slot_name = 's'";
        assert_eq!(server.text(encrypted).await, "t", "{accepted}");
        server.run("DELETE FROM public.t; INSERT INTO public.t SELECT n, repeat(md5(n::text), 300) FROM generate_series(1, 300) AS n").await;
        let mut seen = Seen::default();
        while !seen.kinds.contains(&"I".repeat(300)) {
            seen.read(&mut session).await.unwrap();
        }
        session.confirmer.finish().await.unwrap();
        drop(session);
        server.wait_for("SELECT active FROM pg_replication_slots WHERE slot_name = 's'", "f").await;
    }
}

#[tokio::test]
async fn tls_that_does_not_prove_what_it_is_asked_to_prove_is_refused() {
    let server = Server::with_slot(|builder| builder.tls(true)).await;
    let root = server.cluster.certificate_path().display().to_string();
    let stranger = certificate_of_a_stranger(&server);
    for (refusal, kind, words) in [
        (format!("host=127.0.0.1 sslmode=verify-full sslrootcert={stranger}"), ErrorKind::Configuration, "sslrootcert"),
        (format!("host=127.0.0.1 sslmode=require sslrootcert={stranger}"), ErrorKind::Configuration, "sslrootcert"),
        ("host=127.0.0.1 sslmode=verify-full".to_owned(), ErrorKind::Configuration, "sslrootcert"),
        (
            format!("host=elsewhere.example hostaddr=127.0.0.1 sslmode=verify-full sslrootcert={root}"),
            ErrorKind::Configuration,
            "host name",
        ),
        (
            "host=127.0.0.1 sslmode=disable channel_binding=require".to_owned(),
            ErrorKind::Authentication,
            "channel_binding",
        ),
        (
            "host=127.0.0.1 sslmode=verify-ca sslrootcert=/nowhere.crt".to_owned(),
            ErrorKind::Configuration,
            "/nowhere.crt",
        ),
    ] {
        refused(&at(&server, &refusal), kind, words).await;
    }
}

#[tokio::test]
async fn every_kind_of_password_and_socket_is_taken() {
    let mut server = Server::with_slot(|builder| builder).await;
    server
        .run("CREATE ROLE trusted LOGIN REPLICATION; CREATE ROLE plain LOGIN REPLICATION PASSWORD 'p@ss:w/ord%#?é';
              SET password_encryption = 'md5'; CREATE ROLE hashed LOGIN REPLICATION PASSWORD 'old'; RESET password_encryption")
        .await;
    let hba = server.cluster.data_dir().join("pg_hba.conf");
    let rules = fs::read_to_string(&hba).unwrap();
    let first = "host all trusted 127.0.0.1/32 trust\nhost all plain 127.0.0.1/32 password\nhost all hashed 127.0.0.1/32 md5\nlocal all all trust\n";
    fs::write(&hba, format!("{first}{rules}")).unwrap();
    let directory = server.cluster.data_dir().display().to_string();
    server.cluster.set("unix_socket_directories", &directory).unwrap();
    server.cluster.restart(Shutdown::Fast).unwrap();
    let port = server.cluster.port();
    for url in [
        format!("postgres://trusted@127.0.0.1:{port}/postgres"),
        format!("postgres://plain:p%40ss%3Aw%2Ford%25%23%3F%C3%A9@127.0.0.1:{port}/postgres"),
        format!("host=127.0.0.1 port={port} user=hashed password=old dbname=postgres"),
        format!("host={directory} port={port} user=trusted dbname=postgres"),
    ] {
        let identity =
            server.source_at(&url).identify().await.unwrap_or_else(|error| panic!("{url}: {}", error.report()));
        assert_eq!(identity.database, "postgres", "{url}");
    }
    let unproved = format!("host=127.0.0.1 port={port} user=trusted dbname=postgres channel_binding=require");
    refused(&server.source_at(&unproved), ErrorKind::Authentication, "channel_binding").await;
    let local = format!("host={directory} port={port} user=postgres dbname=postgres");
    let mut session = server.source_at(&local).open(Lsn::ZERO).await.unwrap();
    server.admin = connect_client(&options(&local)).await.unwrap().0;
    server.run("INSERT INTO public.t SELECT n, 'x' FROM generate_series(1, 10000) AS n").await;
    let mut seen = Seen::default();
    // Version 14 sends empty transactions for what is not published.
    while seen.kinds.matches('I').count() < 10_000 {
        seen.read(&mut session).await.unwrap();
    }
}

fn at(server: &Server, more: &str) -> ReplicationSource {
    let (port, password) = (server.cluster.port(), server.cluster.password());
    server.source_at(&format!("port={port} user=postgres dbname=postgres password={password} {more}"))
}

/// The path of a certificate for our host that the server has no key of.
fn certificate_of_a_stranger(server: &Server) -> String {
    let path = server.cluster.home_dir().join("stranger.crt").display().to_string();
    let made = Command::new("openssl")
        .args("req -new -x509 -nodes -newkey rsa:2048 -subj /CN=localhost -keyout /dev/null -out".split(' '))
        .arg(&path)
        .output()
        .unwrap();
    assert!(made.status.success());
    path
}
