//! How far the stream is behind the commits it tells of, by the server's own clock.

use std::time::Duration;

use crate::wire::message;

/// Where the time of sending stands in a `CopyData` message with `XLogData`: behind the header, the kind and two LSNs.
const SENT_AT: usize = message::HEADER_BYTES + 1 + 16;
/// Where the commit's time stands in BEGIN: behind the kind and an LSN.
const BEGIN_TIME: usize = 1 + 8;
/// And in STREAM COMMIT: behind the kind, the xid, the flags and two LSNs.
const STREAM_COMMIT_TIME: usize = 1 + 4 + 1 + 16;

/// The last commit that was told of, and when the server sent the last message.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    committed_at: i64,
    sent_at: i64,
}

impl Lateness {
    /// Takes one whole `CopyData` message; one that is too short for what it is to hold is left to *assemble*.
    pub(super) fn note(&mut self, copy_data: &[u8]) {
        let Some((sent_at, payload)) = copy_data.get(SENT_AT..).and_then(<[u8]>::split_first_chunk::<8>) else {
            return;
        };
        self.sent_at = i64::from_be_bytes(*sent_at);
        let time_at = |offset: usize| payload.get(offset..).and_then(<[u8]>::first_chunk).copied();
        let committed_at = match payload.first() {
            Some(b'B') => time_at(BEGIN_TIME).map(i64::from_be_bytes),
            Some(b'c') => time_at(STREAM_COMMIT_TIME).map(i64::from_be_bytes),
            // A transaction that has not committed: nobody waits for its rows yet.
            Some(b'S') => Some(0),
            _ => None,
        };
        self.committed_at = committed_at.unwrap_or(self.committed_at);
    }

    /// Zero before the first message.
    pub(super) fn behind(&self) -> Duration {
        let micros = self.sent_at.saturating_sub(self.committed_at);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "a test may stop at the first surprise"
    )]
    use super::*;

    fn x_log_data(sent_at: i64, payload: &[&[u8]]) -> Vec<u8> {
        let body = [b"w", &[0; 16][..], &sent_at.to_be_bytes(), &payload.concat()].concat();
        [b"d", &u32::try_from(body.len() + 4).unwrap_or(0).to_be_bytes()[..], &body].concat()
    }

    #[test]
    fn the_last_message_was_sent_so_long_after_the_last_commit_that_was_told_of() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.behind(), Duration::ZERO);
        let mut after = |message: Vec<u8>| {
            lateness.note(&message);
            lateness.behind().as_micros()
        };
        assert_eq!(after(x_log_data(1_000, &[b"B", &[9; 8], &400_i64.to_be_bytes(), &[0; 4]])), 600);
        assert_eq!(after(x_log_data(1_500, &[b"I", &[7; 30]])), 1_100);
        assert_eq!(after(x_log_data(2_000, &[b"c", &[0; 4], &[0], &[9; 16], &1_990_i64.to_be_bytes()])), 10);
        assert_eq!(after(x_log_data(2_000, &[b"B", &[9; 8], &3_000_i64.to_be_bytes(), &[0; 4]])), 0);
        assert_eq!(after(x_log_data(5_000, &[b"S", &[0; 5]])), 5_000);
        assert_eq!(after(x_log_data(5_001, &[b"B", &[9; 7]])), 5_001, "too short to say");
        assert_eq!(after(b"d\0\0\0\x05w".to_vec()), 5_001, "too short to be one");
    }
}
