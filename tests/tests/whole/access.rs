//! What leaves for a stage's endpoint: signed, with credentials that change under way, and never larger than allowed.

use super::fixture::{Endpoint, Play, Request, Rider, Scene, stage, wait_until, work};
use postrider_receiver::{SignatureError, SigningSecrets};
use std::fs;
use std::time::SystemTime;

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";

fn verify(secret: &str, request: &Request) -> Result<(), SignatureError> {
    SigningSecrets::parse(secret).unwrap().verify(request.header_bytes(), &request.body, SystemTime::now())
}

/// Submits a row and waits until its only stage is done.
fn run_one(scene: &Scene, number: u32) {
    scene.db.submit(number..number + 1);
    wait_until("the row is done", || scene.open_rows() == 0);
}

#[test]
fn calls_are_signed_and_new_secrets_are_used_without_a_restart_while_bad_ones_cost_no_call() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let [token, secret] = ["token", "secret"].map(|name| scene.file(name));
    fs::write(&token, "one\n").unwrap();
    fs::write(&secret, OLD).unwrap();
    let keys = format!(
        "signing_secret = \"file:{}\"\nheaders = {{ Authorization = \"Bearer file:{}\" }}\n",
        secret.display(),
        token.display()
    );
    let mut rider = scene.rider("rider", work(&[stage("PRICING", &endpoint.address(), None, &keys)]));
    rider.setup();
    rider.start_ready();
    run_one(&scene, 0);
    let first = endpoint.requests().remove(0);
    assert_eq!(first.header("authorization"), "Bearer one");
    assert_eq!(verify(OLD, &first), Ok(()));
    assert_eq!(verify(NEW, &first), Err(SignatureError::Wrong));
    let mut changed = first;
    changed.body = b"{}".to_vec();
    assert_eq!(verify(OLD, &changed), Err(SignatureError::Wrong));

    let mut number = 0;
    let mut until_a_call = |what: &str, is_so: &dyn Fn(&Request, &Rider) -> bool| {
        wait_until(what, || {
            number += 1;
            run_one(&scene, number);
            is_so(&endpoint.requests().pop().unwrap(), &rider)
        });
    };
    fs::write(&secret, format!("{OLD}\n{NEW}\n")).unwrap();
    until_a_call("both secrets sign", &|call, _| verify(NEW, call).is_ok());
    assert_eq!(verify(OLD, &endpoint.requests().pop().unwrap()), Ok(()), "the old one still does");
    fs::write(&token, "two\nlines\n").unwrap();
    fs::write(&secret, NEW).unwrap();
    until_a_call("a bad token is counted", &|_, rider| rider.metric("postrider_credentials_refused_total") >= 1);
    let call = endpoint.requests().pop().unwrap();
    let status = || String::from_utf8(rider.end_of(&["status"]).stdout).expect("text");
    let told = format!("credentials {}, {}: PR", token.display(), secret.display());
    assert!(status().contains(&told) && status().contains("Those of before are used"), "{}", status());
    assert_eq!(rider.metric("postrider_credentials_unusable"), 1);
    assert_eq!(call.header("authorization"), "Bearer one");
    assert_eq!(verify(OLD, &call), Ok(()), "what stands together changes together");
    fs::write(&token, "two\n").unwrap();
    until_a_call("the new token is sent", &|call, _| call.header("authorization") == "Bearer two");
    assert_eq!(verify(OLD, &endpoint.requests().pop().unwrap()), Err(SignatureError::Wrong));
    assert_eq!(verify(NEW, &endpoint.requests().pop().unwrap()), Ok(()));

    assert!(!status().contains("credentials"), "{}", status());
    let attempts = scene.db.number("SELECT max(attempt_count) FROM pending_work");
    assert_eq!(attempts, 1, "no call was lost over it");
    let said = rider.said();
    assert_eq!(said.matches("cannot be used; those of before are kept").count(), 1, "{said}");
    assert!(!said.contains("whsec_") && !said.contains("Bearer"), "a secret is in the log: {said}");
}

#[test]
fn e45_eight_megabytes_are_sent_and_a_request_above_its_limit_is_parked_and_never_sent() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let next = stage("APPROVAL", &endpoint.address(), None, "request_size = \"1MiB\"\n");
    let mut rider = scene.rider("rider", work(&[stage("PRICING", &endpoint.address(), Some("APPROVAL"), ""), next]));
    rider.setup();
    rider.start_ready();
    scene.db.run(
        "INSERT INTO pending_work (group_id, quote_id, stage, payload)
         VALUES ('g', 'q', 'PRICING', jsonb_build_object('text', repeat('x', 8 * 1024 * 1024)))",
    );
    let parked = "SELECT count(*) FROM pending_work WHERE stage = 'APPROVAL' AND stage_state = 'NON_RESUMABLE'
                  AND last_error LIKE 'TOO_LARGE: the request has 8388% bytes, and the stage''s request_size is 1048576'";
    wait_until("the row is parked", || scene.db.number(parked) == 1);
    // Another row goes through meanwhile, so the parked one had its chance to be tried again.
    scene.db.submit(0..1);
    let done = "SELECT count(*) FROM pending_work WHERE stage_state = 'DONE'";
    wait_until("another row is done", || scene.db.number(done) == 1);
    assert_eq!(scene.db.number(parked), 1);
    assert_eq!((endpoint.count("/stages/pricing"), endpoint.count("/stages/approval")), (2, 1));
    let large = endpoint.requests().into_iter().find(|request| request.key().starts_with("\"g/q/")).unwrap();
    assert_eq!(large.member("stage"), "PRICING");
    assert!(large.body.len() > 8 << 20);
}

#[test]
fn all_attempts_of_all_stages_of_a_row_are_one_trace() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|request, before| match (request.path.as_str(), before) {
        ("/stages/pricing", 0) => Play::Lose,
        _ => Play::Answer,
    });
    let keys = "backoff = { first = \"10ms\", max = \"50ms\" }\n";
    let next = stage("APPROVAL", &endpoint.address(), None, "");
    let mut rider = scene.rider("rider", work(&[stage("PRICING", &endpoint.address(), Some("APPROVAL"), keys), next]));
    rider.setup();
    rider.start_ready();
    run_one(&scene, 0);
    let traces: Vec<String> =
        endpoint.requests().iter().map(|request| request.header("traceparent").to_owned()).collect();
    let [lost, again, next] = &traces[..] else { panic!("three calls: {traces:?}") };
    let part = |trace: &str, index: usize| trace.split('-').nth(index).unwrap().to_owned();
    for other in [again, next] {
        assert_eq!((part(other, 0), part(other, 1), part(other, 3)), ("00".into(), part(lost, 1), "01".into()));
        assert_ne!(part(other, 2), part(lost, 2));
    }
    // The line about the lost call names the trace.
    assert!(rider.said().contains(&format!("trace={}", part(lost, 1))), "{}", rider.said());
}
