//! Each `sslmode` against servers with and without TLS, by the right and the wrong certificates.

use postrider_core::error::ErrorKind;
use xtask::postgres::Cluster;

use crate::{House, accepted, ask, openssl, parse, refused_at};

const ROLE: &str = "CREATE ROLE tested LOGIN REPLICATION PASSWORD 'hush'";
const IS_ENCRYPTED: &str = "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

async fn encrypted(text: &str) -> String {
    ask(&parse(text).unwrap(), IS_ENCRYPTED).await.unwrap_or_else(|error| panic!("{text}: {}", error.report()))
}

pub(crate) async fn s_09_each_sslmode_takes_a_server_that_proves_what_it_asks_for(version: u32) {
    let house = House::start(version, "", |builder| builder.tls(true)).await;
    house.run(ROLE).await;
    let root = house.cluster.certificate_path().display().to_string();
    openssl(
        house.cluster.home_dir(),
        "req -new -x509 -nodes -newkey rsa:2048 -subj /CN=localhost -keyout other.key -out other.crt",
    );
    let other = house.cluster.home_dir().join("other.crt").display().to_string();
    let at = |more: &str| house.at(&format!("user=tested password=hush {more}"));
    assert_eq!(encrypted(&at("sslmode=disable")).await, "false");
    for more in [
        "sslmode=prefer".to_owned(),
        format!("sslmode=prefer sslrootcert={other}"),
        "sslmode=require channel_binding=require".to_owned(),
        format!("sslmode=require sslrootcert={root} sslsni=0"),
        format!("sslmode=verify-ca sslrootcert={root} ssl_max_protocol_version=TLSv1.2 channel_binding=require"),
        format!("sslmode=verify-full sslrootcert={root} ssl_min_protocol_version=TLSv1.3"),
    ] {
        assert_eq!(encrypted(&at(&more)).await, "true", "{more}");
    }
    // The name in the certificate is what counts, and the address only says where to go.
    let named = |host: &str, mode: &str| {
        format!(
            "host={host} hostaddr=127.0.0.1 port={} dbname=postgres user=tested password=hush sslmode={mode} sslrootcert={root}",
            house.cluster.port()
        )
    };
    accepted(&named("localhost", "verify-full")).await;
    accepted(&named("elsewhere.example", "verify-ca")).await;
    refused_at(&named("elsewhere.example", "verify-full"), ErrorKind::Configuration, "elsewhere.example").await;
    for more in [
        format!("sslmode=require sslrootcert={other}"),
        format!("sslmode=verify-ca sslrootcert={other}"),
        format!("sslmode=verify-full sslrootcert={other}"),
        "sslmode=verify-full".to_owned(),
        "sslrootcert=system".to_owned(),
        "sslmode=verify-ca sslrootcert=/nowhere.crt".to_owned(),
    ] {
        refused_at(&at(&more), ErrorKind::Configuration, "sslrootcert").await;
    }
    refused_at(&at("sslmode=disable channel_binding=require"), ErrorKind::Authentication, "channel_binding").await;
    // Where libpq looks for a root certificate, it is found, and then `require` means to check by it.
    let postgresql = house.cluster.home_dir().join(".postgresql");
    std::fs::create_dir(&postgresql).unwrap();
    let home = [("HOME".to_owned(), house.cluster.home_dir().display().to_string())].into();
    let options = postrider_postgres::ConnectOptions::parse(&at("sslmode=require"), &home).unwrap();
    assert_eq!(ask(&options, IS_ENCRYPTED).await.unwrap(), "true");
    std::fs::copy(&other, postgresql.join("root.crt")).unwrap();
    crate::refused(&options, ErrorKind::Configuration, "sslrootcert").await;
    std::fs::copy(&root, postgresql.join("root.crt")).unwrap();
    assert_eq!(ask(&options, IS_ENCRYPTED).await.unwrap(), "true");
}

pub(crate) async fn s_09_a_server_without_tls_is_taken_only_where_that_is_said(version: u32) {
    let house = House::start(version, "", |builder| builder).await;
    house.run(ROLE).await;
    let at = |more: &str| house.at(&format!("user=tested password=hush {more}"));
    for more in ["", "sslmode=disable", "sslmode=prefer"] {
        assert_eq!(encrypted(&at(more)).await, "false", "{more}");
    }
    for mode in ["require", "verify-ca", "verify-full"] {
        refused_at(&at(&format!("sslmode={mode}")), ErrorKind::Configuration, "no TLS").await;
    }
}

pub(crate) async fn s_09_a_certificate_of_version_1_is_taken_where_its_host_is_not_asked_for(version: u32) {
    let house = House::start(version, "", |builder| builder.tls(true)).await;
    house.run(ROLE).await;
    let (home, data) = (house.cluster.home_dir(), house.cluster.data_dir());
    openssl(
        home,
        "req -new -x509 -nodes -newkey rsa:2048 -subj /CN=authority -keyout authority.key -out authority.crt",
    );
    openssl(home, "req -new -nodes -key data/server.key -subj /CN=127.0.0.1 -out old.csr");
    openssl(home, "x509 -req -in old.csr -CA authority.crt -CAkey authority.key -CAcreateserial -days 2 -out old.crt");
    std::fs::copy(home.join("old.crt"), data.join("old.crt")).unwrap();
    house.run("ALTER SYSTEM SET ssl_cert_file = 'old.crt'").await;
    house.run("SELECT pg_reload_conf()").await;
    let at = |more: &str| house.at(&format!("user=tested password=hush {more}"));
    accepted(&at("sslmode=require channel_binding=require")).await;
    accepted(&at(&format!("sslmode=verify-ca sslrootcert={}", home.join("old.crt").display()))).await;
    let full = at(&format!("sslmode=verify-full sslrootcert={}", home.join("authority.crt").display()));
    refused_at(&full, ErrorKind::Configuration, "subjectAltName").await;
}

#[tokio::test]
async fn s_09_direct_tls_needs_version_17() {
    for major in [16, 17] {
        let installation = xtask::postgres::find(Some(major)).unwrap();
        let cluster = Cluster::builder(&installation).tls(true).start().unwrap();
        let root = cluster.certificate_path().display().to_string();
        let text = format!("{}?sslmode=verify-full&sslnegotiation=direct&sslrootcert={root}", cluster.url());
        if major >= 17 {
            accepted(&text).await;
        } else {
            refused_at(&text, ErrorKind::Configuration, "PostgreSQL 17 or later").await;
        }
    }
}
