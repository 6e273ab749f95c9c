//! The rule that parts stand in commit order, each transaction whole: the same for the writer and for every reader.

use postrider_core::position::Lsn;
use postrider_core::transaction::{PartHead, PartKind};

/// What came so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Order {
    /// End LSN of the last complete transaction or mark.
    pub(crate) end: Lsn,
    /// LSN of the commit record of the last complete transaction.
    pub(crate) commit: Lsn,
    open: Option<Open>,
}

/// A transaction whose last part has not come yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Open {
    commit_lsn: Lsn,
    xid: u32,
    next_ordinal: u64,
}

impl Order {
    /// Nothing is open, and everything up to `end` came before.
    pub(crate) fn starting_at(end: Lsn, commit: Lsn) -> Order {
        Order { end, commit, open: None }
    }

    /// No transaction has begun and not ended.
    pub(crate) fn is_complete(&self) -> bool {
        self.open.is_none()
    }

    /// Takes the next part, or says which rule it breaks.
    pub(crate) fn admit(&mut self, head: &PartHead) -> Result<(), &'static str> {
        match head.kind {
            PartKind::Mark => self.admit_mark(head),
            PartKind::Transaction => self.admit_part(head),
        }
    }

    fn admit_mark(&mut self, head: &PartHead) -> Result<(), &'static str> {
        if !self.is_complete() {
            return Err("a mark stands within a transaction");
        }
        if !(head.first && head.last) || head.commit_lsn != head.end_lsn {
            return Err("a mark is malformed");
        }
        if head.end_lsn < self.end {
            return Err("a mark lies before the end of what came before it");
        }
        self.end = head.end_lsn;
        Ok(())
    }

    fn admit_part(&mut self, head: &PartHead) -> Result<(), &'static str> {
        match self.open {
            None if !head.first || head.first_ordinal != 0 => {
                return Err("a transaction does not begin with its first part");
            }
            None if head.commit_lsn < self.end => {
                return Err("a transaction lies before the end of what came before it");
            }
            Some(_) if head.first => return Err("a transaction begins before the last one ended"),
            Some(open) if open.commit_lsn != head.commit_lsn || open.xid != head.xid => {
                return Err("a part belongs to another transaction than the one before it");
            }
            Some(open) if open.next_ordinal != head.first_ordinal => return Err("a part of a transaction is missing"),
            None | Some(_) => {}
        }
        if !head.last {
            let next_ordinal = head.first_ordinal.saturating_add(u64::from(head.changes));
            self.open = Some(Open { commit_lsn: head.commit_lsn, xid: head.xid, next_ordinal });
            return Ok(());
        }
        if head.end_lsn <= head.commit_lsn {
            return Err("a transaction ends before its commit record");
        }
        *self = Order::starting_at(head.end_lsn, head.commit_lsn);
        Ok(())
    }
}
