//! What: reads the replication stream: whole runs of `CopyData` messages, as they came, without a copy.
//! Where: *read*, the first step of the walk; its counterpart is *confirm*.
//! Takes and gives: the reading half of the socket; a `FrameBatch` of all that has arrived.
//! Never: looks into a frame but for a keep-alive and the time of a commit, or takes longer than a nap of 12 ms for what is there.
#![deny(clippy::indexing_slicing, clippy::as_conversions, clippy::arithmetic_side_effects)]

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::frame::FrameBatch;
use postrider_core::ports::{BoxFuture, LogReader};
use postrider_core::position::Lsn;
use tokio::io::{AsyncReadExt as _, ReadHalf};
use tokio::time::{sleep_until, timeout};

use crate::confirm::Feedback;
use crate::errors::{Phase, ServerMessage, map_io_error, map_server_message, name_slot, protocol_violation};
use crate::wire::socket::{LowWaterMark, Socket};
use crate::wire::{log_notice, malformed, message, unexpected};
use lateness::Lateness;
use low_water::{LowWater, WINDOW_BYTES, Wait};

mod lateness;
#[expect(clippy::arithmetic_side_effects, reason = "it reckons with times of our own clock, and reads no bytes")]
mod low_water;
pub(crate) mod timeline;

/// The least room that a read finds.
const READ_BYTES: usize = 64 * 1024;
/// What the buffer grows by when the room runs out.
const GROWTH_BYTES: usize = 256 * 1024;
/// A buffer that a long message made larger than this is given up with the message.
const KEPT_BYTES_MAX: usize = 1024 * 1024;

/// Length of a keep-alive's body: its kind, `wal_end`, the time, whether an answer is wanted.
const KEEPALIVE_BODY_BYTES: usize = 18;

/// The stream's reader.
pub(crate) struct StreamReader {
    /// Gone once the stream has ended.
    incoming: Option<Incoming>,
    feedback: Arc<Feedback>,
    /// For the cure of what the server says.
    slot: String,
}

/// The reading half of the socket and what was received and not yet passed on.
pub(crate) struct Incoming {
    half: ReadHalf<Socket>,
    received: BytesMut,
    endpoint: String,
    low_water: LowWater,
    lateness: Lateness,
    mark: Option<LowWaterMark>,
    /// The buffer was made larger than what is kept.
    oversized: bool,
}

/// What stands at the front of the received bytes.
enum Front {
    /// Whole `CopyData` messages, so many bytes together.
    Frames(usize),
    /// Another whole message.
    Other,
    /// The begin of a message that lacks at least so many bytes.
    Part { missing: usize },
}

impl StreamReader {
    pub(crate) fn new(incoming: Incoming, feedback: Arc<Feedback>, slot: &str) -> StreamReader {
        StreamReader { incoming: Some(incoming), feedback, slot: slot.to_owned() }
    }

    async fn read_batch(&mut self) -> Result<FrameBatch> {
        let Some(incoming) = &mut self.incoming else {
            return Err(Error::new(ErrorKind::Disconnected, "the stream has ended"));
        };
        let outcome = incoming.read_batch(&self.feedback).await;
        if outcome.is_err() {
            self.give_back();
        }
        outcome.map_err(|refusal| name_slot(refusal, &self.slot))
    }

    /// Lets *confirm* read the rest, which is how it learns that the server has ended the session.
    fn give_back(&mut self) {
        if let Some(mut incoming) = self.incoming.take() {
            let lowered = incoming.low_water.lower(Instant::now());
            incoming.set_mark(lowered);
            self.feedback.take_back(incoming);
        }
    }
}

impl LogReader for StreamReader {
    fn read(&mut self) -> BoxFuture<'_, Result<FrameBatch>> {
        Box::pin(self.read_batch())
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl fmt::Debug for StreamReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamReader").field("ended", &self.incoming.is_none()).finish_non_exhaustive()
    }
}

impl Incoming {
    /// `received` is what came after the server's `CopyBothResponse`.
    pub(crate) fn new(
        half: ReadHalf<Socket>,
        received: BytesMut,
        endpoint: String,
        mark: Option<LowWaterMark>,
    ) -> Incoming {
        let naps = mark.is_some_and(|mark| mark.is_local() && mark.bound_window(WINDOW_BYTES).is_ok());
        let low_water = LowWater::new(naps);
        Incoming { half, received, endpoint, low_water, lateness: Lateness::default(), mark, oversized: false }
    }

    /// Reads and forgets until the server has closed the connection.
    pub(crate) async fn drain(mut self) {
        loop {
            self.received.clear();
            self.received.reserve(READ_BYTES);
            if !matches!(self.half.read_buf(&mut self.received).await, Ok(1..)) {
                return;
            }
        }
    }

    async fn read_batch(&mut self, feedback: &Feedback) -> Result<FrameBatch> {
        loop {
            match scan(&self.received, feedback, &mut self.lateness)? {
                Front::Frames(len) => return Ok(FrameBatch::new(self.split(len))),
                Front::Other => self.handle_other()?,
                Front::Part { missing } => self.fill(missing).await?,
            }
        }
    }

    fn split(&mut self, len: usize) -> Bytes {
        let frames = self.received.split_to(len).freeze();
        if self.oversized {
            // The large allocation goes when the frames go; what follows them moves to one of the usual size.
            let rest = std::mem::take(&mut self.received);
            self.received.reserve(GROWTH_BYTES.max(rest.len()));
            self.received.extend_from_slice(&rest);
            self.oversized = self.received.capacity() > KEPT_BYTES_MAX;
        }
        frames
    }

    fn handle_other(&mut self) -> Result<()> {
        let Some((tag, body)) = message::take(&mut self.received)? else { return Ok(()) };
        match tag {
            message::ERROR_RESPONSE => {
                let refusal = ServerMessage::parse(&body).ok_or_else(|| malformed("ErrorResponse"))?;
                Err(map_server_message(Phase::Stream, &refusal))
            }
            message::NOTICE_RESPONSE => {
                let notice = ServerMessage::parse(&body).ok_or_else(|| malformed("NoticeResponse"))?;
                // From version 18 on the server goes on and leaves changes out, which is a loss and no notice.
                if notice.is_skipped_publication() {
                    return Err(map_server_message(Phase::Stream, &notice));
                }
                log_notice(&notice);
                Ok(())
            }
            message::PARAMETER_STATUS | message::NOTIFICATION_RESPONSE => Ok(()),
            message::COPY_DONE | message::COMMAND_COMPLETE | message::READY_FOR_QUERY => {
                Err(Error::new(ErrorKind::Disconnected, "the server ended the stream")
                    .with_detail(format!("The server is {}; it does so when it shuts down.", self.endpoint)))
            }
            other => Err(unexpected(other)),
        }
    }

    /// Waits for more bytes. Cancelling loses nothing: what is read is in the buffer.
    async fn fill(&mut self, missing: usize) -> Result<()> {
        let room = self.make_room(missing);
        self.low_water.note_behind(self.lateness.behind());
        let outcome = match self.low_water.wait(Instant::now()) {
            Wait::Forever => self.half.read_buf(&mut self.received).await,
            Wait::AtMost(patience) => match timeout(patience, self.half.read_buf(&mut self.received)).await {
                Ok(outcome) => outcome,
                Err(_elapsed) => {
                    let change = self.low_water.note_silence(Instant::now());
                    self.set_mark(change);
                    return Ok(());
                }
            },
            Wait::Nap(until) => {
                sleep_until(until.into()).await;
                return Ok(());
            }
        };
        let count =
            outcome.map_err(|error| map_io_error("the connection to the server is lost", &self.endpoint, error))?;
        if count == 0 {
            return Err(Error::new(ErrorKind::Disconnected, "the server closed the connection")
                .with_detail(format!("The server is {}.", self.endpoint))
                .with_hint("The server's log says why, if it was not a crash or the network."));
        }
        if self.mark.is_some() {
            let change = self.low_water.note_read(Instant::now(), count, room);
            self.set_mark(change);
        }
        Ok(())
    }

    /// Returns the room for the next read. A long message grows the buffer by doubling, so that a length alone allocates nothing.
    fn make_room(&mut self, missing: usize) -> usize {
        let room = |received: &BytesMut| received.capacity().saturating_sub(received.len());
        if room(&self.received) < READ_BYTES {
            let growth = missing.clamp(GROWTH_BYTES, self.received.len().max(GROWTH_BYTES));
            self.received.reserve(growth);
            self.oversized |= self.received.capacity() > KEPT_BYTES_MAX;
        }
        room(&self.received)
    }

    /// Sets the mark where it changes; lowered, the kernel reports what is queued already. Without marks the stream is read
    /// promptly.
    fn set_mark(&mut self, change: Option<i32>) {
        let (Some(bytes), Some(mark)) = (change, self.mark) else { return };
        if mark.set(bytes).is_err() {
            self.mark = None;
            self.low_water.lower(Instant::now());
        }
    }
}

/// Finds out what stands at the front, and tells *confirm* of each keep-alive in it.
fn scan(received: &[u8], feedback: &Feedback, lateness: &mut Lateness) -> Result<Front> {
    let mut end = 0;
    let mut rest = received;
    let missing = loop {
        let Some((tag, len)) = message::header(rest)? else { break message::HEADER_BYTES.saturating_sub(rest.len()) };
        let Some((whole, after)) = rest.split_at_checked(len) else { break len.saturating_sub(rest.len()) };
        if tag != message::COPY_DATA {
            return Ok(if end == 0 { Front::Other } else { Front::Frames(end) });
        }
        if len == message::HEADER_BYTES + KEEPALIVE_BODY_BYTES {
            note_keepalive(whole, feedback)?;
        } else {
            lateness.note(whole);
        }
        end = received.len().saturating_sub(after.len());
        rest = after;
    };
    Ok(if end == 0 { Front::Part { missing } } else { Front::Frames(end) })
}

fn note_keepalive(message: &[u8], feedback: &Feedback) -> Result<()> {
    let body = message.get(message::HEADER_BYTES..).unwrap_or_default();
    let Some((b'k', fields)) = body.split_first() else { return Ok(()) };
    let (wal_end, reply) = fields
        .split_first_chunk::<8>()
        .zip(fields.last())
        .map(|((wal_end, _), reply)| (u64::from_be_bytes(*wal_end), *reply))
        .ok_or_else(|| protocol_violation("A keep-alive ends within a field."))?;
    if reply != 0 {
        feedback.ask(Lsn(wal_end));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        clippy::as_conversions,
        clippy::arithmetic_side_effects,
        reason = "a test may stop at the first surprise"
    )]
    use super::*;
    use postrider_core::frame::Frame;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};

    fn copy_data(body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [b"d", &length[..], body].concat()
    }

    fn keepalive(wal_end: u64, reply: u8) -> Vec<u8> {
        copy_data(&[b"k", &wal_end.to_be_bytes()[..], &[0; 8], &[reply]].concat())
    }

    async fn pair() -> (StreamReader, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let socket = Socket::Tcp(client);
        let mark = socket.low_water_mark();
        let (half, _writing) = tokio::io::split(socket);
        let incoming = Incoming::new(half, BytesMut::new(), "there:1".into(), mark);
        (StreamReader::new(incoming, Arc::new(Feedback::new(Lsn::ZERO, Lsn::ZERO)), "s"), server)
    }

    #[tokio::test]
    async fn frames_come_whole_however_the_bytes_are_cut() {
        let (mut reader, mut server) = pair().await;
        let row = |payload: &[u8]| copy_data(&[b"w", &[0; 24][..], payload].concat());
        let parameter = b"S\0\0\0\x06a\0".to_vec();
        let stream = [row(b"one"), keepalive(7, 0), row(b"two"), parameter, row(b"three")].concat();
        let sent = tokio::spawn(async move {
            for byte in stream {
                server.write_all(&[byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
            server
        });
        let mut found = Vec::new();
        while found.len() < 4 {
            for frame in reader.read().await.unwrap().frames() {
                found.push(match frame.unwrap() {
                    Frame::XLogData { payload, .. } => String::from_utf8_lossy(payload).into_owned(),
                    Frame::KeepAlive { wal_end, .. } => wal_end.to_string(),
                });
            }
        }
        assert_eq!(found, ["one", "0/7", "two", "three"]);
        drop(sent.await.unwrap());
        assert_eq!(reader.read().await.unwrap_err().message(), "the server closed the connection");
        assert_eq!(reader.read().await.unwrap_err().message(), "the stream has ended");
    }

    #[tokio::test]
    async fn a_cancelled_read_loses_nothing() {
        let (mut reader, mut server) = pair().await;
        let long = copy_data(&[b'w'; 300_000]);
        let (first, last) = long.split_at(299_000);
        server.write_all(first).await.unwrap();
        // Polled until all of the first part is taken, then dropped.
        while reader.incoming.as_ref().unwrap().received.len() < first.len() {
            let _cancelled = timeout(std::time::Duration::from_millis(1), reader.read()).await;
        }
        server.write_all(last).await.unwrap();
        assert_eq!(reader.read().await.unwrap().len(), long.len());
    }

    #[tokio::test]
    async fn a_long_message_does_not_leave_a_large_buffer() {
        let (mut reader, mut server) = pair().await;
        let long = copy_data(&vec![b'w'; 5 << 20]);
        let len = long.len();
        let sent = tokio::spawn(async move {
            server.write_all(&long).await.unwrap();
            server.write_all(&copy_data(b"w")).await.unwrap();
            server
        });
        let mut total = 0;
        while total < len + 6 {
            total += reader.read().await.unwrap().len();
        }
        assert!(reader.incoming.as_ref().unwrap().received.capacity() <= KEPT_BYTES_MAX);
        drop(sent.await.unwrap());
    }

    #[tokio::test]
    async fn the_end_of_the_stream_and_foreign_messages_are_told_apart() {
        for (bytes, kind) in [
            (&b"c\0\0\0\x04"[..], ErrorKind::Disconnected),
            (b"C\0\0\0\x0bCOPY 0\0", ErrorKind::Disconnected),
            (b"D\0\0\0\x04", ErrorKind::Protocol),
            (b"d\0\0\0\x03", ErrorKind::Protocol),
            (b"d\x40\0\0\x01", ErrorKind::Protocol),
            (b"E\0\0\0\x11SFATAL\0C57P01\0\0", ErrorKind::Protocol),
            (b"E\0\0\0\x14SFATAL\0C57P01\0\0", ErrorKind::Disconnected),
            (b"E\0\0\0\x14SERROR\0C42704\0\0", ErrorKind::PublicationMissing),
            (b"N\0\0\0\x3cVWARNING\0C55000\0Mskipped loading publication \"nope\"\0\0", ErrorKind::PublicationMissing),
        ] {
            let (mut reader, mut server) = pair().await;
            server.write_all(bytes).await.unwrap();
            server.write_all(&[0; 8]).await.unwrap();
            let error = reader.read().await.unwrap_err();
            assert_eq!(error.kind(), kind, "{}: {}", bytes.escape_ascii(), error.report());
        }
    }

    #[test]
    fn only_a_keepalive_that_wants_an_answer_is_passed_on() {
        let feedback = Feedback::new(Lsn::ZERO, Lsn::ZERO);
        scan(&keepalive(7, 0), &feedback, &mut Lateness::default()).unwrap();
        assert_eq!(feedback.take_ask(), None);
        scan(&[copy_data(b"w"), keepalive(7, 1), copy_data(b"w")].concat(), &feedback, &mut Lateness::default())
            .unwrap();
        assert_eq!(feedback.take_ask(), Some(Lsn(7)));
        assert_eq!(feedback.take_ask(), None);
    }
}
