//! The safety sweep: finds open rows that the log should have brought and did not. Each hit is an anomaly, but for those of an early sweep: the
//! log had shown these before we began to read it, and nobody saw them then.

use super::rows::{Phase, Row};
use super::state::State;
use super::timetable::Sweep;
use postrider_core::observe::{Observation, Rank, observe};
use postrider_core::ports::Reading;
use postrider_core::work::{WorkKey, WorkVersion};
use std::collections::BTreeMap;

/// Rows under suspicion at once; the next sweep finds the rest.
const SUSPECTS_MAX: usize = 10_000;

/// Rows that a sweep read in a state we did not know of. The log may be on its way, so they are looked at once more.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// Of the sweep that is under way, or was the last.
    sweep: Sweep,
    rows: BTreeMap<WorkKey, Rank>,
}

impl State {
    /// All open rows begin to be read, by a sweep of that kind or by no sweep; the last one may have ended in the middle.
    pub(crate) fn read_begins(&mut self, sweep: Option<Sweep>) {
        self.waiting.read_begins();
        let Some(sweep) = sweep else { return };
        self.suspects.sweep = sweep;
        if sweep == Sweep::Slow {
            self.look_after_others();
        }
    }

    /// The sweep has seen every row. Which one it was.
    pub(crate) fn sweep_ended(&mut self) -> Sweep {
        self.waiting_read();
        if self.suspects.sweep == Sweep::Slow {
            self.others_looked_after();
        }
        self.suspects.sweep
    }

    /// A page of open rows, as the sweep read them.
    pub(crate) fn suspect(&mut self, page: &[WorkVersion]) {
        self.waiting.count(page);
        for version in page {
            match self.news(version) {
                None => {}
                // It waits for somebody else, who may be stuck.
                Some(observation) if self.is_anothers(version) => self.look_after(version, observation),
                Some(_) if self.suspects.rows.len() < SUSPECTS_MAX => {
                    self.suspects.rows.insert(version.key.clone(), Rank::of(version));
                }
                Some(_) => {}
            }
        }
    }

    /// Nobody here has the row, and another executor is to begin with it.
    fn is_anothers(&self, version: &WorkVersion) -> bool {
        !self.is_mine(version)
            && version.lease_owner != Some(self.settings.owner)
            && self.rows.row(&version.key).is_none()
    }

    fn look_after(&mut self, version: &WorkVersion, observation: Observation) {
        // Those that others have not begun with yet are counted by slow sweeps.
        if self.suspects.sweep == Sweep::Early {
            return;
        }
        let is_due = match observation {
            Observation::TakeOverAt(at, _) => at < self.clock.now(),
            Observation::ClaimNow | Observation::Gone(_) => true,
            _ => false,
        };
        if is_due && self.is_overlooked(version) {
            self.telemetry.overlooked_rows.inc();
            self.place(version.clone(), 0, None);
        }
    }

    /// The keys to read again, some seconds later.
    pub(crate) fn suspects(&self) -> Vec<WorkKey> {
        self.suspects.rows.keys().cloned().collect()
    }

    /// The second look: a row that still is as it was, and that the log still has not brought, is taken in.
    pub(crate) fn convict(&mut self, reading: Reading) {
        let suspects = std::mem::take(&mut self.suspects.rows);
        let mut hits = 0u64;
        let Reading { rows, snapshot } = reading;
        for version in rows {
            let unchanged = suspects.get(&version.key) == Some(&Rank::of(&version));
            // One that is older than what the log showed may be on its way to this snapshot.
            let row = self.rows.row(&version.key);
            let is_seen = row.is_none_or(|row| row.xid == 0 || snapshot.sees(row.xid));
            if unchanged && is_seen && self.news(&version).is_some() {
                hits += 1;
                self.renew(version);
            }
        }
        match self.suspects.sweep {
            _ if hits == 0 => {}
            Sweep::Early => {
                self.telemetry.early_sweep_hits.inc_by(hits);
                tracing::info!(rows = hits, "due rows are found that the read of the open rows could not tell");
            }
            Sweep::Slow => {
                self.telemetry.sweep_hits.inc_by(hits);
                tracing::warn!(rows = hits, "the sweep found due rows that the log had not brought");
            }
        }
    }

    /// What the row asks for that is not known, if nobody works on it here.
    fn news(&self, version: &WorkVersion) -> Option<Observation> {
        let row = self.rows.row(&version.key);
        if row.is_some_and(Row::is_busy) {
            return None;
        }
        // A row that waits for its time can have been deleted in a gap of the log, and another submitted under its key. What is due finds that by its claim.
        let replaced = |row: &&Row| matches!(row.phase, Phase::Timed(..)) && Rank::of(version) < row.rank;
        let known = row.filter(|row| !replaced(row)).map(|row| row.rank);
        let now = self.clock.now();
        let observation = observe(&self.settings.definitions, self.settings.owner, known, version, now);
        match observation {
            Observation::ClaimNow
            | Observation::ClaimAt(_)
            | Observation::TakeOverAt(..)
            | Observation::Orphan
            | Observation::Gone(_) => Some(observation),
            Observation::Rest | Observation::AttemptsUsedUp | Observation::Ignore => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::play::{Play, stage};
    use crate::world::World as _;
    use postrider_core::snapshot::Snapshot;
    use postrider_core::work::StageState;
    use std::time::Duration;

    /// Where the snapshot does not see yet what the log showed, the older version is only that.
    #[test]
    fn a_row_that_was_submitted_anew_in_a_gap_does_not_wait_for_the_time_of_the_one_before() {
        for (snapshot, found) in [("9:9:", 1), ("7:9:7", 0)] {
            let mut play = Play::new(vec![stage("FIRST", "http://core", None)], BTreeMap::new());
            let anew = WorkVersion::unclaimed(WorkKey::new(["g", "q"]), "FIRST");
            let later = play.world.now().after(Duration::from_secs(600));
            let before =
                WorkVersion { state: StageState::Retry, fence: 3, next_attempt_at: Some(later), ..anew.clone() };
            play.state.observe_version(before, 7);
            play.state.read_begins(Some(Sweep::Early));
            play.state.suspect(std::slice::from_ref(&anew));
            play.state.sweep_ended();
            assert_eq!(play.state.suspects(), std::slice::from_ref(&anew.key));
            let snapshot = Snapshot::parse(snapshot).expect("a snapshot");
            play.state.convict(Reading { rows: vec![anew], snapshot });
            let (claims, _) = play.state.next_claims();
            assert_eq!(claims.iter().filter(|claim| claim.seen_fence == 0).count(), found);
            assert_eq!(play.state.telemetry.early_sweep_hits.get(), claims.len() as u64);
        }
    }
}
