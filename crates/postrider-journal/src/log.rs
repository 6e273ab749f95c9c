//! What the writer, the followers and the sync thread share: which segments there are, and how far they reach.

use crate::disk::Disk;
use crate::failure::{self, FirstFailure};
use crate::segment::SegmentName;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::position::{Generation, Lsn, Position};
use postrider_core::time::Timestamp;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The shared state of one open journal.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) generation: Generation,
    /// The end of the last complete transaction or mark that is appended.
    pub(crate) end: watch::Sender<End>,
    /// The end that a crash of the machine would leave.
    pub(crate) durable: watch::Sender<Lsn>,
    pub(crate) failure: FirstFailure,
    segments: Mutex<VecDeque<Segment>>,
}

/// A place where the log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    /// Number of the segment.
    pub(crate) segment: u64,
    /// Offset in its file, in bytes.
    pub(crate) offset: u64,
    pub(crate) lsn: Lsn,
}

/// A segment that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) name: SegmentName,
    /// The last transaction before it.
    pub(crate) before: Position,
    /// It has its proven name, durably.
    pub(crate) proven: bool,
    /// Its final length; 0 for the one that is being written.
    pub(crate) sealed_bytes: u64,
    /// When its first transaction was committed; `None` where it has none yet, or it cannot be read.
    pub(crate) begun_at: Option<Timestamp>,
    /// What commits in it at or after this never happened on the server that was adopted since.
    pub(crate) cut: Option<Lsn>,
}

impl Log {
    pub(crate) fn new(disk: Arc<dyn Disk>, segments: VecDeque<Segment>, end: End) -> Log {
        Log {
            disk,
            generation: segments.back().map_or(Generation::FIRST, |segment| segment.name.generation),
            end: watch::Sender::new(end),
            durable: watch::Sender::new(end.lsn),
            failure: FirstFailure::default(),
            segments: Mutex::new(segments),
        }
    }

    /// The generation of the newest segment.
    pub(crate) fn end_generation(&self) -> Generation {
        self.segments().back().map_or(self.generation, |segment| segment.name.generation)
    }

    /// The segments from the oldest to the one that is being written; never empty.
    pub(crate) fn segments(&self) -> MutexGuard<'_, VecDeque<Segment>> {
        // No code panics while it holds the lock, and each change is one assignment.
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The segment with this number, or the error of one who comes too late for it.
    pub(crate) fn segment(&self, number: u64) -> Result<Segment> {
        let segments = self.segments();
        match segments.binary_search_by_key(&number, |segment| segment.name.number) {
            Ok(index) => segments.get(index).copied().ok_or_else(|| too_old(&segments)),
            Err(_) => Err(too_old(&segments)),
        }
    }

    /// The segment that holds the first transaction after `after`. [`Position::START`] means the oldest that is held.
    pub(crate) fn segment_after(&self, after: Position) -> Result<Segment> {
        let segments = self.segments();
        let later = segments.partition_point(|segment| segment.before <= after);
        let index = if after == Position::START { Some(0) } else { later.checked_sub(1) };
        index.and_then(|index| segments.get(index).copied()).ok_or_else(|| too_old(&segments))
    }

    /// Ends the journal for everyone and returns the error.
    pub(crate) fn fail(&self, error: Error) -> Error {
        self.failure.keep(&error);
        // Wakes who waits for progress, so that they see the failure.
        self.durable.send_modify(|_| {});
        error
    }

    /// Ends the journal because the disk refused something.
    pub(crate) fn fail_disk(&self, message: &'static str, error: std::io::Error) -> Error {
        self.fail(failure::disk(message, error))
    }
}

fn too_old(segments: &VecDeque<Segment>) -> Error {
    let oldest = segments.front().map_or_else(String::new, |segment| segment.before.to_string());
    Error::new(ErrorKind::JournalForeign, "the journal no longer holds what comes after this position")
        .with_detail(format!("The oldest position that can be followed is {oldest}."))
        .with_hint("Rebuild the consumer from the tables, or stop Postrider and set it to what is held: postrider replay NAME --from beginning --skip")
}
