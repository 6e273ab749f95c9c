//! What: a consumer of outbox events.
//! Where: what an event's delivery reaches.
//! Takes and gives: an event; its effect, in one transaction with the record that it was processed.
//! Never: acts on one event twice, or records it in another transaction than the effect's.

use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, Response};
use postrider_receiver::{Answer, Once, Outcome, once};
use serde::Deserialize;
use tokio_postgres::types::Type;

use crate::Service;
use crate::faults::{Fault, Sabotage};
use crate::line::Cut;
use crate::reply::{Executed, Failure, problem, respond, run};

/// The name under which this service's effects are recorded.
const CONSUMER: &str = "quoting";

/// An event's body; what else it has is not needed here.
#[derive(Debug, Deserialize)]
struct EventBody {
    #[serde(rename = "type")]
    event_type: String,
    #[serde(alias = "aggregate_key")]
    key: String,
    #[serde(default)]
    payload: serde_json::Value,
}

/// An event that was understood.
#[derive(Debug)]
struct Event {
    id: String,
    position: Option<String>,
    body: EventBody,
}

/// `POST /events`.
pub(crate) async fn event(
    State(service): State<Arc<Service>>,
    ConnectInfo(connection): ConnectInfo<Cut>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let arrived = SystemTime::now();
    let event = match understand(&headers, &body) {
        Ok(event) => event,
        Err(refusal) => return respond(refusal),
    };
    // A task of its own, as for a stage: a caller that hangs up does not stop what was begun.
    let finished = tokio::spawn(async move { finish(&service, &connection, &event, arrived).await });
    finished.await.map_or_else(|_| respond(Answer { status: 500, ..Answer::default() }), respond)
}

fn understand(headers: &HeaderMap, body: &[u8]) -> Result<Event, Answer> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let id = text("webhook-id").ok_or_else(|| problem(400, "header webhook-id is missing"))?;
    if !is_uuid(&id) {
        return Err(problem(400, "header webhook-id is not a UUID"));
    }
    let body = serde_json::from_slice(body).map_err(|_| problem(400, "the body is not an event"))?;
    Ok(Event { id, position: text("postrider-position"), body })
}

async fn finish(service: &Service, connection: &Cut, event: &Event, arrived: SystemTime) -> Answer {
    let executed = run(|| transact(service, event)).await;
    service.records.event(&event.id, &event.body.key, arrived, executed.replayed).await;
    if is_first_delivery(service, &event.id) {
        match service.faults.strike(&event.id, 0) {
            Fault::None => {}
            Fault::Drop => connection.cut(),
            Fault::Stall(late) => tokio::time::sleep(late).await,
        }
    }
    executed.answer
}

fn is_first_delivery(service: &Service, id: &str) -> bool {
    service.delivered.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned())
}

// The record comes first, in the transaction of the effect; a repeat is a success that does nothing.
async fn transact(service: &Service, event: &Event) -> Result<Executed, Failure> {
    let done = Answer::of(204, Outcome::Done);
    let mut client = service.pool.lend().await?;
    let transaction = client.transaction().await?;
    let known = service.sabotage != Some(Sabotage::NoKeys)
        && once(&transaction, CONSUMER, &event.id, event.position.as_deref()).await? == Once::Repeat;
    if known {
        let answer = done.with("Idempotency-Replayed", "true");
        return Ok(Executed { answer, replayed: Some(true) });
    }
    let seq = event.body.payload.get("seq").and_then(serde_json::Value::as_i64);
    transaction
        .execute_typed(
            "INSERT INTO quoting.event_effects (event_id, aggregate_key, event_type, seq) \
             VALUES ($1::uuid, $2, $3, $4)",
            &[
                (&event.id, Type::TEXT),
                (&event.body.key, Type::TEXT),
                (&event.body.event_type, Type::TEXT),
                (&seq, Type::INT8),
            ],
        )
        .await?;
    transaction.commit().await.map_err(Failure::of_commit)?;
    Ok(Executed { answer: done, replayed: Some(false) })
}

fn is_uuid(text: &str) -> bool {
    let dashes = [8, 13, 18, 23];
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match byte {
            b'-' => dashes.contains(&at),
            other => !dashes.contains(&at) && other.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::is_uuid;

    #[test]
    fn tells_a_uuid_from_other_text() {
        assert!(is_uuid("0b9f2d5e-1c3a-4F6b-8d7e-9a0b1c2d3e4f"));
        for text in [
            "",
            "0b9f2d5e1c3a4f6b8d7e9a0b1c2d3e4f",
            "0b9f2d5e-1c3a-4f6b-8d7e-9a0b1c2d3e4g",
            "0b9f2d5e-1c3a-4f6b-8d7e-9a0b1c2d3e4f0",
            "------------------------------------",
        ] {
            assert!(!is_uuid(text), "{text}");
        }
    }
}
