//! Which tables can be the work table.

use postrider_core::error::ErrorKind;
use postrider_core::ports::{Transition, WorkTable};
use postrider_core::route::WorkMapping;
use postrider_core::work::{StageName, WorkKey};
use postrider_postgres::{PgWorkTable, WorkTableSettings};

use crate::database::{Database, canonical_mapping};
use crate::work_table::{MINUTE, ONE, ask, claimed, outcome};

#[tokio::test]
async fn a_table_of_other_names_and_types_is_mapped() {
    let database = Database::create().await;
    database.install_store().await;
    database
        .run(r#"CREATE SCHEMA "Own"; CREATE TYPE "Own".step AS ENUM ('PRICING', 'APPROVAL');
            CREATE TABLE "Own"."Work" (tenant bigint, id uuid, step "Own".step NOT NULL, state varchar(20) NOT NULL DEFAULT 'PENDING',
                tries smallint NOT NULL DEFAULT 0, deferral_count bigint NOT NULL DEFAULT 0, "Fence" bigint NOT NULL DEFAULT 0,
                epoch int NOT NULL DEFAULT 0, next_attempt_at timestamptz, lease_until timestamptz, lease_owner text, request_hash bytea,
                closed_at timestamptz, last_error text, definition text, payload json, updated_at timestamptz, PRIMARY KEY (tenant, id));
            CREATE INDEX ON "Own"."Work" (tenant, id) WHERE closed_at IS NULL;
            INSERT INTO "Own"."Work" (tenant, id, step) SELECT n, '00000000-0000-0000-0000-00000000000a', 'PRICING' FROM generate_series(9, 11) AS n"#)
        .await;
    let name = str::to_owned;
    let mapping = WorkMapping {
        schema: name("Own"),
        table: name("Work"),
        key: vec![name("tenant"), name("id")],
        stage: name("step"),
        stage_state: name("state"),
        attempt_count: name("tries"),
        fence: name("Fence"),
        ..canonical_mapping()
    };
    let table = PgWorkTable::open(database.options(), &mapping, &WorkTableSettings::new(ONE)).await.unwrap();
    let key = |tenant: u32| WorkKey::new([tenant.to_string(), name("00000000-0000-0000-0000-00000000000a")]);
    let claims = claimed(table.claim(ONE, &[ask(key(11), 0), ask(key(9), 0)], &[]).await.unwrap());
    let chain = Transition::Chain { next: StageName::new("APPROVAL"), lease: MINUTE };
    let outcomes: Vec<_> = claims.iter().map(|claim| outcome(claim, chain.clone())).collect();
    assert_eq!(table.checkpoint(ONE, &outcomes).await.unwrap().len(), 2);
    assert_eq!(table.read(&[key(9)]).await.unwrap().rows[0].stage.as_str(), "APPROVAL");
    let told = "SELECT string_agg(format('%s %s', work_table, array_to_string(key, '/')), ' ' ORDER BY key) FROM postrider.work_history";
    let id = "00000000-0000-0000-0000-00000000000a";
    assert_eq!(database.text(told).await, format!("\"Own\".\"Work\" 11/{id} \"Own\".\"Work\" 9/{id}"));
    // A bigint key is ordered as a number, not as a text.
    let page = table.open_rows().await.unwrap().next_page().await.unwrap();
    assert_eq!(page.into_iter().map(|row| row.key).collect::<Vec<_>>(), [key(9), key(10), key(11)]);
}

#[tokio::test]
async fn a_missing_table_or_column_is_named() {
    let database = Database::create().await;
    let open = async || {
        PgWorkTable::open(database.options(), &canonical_mapping(), &WorkTableSettings::new(ONE)).await.unwrap_err()
    };
    assert_eq!(open().await.kind(), ErrorKind::Table);
    database.install_work_table().await;
    database.run("ALTER TABLE pending_work RENAME fence TO token").await;
    let error = open().await;
    assert_eq!(error.kind(), ErrorKind::Table);
    assert!(error.detail().unwrap().contains("\"fence\""), "{}", error.report());
}

/// Rows of two partitions may have the same `ctid`.
#[tokio::test]
async fn a_table_that_is_not_one_plain_table_is_refused() {
    let database = Database::create().await;
    database.install_work_table().await;
    let refused = async |why: &str| {
        let opened = PgWorkTable::open(database.options(), &canonical_mapping(), &WorkTableSettings::new(ONE)).await;
        let error = opened.expect_err(why);
        assert_eq!((error.kind(), error.message()), (ErrorKind::Table, "the work table is not one plain table"));
        assert!(error.detail().unwrap().contains("\"pending_work\"") && error.hint().is_some(), "{}", error.report());
    };
    database.run("CREATE TABLE heir () INHERITS (pending_work)").await;
    refused("another table inherits from it").await;
    database.run("DROP TABLE heir; ALTER TABLE pending_work RENAME TO whole").await;
    database.run("CREATE VIEW pending_work AS SELECT * FROM whole").await;
    refused("it is a view").await;
    database.run("DROP VIEW pending_work").await;
    database
        .run(
            "CREATE TABLE pending_work (LIKE whole INCLUDING ALL) PARTITION BY LIST (group_id);
            CREATE TABLE first PARTITION OF pending_work FOR VALUES IN ('g0');
            CREATE TABLE second PARTITION OF pending_work DEFAULT",
        )
        .await;
    refused("it is partitioned").await;
}
