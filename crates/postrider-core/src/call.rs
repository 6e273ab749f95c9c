//! What: makes the request for a claim: its key and its body, the same on every attempt.
//! Where: after *claim*; the request leaves through the stage caller.
//! Takes and gives: a claim and its stage's policy; a [`StageCall`].
//! Never: puts into key or body what changes from attempt to attempt.

use crate::ports::{Claim, StageCall};
use crate::stage::StagePolicy;
use crate::work::{StageName, WorkKey};
use bytes::Bytes;
use data_encoding::BASE32_NOPAD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest, Sha256};

/// Longest idempotency key in bytes; providers take 255 (Stripe, draft-ietf-httpapi-idempotency-key-header).
pub const KEY_BYTES_MAX: usize = 255;

/// All but RFC 3986's unreserved characters are encoded, so that a slash in a part is never a separator.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The request for a claim.
///
/// `key_names` are the names of the key columns, in the order of the key's parts.
pub fn stage_call(policy: &StagePolicy, key_names: &[String], claim: &Claim) -> StageCall {
    StageCall {
        stage: claim.stage.clone(),
        idempotency_key: idempotency_key(&claim.key, &claim.stage, claim.epoch),
        attempt: claim.attempt,
        fence: claim.fence,
        definition: claim.definition.clone(),
        timeout: policy.timeout,
        body: request_body(key_names, claim),
    }
}

/// `<key part>/…/<stage>/<epoch>`, each part percent-encoded; longer than [`KEY_BYTES_MAX`], `pr1:` and the base32 form of
/// its SHA-256. It does not change over attempts and processes.
pub fn idempotency_key(key: &WorkKey, stage: &StageName, epoch: u32) -> String {
    let mut text = String::new();
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
    let mut body = String::with_capacity(claim.payload.len().saturating_add(128));
    body.push('{');
    for (name, part) in key_names.iter().map(String::as_str).zip(claim.key.parts()) {
        push_member(&mut body, name, part);
    }
    push_member(&mut body, "stage", claim.stage.as_str());
    body.push_str("\"epoch\":");
    body.push_str(&claim.epoch.to_string());
    body.push_str(",\"payload\":");
    body.push_str(&claim.payload);
    body.push('}');
    body.into()
}

fn push_member(body: &mut String, name: &str, value: &str) {
    push_json_string(body, name);
    body.push(':');
    push_json_string(body, value);
    body.push(',');
}

fn push_json_string(body: &mut String, text: &str) {
    body.push_str(&serde_json::Value::from(text).to_string());
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
            payload: payload.to_owned(),
            payload_changed: false,
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

    #[test]
    fn the_body_keeps_the_payloads_own_text() {
        let names = ["group_id".to_owned(), "quote_id".to_owned()];
        let body = request_body(&names, &claim(&["a\"b", "ä"], "{\"n\": 1.10}"));
        expect![[r#"{"group_id":"a\"b","quote_id":"ä","stage":"PRICING","epoch":1,"payload":{"n": 1.10}}"#]]
            .assert_eq(std::str::from_utf8(&body).expect("JSON is UTF-8"));
    }
}
