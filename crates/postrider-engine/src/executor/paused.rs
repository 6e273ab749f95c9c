//! What: holds back the stages and endpoints that a person paused.
//! Where: beside *claim*; what is paused was read with the open rows, or heard from the log.
//! Takes and gives: the parts that a read found, and each change in the order of the log; whether anything is claimed for a step.
//! Never: touches a row or a call in flight: rows wait in their queues, in memory, until their stage is resumed.

use super::state::State;
use crate::telemetry::PausedLabel;
use postrider_core::paused::{PauseChange, Paused, PausedPart};
use postrider_core::position::Position;
use postrider_core::shape::ShapeError;
use postrider_core::snapshot::Snapshot;
use postrider_core::stage::Step;
use std::collections::BTreeMap;

/// What is paused, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    known: BTreeMap<PausedPart, Paused>,
    /// The last change of each part that the log brought and no read has seen, with its transaction.
    heard: BTreeMap<PausedPart, (u32, PauseChange)>,
    /// What the last read could see: the log brings that once more.
    read: Option<Snapshot>,
}

impl State {
    /// Whether nothing is claimed for the step.
    pub(super) fn is_paused(&self, step: &Step) -> bool {
        let known = &self.pauses.known;
        if known.is_empty() {
            return false;
        }
        let endpoint = self.endpoint_of(step);
        known.keys().any(|part| part.covers(step, endpoint.as_deref()))
    }

    /// The steps with rows that are due, may run, and are not held back.
    pub(super) fn startable_steps(&self) -> impl Iterator<Item = &Step> {
        self.rows.due_steps().filter(|step| !self.is_paused(step))
    }

    /// What a read of the open rows found paused. A change that it could not see yet comes on top.
    pub(crate) fn pauses_read(&mut self, found: &[Paused], snapshot: &Snapshot) {
        let mut known: BTreeMap<PausedPart, Paused> =
            found.iter().map(|paused| (paused.part.clone(), paused.clone())).collect();
        self.pauses.heard.retain(|_, (xid, _)| !snapshot.sees(*xid));
        for (_, change) in self.pauses.heard.values() {
            apply(&mut known, change.clone());
        }
        self.pauses.read = Some(snapshot.clone());
        self.hold_back(known);
    }

    /// The log brought an order of a person, written by transaction `xid`.
    pub(crate) fn pause_heard(&mut self, change: Result<PauseChange, ShapeError>, xid: u32, position: Position) {
        let change = match change {
            Ok(change) => change,
            Err(error) => return self.unreadable("that pauses or resumes a stage", error, position),
        };
        if self.pauses.read.as_ref().is_some_and(|read| read.sees(xid)) {
            return;
        }
        self.pauses.heard.insert(change.part().clone(), (xid, change.clone()));
        let mut known = self.pauses.known.clone();
        apply(&mut known, change);
        self.hold_back(known);
    }

    fn hold_back(&mut self, now: BTreeMap<PausedPart, Paused>) {
        if now == self.pauses.known {
            return;
        }
        let before = std::mem::replace(&mut self.pauses.known, now);
        let known = &self.pauses.known;
        for part in before.keys().filter(|part| !known.contains_key(part)) {
            self.telemetry.paused.remove(&PausedLabel::of(part));
            tracing::info!(%part, "resumed: its rows are claimed again");
        }
        for (part, Paused { who, why, .. }) in known.iter().filter(|(part, _)| !before.contains_key(part)) {
            self.telemetry.paused.get_or_create(&PausedLabel::of(part)).set(1);
            tracing::info!(%part, who, why, "paused by a person: its rows wait unclaimed until `postrider stage resume`");
        }
        self.telemetry.update(|status| status.paused = known.values().cloned().collect());
    }
}

fn apply(known: &mut BTreeMap<PausedPart, Paused>, change: PauseChange) {
    match change {
        PauseChange::Pause(paused) => drop(known.insert(paused.part.clone(), paused)),
        PauseChange::Resume(part) => drop(known.remove(&part)),
    }
}

#[cfg(test)]
#[path = "paused_tests.rs"]
mod tests;
