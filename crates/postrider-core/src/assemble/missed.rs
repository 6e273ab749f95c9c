//! What: finds prepared transactions whose verdict this stream does not bring.
//! Where: within *assemble*, beside the transactions that wait for their outcome.
//! Takes and gives: what the server said before the stream began; what waits for a verdict that it had passed by then.
//! Never: takes a gid for a transaction's name, which the application may use again, or gives anything up by itself.

use super::Assembler;
use super::held::Held;
use crate::error::Result;
use crate::ports::{Outcomes, Prepared};
use crate::position::Lsn;

/// A prepared transaction whose verdict somebody else read, or nobody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missed {
    pub prepared: Prepared,
    /// Its id in 64 bits, as the server's functions take it.
    pub full_xid: u64,
}

/// What had had its outcome when the stream was opened, and waits for it here.
#[derive(Debug, Default)]
pub(super) struct Expected {
    decided: Vec<Missed>,
    /// Behind the last of these outcomes.
    logged: Lsn,
}

impl Assembler {
    /// The stream begins at the journal's end, or behind it where something is left out, and `outcomes` is what its server said
    /// before.
    pub fn expect_verdicts(&mut self, outcomes: &Outcomes) {
        let Some(held) = &self.held else { return };
        let Outcomes { snapshot, logged } = outcomes;
        let waiting = held.waiting().into_iter().filter(|prepared| snapshot.sees(prepared.xid));
        let decided = waiting.map(|prepared| Missed { full_xid: snapshot.widen(prepared.xid), prepared }).collect();
        self.expected = Expected { decided, logged: *logged };
    }

    /// Prepared transactions that had their outcome before the stream has come as far as it is now, and still wait for a verdict:
    /// it stands before the stream's beginning. Each is told of once in a stream.
    pub fn missed(&mut self) -> Vec<Missed> {
        if self.expected.decided.is_empty() || self.in_transaction() || self.received_end < self.expected.logged {
            return Vec::new();
        }
        let Some(held) = &self.held else { return Vec::new() };
        let decided = std::mem::take(&mut self.expected.decided);
        decided.into_iter().filter(|missed| held.waits(&missed.prepared)).collect()
    }

    /// Nobody waits for this verdict any more: what was prepared goes, once the journal is durable up to what has been received. If
    /// it never comes so far, the verdict is missed again.
    pub fn give_up(&mut self, missed: &Missed) -> Result<()> {
        let received_end = self.received_end;
        match &mut self.held {
            Some(held) if held.waits(&missed.prepared) => held.finish(missed.prepared.xid, received_end),
            _ => Ok(()),
        }
    }
}

impl Held {
    fn waiting(&self) -> Vec<Prepared> {
        self.staging.waiting()
    }

    /// Whether this one, and no other under its id, waits for its verdict.
    fn waits(&self, prepared: &Prepared) -> bool {
        self.staging.prepared(prepared.xid).as_ref() == Some(prepared)
    }
}
