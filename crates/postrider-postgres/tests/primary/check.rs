//! Every precondition broken once, and found.

use expect_test::expect;
use postrider_core::error::ErrorKind;
use postrider_core::paused::PausedPart;
use postrider_core::ports::LogSource as _;
use postrider_core::position::Lsn;
use postrider_core::work::{OwnerId, StageName};
use postrider_postgres::{
    Access, Note, Operator, PgWorkTable, ReplicationSource, SetupSettings, Severity, SourceObjects, Subject,
    WorkTableSettings, apply, check,
};
use tokio_postgres::error::SqlState;

use crate::database::{Database, canonical_mapping, canonical_objects, parse};

/// A database that is set up, with a slot that goes with it.
struct Ready {
    database: Database,
    name: String,
}

impl Ready {
    async fn create() -> Ready {
        let database = Database::create().await;
        let name = database.name().to_owned();
        let settings = SetupSettings { objects: canonical_objects(&name), role: None };
        apply(&database.options(), &settings).await.unwrap();
        Ready { database, name }
    }

    /// Breaks something and returns what is found of it, as lines without what the test's server has anyway.
    async fn broken_by(&self, statements: &str) -> Vec<String> {
        self.database.run(&statements.replace("{name}", &self.name)).await;
        let findings = check(&self.database.options(), &canonical_objects(&self.name)).await.unwrap();
        findings
            .into_iter()
            .filter(|finding| finding.subject != Subject::Server)
            .map(|finding| {
                format!("{} {} {}", finding.severity, finding.kind.code(), finding.sentence.replace(&self.name, "NAME"))
            })
            .collect()
    }

    async fn remove(self) {
        let drop = format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{}'",
            self.name
        );
        self.database.run(&drop).await;
    }
}

/// What is broken, and what is found of it. Version 14 has no column lists, so that it finds something else where they matter.
macro_rules! broken {
    ($test:ident, $statements:expr, $found:expr) => {
        broken!($test, $statements, $found, in 14: $found);
    };
    ($test:ident, $statements:expr, $found:expr, in 14: $found_in_14:expr) => {
        #[tokio::test]
        async fn $test() {
            let ready = Ready::create().await;
            let expected = if ready.database.major() == 14 { $found_in_14 } else { $found };
            let found = ready.broken_by($statements).await;
            ready.remove().await;
            expected.assert_eq(&found.join("\n"));
        }
    };
}

broken!(what_setup_makes_is_all_right, "SELECT 1", expect![[""]]);
broken!(
    a_partitioned_work_table_is_found,
    "ALTER PUBLICATION {name} DROP TABLE pending_work; ALTER TABLE pending_work RENAME TO whole;
     CREATE TABLE pending_work (LIKE whole INCLUDING ALL) PARTITION BY LIST (group_id);
     CREATE TABLE first PARTITION OF pending_work FOR VALUES IN ('g0'); CREATE TABLE second PARTITION OF pending_work DEFAULT;
     ALTER PUBLICATION {name} ADD TABLE pending_work",
    expect![[r#"
        error PR010 "public"."pending_work" is not one plain table: it is partitioned, or other tables inherit from it, or it is a view.
        warning PR010 The table "public"."pending_work" is partitioned and published via its root: rows of a table that is attached filled are not sent, nor is the truncation of a partition."#]]
);
broken!(
    what_is_not_sent_of_a_partitioned_outbox_is_said,
    "ALTER PUBLICATION {name} DROP TABLE outbox_event; ALTER TABLE outbox_event RENAME TO whole;
     CREATE TABLE outbox_event (LIKE whole INCLUDING DEFAULTS, PRIMARY KEY (id, aggregate_key)) PARTITION BY LIST (aggregate_key);
     CREATE TABLE first PARTITION OF outbox_event FOR VALUES IN ('a') PARTITION BY LIST (aggregate_key);
     CREATE TABLE leaf PARTITION OF first DEFAULT;
     ALTER PUBLICATION {name} ADD TABLE outbox_event; ALTER PUBLICATION {name} SET (publish_via_partition_root = false)",
    expect![[r#"
        error PR010 The publication "NAME" does not have the table "public"."outbox_event".
        warning PR010 The table "public"."outbox_event" is partitioned and published by its partitions: rows of a table that is attached filled are not sent, and a detached one falls silent."#]]
);
broken!(
    a_missing_slot_is_found,
    "SELECT pg_drop_replication_slot('{name}')",
    expect![[r#"error PR004 There is no replication slot "NAME" for the database "NAME"."#]]
);
broken!(
    a_foreign_slot_is_found,
    "SELECT pg_drop_replication_slot('{name}'); SELECT pg_create_logical_replication_slot('{name}', 'test_decoding')",
    expect![[r#"error PR007 The slot "NAME" is one for plugin "test_decoding"."#]]
);
broken!(
    a_two_phase_slot_that_nobody_asked_for_is_said,
    "SELECT pg_drop_replication_slot('{name}'); SELECT pg_create_logical_replication_slot('{name}', 'pgoutput', false, true)",
    expect![[
        r#"note PR007 The slot "NAME" is marked for two-phase commit: prepared transactions are kept until their verdict."#
    ]]
);
broken!(
    a_slot_that_is_older_than_its_publication_is_found,
    "DROP PUBLICATION {name};
     INSERT INTO pending_work (group_id, quote_id, stage) VALUES ('g', 'q', 'PRICING');
     CREATE PUBLICATION {name} FOR TABLE outbox_event, pending_work WITH (publish_via_partition_root = true)",
    expect![[
        r#"error PR008 The slot "NAME" is older than the publication "NAME": the stream ends with an error at the first change from before, each time."#
    ]]
);
broken!(
    a_publication_that_was_altered_behind_the_slot_is_all_right,
    "INSERT INTO pending_work (group_id, quote_id, stage) VALUES ('g', 'q', 'PRICING');
     ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')",
    expect![[""]]
);
broken!(
    a_missing_publication_is_found,
    "DROP PUBLICATION {name}",
    expect![[r#"error PR008 There is no publication "NAME"."#]]
);
broken!(
    a_publication_without_our_tables_is_found,
    "ALTER PUBLICATION {name} DROP TABLE pending_work, outbox_event",
    expect![[r#"
        error PR010 The publication "NAME" does not have the table "public"."outbox_event".
        error PR010 The publication "NAME" does not have the table "public"."pending_work"."#]]
);
broken!(
    a_publication_that_holds_actions_back_is_found,
    "ALTER PUBLICATION {name} SET (publish = 'insert, delete')",
    expect![[r#"
        error PR008 The publication "NAME" does not publish update.
        note PR008 The publication "NAME" does not publish truncate, so that nobody is told of one."#]]
);
broken!(
    tables_whose_updates_would_fail_are_found,
    "ALTER TABLE pending_work REPLICA IDENTITY FULL; ALTER TABLE outbox_event DROP CONSTRAINT outbox_event_pkey",
    expect![[r#"
        error PR010 The table "public"."outbox_event" has no replica identity: once it is published, the application's updates and deletes of it fail.
        error PR010 The table "public"."pending_work" has replica identity FULL and is published with a column list: the application's updates of it fail."#]],
    in 14: expect![[r#"
        error PR010 The table "public"."outbox_event" has no replica identity: once it is published, the application's updates and deletes of it fail.
        warning PR010 The table "public"."pending_work" has replica identity FULL: each update writes the whole old row into the log."#]]
);
broken!(
    columns_that_are_missing_or_of_another_type_are_found,
    "ALTER TABLE pending_work DROP COLUMN request_hash, ALTER updated_at TYPE timestamp; ALTER TABLE outbox_event DROP COLUMN topic CASCADE",
    expect![[r#"
        error PR010 The publication "NAME" leaves out columns of "public"."outbox_event" that we need: "topic".
        error PR010 The table "public"."outbox_event" has no column "topic".
        error PR010 The table "public"."pending_work" has no column "request_hash".
        error PR010 The column "updated_at" of "public"."pending_work" is of type timestamp."#]],
    in 14: expect![[r#"
        error PR010 The table "public"."outbox_event" has no column "topic".
        error PR010 The table "public"."pending_work" has no column "request_hash".
        error PR010 The column "updated_at" of "public"."pending_work" is of type timestamp."#]]
);
broken!(
    columns_that_may_be_null_are_found,
    "ALTER TABLE pending_work ALTER stage_state DROP NOT NULL, ALTER fence DROP NOT NULL",
    expect![[r#"
        warning PR010 The column "stage_state" of "public"."pending_work" may be NULL: nobody reads a row where it is, and nobody starts it.
        warning PR010 The column "fence" of "public"."pending_work" may be NULL: nobody reads a row where it is, and nobody starts it."#]]
);
broken!(
    a_key_that_is_not_unique_is_found,
    "ALTER TABLE pending_work DROP CONSTRAINT pending_work_pkey, ADD PRIMARY KEY (group_id, quote_id, stage)",
    expect![[r#"
        error PR010 The key ("group_id", "quote_id") of "public"."pending_work" has no unique index of just these columns.
        warning PR010 The index pending_work_pkey of "public"."pending_work" mentions "stage": no transition of a row is a HOT update any more."#]]
);
broken!(
    storage_that_costs_hot_updates_is_found,
    "CREATE INDEX due ON pending_work (group_id) WHERE next_attempt_at IS NOT NULL; CREATE INDEX low ON pending_work (lower(stage_state)); \
     DROP INDEX pending_work_open_idx; ALTER TABLE pending_work RESET (fillfactor)",
    expect![[r#"
        warning PR010 The index due of "public"."pending_work" mentions "next_attempt_at": no transition of a row is a HOT update any more.
        warning PR010 The index low of "public"."pending_work" mentions "stage_state": no transition of a row is a HOT update any more.
        warning PR010 The table "public"."pending_work" has no index of its open rows: at each start all rows are read.
        warning PR010 The table "public"."pending_work" has fillfactor 100: a burst of updates finds no room on its pages."#]]
);
broken!(
    missing_tables_are_found,
    "DROP TABLE outbox_event, pending_work",
    expect![[r#"
        error PR010 There is no table "public"."outbox_event".
        error PR010 There is no table "public"."pending_work"."#]]
);

/// The cause is named, with what the publication has now, and nothing that follows from it.
#[tokio::test]
async fn a_table_that_was_renamed_or_moved_is_named_and_setup_makes_no_other() {
    let database = Database::create().await;
    let name = database.name().to_owned();
    let objects = SourceObjects { quiet: true, same_tx: true, ..canonical_objects(&name) };
    let settings = SetupSettings { objects: objects.clone(), role: None };
    apply(&database.options(), &settings).await.unwrap();
    for (rename, undo, there) in [
        ("ALTER TABLE pending_work RENAME TO work", "ALTER TABLE work RENAME TO pending_work", r#""public"."work""#),
        (
            "CREATE SCHEMA elsewhere; ALTER TABLE pending_work SET SCHEMA elsewhere",
            "ALTER TABLE elsewhere.pending_work SET SCHEMA public",
            r#""elsewhere"."pending_work""#,
        ),
    ] {
        database.run(rename).await;
        let mut findings = check(&database.options(), &objects).await.unwrap();
        findings.retain(|finding| finding.severity == Severity::Error);
        let sentences: Vec<_> = findings.iter().map(|finding| finding.sentence.as_str()).collect();
        assert_eq!(sentences, [r#"There is no table "public"."pending_work"."#], "{rename}");
        let has = format!("The publication has {there}, which the configuration does not name.");
        assert!(findings[0].hint.starts_with(&has), "{}", findings[0].hint);
        let refused = apply(&database.options(), &settings).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Table, "{}", refused.report());
        assert!(refused.hint().unwrap().starts_with(&has), "{}", refused.report());
        assert_eq!(database.text("SELECT (to_regclass('public.pending_work') IS NULL)::text").await, "true");
        database.run(undo).await;
    }
    let again = apply(&database.options(), &settings).await.unwrap();
    assert!(again.differences.iter().all(|finding| finding.severity != Severity::Error), "{:?}", again.differences);
    database.run(&format!("SELECT pg_drop_replication_slot('{name}')")).await;
}

/// From version 15 on: 14 has neither row filters nor column lists, and refuses the statement.
#[tokio::test]
async fn a_row_filter_and_a_short_column_list_are_found() {
    let ready = Ready::create().await;
    let statement = "ALTER PUBLICATION {name} SET TABLE outbox_event WHERE (id IS NOT NULL), pending_work (group_id, quote_id, stage)";
    if ready.database.major() == 14 {
        let refused = ready.database.admin.batch_execute(&statement.replace("{name}", &ready.name)).await.unwrap_err();
        assert_eq!(refused.code(), Some(&SqlState::SYNTAX_ERROR));
        ready.remove().await;
        return;
    }
    let found = ready.broken_by(statement).await;
    for finding in check(&ready.database.options(), &canonical_objects(&ready.name)).await.unwrap() {
        if finding.subject == Subject::Publication {
            ready.database.run(statements(&finding.hint)).await;
        }
    }
    assert!(ready.broken_by("SELECT 1").await.is_empty(), "what is printed cures it");
    ready.remove().await;
    expect![[r#"
        error PR010 The publication "NAME" filters the rows of "public"."outbox_event".
        error PR010 The publication "NAME" leaves out columns of "public"."pending_work" that we need: "stage_state", "attempt_count", "deferral_count", "fence", "epoch", "next_attempt_at", "lease_until", "lease_owner", "closed_at", "definition"."#]]
    .assert_eq(&found.join("\n"));
}

#[tokio::test]
async fn a_role_without_rights_is_told_which() {
    let ready = Ready::create().await;
    let name = &ready.name;
    ready
        .database
        .run(&format!("CREATE ROLE {name}_poor LOGIN PASSWORD 'secret'; GRANT SELECT, UPDATE (fence) ON pending_work TO {name}_poor"))
        .await;
    let options = parse(&ready.database.cluster.url_as(&format!("{name}_poor"), "secret", name));
    let findings = check(&options, &canonical_objects(name)).await.unwrap();
    let lines: Vec<_> = findings
        .iter()
        .filter(|finding| finding.kind == ErrorKind::Privilege)
        .map(|finding| format!("{} {}", finding.severity, finding.sentence))
        .collect();
    ready.remove().await;
    expect![[r#"
        error Our role may not use replication.
        error Our role lacks the privilege UPDATE ("updated_at", "next_attempt_at", "lease_until", "closed_at", "attempt_count", "deferral_count", "stage", "stage_state", "lease_owner", "request_hash", "last_error", "definition") on "public"."pending_work".
        error Our role may not use the schema postrider.
        error Our role lacks the privilege SELECT, INSERT, DELETE on postrider.work_history.
        error Our role lacks the privilege SELECT on postrider.operator_actions.
        error Our role lacks the privilege SELECT on postrider.pauses.
        warning Our role lacks the privilege SELECT on "public"."outbox_event"."#]]
    .assert_eq(&lines.join("\n"));
}

/// The statements of a hint, from the first word of SQL to the last semicolon.
fn statements(hint: &str) -> &str {
    let begin =
        ["BEGIN;", "GRANT ", "ALTER ", "CREATE ", "SELECT "].into_iter().filter_map(|word| hint.find(word)).min();
    let text = &hint[begin.unwrap_or_else(|| panic!("nothing to type: {hint}"))..];
    &text[..=text.rfind(';').unwrap_or_else(|| panic!("no statement: {hint}"))]
}

#[tokio::test]
async fn what_a_finding_says_to_type_can_be_pasted_and_cures_it() {
    let ready = Ready::create().await;
    let objects = canonical_objects(&ready.name);
    ready
        .database
        .run(
            "ALTER TABLE pending_work DROP COLUMN request_hash, DROP COLUMN last_error, DROP COLUMN updated_at; \
             DROP INDEX pending_work_open_idx; ALTER TABLE pending_work RESET (fillfactor)",
        )
        .await;
    let found = async || {
        let mut findings = check(&ready.database.options(), &objects).await.unwrap();
        findings.retain(|finding| finding.subject != Subject::Server);
        findings
    };
    let findings = found().await;
    assert_eq!(findings.len(), 5, "{findings:?}");
    for finding in findings {
        ready.database.run(statements(&finding.hint)).await;
    }
    assert_eq!(found().await, []);
    ready.remove().await;
}

#[tokio::test]
async fn a_foreign_slot_is_dropped_by_what_is_printed() {
    let ready = Ready::create().await;
    let name = &ready.name;
    ready
        .database
        .run(&format!("SELECT pg_drop_replication_slot('{name}'); SELECT pg_create_logical_replication_slot('{name}', 'test_decoding')"))
        .await;
    let findings = check(&ready.database.options(), &canonical_objects(name)).await.unwrap();
    let foreign = findings.iter().find(|finding| finding.kind == ErrorKind::SlotForeign).unwrap();
    ready.database.run(statements(&foreign.hint)).await;
    let findings = check(&ready.database.options(), &canonical_objects(name)).await.unwrap();
    assert!(findings.iter().any(|finding| finding.kind == ErrorKind::SlotMissing), "{findings:?}");
}

/// The server keeps what the oldest slot needs of the catalogue, so that a new one seems older than it is.
#[tokio::test]
async fn a_slot_that_only_seems_older_than_its_publication_is_all_right() {
    let database = Database::create_alone().await;
    let (name, objects) = (database.name().to_owned(), canonical_objects(database.name()));
    database.run("SELECT pg_create_logical_replication_slot('oldest', 'pgoutput')").await;
    apply(&database.options(), &SetupSettings { objects: objects.clone(), role: None }).await.unwrap();
    database.run("INSERT INTO pending_work (group_id, quote_id, stage) VALUES ('g', 'q', 'PRICING')").await;
    let suspicious = format!(
        "SELECT (age(p.xmin) <= age(s.catalog_xmin))::text FROM pg_publication AS p JOIN pg_replication_slots AS s ON s.slot_name = p.pubname \
         WHERE p.pubname = '{name}'"
    );
    assert_eq!(database.text(&suspicious).await, "true");
    let of_slot = async || {
        let mut findings = check(&database.options(), &objects).await.unwrap();
        findings.retain(|finding| finding.subject == Subject::Slot);
        findings
    };
    assert_eq!(of_slot().await, []);
    // While somebody reads from the slot nobody else can look.
    let source = ReplicationSource::new(database.options(), name.as_str(), name.as_str());
    let reading = source.open(Lsn::ZERO).await.unwrap();
    let findings = of_slot().await;
    let told: Vec<_> = findings.iter().map(|finding| (finding.severity, finding.kind)).collect();
    assert_eq!(told, [(Severity::Note, ErrorKind::PublicationMissing), (Severity::Note, ErrorKind::SlotInUse)]);
    assert!(
        findings[0].sentence.contains("may be older") && findings[0].hint.contains("ALTER PUBLICATION"),
        "{findings:?}"
    );
    drop(reading);
}

/// A role whose name must be quoted, in a database where the public may do less than usual.
#[tokio::test]
async fn a_role_that_could_not_claim_is_refused_at_the_start_and_told_what_to_grant() {
    let ready = Ready::create().await;
    let name = &ready.name;
    ready
        .database
        .run(&format!(
            "CREATE ROLE \"{name}_Poor\" LOGIN REPLICATION PASSWORD 'secret'; REVOKE ALL ON SCHEMA public FROM PUBLIC; \
             DO $$ DECLARE f regprocedure; BEGIN \
               FOR f IN SELECT oid::regprocedure FROM pg_proc WHERE proname = 'pg_logical_emit_message' LOOP \
                 EXECUTE 'REVOKE EXECUTE ON FUNCTION ' || f || ' FROM PUBLIC'; END LOOP; END $$"
        ))
        .await;
    let options = parse(&ready.database.cluster.url_as(&format!("{name}_Poor"), "secret", name));
    let open =
        async || PgWorkTable::open(options.clone(), &canonical_mapping(), &WorkTableSettings::new(OwnerId(1))).await;
    let refused = open().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Privilege, "{}", refused.report());
    for word in ["the schema of", "privilege SELECT on", "privilege UPDATE (\"fence\",", "pg_logical_emit_message("] {
        assert!(refused.detail().unwrap().contains(word), "{word}: {}", refused.report());
    }
    let lacking = async || {
        let mut findings = check(&options, &canonical_objects(name)).await.unwrap();
        findings.retain(|finding| finding.kind == ErrorKind::Privilege);
        findings
    };
    let of_outbox: Vec<_> =
        lacking().await.into_iter().filter(|finding| finding.severity == Severity::Warning).collect();
    ready.database.run(statements(refused.hint().unwrap())).await;
    open().await.unwrap();
    // Whoever holds a stage back calls another function of that name.
    let operator = async || Operator::open(&options, &canonical_mapping(), true, Access::Pause).await;
    let refused = operator().await.unwrap_err();
    assert!(refused.detail().unwrap().contains("pg_logical_emit_message(boolean, text, bytea"), "{}", refused.report());
    ready.database.run(statements(refused.hint().unwrap())).await;
    let part = PausedPart::Stage { stage: StageName::new("PRICING"), definition: None };
    let note = Note { verb: "stage pause".into(), who: "ada".into(), why: "x".into(), evidence: None };
    assert!(operator().await.unwrap().pause(&part, &note).await.unwrap());
    for finding in of_outbox {
        ready.database.run(statements(&finding.hint)).await;
    }
    assert_eq!(lacking().await, []);
    ready.database.run(&format!("ALTER ROLE \"{name}_Poor\" NOREPLICATION")).await;
    let findings = lacking().await;
    assert_eq!(findings.len(), 1, "{findings:?}");
    ready.database.run(statements(&findings[0].hint["As a superuser: ".len()..])).await;
    assert_eq!(lacking().await, []);
    ready.remove().await;
}

#[tokio::test]
async fn a_database_that_takes_any_bytes_is_found() {
    let database = Database::create().await;
    let name = format!("{}_ascii", database.name());
    database
        .run(&format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"))
        .await;
    let findings = check(&parse(&database.cluster.url_of(&name)), &canonical_objects(&name)).await.unwrap();
    let encoding: Vec<_> = findings.iter().filter(|finding| finding.sentence.contains("SQL_ASCII")).collect();
    assert_eq!((encoding.len(), encoding[0].severity), (1, Severity::Warning), "{findings:?}");
}

#[tokio::test]
async fn settings_of_the_server_that_cost_something_are_found() {
    let mut database = Database::create_alone().await;
    let name = database.name().to_owned();
    for (setting, value) in [("wal_level", "replica"), ("wal_sender_timeout", "0"), ("synchronous_commit", "off")] {
        database.cluster.set(setting, value).unwrap();
    }
    database.restart(xtask::postgres::Shutdown::Fast).await;
    let settings = SetupSettings { objects: canonical_objects(&name), role: None };
    assert_eq!(apply(&database.options(), &settings).await.unwrap_err().kind(), ErrorKind::WalLevel);
    let findings = check(&database.options(), &canonical_objects(&name)).await.unwrap();
    let mut lines: Vec<_> = findings
        .iter()
        .filter(|finding| finding.subject == Subject::Server)
        .map(|finding| format!("{} {} {}", finding.severity, finding.kind.code(), finding.sentence))
        .collect();
    if database.major() == 14 {
        let of_the_version =
            "note PR001 PostgreSQL 14 sends transactions that hold nothing for us, and work rows with their payload.";
        assert_eq!(lines.pop().as_deref(), Some(of_the_version));
    }
    expect![[r#"
        error PR009 The server's wal_level is not logical.
        warning PR001 The server's fsync is off: after a crash of the machine a claim that was acted on may be forgotten.
        warning PR001 synchronous_commit is off: a commit is seen in the log up to three times wal_writer_delay later. Our own sessions set it on.
        warning PR001 max_slot_wal_keep_size is unlimited: while Postrider is away the server keeps its log until the disk is full.
        warning PR001 wal_sender_timeout is off: the slot stays taken for as long as the server does not notice that a reader is gone."#]]
    .assert_eq(&lines.join("\n"));
    assert!(findings.iter().any(|finding| finding.severity == Severity::Error));
}
