//! A consumer of events that keeps what it gets, and a sink that writes to it.

use super::faults::{Fault, Point, Side};
use super::shared::{Bug, Process, Sim};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::event::Event;
use postrider_core::history::Record;
use postrider_core::ports::{BoxFuture, Sink, Written};
use postrider_core::position::Position;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// What one consumer has.
#[derive(Debug)]
pub struct Consumer {
    pub name: Arc<str>,
    /// It keeps the position of its last event with its data.
    keeps_position: bool,
    has: Mutex<Has>,
}

#[derive(Debug, Default)]
struct Has {
    ids: BTreeSet<Arc<str>>,
    order: Vec<Arc<str>>,
    position: Option<Position>,
}

#[derive(Debug)]
pub struct FakeSink {
    pub process: Arc<Process>,
    pub consumer: Arc<Consumer>,
}

impl Consumer {
    pub fn new(name: &str, keeps_position: bool) -> Arc<Consumer> {
        Arc::new(Consumer { name: name.into(), keeps_position, has: Mutex::default() })
    }

    pub fn has(&self, id: &str) -> bool {
        self.has.lock().unwrap().ids.contains(id)
    }

    /// What it has, in the order of arrival.
    pub fn ids(&self) -> Vec<String> {
        self.has.lock().unwrap().order.iter().map(ToString::to_string).collect()
    }

    fn take(&self, sim: &Sim, event: &Event) {
        if sim.has(Bug::SinkLoses) && sim.one_in(20) {
            return;
        }
        let mut has = self.has.lock().unwrap();
        if has.ids.insert(event.id.clone()) {
            has.order.push(event.id.clone());
        }
        has.position = has.position.max(Some(event.position));
        drop(has);
        sim.record(Record::EventDelivered { consumer: self.name.clone(), id: event.id.clone() });
    }
}

impl FakeSink {
    /// Takes the events before the first that it does not take, and of the later ones those of other keys.
    fn take_part(&self, events: &[Event]) -> usize {
        let sim = &self.process.sim;
        let settled = usize::try_from(sim.below(events.len() as u64)).unwrap();
        let (front, rest) = events.split_at(settled);
        front.iter().for_each(|event| self.consumer.take(sim, event));
        // A sink that keeps one position cannot have later ones.
        if !self.consumer.keeps_position {
            let mut refused = BTreeSet::new();
            for event in rest {
                if refused.is_empty() || refused.contains(&event.key) || sim.one_in(2) {
                    refused.insert(event.key.clone());
                } else {
                    self.consumer.take(sim, event);
                }
            }
        }
        settled
    }
}

impl Sink for FakeSink {
    fn position(&mut self) -> BoxFuture<'_, Result<Option<Position>>> {
        Box::pin(async move {
            let sim = &self.process.sim;
            self.process.point(Point::SinkPosition, Side::Dispatch).await;
            sim.latency().await;
            if sim.strikes(1_000) {
                sim.count(Fault::SinkUnavailable);
                return Err(unavailable());
            }
            let last = self.consumer.has.lock().unwrap().position.filter(|_| self.consumer.keeps_position);
            let position = last.map(Position::just_before);
            self.process.point(Point::SinkPosition, Side::Completion).await;
            Ok(position)
        })
    }

    fn write<'a>(&'a mut self, events: &'a [Event]) -> BoxFuture<'a, Written> {
        Box::pin(async move {
            let sim = &self.process.sim;
            let failed = |fault, settled| {
                sim.count(fault);
                Written { settled, error: Some(unavailable()) }
            };
            self.process.point(Point::SinkWrite, Side::Dispatch).await;
            sim.latency().await;
            if sim.strikes(1_000) {
                return failed(Fault::SinkUnavailable, 0);
            }
            if sim.strikes(1_500) {
                return failed(Fault::SinkPartial, self.take_part(events));
            }
            if sim.has(Bug::SinkReorders) {
                events.iter().rev().for_each(|event| self.consumer.take(sim, event));
            } else {
                events.iter().for_each(|event| self.consumer.take(sim, event));
            }
            if sim.strikes(1_000) {
                return failed(Fault::SinkReplyLost, 0);
            }
            self.process.point(Point::SinkWrite, Side::Completion).await;
            Written { settled: events.len(), error: None }
        })
    }
}

fn unavailable() -> Error {
    Error::new(ErrorKind::SinkUnavailable, "the simulated sink is not there")
}
