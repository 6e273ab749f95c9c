//! What the role may not do.

use postrider_core::error::{ErrorKind, Reaction};
use postrider_core::ports::LogSource as _;
use postrider_postgres::{ReplicationSource, connect_client};

use crate::{House, parse, refused_at};

pub(crate) async fn s_11_a_role_that_may_not_is_told_which_right_it_lacks(version: u32) {
    let house = House::start(version, "host all rejected 127.0.0.1/32 reject", |builder| builder).await;
    house.run("CREATE DATABASE closed").await;
    house
        .run("REVOKE CONNECT ON DATABASE closed FROM public;
              CREATE ROLE \"a reader\" LOGIN PASSWORD 'hush'; CREATE ROLE group_role NOLOGIN REPLICATION PASSWORD 'hush';
              CREATE ROLE rejected LOGIN REPLICATION PASSWORD 'hush'; CREATE ROLE outside LOGIN REPLICATION PASSWORD 'hush'")
        .await;
    // An ordinary session needs no REPLICATION, the stream does.
    let reader = parse(&house.at("user='a reader' password=hush")).unwrap();
    connect_client(&reader).await.unwrap();
    let error = ReplicationSource::new(reader, "s", "p").identify().await.unwrap_err();
    assert_eq!((error.kind(), error.kind().reaction()), (ErrorKind::Privilege, Reaction::Halt), "{}", error.report());
    assert_eq!(error.hint(), Some("As a superuser: ALTER ROLE \"a reader\" REPLICATION;"));

    let closed = house.at("user=outside password=hush").replace("dbname=postgres", "dbname=closed");
    let error = refused_at(&closed, ErrorKind::Privilege, "42501").await;
    assert_eq!(error.hint(), Some("As the database's owner: GRANT CONNECT ON DATABASE \"closed\" TO \"outside\";"));
    for role in ["group_role", "rejected"] {
        let error =
            refused_at(&house.at(&format!("user={role} password=hush")), ErrorKind::Authentication, "28000").await;
        assert_eq!(error.kind().reaction(), Reaction::Halt);
    }
}
