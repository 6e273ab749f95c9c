//! Every way to connect, against real servers: a replication session and an ordinary one, which must agree.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use postrider_core::error::{Error, ErrorKind};
use postrider_core::ports::LogSource as _;
use postrider_postgres::{ConnectOptions, ReplicationSource, connect_client};
use tokio_postgres::Client;
use xtask::postgres::{Builder, Cluster, find};

#[macro_use]
#[path = "../versions/macros.rs"]
mod macros;

mod certificates;
mod hosts;
mod passwords;
mod pooler;
mod refusals;
mod tls;

on_every_version!(
    passwords::s_09_a_password_of_awkward_characters_goes_through_in_every_form_and_on_every_socket,
    passwords::s_09_require_auth_decides_what_the_server_may_ask_for,
    passwords::s_09_a_password_file_is_read_by_libpqs_rules,
    passwords::s_09_a_token_that_has_expired_is_fetched_anew_at_the_next_connect,
    certificates::s_09_a_client_certificate_proves_the_role_if_its_key_is_private,
    refusals::s_11_a_role_that_may_not_is_told_which_right_it_lacks,
    tls::s_09_each_sslmode_takes_a_server_that_proves_what_it_asks_for,
    tls::s_09_a_server_without_tls_is_taken_only_where_that_is_said,
    tls::s_09_a_certificate_of_version_1_is_taken_where_its_host_is_not_asked_for,
    hosts::s_09_of_several_hosts_the_first_that_will_do_is_taken
);

/// A cluster, and its superuser's session.
struct House {
    cluster: Cluster,
    admin: Client,
}

impl House {
    /// `rules` come first in `pg_hba.conf`. The server listens on both loopback addresses and on a socket in its data directory.
    async fn start(version: u32, rules: &str, adjust: impl FnOnce(Builder) -> Builder) -> House {
        let builder = Cluster::builder(&find(Some(version)).unwrap()).setting("listen_addresses", "127.0.0.1,::1");
        let cluster = adjust(builder).start().unwrap();
        let hba = cluster.data_dir().join("pg_hba.conf");
        let others = fs::read_to_string(&hba).unwrap();
        fs::write(&hba, format!("{rules}\n{others}")).unwrap();
        let admin = connect_client(&parse(&cluster.url()).unwrap()).await.unwrap().0;
        let house = House { cluster, admin };
        house.run("SELECT pg_reload_conf()").await;
        house
    }

    async fn run(&self, sql: &str) {
        self.admin.batch_execute(sql).await.unwrap();
    }

    /// A file beside the data, with this mode.
    fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.cluster.home_dir().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Host, port and database, and what else the string shall say.
    fn at(&self, more: &str) -> String {
        format!("host=127.0.0.1 port={} dbname=postgres {more}", self.cluster.port())
    }
}

fn parse(text: &str) -> Result<ConnectOptions, Error> {
    ConnectOptions::parse(text, &BTreeMap::new())
}

/// What the query says on an ordinary session, once a replication session has been had, too.
async fn ask(options: &ConnectOptions, query: &str) -> Result<String, Error> {
    let (client, _task) = connect_client(options).await?;
    let row = client.query_one(query, &[]).await.unwrap();
    ReplicationSource::new(options.clone(), "s", "p").identify().await?;
    Ok(row.get(0))
}

/// Both kinds of sessions come to be.
async fn accepted(text: &str) {
    let options = parse(text).unwrap_or_else(|error| panic!("{text}: {}", error.report()));
    ask(&options, "SELECT 'in'").await.unwrap_or_else(|error| panic!("{text}: {}", error.report()));
}

/// Both kinds of sessions are refused in the same words, with a cure, and without a secret.
async fn refused(options: &ConnectOptions, kind: ErrorKind, words: &str) -> Error {
    let ordinary = connect_client(options).await.map(|_| ()).expect_err(words);
    let replication = ReplicationSource::new(options.clone(), "s", "p").identify().await.expect_err(words);
    assert_eq!(ordinary.kind(), kind, "{}", ordinary.report());
    assert_eq!((replication.kind(), replication.hint()), (kind, ordinary.hint()), "{}", replication.report());
    assert!(ordinary.report().contains(words), "{words:?} is not in: {}", ordinary.report());
    assert!(ordinary.hint().is_some(), "no hint: {}", ordinary.report());
    assert!(!format!("{ordinary:?}{replication:?}{options:?}").contains("hush"), "{ordinary:?}");
    ordinary
}

async fn refused_at(text: &str, kind: ErrorKind, words: &str) -> Error {
    let options = parse(text).unwrap_or_else(|error| panic!("{text}: {}", error.report()));
    refused(&options, kind, words).await
}

fn openssl(directory: &Path, arguments: &str) {
    let made = Command::new("openssl").args(arguments.split(' ')).current_dir(directory).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
