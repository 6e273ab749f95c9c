//! Which rows are taken without a lock of their own, and what becomes of those that others hold or take in the very moment.
//!
//! A row that was locked before it was written keeps the number of its locker in `xmax`; one that was just written has none.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::database::{Database, eventually};
use crate::work_table::{MINUTE, ONE, TWO, ask, claimed, insert_rows, key, open, outcome, outcome_alone, read_one};
use postrider_core::error::ErrorKind;
use postrider_core::ports::{CheckpointReply, Claim, ClaimRequest, Transition, WorkTable};
use postrider_core::work::{StageName, StageState, WorkKey};
use postrider_postgres::PgWorkTable;
use tokio_postgres::Client;

/// A transaction anywhere on the server that is older than a lock makes the lock one that may still be held.
async fn alone_with_rows(count: usize) -> Database {
    let database = Database::create_alone().await;
    database.install_work_table().await;
    insert_rows(&database, 0..count).await;
    database
}

async fn claim_all(table: &PgWorkTable, count: usize) -> Vec<Claim> {
    let requests: Vec<ClaimRequest> = (0..count).map(|number| ask(key(number), 0)).collect();
    claimed(table.claim(ONE, &requests, &[]).await.unwrap())
}

fn keys(claims: &[Claim]) -> BTreeSet<WorkKey> {
    claims.iter().map(|claim| claim.key.clone()).collect()
}

/// The rows that were locked before they were written.
async fn locked(database: &Database) -> String {
    database
        .text("SELECT coalesce(string_agg(quote_id, ' ' ORDER BY quote_id), '') FROM pending_work WHERE xmax <> 0")
        .await
}

/// A session in a transaction that has locked rows.
async fn locker(database: &Database, lock: &str) -> Client {
    let session = database.another_client().await;
    session.batch_execute(&format!("BEGIN; {lock}")).await.unwrap();
    session
}

#[tokio::test]
async fn a_row_that_nobody_holds_is_claimed_and_written_without_a_lock() {
    let database = alone_with_rows(3).await;
    let table = open(&database, ONE).await;
    let claims = claim_all(&table, 3).await;
    assert_eq!((claims.len(), locked(&database).await.as_str()), (3, ""));
    let chain = Transition::Chain { next: StageName::new("APPROVAL"), lease: MINUTE };
    let outcomes: Vec<_> = claims.iter().map(|claim| outcome_alone(claim, chain.clone())).collect();
    let replies = table.checkpoint(ONE, &outcomes).await.unwrap();
    assert_eq!((replies.len(), locked(&database).await.as_str()), (3, ""));
}

#[tokio::test]
async fn a_lock_that_is_over_makes_no_row_one_that_is_held() {
    let database = alone_with_rows(2).await;
    let table = open(&database, ONE).await;
    database.run("SELECT FROM pending_work WHERE quote_id = 'q00000' FOR KEY SHARE").await;
    database.run("BEGIN; SELECT FROM pending_work WHERE quote_id = 'q00001' FOR UPDATE; ROLLBACK").await;
    assert_eq!(locked(&database).await, "q00000 q00001");
    assert_eq!((claim_all(&table, 2).await.len(), locked(&database).await.as_str()), (2, ""));
}

/// Who inserts a row that refers to ours holds its key until it commits, and does not mind that the rest of it is written.
#[tokio::test]
async fn a_row_whose_key_alone_is_held_is_claimed_all_the_same() {
    let database = alone_with_rows(3).await;
    let table = open(&database, ONE).await;
    let other = locker(&database, "SELECT FROM pending_work WHERE quote_id = 'q00001' FOR KEY SHARE").await;
    let claims = claim_all(&table, 3).await;
    assert_eq!((claims.len(), locked(&database).await.as_str()), (3, "q00001"));
    let outcomes: Vec<_> = claims.iter().map(|claim| outcome(claim, Transition::Finish)).collect();
    assert_eq!(table.checkpoint(ONE, &outcomes).await.unwrap().len(), 3);
    drop(other);
}

/// What the first statement has claimed is read anew then: its lease may be over, and the row that the server refuses is to be found.
#[tokio::test]
async fn where_the_second_statement_is_refused_the_whole_claim_is() {
    let database = alone_with_rows(3).await;
    database
        .run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
             CREATE TRIGGER refuse BEFORE UPDATE ON pending_work FOR EACH ROW WHEN (OLD.quote_id = 'q00001')
                 EXECUTE FUNCTION refuse()",
        )
        .await;
    let table = open(&database, ONE).await;
    let other = locker(&database, "SELECT FROM pending_work WHERE quote_id = 'q00001' FOR KEY SHARE").await;
    let requests: Vec<ClaimRequest> = (0..3).map(|number| ask(key(number), 0)).collect();
    let refused = table.claim(ONE, &requests, &[]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Table, "{}", refused.report());
    let states = "SELECT string_agg(stage_state, ' ' ORDER BY quote_id) FROM pending_work";
    assert_eq!(database.text(states).await, "RUNNING PENDING RUNNING");
    drop(other);
}

/// Several lockers of one row stand in it as one number, which is no transaction's. Had the claim waited for it, all rows would have been
/// locked after that.
#[tokio::test]
async fn a_row_that_several_sessions_hold_is_left_out() {
    let database = alone_with_rows(3).await;
    let table = open(&database, ONE).await;
    let lock = "SELECT FROM pending_work WHERE quote_id = 'q00001' FOR SHARE";
    let (one, another) = (locker(&database, lock).await, locker(&database, lock).await);
    assert_eq!(keys(&claim_all(&table, 3).await), BTreeSet::from([key(0), key(2)]));
    assert_eq!(locked(&database).await, "q00001");
    for session in [one, another] {
        session.batch_execute("COMMIT").await.unwrap();
    }
    assert_eq!(claim_all(&table, 2).await.len(), 1);
}

/// Three rows that are being claimed, of which the claim has found the second free and waits before it writes it.
struct Moment {
    database: Database,
    table: Arc<PgWorkTable>,
    gate: Client,
    claiming: tokio::task::JoinHandle<Vec<Claim>>,
}

/// The payload is written as text between the look at the row and its update: the second row's waits for the gate there.
const GATE: &str = "CREATE TYPE gated AS (body text);
    CREATE FUNCTION pass(gated) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
        IF $1.body = '1' THEN PERFORM pg_advisory_xact_lock_shared(7); END IF;
        RETURN $1.body; END $$;
    CREATE CAST (gated AS text) WITH FUNCTION pass(gated);
    ALTER TABLE pending_work ALTER payload TYPE gated USING row(payload ->> 'n')::gated";

impl Moment {
    async fn come() -> Moment {
        let database = alone_with_rows(3).await;
        database.run(GATE).await;
        let table = Arc::new(open(&database, ONE).await);
        let gate = locker(&database, "SELECT pg_advisory_xact_lock(7)").await;
        let claiming = tokio::spawn({
            let table = table.clone();
            async move { claim_all(&table, 3).await }
        });
        let waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)::text";
        eventually("the claim is at the gate", async || database.text(waits).await == "true").await;
        Moment { database, table, gate, claiming }
    }

    /// Lets the claim go on.
    async fn go(self) -> (Database, Arc<PgWorkTable>, Vec<Claim>) {
        self.gate.batch_execute("COMMIT").await.unwrap();
        (self.database, self.table, self.claiming.await.unwrap())
    }
}

#[tokio::test]
async fn a_row_that_is_locked_in_the_very_moment_keeps_no_other_from_being_claimed() {
    let moment = Moment::come().await;
    let locker = locker(&moment.database, "SELECT FROM pending_work WHERE quote_id = 'q00001' FOR UPDATE").await;
    let (database, table, claims) = moment.go().await;
    assert_eq!(keys(&claims), BTreeSet::from([key(0), key(2)]));
    assert!(database.cluster.read_log().unwrap().contains("canceling statement due to lock timeout"));
    assert_eq!(read_one(&table, 1).await.fence, 0);
    locker.batch_execute("COMMIT").await.unwrap();
    assert_eq!(claim_all(&table, 2).await.len(), 1);
}

#[tokio::test]
async fn a_row_that_is_written_in_the_very_moment_stays_as_it_was_written() {
    let moment = Moment::come().await;
    let written = "UPDATE pending_work SET stage_state = 'CANCELLED', fence = 1 WHERE quote_id = 'q00001'";
    moment.database.run(written).await;
    let (_database, table, claims) = moment.go().await;
    assert_eq!(keys(&claims), BTreeSet::from([key(0), key(2)]));
    let row = read_one(&table, 1).await;
    assert_eq!((row.state, row.fence, row.lease_owner), (StageState::Cancelled, 1, None));
}

/// The guard's columns are as they were, and yet it is another version: its holder wrote the outcome, which leaves the fence.
#[tokio::test]
async fn a_row_whose_holder_writes_it_in_the_very_moment_is_not_taken_over() {
    let database = alone_with_rows(1).await;
    let (one, two) = (open(&database, ONE).await, Arc::new(open(&database, TWO).await));
    let claim = claim_all(&one, 1).await.remove(0);
    database.run(&GATE.replace("'1'", "'0'")).await;
    let gate = locker(&database, "SELECT pg_advisory_xact_lock(7)").await;
    let taking = tokio::spawn({
        let two = two.clone();
        let request = ClaimRequest { take_over: true, ..ask(key(0), 1) };
        async move { two.claim(TWO, &[request], &[ONE]).await.unwrap() }
    });
    let waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)::text";
    eventually("the take-over is at the gate", async || database.text(waits).await == "true").await;
    let written = one.checkpoint(ONE, &[outcome(&claim, Transition::Finish)]).await.unwrap();
    assert_eq!(written, [CheckpointReply::Written { key: key(0) }]);
    gate.batch_execute("COMMIT").await.unwrap();
    assert_eq!(taking.await.unwrap(), []);
    let row = read_one(&two, 0).await;
    assert_eq!((row.state, row.fence, row.closed), (StageState::Done, 1, true));
}

/// A plan is made once for a session. Made while the table had three rows, it must not be one that reads the table to find a row: the next
/// burst may bring any number.
#[tokio::test]
async fn a_row_is_looked_up_by_its_key_however_small_the_table_was_when_that_was_planned() {
    let database = alone_with_rows(3).await;
    database.run("VACUUM ANALYZE pending_work").await;
    let planned = "ALTER DATABASE {} SET session_preload_libraries = 'auto_explain';
        ALTER DATABASE {} SET auto_explain.log_min_duration = 0";
    database.run(&planned.replace("{}", database.name())).await;
    let table = open(&database, ONE).await;
    let locker = locker(&database, "SELECT FROM pending_work WHERE quote_id = 'q00001' FOR KEY SHARE").await;
    let claims = claim_all(&table, 3).await;
    let outcomes: Vec<_> = claims.iter().map(|claim| outcome(claim, Transition::Finish)).collect();
    assert_eq!(table.checkpoint(ONE, &outcomes).await.unwrap().len(), 3);
    assert_eq!(table.read(&[key(0), key(1), key(2)]).await.unwrap().rows.len(), 3);
    table.purge_history(MINUTE, 0).await.unwrap();
    drop(locker);
    let log = database.cluster.read_log().unwrap();
    let scans: Vec<&str> = log.lines().filter(|line| line.contains("Scan using pending_work")).collect();
    // Claim and checkpoint both with a lock and without, the checkpoint of a known version, the read, and the purge of the history.
    assert_eq!((scans.len(), log.matches("Index Cond: ((group_id = ").count()), (7, 7), "{scans:#?}");
}
