//! A table that has several words for one state, on a real server.

use std::collections::BTreeMap;
use std::sync::Arc;

use postrider_core::order::Order;
use postrider_core::ports::{ClaimRequest, Transition, WorkTable};
use postrider_core::route::WorkMapping;
use postrider_core::work::{StageState, StateWords, WorkKey};
use postrider_postgres::{
    Access, Note, Operator, PgWorkTable, RowFilter, Severity, Subject, WorkTableSettings, check, foreign_states,
};

use crate::database::{Database, canonical_objects};
use crate::mapped::bare_mapping;
use crate::work_table::{ONE, TWO, ask, claimed, outcome};

/// Two words for most of what the old system told apart. `LEGACY` is no state's.
const JOBS: &str = "CREATE TYPE status AS ENUM ('NEW', 'QUEUED', 'BUSY', 'CALLING', 'AGAIN', 'DELAYED', 'UNCLEAR', 'FAILED', 'POISON', 'OK',
        'BY_HAND', 'STOPPED', 'LEGACY');
    CREATE TABLE jobs (id bigint PRIMARY KEY, step text NOT NULL DEFAULT 'PRICING', status status NOT NULL, tries int NOT NULL DEFAULT 0,
        fence bigint NOT NULL DEFAULT 0, next_attempt_at timestamptz, lease_until timestamptz, updated_at timestamptz);
    INSERT INTO jobs (id, status) VALUES (1, 'NEW'), (2, 'QUEUED'), (3, 'AGAIN'), (4, 'DELAYED'), (6, 'FAILED'), (7, 'POISON'), (8, 'OK'),
        (9, 'BY_HAND'), (10, 'LEGACY');
    INSERT INTO jobs (id, status, fence, lease_until) VALUES (5, 'CALLING', 7, now() + interval '1 hour')";

fn mapping(more: &[(StageState, &[&str])]) -> WorkMapping {
    let mut words: BTreeMap<StageState, Vec<String>> = BTreeMap::new();
    let own: [(StageState, &[&str]); 7] = [
        (StageState::Pending, &["NEW", "QUEUED"]),
        (StageState::Running, &["BUSY", "CALLING"]),
        (StageState::Retry, &["AGAIN", "DELAYED"]),
        (StageState::Unknown, &["UNCLEAR"]),
        (StageState::NonResumable, &["FAILED", "POISON"]),
        (StageState::Done, &["OK", "BY_HAND"]),
        (StageState::Cancelled, &["STOPPED"]),
    ];
    for (state, own) in own.iter().chain(more) {
        words.entry(*state).or_default().extend(own.iter().map(|word| (*word).to_owned()));
    }
    WorkMapping { states: Arc::new(StateWords::new(&words).unwrap()), ..bare_mapping() }
}

async fn with_jobs() -> Database {
    let database = Database::create().await;
    database.install_store().await;
    database.run(JOBS).await;
    database
}

async fn open(database: &Database) -> PgWorkTable {
    PgWorkTable::open(database.options(), &mapping(&[]), &WorkTableSettings::new(ONE)).await.unwrap()
}

fn key(id: u32) -> WorkKey {
    WorkKey::new([id.to_string()])
}

async fn statuses(database: &Database) -> String {
    database.text("SELECT string_agg(concat_ws(' ', id, status, fence), ', ' ORDER BY id) FROM jobs").await
}

#[tokio::test]
async fn a_row_is_claimed_by_any_word_and_gets_the_first() {
    let database = with_jobs().await;
    let table = open(&database).await;
    let waiting: Vec<ClaimRequest> = (1..=3).map(|id| ask(key(id), 0)).collect();
    let claims = claimed(table.claim(ONE, &waiting, &[]).await.unwrap());
    assert_eq!(claims.len(), 3);
    assert_eq!(claimed(table.claim(ONE, &[ask(key(4), 0)], &[]).await.unwrap()).len(), 1);
    // What none of them may take: what is parked, closed, or nobody's.
    let others: Vec<ClaimRequest> = (6..=10).map(|id| ClaimRequest { take_over: true, ..ask(key(id), 0) }).collect();
    assert_eq!(table.claim(ONE, &others, &[]).await.unwrap(), []);
    assert_eq!(
        statuses(&database).await,
        "1 BUSY 1, 2 BUSY 1, 3 BUSY 1, 4 BUSY 1, 5 CALLING 7, 6 FAILED 0, 7 POISON 0, 8 OK 0, 9 BY_HAND 0, 10 LEGACY 0"
    );
    let read = table.read(&(1..=10).map(key).collect::<Vec<_>>()).await.unwrap();
    assert_eq!(read.rows.iter().filter(|row| row.closed).map(|row| &row.key).collect::<Vec<_>>(), [&key(8), &key(9)]);
    assert_eq!(read.rows.len(), 9, "whose word is no state's is no version");
    let page = table.open_rows().await.unwrap().next_page().await.unwrap();
    assert_eq!(page.into_iter().map(|row| row.key).collect::<Vec<_>>(), (1..=7).map(key).collect::<Vec<_>>());

    // Whoever writes another word for RUNNING changes nothing; whoever writes one for PENDING takes the row away.
    database
        .run("UPDATE jobs SET status = 'CALLING' WHERE id = 1; UPDATE jobs SET status = 'QUEUED' WHERE id = 2")
        .await;
    let outcomes: Vec<_> = claims.iter().map(|claim| outcome(claim, Transition::Finish)).collect();
    assert_eq!(table.checkpoint(ONE, &outcomes).await.unwrap().len(), 2);
    assert!(statuses(&database).await.starts_with("1 OK 1, 2 QUEUED 1, 3 OK 1,"));
}

#[tokio::test]
async fn an_attempt_that_somebody_began_in_another_word_is_taken_over_when_its_lease_ends() {
    let database = with_jobs().await;
    let table = open(&database).await;
    let ask = || ask(key(5), 7);
    let take_over = || ClaimRequest { take_over: true, ..ask() };
    assert_eq!(table.claim(TWO, &[take_over()], &[]).await.unwrap(), [], "its lease goes on");
    database.run("UPDATE jobs SET lease_until = now() - interval '1 second' WHERE id = 5").await;
    assert_eq!(table.claim(TWO, &[ask()], &[]).await.unwrap(), [], "it is no row that waits");
    assert_eq!(claimed(table.claim(TWO, &[take_over()], &[]).await.unwrap()).len(), 1);
    let told = "SELECT string_agg(concat_ws(' ', key[1], fence, outcome, reason, next_state), ', ') FROM postrider.work_history";
    assert_eq!(database.text(told).await, "5 7 taken_over LEASE_ENDED BUSY");
}

#[tokio::test]
async fn people_find_and_order_rows_by_any_word() {
    let database = with_jobs().await;
    let operator = Operator::open(&database.options(), &mapping(&[]), true, Access::Order).await.unwrap();
    let find = async |state| {
        let filter = RowFilter { state: Some(state), ..RowFilter::default() };
        operator.find(&filter, None, 10).await.unwrap().rows
    };
    let note = Note { verb: "resume".into(), who: "ada".into(), why: "mended".into(), evidence: None };
    let parked = find(StageState::NonResumable).await;
    assert_eq!(parked.iter().map(|row| &row.version.key).collect::<Vec<_>>(), [&key(6), &key(7)]);
    assert_eq!(find(StageState::Done).await.len(), 2);
    assert_eq!(find(StageState::Unknown).await.len(), 0);
    let order = Order::Resume { accept_changed_payload: false }.judge(&parked[0].version).unwrap();
    // One that has got the other word since is as it was seen; one that waits by now is not.
    database
        .run("UPDATE jobs SET status = 'POISON' WHERE id = 6; UPDATE jobs SET status = 'QUEUED' WHERE id = 7")
        .await;
    assert_eq!(operator.write(&parked, &order, &note).await.unwrap(), [(key(6), 1)]);
    let rows = find(StageState::Pending).await;
    let waiting = [key(1), key(2), key(6), key(7)];
    assert_eq!(rows.iter().map(|row| row.version.key.clone()).collect::<Vec<_>>(), waiting);

    // An order ends the attempt that somebody began in another word.
    let running = find(StageState::Running).await;
    let cancel = Order::Cancel.judge(&running[0].version).unwrap();
    let note = Note { verb: "cancel".into(), ..note };
    assert_eq!(operator.write(&running, &cancel, &note).await.unwrap(), [(key(5), 8)]);
    let told = "SELECT string_agg(concat_ws(' ', key[1], outcome, next_state), ', ') FROM postrider.work_history";
    assert_eq!(database.text(told).await, "5 interrupted STOPPED");
    assert_eq!(
        database
            .text("SELECT string_agg(concat_ws(' ', key[1], state_before, state_after), ', ' ORDER BY id) FROM postrider.operator_actions")
            .await,
        "6 POISON NEW, 5 CALLING STOPPED"
    );
}

/// A word that is only read costs nothing where no row can have it, but is hardly what was meant.
#[tokio::test]
async fn a_word_that_the_column_never_has_is_told_of_and_every_other_is_known() {
    let database = with_jobs().await;
    let more: [(StageState, &[&str]); 2] =
        [(StageState::NonResumable, &["POISN"]), (StageState::Compensating, &["LEGACY", "UNDOING"])];
    let mistyped = mapping(&more);
    let found = async |mapping: &WorkMapping, observe| {
        let mut objects = canonical_objects(database.name());
        objects.routing.work = Some(mapping.clone());
        objects.observe = observe;
        let findings = check(&database.options(), &objects).await.unwrap();
        let words = findings.into_iter().filter(|finding| finding.subject == Subject::WorkTable);
        let words = words.filter(|finding| finding.sentence.contains("cannot hold"));
        words.map(|finding| (finding.severity, finding.sentence)).collect::<Vec<_>>()
    };
    let sentence = |words| format!(r#"The column "status" of "public"."jobs" cannot hold {words} as it is."#);
    let told = [(Severity::Warning, sentence(r#""UNDOING" (COMPENSATING), "POISN" (NON_RESUMABLE)"#))];
    for observe in [false, true] {
        assert_eq!(found(&mistyped, observe).await, told, "observing: {observe}");
        assert_eq!(found(&mapping(&[]), observe).await, []);
    }
    database
        .run("UPDATE jobs SET status = 'BUSY' WHERE id = 5; ALTER TABLE jobs ADD CHECK (status <> 'CALLING')")
        .await;
    assert_eq!(found(&mapping(&[]), false).await, [(Severity::Warning, sentence(r#""CALLING" (RUNNING)"#))]);
    // Only what is written must find its place.
    PgWorkTable::open(database.options(), &mistyped, &WorkTableSettings::new(ONE)).await.unwrap();
    assert_eq!(foreign_states(&database.options(), &mapping(&[])).await.unwrap(), [("LEGACY".to_owned(), 1)]);
    assert_eq!(foreign_states(&database.options(), &mistyped).await.unwrap(), []);
}
