//! Removes whole old segments once the journal is larger than it may be, or they are older, and never one that somebody needs.

use crate::disk::SyncPoint;
use crate::failure;
use crate::log::{End, Log, Segment};
use postrider_core::error::Result;
use postrider_core::ports::Room;
use postrider_core::position::Position;
use postrider_core::time::Timestamp;
use std::collections::VecDeque;
use std::time::Duration;

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// The sum of all segments may be so large before old ones go.
    pub(crate) bytes_max: u64,
    /// What was committed longer ago goes; `None`: age is no reason.
    pub(crate) age_max: Option<Duration>,
}

/// What is kept, and what is not needed.
#[derive(Debug, Clone)]
pub(crate) struct Retention {
    bounds: Bounds,
    /// Nobody needs what stands at or before this; nothing goes before somebody said so.
    released: Option<Position>,
    /// When that was said.
    now: Timestamp,
    /// Something changed since the last look.
    due: bool,
}

impl Retention {
    pub(crate) fn new(bounds: Bounds) -> Retention {
        Retention { bounds, released: None, now: Timestamp::default(), due: false }
    }

    pub(crate) fn release(&mut self, position: Position, now: Timestamp) {
        self.due |= self.released != Some(position) || self.bounds.age_max.is_some();
        self.released = Some(position);
        self.now = now;
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

    /// The oldest segment, if the journal is too large or the segment too old, the next one is on the disk, and everything in the
    /// oldest is released.
    fn removable(&self, segments: &VecDeque<Segment>, end: End) -> Option<Segment> {
        let (oldest, next) = (segments.front()?, segments.get(1)?);
        let goes = held_bytes(segments, end) > self.bounds.bytes_max || self.bounds.has_aged(next, self.now);
        (goes && next.proven && next.before <= self.released?).then_some(*oldest)
    }
}

impl Bounds {
    /// What would have to go now, whoever needs it.
    pub(crate) fn room(self, segments: &VecDeque<Segment>, end: End, now: Timestamp) -> Room {
        let held_bytes = held_bytes(segments, end);
        let beyond = |bytes_max: u64, has_aged: &dyn Fn(&Segment) -> bool| {
            let mut left = held_bytes;
            let mut last = None;
            for (oldest, next) in segments.iter().zip(segments.iter().skip(1)) {
                if left <= bytes_max && !has_aged(next) {
                    break;
                }
                left = left.saturating_sub(oldest.sealed_bytes);
                last = Some(next.before);
            }
            last
        };
        Room {
            held_bytes,
            limit_bytes: self.bytes_max,
            oldest: segments.front().map_or(Position::START, |segment| segment.before),
            expired: beyond(self.bytes_max, &|next| self.has_aged(next, now)),
            over: beyond(self.bytes_max, &|_| false),
            near: beyond(self.bytes_max / 5 * 4, &|_| false),
        }
    }

    /// Everything before this segment is older than it may be.
    fn has_aged(self, segment: &Segment, now: Timestamp) -> bool {
        self.age_max.zip(segment.begun_at).is_some_and(|(age_max, begun_at)| now.since(begun_at) > age_max)
    }
}

fn held_bytes(segments: &VecDeque<Segment>, end: End) -> u64 {
    let sealed: u64 = segments.iter().map(|segment| segment.sealed_bytes).fold(0, u64::saturating_add);
    // Right after a segment was finished, the end is still the one in it.
    let is_written = segments.back().is_some_and(|last| last.name.number == end.segment);
    sealed.saturating_add(if is_written { end.offset } else { 0 })
}
