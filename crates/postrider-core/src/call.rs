//! What: makes the request for a claim: its key and its body, the same on every attempt.
//! Where: after *claim*; the request leaves through the stage caller.
//! Takes and gives: a claim, its stage's policy and the time; a [`StageCall`], or why there is none.
//! Never: puts into key or body what changes from attempt to attempt.

use crate::ports::{Claim, StageCall};
use crate::stage::StagePolicy;
use crate::time::Timestamp;
use crate::trace::Trace;
use crate::work::{DefinitionName, StageName, WorkKey};
use bytes::Bytes;
use data_encoding::BASE32_NOPAD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest, Sha256};

/// Longest idempotency key in bytes; providers take 255 (Stripe, draft-ietf-httpapi-idempotency-key-header).
pub const KEY_BYTES_MAX: usize = 255;

/// All but RFC 3986's unreserved characters are encoded, so that a slash in a part is never a separator.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The request for a claim; `Err`: why it must not leave, for the row's reason.
///
/// `definition` is the one that the row is under. `key_names` are the names of the key columns, in the order of the key's parts.
pub fn stage_call(
    policy: &StagePolicy,
    definition: &DefinitionName,
    key_names: &[String],
    claim: &Claim,
    now: Timestamp,
) -> Result<StageCall, String> {
    if claim.payload_changed {
        return Err("PAYLOAD_CHANGED: the payload differs from the first attempt's".to_owned());
    }
    if let Some(since) = &claim.key_expired {
        return Err(format!(
            "KEY_EXPIRED: it may have been acted on at {since}, which is longer ago than the stage's key_retention"
        ));
    }
    let body = request_body(key_names, claim);
    let (body_bytes, limit_bytes) = (u64::try_from(body.len()).unwrap_or(u64::MAX), policy.request_bytes_max);
    if body_bytes > limit_bytes {
        return Err(format!(
            "TOO_LARGE: the request has {body_bytes} bytes, and the stage's request_size is {limit_bytes}"
        ));
    }
    Ok(StageCall {
        stage: claim.stage.clone(),
        idempotency_key: idempotency_key(&claim.key, &claim.stage, claim.epoch),
        attempt: claim.attempt,
        fence: claim.fence,
        definition: definition.clone(),
        trace: Trace::of(&claim.key, &claim.stage, claim.epoch, claim.fence),
        made_at: now,
        timeout: policy.timeout,
        body,
    })
}

/// `<key part>/…/<stage>/<epoch>`, each part percent-encoded; longer than [`KEY_BYTES_MAX`], `pr1:` and the base32 form of
/// its SHA-256. It does not change over attempts and processes.
pub fn idempotency_key(key: &WorkKey, stage: &StageName, epoch: u32) -> String {
    let mut text = String::with_capacity(64);
    for part in key.parts().chain([stage.as_str()]) {
        text.extend(utf8_percent_encode(part, RESERVED));
        text.push('/');
    }
    text.push_str(&epoch.to_string());
    if text.len() > KEY_BYTES_MAX {
        return format!("pr1:{}", BASE32_NOPAD.encode(&Sha256::digest(&text)));
    }
    text
}

/// A JSON object: the key's columns, `stage`, `epoch`, `payload`, in this order and without spaces. The payload is the
/// server's own text.
pub fn request_body(key_names: &[String], claim: &Claim) -> Bytes {
    let mut body = Vec::with_capacity(claim.payload.len().saturating_add(128));
    body.push(b'{');
    for (name, part) in key_names.iter().map(String::as_str).zip(claim.key.parts()) {
        push_member(&mut body, name, part);
    }
    push_member(&mut body, "stage", claim.stage.as_str());
    body.extend_from_slice(b"\"epoch\":");
    body.extend_from_slice(claim.epoch.to_string().as_bytes());
    body.extend_from_slice(b",\"payload\":");
    body.extend_from_slice(claim.payload.as_bytes());
    body.push(b'}');
    body.into()
}

fn push_member(body: &mut Vec<u8>, name: &str, value: &str) {
    push_json_string(body, name);
    body.push(b':');
    push_json_string(body, value);
    body.push(b',');
}

fn push_json_string(body: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(body, text).expect("memory takes whatever is written, and a text is JSON");
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn claim(parts: &[&str], payload: &str) -> Claim {
        Claim {
            key: WorkKey::new(parts.iter().copied()),
            stage: StageName::new("PRICING"),
            fence: 3,
            attempt: 2,
            deferrals: 0,
            epoch: 1,
            definition: None,
            payload: payload.into(),
            was_sent: true,
            key_expired: None,
            payload_changed: false,
            version: None,
        }
    }

    fn key(parts: &[&str]) -> String {
        idempotency_key(&WorkKey::new(parts.iter().copied()), &StageName::new("PRICING"), 0)
    }

    #[test]
    fn parts_that_hold_separators_make_different_keys() {
        expect!["g/q/PRICING/0"].assert_eq(&key(&["g", "q"]));
        expect!["g%2Fq/r/PRICING/0"].assert_eq(&key(&["g/q", "r"]));
        expect!["%C3%A4%20%22%25/-._~/PRICING/0"].assert_eq(&key(&["ä \"%", "-._~"]));
    }

    #[test]
    fn a_long_key_is_hashed_and_stays_within_the_limit() {
        let longest = "x".repeat(KEY_BYTES_MAX - "/q/PRICING/0".len());
        assert_eq!(key(&[&longest, "q"]).len(), KEY_BYTES_MAX);
        let hashed = key(&[&format!("{longest}x"), "q"]);
        assert!(hashed.starts_with("pr1:") && hashed.len() == 56, "{hashed}");
        assert_ne!(hashed, key(&[&format!("{longest}y"), "q"]));
    }

    fn policy(request_bytes_max: u64) -> StagePolicy {
        StagePolicy {
            name: StageName::new("PRICING"),
            class: crate::stage::StageClass::Keyed,
            endpoint: "http://core".into(),
            next: vec![crate::stage::Next::End],
            attempt_limit: 5,
            deferral_limit: Some(10),
            timeout: std::time::Duration::from_secs(30),
            lease: std::time::Duration::from_secs(60),
            backoff: crate::stage::Backoff {
                first: std::time::Duration::from_secs(1),
                max: std::time::Duration::from_secs(60),
            },
            concurrency: 1,
            rate: None,
            serial: false,
            priority: 0,
            by_others: false,
            request_bytes_max,
        }
    }

    #[test]
    fn e22_key_and_body_are_the_same_on_every_attempt_and_only_headers_tell_them_apart() {
        let names = ["group_id".to_owned(), "quote_id".to_owned()];
        let first = claim(&["g", "q"], "{\"n\": 1.10}");
        let again = Claim { fence: 9, attempt: 4, deferrals: 2, ..first.clone() };
        let of = |definition: &str, claim: &Claim, now| {
            let definition = DefinitionName::new(definition);
            stage_call(&policy(1_000), &definition, &names, claim, Timestamp(now)).expect("it may leave")
        };
        let (first, again) = (of("quote@1", &first, 1), of("quote@2", &again, 2));
        assert_eq!((&first.body, &first.idempotency_key), (&again.body, &again.idempotency_key));
        assert_eq!(first.trace.id(), again.trace.id());
        assert_ne!(first.trace, again.trace);
        assert_eq!((again.fence, again.attempt, again.made_at), (9, 4, Timestamp(2)));
    }

    #[test]
    fn e45_a_request_above_the_limit_does_not_leave_and_one_at_the_limit_does() {
        let names = ["group_id".to_owned(), "quote_id".to_owned()];
        let claim = claim(&["g", "q"], &format!("\"{}\"", "x".repeat(8 << 20)));
        let bytes = u64::try_from(request_body(&names, &claim).len()).expect("a length");
        let call = |limit| stage_call(&policy(limit), &DefinitionName::new("quote@1"), &names, &claim, Timestamp(0));
        assert_eq!(call(bytes).map(|call| call.body.len()), Ok((8 << 20) + 72));
        expect!["TOO_LARGE: the request has 8388680 bytes, and the stage's request_size is 8388679"]
            .assert_eq(&call(bytes - 1).expect_err("one byte too many"));
    }

    #[test]
    fn a_key_that_its_receiver_may_have_forgotten_does_not_leave() {
        let expired = Claim { key_expired: Some("2026-01-01 00:00:00+00".to_owned()), ..claim(&["g", "q"], "{}") };
        let refusal = stage_call(&policy(1_000), &DefinitionName::new("quote@1"), &[], &expired, Timestamp(0))
            .expect_err("it could be done twice");
        assert!(refusal.starts_with("KEY_EXPIRED: it may have been acted on at 2026-01-01 00:00:00+00"), "{refusal}");
    }

    #[test]
    fn a_changed_payload_does_not_leave() {
        let changed = Claim { payload_changed: true, ..claim(&["g", "q"], "{}") };
        let refusal = stage_call(&policy(1_000), &DefinitionName::new("quote@1"), &[], &changed, Timestamp(0))
            .expect_err("the key has another body");
        assert!(refusal.starts_with("PAYLOAD_CHANGED"), "{refusal}");
    }

    #[test]
    fn the_body_keeps_the_payloads_own_text() {
        let names = ["group_id".to_owned(), "quote_id".to_owned()];
        let body = request_body(&names, &claim(&["a\"b", "ä"], "{\"n\": 1.10}"));
        expect![[r#"{"group_id":"a\"b","quote_id":"ä","stage":"PRICING","epoch":1,"payload":{"n": 1.10}}"#]]
            .assert_eq(std::str::from_utf8(&body).expect("JSON is UTF-8"));
    }
}
