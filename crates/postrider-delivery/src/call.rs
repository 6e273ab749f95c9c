//! What: makes one stage call: the request of a claim leaves, and what came back is reported as facts.
//! Where: between *claim* and *judge*.
//! Takes and gives: a [`StageCall`]; gives an [`Outcome`].
//! Never: retries, follows a redirect, reads an answer's body for meaning, or says "not sent" where that is in doubt.

use crate::credentials::{Presented, present};
use crate::endpoint::Endpoint;
use crate::exchange::{HttpClient, HttpSettings, Outgoing, Reply, Unanswered};
use crate::from_files::FromFiles;
use crate::header;
use hyper::HeaderMap;
use postrider_core::error::Result;
use postrider_core::outcome::{Answer, Declared, NotSent, Outcome};
use postrider_core::ports::{BoxFuture, StageCall, StageCaller};
use postrider_core::stage::Step;
use std::collections::BTreeMap;

/// Calls stages over HTTP/1.1, with or without TLS.
#[derive(Debug)]
pub struct HttpStageCaller {
    client: HttpClient,
    endpoints: BTreeMap<Step, (Endpoint, FromFiles<Presented>)>,
}

impl HttpStageCaller {
    /// # Errors
    /// `Configuration` where a file of credentials cannot be used, or an endpoint is `https` and there are no usable root certificates.
    pub fn new(endpoints: BTreeMap<Step, Endpoint>, settings: &HttpSettings) -> Result<HttpStageCaller> {
        let client = HttpClient::new(settings, endpoints.values())?;
        let presenting = endpoints.into_iter().map(|(step, mut endpoint)| {
            endpoint.headers.insert(header::POSTRIDER_STAGE, header::text(step.stage.as_str()));
            endpoint.headers.insert(header::POSTRIDER_DEFINITION, header::text(step.definition.as_str()));
            let presented = present(&endpoint, &settings.files)?;
            Ok((step, (endpoint, presented)))
        });
        Ok(HttpStageCaller { client, endpoints: presenting.collect::<Result<_>>()? })
    }

    async fn exchange(&self, call: StageCall) -> Outcome {
        let step = Step { definition: call.definition.clone(), stage: call.stage.clone() };
        let Some((endpoint, presented)) = self.endpoints.get(&step) else {
            tracing::error!(%step, "a stage without an endpoint was called");
            return Outcome::NotSent(NotSent::Resolve);
        };
        let headers = headers_of(&presented.current(), &call);
        let outgoing = Outgoing { headers, body: call.body.clone(), timeout: call.timeout };
        let outcome = match self.client.send(endpoint, outgoing).await {
            Ok(reply) => Outcome::Answered(answer_of(&reply)),
            Err(Unanswered::NotSent(reason)) => Outcome::NotSent(reason),
            Err(Unanswered::Lost(reason)) => Outcome::Lost(reason),
        };
        tracing::debug!(stage = %call.stage, trace = %call.trace.id(), attempt = call.attempt, ?outcome, "a stage call ended");
        outcome
    }
}

impl StageCaller for HttpStageCaller {
    fn call(&self, call: StageCall) -> BoxFuture<'_, Outcome> {
        Box::pin(self.exchange(call))
    }
}

fn headers_of(presented: &Presented, call: &StageCall) -> HeaderMap {
    let mut headers = presented.headers.clone();
    headers.insert(header::IDEMPOTENCY_KEY, header::quoted(&call.idempotency_key));
    headers.insert(header::POSTRIDER_ATTEMPT, call.attempt.into());
    headers.insert(header::POSTRIDER_FENCE, call.fence.into());
    headers.insert(header::TRACEPARENT, header::text(&call.trace.to_string()));
    if !presented.signers.is_empty() {
        sign(presented, call, &mut headers);
    }
    headers
}

/// The id is the key. A full stop would end it in what is signed, so that one request could pass for another.
fn sign(presented: &Presented, call: &StageCall, headers: &mut HeaderMap) {
    let id = call.idempotency_key.replace('.', "%2E");
    let timestamp = call.made_at.0.div_euclid(1_000_000);
    let signature = presented.signers.sign(&id, timestamp, &call.body);
    headers.insert(header::WEBHOOK_ID, header::text(&id));
    headers.insert(header::WEBHOOK_TIMESTAMP, timestamp.into());
    headers.insert(header::WEBHOOK_SIGNATURE, header::text(&signature));
}

fn answer_of(reply: &Reply) -> Answer {
    Answer {
        status: reply.status,
        declared: header::single(&reply.headers, &header::POSTRIDER_OUTCOME).and_then(Declared::parse),
        replayed: header::single(&reply.headers, &header::IDEMPOTENCY_REPLAYED) == Some("true"),
        next: header::single(&reply.headers, &header::POSTRIDER_NEXT).map(header::decoded),
        retry_after: header::retry_after(&reply.headers),
        body_sha256: reply.body_sha256,
    }
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
