//! What: reads the journal for one consumer.
//! Where: first step behind the journal; gives to *decode*, *route* and *shape*.
//! Takes and gives: the journal's parts; the routes of their changes, one at a time, and each part's end.
//! Never: knows what a consumer does, or moves its position.

use crate::settle::Settled;
use postrider_core::change::Change;
use postrider_core::decode::Decoder;
use postrider_core::error::Result;
use postrider_core::ports::{Follower, Journal};
use postrider_core::position::{Generation, Lsn, Position};
use postrider_core::route::{Route, Router, Routing};
use postrider_core::transaction::{PartHead, PartKind, TransactionBatch};

/// One consumer's place in the journal, and what it needs to read on from there.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// The generation that the log positions of the slot belong to.
    current: Generation,
    follower: Box<dyn Follower>,
    decoder: Decoder,
    router: Router,
    batch: TransactionBatch,
}

/// What a consumer makes of the walk.
pub(crate) trait Visit {
    /// One change, at its position.
    fn visit(&mut self, head: &PartHead, position: Position, route: Route<'_>) -> Result<()>;

    /// All changes of the last part of a transaction, or of a mark, have been visited: what is settled once they are.
    fn settles(&mut self, settled: Settled);
}

impl Cursor {
    /// A cursor after `after`.
    pub(crate) fn new(journal: &dyn Journal, after: Position, routing: &Routing) -> Result<Cursor> {
        Ok(Cursor::over(journal.follow(after)?, journal.generation(), routing))
    }

    /// A cursor on what a follower gives, in a journal of which `current` is the generation.
    pub(crate) fn over(follower: Box<dyn Follower>, current: Generation, routing: &Routing) -> Cursor {
        Cursor {
            current,
            follower,
            decoder: Decoder::new(),
            router: Router::new(routing.clone()),
            batch: TransactionBatch::new(),
        }
    }

    /// Waits for more. Cancelling loses nothing.
    pub(crate) async fn next(&mut self) -> Result<()> {
        self.follower.next(&mut self.batch).await
    }

    /// Walks over what [`Cursor::next`] brought.
    pub(crate) fn walk(&mut self, visitor: &mut impl Visit) -> Result<()> {
        if let Some(schema) = self.follower.schema() {
            self.decoder.load(&schema)?;
        }
        let generation = self.follower.generation();
        for part in self.batch.parts() {
            let head = part.head;
            let mut changes = self.decoder.changes(part);
            while let Some(change) = changes.next() {
                let (ordinal, change): (u64, Change<'_>) = change?;
                let position = Position { generation, commit_lsn: head.commit_lsn, ordinal };
                visitor.visit(&head, position, self.router.route(&change)?)?;
            }
            if head.last {
                visitor.settles(settled_by(&head, generation, self.current));
            }
        }
        Ok(())
    }
}

/// What a consumer has settled once all of a last part is: where to go on, and the end of the log below which it needs
/// nothing more.
///
/// A mark says that everything below its end has come. The next transaction's commit record may start right there, so the
/// position of a mark is one byte before. The log positions of earlier generations say nothing about the slot of the current one.
fn settled_by(head: &PartHead, generation: Generation, current: Generation) -> Settled {
    let at = match head.kind {
        PartKind::Transaction => head.commit_lsn,
        PartKind::Mark => Lsn(head.end_lsn.0.saturating_sub(1)),
    };
    let end = if generation == current { head.end_lsn } else { Lsn::ZERO };
    Settled { position: Position::whole(generation, at), end }
}
