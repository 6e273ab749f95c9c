//! Passwords: every character in every form, the methods, the file, the command.

use std::fs;

use postrider_core::error::{ErrorKind, Reaction};
use postrider_core::ports::Primary as _;
use postrider_postgres::{ConnectOptions, PgPrimary};

use crate::{House, accepted, ask, parse, refused, refused_at};

const AWKWARD: &str = "p@ss:w/ord%#?é";

pub(crate) async fn s_09_a_password_of_awkward_characters_goes_through_in_every_form_and_on_every_socket(version: u32) {
    let mut house = House::start(version, "local all all scram-sha-256", |builder| builder).await;
    house.run(&format!("CREATE ROLE awkward LOGIN REPLICATION PASSWORD '{AWKWARD}'")).await;
    let directory = house.cluster.data_dir().display().to_string();
    house.cluster.set("unix_socket_directories", &directory).unwrap();
    house.cluster.restart(xtask::postgres::Shutdown::Fast).unwrap();
    let port = house.cluster.port();
    let (encoded, folder) = ("p%40ss%3Aw%2Ford%25%23%3F%C3%A9", directory.replace('/', "%2F"));
    for text in [
        format!("postgres://awkward:{encoded}@127.0.0.1:{port}/postgres"),
        format!("postgresql://awkward:{encoded}@[::1]:{port}/postgres"),
        format!("postgres://awkward:{encoded}@{folder}:{port}/postgres"),
        format!("postgres:///postgres?host={folder}&port={port}&user=awkward&password={encoded}"),
        format!("host=localhost port={port} dbname=postgres user=awkward password={AWKWARD}"),
        format!("host=::1 port={port} dbname=postgres user=awkward password='{AWKWARD}'"),
        format!("hostaddr=127.0.0.1 port={port} dbname=postgres user=awkward password={AWKWARD}"),
        format!("host='{directory}' port={port} dbname=postgres user=awkward password={AWKWARD} sslmode=require"),
    ] {
        accepted(&text).await;
    }
    let variables = [
        ("PGHOST", "127.0.0.1"),
        ("PGPORT", &port.to_string()),
        ("PGUSER", "awkward"),
        ("PGPASSWORD", AWKWARD),
        ("PGDATABASE", "postgres"),
        ("PGAPPNAME", "it's us"),
        ("PGOPTIONS", "-c work_mem=7MB -c datestyle=SQL"),
    ];
    let environment = variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    let options = ConnectOptions::parse("", &environment).unwrap();
    let query = "SELECT concat_ws('|', current_setting('application_name'), current_setting('work_mem'), current_setting('datestyle'))";
    assert_eq!(ask(&options, query).await.unwrap(), "it's us|7MB|ISO, MDY");
    refused_at(&house.at("user=awkward password=hush"), ErrorKind::Authentication, "28P01").await;
    refused_at(&house.at("user=nobody password=hush"), ErrorKind::Authentication, "28P01").await;
    let none = refused_at(&house.at("user=awkward"), ErrorKind::Authentication, "wants a password").await;
    assert_eq!(none.kind().reaction(), Reaction::Halt);
}

pub(crate) async fn s_09_require_auth_decides_what_the_server_may_ask_for(version: u32) {
    let rules =
        "host all trusted 127.0.0.1/32 trust\nhost all plain 127.0.0.1/32 password\nhost all hashed 127.0.0.1/32 md5";
    let house = House::start(version, rules, |builder| builder).await;
    house
        .run(
            "CREATE ROLE trusted LOGIN REPLICATION; CREATE ROLE plain LOGIN REPLICATION PASSWORD 'hush';
              CREATE ROLE scram LOGIN REPLICATION PASSWORD 'hush'; SET password_encryption = 'md5';
              CREATE ROLE hashed LOGIN REPLICATION PASSWORD 'hush'; RESET password_encryption",
        )
        .await;
    for (role, method) in [("trusted", "none"), ("plain", "password"), ("hashed", "md5"), ("scram", "scram-sha-256")] {
        let with = |auth: &str| house.at(&format!("user={role} password=hush require_auth={auth}"));
        accepted(&house.at(&format!("user={role} password=hush"))).await;
        accepted(&with(method)).await;
        accepted(&with("none,password,md5,scram-sha-256")).await;
        refused_at(&with(&format!("!{method}")), ErrorKind::Authentication, "require_auth").await;
        let others: Vec<_> =
            ["none", "password", "md5", "scram-sha-256", "gss"].into_iter().filter(|other| *other != method).collect();
        refused_at(&with(&others.join(",")), ErrorKind::Authentication, "require_auth").await;
        let unbound = house.at(&format!("user={role} password=hush channel_binding=require"));
        refused_at(&unbound, ErrorKind::Authentication, "channel binding is required").await;
    }
}

pub(crate) async fn s_09_a_password_file_is_read_by_libpqs_rules(version: u32) {
    let house = House::start(version, "", |builder| builder).await;
    house.run(r"CREATE ROLE filed LOGIN REPLICATION PASSWORD E'a:b\\c'").await;
    let port = house.cluster.port();
    let lines =
        format!("127.0.0.1:{port}:other:filed:no\n127.0.0.1:*:postgres:filed:a\\:b\\\\c\n\\:\\:1:{port}:*:filed:no\n");
    let file = house.file("passwords", &lines, 0o600);
    let text = house.at(&format!("user=filed passfile='{}'", file.display()));
    accepted(&text).await;
    let variable = [("PGPASSFILE".to_owned(), file.display().to_string())].into();
    ask(&ConnectOptions::parse(&house.at("user=filed"), &variable).unwrap(), "SELECT 'in'").await.unwrap();
    fs::rename(&file, house.cluster.home_dir().join(".pgpass")).unwrap();
    let home = [("HOME".to_owned(), house.cluster.home_dir().display().to_string())].into();
    ask(&ConnectOptions::parse(&house.at("user=filed"), &home).unwrap(), "SELECT 'in'").await.unwrap();

    // The file is read anew each time, and one that others may read is none.
    let options = parse(&text).unwrap();
    refused(&options, ErrorKind::Authentication, "wants a password").await;
    house.file("passwords", &lines, 0o600);
    ask(&options, "SELECT 'in'").await.unwrap();
    house.file("passwords", &lines, 0o640);
    refused(&options, ErrorKind::Authentication, "passwords").await;
    house.file("passwords", "*:*:*:*:hush\n", 0o600);
    let wrong = refused(&options, ErrorKind::Authentication, "28P01").await;
    assert!(wrong.report().contains(&file.display().to_string()), "{}", wrong.report());
}

pub(crate) async fn s_09_a_token_that_has_expired_is_fetched_anew_at_the_next_connect(version: u32) {
    let house = House::start(version, "", |builder| builder).await;
    house.run("CREATE ROLE managed LOGIN REPLICATION PASSWORD 'hush-1'").await;
    let token = house.file("token", "hush-1\n", 0o600);
    let calls = house.file("calls", "", 0o600);
    let script = format!("echo call >> '{}'; cat '{}'", calls.display(), token.display());
    let command = ["sh", "-c", script.as_str()].map(str::to_owned).to_vec();
    let options = parse(&house.at("user=managed")).unwrap().with_password_command(command).unwrap();
    let count = || fs::read_to_string(&calls).unwrap().lines().count();
    let primary = PgPrimary::new(options.clone(), "s");
    primary.beat(None).await.unwrap();
    primary.beat(None).await.unwrap();
    assert_eq!(count(), 1, "once for each connection");

    // The server forgets the token and the session: our own is not good any more, and a new one is asked for.
    house.run("ALTER ROLE managed PASSWORD 'hush-2'").await;
    house.run("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'managed'").await;
    let lost = primary.beat(None).await.expect_err("the session is gone");
    let expired = if count() == 1 { primary.beat(None).await.expect_err("the token is old") } else { lost };
    assert_eq!(
        (expired.kind(), expired.kind().reaction()),
        (ErrorKind::Transient, Reaction::Retry),
        "{}",
        expired.report()
    );
    assert!(!format!("{expired:?}").contains("hush"), "{expired:?}");
    assert_eq!(count(), 2);
    house.file("token", "hush-2\n", 0o600);
    primary.beat(None).await.unwrap();
    assert_eq!(count(), 3);
    ask(&options, "SELECT 'in'").await.unwrap();

    fs::remove_file(&token).unwrap();
    refused(&options, ErrorKind::Transient, "exit status: 1").await;
}
