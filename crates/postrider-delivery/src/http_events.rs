//! What: delivers events over HTTP, one request each, several keys at once and each key in order.
//! Where: *write*, between *batch* and *settle*.
//! Takes and gives: a batch of [`Event`]s; gives how many from the front are settled, and why the rest is not.
//! Never: sends the next event of a key before the one before is settled, follows a redirect, or retries by itself.

use crate::credentials::{Presented, present};
use crate::endpoint::Endpoint;
use crate::event_json::render;
use crate::exchange::{HttpClient, HttpSettings, Outgoing, Reply, Unanswered};
use crate::from_files::FromFiles;
use crate::header;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::HeaderMap;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::event::Event;
use postrider_core::outcome::{Lost, NotSent};
use postrider_core::ports::{BoxFuture, Sink, Written};
use postrider_core::position::Position;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct HttpEventSettings {
    pub http: HttpSettings,
    /// From the start of a request to the last byte of its answer.
    pub timeout: Duration,
    /// Requests in flight at once, which is also the number of keys.
    pub in_flight_max: usize,
}

impl Default for HttpEventSettings {
    fn default() -> HttpEventSettings {
        HttpEventSettings { http: HttpSettings::default(), timeout: Duration::from_secs(30), in_flight_max: 32 }
    }
}

/// A sink that posts each event to an endpoint, as [`render`] has it. A 2xx settles it.
///
/// The receiver knows a repetition by `webhook-id`, the event's id. `webhook-timestamp` is the time of the commit, so that
/// a repetition is the same request. 408, 425, 429, 5xx and no answer are `SinkUnavailable`; every other answer is
/// `SinkRefused` and concerns the first event that is not settled.
#[derive(Debug)]
pub struct HttpEventSink {
    client: HttpClient,
    endpoint: Endpoint,
    presented: FromFiles<Presented>,
    timeout: Duration,
    in_flight_max: usize,
    /// Events of the last batch that are settled behind one that is not: when they come again they are not sent again.
    /// A position alone does not tell a logical message from the change after it.
    settled_ahead: BTreeSet<(Position, Arc<str>)>,
}

impl HttpEventSink {
    /// # Errors
    /// `Configuration` where a file of credentials cannot be used, or the endpoint is `https` and there are no usable root certificates.
    pub fn new(endpoint: Endpoint, settings: &HttpEventSettings) -> Result<HttpEventSink> {
        Ok(HttpEventSink {
            client: HttpClient::new(&settings.http, [&endpoint])?,
            presented: present(&endpoint, &settings.http.files)?,
            endpoint,
            timeout: settings.timeout,
            in_flight_max: settings.in_flight_max.max(1),
            settled_ahead: BTreeSet::new(),
        })
    }

    async fn deliver(&mut self, events: &[Event]) -> Written {
        let mut progress = Progress::new(events, &self.settled_ahead);
        let mut lanes = lanes_of(events, &progress.settled).into_iter();
        let halted = AtomicBool::new(false);
        let mut in_flight = FuturesUnordered::new();
        loop {
            while in_flight.len() < self.in_flight_max
                && !halted.load(Ordering::Relaxed)
                && let Some(lane) = lanes.next()
            {
                in_flight.push(self.deliver_lane(events, lane, &halted));
            }
            match in_flight.next().await {
                Some(end) => progress.note(end),
                None => break,
            }
        }
        drop(in_flight);
        self.settled_ahead = progress.settled_ahead(events);
        progress.into_written()
    }

    /// Sends the events of one key one after the other, up to the first that is not settled.
    async fn deliver_lane(&self, events: &[Event], lane: Vec<usize>, halted: &AtomicBool) -> LaneEnd {
        let mut settled = Vec::with_capacity(lane.len());
        for index in lane {
            let Some(event) = events.get(index) else { continue };
            if halted.load(Ordering::Relaxed) {
                break;
            }
            if let Err(error) = self.post(event).await {
                // An endpoint that is down is down for all keys; one that refuses an event refuses that event.
                if error.kind() == ErrorKind::SinkUnavailable {
                    halted.store(true, Ordering::Relaxed);
                }
                return LaneEnd { settled, failure: Some((index, error)) };
            }
            settled.push(index);
        }
        LaneEnd { settled, failure: None }
    }

    async fn post(&self, event: &Event) -> Result<()> {
        let mut body = Vec::new();
        render(event, &mut body);
        let headers = headers_of(&self.presented.current(), event);
        let outgoing = Outgoing { headers, body: body.into(), timeout: self.timeout };
        judge_reply(event, self.client.send(&self.endpoint, outgoing).await)
    }
}

impl Sink for HttpEventSink {
    /// An endpoint keeps no position for us.
    fn position(&mut self) -> BoxFuture<'_, Result<Option<Position>>> {
        Box::pin(async { Ok(None) })
    }

    fn write<'a>(&'a mut self, events: &'a [Event]) -> BoxFuture<'a, Written> {
        Box::pin(self.deliver(events))
    }
}

struct LaneEnd {
    settled: Vec<usize>,
    failure: Option<(usize, Error)>,
}

/// What became of each event of a batch.
struct Progress {
    settled: Vec<bool>,
    failures: Vec<(usize, Error)>,
}

impl Progress {
    fn new(events: &[Event], ahead: &BTreeSet<(Position, Arc<str>)>) -> Progress {
        let is_settled = |event: &Event| !ahead.is_empty() && ahead.contains(&identity(event));
        Progress { settled: events.iter().map(is_settled).collect(), failures: Vec::new() }
    }

    fn note(&mut self, end: LaneEnd) {
        for index in end.settled {
            if let Some(flag) = self.settled.get_mut(index) {
                *flag = true;
            }
        }
        self.failures.extend(end.failure);
    }

    fn settled_from_front(&self) -> usize {
        self.settled.iter().take_while(|settled| **settled).count()
    }

    fn settled_ahead(&self, events: &[Event]) -> BTreeSet<(Position, Arc<str>)> {
        let behind = events.iter().zip(&self.settled).skip(self.settled_from_front());
        behind.filter(|(_, settled)| **settled).map(|(event, _)| identity(event)).collect()
    }

    /// The error is the one of the first event that is not settled. That event may not have been tried, because another
    /// found the endpoint down: then it is that one's.
    fn into_written(mut self) -> Written {
        let settled = self.settled_from_front();
        let own = self.failures.iter().position(|(index, _)| *index == settled);
        let down = || self.failures.iter().position(|(_, error)| error.kind() == ErrorKind::SinkUnavailable);
        let at = if settled == self.settled.len() { None } else { own.or_else(down) };
        Written { settled, error: at.map(|at| self.failures.swap_remove(at).1) }
    }
}

fn identity(event: &Event) -> (Position, Arc<str>) {
    (event.position, Arc::clone(&event.id))
}

/// Indices of the events that are to be sent, by key, in the order of the first of each key. One without a key is by itself.
fn lanes_of(events: &[Event], settled: &[bool]) -> Vec<Vec<usize>> {
    let mut lanes: Vec<Vec<usize>> = Vec::new();
    let mut lane_of_key: HashMap<&str, usize> = HashMap::new();
    for (index, (event, _)) in events.iter().zip(settled).enumerate().filter(|(_, (_, settled))| !**settled) {
        let next = lanes.len();
        let lane = event.key.as_deref().map_or(next, |key| *lane_of_key.entry(key).or_insert(next));
        match lanes.get_mut(lane) {
            Some(lane) => lane.push(index),
            None => lanes.push(vec![index]),
        }
    }
    lanes
}

fn headers_of(presented: &Presented, event: &Event) -> HeaderMap {
    let mut headers = presented.headers.clone();
    headers.insert(header::WEBHOOK_ID, header::text(&event.id));
    headers.insert(header::WEBHOOK_TIMESTAMP, event.committed_at.0.div_euclid(1_000_000).into());
    headers.insert(header::POSTRIDER_POSITION, header::text(&event.position.to_string()));
    headers
}

fn judge_reply(event: &Event, result: Result<Reply, Unanswered>) -> Result<()> {
    let id = &event.id;
    let unavailable =
        |detail: String| Error::new(ErrorKind::SinkUnavailable, "endpoint did not take an event").with_detail(detail);
    match result {
        Ok(Reply { status: 200..=299, .. }) => Ok(()),
        Ok(Reply { status: status @ (408 | 425 | 429 | 500..=599), headers, .. }) => {
            let wait = header::retry_after(&headers).map(|span| format!(" It asks to wait for {} s.", span.as_secs()));
            Err(unavailable(format!("It answered {status} to event {id}.{}", wait.unwrap_or_default())))
        }
        Ok(Reply { status, .. }) => Err(Error::new(ErrorKind::SinkRefused, "endpoint refused an event")
            .with_detail(format!("It answered {status} to event {id}."))),
        Err(Unanswered::NotSent(reason)) => {
            Err(unavailable(format!("Event {id} was not sent: {}.", why_not_sent(reason))))
        }
        Err(Unanswered::Lost(Lost::Timeout)) => {
            Err(unavailable(format!("Event {id} was sent, and no answer came within the time-out.")))
        }
        Err(Unanswered::Lost(Lost::Reset)) => {
            Err(unavailable(format!("Event {id} was sent, and the connection was lost before the whole answer came.")))
        }
    }
}

fn why_not_sent(reason: NotSent) -> &'static str {
    match reason {
        NotSent::Resolve => "the host name has no address",
        NotSent::Refused => "the connection was refused",
        NotSent::ConnectTimeout => "no connection came about within the time-out",
        NotSent::Tls => "the TLS handshake failed",
    }
}

#[cfg(test)]
#[path = "http_events_tests.rs"]
mod tests;
