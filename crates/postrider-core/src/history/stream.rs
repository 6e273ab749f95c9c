//! I2 (events), I6 and I9: what happened to the log.

use super::{ConfirmPolicy, Invariant, Record, Rules, Violation, report};
use crate::position::{Lsn, Position};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the records say of events and confirms so far.
#[derive(Debug)]
pub(super) struct Stream<'a> {
    consumers: &'a [Arc<str>],
    events: BTreeMap<&'a str, Place<'a>>,
    /// How many events each ordering key has had.
    counts: BTreeMap<&'a str, usize>,
    delivered: BTreeSet<(&'a str, &'a str)>,
    /// By consumer and ordering key: how many first deliveries there were.
    progress: BTreeMap<(&'a str, &'a str), usize>,
    last: Option<Position>,
}

/// Where an event stands among those of its key.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    key: Option<&'a str>,
    number: usize,
}

impl<'a> Stream<'a> {
    pub(super) fn new(rules: &'a Rules) -> Stream<'a> {
        Stream {
            consumers: &rules.consumers,
            events: BTreeMap::new(),
            counts: BTreeMap::new(),
            delivered: BTreeSet::new(),
            progress: BTreeMap::new(),
            last: None,
        }
    }

    pub(super) fn take(&mut self, record: &'a Record, found: &mut Vec<Violation>) {
        match record {
            Record::EventCommitted { id, position, key } => {
                assert!(self.last <= Some(*position), "events are recorded in commit order");
                self.last = Some(*position);
                let count = self.counts.entry(key.as_deref().unwrap_or_default()).or_default();
                self.events.insert(id, Place { key: key.as_deref(), number: *count });
                *count += 1;
            }
            Record::EventDelivered { consumer, id } => self.deliver(consumer, id, found),
            Record::Confirmed { slot, lsn, durable, settled, policy } => {
                confirm(slot, *lsn, *durable, found);
                if *policy == ConfirmPolicy::Sinks {
                    settled.iter().for_each(|(consumer, settled)| {
                        confirm(&format!("{slot} ({consumer})"), *lsn, *settled, found)
                    });
                }
            }
            _ => {}
        }
    }

    /// Everything has come to rest: what a consumer does not have is lost.
    pub(super) fn end(&self, found: &mut Vec<Violation>) {
        for consumer in self.consumers {
            for id in self.events.keys() {
                if !self.delivered.contains(&(&**consumer, *id)) {
                    report(found, Invariant::I2, format!("event {id} never came to consumer {consumer}"));
                }
            }
        }
    }

    fn deliver(&mut self, consumer: &'a str, id: &'a str, found: &mut Vec<Violation>) {
        if !self.delivered.insert((consumer, id)) {
            return;
        }
        let Some(Place { key, number }) = self.events.get(id).copied() else {
            return report(found, Invariant::I6, format!("consumer {consumer} got event {id} that was not committed"));
        };
        let Some(key) = key else { return };
        let next = self.progress.entry((consumer, key)).or_default();
        if number != *next {
            report(
                found,
                Invariant::I6,
                format!("consumer {consumer} got event {id} of key {key} out of commit order"),
            );
        }
        *next = (*next).max(number + 1);
    }
}

fn confirm(what: &str, lsn: Lsn, safe: Lsn, found: &mut Vec<Violation>) {
    if lsn > safe {
        report(found, Invariant::I9, format!("slot {what} was confirmed at {lsn}, and only {safe} is safe"));
    }
}
