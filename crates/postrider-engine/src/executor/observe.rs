//! What: takes in one version of a work row, from the log or from a read.
//! Where: after *decode* and *route*; leads to *claim*.
//! Takes and gives: a row version and the transaction that wrote it; the row in a queue, under a timer, or forgotten.
//! Never: claims, or believes a version older than the one it knows.

use super::rows::{Ending, Phase, Row, Take};
use super::state::State;
use postrider_core::observe::{Observation, Rank, observe};
use postrider_core::ports::Transition;
use postrider_core::work::{WorkKey, WorkVersion};

impl State {
    /// A version came through the log, written by transaction `xid`.
    pub(crate) fn observe_version(&mut self, version: WorkVersion, xid: u32) {
        let rank = Rank::of(&version);
        let (key, mut known) = (version.key.clone(), None);
        if let Some(row) = self.rows.row_mut(&version.key) {
            if row.is_busy() {
                let newest = row.newest.as_ref().map(|newest| Rank::of(&newest.0));
                let floor = if row.gone { newest } else { newest.or(Some(row.rank)) };
                if floor.is_none_or(|floor| rank > floor) {
                    row.newest = Some(Box::new((version, xid)));
                    self.observe_called(&key);
                }
                return;
            }
            if matches!(row.phase, Phase::Finished) && rank == row.rank {
                self.rows.remove(&version.key);
                return;
            }
            known = Some(row.rank);
        }
        if !self.is_left_to_others(&version, xid, known) {
            self.place(version, xid, known);
        }
    }

    /// A page of open rows came, as a read of all of them has it.
    pub(crate) fn observe_page(&mut self, page: Vec<WorkVersion>) {
        self.waiting.count(&page);
        for version in page {
            self.observe_version(version, 0);
        }
    }

    /// A version came through the log that the read at start saw, too: nothing new, but for a row that we wrote before that
    /// read. A read that failed was begun anew, so it can have seen our own outcome, and the log shows it only here.
    pub(crate) fn observe_read(&mut self, version: WorkVersion, xid: u32) {
        let rank = Rank::of(&version);
        let awaited = self
            .rows
            .row(&version.key)
            .is_some_and(|row| row.is_busy() || (matches!(row.phase, Phase::Finished) && rank == row.rank));
        if awaited {
            self.observe_version(version, xid);
        }
    }

    /// Takes in the version that came while we were busy with a row, if it is newer than what is `known` by now.
    pub(super) fn observe_newest(&mut self, newest: Option<Box<(WorkVersion, u32)>>, known: Option<Rank>) {
        let Some(newest) = newest else { return };
        let (version, xid) = *newest;
        if known.is_none_or(|known| Rank::of(&version) > known) {
            self.observe_version(version, xid);
        }
    }

    /// The row was deleted.
    pub(crate) fn observe_gone(&mut self, key: &WorkKey) {
        let Some(row) = self.rows.row_mut(key) else { return };
        if row.is_busy() {
            row.gone = true;
            row.newest = None;
        } else {
            self.rows.remove(key);
        }
    }

    /// Puts a version where it belongs. `known` is the rank below which it says nothing new.
    pub(super) fn place(&mut self, version: WorkVersion, xid: u32, known: Option<Rank>) {
        let now = self.clock.now();
        let observation = observe(&self.settings.definitions, self.settings.owner, known, &version, now);
        let phase = match observation {
            Observation::Ignore => return,
            // What the configuration lacks is parked by its claim.
            Observation::ClaimNow | Observation::Gone(_) => Phase::Due(Take::Free),
            Observation::ClaimAt(at) => Phase::Timed(at, Take::Free),
            Observation::TakeOverAt(at, owner) => self.foreign(at, owner),
            Observation::Orphan => Phase::Settling(Box::new(Ending::Other(Transition::Release))),
            Observation::Rest => {
                self.rows.remove(&version.key);
                return;
            }
            Observation::AttemptsUsedUp => {
                self.alarm();
                tracing::warn!(stage = %version.stage, "a work row waits with its attempts used up; nothing will start it until a person raises the limit or resets its count");
                self.rows.remove(&version.key);
                return;
            }
        };
        let orphan = matches!(phase, Phase::Settling(_));
        let rank = Rank::of(&version);
        let step = self.settings.definitions.step(version.definition.as_ref(), &version.stage);
        self.rows.put(&version.key, Row::new(rank, step, xid, phase));
        if orphan {
            self.queue_outcome(version.key);
        }
    }

    /// Another executor runs the row: its lease is timed, and whether it lives is asked.
    fn foreign(&mut self, at: postrider_core::time::Timestamp, owner: Option<postrider_core::work::OwnerId>) -> Phase {
        let now = self.clock.now();
        if owner.is_some() {
            self.owners.ask(self.world.now());
        }
        // The guard says "earlier than now": one microsecond later the lease has run out for it, too.
        let at = at.after(std::time::Duration::from_micros(1));
        if at > now { Phase::Timed(at, Take::Over(owner)) } else { Phase::Due(Take::Over(owner)) }
    }
}
