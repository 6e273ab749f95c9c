//! The function by which receivers move rows on, on a real server: which rows it moves, and what it leaves of them.

use std::sync::Arc;

use expect_test::expect;
use postrider_core::guard::{after_advance, may_advance};
use postrider_core::ports::{Claim, Transition, WorkTable};
use postrider_core::route::WorkMapping;
use postrider_core::stage::Next;
use postrider_core::work::{StageName, StageState, StateWords};
use postrider_postgres::{
    PgWorkTable, SetupSettings, SourceObjects, Step, StepObject, StepOutcome, WorkTableSettings, apply, check,
};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

use crate::database::{Database, canonical_mapping, canonical_objects, eventually};
use crate::work_table::{ONE, TWO, ask, claim_one, claimed, insert_rows, key, open, outcome, read_one};

const STALE: &str = "PRF01";

fn same_tx(name: &str) -> SourceObjects {
    SourceObjects { same_tx: true, ..canonical_objects(name) }
}

/// A database that is set up, with so many rows in PRICING and a table of business rows.
async fn with_rows(count: usize) -> Database {
    let database = Database::create().await;
    database.install_work_table().await;
    database.run(include_str!("../../../../sql/receiver/0003_create_advance_stage.sql")).await;
    database.run("CREATE TABLE policies (quote text)").await;
    insert_rows(&database, 0..count).await;
    database
}

async fn advance(client: &Client, number: usize, stage: &str, fence: i64, next: &str) -> Result<(), Error> {
    let parts: Vec<String> = key(number).parts().map(str::to_owned).collect();
    let call = "SELECT postrider_advance_pending_work($1, $2, $3, $4)";
    client.execute(call, &[&parts, &stage, &fence, &next]).await.map(drop)
}

fn code(outcome: Result<(), Error>) -> String {
    let error = outcome.expect_err("the call is refused");
    error.code().map_or_else(|| error.to_string(), |code| code.code().to_owned())
}

async fn started(database: &Database, numbers: std::ops::Range<usize>) -> (PgWorkTable, Vec<Claim>) {
    let table = open(database, ONE).await;
    let requests: Vec<_> = numbers.map(|number| ask(key(number), 0)).collect();
    let claims = claimed(table.claim(ONE, &requests, &[]).await.unwrap());
    (table, claims)
}

/// Whichever of the two writes it, the row is the same, but for the fence that only the claim's holder may leave as it is.
#[tokio::test]
async fn what_a_receiver_writes_is_what_a_checkpoint_writes() {
    let database = with_rows(4).await;
    let (table, mut claims) = started(&database, 0..4).await;
    database.run("UPDATE pending_work SET deferral_count = 3, last_error = 'EARLIER'").await;
    claims.sort_by(|a, b| a.key.parts().nth(1).cmp(&b.key.parts().nth(1)));
    let to = Transition::Advance { next: StageName::new("APPROVAL") };
    let ours = [outcome(&claims[0], to), outcome(&claims[1], Transition::Finish)];
    assert_eq!(table.checkpoint(ONE, &ours).await.unwrap().len(), 2);
    advance(&database.admin, 2, "PRICING", 1, "APPROVAL").await.unwrap();
    advance(&database.admin, 3, "PRICING", 1, "DONE").await.unwrap();
    let rows = "SELECT string_agg(concat_ws(' ', quote_id, stage, stage_state, attempt_count, deferral_count, 'f' || fence, epoch, definition,
           'due ' || next_attempt_at, 'lease ' || lease_until, 'owner ' || lease_owner, 'hash ' || left(encode(request_hash, 'hex'), 4),
           'error ' || last_error, CASE WHEN closed_at IS NOT NULL THEN 'closed' END, updated_at > created_at), E'\\n' ORDER BY quote_id) FROM pending_work";
    expect![[r"
        q00000 APPROVAL PENDING 0 0 f1 0 quote@1 t
        q00001 PRICING DONE 1 3 f1 0 quote@1 hash e5d5 closed t
        q00002 APPROVAL PENDING 0 0 f2 0 quote@1 t
        q00003 PRICING DONE 1 3 f2 0 quote@1 hash 389d closed t"]]
    .assert_eq(&database.text(rows).await);
    let told = "SELECT string_agg(concat_ws(' ', key[2], stage, definition, attempt || '/' || deferrals, 'f' || fence, ltrim(owner, '0'), outcome,
           reason, '->', next_stage, next_state, started_at <= ended_at), E'\\n' ORDER BY key) FROM postrider.work_history WHERE outcome <> 'done'";
    expect![[r"
        q00002 PRICING quote@1 1/3 f1 1 done_by_receiver -> APPROVAL PENDING t
        q00003 PRICING quote@1 1/3 f1 1 done_by_receiver -> PRICING DONE t"]]
    .assert_eq(&database.text(told).await);
}

/// The simulation and the model run core's guard; here it is held against the function, over every state of a row.
#[tokio::test]
async fn the_function_allows_what_the_guard_allows_and_leaves_what_it_says() {
    let database = with_rows(1).await;
    let table = open(&database, ONE).await;
    let mut moved = 0;
    for state in StageState::ALL {
        for (closed, fence, stage) in [
            (false, 5, "PRICING"),
            (true, 5, "PRICING"),
            (false, 4, "PRICING"),
            (false, 6, "PRICING"),
            (false, 5, "BINDING"),
        ] {
            for next in [Next::Stage(StageName::new("APPROVAL")), Next::End] {
                database
                    .run(&format!(
                        "UPDATE pending_work SET stage = 'PRICING', stage_state = '{state}', fence = 5, attempt_count = 2, deferral_count = 1,
                           lease_owner = '{ONE}', lease_until = now(), next_attempt_at = now(),
                           closed_at = CASE WHEN {closed} THEN now() END",
                        state = state.as_str()
                    ))
                    .await;
                let before = read_one(&table, 0).await;
                let outcome = advance(&database.admin, 0, stage, fence, next.as_str()).await;
                let after = read_one(&table, 0).await;
                let what = format!("{state:?} closed {closed} fence {fence} {stage} to {next:?}");
                if may_advance(&before, &StageName::new(stage), fence) {
                    outcome.unwrap();
                    moved += 1;
                    assert_eq!(after, after_advance(&before, &next), "{what}");
                } else {
                    assert_eq!(code(outcome), STALE, "{what}");
                    assert_eq!(after, before, "{what}");
                }
            }
        }
    }
    assert_eq!(moved, 6, "RUNNING, RETRY and UNKNOWN, each in two ways");
}

#[tokio::test]
async fn e10_a_stale_request_undoes_the_business_writes_of_its_transaction() {
    let database = with_rows(1).await;
    let (table, _claims) = started(&database, 0..1).await;
    database.run("UPDATE pending_work SET lease_until = now() - interval '1 s'").await;
    let other = open(&database, TWO).await;
    let over = postrider_core::ports::ClaimRequest { take_over: true, ..ask(key(0), 1) };
    claim_one(&other, TWO, over).await.expect("the lease has run out");
    let before = database.rows().await;
    let work = |fence: i64| {
        format!(
            "BEGIN; INSERT INTO policies VALUES ('q00000'); \
             SELECT postrider_advance_pending_work(ARRAY['g0', 'q00000'], 'PRICING', {fence}, 'APPROVAL'); COMMIT"
        )
    };
    let late = database.another_client().await;
    let error = late.batch_execute(&work(1)).await.unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!(error.code().code(), STALE);
    expect!["The request is for stage PRICING at fence 1, and the row is in stage PRICING, RUNNING, at fence 2."]
        .assert_eq(error.detail().unwrap());
    drop(late);
    let policies = "SELECT count(*)::text FROM policies";
    assert_eq!((database.rows().await, database.text(policies).await), (before, "0".to_owned()));
    database.run(&work(2)).await;
    assert_eq!(database.text(policies).await, "1");
    assert_eq!(read_one(&table, 0).await.stage.as_str(), "APPROVAL");
    // The same request once more, as a proxy may send it.
    assert_eq!(code(advance(&database.admin, 0, "PRICING", 2, "APPROVAL").await), STALE);
}

/// The row's lock decides which of the two is too late.
#[tokio::test]
async fn of_a_receiver_that_is_late_and_the_next_attempt_one_gets_the_row() {
    let database = with_rows(2).await;
    let (table, claims) = started(&database, 0..2).await;
    let again = Transition::Retry { after: std::time::Duration::ZERO, reason: "TIME-OUT".to_owned() };
    let outcomes: Vec<_> = claims.iter().map(|claim| outcome(claim, again.clone())).collect();
    assert_eq!(table.checkpoint(ONE, &outcomes).await.unwrap().len(), 2);
    // The receiver has the row and has not committed: no claim waits for it, and none passes.
    let receiver = database.another_client().await;
    receiver.batch_execute("BEGIN").await.unwrap();
    advance(&receiver, 0, "PRICING", 1, "APPROVAL").await.unwrap();
    assert_eq!(claim_one(&table, ONE, ask(key(0), 1)).await, None);
    receiver.batch_execute("COMMIT").await.unwrap();
    assert_eq!(claim_one(&table, ONE, ask(key(0), 1)).await, None);
    let row = read_one(&table, 0).await;
    assert_eq!((row.stage.as_str(), row.state, row.fence), ("APPROVAL", StageState::Pending, 2));
    let late = "SELECT concat_ws(' ', outcome, reason, started_at IS NULL) FROM postrider.work_history WHERE outcome LIKE '%receiver'";
    assert_eq!(database.text(late).await, "done_by_receiver LATE: the attempt was RETRY t");
    // The other way round: the next attempt has it.
    claim_one(&table, ONE, ask(key(1), 1)).await.expect("it is due");
    assert_eq!(code(advance(&database.admin, 1, "PRICING", 1, "APPROVAL").await), STALE);
}

#[tokio::test]
async fn what_a_call_lacks_is_said_and_nothing_is_written() {
    let database = with_rows(1).await;
    let (_table, _claims) = started(&database, 0..1).await;
    let before = database.rows().await;
    for arguments in [
        "NULL, 'PRICING', 1, 'APPROVAL'",
        "ARRAY['g0'], 'PRICING', 1, 'APPROVAL'",
        "ARRAY['g0', 'q00000', 'x'], 'PRICING', 1, 'APPROVAL'",
        "ARRAY['g0', NULL], 'PRICING', 1, 'APPROVAL'",
        "ARRAY['g0', 'q00000'], NULL, 1, 'APPROVAL'",
        "ARRAY['g0', 'q00000'], 'PRICING', NULL, 'APPROVAL'",
        "ARRAY['g0', 'q00000'], 'PRICING', 1, NULL",
        "ARRAY['g0', 'q00000'], 'PRICING', 1, 'PRICING'",
    ] {
        let call = format!("SELECT postrider_advance_pending_work({arguments})");
        let error = database.admin.batch_execute(&call).await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::INVALID_PARAMETER_VALUE), "{arguments}");
        assert!(error.as_db_error().is_some_and(|error| error.hint().is_some()), "{arguments}");
    }
    let nobody = database
        .admin
        .batch_execute("SELECT postrider_advance_pending_work(ARRAY['a', 'b'], 'PRICING', 1, 'DONE')")
        .await;
    assert_eq!(code(nobody), STALE);
    assert_eq!(database.rows().await, before);
}

#[tokio::test]
async fn a_receivers_role_needs_nothing_but_the_function_and_others_may_not_call_it() {
    let database = Database::create().await;
    let name = database.name().to_owned();
    let settings = SetupSettings { objects: same_tx(&name), role: None };
    apply(&database.options(), &settings).await.unwrap();
    database.run(&format!("INSERT INTO pending_work (group_id, quote_id, stage) VALUES ('g0', 'q00000', 'PRICING'); CREATE ROLE {name}_receiver")).await;
    let (_table, _claims) = started(&database, 0..1).await;
    let receiver = database.another_client().await;
    receiver.batch_execute(&format!("SET ROLE {name}_receiver")).await.unwrap();
    assert_eq!(code(advance(&receiver, 0, "PRICING", 1, "DONE").await), "42501");
    database
        .run(&format!(
            "GRANT EXECUTE ON FUNCTION postrider_advance_pending_work(text[], text, bigint, text) TO {name}_receiver"
        ))
        .await;
    let by_hand = receiver.batch_execute("UPDATE pending_work SET fence = fence + 1").await.unwrap_err();
    assert_eq!(by_hand.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
    // The session's own settings and types mean nothing to the function, which has more privileges than the session.
    let spy = "CREATE FUNCTION pg_temp.spy(pg_catalog.text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'seen'; END $$;
        CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (pg_temp.spy(VALUE))";
    receiver.batch_execute(spy).await.unwrap();
    receiver.batch_execute("SET search_path = ''; SET datestyle = 'German'").await.unwrap();
    let call = "SELECT public.postrider_advance_pending_work(ARRAY['g0', 'q00000'], 'PRICING', 1, 'DONE')";
    receiver.batch_execute(call).await.unwrap();
    // A second setup keeps it, with what was granted; check misses one that is another.
    let again = apply(&database.options(), &settings).await.unwrap();
    let advance = |outcomes: Vec<(Step, StepOutcome)>| {
        outcomes.into_iter().find(|(step, _)| step.sql.contains("postrider_advance_")).map(|(_, outcome)| outcome)
    };
    assert_eq!(advance(again.steps), Some(StepOutcome::Kept));
    let missed = async || {
        let findings = check(&database.options(), &same_tx(&name)).await.unwrap();
        findings.into_iter().filter(|finding| finding.sentence.contains("postrider_advance_")).count()
    };
    assert_eq!(missed().await, 0);
    database.run("DROP FUNCTION postrider_advance_pending_work").await;
    assert_eq!(missed().await, 1);
    let mended = apply(&database.options(), &settings).await.unwrap();
    assert_eq!(advance(mended.steps), Some(StepOutcome::Done));
    database
        .run(&format!(
            "SELECT pg_drop_replication_slot('{name}'); DROP OWNED BY {name}_receiver; DROP ROLE {name}_receiver"
        ))
        .await;
}

#[tokio::test]
async fn a_table_of_other_names_and_types_has_its_own() {
    let database = Database::create().await;
    database
        .run(r#"CREATE SCHEMA "Own"; CREATE TYPE "Own".step AS ENUM ('PRICING', 'APPROVAL'); CREATE TYPE "Own".state AS ENUM ('NEW', 'QUEUED', 'BUSY', 'CALLING', 'RETRY', 'UNKNOWN', 'NON_RESUMABLE', 'FINISHED', 'BY_HAND', 'CANCELLED');
            CREATE TABLE "Own"."The Work" (tenant bigint, id uuid, ends boolean, held text, step "Own".step NOT NULL, state "Own".state NOT NULL DEFAULT 'NEW',
                tries smallint NOT NULL DEFAULT 0, "Fence" bigint NOT NULL DEFAULT 0,
                next_attempt_at timestamptz, lease_until timestamptz, request_hash bytea,
                closed_at timestamptz, last_error text, definition text, payload json, updated_at timestamptz, PRIMARY KEY (tenant, id));
            INSERT INTO "Own"."The Work" (tenant, id, step) VALUES (9, '00000000-0000-0000-0000-00000000000a', 'PRICING'), (10, '00000000-0000-0000-0000-00000000000a', 'PRICING')"#)
        .await;
    let name = str::to_owned;
    let mapping = WorkMapping {
        schema: name("Own"),
        table: name("The Work"),
        key: vec![name("tenant"), name("id")],
        stage: name("step"),
        stage_state: name("state"),
        attempt_count: Some(name("tries")),
        fence: Some(name("Fence")),
        states: Arc::new(
            StateWords::new(
                &[
                    (StageState::Pending, vec![name("NEW"), name("QUEUED")]),
                    (StageState::Running, vec![name("BUSY"), name("CALLING")]),
                    (StageState::Done, vec![name("FINISHED"), name("BY_HAND")]),
                ]
                .into(),
            )
            .unwrap(),
        ),
        deferral_count: None,
        epoch: None,
        lease_owner: None,
        ..canonical_mapping()
    };
    let mut objects = same_tx(database.name());
    objects.routing.work = Some(mapping.clone());
    objects.quiet = true;
    apply(&database.options(), &SetupSettings { objects, role: None }).await.unwrap();
    let table = PgWorkTable::open(database.options(), &mapping, &WorkTableSettings::new(ONE)).await.unwrap();
    let id = "00000000-0000-0000-0000-00000000000a";
    let work_key = |tenant: u32| postrider_core::work::WorkKey::new([tenant.to_string(), id.to_owned()]);
    assert_eq!(table.claim(ONE, &[ask(work_key(9), 0), ask(work_key(10), 0)], &[]).await.unwrap().len(), 2);
    let call = |tenant: u32, fence: i64, next: &str| {
        format!(
            "SELECT \"Own\".\"postrider_advance_The Work\"(ARRAY['{tenant}', '{id}'], 'PRICING', {fence}, '{next}')"
        )
    };
    // A receiver of the team's own writes another word for the attempt that is under way.
    database.run("UPDATE \"Own\".\"The Work\" SET state = 'CALLING' WHERE tenant = 9").await;
    database.run(&call(9, 1, "APPROVAL")).await;
    database.run(&call(10, 1, "DONE")).await;
    let stale = database.admin.batch_execute(&call(9, 1, "APPROVAL")).await;
    assert_eq!(code(stale), STALE);
    let rows = "SELECT string_agg(concat_ws(' ', tenant, step, state, tries, \"Fence\", closed_at IS NOT NULL), E'\\n' ORDER BY tenant) FROM \"Own\".\"The Work\"";
    expect![[r"
        9 APPROVAL NEW 0 2 f
        10 PRICING FINISHED 1 2 t"]]
    .assert_eq(&database.text(rows).await);
    let told = "SELECT string_agg(concat_ws(' ', work_table, array_to_string(key, '/'), outcome, reason, started_at IS NOT NULL), E'\\n' ORDER BY key) FROM postrider.work_history";
    expect![[r#"
        "Own"."The Work" 10/00000000-0000-0000-0000-00000000000a done_by_receiver t
        "Own"."The Work" 9/00000000-0000-0000-0000-00000000000a done_by_receiver t"#]]
    .assert_eq(&database.text(told).await);
    let unknown = database.admin.batch_execute(&call(9, 2, "NOWHERE")).await.unwrap_err();
    assert_eq!(unknown.code(), Some(&SqlState::INVALID_TEXT_REPRESENTATION));
    database.run(&format!("SELECT pg_drop_replication_slot('{}')", database.name())).await;
}

/// Where none is kept, nobody deletes any.
#[tokio::test]
async fn the_function_writes_the_history_where_one_is_kept_and_setup_replaces_it_when_that_changes() {
    let database = Database::create().await;
    database.install_work_table().await;
    let objects = |history| SourceObjects { history, ..same_tx(database.name()) };
    let options = database.options();
    let find = async |history| {
        let findings = check(&options, &objects(history)).await.unwrap();
        let told = findings.into_iter().filter(|finding| finding.sentence.contains("postrider_advance_pending_work"));
        told.map(|finding| finding.sentence).collect::<Vec<_>>().join(" ")
    };
    let set_up = async |history| {
        let settings = SetupSettings { objects: objects(history), role: None };
        let report = apply(&options, &settings).await.unwrap();
        let outcome = |(step, outcome): &(Step, StepOutcome)| {
            matches!(step.object, StepObject::Advance { .. }).then_some(*outcome)
        };
        report.steps.iter().find_map(outcome).unwrap()
    };
    let told = "SELECT count(*)::text FROM postrider.work_history";
    insert_rows(&database, 0..2).await;

    assert_eq!(set_up(true).await, StepOutcome::Done);
    database.run("GRANT EXECUTE ON FUNCTION postrider_advance_pending_work TO pg_monitor").await;
    let (_table, _claims) = started(&database, 0..2).await;
    advance(&database.admin, 0, "PRICING", 1, "DONE").await.unwrap();
    assert_eq!((find(true).await, database.text(told).await), (String::new(), "1".to_owned()));

    let late = find(false).await;
    assert!(late.contains("writes the history, and the configuration keeps none"), "{late}");
    assert_eq!(set_up(false).await, StepOutcome::Done);
    assert_eq!(set_up(false).await, StepOutcome::Kept);
    advance(&database.admin, 1, "PRICING", 1, "DONE").await.unwrap();
    assert_eq!((find(false).await, database.text(told).await), (String::new(), "1".to_owned()));
    let may = "SELECT has_function_privilege('pg_monitor', 'postrider_advance_pending_work(text[], text, bigint, text)', 'EXECUTE')::text";
    assert_eq!(database.text(may).await, "true", "whoever was allowed to execute it still is");

    let early = find(true).await;
    assert!(early.contains("writes no history"), "{early}");
    assert_eq!(set_up(true).await, StepOutcome::Done);
    database.run(&format!("SELECT pg_drop_replication_slot('{}')", database.name())).await;
}

/// Without the history's table there is nothing to tell; with `READ COMMITTED` a receiver that waits for the row finds it as it is then.
#[tokio::test]
async fn without_a_history_and_behind_another_writer_the_row_is_moved_on_or_stale() {
    let database = with_rows(1).await;
    let (_table, _claims) = started(&database, 0..1).await;
    database.run("DROP TABLE postrider.work_history; BEGIN; UPDATE pending_work SET fence = fence + 1").await;
    let receiver = database.another_client().await;
    let pid: i32 = receiver.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let waiting = tokio::spawn(async move {
        let outcome = advance(&receiver, 0, "PRICING", 1, "DONE").await;
        (receiver, outcome)
    });
    let blocked = format!("SELECT (cardinality(pg_blocking_pids({pid})) > 0)::text");
    eventually("the receiver waits for the row", async || database.text(&blocked).await == "true").await;
    database.run("COMMIT").await;
    let (receiver, outcome) = waiting.await.unwrap();
    assert_eq!(code(outcome), STALE);
    advance(&receiver, 0, "PRICING", 2, "DONE").await.unwrap();
}

/// A comparison that is unknown lets nobody through.
#[tokio::test]
async fn a_row_whose_fence_or_state_somebody_took_away_is_stale() {
    let database = with_rows(1).await;
    let (_table, _claims) = started(&database, 0..1).await;
    database.run("ALTER TABLE pending_work ALTER fence DROP NOT NULL, ALTER stage_state DROP NOT NULL").await;
    for (gone, back) in [("fence = NULL", "fence = 1"), ("stage_state = NULL", "stage_state = 'RUNNING'")] {
        database.run(&format!("UPDATE pending_work SET {gone}")).await;
        assert_eq!(code(advance(&database.admin, 0, "PRICING", 1, "DONE").await), STALE, "{gone}");
        database.run(&format!("UPDATE pending_work SET {back}")).await;
    }
    advance(&database.admin, 0, "PRICING", 1, "DONE").await.unwrap();
}
