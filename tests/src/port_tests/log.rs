//! The replication stream and its feedback.

use postrider_core::assemble::Assembler;
use postrider_core::error::ErrorKind;
use postrider_core::frame::Frame;
use postrider_core::pgoutput::Message;
use postrider_core::ports::{BoxFuture, LogReader, LogSource};
use postrider_core::position::Lsn;
use postrider_core::transaction::TransactionBatch;

/// A slot that nobody reads, and the hand that writes to the log.
pub trait Fixture {
    fn source(&self) -> &dyn LogSource;

    /// Commits a transactional logical message.
    fn emit<'a>(&'a self, text: &'a str) -> BoxFuture<'a, ()>;

    /// How far the server has the slot confirmed.
    fn confirmed(&self) -> BoxFuture<'_, Lsn>;
}

pub async fn suite(fixture: &dyn Fixture) {
    let identity = fixture.source().identify().await.unwrap();
    assert!(identity.system_identifier != 0 && identity.timeline > 0 && !identity.slot.is_empty());
    fixture.emit("one").await;
    fixture.emit("two").await;
    let mut session = fixture.source().open(Lsn::ZERO).await.unwrap();
    let (one, _) = until(&mut *session.reader, "one", Lsn::ZERO).await;
    let second = fixture.source().open(Lsn::ZERO).await.map(drop);
    assert_eq!(second.unwrap_err().kind(), ErrorKind::SlotInUse);
    // A message that is committed while the stream is open comes, too. One assembler would do; each finds its own.
    fixture.emit("three").await;
    drop(session);
    let mut session = reopen(fixture, one).await;
    let (two, before) = until(&mut *session.reader, "two", one).await;
    assert_eq!(before, Vec::<String>::new(), "what the journal has does not come again");
    session.confirmer.received(two);
    session.confirmer.confirm(Lsn(one.0 / 2), false);
    session.confirmer.confirm(two, true);
    session.confirmer.confirm(one, true);
    session.confirmer.finish().await.unwrap();
    drop(session);
    assert_eq!(fixture.confirmed().await, two, "the highest value counts");
    // The server starts at the slot's position where the journal says nothing.
    let mut session = reopen(fixture, Lsn::ZERO).await;
    let (three, before) = until(&mut *session.reader, "three", Lsn::ZERO).await;
    assert_eq!(before, Vec::<String>::new(), "what was confirmed does not come again");
    session.confirmer.received(two);
    session.confirmer.confirm(three, true);
    session.confirmer.finish().await.unwrap();
    drop(session);
    assert_eq!(fixture.confirmed().await, two, "what was not received is not confirmed");
    let foreign = fixture.source().open(one).await.map(drop);
    assert_eq!(foreign.unwrap_err().kind(), ErrorKind::SlotForeign, "somebody moved the slot past the journal");
}

/// The server may take a moment to find that the session before is gone.
async fn reopen(fixture: &dyn Fixture, after: Lsn) -> postrider_core::ports::LogSession {
    for _ in 0..10_000 {
        match fixture.source().open(after).await {
            Ok(session) => return session,
            Err(error) => assert_eq!(error.kind(), ErrorKind::SlotInUse),
        }
    }
    panic!("the slot stays in use");
}

/// Reads until a message comes. Returns the end of its transaction and the messages that came before it.
async fn until(reader: &mut dyn LogReader, wanted: &str, journal_end: Lsn) -> (Lsn, Vec<String>) {
    let mut assembler = Assembler::new(journal_end);
    let mut before = Vec::new();
    loop {
        let frames = reader.read().await.unwrap();
        for frame in frames.frames() {
            let Frame::XLogData { payload, .. } = frame.unwrap() else { continue };
            let mut batch = TransactionBatch::new();
            assembler.push(payload, &mut batch).unwrap();
            for part in batch.parts() {
                for message in part.messages() {
                    let Message::LogicalMessage(message) = Message::parse(message).unwrap() else { continue };
                    let text = String::from_utf8_lossy(message.content).into_owned();
                    if text == wanted {
                        return (part.head.end_lsn, before);
                    }
                    before.push(text);
                }
            }
        }
    }
}
