//! When to raise the socket's low-water mark, and when to lower it.
//!
//! The server sends each message of a transaction by itself. A reader that is woken for each costs the server more than
//! twice the processor time of the messages themselves; one that is woken for 32 KiB costs it nothing. Raised while the
//! stream is quiet, the mark would hold messages back.
//!
//! A mark that was not reached in time does not yet mean silence: a server that shares its processors may need longer to fill
//! it. So it is lowered, which brings what is queued, and raised again at once if that was much.

use std::time::{Duration, Instant};

/// So many reads within the window mean a busy stream.
const BUSY_READS: u32 = 32;
const BUSY_WINDOW: Duration = Duration::from_millis(4);
/// So long without a read means a quiet one.
const PATIENCE: Duration = Duration::from_millis(1);
/// From 16 KiB on the size makes no difference to the server. A busy stream fills this well within the patience, so that the mark
/// stays where it is.
const RAISED_BYTES: i32 = 32 * 1024;
const LOWERED_BYTES: i32 = 1;
/// So much queued when the mark is lowered means that the stream is busy all the same.
const BUSY_BYTES: usize = 16 * 1024;

/// Counts reads; time comes as an argument.
#[derive(Debug, Default)]
pub(super) struct LowWater {
    raised: bool,
    reads: u32,
    window_began: Option<Instant>,
    /// The mark was lowered at this time, and nothing has come since.
    lowered_at: Option<Instant>,
}

impl LowWater {
    /// Counts a read that brought bytes. Returns the mark to set, if it changes.
    pub(super) fn note_read(&mut self, now: Instant, bytes: usize) -> Option<i32> {
        if self.raised {
            return None;
        }
        let lowered_just_now =
            self.lowered_at.take().is_some_and(|at| now.saturating_duration_since(at) <= BUSY_WINDOW);
        if lowered_just_now && bytes >= BUSY_BYTES {
            self.raised = true;
            return Some(RAISED_BYTES);
        }
        let began = *self.window_began.get_or_insert(now);
        if now.saturating_duration_since(began) > BUSY_WINDOW {
            self.window_began = Some(now);
            self.reads = 1;
            return None;
        }
        self.reads = self.reads.saturating_add(1);
        if self.reads < BUSY_READS {
            return None;
        }
        self.raised = true;
        Some(RAISED_BYTES)
    }

    /// Nothing came for as long as `patience`, or nobody reads any more. Returns the mark to set, if it changes.
    pub(super) fn note_silence(&mut self, now: Instant) -> Option<i32> {
        let was_raised = self.raised;
        *self = LowWater { lowered_at: was_raised.then_some(now), ..LowWater::default() };
        was_raised.then_some(LOWERED_BYTES)
    }

    /// How long to wait for bytes before the mark must be lowered; `None` while it is low.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.raised.then_some(PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(low_water: &mut LowWater, from: Instant, count: u32, gap: Duration) -> Vec<Option<i32>> {
        (0..count).map(|turn| low_water.note_read(from + gap * turn, 100)).collect()
    }

    #[test]
    fn thirty_two_reads_within_four_milliseconds_raise_the_mark_once() {
        let mut low_water = LowWater::default();
        let changes = reads(&mut low_water, Instant::now(), 40, Duration::from_micros(100));
        let raised: Vec<_> =
            changes.iter().enumerate().filter_map(|(at, change)| change.map(|bytes| (at, bytes))).collect();
        assert_eq!(raised, [(31, RAISED_BYTES)]);
        assert_eq!(low_water.patience(), Some(PATIENCE));
    }

    #[test]
    fn slower_reads_never_raise_it() {
        let mut low_water = LowWater::default();
        let changes = reads(&mut low_water, Instant::now(), 1000, Duration::from_micros(140));
        assert!(changes.iter().all(Option::is_none));
        assert_eq!(low_water.patience(), None);
        assert_eq!(low_water.note_silence(Instant::now()), None);
    }

    #[test]
    fn silence_lowers_it_and_the_count_begins_anew() {
        let mut low_water = LowWater::default();
        let start = Instant::now();
        reads(&mut low_water, start, 32, Duration::ZERO);
        assert_eq!(low_water.note_silence(start), Some(1));
        assert_eq!(low_water.note_silence(start), None);
        assert_eq!(low_water.patience(), None);
        let changes = reads(&mut low_water, start, 32, Duration::ZERO);
        assert_eq!(changes.iter().flatten().count(), 1);
        assert_eq!(changes[31], Some(RAISED_BYTES));
    }

    #[test]
    fn much_that_was_queued_when_it_was_lowered_raises_it_again() {
        let start = Instant::now();
        for (bytes, after, wanted) in [
            (BUSY_BYTES, Duration::from_millis(4), Some(RAISED_BYTES)),
            (BUSY_BYTES - 1, Duration::from_millis(4), None),
            (BUSY_BYTES, Duration::from_millis(5), None),
        ] {
            let mut low_water = LowWater::default();
            reads(&mut low_water, start, 32, Duration::ZERO);
            low_water.note_silence(start);
            assert_eq!(low_water.note_read(start + after, bytes), wanted, "{bytes} {after:?}");
            // Only the first read behind the silence says so.
            if wanted.is_none() {
                assert_eq!(low_water.note_read(start + after, BUSY_BYTES), None, "{bytes} {after:?}");
            }
        }
    }
}
