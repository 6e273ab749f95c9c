//! Setting a database up, and doing so again.

use std::time::Duration;

use expect_test::expect;
use postrider_core::error::ErrorKind;
use postrider_core::ports::{ClaimReply, ClaimRequest, Primary, Transition, WorkTable};
use postrider_core::route::WorkMapping;
use postrider_core::work::{DefinitionName, OwnerId, StageName, WorkKey};
use postrider_postgres::{
    Circumstances, PgPrimary, PgWorkTable, SetupSettings, Severity, SourceObjects, StepObject, StepOutcome,
    WorkIdentity, WorkTableSettings, apply, check, plan,
};

use crate::database::{Database, canonical_mapping, canonical_objects, parse};

fn settings(name: &str) -> SetupSettings {
    SetupSettings { objects: canonical_objects(name), role: Some(format!("{name}_role")) }
}

#[test]
fn the_plan_prints_the_publication_before_the_slot() {
    let steps = plan(&settings("quoting"), &Circumstances::unseen(15, &canonical_objects("quoting"))).unwrap();
    let statements: Vec<_> =
        steps.iter().filter(|step| !step.sql.contains("CREATE TABLE")).map(|step| step.sql.as_str()).collect();
    expect![[r#"
        CREATE PUBLICATION "quoting" FOR TABLE "public"."outbox_event", "public"."pending_work" ("group_id", "quote_id", "stage", "stage_state", "attempt_count", "deferral_count", "fence", "epoch", "next_attempt_at", "lease_until", "lease_owner", "closed_at", "definition")
            WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = true);
        CREATE ROLE "quoting_role" LOGIN REPLICATION;
        GRANT USAGE ON SCHEMA "public" TO "quoting_role";
        GRANT SELECT ON "public"."outbox_event" TO "quoting_role";
        GRANT SELECT ON "public"."pending_work" TO "quoting_role";
        GRANT UPDATE ("stage", "stage_state", "attempt_count", "deferral_count", "fence", "next_attempt_at", "lease_until", "lease_owner", "request_hash", "last_error", "updated_at", "definition", "closed_at") ON "public"."pending_work" TO "quoting_role";
        GRANT USAGE ON SCHEMA postrider TO "quoting_role";
        GRANT SELECT, INSERT, DELETE ON postrider.work_history TO "quoting_role";
        GRANT SELECT ON postrider.operator_actions TO "quoting_role";
        GRANT SELECT ON postrider.pauses TO "quoting_role";
        SELECT pg_create_logical_replication_slot('quoting', 'pgoutput');"#]]
    .assert_eq(&statements.join("\n"));
}

#[test]
fn there_is_no_column_list_where_it_would_do_harm() {
    let canonical = canonical_objects("quoting");
    let mut own = canonical.clone();
    own.routing.work = Some(WorkMapping { table: "work".to_owned(), ..canonical_mapping() });
    for (objects, circumstances, table) in [
        (&canonical, Circumstances::unseen(14, &canonical), "pending_work"),
        (
            &canonical,
            Circumstances { work_identity: WorkIdentity::Full, ..Circumstances::unseen(15, &canonical) },
            "pending_work",
        ),
        // Its rows may be identified by another key than the mapped one, or by all columns.
        (&own, Circumstances::unseen(15, &own), "work"),
    ] {
        let steps = plan(&SetupSettings { objects: objects.clone(), role: None }, &circumstances).unwrap();
        let publication = steps.iter().find(|step| matches!(step.object, StepObject::Publication { .. })).unwrap();
        assert!(publication.sql.contains(&format!("\"public\".\"{table}\"\n    WITH")), "{}", publication.sql);
        assert_eq!(publication.purpose.contains("`postrider setup` asks"), table == "work", "{}", publication.purpose);
    }
}

#[tokio::test]
async fn a_second_setup_keeps_what_the_first_made() {
    let database = Database::create().await;
    let name = database.name().to_owned();
    let first = apply(&database.options(), &settings(&name)).await.unwrap();
    let done = [StepOutcome::Done; 9];
    assert_eq!(first.steps.iter().map(|(_, outcome)| *outcome).collect::<Vec<_>>(), done);
    let second = apply(&database.options(), &settings(&name)).await.unwrap();
    let kept = [StepOutcome::Kept; 7];
    let outcomes: Vec<_> = second.steps.iter().map(|(_, outcome)| *outcome).collect();
    assert_eq!(outcomes, [&kept[..], &[StepOutcome::Done, StepOutcome::Kept]].concat());
    database.run(&format!("ALTER PUBLICATION {name} DROP TABLE outbox_event")).await;
    let third = apply(&database.options(), &settings(&name)).await.unwrap();
    assert!(
        third.differences.iter().any(|finding| finding.sentence.contains("does not have the table")),
        "{:?}",
        third.differences
    );
    database.run(&format!("SELECT pg_drop_replication_slot('{name}')")).await;
}

#[tokio::test]
async fn a_table_that_could_no_longer_be_updated_is_not_published() {
    let database = Database::create().await;
    let name = database.name().to_owned();
    let mut objects = canonical_objects(&name);
    objects.observe = true;
    objects.history = false;
    objects.routing.outbox_tables.clear();
    objects.routing.work =
        Some(WorkMapping { table: "jobs".to_owned(), key: vec!["id".to_owned()], fence: None, ..canonical_mapping() });
    let settings = SetupSettings { objects: objects.clone(), role: None };
    database.run("CREATE TABLE jobs (id int NOT NULL UNIQUE, stage text, stage_state text)").await;
    for undone in [
        "SELECT",
        "ALTER TABLE jobs ADD PRIMARY KEY (id); ALTER TABLE jobs REPLICA IDENTITY NOTHING",
        // The server does not name rows by a key that may be broken until the commit.
        "ALTER TABLE jobs DROP CONSTRAINT jobs_pkey, ADD PRIMARY KEY (id) DEFERRABLE, REPLICA IDENTITY DEFAULT",
    ] {
        database.run(undone).await;
        let error = apply(&database.options(), &settings).await.unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::Table, "a table has no replica identity"), "{undone}");
        assert_eq!(database.text("SELECT count(*)::text FROM pg_publication").await, "0", "{undone}");
        let findings = check(&database.options(), &objects).await.unwrap();
        assert!(
            findings.iter().any(|finding| finding.sentence.contains("has no replica identity")),
            "{undone}: {findings:?}"
        );
    }
    database.run("ALTER TABLE jobs REPLICA IDENTITY USING INDEX jobs_id_key").await;
    let report = apply(&database.options(), &settings).await.unwrap();
    assert_eq!(report.steps.len(), 2);
    database.run("INSERT INTO jobs VALUES (1); UPDATE jobs SET stage = 'A'; DELETE FROM jobs").await;
    // What executing would take is no fault of a table that is looked at.
    let lacking: Vec<_> = report
        .differences
        .iter()
        .filter(|finding| finding.sentence.contains("no column for"))
        .map(|finding| (finding.severity, finding.hint.as_str()))
        .collect();
    let addition = "To execute here: ALTER TABLE \"public\".\"jobs\" ADD COLUMN \"fence\" bigint NOT NULL DEFAULT 0;";
    assert_eq!(lacking, [(Severity::Note, addition)]);
    database.run(&format!("SELECT pg_drop_replication_slot('{name}')")).await;
}

#[tokio::test]
async fn a_slot_that_is_not_for_us_is_refused_before_anything_is_made() {
    let (database, other) = (Database::create().await, Database::create().await);
    let name = other.name().to_owned();
    other.run(&format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")).await;
    let settings = SetupSettings { objects: canonical_objects(&name), role: None };
    let refused = apply(&database.options(), &settings).await.unwrap_err();
    assert_eq!((refused.kind(), refused.kind().exit_code()), (ErrorKind::SlotForeign, 4), "{}", refused.report());
    assert!(refused.detail().unwrap().contains(&format!("is in database \"{name}\"")), "{}", refused.report());
    assert!(refused.hint().unwrap().contains("Name a slot of ours"), "{}", refused.report());
    assert_eq!(database.text("SELECT (to_regclass('outbox_event') IS NULL)::text").await, "true");
    other.run(&format!("SELECT pg_drop_replication_slot('{name}')")).await;
}

/// What is published behind the slot is not there for it until it stands behind that, and whoever was writing has ended.
#[tokio::test]
async fn a_publication_behind_the_slot_comes_with_the_place_to_wait_for() {
    let database = Database::create_alone().await;
    let name = database.name().to_owned();
    let loud = SetupSettings { objects: canonical_objects(&name), role: None };
    let first = apply(&database.options(), &loud).await.unwrap();
    assert_eq!(first.wait_for, None, "the slot comes after it");
    let writer = database.another_client().await;
    writer
        .batch_execute("BEGIN; INSERT INTO outbox_event (aggregate_key, event_type, payload) VALUES ('k', 't', '{}')")
        .await
        .unwrap();
    let quiet = SetupSettings { objects: SourceObjects { quiet: true, ..loud.objects }, role: None };
    let second = apply(&database.options(), &quiet).await.unwrap();
    let statement = second.wait_statement(&name).unwrap();
    assert!(apply(&database.options(), &quiet).await.unwrap().wait_for.is_some(), "it is told until it is over");
    let read_on = async || {
        // The server writes down which transactions run, and the slot follows once what came before is confirmed.
        for _ in 0..2 {
            database.run("CHECKPOINT").await;
            let all = format!(
                "SELECT count(*)::text FROM pg_logical_slot_get_binary_changes('{name}', NULL, NULL, 'proto_version', '1', \
                   'publication_names', '\"{name}\"')"
            );
            database.text(&all).await;
        }
        database.admin.query_one(&statement, &[]).await.unwrap().get::<_, bool>(0)
    };
    assert!(!read_on().await, "a transaction from before is running");
    writer.batch_execute("COMMIT").await.unwrap();
    assert!(read_on().await);
    assert_eq!(apply(&database.options(), &quiet).await.unwrap().wait_for, None);
}

#[tokio::test]
async fn the_role_can_do_its_work_and_nothing_else() {
    let database = Database::create().await;
    let name = database.name().to_owned();
    apply(&database.options(), &settings(&name)).await.unwrap();
    database
        .run(&format!("ALTER ROLE {name}_role PASSWORD 'secret'; INSERT INTO pending_work (group_id, quote_id, stage) VALUES ('g', 'q', 'PRICING')"))
        .await;
    let options = parse(&database.cluster.url_as(&format!("{name}_role"), "secret", &name));
    let errors: Vec<_> = check(&options, &canonical_objects(&name)).await.unwrap();
    assert!(errors.iter().all(|finding| finding.kind != ErrorKind::Privilege), "{errors:?}");
    let owner = OwnerId(1);
    let settings = WorkTableSettings { owner_grace: Duration::ZERO, ..WorkTableSettings::new(owner) };
    let table = PgWorkTable::open(options.clone(), &canonical_mapping(), &settings).await.unwrap();
    let request = ClaimRequest {
        key: WorkKey::new(["g", "q"]),
        stage: StageName::new("PRICING"),
        seen_fence: 0,
        attempt_limit: 1,
        lease: Duration::from_secs(60),
        take_over: false,
        definition: DefinitionName::new("quote@1"),
        refusal: None,
        untold: None,
    };
    // Two requests, so that the statement for batches is run, which locks rows.
    let other = ClaimRequest { key: WorkKey::new(["g", "none"]), ..request.clone() };
    let replies = table.claim(owner, &[request, other], &[]).await.unwrap();
    let [ClaimReply::Claimed(claim)] = &replies[..] else { panic!("a claim") };
    let finish = postrider_core::ports::Checkpoint {
        key: claim.key.clone(),
        stage: claim.stage.clone(),
        fence: claim.fence,
        status: None,
        transition: Transition::Finish,
        claim: None,
        untold: None,
    };
    assert_eq!(table.checkpoint(owner, &[finish]).await.unwrap().len(), 1);
    assert!(table.living_owners().await.unwrap().unwrap().contains(&owner));
    let primary = PgPrimary::new(options.clone(), &name);
    primary.beat(None).await.unwrap();
    primary.slot().await.unwrap();
    let (client, _task) = postrider_postgres::connect_client(&options).await.unwrap();
    for refused in [
        "UPDATE public.pending_work SET payload = NULL",
        "INSERT INTO public.pending_work (group_id, quote_id, stage) VALUES ('a', 'b', 'c')",
        "DELETE FROM public.pending_work",
        "UPDATE public.outbox_event SET published_at = now()",
        "DELETE FROM public.outbox_event",
        "UPDATE postrider.work_history SET reason = NULL",
        "TRUNCATE postrider.work_history",
        "DELETE FROM postrider.operator_actions",
        "DELETE FROM postrider.pauses",
    ] {
        let error = client.batch_execute(refused).await.unwrap_err();
        assert_eq!(error.code().map(tokio_postgres::error::SqlState::code), Some("42501"), "{refused}");
    }
    database.run(&format!("SELECT pg_drop_replication_slot('{name}')")).await;
}
