//! What each path answers.

use crate::console::readiness::obstacles;
use crate::console::report::{PausedReport, Report};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use postrider_engine::{Telemetry, World};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the HTTP server answers from.
#[derive(Debug)]
pub(crate) struct Console {
    telemetry: Arc<Telemetry>,
    world: Arc<dyn World>,
    registry: Registry,
    heartbeat_overdue: Duration,
    /// The origin of each stage's endpoint.
    endpoints: BTreeMap<String, String>,
}

impl Console {
    pub(crate) fn new(telemetry: Arc<Telemetry>, world: Arc<dyn World>, heartbeat_overdue: Duration) -> Console {
        let mut registry = Registry::with_prefix("postrider");
        telemetry.register(&mut registry);
        Console { telemetry, world, registry, heartbeat_overdue, endpoints: BTreeMap::new() }
    }

    /// Says of each stage where its endpoint is.
    #[must_use]
    pub(crate) fn with_endpoints(self, endpoints: BTreeMap<String, String>) -> Console {
        Console { endpoints, ..self }
    }

    /// Answers a request; its body is not read.
    pub(super) fn answer<B>(&self, request: &Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
        let reading = request.method() == Method::GET || request.method() == Method::HEAD;
        Ok(match request.uri().path() {
            "/healthz" | "/readyz" | "/metrics" | "/status" if !reading => {
                let mut refusal = respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "Only GET is answered here.\n".into());
                refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
                refusal
            }
            "/healthz" => respond(StatusCode::OK, TEXT, "alive\n".into()),
            "/readyz" => self.readiness(),
            "/metrics" => self.metrics(),
            "/status" => self.status(),
            _ => respond(StatusCode::NOT_FOUND, TEXT, "Here are /healthz, /readyz, /metrics and /status.\n".into()),
        })
    }

    fn readiness(&self) -> Response<Full<Bytes>> {
        let obstacles = self.obstacles();
        if obstacles.is_empty() {
            // What a person holds back is no reason to take the process out of service.
            let paused = self.telemetry.status().paused;
            let lines = paused.iter().map(|paused| format!("{}\n", PausedReport::new(paused)));
            return respond(StatusCode::OK, TEXT, format!("ready\n{}", lines.collect::<String>()));
        }
        respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, obstacles.join("\n") + "\n")
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => respond(StatusCode::OK, METRICS, text),
            Err(_) => respond(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "The metrics cannot be written.\n".into()),
        }
    }

    fn status(&self) -> Response<Full<Bytes>> {
        let report = Report::new(&self.telemetry, self.world.now(), self.obstacles(), &self.endpoints);
        match serde_json::to_string(&report) {
            Ok(text) => respond(StatusCode::OK, JSON, text + "\n"),
            Err(_) => respond(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "The status cannot be written.\n".into()),
        }
    }

    fn obstacles(&self) -> Vec<String> {
        obstacles(&self.telemetry.status(), self.world.now(), self.heartbeat_overdue)
    }
}

fn respond(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use super::*;
    use postrider_engine::SystemWorld;

    fn console() -> Console {
        Console::new(Arc::default(), Arc::new(SystemWorld::new(1)), Duration::from_secs(30))
    }

    fn status_of(console: &Console, method: Method, path: &str) -> u16 {
        let request = Request::builder().method(method).uri(path).body(()).unwrap();
        console.answer(&request).unwrap().status().as_u16()
    }

    #[test]
    fn alive_is_not_ready() {
        let console = console();
        assert_eq!(status_of(&console, Method::GET, "/healthz"), 200);
        assert_eq!(status_of(&console, Method::GET, "/readyz"), 503);
        console.telemetry.update(|status| {
            status.connected = true;
            status.work_ready = true;
            status.heartbeat_seen_at = Some(console.world.now());
        });
        assert_eq!(status_of(&console, Method::GET, "/readyz"), 200);
    }

    #[test]
    fn only_reading_is_answered() {
        let console = console();
        assert_eq!(status_of(&console, Method::POST, "/status"), 405);
        assert_eq!(status_of(&console, Method::HEAD, "/status"), 200);
        assert_eq!(status_of(&console, Method::GET, "/"), 404);
        assert_eq!(status_of(&console, Method::GET, "/metrics"), 200);
    }
}
