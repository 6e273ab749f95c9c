//! Keys that their receivers may have forgotten, as claims tell it, on a real server.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider_core::order::{Found, Order};
use postrider_core::ports::{Claim, ClaimReply, ClaimRequest, Transition, WorkTable};
use postrider_core::stage::Step;
use postrider_postgres::{Access, Note, Operator, PgWorkTable, WorkTableSettings};

use crate::database::{Database, canonical_mapping};
use crate::work_table::{ONE, TWO, ask, claim_one, key, outcome, with_rows};

const DAY: Duration = Duration::from_secs(86_400);

/// A table whose PRICING keeps keys for so many days.
async fn open(database: &Database, days: u32) -> PgWorkTable {
    let key_retention = BTreeMap::from([(Step::new("quote@1", "PRICING"), DAY * days)]);
    let settings = WorkTableSettings { owner_grace: Duration::ZERO, key_retention, ..WorkTableSettings::new(ONE) };
    PgWorkTable::open(database.options(), &canonical_mapping(), &settings).await.unwrap()
}

/// The next claim of the only row.
async fn claim(table: &PgWorkTable, fence: i64) -> Claim {
    claim_one(table, ONE, ask(key(0), fence)).await.unwrap()
}

async fn try_later(table: &PgWorkTable, claim: &Claim) {
    let retry = Transition::Retry { after: Duration::ZERO, reason: "HTTP_500".to_owned() };
    assert_eq!(table.checkpoint(ONE, &[outcome(claim, retry)]).await.unwrap().len(), 1);
}

/// Everything that was attempted so far was attempted so long ago.
async fn age(database: &Database, days: u32) {
    database.run(&format!("UPDATE postrider.work_history SET started_at = now() - interval '{days} days'")).await;
}

#[tokio::test]
async fn e28_a_claim_tells_that_its_key_was_used_longer_ago_than_the_receiver_keeps_it() {
    let database = with_rows(1).await;
    let table = open(&database, 14).await;
    let first = claim(&table, 0).await;
    assert_eq!((first.was_sent, first.key_expired.as_deref()), (false, None));
    try_later(&table, &first).await;
    age(&database, 13).await;
    let second = claim(&table, 1).await;
    assert_eq!((second.was_sent, second.key_expired.as_deref()), (true, None), "it is kept for a day more");
    try_later(&table, &second).await;
    database.run("UPDATE postrider.work_history SET started_at = now() - interval '15 days' WHERE fence = 1").await;
    let third = claim(&table, 2).await;
    assert!(third.key_expired.is_some(), "the first attempt counts");
    try_later(&table, &third).await;
    // A receiver that still has the key answers from its store.
    database
        .run(
            "CREATE SCHEMA postrider_receiver; CREATE TABLE postrider_receiver.idempotency_keys (scope text, key text);
             INSERT INTO postrider_receiver.idempotency_keys VALUES ('POST /pricing', 'g0/q00000/PRICING/0')",
        )
        .await;
    let fourth = claim(&table, 3).await;
    assert_eq!(fourth.key_expired, None);
    try_later(&table, &fourth).await;
    database.run("DROP SCHEMA postrider_receiver CASCADE").await;
    // Nobody acted on what did not leave, or came to nothing.
    age(&database, 15).await;
    database.run("UPDATE postrider.work_history SET reason = 'NOT_SENT: refused'").await;
    assert_eq!(claim(&table, 4).await.key_expired, None);
}

#[tokio::test]
async fn an_attempt_that_was_lost_counts_from_its_claim_and_what_a_person_found_not_done_does_not() {
    let database = with_rows(1).await;
    let table = open(&database, 14).await;
    claim(&table, 0).await;
    database
        .run(&format!("UPDATE pending_work SET updated_at = now() - interval '15 days', lease_owner = '{TWO}'"))
        .await;
    let over = ClaimRequest { take_over: true, ..ask(key(0), 1) };
    let replies = table.claim(ONE, &[over], &[TWO]).await.unwrap();
    let [ClaimReply::Claimed(taken)] = &replies[..] else { panic!("{replies:?}") };
    assert!(taken.key_expired.is_some());
    let parked = Transition::Park { reason: "KEY_EXPIRED: because".to_owned() };
    assert_eq!(table.checkpoint(ONE, &[outcome(taken, parked)]).await.unwrap().len(), 1);

    let operator = Operator::open(&database.options(), &canonical_mapping(), true, Access::Order).await.unwrap();
    let row = operator.row(&key(0)).await.unwrap().unwrap();
    let kept = |_: &_| Some(DAY * 14);
    assert_eq!(operator.expired(std::slice::from_ref(&row), &kept).await.unwrap().len(), 1, "a resume is refused");
    let order = Order::Resolve(Found::NotDone);
    let [verb, who, why] = [order.verb(), "ada", "it was never there"].map(str::to_owned);
    let ordered = order.judge(&row.version).unwrap();
    operator.write(&[row], &ordered, &Note { verb, who, why, evidence: None }).await.unwrap();
    let again = claim(&table, 3).await;
    assert_eq!((again.was_sent, again.key_expired.as_deref()), (true, None));
    try_later(&table, &again).await;
    database.run("UPDATE postrider.work_history SET started_at = now() - interval '15 days' WHERE fence = 4").await;
    assert!(claim(&table, 4).await.key_expired.is_some(), "from then on it counts again");
}
