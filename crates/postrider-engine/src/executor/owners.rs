//! Which other executors live: when to ask, and what the answer means for the rows that they run.

use super::rows::{Doubt, Phase, Take};
use super::state::State;
use postrider_core::time::Timestamp;
use postrider_core::work::{OwnerId, WorkKey};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Pauses between two questions while there are others: from the first to the last, doubled each time nobody was newly missing.
/// Alone, nothing is asked. Two questions and a claim fit into two seconds, whenever an executor dies.
const ASK_PAUSE_FIRST: Duration = Duration::from_millis(50);
const ASK_PAUSE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Owners {
    /// Other members, and owners of foreign rows, that were missing in the last answer, and in how many answers in a row. An executor whose idle
    /// connection was cut takes its lock again within milliseconds, so one answer is not enough.
    missing: BTreeMap<OwnerId, u32>,
    /// When to ask next, on our own clock; `None`: nobody to ask about.
    ask_at: Option<Timestamp>,
    last_asked: Option<Timestamp>,
    pause: Duration,
}

/// Missing in so many answers in a row, an owner is dead.
const MISSING_DEAD: u32 = 2;

impl Owners {
    /// The owners that the last answers say are dead.
    pub(super) fn dead(&self) -> impl Iterator<Item = OwnerId> {
        self.missing.iter().filter(|(_, answers)| **answers >= MISSING_DEAD).map(|(owner, _)| *owner)
    }

    /// A foreign row appeared: ask at once, but not more often than the pause allows.
    pub(super) fn ask(&mut self, now: Timestamp) {
        if self.ask_at.is_none() {
            let allowed = self.last_asked.map_or(now, |last| last.after(self.pause.max(ASK_PAUSE_FIRST)));
            self.ask_at = Some(allowed.max(now));
        }
    }

    /// How long until the next question.
    pub(crate) fn until_ask(&self, now: Timestamp) -> Option<Duration> {
        self.ask_at.map(|at| at.since(now))
    }

    /// The question is on its way.
    pub(crate) fn asked(&mut self, now: Timestamp) {
        self.ask_at = None;
        self.last_asked = Some(now);
    }

    /// The answer about the other members, and those who run foreign rows.
    fn note(&mut self, running: &BTreeSet<OwnerId>, living: &BTreeSet<OwnerId>) {
        self.missing = running
            .difference(living)
            .map(|owner| (*owner, self.missing.get(owner).copied().unwrap_or(0).saturating_add(1)))
            .collect();
        for (owner, _) in self.missing.iter().filter(|(_, answers)| **answers == MISSING_DEAD) {
            tracing::info!(%owner, "an executor died; the rows that it runs are taken over");
        }
        self.pause = if self.missing.values().all(|answers| *answers >= MISSING_DEAD) {
            (self.pause * 2).clamp(ASK_PAUSE_FIRST, ASK_PAUSE_MAX)
        } else {
            ASK_PAUSE_FIRST
        };
    }
}

impl State {
    pub(crate) fn owners_mut(&mut self) -> &mut Owners {
        &mut self.owners
    }

    /// The executors that live now; `None`: the answer says nothing yet.
    pub(crate) fn owners_replied(&mut self, living: Option<&BTreeSet<OwnerId>>) {
        let foreign: Vec<(WorkKey, OwnerId)> = self.rows.foreign().map(|(key, owner)| (key.clone(), owner)).collect();
        if let Some(living) = living {
            let running = foreign.iter().map(|(_, owner)| *owner).chain(self.peers.others()).collect();
            self.owners.note(&running, living);
            self.members_live(living);
        }
        let dead: BTreeSet<OwnerId> = self.owners.dead().collect();
        let mut remains = false;
        for (key, owner) in foreign {
            match self.rows.row(&key).map(|row| &row.phase) {
                Some(Phase::Timed(..)) if dead.contains(&owner) => {
                    self.rows.set(&key, Phase::Due(Take::Over(Some(owner))));
                }
                Some(Phase::Timed(_, take)) if self.settings.quiet && self.peers.is_leaving(owner) => {
                    let take = *take;
                    self.doubt(&key, Doubt::Leaving(take));
                }
                Some(Phase::Timed(..)) => remains = true,
                // It waits for a slot; its owner counts as dead until it is claimed.
                _ => {}
            }
        }
        if remains || self.peers.has_others() {
            self.owners.ask_at = Some(self.world.now().after(self.owners.pause.max(ASK_PAUSE_FIRST)));
        }
    }
}

#[cfg(test)]
#[path = "owners_tests.rs"]
mod tests;
