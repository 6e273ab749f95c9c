#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
use super::*;
use crate::test_server::{Act, Received, TestServer, answer};
use bytes::Bytes;
use postrider_core::event::Payload;
use postrider_core::position::{Generation, Lsn};
use postrider_core::time::Timestamp;
use std::sync::Mutex;
use tokio::sync::watch;

fn event(number: u64, key: Option<&str>) -> Event {
    Event {
        id: format!("e{number}").into(),
        position: Position { generation: Generation::FIRST, commit_lsn: Lsn(number), ordinal: 0 },
        committed_at: Timestamp(1_700_000_000_123_456),
        source: "public.outbox_event".into(),
        key: key.map(Into::into),
        event_type: None,
        topic: None,
        headers: None,
        payload: Payload::Json(Bytes::from_static(b"{}")),
    }
}

fn sink(server: &TestServer, in_flight_max: usize) -> HttpEventSink {
    let settings =
        HttpEventSettings { in_flight_max, timeout: Duration::from_secs(20), ..HttpEventSettings::default() };
    HttpEventSink::new(Endpoint::parse(&server.url()).unwrap(), &settings).unwrap()
}

fn ok() -> Act {
    Act::Answer(answer("204 No Content", "", "").replace("content-length: 0\r\n", ""))
}

fn id(request: &Received) -> String {
    request.header("webhook-id").unwrap().to_owned()
}

fn ids(server: &TestServer) -> Vec<String> {
    server.received().iter().map(id).collect()
}

fn kind(written: &Written) -> Option<ErrorKind> {
    written.error.as_ref().map(Error::kind)
}

#[tokio::test]
async fn an_event_is_posted_with_its_identity() {
    let server = TestServer::start(|_| ok()).await;
    let mut sink = sink(&server, 32);
    let written = sink.write(&[event(26, Some("q-1"))]).await;
    assert_eq!((written.settled, kind(&written)), (1, None));
    let [request] = &server.received()[..] else { panic!("one request") };
    for (name, value) in [
        ("webhook-id", "e26"),
        ("webhook-timestamp", "1700000000"),
        ("postrider-position", "1:0/1A:0"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
    let body: serde_json::Value = serde_json::from_str(&request.body).unwrap();
    assert_eq!((&body["id"], &body["key"]), (&"e26".into(), &"q-1".into()));
    assert_eq!(sink.position().await.unwrap(), None);
}

#[tokio::test]
async fn one_keys_events_arrive_in_order_under_jitter_and_retries() {
    let events: Vec<Event> = (0..600).map(|n| event(n, Some(["hot", "a", "hot", "b"][n as usize % 4]))).collect();
    let accepted = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&accepted);
    let tries = Mutex::new(0_u64);
    let server = TestServer::start(move |request| {
        let mut tries = tries.lock().unwrap();
        *tries += 1;
        if tries.is_multiple_of(7) {
            return Act::Answer(answer("503 Service Unavailable", "", ""));
        }
        log.lock().unwrap().push(id(request));
        Act::AnswerAfter(Duration::from_micros(*tries % 5 * 300), answer("200 OK", "", ""))
    })
    .await;
    let mut sink = sink(&server, 8);
    let mut rest = &events[..];
    let mut retries = 0;
    while !rest.is_empty() {
        let batch = &rest[..rest.len().min(50)];
        let written = sink.write(batch).await;
        assert!(matches!(kind(&written), None | Some(ErrorKind::SinkUnavailable)), "{written:?}");
        assert_eq!(written.settled == batch.len(), written.error.is_none());
        retries += usize::from(written.error.is_some());
        rest = &rest[written.settled..];
    }
    assert!(retries > 10, "{retries}");
    let accepted = accepted.lock().unwrap();
    for key in ["hot", "a", "b"] {
        let of_key = events.iter().filter(|event| event.key.as_deref() == Some(key)).map(|event| event.id.to_string());
        let in_key: Vec<String> = of_key.collect();
        let seen: Vec<&String> = accepted.iter().filter(|id| in_key.contains(id)).collect();
        // Each exactly once, too: what was settled behind a failure is not sent again with the next batch.
        assert_eq!(seen, in_key.iter().collect::<Vec<_>>(), "{key}");
    }
}

#[tokio::test]
async fn a_slow_key_blocks_itself_alone() {
    let (open, gate) = watch::channel(false);
    let events =
        [event(0, Some("slow")), event(1, Some("slow")), event(2, Some("b")), event(3, Some("b")), event(4, None)];
    let server = TestServer::start(move |request| match id(request).as_str() {
        // The slow key's first event is answered only after all of the others have arrived.
        "e0" => Act::AnswerOnce(gate.clone(), answer("200 OK", "", "")),
        "e4" => {
            open.send_replace(true);
            ok()
        }
        _ => ok(),
    })
    .await;
    let written = sink(&server, 2).write(&events).await;
    assert_eq!((written.settled, kind(&written)), (5, None));
    assert_eq!(ids(&server), ["e0", "e2", "e3", "e4", "e1"]);
}

#[tokio::test]
async fn an_event_refused_holds_its_key_and_no_other() {
    let server = TestServer::start(|request| match id(request).as_str() {
        "e1" => Act::Answer(answer("422 Unprocessable Content", "", "")),
        _ => ok(),
    })
    .await;
    let events =
        [event(0, Some("a")), event(1, Some("a")), event(2, Some("a")), event(3, Some("b")), event(4, Some("b"))];
    let mut sink = sink(&server, 1);
    let written = sink.write(&events).await;
    assert_eq!((written.settled, kind(&written)), (1, Some(ErrorKind::SinkRefused)));
    assert_eq!(written.error.unwrap().detail(), Some("It answered 422 to event e1."));
    assert_eq!(ids(&server), ["e0", "e1", "e3", "e4"]);
    // The caller sets e1 aside and goes on: what is settled already is not sent again.
    let written = sink.write(&events[2..]).await;
    assert_eq!((written.settled, kind(&written)), (3, None));
    assert_eq!(ids(&server), ["e0", "e1", "e3", "e4", "e2"]);
    // A rewind sends all of it again.
    assert_eq!(sink.write(&events[3..]).await.settled, 2);
    assert_eq!(ids(&server).len(), 7);
}

#[tokio::test]
async fn each_answer_is_settled_unavailable_or_refused() {
    for (status, expected) in [
        (200, None),
        (204, None),
        (301, Some(ErrorKind::SinkRefused)),
        (400, Some(ErrorKind::SinkRefused)),
        (404, Some(ErrorKind::SinkRefused)),
        (408, Some(ErrorKind::SinkUnavailable)),
        (410, Some(ErrorKind::SinkRefused)),
        (425, Some(ErrorKind::SinkUnavailable)),
        (429, Some(ErrorKind::SinkUnavailable)),
        (500, Some(ErrorKind::SinkUnavailable)),
        (503, Some(ErrorKind::SinkUnavailable)),
    ] {
        let text = format!("HTTP/1.1 {status} X\r\nconnection: close\r\nretry-after: 9\r\n\r\n");
        let server = TestServer::start(move |_| Act::AnswerThenClose(text.clone())).await;
        let written = sink(&server, 4).write(&[event(0, None)]).await;
        assert_eq!((kind(&written), written.settled), (expected, usize::from(expected.is_none())), "{status}");
        assert_eq!(server.received().len(), 1);
        let detail = written.error.as_ref().and_then(Error::detail).unwrap_or_default();
        assert_eq!(
            detail.ends_with("It asks to wait for 9 s."),
            expected == Some(ErrorKind::SinkUnavailable),
            "{detail}"
        );
    }
}

#[tokio::test]
async fn an_endpoint_that_is_down_is_not_asked_for_each_key() {
    let server = TestServer::start(|_| Act::Reset).await;
    let events: Vec<Event> = (0..100).map(|n| event(n, None)).collect();
    let written = sink(&server, 4).write(&events).await;
    assert_eq!((written.settled, kind(&written)), (0, Some(ErrorKind::SinkUnavailable)));
    assert!(server.received().len() <= 4, "{}", server.received().len());
}

#[tokio::test]
async fn an_empty_batch_is_settled() {
    let server = TestServer::start(|_| ok()).await;
    let written = sink(&server, 4).write(&[]).await;
    assert_eq!((written.settled, kind(&written)), (0, None));
}
