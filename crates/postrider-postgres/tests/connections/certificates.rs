//! Client certificates: the server's method `cert`, and the key's privacy.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use postrider_core::error::ErrorKind;
use postrider_postgres::ConnectOptions;

use crate::{House, accepted, ask, openssl, refused_at};

pub(crate) async fn s_09_a_client_certificate_proves_the_role_if_its_key_is_private(version: u32) {
    let house = House::start(version, "hostssl all certified all cert", |builder| builder.tls(true)).await;
    house.run("CREATE ROLE certified LOGIN REPLICATION").await;
    make_certificates(house.cluster.home_dir());
    fs::copy(house.cluster.home_dir().join("clients.crt"), house.cluster.data_dir().join("clients.crt")).unwrap();
    house.run("ALTER SYSTEM SET ssl_ca_file = 'clients.crt'").await;
    house.run("SELECT pg_reload_conf()").await;
    let home = house.cluster.home_dir().to_path_buf();
    let file = |name: &str| home.join(name).display().to_string();
    let at = |more: &str| house.at(&format!("user=certified sslmode=require {more}"));
    let shown = |certificate: &str, key: &str| at(&format!("sslcert={} sslkey={}", file(certificate), file(key)));

    accepted(&shown("ours.crt", "ours.key")).await;
    refused_at(&at(""), ErrorKind::Authentication, "client certificate").await;
    refused_at(
        &at(&format!("sslcert={} sslkey={} sslcertmode=disable", file("ours.crt"), file("ours.key"))),
        ErrorKind::Authentication,
        "client certificate",
    )
    .await;
    // One that another authority has signed, and the key of another certificate.
    refused_at(&shown("strange.crt", "strange.key"), ErrorKind::Configuration, "sslcert").await;
    refused_at(&shown("ours.crt", "strange.key"), ErrorKind::Configuration, "sslkey").await;
    refused_at(&shown("ours.crt", "encrypted.key"), ErrorKind::Configuration, "openssl pkey").await;
    refused_at(&shown("ours.crt", "nowhere.key"), ErrorKind::Configuration, "nowhere.key").await;
    refused_at(&shown("nowhere.crt", "ours.key"), ErrorKind::Configuration, "nowhere.crt").await;
    refused_at(&shown("ours.crt", "."), ErrorKind::Configuration, "plain file").await;

    let close = |mode: u32| fs::set_permissions(home.join("ours.key"), fs::Permissions::from_mode(mode)).unwrap();
    let is_root =
        fs::metadata(home.join("ours.key")).map(|key| std::os::unix::fs::MetadataExt::uid(&key) == 0).unwrap();
    for (mode, is_private) in [(0o400, true), (0o640, is_root), (0o660, false), (0o604, false)] {
        close(mode);
        if is_private {
            accepted(&shown("ours.crt", "ours.key")).await;
        } else {
            refused_at(&shown("ours.crt", "ours.key"), ErrorKind::Configuration, "chmod 0600").await;
        }
    }
    close(0o600);

    // Where libpq looks for them.
    fs::create_dir(home.join(".postgresql")).unwrap();
    fs::copy(home.join("ours.crt"), home.join(".postgresql/postgresql.crt")).unwrap();
    fs::copy(home.join("ours.key"), home.join(".postgresql/postgresql.key")).unwrap();
    let environment = [("HOME".to_owned(), home.display().to_string())].into();
    let options = ConnectOptions::parse(&at(""), &environment).unwrap();
    assert_eq!(ask(&options, "SELECT current_user::text").await.unwrap(), "certified");
}

/// An authority of clients, a certificate that it signed and one that it did not, and the key once more, encrypted.
fn make_certificates(directory: &Path) {
    let authority = |name: &str| {
        openssl(
            directory,
            &format!("req -new -x509 -nodes -newkey rsa:2048 -subj /CN={name} -keyout {name}.key -out {name}.crt"),
        );
    };
    authority("clients");
    authority("strangers");
    for (client, signer) in [("ours", "clients"), ("strange", "strangers")] {
        openssl(
            directory,
            &format!("req -new -nodes -newkey rsa:2048 -subj /CN=certified -keyout {client}.key -out {client}.csr"),
        );
        openssl(
            directory,
            &format!(
                "x509 -req -in {client}.csr -CA {signer}.crt -CAkey {signer}.key -CAcreateserial -days 2 -out {client}.crt"
            ),
        );
        fs::set_permissions(directory.join(format!("{client}.key")), fs::Permissions::from_mode(0o600)).unwrap();
    }
    openssl(directory, "pkey -in ours.key -aes256 -passout pass:hush -out encrypted.key");
    fs::set_permissions(directory.join("encrypted.key"), fs::Permissions::from_mode(0o600)).unwrap();
}
