//! A history written down: the lines that [`super::read`] takes.

use super::super::{Cause, ConfirmPolicy, Record, Rules};
use super::VERSION;
use crate::position::Lsn;
use crate::work::{OwnerId, StageName, WorkKey};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The lines of a whole file, the rules first. Owners, fingerprints and hashes come back as other numbers, and compare as they did.
pub fn write(rules: &Rules, records: &[Record]) -> String {
    let stages: Vec<Value> = rules
        .stages
        .iter()
        .map(|rule| json!({"name": rule.name.as_str(), "attempt_limit": rule.attempt_limit}))
        .collect();
    let consumers: Vec<&str> = rules.consumers.iter().map(AsRef::as_ref).collect();
    let first = json!({"history": VERSION, "stages": stages, "consumers": consumers, "at_rest": rules.at_rest});
    std::iter::once(first).chain(records.iter().map(line)).map(|line| format!("{line}\n")).collect()
}

fn line(record: &Record) -> Value {
    match record {
        Record::Submitted { key, stage } => json!({"record": "submitted", "key": parts(key), "stage": name(stage)}),
        Record::ClaimWritten { key, stage, epoch, fence, owner } => json!({
            "record": "claim_written", "key": parts(key), "stage": name(stage), "epoch": epoch, "fence": fence, "owner": who(*owner),
        }),
        Record::FenceRaised { key, fence } => json!({"record": "fence_raised", "key": parts(key), "fence": fence}),
        Record::Resumed { key, fence } => json!({"record": "resumed", "key": parts(key), "fence": fence}),
        Record::CheckpointWritten { key, stage, fence, owner, deferred } => json!({
            "record": "checkpoint_written", "key": parts(key), "stage": name(stage), "fence": fence, "owner": who(*owner),
            "deferred": deferred,
        }),
        Record::StageEntered { key, stage, cause } => json!({
            "record": "stage_entered", "key": parts(key), "stage": name(stage), "cause": cause_word(*cause),
        }),
        Record::Parked { key, reason } => json!({"record": "parked", "key": parts(key), "reason": reason}),
        Record::Closed { key } => json!({"record": "closed", "key": parts(key)}),
        Record::RequestReceived { work, idempotency_key, fingerprint, attempt, fence } => json!({
            "record": "request_received", "key": parts(&work.key), "stage": name(&work.stage), "epoch": work.epoch,
            "idempotency_key": &**idempotency_key, "fingerprint": digits(*fingerprint), "attempt": attempt, "fence": fence,
        }),
        Record::EffectCommitted { work } => json!({
            "record": "effect_committed", "key": parts(&work.key), "stage": name(&work.stage), "epoch": work.epoch,
        }),
        Record::AnswerStored { idempotency_key, fingerprint, body_hash } => {
            answer("answer_stored", idempotency_key, *fingerprint, *body_hash)
        }
        Record::AnswerGiven { idempotency_key, fingerprint, body_hash } => {
            answer("answer_given", idempotency_key, *fingerprint, *body_hash)
        }
        Record::EventCommitted { id, position, key } => json!({
            "record": "event_committed", "id": &**id, "key": key.as_deref(), "lsn": position.commit_lsn.to_string(),
        }),
        Record::EventDelivered { consumer, id } => {
            json!({"record": "event_delivered", "consumer": &**consumer, "id": &**id})
        }
        Record::IntentWritten { reference } => json!({"record": "intent_written", "reference": &**reference}),
        Record::IntentSent { reference } => json!({"record": "intent_sent", "reference": &**reference}),
        Record::OutcomeWritten { reference } => json!({"record": "outcome_written", "reference": &**reference}),
        Record::LookedUp { reference } => json!({"record": "looked_up", "reference": &**reference}),
        Record::Confirmed { slot, lsn, durable, settled, policy } => json!({
            "record": "confirmed", "slot": &**slot, "lsn": lsn.to_string(), "durable": durable.to_string(),
            "settled": places(settled), "policy": policy_word(*policy),
        }),
    }
}

fn answer(record: &str, idempotency_key: &str, fingerprint: u64, body_hash: u64) -> Value {
    let (fingerprint, body_hash) = (digits(fingerprint), digits(body_hash));
    json!({"record": record, "idempotency_key": idempotency_key, "fingerprint": fingerprint, "body_hash": body_hash})
}

fn parts(key: &WorkKey) -> Vec<&str> {
    key.parts().collect()
}

fn name(stage: &StageName) -> &str {
    stage.as_str()
}

fn who(owner: OwnerId) -> String {
    digits(owner.0)
}

fn digits(number: u64) -> String {
    format!("{number:016x}")
}

fn places(settled: &[(Arc<str>, Lsn)]) -> Map<String, Value> {
    settled.iter().map(|(consumer, lsn)| (consumer.to_string(), lsn.to_string().into())).collect()
}

fn cause_word(cause: Cause) -> &'static str {
    match cause {
        Cause::Success => "success",
        Cause::Compensation => "compensation",
        Cause::Operator => "operator",
    }
}

fn policy_word(policy: ConfirmPolicy) -> &'static str {
    match policy {
        ConfirmPolicy::Sinks => "sinks",
        ConfirmPolicy::Journal => "journal",
    }
}
