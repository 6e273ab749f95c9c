use super::*;
use expect_test::{Expect, expect};
use postrider_core::error::ErrorKind;

fn parse(text: &str, environment: &[(&str, &str)]) -> Result<ConnectOptions> {
    let environment = environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    ConnectOptions::parse(text, &environment)
}

fn check(text: &str, environment: &[(&str, &str)], wanted: Expect) {
    let found = match parse(text, environment) {
        Ok(options) => format!(
            "{}@{}/{} {:?} {:?} {}",
            options.user,
            options.location(),
            options.database,
            options.tls.mode,
            options.tls.roots,
            match &options.password {
                PasswordSource::Given { password, .. } => String::from_utf8_lossy(password.reveal()).into_owned(),
                other => format!("{other:?}"),
            },
        ),
        Err(error) => error.report(),
    };
    wanted.assert_eq(&found);
}

#[test]
fn urls_and_pairs_are_read_as_libpq_does() {
    check(
        "postgres://me:p%40ss%3Aw%2Ford%25%23%3F%C3%A9@db.example:6000/quoting?sslmode=verify-full&sslrootcert=/a%20b.crt",
        &[],
        expect![[r#"me@db.example:6000/quoting VerifyFull File("/a b.crt") p@ss:w/ord%#?é"#]],
    );
    check(
        r"host=db user = me sslmode=require password='it\'s \\ it' dbname=q",
        &[],
        expect![[r"me@db:5432/q Require System it's \ it"]],
    );
    check("postgres://me@[::1]/q?sslmode=disable", &[], expect!["me@[::1]:5432/q Disable System Nowhere"]);
    check("host=/run/pg user=me", &[], expect!["me@/run/pg/.s.PGSQL.5432/me Prefer System Nowhere"]);
    check("postgres://me@%2Frun%2Fpg:6000/q", &[], expect!["me@/run/pg/.s.PGSQL.6000/q Prefer System Nowhere"]);
    check(
        "host=a,b,[c port=1,,2 user=me sslrootcert=/r sslmode=require",
        &[],
        expect![[r#"me@a:1, b:5432, [c:2/me VerifyCa File("/r") Nowhere"#]],
    );
    check("hostaddr=::1,10.0.0.1 port=7 user=me", &[], expect!["me@[::1]:7, 10.0.0.1:7/me Prefer System Nowhere"]);
}

#[test]
fn the_environment_fills_what_is_missing_and_nothing_else() {
    let environment = [
        ("PGHOST", "db"),
        ("PGPORT", "6000"),
        ("PGUSER", "you"),
        ("PGPASSWORD", "secret"),
        ("PGDATABASE", "q"),
        ("PGSSLMODE", "verify-ca"),
        ("PGSSLROOTCERT", "/r"),
    ];
    check("", &environment, expect![[r#"you@db:6000/q VerifyCa File("/r") secret"#]]);
    check(
        "host=h port=7 user=me password=mine dbname=d sslmode=disable",
        &environment,
        expect![[r#"me@h:7/d Disable File("/r") mine"#]],
    );
    // An empty value stands for the default, not for the environment's.
    check(
        "host='' port='' password=''",
        &environment,
        expect![[r#"you@localhost:5432/q VerifyCa File("/r") Nowhere"#]],
    );
    check(
        "user=me",
        &[("HOME", "/h")],
        expect![[r#"me@localhost:5432/me Prefer Home("/h/.postgresql/root.crt") File("/h/.pgpass")"#]],
    );
    check(
        "user=me passfile=/p",
        &[("HOME", "/h"), ("PGPASSFILE", "/q")],
        expect![[r#"me@localhost:5432/me Prefer Home("/h/.postgresql/root.crt") File("/p")"#]],
    );
    check("user=me", &[("PGREQUIRESSL", "1")], expect!["me@localhost:5432/me Require System Nowhere"]);
    check("user=me sslmode=disable", &[("PGREQUIRESSL", "1")], expect!["me@localhost:5432/me Disable System Nowhere"]);
    check("user=me", &[("PGSSLROOTCERT", "system")], expect!["me@localhost:5432/me VerifyFull System Nowhere"]);
    check(
        "user=me",
        &[("PGPORT", "many")],
        expect![
            "PR001 the connection string is not valid. A port is no number from 1 to 65535. In a URL, a password with / or @ in it must be percent-encoded, else its rest is taken for host and port."
        ],
    );
    check(
        "user=me",
        &[("PGCONNECT_TIMEOUT", "soon")],
        expect!["PR001 the connection string is not valid. `PGCONNECT_TIMEOUT` is no whole number. Write digits only."],
    );
    check(
        "user=me",
        &[("PGSSLCRL", "/crl")],
        expect![
            "PR001 the connection string is not valid. `PGSSLCRL` is not supported with this value. Lists of revoked certificates are not read. Give the server a certificate of short life, or let sslrootcert hold the server's own certificate."
        ],
    );
}

#[test]
fn the_rest_is_read_with_its_defaults() {
    let options = parse("user=me", &[]).expect("it is valid");
    expect![[r#"SocketPolicy { connect_timeout: Some(10s), tcp_user_timeout: Some(30s), keepalive: Some(Keepalive { idle: Some(15s), interval: Some(5s), count: Some(4) }) } ProofPolicy { channel_binding: Prefer, methods: None } Any postrider"#]]
        .assert_eq(&format!("{:?} {:?} {:?} {}", options.sockets, options.proof, options.target, options.application_name));
    let text = "user=me connect_timeout=0 tcp_user_timeout=1500 keepalives=1 keepalives_idle=7 keepalives_interval=0 keepalives_count=2 \
        require_auth=!password,!md5 target_session_attrs=prefer-standby application_name=x options='-c work_mem=1MB'";
    let options = parse(text, &[]).expect("it is valid");
    expect![[r#"SocketPolicy { connect_timeout: None, tcp_user_timeout: Some(1.5s), keepalive: Some(Keepalive { idle: Some(7s), interval: None, count: Some(2) }) } ProofPolicy { channel_binding: Prefer, methods: Some([None, ScramSha256]) } PreferStandby x"#]]
        .assert_eq(&format!("{:?} {:?} {:?} {}", options.sockets, options.proof, options.target, options.application_name));
    assert!(options.options.starts_with("-c work_mem=1MB -c datestyle=ISO "), "{}", options.options);
    assert_eq!(parse("user=me keepalives=0", &[]).map(|options| options.sockets.keepalive).ok(), Some(None));
}

#[test]
fn a_service_fills_before_the_environment() {
    let home = std::env::temp_dir().join(format!("postrider-service-{}", std::process::id()));
    std::fs::create_dir_all(&home).expect("a folder");
    let file = home.join("services");
    std::fs::write(&file, "[quoting]\nhost=db\nport=6000\nport=7000\nuser=you\n").expect("a file");
    let file = file.display().to_string();
    let environment = [("PGSERVICEFILE", file.as_str()), ("PGHOST", "elsewhere"), ("PGDATABASE", "q")];
    check("service=quoting user=me", &environment, expect!["me@db:6000/q Prefer System Nowhere"]);
    check("postgres:///?service=quoting", &environment, expect!["you@db:6000/q Prefer System Nowhere"]);
    let missing = parse("service=nowhere user=me", &environment).expect_err("there is none").report();
    assert!(missing.contains(&file), "{missing}");
    std::fs::remove_dir_all(home).expect("it is ours");
}

#[test]
fn what_cannot_be_read_is_named_without_the_secret() {
    check(
        "host=db password=hush",
        &[],
        expect![
            "PR001 the connection string is not valid. It names no user. Write postgres://user@host/database, or set PGUSER."
        ],
    );
    check(
        "host=db user=me sslmode=maybe",
        &[],
        expect![
            "PR001 the connection string is not valid. `sslmode` is an unknown word. Use one of disable, prefer, require, verify-ca, verify-full."
        ],
    );
    check(
        "host=db user=me sslmode=allow",
        &[],
        expect![[
            r#"PR001 the connection string is not valid. `sslmode` "allow" is not supported: it sends everything in clear text where the server lets it. Write prefer, which uses TLS where the server has it, or disable."#
        ]],
    );
    check(
        "user=me sslrootcert=system sslmode=require",
        &[],
        expect![
            "PR001 the connection string is not valid. With sslrootcert=system a weaker sslmode than verify-full protects from nobody. Write sslmode=verify-full."
        ],
    );
    check(
        "user=me load_balance_hosts=random",
        &[],
        expect![
            "PR001 the connection string is not valid. `load_balance_hosts` is not supported with this value. Postrider holds a few long sessions on one server, so that there is no load to spread: leave it out."
        ],
    );
    check(
        "host=a,b port=1,2,3 user=me",
        &[],
        expect![
            "PR001 the connection string is not valid. The lists of hosts, addresses and ports have different lengths. Give one port for all hosts, or one for each; one address for each host."
        ],
    );
    for text in [
        "host=db user=me password='hush",
        "postgres://me:hush@db:port/",
        "postgres://me:1/hush@db",
        "postgres://me:hu/sh?hush=1@db",
        "user=me nonsense=hush",
        "user=me hush",
        "user=me password=x hush=y",
        "user=me password=hush sslmode=hush",
        "user=me password=hush sslpassword=hush",
    ] {
        let error = parse(text, &[]).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::Configuration, "{text}");
        assert!(!error.report().contains("hush") && error.hint().is_some(), "{text}: {}", error.report());
    }
}

#[test]
fn debug_prints_no_password() {
    let text = format!("{:?}", parse("postgres://me:hush@db/q", &[]).expect("it is valid"));
    assert!(!text.contains("hush") && text.contains('…'), "{text}");
}
