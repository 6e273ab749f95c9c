//! The service over HTTP on a real server: what a repeat gets, and what is there to see afterwards.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is the test's failure")]

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quoting_service::{Faults, Sabotage, Service, Settings, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::{Client, NoTls};
use xtask::postgres::{Cluster, Shutdown};

struct Database {
    cluster: Cluster,
}

impl Database {
    fn start() -> Database {
        Database { cluster: Cluster::builder(&xtask::postgres::find(None).unwrap()).start().unwrap() }
    }

    async fn serve(&self, faults: Faults, sabotage: Option<Sabotage>) -> SocketAddr {
        let database = self.cluster.url().parse().unwrap();
        let service = Service::open(Settings { database, faults, sabotage }).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, service, pending()));
        address
    }

    async fn serve_well(&self) -> SocketAddr {
        self.serve(Faults::default(), None).await
    }

    async fn connect(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.cluster.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    async fn number(&self, query: &str) -> i64 {
        self.connect().await.query_one(query, &[]).await.unwrap().get(0)
    }

    async fn wait_for(&self, query: &str, number: i64) {
        let watcher = self.connect().await;
        let deadline = Instant::now() + LONG;
        while watcher.query_one(query, &[]).await.unwrap().get::<_, i64>(0) != number {
            assert!(Instant::now() < deadline, "never {number}: {query}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// How long a condition may take on a busy machine.
const LONG: Duration = Duration::from_secs(60);

const EFFECTS: &str = "SELECT count(*) FROM quoting.stage_effects";
const REQUESTS: &str = "SELECT count(*) FROM quoting.requests";
const REPLAYED: &str = "SELECT count(*) FROM quoting.requests WHERE replayed AND answered_at >= received_at";
const UNANSWERED: &str = "SELECT count(*) FROM quoting.requests WHERE NOT replayed AND answered_at IS NULL";
const EVENT_EFFECTS: &str = "SELECT count(*) FROM quoting.event_effects";

#[derive(Debug)]
struct Reply {
    status: u16,
    headers: Vec<String>,
    body: String,
}

impl Reply {
    fn has(&self, header: &str) -> bool {
        self.headers.iter().any(|line| line == header)
    }

    /// What the service itself said: all but the date, and but what tells a repeat.
    fn said(&self) -> (u16, Vec<&str>, &str) {
        let own = |line: &&str| !line.starts_with("date:") && *line != "idempotency-replayed: true";
        (self.status, self.headers.iter().map(String::as_str).filter(own).collect(), &self.body)
    }
}

async fn send(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &str) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(address).await?;
    let mut request = format!("POST {path} HTTP/1.1\r\nhost: quoting\r\nconnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    stream.write_all(request.as_bytes()).await?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await?;
    let (head, body) = reply.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut lines = head.split("\r\n").map(str::to_owned);
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    Ok(Reply { status, headers: lines.collect(), body: body.to_owned() })
}

fn stage_body(stage: &str, sum_insured: u64) -> String {
    format!(
        r#"{{"group_id":"g","quote_id":"q","stage":"{stage}","epoch":0,"payload":{{"sum_insured":{sum_insured}}}}}"#
    )
}

async fn call(address: SocketAddr, stage: &str, fence: u32) -> io::Result<Reply> {
    let (key, number) = (format!("\"g/q/{stage}/0\""), fence.to_string());
    let headers = [
        ("idempotency-key", key.as_str()),
        ("postrider-attempt", &number),
        ("postrider-fence", &number),
        ("postrider-deadline", "30000"),
        ("postrider-stage", stage),
    ];
    send(address, &format!("/stages/{}", stage.to_lowercase()), &headers, &stage_body(stage, 123_450)).await
}

#[tokio::test]
async fn a_repeat_has_one_effect_and_the_same_answer() {
    let database = Database::start();
    let address = database.serve_well().await;
    let first = call(address, "PRICING", 1).await.unwrap();
    assert_eq!(first.status, 200);
    assert!(first.has("postrider-outcome: done") && !first.has("idempotency-replayed: true"));
    assert_eq!(first.body, r#"{"effect":1,"premium":"2469.00","stage":"PRICING"}"#);
    let again = call(address, "PRICING", 2).await.unwrap();
    assert!(again.has("idempotency-replayed: true"));
    assert_eq!(again.said(), first.said());
    assert_eq!(database.number(EFFECTS).await, 1);
    assert_eq!((database.number(REQUESTS).await, database.number(REPLAYED).await), (2, 1));
}

#[tokio::test]
async fn every_stage_changes_the_quote() {
    let database = Database::start();
    let address = database.serve_well().await;
    for stage in ["PRICING", "APPROVAL", "BINDING", "ISSUING"] {
        assert_eq!(call(address, stage, 1).await.unwrap().status, 200, "{stage}");
    }
    let whole = "SELECT count(*) FROM quoting.quotes WHERE premium = 2469.00 \
                 AND num_nonnulls(approved_at, bound_at, issued_at) = 3";
    assert_eq!(database.number(whole).await, 1);
    assert_eq!(database.number("SELECT count(DISTINCT stage) FROM quoting.stage_effects").await, 4);
}

#[tokio::test]
async fn twenty_at_once_have_one_effect() {
    let database = Database::start();
    let address = database.serve_well().await;
    let calls: Vec<_> = (1..=20).map(|fence| tokio::spawn(call(address, "PRICING", fence))).collect();
    let mut replayed = 0;
    for reply in calls {
        let reply = reply.await.unwrap().unwrap();
        assert!(matches!(reply.status, 200 | 409), "{}", reply.status);
        replayed += i64::from(reply.has("idempotency-replayed: true"));
    }
    assert_eq!(database.number(EFFECTS).await, 1);
    assert_eq!((database.number(REQUESTS).await, database.number(REPLAYED).await), (20, replayed));
}

// E20 and E21, and what else is wrong with the request itself.
#[tokio::test]
async fn a_bad_request_is_refused_for_good_and_does_nothing() {
    let database = Database::start();
    let address = database.serve_well().await;
    let good = [
        ("idempotency-key", "\"k\""),
        ("postrider-attempt", "1"),
        ("postrider-fence", "1"),
        ("postrider-stage", "PRICING"),
    ];
    let body = stage_body("PRICING", 1);
    let mut refusals = vec![
        (404, send(address, "/stages/selling", &good, &body).await.unwrap()),
        (400, send(address, "/stages/approval", &good, &body).await.unwrap()),
        (400, send(address, "/stages/pricing", &good, "{").await.unwrap()),
        (400, send(address, "/stages/pricing", &good, &stage_body("BINDING", 1)).await.unwrap()),
    ];
    for missing in 0..good.len() {
        let others: Vec<_> = good.iter().enumerate().filter(|(at, _)| *at != missing).map(|(_, one)| *one).collect();
        refusals.push((400, send(address, "/stages/pricing", &others, &body).await.unwrap()));
    }
    assert_eq!((database.number(EFFECTS).await, database.number(REQUESTS).await), (0, 0));
    let first = send(address, "/stages/pricing", &good, &body).await.unwrap();
    refusals.push((422, send(address, "/stages/pricing", &good, &stage_body("PRICING", 2)).await.unwrap()));
    refusals.push((422, send(address, "/stages/pricing?x=1", &good, &body).await.unwrap()));
    for (status, refusal) in refusals {
        assert_eq!(refusal.status, status, "{}", refusal.body);
        assert!(refusal.has("postrider-outcome: permanent") && refusal.has("content-type: application/problem+json"));
    }
    let again = send(address, "/stages/pricing", &good, &body).await.unwrap();
    assert_eq!(again.said(), first.said());
    assert_eq!(database.number(EFFECTS).await, 1);
}

#[tokio::test]
async fn a_key_that_is_being_executed_is_in_progress() {
    let database = Database::start();
    let address = database.serve_well().await;
    let mut other = database.connect().await;
    let transaction = other.transaction().await.unwrap();
    transaction
        .batch_execute(
            "SELECT postrider_receiver.begin_request(
                 postrider_receiver.request_scope('', 'POST', '/stages/{stage}'), 'g/q/PRICING/0', sha256(''), 1, 100)",
        )
        .await
        .unwrap();
    let reply = call(address, "PRICING", 1).await.unwrap();
    assert_eq!(reply.status, 409);
    assert!(reply.has("postrider-outcome: in-progress"));
    transaction.rollback().await.unwrap();
    assert_eq!(call(address, "PRICING", 2).await.unwrap().status, 200);
    assert_eq!(database.number(EFFECTS).await, 1);
}

#[tokio::test]
async fn a_dropped_reply_is_a_reset_behind_the_commit() {
    let database = Database::start();
    let dropping = database.serve(Faults { drop_replies: 1.0, ..Faults::default() }, None).await;
    let lost = call(dropping, "PRICING", 1).await.unwrap_err();
    assert_eq!(lost.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!((database.number(EFFECTS).await, database.number(UNANSWERED).await), (1, 1));
    let answering = database.serve_well().await;
    assert!(call(answering, "PRICING", 2).await.unwrap().has("idempotency-replayed: true"));
    assert_eq!(database.number(EFFECTS).await, 1);
}

#[tokio::test]
async fn a_stalled_reply_is_late_and_its_effect_is_not() {
    let database = Database::start();
    let late = Faults { stall: 1.0, stall_for: Duration::from_secs(3600), ..Faults::default() };
    let stalling = database.serve(late, None).await;
    let waiting = tokio::spawn(call(stalling, "PRICING", 1));
    database.wait_for(UNANSWERED, 1).await;
    assert_eq!(database.number(EFFECTS).await, 1);
    assert!(!waiting.is_finished());
    let answering = database.serve_well().await;
    assert!(call(answering, "PRICING", 2).await.unwrap().has("idempotency-replayed: true"));
    let soon = Faults { stall: 1.0, stall_for: Duration::from_millis(1), ..Faults::default() };
    assert!(call(database.serve(soon, None).await, "PRICING", 3).await.unwrap().has("idempotency-replayed: true"));
    waiting.abort();
}

#[tokio::test]
async fn a_caller_that_hangs_up_does_not_stop_what_was_begun() {
    let database = Database::start();
    let address = database.serve_well().await;
    call(address, "PRICING", 1).await.unwrap();
    let mut other = database.connect().await;
    let transaction = other.transaction().await.unwrap();
    transaction.batch_execute("SELECT 1 FROM quoting.quotes FOR UPDATE").await.unwrap();
    let waiting = tokio::spawn(call(address, "APPROVAL", 1));
    database.wait_for("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'", 1).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    transaction.rollback().await.unwrap();
    database.wait_for(EFFECTS, 2).await;
}

#[tokio::test]
async fn either_sabotage_doubles_an_effect() {
    for (sabotage, effects) in [(None, 1), (Some(Sabotage::NoKeys), 2), (Some(Sabotage::NoFence), 2)] {
        let database = Database::start();
        let address = database.serve(Faults::default(), sabotage).await;
        for fence in 1..=2 {
            assert_eq!(call(address, "PRICING", fence).await.unwrap().status, 200);
        }
        assert_eq!(database.number(EFFECTS).await, effects, "{sabotage:?}");
    }
}

#[tokio::test]
async fn lost_connections_are_replaced() {
    let mut database = Database::start();
    let address = database.serve_well().await;
    assert_eq!(call(address, "PRICING", 1).await.unwrap().status, 200);
    database.cluster.restart(Shutdown::Immediate).unwrap();
    let deadline = Instant::now() + LONG;
    loop {
        let reply = call(address, "PRICING", 2).await.unwrap();
        if reply.status == 200 {
            assert!(reply.has("idempotency-replayed: true"));
            break;
        }
        assert!(reply.status == 503 && reply.has("postrider-outcome: retry"), "{}", reply.status);
        assert!(Instant::now() < deadline, "the service never came back");
    }
    assert_eq!(database.number(EFFECTS).await, 1);
}

#[tokio::test]
async fn an_event_takes_effect_once() {
    for (sabotage, effects) in [(None, 1), (Some(Sabotage::NoKeys), 2)] {
        let database = Database::start();
        let address = database.serve(Faults::default(), sabotage).await;
        let id = "0b9f2d5e-1c3a-4f6b-8d7e-9a0b1c2d3e4f";
        let headers = [("webhook-id", id), ("postrider-position", "1/0/16B3748/0")];
        let body = format!(
            r#"{{"id":"{id}","position":"1/0/16B3748/0","type":"submitted","key":"g/q","time":"t","payload":{{"seq":4}}}}"#
        );
        let first = send(address, "/events", &headers, &body).await.unwrap();
        assert_eq!((first.status, first.has("idempotency-replayed: true")), (204, false));
        let again = send(address, "/events", &headers, &body).await.unwrap();
        assert_eq!((again.status, again.has("idempotency-replayed: true")), (204, sabotage.is_none()));
        assert_eq!(database.number(EVENT_EFFECTS).await, effects, "{sabotage:?}");
        let row = "SELECT count(*) FROM quoting.event_effects WHERE (aggregate_key, event_type, seq) = ('g/q', 'submitted', 4)";
        assert_eq!(database.number(row).await, effects);
        assert_eq!(database.number("SELECT count(*) FROM quoting.event_requests").await, 2);
        for refused in [[("webhook-id", "seven")], [("x-id", id)]] {
            assert_eq!(send(address, "/events", &refused, &body).await.unwrap().status, 400);
        }
        assert_eq!(send(address, "/events", &headers, "{}").await.unwrap().status, 400);
    }
}

#[tokio::test]
async fn a_dropped_event_reply_is_absorbed() {
    let database = Database::start();
    let address = database.serve(Faults { drop_replies: 1.0, ..Faults::default() }, None).await;
    let headers = [("webhook-id", "0b9f2d5e-1c3a-4f6b-8d7e-9a0b1c2d3e4f")];
    let body = r#"{"type":"submitted","key":"g/q","payload":null}"#;
    let lost = send(address, "/events", &headers, body).await.unwrap_err();
    assert_eq!(lost.kind(), io::ErrorKind::ConnectionReset);
    assert!(send(address, "/events", &headers, body).await.unwrap().has("idempotency-replayed: true"));
    assert_eq!(database.number(EVENT_EFFECTS).await, 1);
}
