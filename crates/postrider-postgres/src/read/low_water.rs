//! When to raise the socket's low-water mark, when to lower it, and when to let the server go on alone for a while.
//!
//! The server sends each message of a transaction by itself. A reader that is woken for each costs the server more than
//! twice the processor time of the messages themselves; one that is woken for 32 KiB costs it less. Raised while the
//! stream is quiet, the mark would hold messages back.
//!
//! A mark that was not reached in time does not yet mean silence: a server that shares its processors may need longer to fill
//! it. So it is lowered, which brings what is queued, and raised again at once if that was much.
//!
//! What the mark does not save is the way of each message through the network's layers, which is half of the server's work.
//! That ends while the receiving window is full: the messages then pile up in the server's send buffer and leave it as segments
//! of 64 KiB. So from a server on this machine, whose stream is behind by more than its messages can be late, the reader takes
//! what is there and then naps. The window is kept small enough ([`WINDOW_BYTES`]) to be full for most of a nap, the nap short
//! enough that the send buffer (4 MiB) never is.

use std::time::{Duration, Instant};

/// So many reads within the window mean a busy stream, and so do so many bytes: a reader that is short of processor time is woken less
/// often. They fill the raised mark within the patience.
const BUSY_READS: u32 = 32;
const BUSY_WINDOW_BYTES: usize = 128 * 1024;
const BUSY_WINDOW: Duration = Duration::from_millis(4);
/// So long without a read means a quiet one.
const PATIENCE: Duration = Duration::from_millis(1);
/// From 16 KiB on the size makes no difference to the server. A busy stream fills this well within the patience, so that the mark
/// stays where it is.
const RAISED_BYTES: i32 = 32 * 1024;
const LOWERED_BYTES: i32 = 1;
/// So much queued when the mark is lowered means that the stream is busy all the same.
const BUSY_BYTES: usize = 16 * 1024;

/// The receive buffer of a connection to a server on this machine, as set; the kernel doubles it, and half of it is the window.
pub(crate) const WINDOW_BYTES: i32 = 64 * 1024;
/// Nothing is late by a nap of some milliseconds that is late by this much already.
const BEHIND: Duration = Duration::from_millis(100);
/// At 4 ms the window is not full for long, at 16 the send buffer sometimes is.
const NAP: Duration = Duration::from_millis(12);
/// A read that brings less, and had room for more, has taken the last of what had piled up.
const LAST_READ_BYTES: usize = 32 * 1024;
/// A nap that brings less has saved nothing.
const WORTHWHILE_BYTES: usize = 64 * 1024;

/// Counts reads; time comes as an argument.
#[derive(Debug, Default)]
pub(super) struct LowWater {
    /// The server is on this machine and the window bounded, so that naps pay.
    naps: bool,
    pace: Pace,
    reads: u32,
    window_bytes: usize,
    window_began: Option<Instant>,
    /// The mark was lowered at this time, and nothing has come since.
    lowered_at: Option<Instant>,
    /// How far the stream is behind the commits it tells of.
    behind: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Pace {
    /// Woken for each byte.
    #[default]
    Prompt,
    /// Woken for [`RAISED_BYTES`].
    Raised,
    /// Reading what has piled up, so much so far; of these, so many by a read that had no room for more.
    Taking { bytes: usize, cut: usize },
    /// Not reading before this.
    Napping { until: Instant },
}

/// How to wait for the next bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Forever,
    /// Then the silence must be noted.
    AtMost(Duration),
    /// Until then nothing is read; then ask again.
    Nap(Instant),
}

impl LowWater {
    pub(super) fn new(naps: bool) -> LowWater {
        LowWater { naps, ..LowWater::default() }
    }

    /// The server sent a commit at so long after it.
    pub(super) fn note_behind(&mut self, behind: Duration) {
        self.behind = behind;
    }

    /// Counts a read that brought bytes into so much room. Returns the mark to set, if it changes.
    pub(super) fn note_read(&mut self, now: Instant, bytes: usize, room: usize) -> Option<i32> {
        match self.pace {
            Pace::Prompt => {
                if !self.is_busy(now, bytes) {
                    return None;
                }
                self.pace = Pace::Raised;
                Some(RAISED_BYTES)
            }
            Pace::Raised => {
                if !self.naps || self.behind < BEHIND {
                    return None;
                }
                self.pace = Pace::Napping { until: now + NAP };
                Some(WINDOW_BYTES)
            }
            Pace::Taking { bytes: before, cut } => {
                let taken = before.saturating_add(bytes);
                // The window was full for both reads together where the first of them had no room for all of it.
                let is_last = bytes < room && cut.saturating_add(bytes) < LAST_READ_BYTES;
                self.pace = if !is_last || taken < WORTHWHILE_BYTES {
                    Pace::Taking { bytes: taken, cut: if bytes < room { 0 } else { bytes } }
                } else if self.behind >= BEHIND {
                    Pace::Napping { until: now + NAP }
                } else {
                    Pace::Raised
                };
                (self.pace == Pace::Raised).then_some(RAISED_BYTES)
            }
            // A nap that was not slept to its end.
            Pace::Napping { .. } => None,
        }
    }

    /// Nothing came for as long as it was waited. Returns the mark to set, if it changes.
    pub(super) fn note_silence(&mut self, now: Instant) -> Option<i32> {
        match self.pace {
            Pace::Taking { bytes, .. } if bytes >= WORTHWHILE_BYTES && self.behind >= BEHIND => {
                self.pace = Pace::Napping { until: now + NAP };
                None
            }
            _ => self.lower(now),
        }
    }

    /// Wakes for each byte from now on, because nothing came or nobody reads any more. Returns the mark to set, if it changes.
    pub(super) fn lower(&mut self, now: Instant) -> Option<i32> {
        let was_low = self.pace == Pace::Prompt;
        let lowered_at = (!was_low).then_some(now);
        *self = LowWater { naps: self.naps, behind: self.behind, lowered_at, ..LowWater::default() };
        (!was_low).then_some(LOWERED_BYTES)
    }

    /// How to wait for bytes now.
    pub(super) fn wait(&mut self, now: Instant) -> Wait {
        match self.pace {
            Pace::Prompt => Wait::Forever,
            Pace::Raised | Pace::Taking { .. } => Wait::AtMost(PATIENCE),
            Pace::Napping { until } if until <= now => {
                self.pace = Pace::Taking { bytes: 0, cut: 0 };
                Wait::AtMost(PATIENCE)
            }
            Pace::Napping { until } => Wait::Nap(until),
        }
    }

    fn is_busy(&mut self, now: Instant, bytes: usize) -> bool {
        let lowered_just_now =
            self.lowered_at.take().is_some_and(|at| now.saturating_duration_since(at) <= BUSY_WINDOW);
        if lowered_just_now && bytes >= BUSY_BYTES {
            return true;
        }
        let began = *self.window_began.get_or_insert(now);
        if now.saturating_duration_since(began) > BUSY_WINDOW {
            self.window_began = Some(now);
            (self.reads, self.window_bytes) = (1, bytes);
            return false;
        }
        self.reads = self.reads.saturating_add(1);
        self.window_bytes = self.window_bytes.saturating_add(bytes);
        self.reads >= BUSY_READS || self.window_bytes >= BUSY_WINDOW_BYTES
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::indexing_slicing,
        clippy::as_conversions,
        clippy::arithmetic_side_effects,
        reason = "a test may stop at the first surprise"
    )]
    use super::*;

    const LITTLE: usize = 100;
    const ROOM: usize = 256 * 1024;

    fn reads(low_water: &mut LowWater, from: Instant, count: u32, gap: Duration) -> Vec<Option<i32>> {
        (0..count).map(|turn| low_water.note_read(from + gap * turn, LITTLE, ROOM)).collect()
    }

    /// A stream that is busy at `at`, and so far behind.
    fn busy(naps: bool, behind: Duration, at: Instant) -> LowWater {
        let mut low_water = LowWater::new(naps);
        low_water.note_behind(behind);
        reads(&mut low_water, at, BUSY_READS, Duration::ZERO);
        assert_eq!(low_water.wait(at), Wait::AtMost(PATIENCE));
        low_water
    }

    #[test]
    fn thirty_two_reads_within_four_milliseconds_raise_the_mark_once() {
        let mut low_water = LowWater::default();
        let changes = reads(&mut low_water, Instant::now(), 40, Duration::from_micros(100));
        let raised: Vec<_> =
            changes.iter().enumerate().filter_map(|(at, change)| change.map(|bytes| (at, bytes))).collect();
        assert_eq!(raised, [(31, RAISED_BYTES)]);
        assert_eq!(low_water.wait(Instant::now()), Wait::AtMost(PATIENCE));
    }

    #[test]
    fn much_within_four_milliseconds_raises_the_mark_in_however_few_reads() {
        let start = Instant::now();
        for (gap, wanted) in [(Duration::from_millis(1), Some(RAISED_BYTES)), (Duration::from_millis(2), None)] {
            let mut low_water = LowWater::default();
            let read = |turn: u32| low_water.note_read(start + gap * turn, BUSY_WINDOW_BYTES / 4, ROOM);
            let changes: Vec<_> = (0..4).map(read).collect();
            assert_eq!(changes, [None, None, None, wanted], "{gap:?}");
        }
    }

    #[test]
    fn slower_reads_never_raise_it() {
        let mut low_water = LowWater::default();
        let changes = reads(&mut low_water, Instant::now(), 1000, Duration::from_micros(140));
        assert!(changes.iter().all(Option::is_none));
        assert_eq!(low_water.wait(Instant::now()), Wait::Forever);
        assert_eq!(low_water.note_silence(Instant::now()), None);
    }

    #[test]
    fn silence_lowers_it_and_the_count_begins_anew() {
        let start = Instant::now();
        let mut low_water = busy(false, Duration::ZERO, start);
        assert_eq!(low_water.note_silence(start), Some(LOWERED_BYTES));
        assert_eq!(low_water.note_silence(start), None);
        assert_eq!(low_water.wait(start), Wait::Forever);
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
            let mut low_water = busy(false, Duration::ZERO, start);
            low_water.note_silence(start);
            assert_eq!(low_water.note_read(start + after, bytes, ROOM), wanted, "{bytes} {after:?}");
            // Only the first read behind the silence says so.
            if wanted.is_none() {
                assert_eq!(low_water.note_read(start + after, BUSY_BYTES, ROOM), None, "{bytes} {after:?}");
            }
        }
    }

    #[test]
    fn only_a_busy_stream_from_this_machine_that_is_late_anyway_is_napped_on() {
        let start = Instant::now();
        for (naps, behind, wanted) in [
            (true, BEHIND, Wait::Nap(start + NAP)),
            (true, BEHIND - Duration::from_micros(1), Wait::AtMost(PATIENCE)),
            (false, BEHIND, Wait::AtMost(PATIENCE)),
        ] {
            let mut low_water = busy(naps, behind, start);
            low_water.note_read(start, LITTLE, ROOM);
            assert_eq!(low_water.wait(start), wanted, "{naps} {behind:?}");
        }
        let mut quiet = LowWater::new(true);
        quiet.note_behind(BEHIND);
        quiet.note_read(start, LITTLE, ROOM);
        assert_eq!(quiet.wait(start), Wait::Forever);
    }

    #[test]
    fn a_nap_that_brought_much_is_followed_by_another_once_all_is_taken() {
        let start = Instant::now();
        let mut low_water = busy(true, BEHIND, start);
        assert_eq!(low_water.note_read(start, LITTLE, ROOM), Some(WINDOW_BYTES));
        let woken = start + NAP;
        assert_eq!(low_water.wait(woken), Wait::AtMost(PATIENCE));
        assert_eq!(low_water.note_read(woken, LAST_READ_BYTES, ROOM), None);
        assert_eq!(low_water.note_read(woken, LAST_READ_BYTES, ROOM), None);
        assert_eq!(low_water.wait(woken), Wait::AtMost(PATIENCE), "there may be more");
        assert_eq!(low_water.note_read(woken, LAST_READ_BYTES - 1, ROOM), None);
        assert_eq!(low_water.wait(woken), Wait::Nap(woken + NAP), "that was the last of it");
        // What only filled the room that was left is not the last of it, nor is what that left over.
        let woken = woken + NAP;
        assert_eq!(low_water.wait(woken), Wait::AtMost(PATIENCE));
        for (bytes, room) in
            [(WORTHWHILE_BYTES, ROOM), (LITTLE, LITTLE), (LAST_READ_BYTES, LAST_READ_BYTES), (LITTLE, ROOM)]
        {
            assert_eq!(low_water.note_read(woken, bytes, room), None);
            assert_eq!(low_water.wait(woken), Wait::AtMost(PATIENCE), "there may be more");
        }
        assert_eq!(low_water.note_read(woken, LITTLE, ROOM), None);
        assert_eq!(low_water.wait(woken), Wait::Nap(woken + NAP), "that was the last of it");
        // The last of it may also fill the read, so that only silence tells.
        let woken = woken + NAP;
        assert_eq!(low_water.wait(woken), Wait::AtMost(PATIENCE));
        low_water.note_read(woken, WORTHWHILE_BYTES, ROOM);
        assert_eq!(low_water.note_silence(woken), None);
        assert_eq!(low_water.wait(woken), Wait::Nap(woken + NAP));
    }

    #[test]
    fn a_nap_that_brought_little_is_the_last_and_so_is_one_that_caught_up() {
        let start = Instant::now();
        let mut low_water = busy(true, BEHIND, start);
        low_water.note_read(start, LITTLE, ROOM);
        assert_eq!(low_water.wait(start + NAP), Wait::AtMost(PATIENCE));
        assert_eq!(low_water.note_silence(start + NAP), Some(LOWERED_BYTES));
        assert_eq!(low_water.wait(start + NAP), Wait::Forever);

        let mut low_water = busy(true, BEHIND, start);
        low_water.note_read(start, LITTLE, ROOM);
        low_water.wait(start + NAP);
        low_water.note_read(start + NAP, WORTHWHILE_BYTES, ROOM);
        low_water.note_behind(Duration::ZERO);
        assert_eq!(low_water.note_read(start + NAP, LITTLE, ROOM), Some(RAISED_BYTES));
        assert_eq!(low_water.wait(start + NAP), Wait::AtMost(PATIENCE));
    }

    #[test]
    fn whoever_leaves_in_the_middle_of_a_nap_leaves_the_mark_low() {
        let start = Instant::now();
        let mut low_water = busy(true, BEHIND, start);
        low_water.note_read(start, LITTLE, ROOM);
        assert_eq!(low_water.lower(start), Some(LOWERED_BYTES));
        assert_eq!(low_water.wait(start), Wait::Forever);
    }
}
