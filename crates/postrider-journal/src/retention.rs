//! Removes whole old segments once the journal is larger than it may be, and never one that somebody needs.

use crate::disk::SyncPoint;
use crate::failure;
use crate::log::{End, Log, Segment};
use postrider_core::error::Result;
use postrider_core::position::Position;
use std::collections::VecDeque;

/// How much is kept.
#[derive(Debug, Clone)]
pub(crate) struct Retention {
    /// The sum of all segments may be so large before old ones go.
    bytes_max: u64,
    /// Nobody needs what stands at or before this; nothing goes before somebody said so.
    released: Option<Position>,
    /// Something changed since the last look.
    due: bool,
}

impl Retention {
    pub(crate) fn new(bytes_max: u64) -> Retention {
        Retention { bytes_max, released: None, due: false }
    }

    pub(crate) fn release(&mut self, position: Position) {
        self.due |= self.released != Some(position);
        self.released = Some(position);
    }

    /// A segment was finished.
    pub(crate) fn look_again(&mut self) {
        self.due = true;
    }

    /// What to apply, once for each change.
    pub(crate) fn take_due(&mut self) -> Option<Retention> {
        if !self.due {
            return None;
        }
        self.due = false;
        Some(self.clone())
    }

    /// Removes what may go. Each name is gone durably before the next goes, so that a crash leaves no gap.
    pub(crate) fn apply(&self, log: &Log) -> Result<()> {
        let refused = |error| failure::disk("cannot remove an old segment of the journal", error);
        loop {
            let oldest = {
                let end = *log.end.borrow();
                let mut segments = log.segments();
                let Some(oldest) = self.removable(&segments, end) else { break };
                // First from the list, so that who does not find the file sees why.
                segments.pop_front();
                oldest
            };
            log.disk.remove(&oldest.name.proven()).map_err(refused)?;
            log.disk.sync_names(SyncPoint::SegmentRemoved).map_err(refused)?;
            tracing::debug!(segment = oldest.name.number, bytes = oldest.sealed_bytes, "removed an old segment");
        }
        Ok(())
    }

    /// The oldest segment, if the journal is too large, the next one is on the disk, and everything in the oldest is released.
    fn removable(&self, segments: &VecDeque<Segment>, end: End) -> Option<Segment> {
        let (oldest, next) = (segments.front()?, segments.get(1)?);
        let sealed: u64 = segments.iter().map(|segment| segment.sealed_bytes).fold(0, u64::saturating_add);
        // Right after a segment was finished, the end is still the one in it.
        let written_bytes = if segments.back()?.name.number == end.segment { end.offset } else { 0 };
        let too_large = sealed.saturating_add(written_bytes) > self.bytes_max;
        (too_large && next.proven && next.before <= self.released?).then_some(*oldest)
    }
}
