//! What the work table's triggers tell, and of whom they tell nothing.

use postrider_core::ports::{ClaimReply, ClaimRequest, WorkTable};
use postrider_core::route::WorkMapping;
use postrider_core::work::{DefinitionName, OwnerId, StageName, WorkKey};
use postrider_postgres::{
    PgWorkTable, SetupSettings, SourceObjects, StepOutcome, Subject, WorkTableSettings, apply, check,
};
use std::time::Duration;

use crate::database::{Database, canonical_mapping, canonical_objects};

fn quiet(name: &str) -> SourceObjects {
    SourceObjects { quiet: true, ..canonical_objects(name) }
}

async fn set_up(database: &Database) -> SourceObjects {
    let objects = quiet(database.name());
    apply(&database.options(), &SetupSettings { objects: objects.clone(), role: None }).await.unwrap();
    objects
}

/// What the slot would send from here on: of each change its table and kind, of each message its content.
async fn told(database: &Database) -> Vec<String> {
    let name = database.name();
    let sql = format!(
        "SELECT data FROM pg_logical_slot_get_binary_changes('{name}', NULL, NULL, 'proto_version', '1', \
           'publication_names', '\"{name}\",\"{name}_work\"', 'messages', 'true') \
         WHERE get_byte(data, 0) IN (ascii('I'), ascii('U'), ascii('D'), ascii('T'), ascii('M'))"
    );
    let rows = database.admin.query(&sql, &[]).await.unwrap();
    let text = |row: &tokio_postgres::Row| {
        let data: Vec<u8> = row.get(0);
        match data.split_first() {
            // Flags, LSN, the prefix with its end, the length.
            Some((b'M', rest)) => {
                let end = rest[9..].iter().position(|byte| *byte == 0).unwrap() + 9;
                String::from_utf8(rest[end + 5..].to_vec()).unwrap()
            }
            Some((kind, _)) => char::from(*kind).to_string(),
            None => String::new(),
        }
    };
    rows.iter().map(text).collect()
}

fn claim_of(quote: &str, seen_fence: i64) -> ClaimRequest {
    ClaimRequest {
        key: WorkKey::new(["g", quote]),
        stage: StageName::new("PRICING"),
        seen_fence,
        attempt_limit: 5,
        lease: Duration::from_secs(60),
        take_over: false,
        definition: DefinitionName::new("quote@1"),
        refusal: None,
        untold: None,
    }
}

const INSERT: &str =
    "INSERT INTO pending_work (group_id, quote_id, stage) VALUES ('g', '1', 'PRICING'), ('g', '2', 'PRICING')";

#[tokio::test]
async fn other_sessions_changes_are_told_and_an_executors_are_not() {
    let database = Database::create().await;
    set_up(&database).await;
    database.run(INSERT).await;
    let settings = WorkTableSettings::new(OwnerId(7));
    let table = PgWorkTable::open(database.options(), &canonical_mapping(), &settings).await.unwrap();
    let replies = table.claim(OwnerId(7), &[claim_of("1", 0)], &[]).await.unwrap();
    assert!(
        matches!(&replies[..], [ClaimReply::Claimed(claim)] if claim.fence == 1 && claim.version.is_some()),
        "{replies:?}"
    );
    assert_eq!(told(&database).await, ["I", "I"]);

    database
        .run(
            "UPDATE pending_work SET stage_state = 'RETRY', fence = 9, next_attempt_at = 'infinity', lease_owner = NULL,
                    lease_until = NULL, updated_at = '2026-01-02' WHERE quote_id = '1';
             UPDATE pending_work SET payload = '{\"n\": 1}', updated_at = '2026-01-02';
             UPDATE pending_work SET quote_id = 'a \"b\"' WHERE quote_id = '2';
             DELETE FROM pending_work WHERE quote_id = '1'",
        )
        .await;
    database.run("BEGIN; UPDATE pending_work SET fence = 99; ROLLBACK").await;
    database.run("TRUNCATE pending_work").await;
    let rest = r#""stage" : "PRICING", "stage_state" : "PENDING", "attempt_count" : "0", "deferral_count" : "0", "fence" : "0", "epoch" : "0", "next_attempt_at" : null, "lease_until" : null, "lease_owner" : null, "closed_at" : null, "definition" : null}"#;
    let expected = [
        r#"{"key" : ["g", "1"], "stage" : "PRICING", "stage_state" : "RETRY", "attempt_count" : "1", "deferral_count" : "0", "fence" : "9", "epoch" : "0", "next_attempt_at" : "infinity", "lease_until" : null, "lease_owner" : null, "closed_at" : null, "definition" : "quote@1"}"#,
        &format!(r#"{{"key" : ["g", "a \"b\""], "was" : ["g", "2"], {rest}"#),
        r#"{"gone" : ["g", "1"]}"#,
        "truncate",
    ];
    assert_eq!(told(&database).await, expected);
}

/// The trigger's WHEN clause must not cost what the storage is made for.
#[tokio::test]
async fn updates_stay_hot_under_the_triggers() {
    let database = Database::create().await;
    set_up(&database).await;
    database.run(INSERT).await;
    let other = database.another_client().await;
    other.batch_execute("SET postrider.quiet = 'on'; UPDATE pending_work SET fence = 1").await.unwrap();
    // A session's counters are there for others at the latest when it is gone.
    drop(other);
    let hot = "SELECT n_tup_hot_upd::text FROM pg_stat_all_tables WHERE relname = 'pending_work'";
    crate::database::eventually("the update is counted", async || database.text(hot).await == "2").await;
}

/// Whatever the session's own settings are, and for replicated changes, too.
#[tokio::test]
async fn what_is_told_does_not_depend_on_the_session() {
    let database = Database::create().await;
    set_up(&database).await;
    database.run(INSERT).await;
    drop(told(&database).await);
    database
        .run(
            "CREATE FUNCTION pg_temp.spy(pg_catalog.text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'seen'; END $$;
             CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (pg_temp.spy(VALUE));
             SET datestyle = 'German'; SET timezone = 'Asia/Kolkata'; SET session_replication_role = 'replica'; SET search_path = '';
             UPDATE public.pending_work SET next_attempt_at = '2026-03-01 10:00:00+00' WHERE quote_id = '1'",
        )
        .await;
    let told = told(&database).await;
    assert!(
        matches!(&told[..], [notice] if notice.contains(r#""next_attempt_at" : "2026-03-01 10:00:00+00""#)),
        "{told:?}"
    );
}

/// The message must read as UTF-8, and must never make the application's own statement fail.
#[tokio::test]
async fn a_key_in_any_encoding_is_told_in_utf8() {
    let database = Database::create().await;
    for (encoding, literal, expected) in
        [("LATIN1", "E'\\xe9'", "é".as_bytes()), ("SQL_ASCII", "E'\\xe9'", &[0xe9][..])]
    {
        let name = format!("{}_{}", database.name(), encoding.to_lowercase());
        database.run(&format!("CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")).await;
        let admin = database.client_of(&name).await;
        let mapping = canonical_mapping();
        admin.batch_execute(include_str!("../../../../sql/source/0001_create_pending_work.sql")).await.unwrap();
        let objects = SourceObjects { routing: work_only(mapping), ..quiet(&name) };
        let options = database.options_of(&name);
        apply(&options, &SetupSettings { objects, role: None }).await.unwrap();
        admin
            .batch_execute(&format!(
                "SET client_encoding = 'SQL_ASCII';
                 INSERT INTO pending_work (group_id, quote_id, stage) VALUES ('g', {literal}, 'A'); DELETE FROM pending_work"
            ))
            .await
            .unwrap();
        let sql = format!(
            "SELECT data FROM pg_logical_slot_get_binary_changes('{name}', NULL, NULL, 'proto_version', '1', \
             'publication_names', '\"{name}_work\"', 'messages', 'true') WHERE get_byte(data, 0) = ascii('M')"
        );
        let data: Vec<u8> = admin.query_one(&sql, &[]).await.unwrap().get(0);
        let wanted = [&b"{\"gone\" : [\"g\", \""[..], expected, b"\"]}"].concat();
        assert!(data.ends_with(&wanted), "{encoding}: {}", String::from_utf8_lossy(&data));
        admin.batch_execute(&format!("SELECT pg_drop_replication_slot('{name}')")).await.unwrap();
    }
}

#[tokio::test]
async fn a_second_setup_mends_the_triggers_and_check_says_what_is_loud() {
    let database = Database::create().await;
    let objects = set_up(&database).await;
    let settings = SetupSettings { objects: objects.clone(), role: None };
    let name = database.name().to_owned();
    let sentences = async || {
        let findings = check(&database.options(), &objects).await.unwrap();
        findings.into_iter().map(|finding| finding.sentence.replace(&name, "p")).collect::<Vec<_>>()
    };
    let clean = sentences().await;
    assert!(
        clean.iter().all(|sentence| !sentence.contains("transitions") && !sentence.contains("trigger")),
        "{clean:?}"
    );

    database
        .run(&format!(
            "DROP TRIGGER postrider_notice ON pending_work; ALTER PUBLICATION {name} ADD TABLE pending_work;
             ALTER PUBLICATION {name}_work SET (publish = 'insert, update')"
        ))
        .await;
    let found = sentences().await.join("\n");
    for sentence in [
        "does not tell what other sessions do to its rows",
        "The publication \"p\" has the table \"public\".\"pending_work\", too",
        "The publication \"p_work\" publishes more than inserts",
    ] {
        assert!(found.contains(sentence), "{sentence}: {found}");
    }
    let again = apply(&database.options(), &settings).await.unwrap();
    let done: Vec<_> = again.steps.iter().filter(|(_, outcome)| *outcome == StepOutcome::Done).collect();
    assert!(matches!(&done[..], [(step, _)] if step.sql.contains("CREATE OR REPLACE TRIGGER")), "{done:?}");
    assert!(!sentences().await.join("\n").contains("does not tell"));
    database.run(&format!("SELECT pg_drop_replication_slot('{name}')")).await;
}

/// The server takes two publications for one stream only where they have the same columns of a table.
#[tokio::test]
async fn a_second_publication_has_the_columns_of_the_first() {
    for (made, list) in [
        ("FOR TABLE outbox_event, pending_work", false),
        ("FOR ALL TABLES", false),
        (
            "FOR TABLE outbox_event, pending_work (group_id, quote_id, stage, stage_state, attempt_count, deferral_count, fence, epoch, next_attempt_at, lease_until, lease_owner, closed_at, definition)",
            true,
        ),
    ] {
        let database = Database::create().await;
        let name = database.name().to_owned();
        if list && database.major() < 15 {
            continue;
        }
        for file in [
            include_str!("../../../../sql/source/0001_create_pending_work.sql"),
            include_str!("../../../../sql/source/0002_create_outbox_event.sql"),
        ] {
            database.run(file).await;
        }
        database.run(&format!("CREATE PUBLICATION {name} {made}")).await;
        set_up(&database).await;
        database.run(INSERT).await;
        assert_eq!(told(&database).await, ["I", "I"], "{made}");
        if database.major() == 14 {
            database.run(&format!("SELECT pg_drop_replication_slot('{name}')")).await;
            continue;
        }
        database.run(&format!("ALTER PUBLICATION {name}_work SET TABLE pending_work (group_id, quote_id)")).await;
        let findings = check(&database.options(), &quiet(&name)).await.unwrap();
        let is_told = findings.iter().any(|finding| finding.sentence.contains("with different columns"));
        assert!(is_told, "{made}: {findings:?}");
        database.run(&format!("SELECT pg_drop_replication_slot('{name}')")).await;
    }
}

fn work_only(mapping: WorkMapping) -> postrider_core::route::Routing {
    postrider_core::route::Routing { work: Some(mapping), ..Default::default() }
}

/// What is made beside a publication that has the table with all columns has them, too, for as long as both have it.
#[tokio::test]
async fn the_payload_leaves_the_log_once_the_first_publication_has_not_the_table() {
    let database = Database::create().await;
    let name = database.name().to_owned();
    database.install_work_table().await;
    database.run(include_str!("../../../../sql/source/0002_create_outbox_event.sql")).await;
    database.run(&format!("CREATE PUBLICATION {name} FOR TABLE outbox_event, pending_work")).await;
    let objects = set_up(&database).await;
    let of_publication = async || {
        let mut findings = check(&database.options(), &objects).await.unwrap();
        findings.retain(|finding| finding.subject == Subject::Publication);
        findings
    };
    let both = of_publication().await;
    assert!(both.len() == 1 && both[0].sentence.contains("has the table"), "{both:?}");
    database.run(&both[0].hint).await;
    let alone = of_publication().await;
    if database.major() == 14 {
        assert_eq!(alone, []);
    } else {
        assert!(alone.len() == 1 && alone[0].sentence.contains(r#""payload""#), "{alone:?}");
        database.run(&alone[0].hint).await;
        assert_eq!(of_publication().await, []);
        let columns = format!(
            "SELECT array_to_string(attnames::text[], ' ') FROM pg_publication_tables WHERE pubname = '{name}_work'"
        );
        assert!(!database.text(&columns).await.contains("payload"));
    }
    database.run(&format!("SELECT pg_drop_replication_slot('{name}')")).await;
}
