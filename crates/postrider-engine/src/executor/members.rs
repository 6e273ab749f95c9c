//! What: shares the rows with the other executors of the table.
//! Where: beside *observe*: it says which rows we begin with.
//! Takes and gives: what executors say of themselves in the log, and who of them lives; rows that are left to others, and the wish to read the
//! open rows anew where our share grew.
//! Never: decides who may work on a row, which is the fence's word, or gives away a row that a statement or a call has.
//!
//! Who joins is heard in the log and must live; who leaves says so, dies, or falls silent. Whoever sees a member go reads the open rows once
//! more, so that a row that nobody held is somebody's again; what nobody began for two sweeps is begun by whoever has nothing else to do.

use super::rows::Phase;
use super::state::State;
use crate::telemetry::MemberLabel;
use postrider_core::members::{Members, Presence};
use postrider_core::observe::{Observation, Rank, observe};
use postrider_core::position::Position;
use postrider_core::shape::ShapeError;
use postrider_core::snapshot::Snapshot;
use postrider_core::stage::{Backoff, Step};
use postrider_core::time::Timestamp;
use postrider_core::work::{DefinitionName, OwnerId, WorkKey, WorkVersion};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// So many transactions are remembered whose rows were left to others. A read of the open rows must see them all: a commit can be in the log
/// before anybody sees it.
const LEFT_MAX: usize = 65_536;

/// Rows of others that a sweep found waiting, remembered until the next; it finds the rest.
const WAITING_MAX: usize = 10_000;

/// So many sweeps find a row of others waiting before whoever has nothing else to do begins with it; one more, and everybody does.
const SWEEPS_IDLE: u32 = 2;

/// The pauses before the open rows are read once more, because a commit that the log has shown was not visible yet.
const UNSEEN: Backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(10) };

/// The other executors, as far as we know, and what we left to them.
#[derive(Debug)]
pub(super) struct Peers {
    members: Members,
    /// When each of the other members last said that it is there, by our own clock.
    heard: BTreeMap<OwnerId, Timestamp>,
    /// They spoke, and whether they live is being asked.
    candidates: BTreeMap<OwnerId, (Timestamp, BTreeSet<DefinitionName>)>,
    /// Those that said that they leave, until they are gone. While they end their calls, rows that they had may wait for somebody again.
    leaving: BTreeSet<OwnerId>,
    /// Somebody joined: it is to hear of us at once.
    answer: bool,
    /// From this time of our own clock the open rows are to be read anew.
    reread_at: Option<Timestamp>,
    /// So often in a row some of what we left to others was not visible yet.
    unseen_reads: u32,
    /// The transactions whose rows we left to others, oldest first.
    left: VecDeque<u32>,
    /// Rows of others that the last sweep found waiting, and how many sweeps in a row did so.
    waiting: BTreeMap<WorkKey, (Rank, u32)>,
    /// The same, of the sweep that is under way.
    waiting_now: BTreeMap<WorkKey, (Rank, u32)>,
    /// The steps for which rows of ours were waiting when the sweep that is under way began.
    busy_steps: Option<BTreeSet<Step>>,
}

impl Peers {
    pub(super) fn new(me: Presence) -> Peers {
        Peers {
            members: Members::new(me),
            heard: BTreeMap::new(),
            candidates: BTreeMap::new(),
            leaving: BTreeSet::new(),
            answer: false,
            reread_at: None,
            unseen_reads: 0,
            left: VecDeque::new(),
            waiting: BTreeMap::new(),
            waiting_now: BTreeMap::new(),
            busy_steps: None,
        }
    }

    /// Those whose lives matter: the members, and who would become one.
    pub(super) fn others(&self) -> impl Iterator<Item = OwnerId> {
        self.members.others().chain(self.candidates.keys().copied())
    }

    /// Whether there are any, or will be no more in a moment.
    pub(super) fn has_others(&self) -> bool {
        self.others().next().is_some() || !self.leaving.is_empty()
    }

    /// Whether what it runs is looked at before it is gone.
    pub(super) fn is_leaving(&self, owner: OwnerId) -> bool {
        self.leaving.contains(&owner)
    }

    fn leave_to_others(&mut self, xid: u32) {
        if xid == 0 || self.left.back() == Some(&xid) {
            return;
        }
        if self.left.len() == LEFT_MAX {
            self.left.pop_front();
        }
        self.left.push_back(xid);
    }
}

impl State {
    /// The log brought what an executor says of itself, committed at that time of the server's clock.
    pub(crate) fn presence_heard(
        &mut self,
        said: Result<Presence, ShapeError>,
        committed_at: Timestamp,
        position: Position,
    ) {
        let Presence { owner, leaving, definitions, together } = match said {
            Ok(presence) => presence,
            Err(error) => return self.unreadable("by which an executor says that it is there", error, position),
        };
        // What is read of long ago says nothing about now.
        if owner == self.settings.owner || self.clock.now().since(committed_at) > self.limits.heartbeat_overdue {
            return;
        }
        let now = self.world.now();
        if leaving {
            self.peers.candidates.remove(&owner);
            self.peers.leaving.insert(owner);
            self.owners.ask(now);
            self.member_gone(owner, "left");
        } else if self.peers.is_leaving(owner) {
            // A heartbeat that was on its way when it said so.
        } else if let Some(heard) = self.peers.heard.get_mut(&owner) {
            *heard = now;
        } else if together != self.peers.members.together() {
            // Two who share by different rules would leave rows to each other.
            tracing::debug!(%owner, "an executor keeps other rows together: both try every row, until their configurations agree");
        } else {
            self.peers.candidates.insert(owner, (now, definitions));
            self.owners.ask(now);
        }
    }

    /// Who lives: candidates become members; members that the last answers say are dead, or that fell silent, are none any more.
    pub(super) fn members_live(&mut self, living: &BTreeSet<OwnerId>) {
        self.peers.leaving.retain(|owner| living.contains(owner));
        for (owner, (heard, definitions)) in std::mem::take(&mut self.peers.candidates) {
            if living.contains(&owner) && self.peers.members.join(owner, definitions) {
                tracing::info!(%owner, "another executor works on the table: the rows are shared with it");
                self.peers.heard.insert(owner, heard);
                self.peers.answer = true;
                self.count_member("joined");
                self.leave_what_is_not_mine();
            }
        }
        let dead: BTreeSet<OwnerId> = self.owners.dead().collect();
        let (now, overdue) = (self.world.now(), self.limits.heartbeat_overdue);
        let gone = self.peers.heard.iter().filter_map(|(owner, heard)| match dead.contains(owner) {
            true => Some((*owner, "died")),
            false => (now.since(*heard) > overdue).then_some((*owner, "silent")),
        });
        for (owner, how) in gone.collect::<Vec<_>>() {
            self.member_gone(owner, how);
        }
        self.report_members();
    }

    fn member_gone(&mut self, owner: OwnerId, how: &'static str) {
        self.peers.heard.remove(&owner);
        if self.peers.members.leave(owner) {
            tracing::info!(%owner, how, "an executor of the table is gone: the open rows are read, and its share is the others'");
            self.peers.reread_at = Some(self.world.now());
            self.count_member(how);
            self.report_members();
        }
    }

    fn count_member(&self, how: &'static str) {
        self.telemetry.executor_changes.get_or_create(&MemberLabel { how }).inc();
    }

    fn report_members(&self) {
        let executors = self.peers.members.others().len() + 1;
        self.telemetry.executors.set(i64::try_from(executors).unwrap_or(i64::MAX));
    }

    /// Whether somebody is to hear at once that we are there; the question takes it back.
    pub(crate) fn take_answer(&mut self) -> bool {
        std::mem::take(&mut self.peers.answer)
    }

    /// Whether the open rows are to be read anew now; the question takes it back.
    pub(crate) fn take_reread(&mut self, now: Timestamp) -> bool {
        self.peers.reread_at.take_if(|at| *at <= now).is_some()
    }

    /// How long until the open rows are to be read anew.
    pub(crate) fn until_reread(&self, now: Timestamp) -> Option<Duration> {
        self.peers.reread_at.map(|at| at.since(now))
    }

    /// The log has a gap: what waits here may have become anything, and is read anew. What waits by our own outcome is kept with the knowledge that
    /// nobody else can have heard of it; the read says what is newer.
    pub(crate) fn forget_what_waits(&mut self) {
        for key in self.rows.keys_where(|_, row| !row.is_busy() && !row.own) {
            self.rows.remove(&key);
        }
    }

    /// All open rows were read. Those that we left to others are seen by then, or they are read once more.
    pub(crate) fn open_rows_read(&mut self, snapshot: &Snapshot) {
        self.waiting_read();
        self.peers.left.retain(|xid| !snapshot.sees(*xid));
        if self.peers.left.is_empty() {
            self.peers.unseen_reads = 0;
        } else if self.peers.reread_at.is_none() {
            self.peers.unseen_reads = self.peers.unseen_reads.saturating_add(1);
            self.peers.reread_at = Some(self.world.now().after(UNSEEN.pause(self.peers.unseen_reads)));
        }
    }

    /// Whether the version, which every executor can see, is another's to begin with, if anybody's. It is forgotten here.
    pub(super) fn is_left_to_others(&mut self, version: &WorkVersion, xid: u32, known: Option<Rank>) -> bool {
        if self.is_mine(version) {
            return false;
        }
        let now = self.clock.now();
        match observe(&self.settings.definitions, self.settings.owner, known, version, now) {
            Observation::ClaimNow
            | Observation::ClaimAt(_)
            | Observation::TakeOverAt(..)
            | Observation::Gone(_)
            | Observation::AttemptsUsedUp => {
                self.rows.remove(&version.key);
                self.peers.leave_to_others(xid);
                true
            }
            Observation::Orphan | Observation::Rest | Observation::Ignore => false,
        }
    }

    /// Somebody joined: what waits here and is its to begin with goes, unless nobody else can know that it waits.
    fn leave_what_is_not_mine(&mut self) {
        let (members, peers) = (&self.peers.members, &self.peers);
        // What becomes of a row that somebody runs who is leaving, who joins now may not hear.
        let waits = |phase: &Phase| {
            matches!(phase, Phase::Due(_) | Phase::Timed(..))
                && !phase.owner().is_some_and(|owner| peers.is_leaving(owner))
        };
        let left = self
            .rows
            .keys_where(|key, row| waits(&row.phase) && !row.own && !members.is_mine(key, Some(&row.step.definition)));
        for key in left {
            let Some(row) = self.rows.remove(&key) else { continue };
            self.peers.leave_to_others(row.xid);
        }
    }

    /// A sweep found this row of others waiting. Whether we begin with it: two sweeps found it so and nothing of ours waits for the stage, or
    /// three did. In a stage that takes the rows of a group one at a time they wait for each other, and not for us.
    pub(super) fn is_overlooked(&mut self, version: &WorkVersion) -> bool {
        let rank = Rank::of(version);
        let rows = &self.rows;
        let busy_steps = self.peers.busy_steps.get_or_insert_with(|| rows.due_steps().cloned().collect());
        let step = self.settings.definitions.step(version.definition.as_ref(), &version.stage);
        if self.settings.definitions.policy(&step).is_ok_and(|policy| policy.serial) {
            return false;
        }
        let before = self.peers.waiting.get(&version.key).filter(|(seen, _)| *seen == rank);
        let sweeps = before.map_or(1, |(_, sweeps)| sweeps.saturating_add(1));
        if sweeps > SWEEPS_IDLE || sweeps == SWEEPS_IDLE && !busy_steps.contains(&step) {
            return true;
        }
        if self.peers.waiting_now.len() < WAITING_MAX {
            self.peers.waiting_now.insert(version.key.clone(), (rank, sweeps));
        }
        false
    }

    pub(super) fn is_mine(&self, version: &WorkVersion) -> bool {
        self.peers.members.is_mine(&version.key, version.definition.as_ref())
    }

    /// A sweep begins that counts how long others leave their rows.
    pub(super) fn look_after_others(&mut self) {
        self.peers.waiting_now.clear();
        self.peers.busy_steps = None;
    }

    /// It has seen every row.
    pub(super) fn others_looked_after(&mut self) {
        self.peers.waiting = std::mem::take(&mut self.peers.waiting_now);
    }
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;
