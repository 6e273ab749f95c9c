//! I2 (events), I6 and I9: what happened to the log.

use super::{ConfirmPolicy, Invariant, Record, Rules, Violation, violation};
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
    /// Where it was committed.
    at: usize,
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

    pub(super) fn take(&mut self, at: usize, record: &'a Record, found: &mut Vec<Violation>) {
        match record {
            Record::EventCommitted { id, position, key } => {
                assert!(self.last <= Some(*position), "events are recorded in commit order");
                self.last = Some(*position);
                let count = self.counts.entry(key.as_deref().unwrap_or_default()).or_default();
                self.events.insert(id, Place { key: key.as_deref(), number: *count, at });
                *count += 1;
            }
            Record::EventDelivered { consumer, id } => self.deliver(at, consumer, id, found),
            Record::Confirmed { slot, lsn, durable, settled, policy } => {
                found.extend(confirm(at, slot, *lsn, *durable));
                if *policy == ConfirmPolicy::Sinks {
                    let late = |(consumer, settled): &(Arc<str>, Lsn)| {
                        confirm(at, &format!("{slot} ({consumer})"), *lsn, *settled)
                    };
                    found.extend(settled.iter().filter_map(late));
                }
            }
            _ => {}
        }
    }

    /// Everything has come to rest: what a consumer does not have is lost.
    pub(super) fn end(&self, found: &mut Vec<Violation>) {
        for consumer in self.consumers {
            for (id, place) in &self.events {
                if !self.delivered.contains(&(&**consumer, *id)) {
                    let sentence = format!("event {id} never came to consumer {consumer}");
                    found.push(violation(Invariant::I2, id, sentence, &[place.at]));
                }
            }
        }
    }

    fn deliver(&mut self, at: usize, consumer: &'a str, id: &'a str, found: &mut Vec<Violation>) {
        if !self.delivered.insert((consumer, id)) {
            return;
        }
        let Some(Place { key, number, at: committed }) = self.events.get(id).copied() else {
            let sentence = format!("consumer {consumer} got event {id} that was not committed");
            return found.push(violation(Invariant::I6, id, sentence, &[at]));
        };
        let Some(key) = key else { return };
        let next = self.progress.entry((consumer, key)).or_default();
        if number != *next {
            let sentence = format!("consumer {consumer} got event {id} of key {key} out of commit order");
            found.push(violation(Invariant::I6, id, sentence, &[committed, at]));
        }
        *next = (*next).max(number + 1);
    }
}

fn confirm(at: usize, what: &str, lsn: Lsn, safe: Lsn) -> Option<Violation> {
    let sentence = || format!("slot {what} was confirmed at {lsn}, and only {safe} is safe");
    (lsn > safe).then(|| violation(Invariant::I9, what, sentence(), &[at]))
}
