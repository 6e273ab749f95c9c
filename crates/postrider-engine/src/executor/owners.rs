//! Which other executors live: when to ask, and what the answer means for the rows that they run.

use super::rows::{Phase, Take};
use super::state::State;
use postrider_core::time::Timestamp;
use postrider_core::work::{OwnerId, WorkKey};
use std::collections::BTreeSet;
use std::time::Duration;

/// Pauses between two questions while others run rows: from the first to the last, doubled each time nobody was found
/// dead. Without foreign rows nothing is asked.
const ASK_PAUSE_FIRST: Duration = Duration::from_millis(100);
const ASK_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Owners found dead are remembered up to so many; the ids are random, so none comes back to life.
const DEAD_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Owners {
    dead: BTreeSet<OwnerId>,
    /// When to ask next, on our own clock; `None`: nobody to ask about.
    ask_at: Option<Timestamp>,
    last_asked: Option<Timestamp>,
    pause: Duration,
}

impl Owners {
    pub(super) fn is_dead(&self, owner: OwnerId) -> bool {
        self.dead.contains(&owner)
    }

    pub(super) fn dead(&self) -> impl Iterator<Item = OwnerId> {
        self.dead.iter().copied()
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
}

impl State {
    pub(crate) fn owners_mut(&mut self) -> &mut Owners {
        &mut self.owners
    }

    /// The executors that live now; `None`: the answer says nothing yet.
    pub(crate) fn owners_replied(&mut self, living: Option<&BTreeSet<OwnerId>>) {
        let found = living.map_or(0, |living| self.bury(living));
        self.owners.pause =
            if found > 0 { ASK_PAUSE_FIRST } else { (self.owners.pause * 2).clamp(ASK_PAUSE_FIRST, ASK_PAUSE_MAX) };
        if self.rows.iter().any(|(_, row)| matches!(row.phase, Phase::Timed(_, Take::Over(Some(_))))) {
            self.owners.ask_at = Some(self.world.now().after(self.owners.pause));
        }
    }

    /// Rows of the dead become due. Returns how many owners were found dead.
    fn bury(&mut self, living: &BTreeSet<OwnerId>) -> usize {
        let mut orphaned: Vec<(WorkKey, OwnerId)> = Vec::new();
        for (key, row) in self.rows.iter() {
            if let Phase::Timed(_, Take::Over(Some(owner))) = row.phase
                && owner != self.settings.owner
                && !living.contains(&owner)
            {
                orphaned.push((key.clone(), owner));
            }
        }
        let found: BTreeSet<OwnerId> = orphaned.iter().map(|(_, owner)| *owner).collect();
        for (key, owner) in orphaned {
            self.rows.set(&key, Phase::Due(Take::Over(Some(owner))));
        }
        for owner in &found {
            tracing::info!(%owner, "an executor died; its rows are taken over");
        }
        self.owners.dead.extend(&found);
        while self.owners.dead.len() > DEAD_MAX {
            self.owners.dead.pop_first();
        }
        found.len()
    }
}
