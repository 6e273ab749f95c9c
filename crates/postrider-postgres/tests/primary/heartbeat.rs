//! The primary's port on a real server.

use postrider_core::error::ErrorKind;
use postrider_core::ports::Primary;
use postrider_core::position::Lsn;
use postrider_postgres::{HEARTBEAT_PREFIX, PgPrimary};

use crate::database::{Database, replication_slot};

#[tokio::test]
async fn a_stream_that_comes_as_far_as_a_beat_has_shown_it() {
    let database = Database::create().await;
    let slot = replication_slot(&database).await;
    let primary = PgPrimary::new(database.options(), &slot);
    let beaten = primary.beat(None).await.unwrap();
    let peek = format!(
        "SELECT max(lsn)::text FROM pg_logical_slot_peek_binary_changes('{slot}', '{beaten}', NULL,
             'proto_version', '1', 'publication_names', 'none', 'messages', 'true') WHERE position(convert_to('{HEARTBEAT_PREFIX}', 'UTF8') IN data) > 0"
    );
    let shown: Lsn = database.text(&peek).await.parse().unwrap();
    assert!(shown < beaten, "{shown} {beaten}");
    assert!(primary.beat(None).await.unwrap() > beaten);
}

#[tokio::test]
async fn the_slots_health_is_what_the_server_says() {
    let database = Database::create().await;
    let slot = replication_slot(&database).await;
    let primary = PgPrimary::new(database.options(), &slot);
    let before = primary.slot().await.unwrap();
    assert_eq!((before.active, before.wal_status.as_str(), before.safe_bytes), (false, "reserved", None));
    let beaten = primary.beat(None).await.unwrap();
    database.run(&format!("SELECT pg_replication_slot_advance('{slot}', '{beaten}')")).await;
    let after = primary.slot().await.unwrap();
    assert!(before.confirmed < after.confirmed && after.confirmed <= beaten);
    assert!(after.retained_bytes < 1 << 30);
    database.run(&format!("SELECT pg_drop_replication_slot('{slot}')")).await;
    assert_eq!(primary.slot().await.unwrap_err().kind(), ErrorKind::SlotMissing);
}
