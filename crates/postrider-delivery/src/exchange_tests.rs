#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
use super::*;
use crate::test_server::{Act, TestServer, answer};
use std::sync::atomic::AtomicUsize;

fn outgoing(endpoint: &Endpoint) -> Outgoing {
    Outgoing { headers: endpoint.headers.clone(), body: Bytes::from_static(b"{}"), timeout: Duration::from_secs(20) }
}

async fn send(client: &HttpClient, endpoint: &Endpoint) -> Result<u16, Unanswered> {
    client.send(endpoint, outgoing(endpoint)).await.map(|reply| reply.status)
}

fn client(settings: &HttpSettings, server: &TestServer) -> (HttpClient, Endpoint) {
    let endpoint = Endpoint::parse(&server.url()).unwrap();
    (HttpClient::new(settings, [&endpoint]).unwrap(), endpoint)
}

fn patient() -> HttpSettings {
    HttpSettings { idle_max: Duration::from_secs(600), ..HttpSettings::default() }
}

fn connections(server: &TestServer) -> Vec<usize> {
    server.received().iter().map(|request| request.connection).collect()
}

#[tokio::test]
async fn a_connection_is_kept() {
    let server = TestServer::always(&answer("200 OK", "", "fine")).await;
    let (client, endpoint) = client(&patient(), &server);
    for _ in 0..5 {
        assert_eq!(send(&client, &endpoint).await, Ok(200));
    }
    assert_eq!(connections(&server), [0; 5]);
}

#[tokio::test]
async fn a_connection_idle_for_too_long_is_not_used_again() {
    let server = TestServer::always(&answer("200 OK", "", "fine")).await;
    let (client, endpoint) = client(&HttpSettings { idle_max: Duration::ZERO, ..patient() }, &server);
    for _ in 0..3 {
        assert_eq!(send(&client, &endpoint).await, Ok(200));
    }
    assert_eq!(connections(&server), [0, 1, 2]);
}

#[tokio::test]
async fn no_more_connections_are_kept_than_allowed() {
    let server = TestServer::always(&answer("200 OK", "", "")).await;
    let (client, endpoint) = client(&HttpSettings { idle_per_host_max: 1, ..patient() }, &server);
    let (first, second) = tokio::join!(send(&client, &endpoint), send(&client, &endpoint));
    assert_eq!((first, second), (Ok(200), Ok(200)));
    assert_eq!(client.pools[&endpoint.via()].idle().len(), 1);
}

#[tokio::test]
async fn a_connection_the_server_closed_between_requests_is_replaced() {
    let server = TestServer::start(|_| Act::AnswerThenClose(answer("200 OK", "", "fine"))).await;
    let (client, endpoint) = client(&patient(), &server);
    assert_eq!(send(&client, &endpoint).await, Ok(200));
    let closed = || client.pools[&endpoint.via()].idle().iter().all(|idle| idle.sender.is_closed());
    let deadline = Instant::now() + Duration::from_secs(20);
    while !closed() {
        assert!(Instant::now() < deadline, "the end of the connection was not seen");
        tokio::task::yield_now().await;
    }
    assert_eq!(send(&client, &endpoint).await, Ok(200));
    assert_eq!(connections(&server), [0, 1]);
}

#[tokio::test]
async fn a_request_that_met_the_closing_of_its_connection_is_lost_and_not_sent_again() {
    let count = AtomicUsize::new(0);
    let server = TestServer::start(move |_| match count.fetch_add(1, Ordering::Relaxed) {
        0 => Act::Answer(answer("200 OK", "", "fine")),
        _ => Act::Close,
    })
    .await;
    let (client, endpoint) = client(&patient(), &server);
    assert_eq!(send(&client, &endpoint).await, Ok(200));
    assert_eq!(send(&client, &endpoint).await, Err(Unanswered::Lost(Lost::Reset)));
    assert_eq!(connections(&server), [0, 0]);
}

#[tokio::test]
async fn e45_a_long_answer_counts_and_costs_the_connection() {
    let server = TestServer::always(&answer("200 OK", "", &"x".repeat(ANSWER_BODY_BYTES_MAX + 1))).await;
    let (client, endpoint) = client(&patient(), &server);
    for _ in 0..2 {
        assert_eq!(send(&client, &endpoint).await, Ok(200));
    }
    assert_eq!(connections(&server), [0, 1]);
}
