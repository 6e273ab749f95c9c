//! Receivers that move their row on in their own transaction, on a real server: good ones, and those that break the contract.
//!
//! Case numbers (E10, E11) are those of the project's list of known traps.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is the test's failure")]

use postrider_receiver::{
    Advance, Breach, ContractColumns, ContractRow, ErrorKind, Next, StageRequest, WorkTable, check_same_tx,
};
use tokio_postgres::{Client, NoTls};
use xtask::postgres::Cluster;

struct Database {
    cluster: Cluster,
}

impl Database {
    async fn start() -> Database {
        let database = Database { cluster: Cluster::builder(&xtask::postgres::find(None).unwrap()).start().unwrap() };
        let client = database.connect().await;
        for file in [
            include_str!("../../../sql/source/0001_create_pending_work.sql"),
            include_str!("../sql/0003_create_advance_stage.sql"),
        ] {
            client.batch_execute(file).await.unwrap();
        }
        client
            .batch_execute(
                "CREATE TABLE policies (quote text); INSERT INTO pending_work (group_id, quote_id, stage, stage_state, fence)
                 VALUES ('g', 'q', 'BINDING', 'RUNNING', 7)",
            )
            .await
            .unwrap();
        database
    }

    async fn connect(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.cluster.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    async fn text(&self, query: &str) -> String {
        self.connect().await.query_one(query, &[]).await.unwrap().get(0)
    }

    async fn policies(&self) -> i64 {
        self.text("SELECT count(*)::text FROM policies").await.parse().unwrap()
    }

    async fn row(&self) -> String {
        self.text("SELECT concat_ws(' ', stage, stage_state, fence) FROM pending_work").await
    }

    async fn contract(&self, receiver: impl AsyncFnMut(&mut Client, i64)) -> Result<(), Breach> {
        self.contract_of(ContractColumns::default(), receiver).await
    }

    async fn contract_of(
        &self,
        columns: ContractColumns<'_>,
        mut receiver: impl AsyncFnMut(&mut Client, i64),
    ) -> Result<(), Breach> {
        let row = ContractRow {
            table: WorkTable::default(),
            key: vec![("group_id", "g"), ("quote_id", "q")],
            stage: "BINDING",
            columns,
        };
        let call = async |fence| receiver(&mut self.connect().await, fence).await;
        check_same_tx(&self.connect().await, &row, call, async || self.policies().await).await
    }
}

const WORK: &str = "INSERT INTO policies VALUES ('q')";

fn advance(fence: i64) -> Advance {
    let fence = fence.to_string();
    let headers = [
        ("Idempotency-Key", "\"g/q/BINDING/0\""),
        ("Postrider-Attempt", "1"),
        ("Postrider-Fence", &fence),
        ("Postrider-Stage", "BINDING"),
    ];
    let request = StageRequest::parse(headers.map(|(name, value)| (name, value.as_bytes()))).unwrap();
    Advance::of(&WorkTable::default(), &request, ["g", "q"])
}

async fn serve(client: &mut Client, fence: i64) -> Result<(), postrider_receiver::Error> {
    let advance = advance(fence);
    let transaction = client.transaction().await?;
    transaction.batch_execute(WORK).await?;
    advance.to(&transaction, Next::Stage("ISSUING")).await?;
    advance.commit(transaction).await
}

/// As an ORM does it that wraps each statement in a savepoint and goes on after an error.
async fn swallowing(client: &mut Client, fence: i64) -> (Advance, tokio_postgres::Transaction<'_>) {
    let advance = advance(fence);
    let mut transaction = client.transaction().await.unwrap();
    transaction.batch_execute(WORK).await.unwrap();
    let savepoint = transaction.savepoint("orm").await.unwrap();
    match advance.to(&savepoint, Next::Stage("ISSUING")).await {
        Ok(()) => savepoint.commit().await.unwrap(),
        Err(_) => savepoint.rollback().await.unwrap(),
    }
    (advance, transaction)
}

#[tokio::test]
async fn e10_work_and_advance_are_committed_together_or_not_at_all() {
    let database = Database::start().await;
    let mut client = database.connect().await;
    let error = serve(&mut client, 6).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale);
    assert_eq!((database.policies().await, database.row().await), (0, "BINDING RUNNING 7".to_owned()));
    serve(&mut client, 7).await.unwrap();
    assert_eq!((database.policies().await, database.row().await), (1, "ISSUING PENDING 8".to_owned()));
    assert_eq!(serve(&mut client, 7).await.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(database.policies().await, 1);
}

#[tokio::test]
async fn e11_a_refusal_that_was_caught_at_a_savepoint_is_raised_again_at_the_commit() {
    let database = Database::start().await;
    let mut client = database.connect().await;
    let (advance, transaction) = swallowing(&mut client, 6).await;
    let error = advance.commit(transaction).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale);
    assert!(error.detail().is_some());
    assert_eq!((database.policies().await, database.row().await), (0, "BINDING RUNNING 7".to_owned()));
    let (advance, transaction) = swallowing(&mut client, 7).await;
    advance.commit(transaction).await.unwrap();
    assert_eq!((database.policies().await, database.row().await), (1, "ISSUING PENDING 8".to_owned()));
}

#[tokio::test]
async fn work_whose_row_was_not_moved_on_is_not_committed() {
    let database = Database::start().await;
    let mut client = database.connect().await;
    let advance = advance(7);
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute(WORK).await.unwrap();
    assert_eq!(advance.commit(transaction).await.unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!((database.policies().await, database.row().await), (0, "BINDING RUNNING 7".to_owned()));
}

#[tokio::test]
async fn the_contract_passes_a_receiver_that_keeps_it() {
    let database = Database::start().await;
    let kept = database.contract(async |client, fence| drop(serve(client, fence).await)).await;
    assert!(kept.is_ok(), "{kept:?}");
    let poisoned = database
        .contract(async |client, fence| {
            let (advance, transaction) = swallowing(client, fence).await;
            drop(advance.commit(transaction).await);
        })
        .await;
    assert!(poisoned.is_ok(), "{poisoned:?}");
}

/// The table has a word of its own for RUNNING, refuses ours, and has no column for when a row was closed.
#[tokio::test]
async fn the_contract_passes_a_receiver_of_a_table_with_words_of_its_own() {
    let database = Database::start().await;
    let function = include_str!("../sql/0003_create_advance_stage.sql")
        .replace("'RUNNING'", "'IN_PROGRESS'")
        .replace("NOT (t.closed_at IS NULL)", "t.stage_state::text = 'DONE'")
        .replace("closed_at = CASE WHEN ends THEN now() END, ", "");
    let client = database.connect().await;
    client
        .batch_execute(&format!(
            "ALTER TABLE pending_work DROP COLUMN closed_at, DROP CONSTRAINT pending_work_stage_state_check;
             UPDATE pending_work SET stage_state = 'IN_PROGRESS';
             ALTER TABLE pending_work ADD CHECK (stage_state IN ('PENDING', 'IN_PROGRESS', 'DONE')); {function}"
        ))
        .await
        .unwrap();
    let columns = || ContractColumns { closed_at: None, running: "IN_PROGRESS", ..ContractColumns::default() };
    let kept = database.contract_of(columns(), async |client, fence| drop(serve(client, fence).await)).await;
    assert!(kept.is_ok(), "{kept:?}");
    let idle = database.contract_of(columns(), async |_, _| {}).await;
    assert!(matches!(idle, Err(Breach::NoEffect)), "{idle:?}");
}

/// It commits past the refusal, with the driver's own commit.
#[tokio::test]
async fn e11_the_contract_fails_a_receiver_that_swallows_the_refusal() {
    let database = Database::start().await;
    let swallowed = database
        .contract(async |client, fence| {
            let (_advance, transaction) = swallowing(client, fence).await;
            transaction.commit().await.unwrap();
        })
        .await;
    assert!(matches!(swallowed, Err(Breach::StaleEffect)), "{swallowed:?}");
}

#[tokio::test]
async fn the_contract_names_the_rule_that_a_receiver_breaks() {
    let database = Database::start().await;
    let advance_by_hand = "UPDATE pending_work SET stage = 'ISSUING', stage_state = 'PENDING', fence = fence + 1";
    let idle = database.contract(async |_, _| {}).await;
    assert!(matches!(idle, Err(Breach::NoEffect)), "{idle:?}");
    let careless = database.contract(async |client, _| client.batch_execute(advance_by_hand).await.unwrap()).await;
    assert!(matches!(careless, Err(Breach::StaleWrite)), "{careless:?}");
    let forgetful = database
        .contract(async |client, fence| {
            let current = format!("INSERT INTO policies SELECT 'q' FROM pending_work WHERE fence = {fence}");
            client.batch_execute(&current).await.unwrap();
        })
        .await;
    assert!(matches!(forgetful, Err(Breach::NotAdvanced)), "{forgetful:?}");
    let repeating = database
        .contract(async |client, fence| {
            // It looks for its own fence in the row, and takes one more for the answer to its own request.
            let current = format!(
                "INSERT INTO policies SELECT 'q' FROM pending_work WHERE fence BETWEEN {fence} AND {fence} + 1 AND (fence = {fence} OR stage = 'ISSUING');
                 UPDATE pending_work SET stage = 'ISSUING', fence = fence + 1 WHERE fence = {fence}"
            );
            client.batch_execute(&current).await.unwrap();
        })
        .await;
    assert!(matches!(repeating, Err(Breach::EffectTwice)), "{repeating:?}");
    database.connect().await.batch_execute("TRUNCATE pending_work").await.unwrap();
    let nowhere = database.contract(async |_, _| {}).await;
    assert!(matches!(nowhere, Err(Breach::Unchecked(_))), "{nowhere:?}");
}
