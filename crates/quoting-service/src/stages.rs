//! What: the stages as HTTP endpoints.
//! Where: what a stage call reaches.
//! Takes and gives: a stage call; the stage's business write and its answer, in one transaction with the key store.
//! Never: does the work of one key twice, and never calls another service from inside the transaction.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Path, State};
use axum::http::{HeaderMap, Method, Response, Uri};
use postrider_receiver::{
    Answer, Begin, Fingerprint, IdempotencyKey, Outcome, Request, Scope, StageRequest, begin, store,
};
use serde::Deserialize;
use serde_json::json;
use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

use crate::Service;
use crate::faults::{Fault, Sabotage};
use crate::line::Cut;
use crate::reply::{Executed, Failure, problem, respond, run};

/// How long a request waits for another one with the same key, before it says "in progress".
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// The stages that this service does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Pricing,
    Approval,
    Binding,
    Issuing,
}

impl Stage {
    fn of_path(segment: &str) -> Option<Stage> {
        match segment {
            "pricing" => Some(Stage::Pricing),
            "approval" => Some(Stage::Approval),
            "binding" => Some(Stage::Binding),
            "issuing" => Some(Stage::Issuing),
            _ => None,
        }
    }

    /// The stage's name in the workflow.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stage::Pricing => "PRICING",
            Stage::Approval => "APPROVAL",
            Stage::Binding => "BINDING",
            Stage::Issuing => "ISSUING",
        }
    }
}

/// A stage call's body, the same on every attempt.
#[derive(Debug, Deserialize)]
pub(crate) struct StageBody {
    pub(crate) group_id: String,
    pub(crate) quote_id: String,
    stage: String,
    #[serde(default)]
    payload: serde_json::Value,
}

/// A stage call that was understood.
#[derive(Debug)]
pub(crate) struct StageCall {
    pub(crate) stage: Stage,
    pub(crate) request: StageRequest,
    pub(crate) body: StageBody,
    pub(crate) fingerprint: Fingerprint,
}

impl StageCall {
    /// The attempt as the tables hold it.
    pub(crate) fn attempt(&self) -> i32 {
        i32::try_from(self.request.attempt).unwrap_or(i32::MAX)
    }
}

/// `POST /stages/{stage}`.
pub(crate) async fn stage(
    State(service): State<Arc<Service>>,
    ConnectInfo(connection): ConnectInfo<Cut>,
    Path(segment): Path<String>,
    (method, uri, headers): (Method, Uri, HeaderMap),
    body: Bytes,
) -> Response<Body> {
    let arrived = SystemTime::now();
    let fingerprint = Fingerprint::of(method.as_str(), uri.path(), uri.query().unwrap_or_default(), &body);
    let call = match understand(&segment, &headers, &body) {
        Ok((stage, request, body)) => StageCall { stage, request, body, fingerprint },
        Err(refusal) => return respond(refusal),
    };
    // A task of its own: the server drops this future when the caller hangs up, and what was begun is to be finished.
    let finished = tokio::spawn(async move { finish(&service, &connection, &call, arrived).await });
    finished.await.map_or_else(|_| respond(Answer { status: 500, ..Answer::default() }), respond)
}

fn understand(segment: &str, headers: &HeaderMap, body: &[u8]) -> Result<(Stage, StageRequest, StageBody), Answer> {
    let stage = Stage::of_path(segment).ok_or_else(|| problem(404, "there is no such stage"))?;
    let lines = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let request = StageRequest::parse(lines).map_err(|error| problem(400, &error.to_string()))?;
    let body: StageBody = serde_json::from_slice(body).map_err(|_| problem(400, "the body is not a stage call"))?;
    if request.stage != stage.name() || body.stage != stage.name() {
        return Err(problem(400, "path, header and body name different stages"));
    }
    Ok((stage, request, body))
}

async fn finish(service: &Service, connection: &Cut, call: &StageCall, arrived: SystemTime) -> Answer {
    let (record, executed) =
        tokio::join!(service.records.stage_received(call, arrived), run(|| transact(service, call)));
    let fault = match executed.replayed {
        Some(_) => service.faults.strike(call.request.key.as_str(), call.request.fence),
        None => Fault::None,
    };
    match fault {
        Fault::None => {}
        Fault::Drop => connection.cut(),
        Fault::Stall(late) => {
            service.records.stage_executed(record, executed.replayed, None).await;
            tokio::time::sleep(late).await;
        }
    }
    let given = (fault != Fault::Drop).then_some(&executed.answer);
    service.records.stage_executed(record, executed.replayed, given).await;
    executed.answer
}

// The whole of effectively-once, on this side: key, work, answer, one commit.
async fn transact(service: &Service, call: &StageCall) -> Result<Executed, Failure> {
    let request = Request {
        scope: Scope::new("", "POST", "/stages/{stage}"),
        key: stored_key(service, call),
        fingerprint: call.fingerprint,
        fence: Some(call.request.fence),
    };
    let lock_timeout = call.request.deadline.map_or(LOCK_TIMEOUT, |deadline| deadline.min(LOCK_TIMEOUT));
    let mut client = service.pool.lend().await?;
    let transaction = client.transaction().await?;
    if service.sabotage == Some(Sabotage::NoKeys) {
        let answer = work(&transaction, call).await?;
        transaction.commit().await.map_err(Failure::of_commit)?;
        return Ok(Executed { answer, replayed: Some(false) });
    }
    let claim = match begin(&transaction, &request, lock_timeout).await? {
        Begin::Fresh(claim) => claim,
        Begin::Replay(stored) => return Ok(Executed { answer: stored.into_replay(), replayed: Some(true) }),
        Begin::KeyReused => {
            let answer = problem(422, "the idempotency key was used for another request");
            return Ok(Executed { answer, replayed: None });
        }
        Begin::InProgress => return Ok(Executed { answer: Answer::of(409, Outcome::InProgress), replayed: None }),
    };
    let answer = work(&transaction, call).await?;
    store(&transaction, claim, &answer).await?;
    transaction.commit().await.map_err(Failure::of_commit)?;
    Ok(Executed { answer, replayed: Some(false) })
}

fn stored_key(service: &Service, call: &StageCall) -> IdempotencyKey {
    let key = &call.request.key;
    if service.sabotage != Some(Sabotage::NoFence) {
        return key.clone();
    }
    let spoiled = format!("\"{key}/{}/{}\"", call.request.fence, call.request.attempt);
    IdempotencyKey::parse(Some(spoiled.as_bytes())).unwrap_or_else(|_| key.clone())
}

// The business: what the stage changes, and one row that says it was done. The two statements go out together.
async fn work(transaction: &Transaction<'_>, call: &StageCall) -> Result<Answer, Failure> {
    let premium = (call.stage == Stage::Pricing).then(|| premium(&call.body.payload));
    let change = change_quote(transaction, call, premium.as_deref());
    let (_, effect) = tokio::try_join!(change, insert_effect(transaction, call))?;
    let mut body = json!({ "stage": call.stage.name(), "effect": effect });
    if let Some(premium) = premium {
        body["premium"] = premium.into();
    }
    let mut answer = Answer::of(200, Outcome::Done).with("Content-Type", "application/json");
    answer.body = body.to_string().into_bytes();
    // A real service decides by its own business; here the quote says which way each stage sends it.
    match call.body.payload.get("next").and_then(|next| next.get(call.stage.name())?.as_str()) {
        Some(next) => Ok(answer.with_next(next)),
        None => Ok(answer),
    }
}

async fn change_quote(
    transaction: &Transaction<'_>,
    call: &StageCall,
    premium: Option<&str>,
) -> Result<u64, tokio_postgres::Error> {
    let change = match call.stage {
        Stage::Pricing => {
            "INSERT INTO quoting.quotes (group_id, quote_id, premium) VALUES ($1, $2, $3::numeric) \
             ON CONFLICT (group_id, quote_id) DO UPDATE SET premium = excluded.premium"
        }
        Stage::Approval => "UPDATE quoting.quotes SET approved_at = now() WHERE group_id = $1 AND quote_id = $2",
        Stage::Binding => "UPDATE quoting.quotes SET bound_at = now() WHERE group_id = $1 AND quote_id = $2",
        Stage::Issuing => "UPDATE quoting.quotes SET issued_at = now() WHERE group_id = $1 AND quote_id = $2",
    };
    let quote: [(&(dyn ToSql + Sync), Type); 3] =
        [(&call.body.group_id, Type::TEXT), (&call.body.quote_id, Type::TEXT), (&premium, Type::TEXT)];
    transaction.execute_typed(change, &quote).await
}

async fn insert_effect(transaction: &Transaction<'_>, call: &StageCall) -> Result<i64, tokio_postgres::Error> {
    let row = transaction
        .query_typed_one(
            "INSERT INTO quoting.stage_effects (group_id, quote_id, stage, fence, attempt) \
             VALUES ($1, $2, $3, $4, $5) RETURNING id",
            &[
                (&call.body.group_id, Type::TEXT),
                (&call.body.quote_id, Type::TEXT),
                (&call.stage.name(), Type::TEXT),
                (&call.request.fence, Type::INT8),
                (&call.attempt(), Type::INT4),
            ],
        )
        .await?;
    row.try_get(0)
}

// Two per cent of the sum insured, as decimal text: money is never a float.
fn premium(payload: &serde_json::Value) -> String {
    let sum_insured = payload.get("sum_insured").and_then(serde_json::Value::as_u64).unwrap_or(100_000);
    let cents = u128::from(sum_insured) * 2;
    format!("{}.{:02}", cents / 100, cents % 100)
}
