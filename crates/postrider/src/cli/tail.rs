//! `postrider tail`: decoded changes and events as lines of JSON, live or from any place in the journal.

use crate::cli::block_on;
use crate::exit;
use crate::reading::{self, FilterArguments, First, JournalPlace, Place, Style};
use postrider_core::error::Result;

/// Print changes and events as lines of JSON, as they come or from any place in the journal
///
/// It looks at the journal's files every 100 ms and asks nothing of the process that writes them.
#[derive(Debug, clap::Args)]
pub(super) struct Tail {
    #[command(flatten)]
    place: JournalPlace,
    /// The first place: `beginning`, `end`, a position, a log sequence number, a time with its zone, or how long ago (30m).
    #[arg(long, value_name = "PLACE", default_value = "end")]
    from: Place,
    /// Begin with the last so many lines of what is there.
    #[arg(short = 'n', long, value_name = "LINES", conflicts_with_all = ["from", "to", "limit"])]
    lines: Option<u64>,
    #[command(flatten)]
    span: reading::Span,
    #[command(flatten)]
    filter: FilterArguments,
    /// At the journal's end, end.
    #[arg(long)]
    no_follow: bool,
}

impl Tail {
    pub(super) fn obey(self) -> Result<u8> {
        let Tail { place, from, lines, span, filter, no_follow } = self;
        let first = lines.map_or(First::At(from), First::OfLast);
        block_on(reading::show(&place, first, &span, !no_follow, (filter, Style::Json)))?;
        Ok(exit::OK)
    }
}
