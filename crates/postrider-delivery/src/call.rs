//! What: makes one stage call: the request of a claim leaves, and what came back is reported as facts.
//! Where: between *claim* and *judge*.
//! Takes and gives: a [`StageCall`]; gives an [`Outcome`].
//! Never: retries, follows a redirect, reads an answer's body for meaning, or says "not sent" where that is in doubt.

use crate::endpoint::Endpoint;
use crate::exchange::{HttpClient, HttpSettings, Outgoing, Reply, Unanswered};
use crate::header;
use hyper::HeaderMap;
use postrider_core::error::Result;
use postrider_core::outcome::{Answer, Declared, NotSent, Outcome};
use postrider_core::ports::{BoxFuture, StageCall, StageCaller};
use postrider_core::work::StageName;
use std::collections::BTreeMap;

/// Calls stages over HTTP/1.1, with or without TLS.
#[derive(Debug)]
pub struct HttpStageCaller {
    client: HttpClient,
    endpoints: BTreeMap<StageName, Endpoint>,
}

impl HttpStageCaller {
    /// # Errors
    /// `Configuration` where an endpoint is `https` and there are no usable root certificates.
    pub fn new(mut endpoints: BTreeMap<StageName, Endpoint>, settings: &HttpSettings) -> Result<HttpStageCaller> {
        let client = HttpClient::new(settings, endpoints.values())?;
        for (stage, endpoint) in &mut endpoints {
            endpoint.headers.insert(header::POSTRIDER_STAGE, header::text(stage.as_str()));
        }
        Ok(HttpStageCaller { client, endpoints })
    }

    async fn exchange(&self, call: StageCall) -> Outcome {
        let Some(endpoint) = self.endpoints.get(&call.stage) else {
            tracing::error!(stage = %call.stage, "a stage without an endpoint was called");
            return Outcome::NotSent(NotSent::Resolve);
        };
        let outgoing =
            Outgoing { headers: headers_of(endpoint, &call), body: call.body.clone(), timeout: call.timeout };
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

fn headers_of(endpoint: &Endpoint, call: &StageCall) -> HeaderMap {
    let mut headers = endpoint.headers.clone();
    headers.insert(header::IDEMPOTENCY_KEY, header::quoted(&call.idempotency_key));
    headers.insert(header::POSTRIDER_ATTEMPT, call.attempt.into());
    headers.insert(header::POSTRIDER_FENCE, call.fence.into());
    headers.insert(header::TRACEPARENT, header::text(&call.trace.to_string()));
    if let Some(definition) = &call.definition {
        headers.insert(header::POSTRIDER_DEFINITION, header::text(definition));
    }
    headers
}

fn answer_of(reply: &Reply) -> Answer {
    Answer {
        status: reply.status,
        declared: header::single(&reply.headers, &header::POSTRIDER_OUTCOME).and_then(Declared::parse),
        replayed: header::single(&reply.headers, &header::IDEMPOTENCY_REPLAYED) == Some("true"),
        next: header::single(&reply.headers, &header::POSTRIDER_NEXT).map(header::decoded),
        retry_after: header::retry_after(&reply.headers),
    }
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
