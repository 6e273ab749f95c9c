#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
use super::*;
use crate::from_files::FileWatch;
use crate::signature::Signers;
use crate::test_server::{Act, TestServer, answer};
use crate::tls::{ClientFiles, TlsFiles, TlsRoots};
use bytes::Bytes;
use postrider_core::outcome::Lost;
use postrider_core::time::Timestamp;
use postrider_core::trace::Trace;
use postrider_core::work::{DefinitionName, StageName, WorkKey};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

const TESTDATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");
const CA: &[u8] = include_bytes!("../testdata/ca.pem");

fn settings() -> HttpSettings {
    HttpSettings {
        roots: TlsRoots::Pem(CA.to_vec()),
        connect_timeout: Duration::from_secs(20),
        ..HttpSettings::default()
    }
}

fn caller(url: &str, settings: &HttpSettings) -> HttpStageCaller {
    let endpoint = Endpoint::parse(url).unwrap().with_header("authorization", "Bearer t").unwrap();
    HttpStageCaller::new(BTreeMap::from([(Step::new("quote@3", "PRICING"), endpoint)]), settings).unwrap()
}

fn stage_call(timeout: Duration) -> StageCall {
    StageCall {
        stage: StageName::new("PRICING"),
        idempotency_key: "g/q/PRICING/0".into(),
        attempt: 2,
        fence: 7,
        definition: DefinitionName::new("quote@3"),
        trace: Trace::of(&WorkKey::new(["g", "q"]), &StageName::new("PRICING"), 0, 7),
        made_at: Timestamp(1_700_000_000_000_000),
        timeout,
        body: Bytes::from_static(b"{\"group_id\":\"g\"}"),
    }
}

async fn call(url: &str) -> Outcome {
    caller(url, &settings()).call(stage_call(Duration::from_secs(20))).await
}

async fn call_a_server_that(act: impl Fn() -> Act + Send + Sync + 'static, timeout: Duration) -> Outcome {
    let server = TestServer::start(move |_| act()).await;
    let outcome = caller(&server.url(), &settings()).call(stage_call(timeout)).await;
    assert_eq!(server.received().len(), 1, "a request is sent once");
    outcome
}

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(200);

fn bare(status: u16) -> Outcome {
    Outcome::Answered(Answer::new(status, None))
}

fn with_body(outcome: Outcome, body: &[u8]) -> Outcome {
    match outcome {
        Outcome::Answered(answer) => {
            Outcome::Answered(Answer { body_sha256: Some(Sha256::digest(body).into()), ..answer })
        }
        other => other,
    }
}

/// Only of an answer that is no success: for whoever looks for it at the receiver.
#[tokio::test]
async fn e12_the_body_of_a_failure_is_hashed_as_far_as_it_is_read() {
    let body_of = async |status: &str, body: &str| {
        let text = answer(status, "", body);
        match call_a_server_that(move || Act::Answer(text.clone()), LONG).await {
            Outcome::Answered(answer) => answer.body_sha256,
            other => panic!("{other:?}"),
        }
    };
    let hash: [u8; 32] = Sha256::digest(b"out of stock").into();
    assert_eq!(body_of("500 Internal Server Error", "out of stock").await, Some(hash));
    assert_eq!(body_of("422 Unprocessable Content", "").await, None);
    assert_eq!(body_of("200 OK", "out of stock").await, None);
    assert_eq!(body_of("500 Internal Server Error", &"x".repeat(1 << 20)).await, None, "longer than is read");
}

#[tokio::test]
async fn the_request_is_as_the_protocol_says() {
    let server = TestServer::always(&answer("200 OK", "postrider-outcome: done\r\n", "{}")).await;
    let outcome = call(&server.url()).await;
    let expected = Answer::new(200, Some(Declared::Done));
    assert_eq!(outcome, Outcome::Answered(expected));
    let [request] = &server.received()[..] else { panic!("one request") };
    assert_eq!(request.head.lines().next(), Some("POST /in?x=1 HTTP/1.1"));
    assert_eq!(request.body, "{\"group_id\":\"g\"}");
    let host = server.address.to_string();
    let trace = stage_call(LONG).trace.to_string();
    for (name, value) in [
        ("host", host.as_str()),
        ("content-type", "application/json"),
        ("content-length", "16"),
        ("user-agent", concat!("postrider/", env!("CARGO_PKG_VERSION"))),
        ("authorization", "Bearer t"),
        ("idempotency-key", "\"g/q/PRICING/0\""),
        ("postrider-attempt", "2"),
        ("postrider-fence", "7"),
        ("postrider-stage", "PRICING"),
        ("postrider-definition", "quote@3"),
        ("traceparent", trace.as_str()),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
    let deadline: u64 = request.header("postrider-deadline").unwrap().parse().unwrap();
    assert!((1..=20_000).contains(&deadline), "{deadline}");
}

#[tokio::test]
async fn each_word_of_the_outcome_header_is_read() {
    for declared in Declared::ALL {
        let header = format!("Postrider-Outcome: {}\r\nIdempotency-Replayed: true\r\n", declared.as_str());
        let server = TestServer::always(&answer("409 Conflict", &header, "")).await;
        let expected = Answer { replayed: true, ..Answer::new(409, Some(declared)) };
        assert_eq!(call(&server.url()).await, Outcome::Answered(expected));
    }
    let server = TestServer::always(&answer("200 OK", "Postrider-Outcome: perhaps\r\n", "")).await;
    assert_eq!(call(&server.url()).await, bare(200));
}

#[tokio::test]
async fn the_way_on_is_read_where_it_is_named_once() {
    let next = async |headers: &str| {
        let server = TestServer::always(&answer("200 OK", headers, "")).await;
        let Outcome::Answered(answer) = call(&server.url()).await else { panic!("an answer") };
        answer.next
    };
    assert_eq!(next("").await, None);
    assert_eq!(next("Postrider-Next: REFERRAL\r\n").await.as_deref(), Some("REFERRAL"));
    assert_eq!(next("postrider-next: PR%C3%9CFUNG\r\n").await.as_deref(), Some("PRÜFUNG"));
    assert_eq!(next("Postrider-Next: A\r\nPostrider-Next: B\r\n").await, None);
}

#[tokio::test]
async fn retry_after_is_reported_in_both_forms() {
    for header in
        ["Retry-After: 7\r\n", "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nRetry-After: Sun, 06 Nov 1994 08:49:44 GMT\r\n"]
    {
        let server = TestServer::always(&answer("429 Too Many Requests", header, "")).await;
        let Outcome::Answered(answer) = call(&server.url()).await else { panic!("an answer") };
        assert_eq!((answer.status, answer.retry_after), (429, Some(Duration::from_secs(7))));
    }
}

#[tokio::test]
async fn e52_a_proxys_page_is_an_answer_without_a_word() {
    for (status, code) in [("502 Bad Gateway", 502), ("504 Gateway Timeout", 504), ("404 Not Found", 404)] {
        let text = "<html>Postrider-Outcome: done</html>";
        let page = answer(status, "content-type: text/html\r\n", text);
        let expected = with_body(bare(code), text.as_bytes());
        assert_eq!(call_a_server_that(move || Act::Answer(page.clone()), LONG).await, expected);
    }
}

#[tokio::test]
async fn e55_a_redirect_is_reported_and_not_followed() {
    let elsewhere = TestServer::always(&answer("200 OK", "", "")).await;
    for status in ["301 Moved Permanently", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let redirect = answer(status, &format!("location: {}\r\n", elsewhere.url()), "");
        let code = status[..3].parse().unwrap();
        assert_eq!(call_a_server_that(move || Act::Answer(redirect.clone()), LONG).await, bare(code));
    }
    assert!(elsewhere.received().is_empty());
}

#[tokio::test]
async fn e56_what_did_not_leave_is_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    assert_eq!(call(&url).await, Outcome::NotSent(NotSent::Refused));
    assert_eq!(call("http://nonexistent.invalid/").await, Outcome::NotSent(NotSent::Resolve));
}

#[tokio::test]
async fn a_time_out_before_the_connection_stands_is_not_sent() {
    // The kernel accepts the connection, and nobody answers the TLS handshake.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let hasty = HttpSettings { connect_timeout: SHORT, ..settings() };
    for (settings, timeout) in [(hasty, LONG), (settings(), SHORT)] {
        let outcome = caller(&url, &settings).call(stage_call(timeout)).await;
        assert_eq!(outcome, Outcome::NotSent(NotSent::ConnectTimeout));
    }
}

#[tokio::test]
async fn a_failed_tls_handshake_is_not_sent() {
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = plain.local_addr().unwrap();
    let speaking_plainly = tokio::spawn(async move {
        let (mut stream, _) = plain.accept().await.unwrap();
        stream.write_all(answer("400 Bad Request", "", "").as_bytes()).await.unwrap();
        drop(stream.read(&mut [0; 1024]).await);
    });
    assert_eq!(call(&format!("https://{address}/")).await, Outcome::NotSent(NotSent::Tls));
    speaking_plainly.await.unwrap();
}

/// Answers each request with 200, over TLS.
struct TlsServer {
    port: u16,
    /// The client's certificate on each connection that had a request.
    clients: Arc<Mutex<Vec<Option<CertificateDer<'static>>>>>,
    serving: tokio::task::JoinHandle<()>,
}

impl TlsServer {
    /// `clients` sign the certificates of those who may come; `None`: everybody may.
    async fn start(clients: Option<&[u8]>) -> TlsServer {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = match clients {
            None => rustls::server::WebPkiClientVerifier::no_client_auth(),
            Some(pem) => {
                let mut roots = rustls::RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(pem).unwrap()).unwrap();
                rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
                    .build()
                    .unwrap()
            }
        };
        let certificates = CertificateDer::pem_slice_iter(include_bytes!("../testdata/server.pem"));
        let key = PrivateKeyDer::from_pem_slice(include_bytes!("../testdata/server.key")).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates.map(Result::unwrap).collect(), key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let clients = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&clients);
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let client = stream.get_ref().1.peer_certificates().map(|chain| chain[0].clone().into_owned());
                    seen.lock().unwrap().push(client);
                    answer_each(stream).await;
                });
            }
        });
        TlsServer { port, clients, serving }
    }

    fn url(&self) -> String {
        format!("https://localhost:{}/", self.port)
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer_each(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut request = Vec::new();
    while stream.read_buf(&mut request).await.is_ok_and(|bytes| bytes > 0) {
        // The body is the head's last and only JSON object.
        if request.ends_with(b"\"g\"}") {
            request.clear();
            stream.write_all(answer("200 OK", "postrider-outcome: done\r\n", "").as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
        }
    }
}

#[tokio::test]
async fn tls_is_spoken_to_whom_the_roots_trust_and_the_name_fits() {
    let server = TlsServer::start(None).await;
    let port = server.port;
    let done = Answer::new(200, Some(Declared::Done));
    for host in ["localhost", "127.0.0.1"] {
        assert_eq!(call(&format!("https://{host}:{port}/")).await, Outcome::Answered(done.clone()));
    }
    assert_eq!(call(&format!("https://127.0.0.2:{port}/")).await, Outcome::NotSent(NotSent::Refused));
    let stranger = HttpSettings { roots: TlsRoots::System, ..settings() };
    let endpoint = Endpoint::parse(&format!("https://localhost:{port}/")).unwrap();
    match HttpStageCaller::new(BTreeMap::from([(Step::new("quote@3", "PRICING"), endpoint)]), &stranger) {
        Ok(caller) => assert_eq!(caller.call(stage_call(LONG)).await, Outcome::NotSent(NotSent::Tls)),
        // A machine without any trusted roots says so at once.
        Err(error) => assert_eq!(error.kind(), postrider_core::error::ErrorKind::Configuration),
    }
}

fn certificate(number: u8) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(format!("{TESTDATA}/client-{number}.pem")).unwrap()
}

/// Puts a client's certificate and key in the places that the endpoint reads.
fn put_client(dir: &Path, certificate: u8, key: u8) {
    std::fs::copy(format!("{TESTDATA}/client-{certificate}.pem"), dir.join("client.pem")).unwrap();
    std::fs::copy(format!("{TESTDATA}/client-{key}.key"), dir.join("client.key")).unwrap();
}

#[tokio::test]
async fn a_certificate_of_ours_is_shown_and_a_new_one_is_taken_on_a_new_connection_without_a_call_lost() {
    let server = TlsServer::start(Some(include_bytes!("../testdata/client-ca.pem"))).await;
    let dir = tempfile::tempdir().unwrap();
    put_client(dir.path(), 1, 1);
    let client = ClientFiles { certificate: dir.path().join("client.pem"), key: dir.path().join("client.key") };
    let files = TlsFiles { authorities: Some(format!("{TESTDATA}/ca.pem").into()), client: Some(client) };
    let endpoint = Endpoint::parse(&server.url()).unwrap().with_tls(files).unwrap();
    let refusals = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&refusals);
    let watch = FileWatch::default().every(Duration::ZERO).on_change(move |_, refusal| {
        counted.fetch_add(usize::from(refusal.is_some()), Ordering::Relaxed);
    });
    // Nothing but the endpoint's own file makes the server trusted.
    let settings = HttpSettings {
        files: watch,
        roots: TlsRoots::Pem(include_bytes!("../testdata/client-ca.pem").to_vec()),
        idle_max: Duration::from_secs(600),
        ..settings()
    };
    let caller =
        HttpStageCaller::new(BTreeMap::from([(Step::new("quote@3", "PRICING"), endpoint)]), &settings).unwrap();
    let done = Outcome::Answered(Answer::new(200, Some(Declared::Done)));
    let shown = || server.clients.lock().unwrap().clone();

    assert_eq!(caller.call(stage_call(LONG)).await, done);
    assert_eq!(caller.call(stage_call(LONG)).await, done);
    assert_eq!(shown(), [Some(certificate(1))], "one connection");
    // A certificate without its key: the old ones hold.
    put_client(dir.path(), 2, 1);
    for _ in 0..2 {
        assert_eq!(caller.call(stage_call(LONG)).await, done);
    }
    assert_eq!((shown().len(), refusals.load(Ordering::Relaxed)), (1, 1));
    put_client(dir.path(), 2, 2);
    assert_eq!(caller.call(stage_call(LONG)).await, done);
    assert_eq!(shown(), [Some(certificate(1)), Some(certificate(2))], "on a new connection");
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_no_request_without_one() {
    let server = TlsServer::start(Some(include_bytes!("../testdata/client-ca.pem"))).await;
    let outcome = call(&server.url()).await;
    // With TLS 1.3 the server's refusal comes when the request may have left.
    assert!(matches!(outcome, Outcome::Lost(Lost::Reset) | Outcome::NotSent(NotSent::Tls)), "{outcome:?}");
    assert!(server.clients.lock().unwrap().is_empty());
}

#[tokio::test]
async fn connections_are_not_shared_by_those_with_other_certificates() {
    let server = TlsServer::start(Some(include_bytes!("../testdata/client-ca.pem"))).await;
    let endpoint = |number: u8| {
        let [certificate, key] = ["pem", "key"].map(|end| format!("{TESTDATA}/client-{number}.{end}").into());
        let files = TlsFiles { authorities: None, client: Some(ClientFiles { certificate, key }) };
        Endpoint::parse(&server.url()).unwrap().with_tls(files).unwrap()
    };
    let endpoints = [("PRICING", 1), ("APPROVAL", 2), ("BINDING", 1)];
    let endpoints = endpoints.map(|(stage, number)| (Step::new("quote@3", stage), endpoint(number)));
    let settings = HttpSettings { idle_max: Duration::from_secs(600), ..settings() };
    let caller = HttpStageCaller::new(BTreeMap::from(endpoints), &settings).unwrap();
    for stage in ["PRICING", "APPROVAL", "BINDING"] {
        let outcome = caller.call(StageCall { stage: StageName::new(stage), ..stage_call(LONG) }).await;
        assert!(matches!(outcome, Outcome::Answered(Answer { status: 200, .. })), "{outcome:?}");
    }
    let shown = server.clients.lock().unwrap().clone();
    assert_eq!(shown, [Some(certificate(1)), Some(certificate(2))], "the third call shares the first one's connection");
}

#[tokio::test]
async fn a_stage_with_a_secret_signs_its_key_its_time_and_its_body() {
    let server = TestServer::always(&answer("200 OK", "", "")).await;
    let endpoint = Endpoint::parse(&server.url())
        .unwrap()
        .with_signing_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX")
        .unwrap();
    let caller =
        HttpStageCaller::new(BTreeMap::from([(Step::new("quote@3", "PRICING"), endpoint)]), &settings()).unwrap();
    caller.call(StageCall { idempotency_key: "g.1/q/PRICING/0".into(), ..stage_call(LONG) }).await;
    let [request] = &server.received()[..] else { panic!("one request") };
    assert_eq!(request.header("idempotency-key"), Some("\"g.1/q/PRICING/0\""));
    assert_eq!(request.header("webhook-id"), Some("g%2E1/q/PRICING/0"));
    assert_eq!(request.header("webhook-timestamp"), Some("1700000000"));
    let signers =
        Signers::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX").unwrap();
    let signature = signers.sign("g%2E1/q/PRICING/0", 1_700_000_000, request.body.as_bytes());
    assert_eq!(request.header("webhook-signature"), Some(signature.as_str()));
}

#[tokio::test]
async fn e56_a_connection_lost_after_the_request_left_is_lost() {
    let reset = Outcome::Lost(Lost::Reset);
    assert_eq!(call_a_server_that(|| Act::Reset, LONG).await, reset);
    assert_eq!(call_a_server_that(|| Act::Close, LONG).await, reset);
    let no_http = || Act::AnswerThenClose("SSH-2.0-OpenSSH_9.2\r\n".into());
    assert_eq!(call_a_server_that(no_http, LONG).await, reset);
}

#[tokio::test]
async fn a_truncated_answer_is_lost_even_if_its_head_says_done() {
    for head in ["content-length: 100\r\n", "transfer-encoding: chunked\r\n"] {
        let torn = format!("HTTP/1.1 200 OK\r\npostrider-outcome: done\r\n{head}\r\n5\r\nhello");
        let outcome = call_a_server_that(move || Act::AnswerThenClose(torn.clone()), LONG).await;
        assert_eq!(outcome, Outcome::Lost(Lost::Reset), "{head}");
    }
    let half_a_head = || Act::AnswerThenClose("HTTP/1.1 200 OK\r\npostrider-out".into());
    assert_eq!(call_a_server_that(half_a_head, LONG).await, Outcome::Lost(Lost::Reset));
}

#[tokio::test]
async fn silence_and_a_trickling_answer_end_at_the_total_time_out() {
    assert_eq!(call_a_server_that(|| Act::Hang, SHORT).await, Outcome::Lost(Lost::Timeout));
    // At a byte in 20 ms this answer would take 20 minutes.
    let trickle = || Act::Trickle("HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n".into());
    assert_eq!(call_a_server_that(trickle, SHORT).await, Outcome::Lost(Lost::Timeout));
}

#[tokio::test]
async fn a_head_that_trickles_ends_at_the_total_time_out() {
    let trickle = || Act::Trickle("HTTP/1.1 200 OK\r\nx-slow: ".into());
    assert_eq!(call_a_server_that(trickle, SHORT).await, Outcome::Lost(Lost::Timeout));
}

#[tokio::test]
async fn e45_eight_megabytes_leave_whole_and_an_answer_without_end_is_read_to_its_limit() {
    let flood =
        || Act::Flood("HTTP/1.1 200 OK\r\npostrider-outcome: done\r\ntransfer-encoding: chunked\r\n\r\n".into());
    let server = TestServer::start(move |_| flood()).await;
    let body = Bytes::from(vec![b'x'; 8 << 20]);
    let outcome = caller(&server.url(), &settings()).call(StageCall { body: body.clone(), ..stage_call(LONG) }).await;
    let done = Answer::new(200, Some(Declared::Done));
    assert_eq!(outcome, Outcome::Answered(done));
    let [request] = &server.received()[..] else { panic!("one request") };
    assert!(request.body.as_bytes() == body, "all of the body, and nothing else");
}

#[tokio::test]
async fn a_stage_without_an_endpoint_is_not_sent() {
    let nobody = HttpStageCaller::new(BTreeMap::new(), &settings()).unwrap();
    assert_eq!(nobody.call(stage_call(LONG)).await, Outcome::NotSent(NotSent::Resolve));
}
