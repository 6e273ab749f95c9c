//! The way through a journal: the same for every tool that shows or counts what stands in it.

use crate::reading::place::Limit;
use postrider_core::change::Change;
use postrider_core::decode::Decoder;
use postrider_core::error::Result;
use postrider_core::position::{Generation, Position};
use postrider_core::relation::Relations;
use postrider_core::transaction::{Part, PartHead, PartKind, TransactionBatch};
use postrider_engine::World;
use postrider_journal::Reader;
use std::ops::ControlFlow;
use std::time::Duration;

/// Between two looks for what the writer has appended. The tools share nothing with it but the files.
const POLL_PERIOD: Duration = Duration::from_millis(100);

/// From where to where.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) after: Position,
    pub(crate) to: Option<Limit>,
    /// At the end of the journal, wait for more.
    pub(crate) follow: bool,
}

/// One change, where it stands, and the tables and types in force there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) head: &'a PartHead,
    pub(crate) position: Position,
    pub(crate) change: &'a Change<'a>,
    pub(crate) relations: &'a Relations,
}

/// What is wanted of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Changes,
    Nothing,
    /// Of nothing that comes after, either.
    Enough,
}

/// What a tool makes of the way.
pub(crate) trait Visit {
    /// A part of a transaction, or a mark.
    fn part(&mut self, part: &Part<'_>, generation: Generation) -> Result<Wish>;

    /// A change within the range. `Break`: nothing more is wanted.
    fn change(&mut self, seen: &Seen<'_>) -> Result<ControlFlow<()>>;

    /// All that there is has been visited. `Break`: nobody waits for more.
    fn rest(&mut self) -> Result<ControlFlow<()>>;
}

/// Visits everything in `range`. Holds one batch of some hundred kilobytes, or one larger message, at a time.
pub(crate) async fn walk(reader: &mut Reader, range: Range, world: &dyn World, visit: &mut impl Visit) -> Result<()> {
    let mut reading = reader.read(range.after)?;
    let mut decoder = Decoder::new();
    let mut batch = TransactionBatch::new();
    loop {
        while reading.next(&mut batch)? {
            if let Some(schema) = reading.schema() {
                decoder.load(&schema)?;
            }
            for part in batch.parts() {
                if visit_part(part, reading.generation(), &mut decoder, &range, visit)?.is_break() {
                    return visit.rest().map(drop);
                }
            }
        }
        if visit.rest()?.is_break() || !range.follow {
            return Ok(());
        }
        while !reader.refresh()? {
            world.sleep(POLL_PERIOD).await;
        }
    }
}

fn visit_part(
    part: Part<'_>,
    generation: Generation,
    decoder: &mut Decoder,
    range: &Range,
    visit: &mut impl Visit,
) -> Result<ControlFlow<()>> {
    let head = part.head;
    let first = Position { generation, commit_lsn: head.commit_lsn, ordinal: head.first_ordinal };
    if is_past(range.to, first, &head) {
        return Ok(ControlFlow::Break(()));
    }
    let wish = visit.part(&part, generation)?;
    if wish == Wish::Enough {
        return Ok(ControlFlow::Break(()));
    }
    let mut changes = decoder.changes(part);
    while let Some(change) = changes.next_with_relations() {
        let (ordinal, change, relations) = change?;
        let position = Position { ordinal, ..first };
        if is_past(range.to, position, &head) {
            return Ok(ControlFlow::Break(()));
        }
        let seen = Seen { head: &head, position, change: &change, relations };
        if wish == Wish::Changes && position > range.after && visit.change(&seen)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

fn is_past(to: Option<Limit>, position: Position, head: &PartHead) -> bool {
    match to {
        None => false,
        Some(Limit::Position(to)) => position > to,
        // A mark has the time at which the server sent it: what is committed later may be older.
        Some(Limit::Time(to)) => head.kind == PartKind::Transaction && head.first && head.committed_at > to,
    }
}
