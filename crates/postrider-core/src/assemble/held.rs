//! What: keeps transactions whose outcome is not known yet, out of memory.
//! Where: within *assemble*, between the stream and the parts of a transaction that has committed.
//! Takes and gives: messages of streamed and prepared transactions in stream order; the ones that survived, in that order.
//! Never: decides an outcome, or holds more of a transaction in memory than one block and the ids of its subtransactions.

use super::error::AssembleError;
use super::schema::Key;
use crate::error::Result;
use crate::pgoutput::StreamAbort;
use crate::ports::{Prepared, Staged, StagedAmount, Staging};
use crate::position::Lsn;
use crate::transaction::{PART_BYTES_MAX, push_message};
use std::collections::BTreeMap;

/// So many subtransactions are remembered for one streamed transaction, in 16 bytes each.
const SUBTRANSACTIONS_MAX: usize = 1 << 20;

/// Bytes that [`push_message`] adds to each message.
const PREFIX_BYTES: usize = 4;

/// The transactions of one stream before their outcome.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) staging: Box<dyn Staging>,
    streams: BTreeMap<u32, Streamed>,
    /// Messages that are not in the staging area yet; empty between chunks.
    block: Vec<u8>,
    /// There may be transactions in the staging area whose verdict has come.
    finished: bool,
    released: Lsn,
}

/// A streamed transaction in progress.
///
/// Its messages come in the order of the log. Savepoints nest, so all that comes between the first message of a subtransaction and
/// the news of its abort belongs to it or to its children: an abort cuts the end off.
#[derive(Debug, Default)]
pub(super) struct Streamed {
    /// Where the next block will stand.
    end: u64,
    subtransactions: Vec<Subtransaction>,
    /// The subtransaction of the last message that names one.
    current: Option<u32>,
    /// Logical messages came last: which subtransaction they belong to is not said, so they may go with the next abort.
    loose: bool,
    /// The latest RELATION and TYPE messages, by their arrival, that the server takes for known once this has committed.
    pub(super) arrived: BTreeMap<Key, u64>,
}

#[derive(Debug, Clone, Copy)]
struct Subtransaction {
    xid: u32,
    /// Logical messages stood right before its first message: they may be its own.
    doubtful: bool,
    /// Where its first message stands.
    place: u64,
}

impl Held {
    pub(super) fn new(staging: Box<dyn Staging>) -> Held {
        Held { staging, streams: BTreeMap::new(), block: Vec::new(), finished: true, released: Lsn::ZERO }
    }

    /// The connection is new: all but the prepared transactions come again.
    pub(super) fn restart(&mut self, journal_end: Lsn) -> Result<()> {
        self.streams.clear();
        self.block.clear();
        // What a life before this one left may wait for its release, too.
        self.finished = true;
        self.staging.restart(journal_end)
    }

    /// Everything up to `durable_end` is durable in the journal: what was kept for the case that it is not, may go.
    pub(super) fn release(&mut self, durable_end: Lsn) -> Result<()> {
        if self.finished && self.released < durable_end {
            self.released = durable_end;
            self.finished = self.staging.release(durable_end)?;
        }
        Ok(())
    }

    /// A chunk begins.
    pub(super) fn start_chunk(&mut self, xid: u32, first: bool) -> Result<()> {
        if first {
            self.staging.discard(xid)?;
            self.streams.insert(xid, Streamed::default());
        }
        if self.streams.contains_key(&xid) { Ok(()) } else { Err(AssembleError::UnknownStream { xid }.into()) }
    }

    /// A message of the chunk: `message` is without the id of the transaction or subtransaction that it names.
    pub(super) fn keep_streamed(&mut self, xid: u32, named: Option<u32>, message: Split<'_>) -> Result<()> {
        let Some(stream) = self.streams.get_mut(&xid) else { return Err(AssembleError::UnknownStream { xid }.into()) };
        match named {
            Some(named) if message.tag != b'M' => {
                let begins = stream.current != Some(named) && named != xid && stream.find(xid, named).is_err();
                if begins {
                    stream.end = flush(&mut *self.staging, xid, &mut self.block, stream.end)?;
                    stream.begin(xid, named)?;
                }
                stream.current = Some(named);
                stream.loose = false;
            }
            Some(_) => stream.loose = true,
            None => {}
        }
        if self.staging.is_full() {
            return Err(AssembleError::StagingFull { xid }.into());
        }
        if self.block.len().saturating_add(message.rest.len()) > PART_BYTES_MAX - PREFIX_BYTES - 1 {
            stream.end = flush(&mut *self.staging, xid, &mut self.block, stream.end)?;
        }
        message.push(&mut self.block)
    }

    /// A RELATION or TYPE message came within the chunk.
    pub(super) fn note_arrival(&mut self, xid: u32, key: Key, arrival: u64) {
        if let Some(stream) = self.streams.get_mut(&xid) {
            stream.arrived.insert(key, arrival);
        }
    }

    pub(super) fn stop_chunk(&mut self, xid: u32) -> Result<()> {
        if let Some(stream) = self.streams.get_mut(&xid) {
            stream.end = flush(&mut *self.staging, xid, &mut self.block, stream.end)?;
        }
        Ok(())
    }

    /// A transaction, or a subtransaction of it, rolled back. PostgreSQL 18 can say so of one that it never streamed.
    pub(super) fn abort(&mut self, abort: &StreamAbort) -> Result<()> {
        let StreamAbort { xid, subxid, .. } = *abort;
        if xid == subxid {
            return if self.streams.remove(&xid).is_some() { self.staging.discard(xid) } else { Ok(()) };
        }
        let Some(stream) = self.streams.get_mut(&xid) else { return Ok(()) };
        // The server sends the descriptions again after every abort.
        stream.arrived.clear();
        let Some(place) = stream.cut(xid, subxid)? else { return Ok(()) };
        self.staging.cut(xid, place)
    }

    /// A streamed transaction has committed: takes it out of those in progress.
    pub(super) fn take_stream(&mut self, xid: u32) -> Result<Streamed> {
        self.streams.remove(&xid).ok_or_else(|| AssembleError::UnknownStream { xid }.into())
    }

    /// The messages of a streamed transaction are no longer needed.
    pub(super) fn discard(&mut self, xid: u32) -> Result<()> {
        self.staging.discard(xid)
    }

    /// A transaction that will be prepared begins with the messages in force.
    pub(super) fn begin_prepare(&mut self, xid: u32, schema: Vec<u8>) -> Result<()> {
        self.staging.discard(xid)?;
        self.block = schema;
        self.stop_prepare(xid)
    }

    pub(super) fn keep_prepared(&mut self, xid: u32, message: &[u8]) -> Result<()> {
        if self.block.len().saturating_add(message.len()) > PART_BYTES_MAX - PREFIX_BYTES {
            self.stop_prepare(xid)?;
        }
        if push_message(&mut self.block, message) { Ok(()) } else { Err(AssembleError::TooLarge.into()) }
    }

    /// All messages of the transaction have come; they are durable when this returns.
    pub(super) fn prepare(&mut self, prepared: &Prepared) -> Result<()> {
        self.stop_prepare(prepared.xid)?;
        self.streams.remove(&prepared.xid);
        self.staging.prepare(prepared)
    }

    pub(super) fn is_prepared(&self, xid: u32, gid: &str) -> bool {
        self.staging.prepared(xid).is_some_and(|prepared| prepared.gid == gid)
    }

    /// The verdict on a prepared transaction ends at `end_lsn`: what was prepared goes once the journal is durable so far.
    pub(super) fn finish(&mut self, xid: u32, end_lsn: Lsn) -> Result<()> {
        self.finished = true;
        self.staging.finish(xid, end_lsn)
    }

    pub(super) fn amount(&self) -> StagedAmount {
        self.staging.amount()
    }

    /// The next block of a transaction from `place` on, into `block`, and where the one after stands.
    pub(super) fn read(&mut self, staged: Staged, place: u64, block: &mut Vec<u8>) -> Result<Option<u64>> {
        self.staging.read(staged, place, block)
    }

    fn stop_prepare(&mut self, xid: u32) -> Result<()> {
        flush(&mut *self.staging, xid, &mut self.block, 0).map(drop)
    }
}

/// A message without the id that stands behind its tag in a chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Split<'a> {
    pub(super) tag: u8,
    pub(super) rest: &'a [u8],
}

impl<'a> Split<'a> {
    /// A message of a chunk, and the id that it names.
    pub(super) fn new(payload: &'a [u8]) -> Option<(u32, Split<'a>)> {
        let (&[tag, a, b, c, d], rest) = payload.split_first_chunk::<5>()?;
        Some((u32::from_be_bytes([a, b, c, d]), Split { tag, rest }))
    }

    /// What a RELATION or TYPE message describes.
    pub(super) fn key(self) -> Option<Key> {
        Key::new(self.tag, self.rest)
    }

    fn push(self, block: &mut Vec<u8>) -> Result<()> {
        let length = self.rest.len().checked_add(1).and_then(|length| u32::try_from(length).ok());
        let length = length.ok_or(AssembleError::TooLarge)?;
        block.extend_from_slice(&length.to_le_bytes());
        block.push(self.tag);
        block.extend_from_slice(self.rest);
        Ok(())
    }
}

impl Streamed {
    /// Ids rise in the order in which subtransactions begin, modulo 2^32, so that the list is sorted as it grows; only a parent
    /// whose first message comes after a child's stands further in front.
    fn find(&self, xid: u32, named: u32) -> std::result::Result<usize, usize> {
        let distance = |subxid: u32| subxid.wrapping_sub(xid);
        self.subtransactions.binary_search_by_key(&distance(named), |known| distance(known.xid))
    }

    fn begin(&mut self, xid: u32, named: u32) -> Result<()> {
        if self.subtransactions.len() >= SUBTRANSACTIONS_MAX {
            return Err(AssembleError::ManySubtransactions { xid }.into());
        }
        if let Err(index) = self.find(xid, named) {
            let first = Subtransaction { xid: named, doubtful: self.loose, place: self.end };
            self.subtransactions.insert(index, first);
        }
        Ok(())
    }

    /// Forgets an aborted subtransaction. Returns where its first message stands, from where on all goes; `None` where it has
    /// none, and so left nothing.
    fn cut(&mut self, xid: u32, subxid: u32) -> Result<Option<u64>> {
        let Ok(index) = self.find(xid, subxid) else {
            return if self.loose { Err(AssembleError::DoubtfulAbort { xid }.into()) } else { Ok(None) };
        };
        let aborted = self.subtransactions.remove(index);
        if aborted.doubtful {
            return Err(AssembleError::DoubtfulAbort { xid }.into());
        }
        while self.subtransactions.last().is_some_and(|last| last.place >= aborted.place) {
            self.subtransactions.pop();
        }
        self.current = None;
        self.loose = false;
        if self.end <= aborted.place {
            return Ok(None);
        }
        self.end = aborted.place;
        Ok(Some(aborted.place))
    }
}

/// Writes the block out. Returns where the next one will stand.
fn flush(staging: &mut dyn Staging, xid: u32, block: &mut Vec<u8>, end: u64) -> Result<u64> {
    if block.is_empty() {
        return Ok(end);
    }
    let end = staging.append(xid, block)?;
    block.clear();
    block.shrink_to(2 * PART_BYTES_MAX);
    Ok(end)
}
