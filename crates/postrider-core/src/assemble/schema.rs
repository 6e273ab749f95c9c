//! The TYPE and RELATION messages in force: as the server believes we know them, and as the journal has them.
//!
//! The two differ where a message came within a transaction that is not in the journal yet. What stands within a prepared
//! transaction counts for the server from then on, whatever becomes of it. What stands within a streamed one counts once that
//! has committed, but not if another came on the way; after a rolled-back savepoint the server sends them again.

use crate::ports::SchemaBlock;
use crate::transaction::push_message;
use std::collections::{BTreeMap, BTreeSet};

/// A message's kind and oid; types sort before tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    relation: bool,
    oid: u32,
}

/// The latest messages, and where they differ.
#[derive(Debug, Default)]
pub(super) struct Schema {
    /// What the server takes us to know outside of streamed transactions, and when it came.
    told: BTreeMap<Key, (u64, Box<[u8]>)>,
    /// What a reader knows behind the last whole transaction that was given out.
    kept: BTreeMap<Key, Box<[u8]>>,
    /// What the transaction that is being given out adds to that.
    fresh: BTreeMap<Key, Box<[u8]>>,
    /// Keys told and not kept.
    behind: BTreeSet<Key>,
    arrivals: u64,
    block: SchemaBlock,
    stale: bool,
}

impl Key {
    /// The key of a RELATION or TYPE message, each of which has its oid behind the tag. A shorter one is left to *decode*.
    pub(super) fn of(message: &[u8]) -> Option<Key> {
        let (tag, rest) = message.split_first()?;
        Key::new(*tag, rest)
    }

    /// The same from the tag and what stands behind it.
    pub(super) fn new(tag: u8, rest: &[u8]) -> Option<Key> {
        let (oid, _) = rest.split_first_chunk::<4>()?;
        matches!(tag, b'R' | b'Y').then_some(Key { relation: tag == b'R', oid: u32::from_be_bytes(*oid) })
    }
}

impl Schema {
    /// The next number in the order in which messages come.
    pub(super) fn arrive(&mut self) -> u64 {
        self.arrivals = self.arrivals.saturating_add(1);
        self.arrivals
    }

    /// The server sent the message outside of a streamed transaction.
    pub(super) fn tell(&mut self, message: &[u8]) {
        let Some(key) = Key::of(message) else { return };
        let arrival = self.arrive();
        self.told.insert(key, (arrival, message.into()));
        self.compare(key);
    }

    /// The message goes into the journal. `false`: a reader knows it already.
    pub(super) fn keep(&mut self, message: &[u8]) -> bool {
        let Some(key) = Key::of(message) else { return true };
        if self.known(key) == Some(message) {
            return false;
        }
        self.fresh.insert(key, message.into());
        self.compare(key);
        true
    }

    /// The transaction that was given out is whole.
    pub(super) fn close(&mut self) {
        self.stale |= !self.fresh.is_empty();
        self.kept.append(&mut self.fresh);
    }

    /// A streamed transaction with these messages has committed and is in the journal: from now on the server counts on them,
    /// where none came later.
    pub(super) fn settle(&mut self, arrived: &BTreeMap<Key, u64>) {
        for (key, arrival) in arrived {
            if self.told.get(key).is_none_or(|(told, _)| told < arrival)
                && let Some(message) = self.known(*key).map(Box::from)
            {
                self.told.insert(*key, (*arrival, message));
            }
            self.compare(*key);
        }
    }

    /// What has to stand in the journal before the next ordinary transaction, types first.
    pub(super) fn behind(&self) -> Vec<Box<[u8]>> {
        self.behind.iter().filter_map(|key| self.told.get(key)).map(|(_, message)| message.clone()).collect()
    }

    pub(super) fn is_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// What the server takes us to know, types first.
    pub(super) fn told(&self) -> Vec<u8> {
        pack(self.told.values().map(|(_, message)| message))
    }

    /// What a reader knows behind the last whole transaction that was given out, types first.
    pub(super) fn kept(&mut self) -> &SchemaBlock {
        if self.stale {
            self.block.0 = pack(self.kept.values());
            self.stale = false;
        }
        &self.block
    }

    /// What a reader knows where the next message will stand.
    fn known(&self, key: Key) -> Option<&[u8]> {
        self.fresh.get(&key).or_else(|| self.kept.get(&key)).map(|message| &**message)
    }

    fn compare(&mut self, key: Key) {
        match self.told.get(&key) {
            Some((_, told)) if self.known(key) != Some(&**told) => self.behind.insert(key),
            _ => self.behind.remove(&key),
        };
    }
}

fn pack<'a>(messages: impl Iterator<Item = &'a Box<[u8]>>) -> Vec<u8> {
    let mut block = Vec::new();
    for message in messages {
        let fits = push_message(&mut block, message);
        debug_assert!(fits, "the message came in one frame");
    }
    block
}
