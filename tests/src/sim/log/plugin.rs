//! The output plugin of the simulated server: what it makes of the log in one session.
//!
//! With streaming, some transactions come in chunks before their commit, between others; with savepoints and whole transactions that
//! roll back, whose rows nobody may ever see.

use super::super::database::{Change, Logged, LoggedKind, description, encoded};
use super::super::faults::Fault;
use super::super::shared::Sim;
use postrider_core::pgoutput::{
    Begin, BeginPrepare, Commit, CommitPrepared, Prepare, RollbackPrepared, StreamAbort, StreamCommit, StreamPrepare,
    StreamStart, encode,
};
use postrider_core::position::Lsn;
use std::collections::{BTreeMap, BTreeSet};

/// Transactions that are looked at ahead, as those that are in progress now.
const AHEAD: u64 = 8;
/// Ids of what rolls back begin here, far from those of what commits.
const GHOST_XIDS: u32 = 0x4000_0000;

/// One session's decoding.
#[derive(Debug)]
pub(super) struct Plugin {
    /// Place in the log of the next transaction.
    next: usize,
    streaming: bool,
    described: BTreeSet<u32>,
    /// Transactions begun in chunks, by their place in the log.
    begun: BTreeMap<usize, Begun>,
    ghosts: u32,
    out: Vec<Output>,
}

/// A message and where it stands in the log.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) wal: Lsn,
    pub(super) payload: Vec<u8>,
    /// Nothing is open behind it.
    pub(super) ends: bool,
}

/// A transaction of which a part was streamed.
#[derive(Debug, Default)]
struct Begun {
    started: bool,
    sent: usize,
    described: BTreeSet<u32>,
}

/// A row that must never be seen.
pub fn ghost(sim: &Sim) -> Change {
    Change::InsertEvent { id: format!("ghost-{}", sim.random()).into(), key: "ghosts".into() }
}

impl Plugin {
    pub(super) fn new(next: usize, streaming: bool) -> Plugin {
        let (described, begun, out) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
        Plugin { next, streaming, described, begun, ghosts: GHOST_XIDS, out }
    }

    /// Decodes on, up to where nothing is left or a pause is made.
    pub(super) fn decode(&mut self, sim: &Sim, log: &[Logged]) -> Vec<Output> {
        let until = log.len().min(self.next + 100);
        while let Some(logged) = log.get(self.next).filter(|_| self.next < until) {
            if self.streaming {
                self.stream_ahead(sim, log);
            }
            match self.begun.remove(&self.next) {
                Some(begun) => self.end_stream(sim, logged, begun),
                None => self.send(logged),
            }
            self.next += 1;
            // What comes later is in progress then, for a while.
            if self.streaming && sim.one_in(12) {
                break;
            }
        }
        std::mem::take(&mut self.out)
    }

    fn put(&mut self, wal: Lsn, ends: bool, write: impl FnOnce(&mut Vec<u8>)) {
        let mut payload = Vec::new();
        write(&mut payload);
        self.out.push(Output { wal, payload, ends });
    }

    /// A whole transaction, the first phase of one, or a verdict.
    fn send(&mut self, logged: &Logged) {
        let Logged { kind, commit_lsn: lsn, end_lsn, xid, at, .. } = *logged;
        let gid = &*format!("g{xid}");
        match kind {
            LoggedKind::Commit => {
                let begin = Begin { final_lsn: lsn, committed_at: at, xid };
                self.put(lsn, false, |out| encode::begin(out, &begin));
                self.rows(logged);
                let commit = Commit { flags: 0, commit_lsn: lsn, end_lsn, committed_at: at };
                self.put(end_lsn, true, |out| encode::commit(out, &commit));
            }
            LoggedKind::Prepare => {
                let begin = BeginPrepare { prepare_lsn: lsn, end_lsn, prepared_at: at, xid, gid };
                self.put(lsn, false, |out| encode::begin_prepare(out, &begin));
                self.rows(logged);
                let prepare = Prepare { flags: 0, prepare_lsn: lsn, end_lsn, prepared_at: at, xid, gid };
                self.put(end_lsn, true, |out| encode::prepare(out, &prepare));
            }
            LoggedKind::CommitPrepared => {
                let commit = CommitPrepared { flags: 0, commit_lsn: lsn, end_lsn, committed_at: at, xid, gid };
                self.put(end_lsn, true, |out| encode::commit_prepared(out, &commit));
            }
            LoggedKind::RollbackPrepared => {
                let rollback = RollbackPrepared {
                    flags: 0,
                    prepare_end_lsn: lsn,
                    end_lsn,
                    prepared_at: at,
                    rolled_back_at: at,
                    xid,
                    gid,
                };
                self.put(end_lsn, true, |out| encode::rollback_prepared(out, &rollback));
            }
        }
    }

    fn rows(&mut self, logged: &Logged) {
        for (oid, message) in &logged.messages {
            if let Some(oid) = oid
                && self.described.insert(*oid)
            {
                self.put(Lsn::ZERO, false, |out| out.extend(description(*oid)));
            }
            self.put(logged.commit_lsn, false, |out| out.extend(message));
        }
    }

    /// Sends a chunk of a transaction that commits later, or of one that rolls back.
    fn stream_ahead(&mut self, sim: &Sim, log: &[Logged]) {
        if sim.one_in(20) {
            self.stream_ghost(sim);
        }
        if !sim.one_in(3) {
            return;
        }
        let place = self.next + usize::try_from(sim.below(AHEAD)).unwrap();
        let Some(logged) = log.get(place) else { return };
        if !matches!(logged.kind, LoggedKind::Commit | LoggedKind::Prepare) {
            return;
        }
        let mut begun = self.begun.remove(&place).unwrap_or_default();
        let left = logged.messages.len() - begun.sent;
        let count = usize::try_from(sim.below(left as u64 + 1)).unwrap();
        self.chunk(sim, logged, &mut begun, count);
        if sim.one_in(3) {
            self.abort_savepoint(sim, logged.xid, &mut begun);
        }
        self.begun.insert(place, begun);
    }

    fn chunk(&mut self, sim: &Sim, logged: &Logged, begun: &mut Begun, count: usize) {
        let xid = logged.xid;
        let first = !std::mem::replace(&mut begun.started, true);
        self.put(Lsn::ZERO, false, |out| encode::stream_start(out, &StreamStart { xid, first }));
        for (oid, message) in logged.messages.iter().skip(begun.sent).take(count) {
            // A savepoint that is released; a logical message names the whole transaction.
            let named = if oid.is_some() && sim.one_in(3) { xid + 1 } else { xid };
            if let Some(oid) = oid
                && begun.described.insert(*oid)
            {
                self.named(named, &description(*oid));
            }
            self.named(named, message);
        }
        begun.sent += count;
        self.put(Lsn::ZERO, true, encode::stream_stop);
    }

    fn named(&mut self, xid: u32, message: &[u8]) {
        self.put(Lsn::ZERO, false, |out| {
            out.push(message[0]);
            out.extend(xid.to_be_bytes());
            out.extend(&message[1..]);
        });
    }

    /// A savepoint with rows, rolled back. The descriptions are sent again after it.
    fn abort_savepoint(&mut self, sim: &Sim, xid: u32, begun: &mut Begun) {
        sim.count(Fault::SavepointAborted);
        self.ghosts += 2;
        let (outer, inner) = (self.ghosts, self.ghosts + 1);
        self.put(Lsn::ZERO, false, |out| encode::stream_start(out, &StreamStart { xid, first: false }));
        self.ghost_row(sim, outer, &mut begun.described);
        let nested = sim.one_in(2);
        if nested {
            self.ghost_row(sim, inner, &mut begun.described);
            self.ghost_row(sim, outer, &mut begun.described);
        }
        self.put(Lsn::ZERO, true, encode::stream_stop);
        let aborted = if nested { vec![inner, outer] } else { vec![outer] };
        for subxid in aborted {
            self.put(Lsn::ZERO, true, |out| encode::stream_abort(out, &StreamAbort { xid, subxid, place: None }));
        }
        begun.described.clear();
    }

    fn ghost_row(&mut self, sim: &Sim, xid: u32, described: &mut BTreeSet<u32>) {
        let (oid, message) = encoded(&ghost(sim), Lsn::ZERO);
        if let Some(oid) = oid
            && described.insert(oid)
        {
            self.named(xid, &description(oid));
        }
        self.named(xid, &message);
    }

    fn stream_ghost(&mut self, sim: &Sim) {
        sim.count(Fault::StreamAborted);
        self.ghosts += 2;
        let xid = self.ghosts;
        self.put(Lsn::ZERO, false, |out| encode::stream_start(out, &StreamStart { xid, first: true }));
        self.ghost_row(sim, xid, &mut BTreeSet::new());
        self.put(Lsn::ZERO, true, encode::stream_stop);
        let abort = StreamAbort { xid, subxid: xid, place: None };
        self.put(Lsn::ZERO, true, |out| encode::stream_abort(out, &abort));
    }

    /// The rest of a streamed transaction in a last chunk, and how it ends.
    fn end_stream(&mut self, sim: &Sim, logged: &Logged, mut begun: Begun) {
        sim.count(Fault::Streamed);
        let Logged { kind, commit_lsn: lsn, end_lsn, xid, at, .. } = *logged;
        let left = logged.messages.len() - begun.sent;
        self.chunk(sim, logged, &mut begun, left);
        if kind == LoggedKind::Prepare {
            let gid = &*format!("g{xid}");
            let prepare = StreamPrepare { flags: 0, prepare_lsn: lsn, end_lsn, prepared_at: at, xid, gid };
            return self.put(end_lsn, true, |out| encode::stream_prepare(out, &prepare));
        }
        let commit = StreamCommit { xid, flags: 0, commit_lsn: lsn, end_lsn, committed_at: at };
        self.put(end_lsn, true, |out| encode::stream_commit(out, &commit));
        // From now on the server takes what it described in the stream for known.
        self.described.extend(begun.described);
    }
}
