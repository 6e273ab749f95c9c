//! Several hosts: which of them will do.

use std::fs;
use std::net::TcpListener;

use postrider_core::error::ErrorKind;

use crate::{House, ask, parse, refused_at};

const IS_STANDBY: &str = "SELECT pg_is_in_recovery()::text";

pub(crate) async fn s_09_of_several_hosts_the_first_that_will_do_is_taken(version: u32) {
    let primary = House::start(version, "", |builder| builder).await;
    let mut standby = House::start(version, "", |builder| builder).await;
    for house in [&primary, &standby] {
        house.run("CREATE ROLE tested LOGIN REPLICATION PASSWORD 'hush'").await;
    }
    standby.cluster.stop_fast().unwrap();
    fs::write(standby.cluster.data_dir().join("standby.signal"), "").unwrap();
    standby.cluster.start().unwrap();
    // Nobody listens there, and somebody who never answers.
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    let (first, second) = (standby.cluster.port(), primary.cluster.port());
    let at = |ports: &str, target: &str| {
        let hosts = vec!["127.0.0.1"; ports.split(',').count()].join(",");
        format!(
            "host={hosts} port={ports} dbname=postgres user=tested password=hush sslmode=disable connect_timeout=1 target_session_attrs={target}"
        )
    };
    let all = format!("{dead},{silent_port},{first},{second}");
    for (target, is_standby) in [
        ("any", "true"),
        ("read-write", "false"),
        ("primary", "false"),
        ("read-only", "true"),
        ("standby", "true"),
        ("prefer-standby", "true"),
    ] {
        assert_eq!(ask(&parse(&at(&all, target)).unwrap(), IS_STANDBY).await.unwrap(), is_standby, "{target}");
    }
    let only_primary = format!("{dead},{second}");
    assert_eq!(ask(&parse(&at(&only_primary, "prefer-standby")).unwrap(), IS_STANDBY).await.unwrap(), "false");
    let none = refused_at(&at(&only_primary, "standby"), ErrorKind::Disconnected, "target_session_attrs").await;
    for words in [format!("127.0.0.1:{dead}: cannot connect"), format!("127.0.0.1:{second}: the server is not what")] {
        assert!(none.report().contains(&words), "{words:?} is not in: {}", none.report());
    }
    refused_at(&at(&first.to_string(), "primary"), ErrorKind::Disconnected, "is a standby").await;
    primary.run("ALTER ROLE tested SET default_transaction_read_only = on").await;
    refused_at(&at(&second.to_string(), "read-write"), ErrorKind::Disconnected, "takes no writes").await;
    // Who says no is not asked elsewhere.
    let wrong = at(&all, "any").replace("hush", "hush-hush");
    refused_at(&wrong, ErrorKind::Authentication, "28P01").await;
}
