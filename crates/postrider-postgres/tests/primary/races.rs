//! Races of claim and take-over by their case numbers, on a real server.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::database::Database;
use crate::work_table::{
    MINUTE, ONE, TWO, ask, claim_one, claimed, insert_rows, key, open, outcome, read_one, with_rows,
};
use postrider_core::error::Reaction;
use postrider_core::ports::{ClaimRequest, Transition, WorkTable};
use postrider_core::work::{StageState, WorkKey};
use postrider_postgres::PgWorkTable;
use xtask::postgres::Shutdown;

fn take_over(number: usize, seen_fence: i64) -> ClaimRequest {
    ClaimRequest { take_over: true, ..ask(key(number), seen_fence) }
}

/// Our sessions are read committed, so that the server says this only where something of the database's own does.
#[tokio::test]
async fn e04_a_serialization_failure_is_a_lost_claim_and_a_lost_checkpoint_and_no_error() {
    let database = with_rows(2).await;
    let table = open(&database, ONE).await;
    let claim = claim_one(&table, ONE, ask(key(0), 0)).await.unwrap();
    database
        .run(
            "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
               RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001'; END $$;
             CREATE TRIGGER lose BEFORE UPDATE ON pending_work FOR EACH ROW EXECUTE FUNCTION lose()",
        )
        .await;
    let before = database.rows().await;
    assert_eq!(table.claim(ONE, &[ask(key(1), 0)], &[]).await.unwrap(), []);
    assert_eq!(table.checkpoint(ONE, &[outcome(&claim, Transition::Finish)]).await.unwrap(), []);
    assert_eq!(database.rows().await, before);
    database.run("DROP TRIGGER lose ON pending_work").await;
    assert!(claim_one(&table, ONE, ask(key(1), 0)).await.is_some(), "the session goes on");
}

#[tokio::test]
async fn e14_rows_that_end_between_the_look_and_the_take_over_are_left_alone() {
    let database = with_rows(4).await;
    let (one, two) = (open(&database, ONE).await, open(&database, TWO).await);
    let requests: Vec<_> = (0..4).map(|number| ask(key(number), 0)).collect();
    let claims: BTreeMap<WorkKey, _> =
        claimed(one.claim(ONE, &requests, &[]).await.unwrap()).into_iter().map(|it| (it.key.clone(), it)).collect();
    database.run("UPDATE pending_work SET lease_until = now() - interval '1 s'").await;
    // Whoever rescues has seen all four; of these one ends, one is tried again, and one goes on to the next stage.
    let next = postrider_core::work::StageName::new("APPROVAL");
    let (after, reason) = (Duration::ZERO, "TEST".to_owned());
    let outcomes = [
        outcome(&claims[&key(0)], Transition::Finish),
        outcome(&claims[&key(1)], Transition::Retry { after, reason }),
        outcome(&claims[&key(2)], Transition::Chain { next, lease: MINUTE }),
    ];
    assert_eq!(one.checkpoint(ONE, &outcomes).await.unwrap().len(), 3);
    let before: Vec<_> = [read_one(&one, 0).await, read_one(&one, 2).await].into();
    let rescues: Vec<_> = (0..4).map(|number| take_over(number, 1)).collect();
    let rescued = claimed(two.claim(TWO, &rescues, &[ONE]).await.unwrap());
    let mut keys: Vec<_> = rescued.iter().map(|claim| claim.key.clone()).collect();
    keys.sort();
    let mut expected = vec![key(1), key(3)];
    expected.sort();
    assert_eq!(keys, expected, "what waits is due, and what still runs is taken over");
    assert_eq!([read_one(&one, 0).await, read_one(&one, 2).await].to_vec(), before);
}

/// Takes over what is left, as an executor does: what failed or has no reply is read, and tried again if it still runs for another.
async fn take_over_all(table: &PgWorkTable, count: usize) {
    let deadline = Instant::now() + MINUTE;
    let keys: Vec<_> = (0..count).map(key).collect();
    loop {
        assert!(Instant::now() < deadline, "not all rows are taken over");
        let Ok(reading) = table.read(&keys).await else { continue };
        let left: Vec<_> = reading.rows.iter().filter(|row| row.lease_owner != Some(TWO)).collect();
        if left.is_empty() {
            return;
        }
        let requests: Vec<_> = left
            .iter()
            .take(10)
            .map(|row| ClaimRequest { take_over: true, ..ask(row.key.clone(), row.fence) })
            .collect();
        if let Err(error) = table.claim(TWO, &requests, &[]).await {
            assert_eq!(error.kind().reaction(), Reaction::Retry, "{error:?}");
        }
    }
}

#[tokio::test]
async fn e18_a_server_that_is_killed_while_250_leases_are_recovered_loses_none_of_them() {
    let mut database = Database::create_alone().await;
    database.install_work_table().await;
    insert_rows(&database, 0..250).await;
    database
        .run(
            "UPDATE pending_work SET stage_state = 'RUNNING', fence = 1, attempt_count = 1, \
               lease_owner = '0000000000000001', lease_until = now() - interval '1 s'",
        )
        .await;
    let table = open(&database, TWO).await;
    let recovering = tokio::spawn(async move {
        take_over_all(&table, 250).await;
        table
    });
    let some = "SELECT (count(*) BETWEEN 10 AND 200)::text FROM pending_work WHERE fence = 2";
    while database.text(some).await != "true" {
        assert!(!recovering.is_finished(), "it was over before the server was killed");
    }
    // The test has one thread: what is not taken over yet is so after the restart.
    database.restart(Shutdown::Immediate).await;
    let table = recovering.await.unwrap();
    for number in 0..250 {
        let row = read_one(&table, number).await;
        assert_eq!((row.state, row.fence, row.attempt_count), (StageState::Running, 2, 2), "{row:?}");
        assert_eq!(row.lease_owner, Some(TWO));
    }
}
