//! What: splits the bytes of a replication stream into frames.
//! Where: first step of the walk, after *read*; the bytes come from the socket's buffer and are not copied.
//! Takes and gives: whole `CopyData` messages as one [`Bytes`]; one [`Frame`] for each, borrowed.
//! Never: looks into a pgoutput message, waits, or trusts a length.

use crate::position::Lsn;
use crate::time::Timestamp;
use bytes::Bytes;
use std::fmt;

/// Whole `CopyData` messages as they came from the socket, one after the other: `d`, a 32-bit length that counts
/// itself, the body.
#[derive(Debug, Clone, Default)]
pub struct FrameBatch {
    bytes: Bytes,
}

/// One message of the streaming replication protocol (PostgreSQL manual, "Streaming Replication Protocol").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// `XLogData`: one message of the output plugin. `wal_start` orders nothing: it goes backwards between transactions and
    /// is 0/0 for some messages.
    XLogData { wal_start: Lsn, sent_at: Timestamp, payload: &'a [u8] },
    /// `Primary keepalive message`: the server has read its log up to `wal_end` and has sent all there was to send below.
    KeepAlive { wal_end: Lsn, sent_at: Timestamp, reply_requested: bool },
}

/// A frame that does not follow the protocol, and where it starts in the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameError {
    pub offset: usize,
    pub problem: FrameProblem,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameProblem {
    /// The message is not `CopyData`.
    NotCopyData(u8),
    /// The message is longer than the batch, or its length is below the least possible.
    Length,
    /// The first byte of the body is neither `w` nor `k`.
    UnknownKind(u8),
    /// The body ends within a field.
    Truncated,
}

impl FrameBatch {
    /// Takes bytes that begin and end at message boundaries.
    pub fn new(bytes: Bytes) -> FrameBatch {
        FrameBatch { bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Length in bytes, headers included.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The frames in order; after an error there are no more.
    pub fn frames(&self) -> Frames<'_> {
        Frames { rest: &self.bytes, offset: 0 }
    }
}

/// Iterator over the frames of a batch.
#[derive(Debug)]
pub struct Frames<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match split(self.rest) {
            Ok((body, rest)) => {
                let frame = parse(body).map_err(|problem| FrameError { offset: self.offset, problem });
                self.offset += self.rest.len() - rest.len();
                self.rest = if frame.is_ok() { rest } else { &[] };
                Some(frame)
            }
            Err(problem) => {
                self.rest = &[];
                Some(Err(FrameError { offset: self.offset, problem }))
            }
        }
    }
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problem {
            FrameProblem::NotCopyData(tag) => write!(f, "message type 0x{tag:02x} instead of CopyData")?,
            FrameProblem::Length => f.write_str("impossible message length")?,
            FrameProblem::UnknownKind(kind) => write!(f, "unknown replication message 0x{kind:02x}")?,
            FrameProblem::Truncated => f.write_str("message ends within a field")?,
        }
        write!(f, " at byte {} of the batch", self.offset)
    }
}

impl std::error::Error for FrameError {}

fn split(bytes: &[u8]) -> Result<(&[u8], &[u8]), FrameProblem> {
    let (&tag, after_tag) = bytes.split_first().ok_or(FrameProblem::Truncated)?;
    if tag != b'd' {
        return Err(FrameProblem::NotCopyData(tag));
    }
    let (length, after_length) = after_tag.split_first_chunk::<4>().ok_or(FrameProblem::Length)?;
    let body_len = usize::try_from(u32::from_be_bytes(*length))
        .ok()
        .and_then(|length| length.checked_sub(4))
        .ok_or(FrameProblem::Length)?;
    after_length.split_at_checked(body_len).ok_or(FrameProblem::Length)
}

fn parse(body: &[u8]) -> Result<Frame<'_>, FrameProblem> {
    let (&kind, rest) = body.split_first().ok_or(FrameProblem::Truncated)?;
    match kind {
        b'w' => {
            let (wal_start, rest) = take_u64(rest)?;
            let (_wal_end, rest) = take_u64(rest)?;
            let (sent_at, payload) = take_u64(rest)?;
            Ok(Frame::XLogData { wal_start: Lsn(wal_start), sent_at: timestamp(sent_at), payload })
        }
        b'k' => {
            let (wal_end, rest) = take_u64(rest)?;
            let (sent_at, rest) = take_u64(rest)?;
            let reply = rest.first().ok_or(FrameProblem::Truncated)?;
            Ok(Frame::KeepAlive { wal_end: Lsn(wal_end), sent_at: timestamp(sent_at), reply_requested: *reply != 0 })
        }
        other => Err(FrameProblem::UnknownKind(other)),
    }
}

fn take_u64(bytes: &[u8]) -> Result<(u64, &[u8]), FrameProblem> {
    let (field, rest) = bytes.split_first_chunk::<8>().ok_or(FrameProblem::Truncated)?;
    Ok((u64::from_be_bytes(*field), rest))
}

fn timestamp(micros: u64) -> Timestamp {
    Timestamp::from_postgres_micros(micros.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy_data(body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).expect("short body").to_be_bytes();
        [b"d", &length[..], body].concat()
    }

    fn x_log_data(payload: &[u8]) -> Vec<u8> {
        copy_data(&[b"w", &7u64.to_be_bytes()[..], &9u64.to_be_bytes(), &0u64.to_be_bytes(), payload].concat())
    }

    #[test]
    fn frames_come_in_order_and_borrow_their_payload() {
        let keep_alive = copy_data(&[b"k", &5u64.to_be_bytes()[..], &1u64.to_be_bytes(), &[1]].concat());
        let batch = FrameBatch::new([x_log_data(b"abc"), keep_alive].concat().into());
        let frames: Vec<_> = batch.frames().collect();
        let sent_at = Timestamp::from_postgres_micros(0);
        assert_eq!(
            frames,
            [
                Ok(Frame::XLogData { wal_start: Lsn(7), sent_at, payload: b"abc" }),
                Ok(Frame::KeepAlive { wal_end: Lsn(5), sent_at: Timestamp(sent_at.0 + 1), reply_requested: true }),
            ]
        );
    }

    #[test]
    fn every_cut_of_a_batch_ends_in_an_error_and_never_in_a_panic() {
        let whole = [x_log_data(b"abc"), x_log_data(b"")].concat();
        let boundary = x_log_data(b"abc").len();
        for cut in 1..whole.len() {
            let batch = FrameBatch::new(whole[..cut].to_vec().into());
            let last = batch.frames().last().expect("at least one frame");
            assert_eq!(last.is_ok(), cut == boundary, "cut at {cut}");
        }
    }

    #[test]
    fn foreign_messages_are_named_with_their_offset() {
        let batch = FrameBatch::new([x_log_data(b""), b"Z".to_vec()].concat().into());
        let error = batch.frames().last().expect("two frames").expect_err("not CopyData");
        assert_eq!(error, FrameError { offset: 30, problem: FrameProblem::NotCopyData(b'Z') });
        let unknown = FrameBatch::new(copy_data(b"?").into());
        let error = unknown.frames().next().expect("one frame").expect_err("unknown kind");
        assert_eq!(error.problem, FrameProblem::UnknownKind(b'?'));
    }
}
