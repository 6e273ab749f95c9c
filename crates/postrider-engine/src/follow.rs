//! What: reads the journal for one consumer.
//! Where: first step behind the journal; gives to *decode*, *route* and *shape*.
//! Takes and gives: the journal's parts; the routes of their changes, one at a time, and each part's end.
//! Never: knows what a consumer does, or moves its position.

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
    generation: Generation,
    follower: Box<dyn Follower>,
    decoder: Decoder,
    router: Router,
    batch: TransactionBatch,
}

/// What a consumer makes of the walk.
pub(crate) trait Visit {
    /// One change, at its position.
    fn visit(&mut self, head: &PartHead, position: Position, route: Route<'_>) -> Result<()>;

    /// All changes of a part have been visited.
    fn part_ends(&mut self, head: &PartHead, generation: Generation) -> Result<()>;
}

impl Cursor {
    /// A cursor after `after`.
    pub(crate) fn new(journal: &dyn Journal, after: Position, routing: &Routing) -> Result<Cursor> {
        Ok(Cursor {
            generation: journal.generation(),
            follower: journal.follow(after)?,
            decoder: Decoder::new(),
            router: Router::new(routing.clone()),
            batch: TransactionBatch::new(),
        })
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
        for part in self.batch.parts() {
            let head = part.head;
            let mut changes = self.decoder.changes(part);
            while let Some(change) = changes.next() {
                let (ordinal, change): (u64, Change<'_>) = change?;
                let position = Position { generation: self.generation, commit_lsn: head.commit_lsn, ordinal };
                visitor.visit(&head, position, self.router.route(&change)?)?;
            }
            visitor.part_ends(&head, self.generation)?;
        }
        Ok(())
    }
}

/// What a consumer has settled once all of a last part is: where to go on, and the end of the log below which it needs
/// nothing more.
///
/// A mark says that everything below its end has come. The next transaction's commit record may start right there, so the
/// position of a mark is one byte before.
pub(crate) fn settled_by(head: &PartHead, generation: Generation) -> (Position, Lsn) {
    let at = match head.kind {
        PartKind::Transaction => head.commit_lsn,
        PartKind::Mark => Lsn(head.end_lsn.0.saturating_sub(1)),
    };
    (Position::whole(generation, at), head.end_lsn)
}
