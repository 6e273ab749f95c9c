//! Outcomes of rows that are as their claims left them, and of rows that are not: what is written must be the same.

use crate::database::Database;
use crate::work_table::{MINUTE, ONE, ask, claimed, key, open, outcome, outcome_alone, with_rows};
use postrider_core::error::ErrorKind;
use postrider_core::ports::{CheckpointReply, Claim, Transition, WorkTable};
use postrider_core::work::StageName;
use postrider_postgres::PgWorkTable;

fn chain() -> Transition {
    Transition::Chain { next: StageName::new("APPROVAL"), lease: MINUTE }
}

async fn claim_all(table: &PgWorkTable, count: usize) -> Vec<Claim> {
    let requests: Vec<_> = (0..count).map(|number| ask(key(number), 0)).collect();
    let mut claims = claimed(table.claim(ONE, &requests, &[]).await.unwrap());
    claims.sort_by(|left, right| left.key.cmp(&right.key));
    claims
}

async fn chained(table: &PgWorkTable, claim: &Claim) -> Claim {
    match table.checkpoint(ONE, &[outcome(claim, chain())]).await.unwrap().pop() {
        Some(CheckpointReply::Chained(claim)) => claim,
        other => panic!("a chained claim, not {other:?}"),
    }
}

/// All that a row holds but its times and its key.
async fn rows(database: &Database) -> Vec<String> {
    let sql = "SELECT (to_jsonb(t) - '{group_id,quote_id,payload,request_hash,created_at,updated_at,next_attempt_at,lease_until,closed_at}'::text[] || jsonb_build_object(
            'hash', CASE WHEN request_hash = sha256(convert_to(payload::text, 'UTF8')) THEN 'of the payload' ELSE request_hash::text END,
            'later', next_attempt_at > now(), 'leased', lease_until > now(), 'closed', closed_at IS NOT NULL))::text
        FROM pending_work AS t ORDER BY quote_id";
    database.admin.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// What a history tells of an attempt, but for its row's key and number.
async fn told(database: &Database) -> Vec<String> {
    let sql = "SELECT (to_jsonb(h) - '{key,ended_at,started_at}'::text[] || jsonb_build_object(
            'began', EXISTS (SELECT FROM began WHERE began.at = h.started_at)))::text
        FROM postrider.work_history AS h ORDER BY key";
    database.admin.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn every_outcome_writes_the_same_whether_its_claim_is_known_or_not() {
    let (after, reason) = (MINUTE, "because".to_owned());
    let transitions = [
        Transition::Advance { next: StageName::new("APPROVAL") },
        chain(),
        Transition::Finish,
        Transition::Retry { after, reason: reason.clone() },
        Transition::Defer { after, reason: reason.clone(), counted: true },
        Transition::Defer { after, reason: reason.clone(), counted: false },
        Transition::Park { reason: reason.clone() },
        Transition::Unknown { reason },
        Transition::Release,
    ];
    // Once as one statement for all, once with a statement for each.
    for together in [true, false] {
        let mut seen = Vec::new();
        for outcome in [outcome, outcome_alone] {
            let database = with_rows(transitions.len()).await;
            database.run("UPDATE pending_work SET attempt_count = 2, deferral_count = 1, last_error = 'before'").await;
            let table = open(&database, ONE).await;
            let claims = claim_all(&table, transitions.len()).await;
            database.run("CREATE TABLE began AS SELECT DISTINCT updated_at AS at FROM pending_work").await;
            let outcomes: Vec<_> =
                claims.iter().zip(&transitions).map(|(claim, transition)| outcome(claim, transition.clone())).collect();
            let mut replies = Vec::new();
            for part in outcomes.chunks(if together { outcomes.len() } else { 1 }) {
                replies.extend(table.checkpoint(ONE, part).await.unwrap());
            }
            replies.sort_by(|left, right| left.key().cmp(right.key()));
            for reply in &mut replies {
                if let CheckpointReply::Chained(claim) = reply {
                    assert!(claim.version.take().is_some());
                }
            }
            seen.push((replies, rows(&database).await, told(&database).await));
        }
        assert_eq!(seen[0].0.len(), transitions.len());
        assert_eq!(seen[0], seen[1]);
    }
}

/// The version that a chained claim gives is the row's, so that the next outcome finds it again.
#[tokio::test]
async fn a_row_is_known_from_claim_to_claim() {
    let database = with_rows(1).await;
    // Who looks at the payload as text, is told.
    database
        .run(
            "CREATE TYPE watched AS (body text); CREATE SEQUENCE looks;
             CREATE FUNCTION look(watched) RETURNS text LANGUAGE sql VOLATILE AS $$ SELECT $1.body || left(nextval('public.looks')::text, 0) $$;
             CREATE CAST (watched AS text) WITH FUNCTION look(watched);
             ALTER TABLE pending_work ALTER payload TYPE watched USING row(payload::text)::watched",
        )
        .await;
    let table = open(&database, ONE).await;
    let claim = claim_all(&table, 1).await.remove(0);
    let looks = "SELECT last_value::text FROM looks";
    let before = database.text(looks).await;
    let next = chained(&table, &claim).await;
    let last = chained(&table, &next).await;
    assert_eq!((&last.payload, last.fence), (&claim.payload, 3));
    assert_eq!(database.text(looks).await, before, "the payload is known");
    table.checkpoint(ONE, &[outcome_alone(&last, chain())]).await.unwrap();
    assert_ne!(database.text(looks).await, before, "who knows no claim must look");
}

#[tokio::test]
async fn a_payload_that_was_changed_meanwhile_is_what_the_next_stage_is_sent() {
    let database = with_rows(1).await;
    let table = open(&database, ONE).await;
    let claim = claim_all(&table, 1).await.remove(0);
    database.run(r#"UPDATE pending_work SET payload = '{"n": 7}'"#).await;
    let next = chained(&table, &claim).await;
    assert_eq!(&*next.payload, r#"{"n": 7}"#);
    assert!(rows(&database).await[0].contains(r#""hash": "of the payload""#));
}

/// What a trigger makes of a claim, the claim's answer does not have.
#[tokio::test]
async fn a_table_whose_triggers_or_columns_add_to_an_update_tells_no_versions() {
    let trigger = |when: &str| {
        format!(
            "CREATE FUNCTION more() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 NEW.payload := jsonb_build_object('fence', NEW.fence); RETURN NEW; END $$;
             CREATE TRIGGER more {when} ON pending_work FOR EACH ROW EXECUTE FUNCTION more()"
        )
    };
    let column = "ALTER TABLE pending_work ADD half bigint GENERATED ALWAYS AS (fence / 2) STORED";
    for (change, tells) in [
        (trigger("BEFORE UPDATE"), false),
        (column.to_owned(), false),
        (trigger("BEFORE INSERT"), true),
        (format!("{}; ALTER TABLE pending_work DISABLE TRIGGER more", trigger("BEFORE UPDATE")), true),
    ] {
        let database = with_rows(1).await;
        database.run(&change).await;
        let table = open(&database, ONE).await;
        let claim = claim_all(&table, 1).await.remove(0);
        assert_eq!(claim.version.is_some(), tells, "{change}");
        let next = chained(&table, &claim).await;
        assert_eq!((next.fence, next.version.is_some()), (2, tells), "{change}");
    }
}

/// Nothing but `check` asks for a key that is one.
#[tokio::test]
async fn two_rows_under_one_key_stop_nobody() {
    let database = with_rows(1).await;
    database
        .run(
            "ALTER TABLE pending_work DROP CONSTRAINT pending_work_pkey; CREATE INDEX ON pending_work (group_id, quote_id);
             INSERT INTO pending_work SELECT * FROM pending_work",
        )
        .await;
    let table = open(&database, ONE).await;
    let claim = claim_all(&table, 1).await.remove(0);
    assert!(!table.checkpoint(ONE, &[outcome(&claim, Transition::Finish)]).await.unwrap().is_empty());
}

/// What is written is not in doubt because another outcome of the same call cannot be.
#[tokio::test]
async fn an_outcome_that_the_database_refuses_has_no_other_in_doubt_that_is_written() {
    let database = with_rows(3).await;
    let table = open(&database, ONE).await;
    let claims = claim_all(&table, 3).await;
    database.run("ALTER TABLE pending_work ADD CHECK (quote_id <> 'q00001' OR stage_state <> 'RETRY') NOT VALID").await;
    let retry = Transition::Retry { after: MINUTE, reason: "because".to_owned() };
    let outcomes = [
        outcome(&claims[0], chain()),
        outcome_alone(&claims[1], retry.clone()),
        outcome(&claims[2], Transition::Finish),
    ];
    let mut written = table.checkpoint(ONE, &outcomes).await.unwrap();
    written.sort_by(|left, right| left.key().cmp(right.key()));
    assert_eq!(written.iter().map(CheckpointReply::key).collect::<Vec<_>>(), [&claims[0].key, &claims[2].key]);
    // By itself it is refused.
    let refused = table.checkpoint(ONE, &[outcome_alone(&claims[1], retry)]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Table, "{}", refused.report());
}

/// A trigger that writes the row once more leaves two versions with one transaction's number.
#[tokio::test]
async fn a_row_that_a_trigger_writes_again_is_not_taken_for_what_the_claim_wrote() {
    let database = with_rows(1).await;
    database
        .run(
            r#"CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 UPDATE public.pending_work SET payload = '{"n": 8}' WHERE quote_id = NEW.quote_id; RETURN NULL; END $$;
               CREATE TRIGGER again AFTER UPDATE ON pending_work FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION again()"#,
        )
        .await;
    let table = open(&database, ONE).await;
    let claim = claim_all(&table, 1).await.remove(0);
    assert_eq!(&*claim.payload, r#"{"n": 0}"#);
    assert_eq!(&*chained(&table, &claim).await.payload, r#"{"n": 8}"#);
}

/// The other columns of the guard hold, and yet the row was written: by somebody who leaves the fence alone.
#[tokio::test]
async fn a_version_that_the_claim_did_not_write_is_judged_by_the_guard_alone() {
    let database = with_rows(2).await;
    let table = open(&database, ONE).await;
    let claims = claim_all(&table, 2).await;
    database.run("UPDATE pending_work SET attempt_count = 4 WHERE quote_id = 'q00000'").await;
    database.run("UPDATE pending_work SET fence = fence + 1 WHERE quote_id = 'q00001'").await;
    let retry = Transition::Retry { after: MINUTE, reason: "because".to_owned() };
    let outcomes: Vec<_> = claims.iter().map(|claim| outcome(claim, retry.clone())).collect();
    let written = table.checkpoint(ONE, &outcomes).await.unwrap();
    assert_eq!(written, [CheckpointReply::Written { key: key(0) }]);
    let counts =
        "SELECT string_agg(attempt_count::text || ' ' || stage_state, ', ' ORDER BY quote_id) FROM pending_work";
    assert_eq!(database.text(counts).await, "4 RETRY, 1 RUNNING");
}
