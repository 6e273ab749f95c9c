//! Which tables can be the work table.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::error::ErrorKind;
use postrider_core::order::Order;
use postrider_core::ports::{CheckpointReply, Claim, ClaimRequest, Transition, WorkTable};
use postrider_core::route::WorkMapping;
use postrider_core::work::{StageName, StageState, StateWords, WorkKey};
use postrider_postgres::{Access, Note, Operator, PgWorkTable, RowFilter, WorkTableSettings, unwritable_stages};

use crate::database::{Database, canonical_mapping};
use crate::work_table::{MINUTE, ONE, TWO, ask, claimed, outcome};

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
        attempt_count: Some(name("tries")),
        fence: Some(name("Fence")),
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

    // A person's slip is told as one, with its place.
    let operator = Operator::open(&database.options(), &mapping, true, Access::Look).await.unwrap();
    let slips = [
        (["9", "notauuid"], r#"It is "notauuid"; the column "id" is of the type uuid."#),
        (["99999999999999999999", id], r#"It is "99999999999999999999"; the column "tenant" is of the type bigint."#),
    ];
    for (parts, told) in slips {
        let typed = WorkKey::new(parts);
        let refused = [
            operator.row(&typed).await.unwrap_err(),
            operator.find(&RowFilter::default(), Some(&typed), 10).await.unwrap_err(),
        ];
        for error in refused {
            assert_eq!((error.kind(), error.detail()), (ErrorKind::Configuration, Some(told)), "{}", error.report());
        }
    }
}

/// A team's own table: words of its own in a type of its own, a number for its key, and no column that can be done without.
const BARE: &str = "CREATE TYPE status AS ENUM ('NEW', 'IN_PROGRESS', 'AGAIN', 'UNCLEAR', 'FAILED', 'OK', 'STOPPED');
    CREATE TABLE jobs (id bigint PRIMARY KEY, step text NOT NULL, status status NOT NULL DEFAULT 'NEW', tries int NOT NULL DEFAULT 0,
        fence bigint NOT NULL DEFAULT 0, next_attempt_at timestamptz, lease_until timestamptz, updated_at timestamptz);
    INSERT INTO jobs (id, step) SELECT n, 'PRICING' FROM generate_series(9, 11) AS n";

/// Where that table has what.
pub(crate) fn bare_mapping() -> WorkMapping {
    let words = [
        (StageState::Pending, "NEW"),
        (StageState::Running, "IN_PROGRESS"),
        (StageState::Retry, "AGAIN"),
        (StageState::Unknown, "UNCLEAR"),
        (StageState::NonResumable, "FAILED"),
        (StageState::Done, "OK"),
        (StageState::Cancelled, "STOPPED"),
    ];
    let name = str::to_owned;
    WorkMapping {
        table: name("jobs"),
        key: vec![name("id")],
        stage: name("step"),
        stage_state: name("status"),
        states: Arc::new(StateWords::new(&words.map(|(state, word)| (state, vec![name(word)])).into()).unwrap()),
        attempt_count: Some(name("tries")),
        deferral_count: None,
        epoch: None,
        lease_owner: None,
        closed_at: None,
        definition: None,
        request_hash: None,
        payload: None,
        last_error: None,
        ..WorkMapping::default()
    }
}

#[tokio::test]
async fn a_table_with_words_of_its_own_and_no_column_more_than_it_needs_lives_through_the_protocol() {
    let database = Database::create().await;
    database.install_store().await;
    database.run(BARE).await;
    let table = PgWorkTable::open(database.options(), &bare_mapping(), &WorkTableSettings::new(ONE)).await.unwrap();
    let key = |id: u32| WorkKey::new([id.to_string()]);
    let row = async |id: u32| {
        database
            .text(&format!(
                "SELECT concat_ws(' ', step, status, tries, fence, lease_until IS NOT NULL) FROM jobs WHERE id = {id}"
            ))
            .await
    };
    let one = async |id: u32, fence| claimed(table.claim(ONE, &[ask(key(id), fence)], &[]).await.unwrap()).pop();
    let write = async |claim: &Claim, transition| table.checkpoint(ONE, &[outcome(claim, transition)]).await.unwrap();

    let claim = one(9, 0).await.unwrap();
    assert_eq!((&*claim.payload, claim.deferrals, claim.epoch, &claim.definition), ("null", 0, 0, &None));
    assert_eq!(row(9).await, "PRICING IN_PROGRESS 1 1 t");
    let defer = Transition::Defer { after: Duration::ZERO, reason: "DOWN".to_owned(), counted: false };
    write(&claim, defer).await;
    assert_eq!(row(9).await, "PRICING AGAIN 0 1 f");
    let claim = one(9, 1).await.unwrap();
    assert_eq!(one(9, 1).await, None, "it is claimed once");
    let chained = write(&claim, Transition::Chain { next: StageName::new("APPROVAL"), lease: MINUTE }).await;
    assert_eq!((chained.len(), row(9).await), (1, "APPROVAL IN_PROGRESS 1 3 t".to_owned()));
    assert_eq!(write(&claim, Transition::Finish).await, [], "whose fence is old writes nothing");
    let owners = "SELECT count(*)::text || ' ' || count(owner)::text FROM postrider.work_history";
    assert_eq!(database.text(owners).await, "2 0", "the row has no owner, nor has the history");
    let CheckpointReply::Chained(claim) = &chained[0] else { panic!("it was chained") };
    write(claim, Transition::Finish).await;
    let closed = table.read(&[key(9)]).await.unwrap().rows.remove(0);
    assert_eq!((closed.state, closed.closed, row(9).await), (StageState::Done, true, "APPROVAL OK 1 3 f".to_owned()));
    let open = table.open_rows().await.unwrap().next_page().await.unwrap();
    assert_eq!(
        open.into_iter().map(|row| row.key).collect::<Vec<_>>(),
        [key(10), key(11)],
        "the closed one is left out"
    );

    // Nobody knows whose it is, so that it is taken over when its lease has ended, and not before.
    one(10, 0).await.unwrap();
    let take_over = || ClaimRequest { take_over: true, ..ask(key(10), 1) };
    assert_eq!(table.claim(TWO, &[take_over()], &[ONE]).await.unwrap(), []);
    database.run("UPDATE jobs SET lease_until = now() - interval '1 second' WHERE id = 10").await;
    assert_eq!(claimed(table.claim(TWO, &[take_over()], &[]).await.unwrap()).len(), 1);
    let told = "SELECT string_agg(concat_ws(' ', key[1], stage, outcome, next_state), ', ' ORDER BY ended_at) FROM postrider.work_history";
    assert_eq!(
        database.text(told).await,
        "9 PRICING deferred AGAIN, 9 PRICING done IN_PROGRESS, 9 APPROVAL done OK, 10 PRICING taken_over IN_PROGRESS"
    );
    let refused = Operator::open(&database.options(), &bare_mapping(), true, Access::Reexecute).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Table);
    assert!(refused.message().contains("no epoch"), "{}", refused.report());
}

#[tokio::test]
async fn people_look_and_order_in_our_words_and_the_table_has_its_own() {
    let database = Database::create().await;
    database.install_store().await;
    database.run(BARE).await;
    database.run("UPDATE jobs SET status = 'FAILED', tries = 5, fence = 7 WHERE id = 9").await;
    let operator = Operator::open(&database.options(), &bare_mapping(), true, Access::Order).await.unwrap();
    let parked = RowFilter { state: Some(StageState::NonResumable), ..RowFilter::default() };
    let rows = operator.find(&parked, None, 10).await.unwrap().rows;
    assert_eq!(rows.len(), 1);
    let ordered = Order::Resume { accept_changed_payload: false }.judge(&rows[0].version).unwrap();
    let note = Note { verb: "resume".into(), who: "ada".into(), why: "mended".into(), evidence: None };
    assert_eq!(operator.write(&rows, &ordered, &note).await.unwrap().len(), 1);
    assert_eq!(database.text("SELECT concat_ws(' ', status, tries, fence) FROM jobs WHERE id = 9").await, "NEW 0 8");
    let timeline = operator.timeline(&rows[0].version.key).await.unwrap();
    assert_eq!(timeline.iter().map(|entry| entry.next_state.as_str()).collect::<Vec<_>>(), ["PENDING"]);
    assert_eq!(
        database.text("SELECT concat_ws(' ', state_before, state_after) FROM postrider.operator_actions").await,
        "FAILED NEW"
    );
    let open = operator.find(&RowFilter::default(), None, 10).await.unwrap().rows;
    assert_eq!(open.len(), 3);
}

/// Whoever looks for the row has its key and the word, and a statement that can be pasted.
#[tokio::test]
async fn a_row_whose_word_is_no_states_is_named_with_the_word_and_what_to_type() {
    let database = Database::create().await;
    database.install_store().await;
    database.run(BARE).await;
    database.run("ALTER TYPE status ADD VALUE 'ON ICE'").await;
    database.run("UPDATE jobs SET status = 'ON ICE' WHERE id IN (9, 11)").await;
    let operator = Operator::open(&database.options(), &bare_mapping(), true, Access::Order).await.unwrap();
    let key = WorkKey::new(["9"]);
    let refused = operator.row(&key).await.unwrap_err();
    let told = r#"1 row holds what cannot be read (in "status"): 9, with the word "ON ICE"."#;
    assert_eq!((refused.kind(), refused.detail()), (ErrorKind::Table, Some(told)));
    let (cure, statement) = refused.hint().unwrap().split_once("waits for a person: ").unwrap();
    assert!(cure.contains("work.states"), "{cure}");
    expect_test::expect![[r#"UPDATE "public"."jobs" AS t SET "status" = 'FAILED', "fence" = t."fence" + 1 WHERE t."id" = '9' AND t."status"::text = 'ON ICE' AND t."status"::text NOT IN ('OK', 'STOPPED', 'COMPENSATED');"#]].assert_eq(statement);
    database.run("UPDATE jobs SET status = 'NEW' WHERE id = 9").await;
    database.run(statement).await;
    let moved_on = operator.row(&key).await.unwrap().unwrap().version;
    assert_eq!((moved_on.state, moved_on.fence), (StageState::Pending, 0), "it is not what was seen");
    database.run("UPDATE jobs SET status = 'ON ICE' WHERE id = 9").await;
    let found = operator.find(&RowFilter::default(), None, 10).await.unwrap();
    assert_eq!((found.rows.len(), found.unreadable.cure().as_str()), (1, refused.hint().unwrap()));
    let told =
        r#"2 rows hold what cannot be read (in "status"): 9, with the word "ON ICE"; 11, with the word "ON ICE"."#;
    assert_eq!(found.unreadable.sentence().as_deref(), Some(told));
    database.run(statement).await;
    let parked = operator.row(&key).await.unwrap().unwrap().version;
    assert_eq!((parked.state, parked.fence), (StageState::NonResumable, 1));
}

/// What a cast would cut off, what is no value of the type, and what a constraint refuses, before the first row is claimed.
#[tokio::test]
async fn a_column_that_cannot_hold_the_words_is_refused() {
    let database = Database::create().await;
    database.install_store().await;
    database.run(BARE).await;
    let ours = WorkMapping { states: Arc::default(), ..bare_mapping() };
    let refused = async |mapping: &WorkMapping| {
        let opened = PgWorkTable::open(database.options(), mapping, &WorkTableSettings::new(ONE)).await;
        opened.unwrap_err().detail().unwrap().to_owned()
    };
    let all = r#""PENDING" (PENDING), "RUNNING" (RUNNING), "RETRY" (RETRY), "UNKNOWN" (UNKNOWN), "NON_RESUMABLE" (NON_RESUMABLE), "DONE" (DONE), "CANCELLED" (CANCELLED)"#;
    assert_eq!(refused(&ours).await, format!(r#"The column "status" of "public"."jobs" cannot hold {all} as it is."#));
    database.run("ALTER TABLE jobs ALTER status DROP DEFAULT, ALTER status TYPE varchar(11)").await;
    assert_eq!(
        refused(&ours).await,
        r#"The column "status" of "public"."jobs" cannot hold "NON_RESUMABLE" (NON_RESUMABLE) as it is."#
    );
    database.run("ALTER TABLE jobs ADD CHECK (status IN ('NEW', 'IN_PROGRESS', 'AGAIN', 'FAILED', 'OK', 'STOPPED')), ADD CHECK (length(status) > 1)").await;
    assert_eq!(
        refused(&bare_mapping()).await,
        r#"The column "status" of "public"."jobs" cannot hold "UNCLEAR" (UNKNOWN) as it is."#
    );
}

/// A cast cuts a name off in silence, and the row would go on into a stage that nobody has.
#[tokio::test]
async fn names_of_stages_that_the_column_cannot_hold_are_found() {
    let database = Database::create().await;
    database.run(BARE).await;
    let names = ["PRICING", "APPROVAL", "LEGAL_APPROVAL"].map(StageName::new);
    let found = async || unwritable_stages(&database.options(), &bare_mapping(), &names).await.unwrap();
    assert_eq!(found().await, None);
    database.run("ALTER TABLE jobs ALTER step TYPE varchar(8), ADD CHECK (step <> 'APPROVAL')").await;
    let sentence = r#"The column "step" of "public"."jobs" cannot hold "APPROVAL", "LEGAL_APPROVAL" as it is."#;
    assert_eq!(found().await.as_deref(), Some(sentence));
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
