//! What: tells the server how far we are, on a task of its own, while everything else may be blocked.
//! Where: *confirm*, the last step of the walk; its counterpart is *read*.
//! Takes and gives: LSNs from the frontier and the server's wishes for an answer; standby status updates on the socket.
//! Never: goes back, goes beyond what was received, or waits for the reader.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{BufMut as _, BytesMut};
use postgres_protocol::message::frontend;
use postrider_core::error::Result;
use postrider_core::ports::{BoxFuture, Confirmer};
use postrider_core::position::Lsn;
use postrider_core::time::Timestamp;
use tokio::io::{AsyncWriteExt as _, WriteHalf};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::read::Incoming;
use crate::wire::message;
use crate::wire::socket::Socket;
use pace::{Pace, Wants};

mod pace;

/// How long the orderly end may take.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);
/// Length of a standby status update's body.
const STATUS_BODY_BYTES: u32 = 34;

/// What the reader, the engine and the sending task share.
#[derive(Default)]
pub(crate) struct Feedback {
    received: AtomicU64,
    confirmed: AtomicU64,
    /// A confirmed or received position has risen since the task looked last.
    risen: AtomicBool,
    urgent: AtomicBool,
    asked: AtomicBool,
    asked_wal_end: AtomicU64,
    finishing: AtomicBool,
    wake: Notify,
    /// The reading half, once nobody reads any more.
    idle: Mutex<Option<Incoming>>,
    returned: Notify,
}

/// The way to say how far we are; dropping it ends the sending at once.
pub(crate) struct StreamConfirmer {
    feedback: Arc<Feedback>,
    sending: Mutex<Option<JoinHandle<()>>>,
}

/// The writing half and what was said last.
struct Sender {
    half: WriteHalf<Socket>,
    feedback: Arc<Feedback>,
    pace: Pace,
    sent: Lsn,
    /// An answer that the server waits for.
    owed: bool,
}

impl Feedback {
    /// Everything below `received` is ours already, and the slot is `confirmed` already: what was saved with less, by a consumer
    /// that began anew or that the guard had passed, must not take it back.
    pub(crate) fn new(received: Lsn, confirmed: Lsn) -> Feedback {
        Feedback { received: AtomicU64::new(received.0), confirmed: AtomicU64::new(confirmed.0), ..Feedback::default() }
    }

    /// The server wants an answer; it has read its log up to `wal_end`.
    pub(crate) fn ask(&self, wal_end: Lsn) {
        self.asked_wal_end.store(wal_end.0, Ordering::Relaxed);
        self.asked.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// The server's wish for an answer, once.
    pub(crate) fn take_ask(&self) -> Option<Lsn> {
        self.asked.swap(false, Ordering::Acquire).then(|| Lsn(self.asked_wal_end.load(Ordering::Relaxed)))
    }

    /// Nobody reads any more.
    pub(crate) fn take_back(&self, incoming: Incoming) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(incoming);
        self.returned.notify_one();
    }

    /// The position to confirm: the highest said, and never beyond what was received. The server would take one
    /// beyond the end of its log and leave out
    /// every change after it.
    fn flushed(&self) -> Lsn {
        Lsn(self.confirmed.load(Ordering::Acquire).min(self.received.load(Ordering::Acquire)))
    }

    fn rise(&self, now: bool) {
        if now {
            self.urgent.store(true, Ordering::Release);
        }
        // One wake-up until the task has looked, not one for each transaction.
        if !self.risen.swap(true, Ordering::AcqRel) || now {
            self.wake.notify_one();
        }
    }

    fn idle(&self) -> Option<Incoming> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl StreamConfirmer {
    /// Starts the sending task. `wal_sender_timeout` is the server's; zero where it has none.
    pub(crate) fn spawn(
        half: WriteHalf<Socket>,
        feedback: Arc<Feedback>,
        wal_sender_timeout: Duration,
    ) -> StreamConfirmer {
        let pace = Pace::new(wal_sender_timeout, Instant::now().into_std());
        let sender = Sender { half, feedback: Arc::clone(&feedback), pace, sent: Lsn::ZERO, owed: false };
        StreamConfirmer { feedback, sending: Mutex::new(Some(tokio::spawn(sender.run()))) }
    }

    fn sending(&self) -> Option<JoinHandle<()>> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Confirmer for StreamConfirmer {
    fn confirm(&self, lsn: Lsn, now: bool) {
        let before = self.feedback.confirmed.fetch_max(lsn.0, Ordering::AcqRel);
        if lsn.0 > before || now {
            // What covers all that was received is said at once: an idle slot stands at its end.
            let complete = lsn.0 >= self.feedback.received.load(Ordering::Acquire);
            self.feedback.rise(now || complete);
        }
    }

    fn received(&self, lsn: Lsn) {
        let before = self.feedback.received.fetch_max(lsn.0, Ordering::AcqRel);
        // A confirm that was capped may now go further.
        if lsn.0 > before && self.feedback.confirmed.load(Ordering::Acquire) > before {
            self.feedback.rise(false);
        }
    }

    fn finish(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.feedback.finishing.store(true, Ordering::Release);
            self.feedback.wake.notify_one();
            let Some(mut sending) = self.sending() else { return Ok(()) };
            if timeout(FINISH_TIMEOUT, &mut sending).await.is_err() {
                sending.abort();
            }
            Ok(())
        })
    }
}

impl Drop for StreamConfirmer {
    fn drop(&mut self) {
        if let Some(sending) = self.sending() {
            sending.abort();
        }
    }
}

impl fmt::Debug for StreamConfirmer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamConfirmer").field("flushed", &self.feedback.flushed()).finish_non_exhaustive()
    }
}

impl Sender {
    /// Sends until it is told to finish, the server waits in vain, or the connection is lost; the reader notices the latter two by
    /// itself.
    async fn run(mut self) {
        let ended = self.send_statuses().await;
        if let Err(error) = ended.and(self.say_goodbye().await) {
            tracing::debug!(%error, "the feedback to the server ended early");
        }
    }

    async fn send_statuses(&mut self) -> std::io::Result<()> {
        while !self.feedback.finishing.load(Ordering::Acquire) {
            let now = Instant::now();
            let due = self.due(now);
            if self.pace.is_awaited_in_vain() {
                tracing::info!(
                    confirmed = %self.sent,
                    "the server insists on a position that may not be confirmed yet, as it does at its shutdown; the \
                     connection is given up, so that it can stop"
                );
                return Ok(());
            }
            if due <= now {
                // Nobody waits for it: the server is asked in turn. One that works through a long stretch of its log without
                // anything for us says how far it is only when it is asked (case S-18).
                let silent = !self.owed && self.feedback.flushed() <= self.sent;
                self.send_status(silent).await?;
                continue;
            }
            let _either = timeout_at(due, self.feedback.wake.notified()).await;
        }
        Ok(())
    }

    fn due(&mut self, now: Instant) -> Instant {
        if let Some(wal_end) = self.feedback.take_ask() {
            self.pace.note_ask(wal_end, now.into_std());
            self.owed = true;
        }
        let risen = self.feedback.flushed() > self.sent;
        if !risen {
            // What is urgent has been said already.
            self.feedback.urgent.store(false, Ordering::Release);
        }
        let urgent = risen && self.feedback.urgent.load(Ordering::Acquire);
        Instant::from_std(self.pace.due(Wants { risen, urgent, owed: self.owed }, now.into_std()))
    }

    async fn send_status(&mut self, asks: bool) -> std::io::Result<()> {
        // Before the positions are read: who raises them after this wakes us again.
        self.feedback.risen.store(false, Ordering::Release);
        self.feedback.urgent.store(false, Ordering::Release);
        let received = Lsn(self.feedback.received.load(Ordering::Acquire));
        let flushed = self.feedback.flushed().max(self.sent);
        self.half.write_all(&status(received.max(flushed), flushed, clock(), asks)).await?;
        self.half.flush().await?;
        self.sent = flushed;
        self.owed = false;
        self.pace.note_sent(Instant::now().into_std());
        Ok(())
    }

    /// The last word, the end of our side, and then whatever the server still sends until it has closed its side.
    async fn say_goodbye(&mut self) -> std::io::Result<()> {
        self.send_status(false).await?;
        let mut end = BytesMut::new();
        frontend::copy_done(&mut end);
        frontend::terminate(&mut end);
        self.half.write_all(&end).await?;
        self.half.flush().await?;
        loop {
            if let Some(incoming) = self.feedback.idle() {
                incoming.drain().await;
                return Ok(());
            }
            self.feedback.returned.notified().await;
        }
    }
}

/// A standby status update in its `CopyData` message: written, flushed, applied, the time, and whether we wish for a keep-alive.
fn status(received: Lsn, flushed: Lsn, now: Timestamp, asks: bool) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(message::HEADER_BYTES + STATUS_BODY_BYTES as usize);
    bytes.put_u8(message::COPY_DATA);
    bytes.put_u32(STATUS_BODY_BYTES + 4);
    bytes.put_u8(b'r');
    bytes.put_u64(received.0);
    bytes.put_u64(flushed.0);
    bytes.put_u64(flushed.0);
    bytes.put_i64(now.to_postgres_micros());
    bytes.put_u8(u8::from(asks));
    bytes
}

/// The server only shows it in `pg_stat_replication`; nothing is decided by it.
fn clock() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

async fn timeout_at(due: Instant, woken: impl Future<Output = ()>) {
    tokio::select! {
        () = woken => {}
        () = sleep_until(due) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confirmer(received: u64) -> StreamConfirmer {
        StreamConfirmer { feedback: Arc::new(Feedback::new(Lsn(received), Lsn(2))), sending: Mutex::new(None) }
    }

    #[test]
    fn nothing_beyond_what_was_received_is_confirmed_and_nothing_goes_back() {
        let confirmer = confirmer(10);
        assert_eq!(confirmer.feedback.flushed(), Lsn(2), "the slot is there already");
        for (confirm, receive, wanted) in
            [(1, 0, 2), (5, 0, 5), (4, 0, 5), (20, 0, 10), (0, 15, 15), (0, 12, 15), (0, 30, 20)]
        {
            confirmer.confirm(Lsn(confirm), false);
            confirmer.received(Lsn(receive));
            assert_eq!(confirmer.feedback.flushed(), Lsn(wanted), "after {confirm}, {receive}");
        }
    }

    #[test]
    fn a_confirm_of_all_that_was_received_waits_for_no_gap() {
        let confirmer = confirmer(10);
        confirmer.confirm(Lsn(9), false);
        assert!(!confirmer.feedback.urgent.load(Ordering::Acquire));
        confirmer.confirm(Lsn(10), false);
        assert!(confirmer.feedback.urgent.load(Ordering::Acquire));
    }

    #[test]
    fn a_status_has_the_length_that_it_says() {
        let bytes = status(Lsn(3), Lsn(2), Timestamp(946_684_800_000_001), true);
        assert_eq!(bytes.len(), 39);
        assert_eq!(&bytes[..6], b"d\0\0\0\x26r");
        assert_eq!(&bytes[6..30], [3u64, 2, 2].map(u64::to_be_bytes).concat());
        assert_eq!(&bytes[30..], [0, 0, 0, 0, 0, 0, 0, 1, 1]);
    }
}
