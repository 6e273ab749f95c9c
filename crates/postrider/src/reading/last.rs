//! Finds the place from which on there are so many lines: counts what is wanted of each segment, from the newest on.

use crate::reading::filter::{Filter, Wanted};
use crate::reading::place::Limit;
use crate::reading::walk::{Range, Seen, Visit, Wish, walk};
use postrider_core::error::Result;
use postrider_core::position::{Generation, Position};
use postrider_core::transaction::{Part, PartKind};
use postrider_engine::World;
use postrider_journal::Reader;
use std::ops::ControlFlow;

/// Where the last lines begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Beginning {
    /// They come after this.
    pub(crate) after: Position,
    /// So many wanted lines come before them.
    pub(crate) skipped: u64,
}

/// Finds the last `lines` that `filter` admits, or all of them if there are fewer.
pub(crate) async fn begin(reader: &mut Reader, lines: u64, filter: Filter, world: &dyn World) -> Result<Beginning> {
    let mut count = Count { filter, wanted: 0 };
    let mut after = reader.last();
    for segment in reader.segments()?.into_iter().rev() {
        if count.wanted >= lines {
            break;
        }
        after = segment.before;
        if let Some(last) = segment.last {
            let range = Range { after, to: Some(Limit::Position(last)), follow: false };
            walk(reader, range, world, &mut count).await?;
        }
    }
    Ok(Beginning { after, skipped: count.wanted.saturating_sub(lines) })
}

/// Counts changes.
#[derive(Debug)]
struct Count {
    filter: Filter,
    wanted: u64,
}

impl Visit for Count {
    fn part(&mut self, part: &Part<'_>, _: Generation) -> Result<Wish> {
        Ok(if part.head.kind == PartKind::Transaction { Wish::Changes } else { Wish::Nothing })
    }

    fn change(&mut self, seen: &Seen<'_>) -> Result<ControlFlow<()>> {
        if !matches!(self.filter.admit(seen)?, Wanted::No) {
            self.wanted = self.wanted.saturating_add(1);
        }
        Ok(ControlFlow::Continue(()))
    }

    fn rest(&mut self) -> Result<ControlFlow<()>> {
        Ok(ControlFlow::Continue(()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use super::*;
    use crate::reading::filter::{FilterArguments, Kind};
    use postrider_core::change::Change;
    use postrider_core::pgoutput::{LogicalMessage, encode};
    use postrider_core::ports::{SchemaBlock, SourceIdentity};
    use postrider_core::position::Lsn;
    use postrider_core::route::Routing;
    use postrider_core::time::Timestamp;
    use postrider_core::transaction::{PartHead, TransactionBatch, push_message};
    use postrider_engine::SystemWorld;
    use postrider_journal::Settings;

    /// What is there once `skipped` of it are left out.
    struct Heard {
        skipped: u64,
        prefixes: Vec<String>,
    }

    impl Visit for Heard {
        fn part(&mut self, _: &Part<'_>, _: Generation) -> Result<Wish> {
            Ok(Wish::Changes)
        }

        fn change(&mut self, seen: &Seen<'_>) -> Result<ControlFlow<()>> {
            match seen.change {
                Change::Message(_) if self.skipped > 0 => self.skipped -= 1,
                Change::Message(message) => self.prefixes.push(message.prefix.to_owned()),
                other => panic!("{other:?}"),
            }
            Ok(ControlFlow::Continue(()))
        }

        fn rest(&mut self) -> Result<ControlFlow<()>> {
            Ok(ControlFlow::Continue(()))
        }
    }

    /// A transaction with one logical message for each prefix, and a mark behind it.
    fn append(writer: &mut dyn postrider_core::ports::JournalWriter, commit: u64, prefixes: &[&str]) {
        let mut block = Vec::new();
        for prefix in prefixes {
            let mut message = Vec::new();
            let lsn = Lsn(commit);
            encode::logical_message(&mut message, &LogicalMessage { transactional: true, lsn, prefix, content: b"" });
            assert!(push_message(&mut block, &message));
        }
        let head = PartHead {
            kind: PartKind::Transaction,
            commit_lsn: Lsn(commit),
            end_lsn: Lsn(commit + 1),
            xid: 7,
            committed_at: Timestamp(0),
            first_ordinal: 0,
            changes: 0,
            first: true,
            last: true,
        };
        let end = Lsn(commit + 2);
        let mark = PartHead { kind: PartKind::Mark, commit_lsn: end, end_lsn: end, xid: 0, ..head };
        let mut batch = TransactionBatch::new();
        batch.push(head, &block);
        batch.push(mark, &[]);
        writer.append(&batch, &SchemaBlock::default()).unwrap();
    }

    /// A journal with a segment for each transaction, and an empty one behind them.
    fn journal(dir: &std::path::Path) -> Reader {
        let identity = SourceIdentity { system_identifier: 1, timeline: 1, database: "d".into(), slot: "s".into() };
        let settings = Settings { segment_bytes: 1, ..Settings::default() };
        let mut opened = postrider_journal::open(dir, &identity, &settings).unwrap();
        append(opened.writer.as_mut(), 10, &["a", "b"]);
        append(opened.writer.as_mut(), 20, &["c"]);
        append(opened.writer.as_mut(), 30, &["d", "e", "f"]);
        Reader::open(dir).unwrap()
    }

    #[test]
    fn the_last_lines_are_found_across_segments_and_within_a_transaction() {
        let dir = tempfile::tempdir().unwrap();
        let mut reader = journal(dir.path());
        let mut found = Vec::new();
        for lines in [0, 1, 3, 4, 5, 6, 7] {
            let arguments =
                FilterArguments { tables: Vec::new(), keys: Vec::new(), stages: Vec::new(), kind: Kind::Rows };
            let (world, filter) = (SystemWorld::new(1), Filter::new(arguments, Routing::default()));
            let prefixes = crate::cli::block_on(async {
                let Beginning { after, skipped } = begin(&mut reader, lines, filter, &world).await?;
                let mut heard = Heard { skipped, prefixes: Vec::new() };
                walk(&mut reader, Range { after, to: None, follow: false }, &world, &mut heard).await?;
                Ok(heard.prefixes.concat())
            });
            found.push(prefixes.unwrap());
        }
        assert_eq!(found, ["", "f", "def", "cdef", "bcdef", "abcdef", "abcdef"]);
    }
}
