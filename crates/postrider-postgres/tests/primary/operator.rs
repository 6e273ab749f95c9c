//! What people look up and order by hand, on a real server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use expect_test::expect;
use postrider_core::call::idempotency_key;
use postrider_core::error::ErrorKind;
use postrider_core::order::{Found, Move, Order};
use postrider_core::paused::PausedPart;
use postrider_core::ports::{ClaimReply, ClaimRequest, Transition, WorkTable};
use postrider_core::stage::Next;
use postrider_core::work::{DefinitionName, StageName, StageState, WorkKey};
use postrider_postgres::{Access, Deed, Note, Operator, RowFilter, WorkRow};

use crate::database::{Database, canonical_mapping, parse};
use crate::work_table::{ONE, TWO, ask, claim_one, key, open, outcome, read_one, with_rows};

async fn operator(database: &Database) -> Operator {
    Operator::open(&database.options(), &canonical_mapping(), true, Access::Reexecute).await.unwrap()
}

/// Orders what was seen; `None`: the row was not as it was seen.
async fn give(operator: &Operator, row: WorkRow, order: &Order) -> Option<i64> {
    let ordered = order.judge(&row.version).unwrap();
    let note = Note {
        verb: order.verb().to_owned(),
        who: "ada".to_owned(),
        why: "because".to_owned(),
        evidence: Some("ticket 7".to_owned()),
    };
    operator.write(&[row], &ordered, &note).await.unwrap().pop().map(|(_, fence)| fence)
}

async fn look(operator: &Operator, number: usize) -> WorkRow {
    operator.row(&key(number)).await.unwrap().unwrap()
}

const NOTED: &str = "SELECT string_agg(format('%s: %s by %s (%s) because %s, %s: %s %s f%s %s -> %s %s f%s e%s', array_to_string(key, '/'), verb, who,
       (database_user = current_user)::text, why, evidence, stage_before, state_before, fence_before, reason_before, stage_after, state_after,
       fence_after, epoch_after), E'\\n' ORDER BY id) FROM postrider.operator_actions";

#[tokio::test]
async fn e05_a_worker_that_slept_through_a_fresh_budget_writes_nothing() {
    let database = with_rows(1).await;
    let (table, operator) = (open(&database, ONE).await, operator(&database).await);
    let limited = |fence, take_over| ClaimRequest { attempt_limit: 1, take_over, ..ask(key(0), fence) };
    let slept = claim_one(&table, ONE, limited(0, false)).await.unwrap();
    let replies = table.claim(TWO, &[limited(1, true)], &[ONE]).await.unwrap();
    assert_eq!(replies, [ClaimReply::AtLimit { key: key(0), fence: 2 }]);
    let row = look(&operator, 0).await;
    assert_eq!((row.version.state, row.reason.as_deref()), (StageState::Unknown, Some("AT_LIMIT")));
    assert_eq!(give(&operator, row, &Order::Resolve(Found::AskAgain)).await, Some(3));
    let second = claim_one(&table, TWO, limited(3, false)).await.unwrap();
    assert_eq!((slept.attempt, second.attempt), (1, 1), "an attempt's number guards nothing");
    let before = database.rows().await;
    assert_eq!(table.checkpoint(ONE, &[outcome(&slept, Transition::Finish)]).await.unwrap(), []);
    assert_eq!(database.rows().await, before);
    assert_eq!(table.checkpoint(TWO, &[outcome(&second, Transition::Finish)]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn e34_only_an_explicit_reexecution_has_a_new_key() {
    let database = with_rows(2).await;
    let (table, operator) = (open(&database, ONE).await, operator(&database).await);
    for number in 0..2 {
        let claim = claim_one(&table, ONE, ask(key(number), 0)).await.unwrap();
        let parked = Transition::Park { reason: "PERMANENT (HTTP 422)".to_owned() };
        table.checkpoint(ONE, &[outcome(&claim, parked)]).await.unwrap();
    }
    let resume = Order::Resume { accept_changed_payload: false };
    assert_eq!(give(&operator, look(&operator, 0).await, &resume).await, Some(2));
    assert_eq!(give(&operator, look(&operator, 1).await, &Order::Reexecute { stage: None }).await, Some(2));
    let again = claim_one(&table, ONE, ask(key(0), 2)).await.unwrap();
    let anew = claim_one(&table, ONE, ask(key(1), 2)).await.unwrap();
    assert_eq!((again.epoch, again.attempt), (0, 1));
    assert_eq!((anew.epoch, anew.attempt), (1, 1));
    let name = |number, epoch| idempotency_key(&key(number), &StageName::new("PRICING"), epoch);
    assert_eq!((name(0, again.epoch), name(1, anew.epoch)), (name(0, 0), "g1/q00001/PRICING/1".to_owned()));
    expect![[r"
        g0/q00000: resume by ada (true) because because, ticket 7: PRICING NON_RESUMABLE f1 PERMANENT (HTTP 422) -> PRICING PENDING f2 e0
        g1/q00001: reexecute by ada (true) because because, ticket 7: PRICING NON_RESUMABLE f1 PERMANENT (HTTP 422) -> PRICING PENDING f2 e1"]]
    .assert_eq(&database.text(NOTED).await);
}

#[tokio::test]
async fn e68_a_stage_that_was_done_by_hand_is_skipped_on_record() {
    let database = with_rows(2).await;
    let (table, operator) = (open(&database, ONE).await, operator(&database).await);
    let next = StageName::new("APPROVAL");
    let skip = Order::Skip { to: Next::Stage(next.clone()) };
    assert_eq!(give(&operator, look(&operator, 0).await, &skip).await, Some(1));
    assert_eq!(give(&operator, look(&operator, 1).await, &Order::Skip { to: Next::End }).await, Some(1));
    let claim = claim_one(&table, ONE, ClaimRequest { stage: next, ..ask(key(0), 1) }).await.unwrap();
    assert_eq!((claim.attempt, claim.payload_changed), (1, false));
    let row = read_one(&table, 1).await;
    assert_eq!((row.state, row.closed), (StageState::Done, true));
    expect![[r"
        g0/q00000: skip by ada (true) because because, ticket 7: PRICING PENDING f0  -> APPROVAL PENDING f1 e0
        g1/q00001: skip by ada (true) because because, ticket 7: PRICING PENDING f0  -> PRICING DONE f1 e0"]]
    .assert_eq(&database.text(NOTED).await);
}

/// A reason says why the row is as it is: one that an order has answered would be taken for that of what comes next.
#[tokio::test]
async fn the_reason_on_the_row_is_what_the_order_says_or_goes_with_what_it_told_of() {
    let database = with_rows(10).await;
    let operator = operator(&database).await;
    database
        .run(
            "UPDATE pending_work SET last_error = 'EARLIER', stage_state = CASE WHEN quote_id IN ('q00001', 'q00009') THEN 'RETRY' ELSE 'NON_RESUMABLE' END",
        )
        .await;
    let to = || Next::Stage(StageName::new("APPROVAL"));
    let moved = Move {
        to: DefinitionName::new("quote@2"),
        stages: BTreeSet::from([StageName::new("PRICING")]),
        renamed: BTreeMap::new(),
    };
    let orders = [
        Order::Resume { accept_changed_payload: false },
        Order::Retry,
        Order::Skip { to: to() },
        Order::Cancel,
        Order::Reexecute { stage: None },
        Order::Resolve(Found::Done { to: Next::End }),
        Order::Resolve(Found::NotDone),
        Order::Resolve(Found::AskAgain),
        Order::Resolve(Found::Failed { reason: "refused".to_owned() }),
        Order::Migrate(moved),
    ];
    let mut told = Vec::new();
    for (number, order) in orders.iter().enumerate() {
        assert_eq!(give(&operator, look(&operator, number).await, order).await, Some(1));
        let WorkRow { version, reason, .. } = look(&operator, number).await;
        told.push(format!("{}: {} {}", order.verb(), version.state.as_str(), reason.as_deref().unwrap_or("-")));
    }
    expect![[r"
        resume: PENDING -
        retry: RETRY EARLIER
        skip: PENDING -
        cancel: CANCELLED -
        reexecute: PENDING -
        resolve done: DONE -
        resolve not-done: PENDING -
        resolve ask-again: PENDING -
        resolve failed: NON_RESUMABLE RESOLVED AS FAILED: refused
        migrate: RETRY EARLIER"]]
    .assert_eq(&told.join("\n"));
    let before = "SELECT string_agg(DISTINCT reason_before, ' ') FROM postrider.operator_actions";
    assert_eq!(database.text(before).await, "EARLIER", "on record it stays");
}

#[tokio::test]
async fn an_order_for_a_running_row_makes_its_outcome_stale_and_ends_the_attempt_in_the_history() {
    let database = with_rows(1).await;
    let (table, operator) = (open(&database, ONE).await, operator(&database).await);
    let claim = claim_one(&table, ONE, ask(key(0), 0)).await.unwrap();
    assert_eq!(give(&operator, look(&operator, 0).await, &Order::Cancel).await, Some(2));
    assert_eq!(table.checkpoint(ONE, &[outcome(&claim, Transition::Finish)]).await.unwrap(), []);
    let row = look(&operator, 0).await;
    assert_eq!((row.version.state, row.version.closed, row.version.lease_owner), (StageState::Cancelled, true, None));
    let timeline = operator.timeline(&key(0)).await.unwrap();
    let lines: Vec<String> = timeline
        .iter()
        .map(|entry| {
            let deed = match &entry.deed {
                Deed::Tried(tried) => format!("{} {:?} {}", tried.outcome, tried.reason, tried.seconds.is_some()),
                Deed::Ordered { verb, who, why, .. } => format!("{verb} {who} {why}"),
            };
            format!("{} f{} {deed} -> {} {}", entry.stage, entry.fence, entry.next_stage, entry.next_state)
        })
        .collect();
    assert_eq!(
        lines,
        [
            "PRICING f1 interrupted Some(\"cancel\") true -> PRICING CANCELLED",
            "PRICING f2 cancel ada because -> PRICING CANCELLED",
        ]
    );
}

#[tokio::test]
async fn an_order_for_a_row_that_has_moved_on_writes_nothing_and_is_not_on_record() {
    let database = with_rows(1).await;
    let (table, operator) = (open(&database, ONE).await, operator(&database).await);
    let seen = look(&operator, 0).await;
    claim_one(&table, ONE, ask(key(0), 0)).await.unwrap();
    let before = database.rows().await;
    assert_eq!(give(&operator, seen, &Order::Cancel).await, None);
    // A claim and its outcome share a fence: the state is guarded, too.
    let running = look(&operator, 0).await;
    assert_eq!(database.rows().await, before);
    database.run("UPDATE pending_work SET stage_state = 'RETRY', lease_owner = NULL").await;
    assert_eq!(give(&operator, running, &Order::Cancel).await, None);
    assert_eq!(database.text("SELECT count(*)::text FROM postrider.operator_actions").await, "0");
}

#[tokio::test]
async fn e28_a_key_that_its_receiver_may_have_forgotten_is_found_before_a_row_is_asked_again() {
    const DAY: Duration = Duration::from_secs(86_400);
    let database = with_rows(3).await;
    let (table, operator) = (open(&database, ONE).await, operator(&database).await);
    for number in 0..2 {
        let claim = claim_one(&table, ONE, ask(key(number), 0)).await.unwrap();
        let parked = Transition::Park { reason: "PERMANENT".to_owned() };
        table.checkpoint(ONE, &[outcome(&claim, parked)]).await.unwrap();
    }
    // An attempt weeks ago, and one today that was never sent: the third row was not asked for at all.
    database
        .run("UPDATE postrider.work_history SET started_at = now() - interval '15 days', ended_at = now() - interval '15 days'")
        .await;
    let rows = vec![look(&operator, 0).await, look(&operator, 1).await, look(&operator, 2).await];
    let expired = async |days: u32| -> Vec<WorkKey> {
        let kept = |row: &WorkRow| (row.version.stage.as_str() == "PRICING").then_some(DAY * days);
        operator.expired(&rows, &kept).await.unwrap().into_iter().map(|expired| expired.key).collect()
    };
    assert_eq!(expired(16).await, []);
    assert_eq!(expired(14).await, [key(0), key(1)]);
    // The receiver's store is here, and still has one of the keys.
    database
        .run(
            "CREATE SCHEMA postrider_receiver; CREATE TABLE postrider_receiver.idempotency_keys (scope text, key text);
             INSERT INTO postrider_receiver.idempotency_keys VALUES ('POST /pricing', 'g1/q00001/PRICING/0')",
        )
        .await;
    assert_eq!(expired(14).await, [key(0)]);
    database.run("UPDATE postrider.work_history SET reason = 'NOT_SENT: connection refused'; UPDATE pending_work SET updated_at = now()").await;
    assert_eq!(expired(14).await, [], "nobody acted on it");
}

/// Whoever reads it finds what refuses, and which row.
#[tokio::test]
async fn what_the_database_refuses_is_told_with_the_names_of_what_refuses_it_and_the_key() {
    let database = with_rows(2).await;
    let operator = operator(&database).await;
    let failed = Order::Resolve(Found::Failed { reason: "so".to_owned() });
    database.run("UPDATE pending_work SET stage_state = 'NON_RESUMABLE', last_error = 'EARLIER'").await;
    let refusals = [
        (
            "ADD CONSTRAINT kept CHECK (stage_state <> 'CANCELLED')",
            "DROP CONSTRAINT kept",
            &Order::Cancel,
            r#"SQLSTATE 23514, table "public"."pending_work", constraint "kept"."#,
        ),
        (
            "ALTER last_error SET NOT NULL",
            "ALTER last_error DROP NOT NULL",
            &Order::Cancel,
            r#"SQLSTATE 23502, table "public"."pending_work", column "last_error"."#,
        ),
        (
            "ALTER last_error TYPE varchar(12)",
            "ALTER last_error TYPE text",
            &failed,
            "SQLSTATE 22001, value too long for type character varying(12).",
        ),
    ];
    let give = async |rows: &[WorkRow], order: &Order| {
        let note = Note { verb: order.verb().into(), who: "ada".into(), why: "x".into(), evidence: None };
        operator.write(rows, &order.judge(&rows[0].version).unwrap(), &note).await.unwrap_err()
    };
    let rows = [look(&operator, 0).await, look(&operator, 1).await];
    for (refuse, allow, order, told) in refusals {
        database.run(&format!("ALTER TABLE pending_work {refuse}")).await;
        let refusal = give(&rows[..1], order).await;
        assert_eq!(refusal.detail(), Some(format!("{told} The row is g0 q00000.").as_str()), "{}", refusal.report());
        database.run(&format!("ALTER TABLE pending_work {allow}")).await;
    }
    database
        .run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not %', NEW.payload; END $$;
             CREATE TRIGGER refuse BEFORE UPDATE ON pending_work FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await;
    let told = "SQLSTATE P0001, in the function public.refuse. It is one of 2 rows, from g0 q00000 to g1 q00001, and none of them is written.";
    assert_eq!(give(&rows, &Order::Cancel).await.detail(), Some(told));
}

#[tokio::test]
async fn rows_are_found_by_what_they_have_in_common_in_pages() {
    let database = with_rows(20).await;
    let operator = operator(&database).await;
    database
        .run(
            "UPDATE pending_work SET stage_state = 'NON_RESUMABLE', last_error = 'PERMANENT (HTTP 422)' WHERE quote_id < 'q00010';
             UPDATE pending_work SET last_error = 'TOO_LARGE', updated_at = now() - interval '2 hours' WHERE quote_id < 'q00005';
             UPDATE pending_work SET stage_state = 'DONE', closed_at = now() WHERE quote_id = 'q00019'",
        )
        .await;
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = operator.find(&RowFilter::default(), after.as_ref(), 6).await.unwrap().rows;
        let Some(last) = page.last() else { break };
        after = Some(last.version.key.clone());
        found.extend(page.into_iter().map(|row| row.version.key));
    }
    assert_eq!(found.len(), 19);
    assert!(found.is_sorted());
    let count = async |filter: RowFilter| operator.find(&filter, None, 100).await.unwrap().rows.len();
    let parked = RowFilter { state: Some(StageState::NonResumable), ..RowFilter::default() };
    assert_eq!(count(parked.clone()).await, 10);
    assert_eq!(count(RowFilter { reason_like: Some("PERMANENT%".to_owned()), ..parked.clone() }).await, 5);
    assert_eq!(count(RowFilter { older_than: Some(Duration::from_secs(3_600)), ..parked.clone() }).await, 5);
    assert_eq!(count(RowFilter { stage: Some(StageName::new("BINDING")), ..parked }).await, 0);
    assert_eq!(count(RowFilter { state: Some(StageState::Done), ..RowFilter::default() }).await, 1);
}

#[tokio::test]
async fn a_role_that_may_not_order_is_told_what_to_grant_and_that_is_enough() {
    let database = with_rows(1).await;
    let role = format!("{}_operator", database.name());
    database.run(&format!("CREATE ROLE {role} LOGIN PASSWORD 'secret'")).await;
    let options = parse(&database.cluster.url_as(&role, "secret", database.name()));
    let open = async || Operator::open(&options, &canonical_mapping(), true, Access::Reexecute).await;
    let refused = open().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Privilege, "{}", refused.report());
    let cure = refused.hint().unwrap();
    assert!(cure.contains("\"epoch\"") && cure.contains("ON postrider.operator_actions"), "{cure}");
    database.run(cure).await;
    let operator = open().await.unwrap();
    let row = look(&operator, 0).await;
    let order = Order::Reexecute { stage: None };
    let ordered = order.judge(&row.version).unwrap();
    let note = Note { verb: "reexecute".to_owned(), who: "ada".to_owned(), why: "x".to_owned(), evidence: None };
    assert_eq!(operator.write(&[row], &ordered, &note).await.unwrap(), [(key(0), 1)]);
    assert_eq!(database.text("SELECT database_user FROM postrider.operator_actions").await, role);
}

#[tokio::test]
async fn each_way_in_asks_for_what_it_uses_and_for_nothing_more() {
    let database = with_rows(1).await;
    let mut asked = String::new();
    let ways = [Access::Look, Access::LookBack, Access::LookAtPauses, Access::Pause, Access::Order];
    for (index, access) in ways.into_iter().enumerate() {
        let role = format!("{}_way_{index}", database.name());
        database.run(&format!("CREATE ROLE {role} LOGIN PASSWORD 'secret'")).await;
        let options = parse(&database.cluster.url_as(&role, "secret", database.name()));
        let open = async || Operator::open(&options, &canonical_mapping(), true, access).await;
        let cure = match open().await {
            Ok(_) => String::new(),
            Err(refused) => refused.hint().unwrap().to_owned(),
        };
        database.run(&cure).await;
        let operator = open().await.unwrap();
        match access {
            Access::Look => assert_eq!(operator.find(&RowFilter::default(), None, 9).await.unwrap().rows.len(), 1),
            Access::LookBack => assert_eq!(operator.timeline(&key(0)).await.unwrap(), []),
            Access::LookAtPauses => assert_eq!(operator.paused().await.unwrap(), []),
            Access::Pause => {
                let part = PausedPart::Stage { stage: StageName::new("PRICING"), definition: None };
                let note = Note { verb: "x".into(), who: "ada".into(), why: "x".into(), evidence: None };
                assert!(operator.pause(&part, &note).await.unwrap() && operator.resume(&part, &note).await.unwrap());
            }
            Access::Order | Access::Reexecute => {
                let row = look(&operator, 0).await;
                assert_eq!(give(&operator, row, &Order::Cancel).await, Some(1));
            }
        }
        asked += &format!("{access:?}: {}\n", cure.replace(&role, "ROLE").replace("; ", ";\n  "));
    }
    expect![[r#"
        Look: GRANT SELECT ON "public"."pending_work" TO "ROLE";
        LookBack: GRANT SELECT ON "public"."pending_work" TO "ROLE";
          GRANT USAGE ON SCHEMA postrider TO "ROLE";
          GRANT SELECT ON postrider.operator_actions TO "ROLE";
          GRANT SELECT ON postrider.work_history TO "ROLE";
        LookAtPauses: GRANT USAGE ON SCHEMA postrider TO "ROLE";
          GRANT SELECT ON postrider.pauses TO "ROLE";
        Pause: GRANT USAGE ON SCHEMA postrider TO "ROLE";
          GRANT INSERT ON postrider.operator_actions TO "ROLE";
          GRANT SELECT, INSERT, DELETE ON postrider.pauses TO "ROLE";
        Order: GRANT SELECT ON "public"."pending_work" TO "ROLE";
          GRANT UPDATE ("fence", "updated_at", "next_attempt_at", "lease_until", "closed_at", "attempt_count", "deferral_count", "stage", "stage_state", "lease_owner", "request_hash", "last_error", "definition") ON "public"."pending_work" TO "ROLE";
          GRANT USAGE ON SCHEMA postrider TO "ROLE";
          GRANT SELECT, INSERT ON postrider.operator_actions TO "ROLE";
          GRANT SELECT, INSERT ON postrider.work_history TO "ROLE";
    "#]].assert_eq(&asked);
}

#[tokio::test]
async fn a_key_that_was_sent_is_known_where_the_row_has_forgotten_its_request() {
    let database = with_rows(3).await;
    let (table, operator) = (open(&database, ONE).await, operator(&database).await);
    let claim = claim_one(&table, ONE, ask(key(0), 0)).await.unwrap();
    let parked = Transition::Park { reason: "PERMANENT (HTTP 422)".to_owned() };
    table.checkpoint(ONE, &[outcome(&claim, parked)]).await.unwrap();
    let resume = Order::Resume { accept_changed_payload: true };
    assert_eq!(give(&operator, look(&operator, 0).await, &resume).await, Some(2));
    assert_eq!(database.text("SELECT (count(request_hash) + sum(attempt_count))::text FROM pending_work").await, "0");
    // A row that was written, and one that nobody touched.
    database.run("UPDATE pending_work SET fence = 1 WHERE quote_id = 'q00001'").await;
    let rows = async || vec![look(&operator, 0).await, look(&operator, 1).await, look(&operator, 2).await];
    let keyed =
        async |operator: &Operator| operator.keyed(&rows().await).await.unwrap().into_iter().collect::<Vec<_>>();
    assert_eq!(keyed(&operator).await, [key(0)]);
    let without = Operator::open(&database.options(), &canonical_mapping(), false, Access::Order).await.unwrap();
    assert_eq!(keyed(&without).await, [key(0), key(1)], "without a history a fence may have been a claim's");
    database.run("UPDATE pending_work SET attempt_count = 1 WHERE quote_id = 'q00002'").await;
    assert_eq!(keyed(&operator).await, [key(0), key(2)]);
    // Under another epoch the key is another; what was never sent is no key of the receiver's.
    database.run("UPDATE pending_work SET epoch = 1 WHERE quote_id = 'q00000'").await;
    assert_eq!(keyed(&operator).await, [key(2)]);
    database
        .run("UPDATE pending_work SET epoch = 0; UPDATE postrider.work_history SET reason = 'NOT_SENT: refused'")
        .await;
    assert_eq!(keyed(&operator).await, [key(2)]);
}
