//! What is promised, checked over what happened: one checker for the simulation, the tests and whoever keeps such records.
//!
//! A history is a list of [`Record`]s in the order in which they happened. [`check`] walks over it once and returns every
//! [`Violation`] of the invariants I1 to I9 of the stage protocol. It knows nothing of the engine: the records are written
//! by those who saw the facts (the table, the receivers, the sinks, the slot).

pub mod lines;
mod rows;
mod stream;

use crate::position::{Lsn, Position};
use crate::work::{OwnerId, StageName, WorkKey};
use rows::Rows;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use stream::Stream;

/// One fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A row was committed in its first stage, with fence 0.
    Submitted { key: WorkKey, stage: StageName },
    /// A claim was committed, chained ones too.
    ClaimWritten { key: WorkKey, stage: StageName, epoch: u32, fence: i64, owner: OwnerId },
    /// Somebody who holds no claim raised the fence: an operator, or the take-over of a row at its limit.
    FenceRaised { key: WorkKey, fence: i64 },
    /// A person put a parked row back to work: the fence rises, and its stage has a budget of attempts once more.
    Resumed { key: WorkKey, fence: i64 },
    /// A receiver got a whole request.
    RequestReceived { work: WorkStep, idempotency_key: Arc<str>, fingerprint: u64, attempt: u32, fence: i64 },
    /// A receiver committed the business effect of a stage.
    EffectCommitted { work: WorkStep },
    /// A receiver stored its answer under a key; the hash is over status and body.
    AnswerStored { idempotency_key: Arc<str>, fingerprint: u64, body_hash: u64 },
    /// A receiver answered a request as done; the hash is over status and body.
    AnswerGiven { idempotency_key: Arc<str>, fingerprint: u64, body_hash: u64 },
    /// An outcome was committed under the fence of its claim. `deferred`: the row was put off, and this counted as a deferral.
    CheckpointWritten { key: WorkKey, stage: StageName, fence: i64, owner: OwnerId, deferred: bool },
    /// The row is in another stage than before, or in the same one anew.
    StageEntered { key: WorkKey, stage: StageName, cause: Cause },
    /// The row waits for a person.
    Parked { key: WorkKey, reason: String },
    /// `closed_at` was set.
    Closed { key: WorkKey },
    /// An outbox event was committed. Records stand in commit order.
    EventCommitted { id: Arc<str>, position: Position, key: Option<Arc<str>> },
    /// A consumer has an event, for the first time or again.
    EventDelivered { consumer: Arc<str>, id: Arc<str> },
    /// A receiver is about to make an external call, known by its own reference.
    IntentWritten { reference: Arc<str> },
    /// The external call left.
    IntentSent { reference: Arc<str> },
    /// What came of the external call is known.
    OutcomeWritten { reference: Arc<str> },
    /// The provider was asked what became of the call.
    LookedUp { reference: Arc<str> },
    /// The slot was confirmed. `settled`: for each required consumer, the LSN below which it has everything.
    Confirmed { slot: Arc<str>, lsn: Lsn, durable: Lsn, settled: Vec<(Arc<str>, Lsn)>, policy: ConfirmPolicy },
}

/// One stage of one row in one epoch: what a request, an effect and a budget are about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkStep {
    pub key: WorkKey,
    pub stage: StageName,
    pub epoch: u32,
}

/// Why a row came into a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The stage before succeeded.
    Success,
    Compensation,
    /// A person's record says so.
    Operator,
}

/// What a confirm must wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfirmPolicy {
    /// The journal's fsync and every required consumer.
    Sinks,
    /// The journal's fsync.
    Journal,
}

/// What the invariants are measured against.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// The stages in their order.
    pub stages: Vec<StageRule>,
    /// The consumers that must get every event.
    pub consumers: Vec<Arc<str>>,
    /// The history ends where everything has come to rest, so that what is missing is lost.
    pub at_rest: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageRule {
    pub name: StageName,
    pub attempt_limit: u32,
}

/// The invariants of the stage protocol, section 10.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// Each business effect at most once.
    I1,
    /// Each accepted submission ends terminal or parked with a reason, each committed event at every consumer.
    I2,
    /// The fence strictly rises per row; one writer per value.
    I3,
    /// A stage never moves back but by compensation or an operator's record.
    I4,
    /// Same key, same fingerprint, same stored bytes.
    I5,
    /// Per ordering key, first delivery in commit order.
    I6,
    /// Requests per stage are at most the limit and the deferrals.
    I7,
    /// No intent without an outcome is sent again without a look-up in between.
    I8,
    /// Nothing is confirmed that is not durable where it must be.
    I9,
}

impl Invariant {
    pub const ALL: [Invariant; 9] = [
        Invariant::I1,
        Invariant::I2,
        Invariant::I3,
        Invariant::I4,
        Invariant::I5,
        Invariant::I6,
        Invariant::I7,
        Invariant::I8,
        Invariant::I9,
    ];
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One broken promise, told in a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub invariant: Invariant,
    /// The row's key with slashes, the event's id, the idempotency key, the call's reference, or the slot.
    pub about: String,
    pub sentence: String,
    /// The records that show it, by their place in the history: what it contradicts, and itself.
    pub records: Vec<usize>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.sentence)
    }
}

/// Every violation, in the order in which the records show them; what is missing at the end comes last.
pub fn check(records: &[Record], rules: &Rules) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut rows = Rows::new(rules);
    let mut stream = Stream::new(rules);
    let mut answers = Answers::default();
    let mut intents = Intents::default();
    for (at, record) in records.iter().enumerate() {
        rows.take(at, record, &mut found);
        stream.take(at, record, &mut found);
        answers.take(at, record, &mut found);
        intents.take(at, record, &mut found);
    }
    if rules.at_rest {
        rows.end(&mut found);
        stream.end(&mut found);
    }
    found
}

/// I5.
#[derive(Debug, Default)]
struct Answers<'a> {
    /// Each with the record that brought it first.
    fingerprints: BTreeMap<&'a str, (u64, usize)>,
    bodies: BTreeMap<&'a str, (u64, usize)>,
}

impl<'a> Answers<'a> {
    fn take(&mut self, at: usize, record: &'a Record, found: &mut Vec<Violation>) {
        match record {
            Record::RequestReceived { idempotency_key, fingerprint, .. } => {
                self.fingerprint(at, idempotency_key, *fingerprint, found);
            }
            Record::AnswerStored { idempotency_key, fingerprint, body_hash }
            | Record::AnswerGiven { idempotency_key, fingerprint, body_hash } => {
                self.fingerprint(at, idempotency_key, *fingerprint, found);
                let (first, before) = *self.bodies.entry(idempotency_key).or_insert((*body_hash, at));
                if first != *body_hash {
                    let sentence = format!("key {idempotency_key} was answered in two ways");
                    found.push(violation(Invariant::I5, idempotency_key, sentence, &[before, at]));
                }
            }
            _ => {}
        }
    }

    fn fingerprint(&mut self, at: usize, key: &'a str, fingerprint: u64, found: &mut Vec<Violation>) {
        let (first, before) = *self.fingerprints.entry(key).or_insert((fingerprint, at));
        if first != fingerprint {
            let sentence = format!("key {key} came with two fingerprints");
            found.push(violation(Invariant::I5, key, sentence, &[before, at]));
        }
    }
}

/// I8.
#[derive(Debug, Default)]
struct Intents<'a> {
    /// Sent (where), and neither an outcome nor a look-up since.
    open: BTreeMap<&'a str, usize>,
    written: BTreeSet<&'a str>,
}

impl<'a> Intents<'a> {
    fn take(&mut self, at: usize, record: &'a Record, found: &mut Vec<Violation>) {
        match record {
            Record::IntentWritten { reference } => drop(self.written.insert(reference)),
            Record::IntentSent { reference } => {
                if !self.written.contains(&**reference) {
                    let sentence = format!("call {reference} was sent without an intent");
                    found.push(violation(Invariant::I8, reference, sentence, &[at]));
                }
                if let Some(before) = self.open.insert(reference, at) {
                    let sentence = format!("call {reference} was sent again without a look-up");
                    found.push(violation(Invariant::I8, reference, sentence, &[before, at]));
                }
            }
            Record::OutcomeWritten { reference } | Record::LookedUp { reference } => {
                self.open.remove(&**reference);
            }
            _ => {}
        }
    }
}

fn violation(invariant: Invariant, about: &str, sentence: String, records: &[usize]) -> Violation {
    Violation { invariant, about: about.to_owned(), sentence, records: records.to_vec() }
}

/// A row's key for a sentence.
fn name(key: &WorkKey) -> String {
    key.parts().collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests;
