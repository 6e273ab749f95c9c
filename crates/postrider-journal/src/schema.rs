//! Which RELATION and TYPE messages are in force at a place within a segment.

use postrider_core::ports::SchemaBlock;
use postrider_core::position::{Lsn, Position};
use postrider_core::time::Timestamp;
use postrider_core::transaction::{Part, PartHead, PartKind, push_message};
use std::collections::BTreeMap;

/// First byte of a RELATION message (PostgreSQL manual, "Logical Replication Message Formats").
const RELATION: u8 = b'R';
/// First byte of a TYPE message.
const TYPE: u8 = b'Y';

/// The schema of a segment's head, and of the transactions that were passed over since.
#[derive(Debug)]
pub(crate) struct Passed {
    head: SchemaBlock,
    /// Each message seen since, with when it was seen last: repeats after each reconnect cost nothing.
    seen: BTreeMap<Box<[u8]>, u64>,
    count: u64,
}

impl Passed {
    pub(crate) fn new(head: SchemaBlock) -> Passed {
        Passed { head, seen: BTreeMap::new(), count: 0 }
    }

    /// Takes what the messages of a part change.
    pub(crate) fn pass(&mut self, block: &[u8]) {
        for message in Part::new(EMPTY, block).messages() {
            if matches!(message.first(), Some(&RELATION | &TYPE)) {
                self.count = self.count.saturating_add(1);
                self.seen.insert(message.into(), self.count);
            }
        }
    }

    /// The messages in the order in which they came into force.
    pub(crate) fn into_block(self) -> SchemaBlock {
        let mut block = self.head.0;
        let mut seen: Vec<_> = self.seen.into_iter().collect();
        seen.sort_unstable_by_key(|(_, when)| *when);
        for (message, _) in seen {
            let fits = push_message(&mut block, &message);
            debug_assert!(fits, "the message came from a block");
        }
        SchemaBlock(block)
    }
}

/// A head for a block whose head does not matter.
const EMPTY: PartHead = PartHead {
    kind: PartKind::Mark,
    commit_lsn: Lsn::ZERO,
    end_lsn: Lsn::ZERO,
    xid: 0,
    committed_at: Timestamp(0),
    first_ordinal: Position::START.ordinal,
    changes: 0,
    first: true,
    last: true,
};
