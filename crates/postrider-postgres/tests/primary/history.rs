//! What the history has of each attempt that ended, on a real server.

use std::time::Duration;

use expect_test::expect;
use postrider_core::error::ErrorKind;
use postrider_core::ports::{Checkpoint, CheckpointReply, ClaimReply, ClaimRequest, Transition, Untold, WorkTable};
use postrider_core::work::{DefinitionName, StageName};
use postrider_postgres::{PgWorkTable, WorkTableSettings};

use crate::database::{Database, canonical_mapping, parse};
use crate::work_table::{MINUTE, ONE, TWO, ask, claim_one, claimed, key, open, outcome, outcome_alone, with_rows};

const TOLD: &str = "SELECT string_agg(format('%s %s e%s %s/%s f%s %s: %s%s%s -> %s %s%s', array_to_string(key, '/'), stage, epoch, attempt,
       deferrals, fence, ltrim(owner, '0'), outcome, ' ' || http_status, ' ' || reason, next_stage, next_state,
       CASE WHEN started_at IS NULL OR started_at > ended_at OR work_table <> 'pending_work'::regclass OR definition <> 'quote@1'
            THEN ' WRONG' END), E'\\n' ORDER BY key[2], fence) FROM postrider.work_history";

async fn count(database: &Database) -> String {
    database.text("SELECT count(*)::text FROM postrider.work_history").await
}

#[tokio::test]
async fn every_end_of_an_attempt_is_told_by_the_statement_that_writes_it() {
    let database = with_rows(9).await;
    let table = open(&database, ONE).await;
    database.run("UPDATE pending_work SET deferral_count = 3, epoch = 2, attempt_count = 1").await;
    let requests: Vec<_> = (0..9).map(|number| ask(key(number), 0)).collect();
    let mut claims = claimed(table.claim(ONE, &requests, &[]).await.unwrap());
    claims.sort_by(|a, b| a.key.parts().nth(1).cmp(&b.key.parts().nth(1)));
    assert_eq!(count(&database).await, "0", "a claim ends nothing");
    let next = StageName::new("APPROVAL");
    let (after, reason) = (MINUTE, "WHY".to_owned());
    let transitions = [
        (Some(200), Transition::Advance { next: next.clone() }),
        (Some(201), Transition::Chain { next, lease: MINUTE }),
        (Some(204), Transition::Finish),
        (Some(500), Transition::Retry { after, reason: reason.clone() }),
        (Some(429), Transition::Defer { after, reason: reason.clone(), counted: true }),
        (None, Transition::Defer { after, reason: reason.clone(), counted: false }),
        (Some(422), Transition::Park { reason: reason.clone() }),
        (None, Transition::Unknown { reason }),
        (None, Transition::Release),
    ];
    let outcomes: Vec<_> = claims
        .iter()
        .zip(transitions)
        .map(|(claim, (status, transition))| Checkpoint { status, ..outcome(claim, transition) })
        .collect();
    let replies = table.checkpoint(ONE, &outcomes).await.unwrap();
    assert_eq!(replies.len(), 9);
    expect![[r"
        g0/q00000 PRICING e2 2/3 f1 1: done 200 -> APPROVAL PENDING
        g1/q00001 PRICING e2 2/3 f1 1: done 201 -> APPROVAL RUNNING
        g2/q00002 PRICING e2 2/3 f1 1: done 204 -> PRICING DONE
        g3/q00003 PRICING e2 2/3 f1 1: retry 500 WHY -> PRICING RETRY
        g4/q00004 PRICING e2 2/3 f1 1: deferred 429 WHY -> PRICING RETRY
        g5/q00005 PRICING e2 2/3 f1 1: deferred WHY -> PRICING RETRY
        g6/q00006 PRICING e2 2/3 f1 1: parked 422 WHY -> PRICING NON_RESUMABLE
        g0/q00007 PRICING e2 2/3 f1 1: unknown WHY -> PRICING UNKNOWN
        g1/q00008 PRICING e2 2/3 f1 1: released -> PRICING PENDING"]]
    .assert_eq(&database.text(TOLD).await);
    // The chained claim has a beginning of its own, and its end is told as any other's.
    let Some(CheckpointReply::Chained(chained)) =
        replies.into_iter().find(|reply| matches!(reply, CheckpointReply::Chained(_)))
    else {
        panic!("a chained claim")
    };
    table.checkpoint(ONE, &[outcome(&chained, Transition::Finish)]).await.unwrap();
    let follows = "SELECT (a.ended_at = b.started_at AND b.stage = 'APPROVAL' AND b.attempt = 1 AND b.deferrals = 0)::text
         FROM postrider.work_history AS a JOIN postrider.work_history AS b ON b.key = a.key AND b.fence = a.fence + 1 WHERE a.key[2] = 'q00001'";
    assert_eq!(database.text(follows).await, "true");
}

#[tokio::test]
async fn what_a_guard_refuses_is_not_told() {
    let database = with_rows(2).await;
    let table = open(&database, ONE).await;
    let claims = claimed(table.claim(ONE, &[ask(key(0), 0), ask(key(1), 0)], &[]).await.unwrap());
    database.run("UPDATE pending_work SET fence = fence + 1 WHERE quote_id = 'q00001'").await;
    let outcomes: Vec<_> = claims.iter().map(|claim| outcome(claim, Transition::Finish)).collect();
    assert_eq!(table.checkpoint(ONE, &outcomes).await.unwrap().len(), 1);
    assert_eq!(table.checkpoint(ONE, &outcomes).await.unwrap(), []);
    assert_eq!(database.text(TOLD).await, "g0/q00000 PRICING e0 1/0 f1 1: done 200 -> PRICING DONE");
}

#[tokio::test]
async fn e13_an_attempt_that_is_lost_is_told_when_it_is_taken_over_and_at_the_limit_its_row_is_unknown() {
    let database = with_rows(4).await;
    let (one, two) = (open(&database, ONE).await, open(&database, TWO).await);
    let limited = |number, fence| ClaimRequest { attempt_limit: 1, take_over: true, ..ask(key(number), fence) };
    for number in 0..3 {
        claim_one(&one, ONE, ask(key(number), 0)).await.unwrap();
    }
    database.run("UPDATE pending_work SET lease_until = now() - interval '1 s' WHERE quote_id = 'q00000'").await;
    let more = ClaimRequest { attempt_limit: 2, ..limited(0, 1) };
    assert_eq!(two.claim(TWO, &[more, limited(1, 1)], &[]).await.unwrap().len(), 1);
    // The last one is free: a claim among take-overs that ends nothing.
    let replies = two.claim(TWO, &[limited(1, 1), limited(2, 1), limited(3, 0)], &[ONE]).await.unwrap();
    assert_eq!(replies.len(), 3, "{replies:?}");
    expect![[r"
        g0/q00000 PRICING e0 1/0 f1 1: taken_over LEASE_ENDED -> PRICING RUNNING
        g1/q00001 PRICING e0 1/0 f1 1: taken_over AT_LIMIT -> PRICING UNKNOWN
        g2/q00002 PRICING e0 1/0 f1 1: taken_over AT_LIMIT -> PRICING UNKNOWN"]]
    .assert_eq(&database.text(TOLD).await);
    let gone = ClaimRequest { attempt_limit: 9, ..limited(0, 2) };
    assert_eq!(one.claim(ONE, &[gone], &[TWO]).await.unwrap().len(), 1);
    let last =
        "SELECT concat_ws(' ', fence, attempt, ltrim(owner, 'f0'), reason) FROM postrider.work_history WHERE fence = 2";
    assert_eq!(database.text(last).await, "2 2 2 OWNER_GONE");
}

#[tokio::test]
async fn with_the_history_off_nothing_is_told_and_its_table_is_not_needed() {
    let database = with_rows(1).await;
    database.run("DROP TABLE postrider.work_history").await;
    let settings = WorkTableSettings { owner_grace: Duration::ZERO, history: false, ..WorkTableSettings::new(ONE) };
    let table = PgWorkTable::open(database.options(), &canonical_mapping(), &settings).await.unwrap();
    let claim = claim_one(&table, ONE, ask(key(0), 0)).await.unwrap();
    assert_eq!(table.checkpoint(ONE, &[outcome(&claim, Transition::Finish)]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_history_that_cannot_be_written_is_refused_before_the_first_claim() {
    let database = with_rows(1).await;
    let role = format!("{}_reader", database.name());
    database
        .run(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'secret'; GRANT SELECT, UPDATE ON pending_work TO {role};
             GRANT SELECT ON postrider.work_history, postrider.operator_actions, postrider.pauses TO {role}"
        ))
        .await;
    let options = parse(&database.cluster.url_as(&role, "secret", database.name()));
    let open = async || {
        PgWorkTable::open(options.clone(), &canonical_mapping(), &WorkTableSettings::new(ONE)).await.unwrap_err()
    };
    let error = open().await;
    assert_eq!(error.kind(), ErrorKind::Privilege, "{}", error.report());
    assert_eq!(
        error.hint().unwrap(),
        format!(
            "GRANT USAGE ON SCHEMA postrider TO \"{role}\"; GRANT INSERT, DELETE ON postrider.work_history TO \"{role}\";"
        )
    );
    database.run("DROP TABLE postrider.work_history").await;
    let error = open().await;
    assert_eq!((error.kind(), error.detail()), (ErrorKind::Table, Some("There is no table postrider.work_history.")));
    assert!(error.hint().unwrap().contains("postrider setup"), "{}", error.report());
}

/// Old rows of the history can be deleted where everything is published.
#[tokio::test]
async fn a_publication_of_all_tables_is_in_nobodys_way() {
    let database = with_rows(1).await;
    let table = open(&database, ONE).await;
    database.run("CREATE PUBLICATION everything FOR ALL TABLES").await;
    let claim = claim_one(&table, ONE, ask(key(0), 0)).await.unwrap();
    table.checkpoint(ONE, &[outcome(&claim, Transition::Finish)]).await.unwrap();
    assert_eq!(count(&database).await, "1");
    database.run("DELETE FROM postrider.work_history").await;
}

#[tokio::test]
async fn what_is_purged_belongs_to_workflows_that_ended_long_ago() {
    const DAY: Duration = Duration::from_secs(86_400);
    let database = with_rows(5).await;
    let table = open(&database, ONE).await;
    for number in 0..5 {
        let claim = claim_one(&table, ONE, ask(key(number), 0)).await.unwrap();
        table.checkpoint(ONE, &[outcome(&claim, Transition::Finish)]).await.unwrap();
    }
    // Ended long ago; ended just now; open again; gone; and young though its workflow ended long ago.
    database
        .run(
            "UPDATE postrider.work_history SET ended_at = now() - interval '40 days';
             UPDATE pending_work SET closed_at = now() - interval '40 days';
             UPDATE pending_work SET closed_at = now() WHERE quote_id = 'q00001';
             UPDATE pending_work SET closed_at = NULL WHERE quote_id = 'q00002';
             DELETE FROM pending_work WHERE quote_id = 'q00003';
             UPDATE postrider.work_history SET ended_at = now() WHERE key[2] = 'q00004';
             CREATE TABLE other (LIKE pending_work);
             INSERT INTO postrider.work_history SELECT started_at, ended_at, fence, 'other'::regclass, epoch, attempt, deferrals, http_status,
               ARRAY['g', 'other'], stage, definition, owner, outcome, reason, next_stage, next_state FROM postrider.work_history
               WHERE key[2] = 'q00000';
             INSERT INTO postrider.work_history (ended_at, fence, work_table, epoch, attempt, deferrals, key, stage, outcome, reason, next_stage, next_state)
               SELECT now() - interval '40 days', n, 'pending_work'::regclass, 0, 1, 0, ARRAY['g', 'gone'], 'PRICING', 'done', repeat('x', 400),
                 'PRICING', 'DONE' FROM generate_series(1, 4000) AS n",
        )
        .await;
    let first = table.purge_history(30 * DAY, 0).await.unwrap();
    assert!(first.stretches >= 2 && first.rows > 2 && first.rows < 4_000, "{first:?}");
    let mut rows = first.rows;
    for stretch in 1..first.stretches {
        rows += table.purge_history(30 * DAY, stretch).await.unwrap().rows;
    }
    assert_eq!(rows, 4_002);
    assert_eq!(table.purge_history(30 * DAY, first.stretches + 7).await.unwrap().rows, 0);
    let left = "SELECT string_agg(key[2], ' ' ORDER BY key[2]) FROM postrider.work_history";
    assert_eq!(database.text(left).await, "other q00001 q00002 q00004");
}

/// The claim that parks a row for what somebody wrote into it knows of the attempt what the row may not tell any more.
#[tokio::test]
async fn an_attempt_whose_row_somebody_else_wrote_is_told_once_by_the_claim_that_parks_it() {
    let database = with_rows(3).await;
    let table = open(&database, ONE).await;
    let asked: Vec<_> = (0..3).map(|number| ask(key(number), 0)).collect();
    let claims = claimed(table.claim(ONE, &asked, &[]).await.unwrap());
    let claim = |number: usize| claims.iter().find(|claim| claim.key == key(number)).unwrap();
    // The outcome of the second was written, and only the reply was lost.
    let retry = Transition::Retry { after: MINUTE, reason: "WHY".to_owned() };
    assert_eq!(table.checkpoint(ONE, &[outcome(claim(1), retry)]).await.unwrap().len(), 1);
    database
        .run(
            "UPDATE pending_work SET stage = 'APPROVAL', stage_state = 'PENDING', lease_owner = NULL,
               attempt_count = 1, next_attempt_at = NULL, updated_at = clock_timestamp() + interval '1 s'",
        )
        .await;
    let refused = |number: usize| {
        let claimed_at = claim(number).version.filter(|_| number == 0).map(|version| version.written_at);
        let untold = Some(Untold { claimed_at, ..in_pricing() });
        let (stage, refusal) = (StageName::new("APPROVAL"), Some("UNFENCED_WRITE: so".to_owned()));
        let request = ClaimRequest { stage, refusal, attempt_limit: u32::MAX, ..ask(key(number), 1) };
        // What is refused for another reason ends no attempt.
        ClaimRequest { untold: untold.filter(|_| number < 2), ..request }
    };
    let mut requests: Vec<_> = (0..3).map(refused).collect();
    requests.iter_mut().for_each(|request| request.definition = DefinitionName::new("quote@1"));
    let replies = table.claim(ONE, &requests, &[]).await.unwrap();
    assert!(
        replies.len() == 3 && replies.iter().all(|reply| matches!(reply, ClaimReply::Parked { .. })),
        "{replies:?}"
    );
    expect![[r"
        g0/q00000 PRICING e0 1/0 f1 1: parked UNFENCED_WRITE: so -> APPROVAL NON_RESUMABLE
        g1/q00001 PRICING e0 1/0 f1 1: retry 200 WHY -> PRICING RETRY"]]
    .assert_eq(&database.text(TOLD).await);
}

/// An attempt that nobody has told of.
fn in_pricing() -> Untold {
    Untold { stage: StageName::new("PRICING"), claimed_at: None, reason: "UNFENCED_WRITE: so".to_owned() }
}

/// The row goes on from where it was put, by a claim where it waits; where it still runs, by the outcome of its holder.
#[tokio::test]
async fn an_attempt_is_told_in_its_own_stage_wherever_its_row_goes_on() {
    let database = with_rows(3).await;
    let table = open(&database, ONE).await;
    let asked: Vec<_> = (0..3).map(|number| ask(key(number), 0)).collect();
    let claims = claimed(table.claim(ONE, &asked, &[]).await.unwrap());
    let began = database.text("SELECT DISTINCT updated_at::text FROM pending_work").await;
    database.run("UPDATE pending_work SET stage = 'APPROVAL', updated_at = clock_timestamp() + interval '1 s'").await;
    database.run("UPDATE pending_work SET stage_state = 'PENDING', lease_owner = NULL WHERE quote_id = 'q00000'").await;
    let claimed_at = claims[0].version.map(|version| version.written_at);
    let untold = Some(Untold { claimed_at, ..in_pricing() });
    let stage = StageName::new("APPROVAL");
    let goes_on = ClaimRequest { stage: stage.clone(), untold: untold.clone(), ..ask(key(0), 1) };
    assert_eq!(claimed(table.claim(ONE, &[goes_on], &[]).await.unwrap()).len(), 1);
    let park = Transition::Park { reason: "UNFENCED_WRITE: so".to_owned() };
    let ends = |number: usize, transition, untold| {
        let claim = claims.iter().find(|claim| claim.key == key(number)).unwrap();
        Checkpoint { stage: stage.clone(), status: None, untold, ..outcome_alone(claim, transition) }
    };
    let outcomes = [ends(1, park, untold.clone()), ends(2, Transition::Release, untold)];
    assert_eq!(table.checkpoint(ONE, &outcomes).await.unwrap().len(), 2);
    expect![[r"
        g0/q00000 PRICING e0 1/0 f1 1: interrupted UNFENCED_WRITE: so -> APPROVAL RUNNING
        g1/q00001 PRICING e0 1/0 f1 1: parked UNFENCED_WRITE: so -> APPROVAL NON_RESUMABLE
        g2/q00002 PRICING e0 1/0 f1 1: interrupted UNFENCED_WRITE: so -> APPROVAL PENDING"]]
    .assert_eq(&database.text(TOLD).await);
    let told = "SELECT count(*)::text FROM postrider.work_history WHERE stage = 'PRICING' AND started_at::text = ";
    assert_eq!(database.text(&format!("{told}'{began}'")).await, "3", "since the claim, whatever the row says");
    assert_eq!(
        database.text("SELECT coalesce(max(last_error), '') FROM pending_work WHERE stage_state = 'PENDING'").await,
        ""
    );
}
