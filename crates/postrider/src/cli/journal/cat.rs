//! `postrider journal cat`: transactions and their changes.

use crate::cli::block_on;
use crate::exit;
use crate::reading::{self, FilterArguments, First, JournalPlace, Place, Style};
use postrider_core::error::Result;

/// Print transactions and their changes
#[derive(Debug, clap::Args)]
pub(super) struct Cat {
    #[command(flatten)]
    place: JournalPlace,
    /// The first place: `beginning`, `end`, a position, a log sequence number, a time with its zone, or how long ago (30m).
    #[arg(long, value_name = "PLACE", default_value = "beginning")]
    from: Place,
    #[command(flatten)]
    span: reading::Span,
    #[command(flatten)]
    filter: FilterArguments,
    /// Print what the journal's frames hold: the tag and size of each message. The filters do not apply.
    #[arg(long, conflicts_with_all = ["tables", "keys", "stages", "kind"])]
    raw: bool,
    /// Print lines of JSON.
    #[arg(long)]
    json: bool,
}

impl Cat {
    pub(super) fn obey(self) -> Result<u8> {
        let Cat { place, from, span, filter, raw, json } = self;
        let style = match (raw, json) {
            (true, json) => Style::Raw { json },
            (false, true) => Style::Json,
            (false, false) => Style::Text,
        };
        block_on(reading::show(&place, First::At(from), &span, false, (filter, style)))?;
        Ok(exit::OK)
    }
}
