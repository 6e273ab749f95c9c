//! The store on a real server: what a repeat finds, whichever way the first request ended.
//!
//! Case numbers (E20 to E33) are those of the project's list of known traps.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is the test's failure")]

use std::time::{Duration, Instant};

use postrider_receiver::{
    Answer, Begin, ErrorKind, Fingerprint, IdempotencyKey, Once, Outcome, Request, Scope, begin, install, once, store,
};
use tokio_postgres::{Client, IsolationLevel, NoTls, Transaction};
use xtask::postgres::Cluster;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

struct Database {
    cluster: Cluster,
}

impl Database {
    async fn start() -> Database {
        let database = Database { cluster: Cluster::builder(&xtask::postgres::find(None).unwrap()).start().unwrap() };
        let mut client = database.connect().await;
        install(&mut client).await.unwrap();
        client
            .batch_execute(
                "CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY, what text NOT NULL);
                 CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL);
                 INSERT INTO accounts VALUES (1, 0)",
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

    async fn number(&self, query: &str) -> i64 {
        self.connect().await.query_one(query, &[]).await.unwrap().get(0)
    }

    /// Waits until a session waits for another one's transaction.
    async fn wait_until_blocked(&self, pid: i32) {
        let watcher = self.connect().await;
        let blocked = "SELECT cardinality(pg_blocking_pids($1)) > 0";
        let deadline = Instant::now() + LONG;
        while !watcher.query_one(blocked, &[&pid]).await.unwrap().get::<_, bool>(0) {
            assert!(Instant::now() < deadline, "session {pid} was never blocked");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn pid(client: &Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

fn request_of(tenant: &str, key: &str, body: &[u8]) -> Request {
    Request {
        scope: Scope::new(tenant, "POST", "/stages/{stage}"),
        key: IdempotencyKey::parse(Some(format!("\"{key}\"").as_bytes())).unwrap(),
        fingerprint: Fingerprint::of("POST", "/stages/pricing", "", body),
        fence: Some(7),
    }
}

fn request(body: &[u8]) -> Request {
    request_of("", "g/q/PRICING/0", body)
}

/// An answer whose every part would change if it were parsed and written again.
fn answer(mark: u8) -> Answer {
    let mut answer = Answer::of(201, Outcome::Done).with("Set-Cookie", "a").with("set-cookie", " b: c ");
    answer.headers.push(("X-Latin".to_owned(), vec![0xe9, 0xff]));
    answer.body = vec![b'{', 0, 0xff, b'\r', b'\n', mark, b' ', b'}'];
    answer
}

async fn work(transaction: &Transaction<'_>, what: &str) {
    transaction.execute("INSERT INTO effects (what) VALUES ($1)", &[&what]).await.unwrap();
}

/// What a service does with a request: the answer that it sends, and whether the work was done now.
async fn serve(client: &mut Client, request: &Request, mark: u8) -> (Answer, bool) {
    let transaction = client.transaction().await.unwrap();
    match begin(&transaction, request, LONG).await.unwrap() {
        Begin::Fresh(claim) => {
            work(&transaction, "served").await;
            store(&transaction, claim, &answer(mark)).await.unwrap();
            transaction.commit().await.unwrap();
            (answer(mark), true)
        }
        Begin::Replay(stored) => (stored.into_replay(), false),
        Begin::KeyReused => (Answer::of(422, Outcome::Permanent), false),
        Begin::InProgress => (Answer::of(409, Outcome::InProgress), false),
    }
}

#[tokio::test]
async fn a_repeat_gets_the_stored_answer_byte_for_byte() {
    let database = Database::start().await;
    let request = request(b"body");
    assert_eq!(serve(&mut database.connect().await, &request, 1).await, (answer(1), true));
    for _ in 0..3 {
        let (replayed, worked) = serve(&mut database.connect().await, &request, 2).await;
        assert_eq!(replayed, answer(1).with("Idempotency-Replayed", "true"));
        assert!(!worked);
    }
    assert_eq!(database.number("SELECT count(*) FROM effects").await, 1);
    let fences = "SELECT count(*) FROM postrider_receiver.idempotency_keys WHERE fence = 7 AND state = 'ANSWERED'";
    assert_eq!(database.number(fences).await, 1);
}

// E21.
#[tokio::test]
async fn a_key_used_for_another_request_is_refused_and_changes_nothing() {
    let database = Database::start().await;
    let mut client = database.connect().await;
    serve(&mut client, &request(b"body"), 1).await;
    let row = "SELECT k::text FROM postrider_receiver.idempotency_keys AS k";
    let before: String = client.query_one(row, &[]).await.unwrap().get(0);
    assert_eq!(serve(&mut client, &request(b"bodi"), 2).await, (Answer::of(422, Outcome::Permanent), false));
    let after: String = client.query_one(row, &[]).await.unwrap().get(0);
    assert_eq!(before, after);
    let (replayed, _) = serve(&mut client, &request(b"body"), 3).await;
    assert_eq!(replayed, answer(1).with("Idempotency-Replayed", "true"));
    assert_eq!(database.number("SELECT count(*) FROM effects").await, 1);
}

// E23: the other one waits for the first, then replays it.
#[tokio::test]
async fn a_concurrent_duplicate_replays_when_the_first_commits() {
    let database = Database::start().await;
    let request = request(b"body");
    let (mut first, mut second) = (database.connect().await, database.connect().await);
    let second_pid = pid(&second).await;
    let transaction = first.transaction().await.unwrap();
    let Begin::Fresh(claim) = begin(&transaction, &request, LONG).await.unwrap() else { panic!("not fresh") };
    let commit = async {
        database.wait_until_blocked(second_pid).await;
        work(&transaction, "first").await;
        store(&transaction, claim, &answer(1)).await.unwrap();
        transaction.commit().await.unwrap();
    };
    let (_, (replayed, worked)) = tokio::join!(commit, serve(&mut second, &request, 2));
    assert_eq!((replayed, worked), (answer(1).with("Idempotency-Replayed", "true"), false));
    assert_eq!(database.number("SELECT count(*) FROM effects").await, 1);
}

// E24: rolled back by the service, or by the server because the service's process is gone.
#[tokio::test]
async fn a_concurrent_duplicate_executes_when_the_first_does_not_commit() {
    for killed in [false, true] {
        let database = Database::start().await;
        let request = request(b"body");
        let (mut first, mut second) = (database.connect().await, database.connect().await);
        let (first_pid, second_pid) = (pid(&first).await, pid(&second).await);
        let transaction = first.transaction().await.unwrap();
        let Begin::Fresh(claim) = begin(&transaction, &request, LONG).await.unwrap() else { panic!("not fresh") };
        let abandon = async {
            work(&transaction, "first").await;
            store(&transaction, claim, &answer(1)).await.unwrap();
            database.wait_until_blocked(second_pid).await;
            if killed {
                let killer = database.connect().await;
                killer.execute("SELECT pg_terminate_backend($1)", &[&first_pid]).await.unwrap();
            } else {
                transaction.rollback().await.unwrap();
            }
        };
        let (_, (answered, worked)) = tokio::join!(abandon, serve(&mut second, &request, 2));
        assert_eq!((answered, worked), (answer(2), true), "killed: {killed}");
        assert_eq!(database.number("SELECT count(*) FROM effects WHERE what = 'served'").await, 1);
        assert_eq!(database.number("SELECT count(*) FROM effects").await, 1);
    }
}

// E23: with a lock timeout the other one says that the first is in progress.
#[tokio::test]
async fn a_concurrent_duplicate_is_in_progress_after_the_lock_timeout() {
    let database = Database::start().await;
    let request = request(b"body");
    let (mut first, mut second) = (database.connect().await, database.connect().await);
    let transaction = first.transaction().await.unwrap();
    let Begin::Fresh(claim) = begin(&transaction, &request, LONG).await.unwrap() else { panic!("not fresh") };
    let other = second.transaction().await.unwrap();
    assert!(matches!(begin(&other, &request, SHORT).await.unwrap(), Begin::InProgress));
    drop(other);
    store(&transaction, claim, &answer(1)).await.unwrap();
    transaction.commit().await.unwrap();
    assert!(!serve(&mut second, &request, 2).await.1);
}

#[tokio::test]
async fn the_lock_timeout_is_the_keys_alone() {
    let database = Database::start().await;
    let mut client = database.connect().await;
    client.batch_execute("SET lock_timeout = '7s'").await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let request = request(b"body");
    let _claim = begin(&transaction, &request, SHORT).await.unwrap();
    let during: String = transaction.query_one("SHOW lock_timeout", &[]).await.unwrap().get(0);
    assert_eq!(during, "7s");
}

#[tokio::test]
async fn under_repeatable_read_the_loser_is_told_to_run_again() {
    let database = Database::start().await;
    let request = request(b"body");
    let (mut first, mut second) = (database.connect().await, database.connect().await);
    let repeatable = second.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
    let transaction = repeatable.start().await.unwrap();
    transaction.query_one("SELECT 1 FROM accounts", &[]).await.unwrap();
    serve(&mut first, &request, 1).await;
    assert_eq!(begin(&transaction, &request, LONG).await.unwrap_err().kind(), ErrorKind::Retry);
    drop(transaction);
    assert_eq!(serve(&mut second, &request, 2).await.0, answer(1).with("Idempotency-Replayed", "true"));
}

// E25.
#[tokio::test]
async fn an_answer_that_is_not_final_is_never_stored() {
    let database = Database::start().await;
    let mut client = database.connect().await;
    let request = request(b"body");
    for status in [0, 199, 302, 408, 409, 425, 429, 500, 502, 503, 504] {
        let transaction = client.transaction().await.unwrap();
        let Begin::Fresh(claim) = begin(&transaction, &request, LONG).await.unwrap() else { panic!("not fresh") };
        let refused = store(&transaction, claim, &Answer { status, ..answer(1) }).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused, "{status}");
        // The SQL function refuses by itself, for callers in other languages.
        let stored = transaction
            .execute(
                "SELECT postrider_receiver.store_answer($1, $2, $3, '', '')",
                &[&request.scope.as_str(), &request.key.as_str(), &i32::from(status)],
            )
            .await;
        assert_eq!(stored.unwrap_err().code().map(|code| code.code()), Some("22023"), "{status}");
        transaction.rollback().await.unwrap();
    }
    for status in [200, 202, 204, 299, 400, 404, 422] {
        let transaction = client.transaction().await.unwrap();
        let Begin::Fresh(claim) = begin(&transaction, &request, LONG).await.unwrap() else { panic!("not fresh") };
        store(&transaction, claim, &Answer { status, ..answer(1) }).await.unwrap();
        transaction.rollback().await.unwrap();
    }
    assert!(serve(&mut client, &request, 3).await.1);
}

#[tokio::test]
async fn an_answer_is_stored_once_and_only_for_a_key_that_was_begun() {
    let database = Database::start().await;
    let mut client = database.connect().await;
    let code = async |client: &Client| {
        let stored = client.query_one("SELECT postrider_receiver.store_answer($1, 'k', 200, '', '')", &[&"POST /x "]);
        stored.await.unwrap_err().code().map(|code| code.code().to_owned())
    };
    assert_eq!(code(&client).await.as_deref(), Some("55000"));
    let request = Request { scope: Scope::new("", "POST", "/x"), ..request_of("", "k", b"") };
    serve(&mut client, &request, 1).await;
    assert_eq!(code(&client).await.as_deref(), Some("55000"));
}

#[tokio::test]
async fn a_key_left_without_an_answer_is_not_executed_again() {
    let database = Database::start().await;
    let mut client = database.connect().await;
    let request = request(b"body");
    let transaction = client.transaction().await.unwrap();
    assert!(matches!(begin(&transaction, &request, LONG).await.unwrap(), Begin::Fresh(_)));
    work(&transaction, "forgot to store").await;
    transaction.commit().await.unwrap();
    assert_eq!(serve(&mut client, &request, 1).await, (Answer::of(409, Outcome::InProgress), false));
    assert_eq!(database.number("SELECT count(*) FROM effects").await, 1);
}

// E30.
#[tokio::test]
async fn the_same_key_of_two_tenants_is_two_keys() {
    let database = Database::start().await;
    let mut client = database.connect().await;
    assert_eq!(serve(&mut client, &request_of("red", "k", b"body"), 1).await, (answer(1), true));
    assert_eq!(serve(&mut client, &request_of("blue", "k", b"other"), 2).await, (answer(2), true));
    let (red, _) = serve(&mut client, &request_of("red", "k", b"body"), 3).await;
    assert_eq!(red, answer(1).with("Idempotency-Replayed", "true"));
}

#[tokio::test]
async fn scope_and_fingerprint_are_the_same_in_sql() {
    let database = Database::start().await;
    let client = database.connect().await;
    for (tenant, method, route) in [("", "POST", "/a"), ("t t", "PO ST", "/a b%20c"), ("ü", "P", "/ü")] {
        let query = "SELECT postrider_receiver.request_scope($1, $2, $3)";
        let scope: String = client.query_one(query, &[&tenant, &method, &route]).await.unwrap().get(0);
        assert_eq!(scope, Scope::new(tenant, method, route).as_str());
    }
    for (path, query, body) in [("/a", "", b"".as_slice()), ("/a", "b=c", b"\0\xff"), ("/ü", "", b"{}")] {
        let sql = "SELECT postrider_receiver.request_fingerprint('POST', $1, $2, $3)";
        let bytes: Vec<u8> = client.query_one(sql, &[&path, &query, &body]).await.unwrap().get(0);
        assert_eq!(bytes, Fingerprint::of("POST", path, query, body).as_bytes());
    }
}

#[tokio::test]
async fn installing_at_once_and_again_keeps_what_is_stored() {
    let database = Database::start().await;
    let mut clients = [database.connect().await, database.connect().await, database.connect().await];
    serve(&mut clients[0], &request(b"body"), 1).await;
    let [one, two, three] = &mut clients;
    let (one, two, three) = tokio::join!(install(one), install(two), install(three));
    one.and(two).and(three).unwrap();
    assert!(!serve(&mut clients[0], &request(b"body"), 2).await.1);
}

/// A consumer that pays ten, as it should: record and effect in one transaction.
async fn pay(client: &mut Client, event_id: &str) -> Once {
    let transaction = client.transaction().await.unwrap();
    let seen = once(&transaction, "payments", event_id, Some("1/0/16B3748/0")).await.unwrap();
    if seen == Once::First {
        transaction.execute("UPDATE accounts SET balance = balance + 10", &[]).await.unwrap();
    }
    transaction.commit().await.unwrap();
    seen
}

const BALANCE: &str = "SELECT balance::bigint FROM accounts";

// E32.
#[tokio::test]
async fn an_event_delivered_twice_takes_effect_once() {
    let database = Database::start().await;
    let mut client = database.connect().await;
    assert_eq!(pay(&mut client, "e1").await, Once::First);
    assert_eq!(pay(&mut client, "e1").await, Once::Repeat);
    assert_eq!(pay(&mut database.connect().await, "e1").await, Once::Repeat);
    assert_eq!(database.number(BALANCE).await, 10);
    assert_eq!(pay(&mut client, "e2").await, Once::First);
    assert_eq!(database.number(BALANCE).await, 20);
    let transaction = client.transaction().await.unwrap();
    assert_eq!(once(&transaction, "mails", "e1", None).await.unwrap(), Once::First);
}

#[tokio::test]
async fn an_event_delivered_twice_at_once_takes_effect_once() {
    for commits in [true, false] {
        let database = Database::start().await;
        let (mut first, mut second) = (database.connect().await, database.connect().await);
        let second_pid = pid(&second).await;
        let transaction = first.transaction().await.unwrap();
        assert_eq!(once(&transaction, "payments", "e1", None).await.unwrap(), Once::First);
        let end = async {
            // The effect comes after the wait: before it, the other one would wait for the account's row instead.
            database.wait_until_blocked(second_pid).await;
            transaction.execute("UPDATE accounts SET balance = balance + 10", &[]).await.unwrap();
            if commits { transaction.commit().await.unwrap() } else { transaction.rollback().await.unwrap() }
        };
        let (_, seen) = tokio::join!(end, pay(&mut second, "e1"));
        assert_eq!(seen, if commits { Once::Repeat } else { Once::First });
        assert_eq!(database.number(BALANCE).await, 10);
    }
}

/// Delivers an event to a consumer that dies before its effect, then again to one that lives. With `apart` the record
/// has a transaction of its own, committed first, which is the mistake.
async fn balance_after_a_crash(apart: bool) -> i64 {
    let database = Database::start().await;
    let mut dying = database.connect().await;
    let dying_pid = pid(&dying).await;
    let transaction = dying.transaction().await.unwrap();
    assert_eq!(once(&transaction, "payments", "e1", None).await.unwrap(), Once::First);
    if apart {
        transaction.commit().await.unwrap();
    } else {
        std::mem::forget(transaction);
    }
    let killer = database.connect().await;
    killer.execute("SELECT pg_terminate_backend($1)", &[&dying_pid]).await.unwrap();
    let _ = pay(&mut database.connect().await, "e1").await;
    database.number(BALANCE).await
}

// E33.
#[tokio::test]
async fn a_record_apart_from_its_effect_loses_the_event() {
    assert_eq!(balance_after_a_crash(false).await, 10);
    assert_eq!(balance_after_a_crash(true).await, 0, "the mistake has become harmless, or the test does not make it");
}
