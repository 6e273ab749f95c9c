//! The work table's port on a real server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::database::{Database, canonical_mapping, eventually};
use postrider_core::error::ErrorKind;
use postrider_core::ports::{Checkpoint, CheckpointReply, Claim, ClaimReply, ClaimRequest, Transition, WorkTable};
use postrider_core::work::{DefinitionName, OwnerId, StageName, StageState, WorkKey, WorkVersion};
use postrider_postgres::{PgWorkTable, WorkTableSettings};

pub(crate) const ONE: OwnerId = OwnerId(1);
pub(crate) const TWO: OwnerId = OwnerId(0xFFFF_0000_0000_0002);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn key(number: usize) -> WorkKey {
    WorkKey::new([format!("g{}", number % 7), format!("q{number:05}")])
}

pub(crate) fn ask(key: WorkKey, seen_fence: i64) -> ClaimRequest {
    let stage = StageName::new("PRICING");
    let definition = DefinitionName::new("quote@3");
    ClaimRequest {
        key,
        stage,
        seen_fence,
        attempt_limit: 5,
        lease: MINUTE,
        take_over: false,
        definition,
        refusal: None,
        untold: None,
    }
}

fn take_over(key: WorkKey, seen_fence: i64) -> ClaimRequest {
    ClaimRequest { take_over: true, ..ask(key, seen_fence) }
}

pub(crate) fn outcome(claim: &Claim, transition: Transition) -> Checkpoint {
    let Claim { key, stage, fence, .. } = claim.clone();
    Checkpoint { key, stage, fence, status: Some(200), transition, claim: Some(Arc::new(claim.clone())), untold: None }
}

/// As by who knows nothing of the claim but what its guard asks for.
pub(crate) fn outcome_alone(claim: &Claim, transition: Transition) -> Checkpoint {
    Checkpoint { claim: None, ..outcome(claim, transition) }
}

fn retry() -> Transition {
    Transition::Retry { after: Duration::ZERO, reason: "TEST".to_owned() }
}

pub(crate) fn claimed(replies: Vec<ClaimReply>) -> Vec<Claim> {
    let claim = |reply| match reply {
        ClaimReply::Claimed(claim) => claim,
        ClaimReply::AtLimit { .. } => panic!("a row is at its limit"),
        ClaimReply::Parked { .. } => panic!("nothing was refused"),
    };
    replies.into_iter().map(claim).collect()
}

pub(crate) async fn claim_one(table: &PgWorkTable, owner: OwnerId, request: ClaimRequest) -> Option<Claim> {
    let replies = table.claim(owner, &[request], &[]).await.unwrap();
    claimed(replies).pop()
}

/// Writes outcomes whose guards all hold. A claim of somebody who comes too late locks its row for a moment, too.
async fn write_all(table: &PgWorkTable, owner: OwnerId, mut outcomes: Vec<Checkpoint>) {
    let deadline = Instant::now() + MINUTE;
    while !outcomes.is_empty() {
        assert!(Instant::now() < deadline, "not all outcomes are written");
        for reply in table.checkpoint(owner, &outcomes).await.unwrap() {
            let CheckpointReply::Written { key } = reply else { panic!("nothing was chained") };
            outcomes.retain(|outcome| outcome.key != key);
        }
    }
}

pub(crate) async fn read_one(table: &PgWorkTable, number: usize) -> WorkVersion {
    table.read(&[key(number)]).await.unwrap().rows.pop().unwrap()
}

pub(crate) async fn open(database: &Database, owner: OwnerId) -> PgWorkTable {
    // The test's server was started a moment ago, and nobody else is reconnecting.
    let settings = WorkTableSettings { owner_grace: Duration::ZERO, ..WorkTableSettings::new(owner) };
    PgWorkTable::open(database.options(), &canonical_mapping(), &settings).await.unwrap()
}

/// A database with the work table and so many rows in PRICING.
pub(crate) async fn with_rows(count: usize) -> Database {
    let database = Database::create().await;
    database.install_work_table().await;
    insert_rows(&database, 0..count).await;
    database
}

pub(crate) async fn insert_rows(database: &Database, numbers: std::ops::Range<usize>) {
    let sql = "INSERT INTO pending_work (group_id, quote_id, stage, definition, payload)
         SELECT 'g' || n % 7, 'q' || lpad(n::text, 5, '0'), 'PRICING', 'quote@1', jsonb_build_object('n', n)
         FROM generate_series($1::int8, $2::int8 - 1) AS n";
    let (from, to) = (i64::try_from(numbers.start).unwrap(), i64::try_from(numbers.end).unwrap());
    database.admin.execute(sql, &[&from, &to]).await.unwrap();
}

#[tokio::test]
async fn a_claim_carries_what_the_request_needs() {
    let database = with_rows(2).await;
    let table = open(&database, ONE).await;
    database.run("UPDATE pending_work SET payload = NULL WHERE quote_id = 'q00001'").await;
    let mut claims = claimed(table.claim(ONE, &[ask(key(0), 0), ask(key(1), 0)], &[]).await.unwrap());
    claims.sort_by(|a, b| a.key.cmp(&b.key));
    let expected = Claim {
        key: key(0),
        stage: StageName::new("PRICING"),
        fence: 1,
        attempt: 1,
        deferrals: 0,
        epoch: 0,
        definition: Some(DefinitionName::new("quote@1")),
        payload: r#"{"n": 0}"#.into(),
        was_sent: false,
        key_expired: None,
        payload_changed: false,
        version: claims[0].version,
    };
    assert_eq!(claims[0], expected);
    assert_eq!(&*claims[1].payload, "null");
    let version = read_one(&table, 0).await;
    assert_eq!((version.state, version.attempt_count, version.fence), (StageState::Running, 1, 1));
    assert_eq!(version.lease_owner, Some(ONE));
    let lease = version.lease_until.unwrap().since(database.now().await);
    assert!(lease > MINUTE / 2 && lease <= MINUTE, "{lease:?}");
    let hash_is_right =
        "SELECT request_hash = sha256(convert_to(payload::text, 'UTF8')) FROM pending_work WHERE quote_id = 'q00000'";
    assert!(database.admin.query_one(hash_is_right, &[]).await.unwrap().get::<_, bool>(0));
}

#[tokio::test]
async fn e03_of_two_owners_exactly_one_claims_each_row() {
    let database = with_rows(300).await;
    let (one, two) = (open(&database, ONE).await, open(&database, TWO).await);
    let requests: Vec<_> = (0..300).map(|number| ask(key(number), 0)).collect();
    let reversed: Vec<_> = requests.iter().rev().cloned().collect();
    let (ours, theirs) = tokio::join!(one.claim(ONE, &requests, &[]), two.claim(TWO, &reversed, &[]));
    let mut owners: BTreeMap<WorkKey, OwnerId> = BTreeMap::new();
    for (owner, replies) in [(ONE, ours), (TWO, theirs)] {
        for claim in claimed(replies.unwrap()) {
            assert_eq!(owners.insert(claim.key, owner), None);
        }
    }
    assert_eq!(owners.len(), 300);
    for version in one.read(&owners.keys().cloned().collect::<Vec<_>>()).await.unwrap().rows {
        assert_eq!(version.lease_owner, owners.get(&version.key).copied());
    }
}

#[tokio::test]
async fn the_limit_is_exact_under_many_workers() {
    let database = with_rows(1).await;
    let mut workers = Vec::new();
    for number in 1..=6 {
        let table = open(&database, OwnerId(number)).await;
        workers.push(tokio::spawn(async move {
            let mut attempts = 0;
            loop {
                let version = read_one(&table, 0).await;
                if version.attempt_count >= 5 && version.state == StageState::Retry {
                    return attempts;
                }
                if let Some(claim) = claim_one(&table, OwnerId(number), ask(key(0), version.fence)).await {
                    attempts += 1;
                    write_all(&table, OwnerId(number), vec![outcome(&claim, retry())]).await;
                }
            }
        }));
    }
    let mut attempts = 0;
    for worker in workers {
        attempts += worker.await.unwrap();
    }
    assert_eq!(attempts, 5);
}

#[tokio::test]
async fn a_claim_is_refused_where_its_guard_does_not_hold() {
    let database = with_rows(5).await;
    let table = open(&database, ONE).await;
    database.run("UPDATE pending_work SET next_attempt_at = now() + interval '1 hour' WHERE quote_id = 'q00001'").await;
    database.run("UPDATE pending_work SET stage_state = 'NON_RESUMABLE' WHERE quote_id = 'q00002'").await;
    database.run("UPDATE pending_work SET attempt_count = 5 WHERE quote_id = 'q00003'").await;
    let other_stage = ClaimRequest { stage: StageName::new("BINDING"), ..ask(key(4), 0) };
    let refused = [ask(key(0), 1), ask(key(1), 0), ask(key(2), 0), ask(key(3), 0), other_stage, ask(key(99), 0)];
    assert_eq!(table.claim(ONE, &refused, &[]).await.unwrap(), []);
    for request in &refused {
        assert_eq!(claim_one(&table, ONE, request.clone()).await, None);
    }
    database.run("UPDATE pending_work SET next_attempt_at = now() WHERE quote_id = 'q00001'").await;
    assert!(claim_one(&table, ONE, ask(key(1), 0)).await.is_some());
}

#[tokio::test]
async fn a_stale_checkpoint_changes_nothing() {
    let database = with_rows(2).await;
    let table = open(&database, ONE).await;
    let claims = claimed(table.claim(ONE, &[ask(key(0), 0), ask(key(1), 0)], &[]).await.unwrap());
    database.run("UPDATE pending_work SET stage_state = 'CANCELLED', fence = fence + 1, lease_owner = NULL").await;
    let before = database.rows().await;
    let outcomes: Vec<_> = claims.iter().map(|claim| outcome(claim, Transition::Finish)).collect();
    assert_eq!(table.checkpoint(ONE, &outcomes).await.unwrap(), []);
    assert_eq!(table.checkpoint(ONE, &outcomes[..1]).await.unwrap(), []);
    assert_eq!(database.rows().await, before);
}

#[tokio::test]
async fn e05_a_worker_that_slept_through_a_resume_with_a_new_budget_writes_nothing() {
    let database = with_rows(1).await;
    let (one, two) = (open(&database, ONE).await, open(&database, TWO).await);
    let slept = claim_one(&one, ONE, ask(key(0), 0)).await.unwrap();
    database
        .run(
            "UPDATE pending_work SET stage_state = 'PENDING', attempt_count = 0, fence = fence + 1, lease_owner = NULL",
        )
        .await;
    let awake = claim_one(&two, TWO, ask(key(0), 2)).await.unwrap();
    assert_eq!((slept.attempt, awake.attempt), (1, 1));
    assert_eq!(one.checkpoint(ONE, &[outcome(&slept, Transition::Finish)]).await.unwrap(), []);
    let version = read_one(&one, 0).await;
    assert_eq!((version.state, version.fence, version.lease_owner), (StageState::Running, 3, Some(TWO)));
    assert_eq!(two.checkpoint(TWO, &[outcome(&awake, Transition::Finish)]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_running_row_is_taken_over_after_its_lease_or_its_owner() {
    let database = with_rows(2).await;
    let (one, two) = (open(&database, ONE).await, open(&database, TWO).await);
    for number in 0..2 {
        assert!(claim_one(&one, ONE, ask(key(number), 0)).await.is_some());
    }
    let requests = [take_over(key(0), 1), take_over(key(1), 1)];
    assert_eq!(two.claim(TWO, &requests, &[OwnerId(77)]).await.unwrap(), []);
    database.run("UPDATE pending_work SET lease_until = now() - interval '1 s' WHERE quote_id = 'q00000'").await;
    let by_lease = claimed(two.claim(TWO, &requests, &[]).await.unwrap());
    assert_eq!(
        by_lease.iter().map(|claim| (claim.key.clone(), claim.fence, claim.attempt)).collect::<Vec<_>>(),
        [(key(0), 2, 2)]
    );
    let by_owner = claimed(two.claim(TWO, &requests, &[OwnerId(77), ONE]).await.unwrap());
    assert_eq!(
        by_owner.iter().map(|claim| (claim.key.clone(), claim.fence, claim.attempt)).collect::<Vec<_>>(),
        [(key(1), 2, 2)]
    );
    // Without the word a running row is left alone, whatever its lease.
    database.run("UPDATE pending_work SET lease_until = now() - interval '1 s'").await;
    assert_eq!(one.claim(ONE, &[ask(key(0), 2), ask(key(1), 2)], &[TWO]).await.unwrap(), []);
}

#[tokio::test]
async fn a_running_row_without_a_lease_is_taken_over() {
    let database = with_rows(1).await;
    let table = open(&database, ONE).await;
    database.run("UPDATE pending_work SET stage_state = 'RUNNING', attempt_count = 1").await;
    assert_eq!(claim_one(&table, ONE, ask(key(0), 0)).await, None, "a running row is taken only as one");
    let claim = claim_one(&table, ONE, take_over(key(0), 0)).await.unwrap();
    assert_eq!((claim.fence, claim.attempt), (1, 2));
}

#[tokio::test]
async fn e13_a_take_over_at_the_limit_ends_in_unknown() {
    let database = with_rows(2).await;
    let table = open(&database, ONE).await;
    let limited = |number, fence, take_over| ClaimRequest { attempt_limit: 1, take_over, ..ask(key(number), fence) };
    assert_eq!(table.claim(TWO, &[limited(0, 0, false), limited(1, 0, false)], &[]).await.unwrap().len(), 2);
    let mut replies = table.claim(ONE, &[limited(0, 1, true), limited(1, 1, true)], &[TWO]).await.unwrap();
    replies.sort_by_key(|reply| match reply {
        ClaimReply::AtLimit { key, .. } | ClaimReply::Parked { key, .. } => key.clone(),
        ClaimReply::Claimed(claim) => claim.key.clone(),
    });
    assert_eq!(replies, [0, 1].map(|number| ClaimReply::AtLimit { key: key(number), fence: 2 }));
    let version = read_one(&table, 0).await;
    assert_eq!((version.state, version.fence, version.attempt_count), (StageState::Unknown, 2, 1));
    assert_eq!((version.lease_owner, version.lease_until, version.closed), (None, None, false));
    assert_eq!(database.text("SELECT last_error FROM pending_work WHERE quote_id = 'q00000'").await, "AT_LIMIT");
}

#[tokio::test]
async fn each_transition_writes_its_row() {
    let database = with_rows(8).await;
    let table = open(&database, ONE).await;
    database.run("UPDATE pending_work SET deferral_count = 3, last_error = 'before'").await;
    let requests: Vec<_> = (0..8).map(|number| ask(key(number), 0)).collect();
    let mut claims = claimed(table.claim(ONE, &requests, &[]).await.unwrap());
    claims.sort_by(|a, b| a.key.parts().nth(1).cmp(&b.key.parts().nth(1)));
    let next = StageName::new("APPROVAL");
    let (after, reason) = (MINUTE, "WHY".to_owned());
    let transitions = [
        Transition::Advance { next: next.clone() },
        Transition::Chain { next, lease: MINUTE },
        Transition::Finish,
        Transition::Retry { after, reason: reason.clone() },
        Transition::Defer { after, reason: reason.clone(), counted: true },
        Transition::Park { reason: reason.clone() },
        Transition::Unknown { reason },
        Transition::Release,
    ];
    let outcomes: Vec<_> =
        claims.iter().zip(transitions).map(|(claim, transition)| outcome(claim, transition)).collect();
    let replies = table.checkpoint(ONE, &outcomes).await.unwrap();
    assert_eq!(replies.len(), 8);
    let written = "SELECT string_agg(format('%s %s %s/%s fence %s%s%s%s%s %s', stage, stage_state, attempt_count, deferral_count, fence,
             CASE WHEN next_attempt_at > now() THEN ' later' WHEN next_attempt_at IS NOT NULL THEN ' due' END,
             CASE WHEN lease_until > now() AND lease_owner IS NOT NULL THEN ' leased'
                  WHEN lease_until IS NOT NULL OR lease_owner IS NOT NULL THEN ' half leased' END,
             CASE WHEN request_hash IS NOT NULL THEN ' hash' END,
             CASE WHEN closed_at IS NOT NULL THEN ' closed' END, last_error), E'\\n' ORDER BY quote_id) FROM pending_work";
    expect_test::expect![[r"
        APPROVAL PENDING 0/0 fence 1 
        APPROVAL RUNNING 1/0 fence 2 leased hash 
        PRICING DONE 1/3 fence 1 hash closed 
        PRICING RETRY 1/3 fence 1 later hash WHY
        PRICING RETRY 0/4 fence 1 later hash WHY
        PRICING NON_RESUMABLE 1/3 fence 1 hash WHY
        PRICING UNKNOWN 1/3 fence 1 hash WHY
        PRICING PENDING 0/3 fence 1 before"]]
    .assert_eq(&database.text(written).await);
}

#[tokio::test]
async fn a_chained_claim_is_a_claim_of_the_next_stage() {
    let database = with_rows(1).await;
    let table = open(&database, ONE).await;
    let claim = claim_one(&table, ONE, ask(key(0), 0)).await.unwrap();
    let next = StageName::new("APPROVAL");
    let chain = Transition::Chain { next: next.clone(), lease: MINUTE };
    let mut replies = table.checkpoint(ONE, &[outcome(&claim, chain)]).await.unwrap();
    let Some(CheckpointReply::Chained(chained)) = replies.pop() else { panic!("a chained claim") };
    assert_ne!(chained.version, claim.version);
    assert_eq!(chained, Claim { stage: next, fence: 2, version: chained.version, ..claim.clone() });
    assert_eq!(table.checkpoint(ONE, &[outcome(&claim, Transition::Finish)]).await.unwrap(), []);
    assert_eq!(table.checkpoint(ONE, &[outcome(&chained, Transition::Finish)]).await.unwrap().len(), 1);
    let version = read_one(&table, 0).await;
    assert_eq!((version.state, version.closed), (StageState::Done, true));
}

#[tokio::test]
async fn a_changed_payload_is_seen_at_the_next_attempt_and_forgotten_at_the_next_stage() {
    let database = with_rows(3).await;
    let table = open(&database, ONE).await;
    let requests: Vec<_> = (0..3).map(|number| ask(key(number), 0)).collect();
    let claims = claimed(table.claim(ONE, &requests, &[]).await.unwrap());
    let next = StageName::new("APPROVAL");
    let outcomes: Vec<_> = claims
        .iter()
        .map(|claim| {
            outcome(claim, if claim.key == key(2) { Transition::Advance { next: next.clone() } } else { retry() })
        })
        .collect();
    assert_eq!(table.checkpoint(ONE, &outcomes).await.unwrap().len(), 3);
    database.run(r#"UPDATE pending_work SET payload = '{"other": 1}' WHERE quote_id <> 'q00000'"#).await;
    let requests = [ask(key(0), 1), ask(key(1), 1), ClaimRequest { stage: next, ..ask(key(2), 1) }];
    let changed = |claims: Vec<Claim>| -> BTreeMap<_, _> {
        claims.into_iter().map(|claim| (claim.key, claim.payload_changed)).collect()
    };
    let expected = BTreeMap::from([(key(0), false), (key(1), true), (key(2), false)]);
    assert_eq!(changed(claimed(table.claim(ONE, &requests, &[]).await.unwrap())), expected);
    database.run("UPDATE pending_work SET stage_state = 'RETRY', fence = fence + 1 WHERE quote_id = 'q00001'").await;
    assert!(claim_one(&table, ONE, ask(key(1), 3)).await.unwrap().payload_changed);
}

#[tokio::test]
async fn a_payload_may_be_changed_after_a_first_claim_that_was_given_back_unsent() {
    let database = with_rows(2).await;
    let table = open(&database, ONE).await;
    // The second row was sent once before.
    let sent = claim_one(&table, ONE, ask(key(1), 0)).await.unwrap();
    table.checkpoint(ONE, &[outcome(&sent, retry())]).await.unwrap();
    let claims = claimed(table.claim(ONE, &[ask(key(0), 0), ask(key(1), 1)], &[]).await.unwrap());
    let outcomes: Vec<_> = claims.iter().map(|claim| outcome(claim, Transition::Release)).collect();
    assert_eq!(table.checkpoint(ONE, &outcomes).await.unwrap().len(), 2);
    database.run(r#"UPDATE pending_work SET payload = '{"other": 1}'"#).await;
    assert!(!claim_one(&table, ONE, ask(key(0), 1)).await.unwrap().payload_changed);
    assert!(claim_one(&table, ONE, ask(key(1), 2)).await.unwrap().payload_changed);
}

#[tokio::test]
async fn overlapping_batches_of_four_clients_never_deadlock() {
    const ROUNDS: usize = 15;
    let database = with_rows(400).await;
    let mut clients = Vec::new();
    for number in 1..=4_u64 {
        let table = open(&database, OwnerId(number)).await;
        clients.push(tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(number);
            let mut claims = 0;
            for _ in 0..ROUNDS {
                let mut chosen: Vec<usize> = (0..400).collect();
                random.shuffle(&mut chosen);
                let keys: Vec<_> = chosen.into_iter().take(200).map(key).collect();
                let rows = table.read(&keys).await.unwrap().rows;
                let mut requests: Vec<_> = rows
                    .iter()
                    .map(|row| ClaimRequest { attempt_limit: 1_000, ..ask(row.key.clone(), row.fence) })
                    .collect();
                random.shuffle(&mut requests);
                let mine = claimed(table.claim(OwnerId(number), &requests, &[]).await.unwrap());
                let mut outcomes: Vec<_> = mine.iter().map(|claim| outcome(claim, retry())).collect();
                random.shuffle(&mut outcomes);
                write_all(&table, OwnerId(number), outcomes).await;
                claims += mine.len();
            }
            claims
        }));
    }
    let mut claims = 0;
    for client in clients {
        claims += client.await.unwrap();
    }
    assert!(claims > 0);
    let counted = "SELECT sum(attempt_count)::text FROM pending_work";
    assert_eq!(database.text(counted).await, claims.to_string());
    assert!(!database.cluster.read_log().unwrap().contains("deadlock detected"));
}

#[tokio::test]
async fn a_locked_row_is_skipped_at_once_alone_and_among_others() {
    let database = with_rows(3).await;
    let table = open(&database, ONE).await;
    database.run("BEGIN; SELECT 1 FROM pending_work WHERE quote_id = 'q00001' FOR UPDATE").await;
    // Shorter than any wait for a lock; each row is asked for more often than once, so the first call's connecting is not in it.
    let instant = Duration::from_millis(400);
    assert_eq!(claim_one(&table, ONE, ask(key(99), 0)).await, None);
    let all = [ask(key(0), 0), ask(key(1), 0), ask(key(2), 0)];
    let started = Instant::now();
    let claims = claimed(table.claim(ONE, &all, &[]).await.unwrap());
    assert!(started.elapsed() < instant, "{:?}", started.elapsed());
    assert_eq!(claims.iter().map(|claim| claim.key.clone()).collect::<BTreeSet<_>>(), BTreeSet::from([key(0), key(2)]));
    let started = Instant::now();
    assert_eq!(claim_one(&table, ONE, ask(key(1), 0)).await, None);
    assert!(started.elapsed() < instant, "{:?}", started.elapsed());
    database.run("ROLLBACK").await;
    assert!(claim_one(&table, ONE, ask(key(1), 0)).await.is_some());
}

#[tokio::test]
async fn an_outcome_of_a_locked_row_has_no_reply_and_may_be_written_later() {
    let database = with_rows(1).await;
    let table = open(&database, ONE).await;
    let claim = claim_one(&table, ONE, ask(key(0), 0)).await.unwrap();
    database.run("BEGIN; SELECT 1 FROM pending_work FOR NO KEY UPDATE").await;
    assert_eq!(table.checkpoint(ONE, &[outcome(&claim, Transition::Finish)]).await.unwrap(), []);
    // What was read shows that the guard still holds.
    let version = read_one(&table, 0).await;
    assert_eq!((version.state, version.fence, version.lease_owner), (StageState::Running, 1, Some(ONE)));
    database.run("COMMIT").await;
    assert_eq!(table.checkpoint(ONE, &[outcome(&claim, Transition::Finish)]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_table_that_somebody_keeps_locked_is_an_error_that_passes() {
    let database = with_rows(1).await;
    let table = open(&database, ONE).await;
    database.run("BEGIN; LOCK TABLE pending_work IN ACCESS EXCLUSIVE MODE").await;
    let error = table.claim(ONE, &[ask(key(0), 0)], &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{}", error.report());
    database.run("COMMIT").await;
    assert!(claim_one(&table, ONE, ask(key(0), 0)).await.is_some());
}

#[tokio::test]
async fn e17_a_row_of_a_running_transaction_is_not_there_and_the_snapshot_says_why() {
    let database = with_rows(1).await;
    let table = open(&database, ONE).await;
    database.run("BEGIN").await;
    insert_rows(&database, 5..6).await;
    let xid: u32 = database.text("SELECT (pg_current_xact_id()::text::int8 & 4294967295)::text").await.parse().unwrap();
    assert_eq!(claim_one(&table, ONE, ask(key(5), 0)).await, None);
    let reading = table.read(&[key(5)]).await.unwrap();
    assert_eq!(reading.rows, []);
    assert!(!reading.snapshot.sees(xid));
    database.run("COMMIT").await;
    let reading = table.read(&[key(5), key(0), key(99)]).await.unwrap();
    assert!(reading.snapshot.sees(xid));
    assert_eq!(reading.rows.into_iter().map(|row| row.key).collect::<BTreeSet<_>>(), BTreeSet::from([key(0), key(5)]));
}

#[tokio::test]
async fn what_became_of_a_lost_reply_is_read() {
    let database = with_rows(1).await;
    let table = open(&database, ONE).await;
    // The reply of this claim counts as lost.
    let _ = claim_one(&table, ONE, ask(key(0), 0)).await;
    let version = read_one(&table, 0).await;
    assert_eq!((version.lease_owner, version.fence), (Some(ONE), 1));
    let adopted = Checkpoint {
        key: key(0),
        stage: StageName::new("PRICING"),
        fence: 1,
        status: None,
        transition: Transition::Finish,
        claim: None,
        untold: None,
    };
    assert_eq!(table.checkpoint(ONE, &[adopted]).await.unwrap(), [CheckpointReply::Written { key: key(0) }]);
    assert!(read_one(&table, 0).await.closed);
}

#[tokio::test]
async fn every_transition_but_the_last_is_a_hot_update() {
    const ROWS: usize = 300;
    // An old transaction anywhere on the server keeps dead versions on their pages, and the room with them.
    let database = Database::create_alone().await;
    database.install_work_table().await;
    insert_rows(&database, 0..ROWS).await;
    let table = open(&database, ONE).await;
    let requests: Vec<_> = (0..ROWS).map(|number| ask(key(number), 0)).collect();
    let mut claims = claimed(table.claim(ONE, &requests, &[]).await.unwrap());
    for stage in ["APPROVAL", "BINDING", "ISSUING"] {
        let chain = Transition::Chain { next: StageName::new(stage), lease: MINUTE };
        let outcomes: Vec<_> = claims.iter().map(|claim| outcome(claim, chain.clone())).collect();
        let replies = table.checkpoint(ONE, &outcomes).await.unwrap();
        claims = replies
            .into_iter()
            .map(|reply| match reply {
                CheckpointReply::Chained(claim) => claim,
                CheckpointReply::Written { .. } => panic!("a chained claim"),
            })
            .collect();
    }
    assert_eq!(claims.len(), ROWS);
    // Version 14 keeps what an idle session counted to itself until the session ends.
    drop(table);
    let statistics = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'pending_work'";
    let counted = i64::try_from(4 * ROWS).unwrap();
    let mut hot = 0;
    eventually("the updates are counted", async || {
        let row = database.admin.query_one(statistics, &[]).await.unwrap();
        hot = row.get(1);
        row.get::<_, i64>(0) == counted
    })
    .await;
    assert!(hot * 100 >= counted * 90, "{hot} of {counted} updates are HOT");
}

#[tokio::test]
async fn e17_open_rows_are_those_of_one_snapshot_in_key_order() {
    let database = with_rows(2_500).await;
    let table = open(&database, ONE).await;
    database.run("UPDATE pending_work SET closed_at = now() WHERE quote_id < 'q00100'").await;
    let mut open_rows = table.open_rows().await.unwrap();
    database.run("UPDATE pending_work SET fence = 9, closed_at = now()").await;
    let snapshot = open_rows.snapshot().clone();
    let mut keys = Vec::new();
    let mut sizes = Vec::new();
    loop {
        let page = open_rows.next_page().await.unwrap();
        if page.is_empty() {
            break;
        }
        assert!(page.iter().all(|row| row.fence == 0 && !row.closed));
        sizes.push(page.len());
        keys.extend(page.into_iter().map(|row| row.key));
    }
    assert_eq!(sizes, [1_000, 1_000, 400]);
    assert!(keys.is_sorted());
    assert_eq!(keys.into_iter().collect::<BTreeSet<_>>().len(), 2_400);
    assert_eq!(*open_rows.snapshot(), snapshot);
    assert!(open_rows.next_page().await.unwrap().is_empty());
}

#[tokio::test]
async fn open_rows_dropped_early_leave_no_session() {
    let database = with_rows(1_200).await;
    let table = open(&database, ONE).await;
    let mut open_rows = table.open_rows().await.unwrap();
    assert_eq!(open_rows.next_page().await.unwrap().len(), 1_000);
    let reads = "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    assert_eq!(database.text(reads).await, "1");
    drop(open_rows);
    eventually("the session ends", async || database.text(reads).await == "0").await;
}

#[tokio::test]
async fn a_broken_session_is_replaced_at_the_next_call() {
    let database = with_rows(2).await;
    let table = open(&database, ONE).await;
    assert!(claim_one(&table, ONE, ask(key(0), 0)).await.is_some());
    let killed = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    database.run(killed).await;
    eventually("a claim goes through again", async || match table.claim(ONE, &[ask(key(1), 0)], &[]).await {
        Ok(replies) => replies.len() == 1,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Disconnected, "{}", error.report());
            false
        }
    })
    .await;
}
