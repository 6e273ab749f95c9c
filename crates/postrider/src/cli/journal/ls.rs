//! `postrider journal ls`: which segments there are, and how far each consumer is in them.

use crate::reading::JournalPlace;
use crate::{exit, output};
use postrider_core::error::Result;
use postrider_core::ports::SourceIdentity;
use postrider_core::position::Position;
use postrider_delivery::rfc3339;
use postrider_journal::{Reader, SegmentSummary};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// List the segments, and the consumers' saved positions
#[derive(Debug, clap::Args)]
pub(super) struct Ls {
    #[command(flatten)]
    place: JournalPlace,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// What is listed.
#[derive(Debug)]
struct Listing {
    dir: String,
    reader: Reader,
    segments: Vec<SegmentSummary>,
    consumers: BTreeMap<Arc<str>, Position>,
}

impl Ls {
    pub(super) fn obey(self) -> Result<u8> {
        let dir = self.place.dir(self.place.configuration()?.as_ref());
        let reader = Reader::open(&dir)?;
        let (segments, consumers) = (reader.segments()?, reader.positions()?);
        let listing = Listing { dir: dir.display().to_string(), reader, segments, consumers };
        if self.json {
            output::json(&listing.to_json());
        } else {
            output::data(&listing.to_text());
        }
        Ok(exit::OK)
    }
}

impl Listing {
    fn to_json(&self) -> Value {
        let consumers = self.consumers.iter().map(|(name, position)| {
            json!({ "name": name.as_ref(), "position": position.to_string(), "behind_bytes": self.behind_bytes(*position) })
        });
        json!({
            "dir": self.dir,
            "oldest": self.reader.oldest().to_string(),
            "last": self.reader.last().to_string(),
            "end_lsn": self.reader.end().to_string(),
            "segments": self.segments.iter().map(segment_json).collect::<Vec<_>>(),
            "consumers": consumers.collect::<Vec<_>>(),
        })
    }

    fn to_text(&self) -> String {
        let bytes: u64 = self.segments.iter().map(|segment| segment.bytes).fold(0, u64::saturating_add);
        let mut lines = vec![format!(
            "{}: {} segments, {bytes} bytes, up to {}; last transaction {}",
            self.dir,
            self.segments.len(),
            self.reader.end(),
            self.reader.last()
        )];
        let mut source = None;
        for segment in &self.segments {
            // A line of its own where it changes, so that a failover is seen where it happened.
            let of = (&segment.identity, segment.generation);
            if source.replace(of) != Some(of) {
                lines.push(source_text(&segment.identity, segment.generation.0));
                lines.push(format!("  {:<42} {:>12}  {:<22} {:<22} first commit", "segment", "bytes", "first", "last"));
            }
            lines.push(segment_text(segment));
        }
        lines.extend(self.consumers.iter().map(|(name, position)| {
            let behind = self.behind_bytes(*position);
            let behind = behind.map_or("of another generation".to_owned(), |bytes| format!("{bytes} bytes behind"));
            format!("consumer {name}: saved at {position}, {behind}")
        }));
        if self.consumers.is_empty() {
            lines.push("no consumer has saved a position yet".to_owned());
        }
        lines.join("\n")
    }

    /// Bytes of the server's log between a position and the journal's end; LSNs of another generation say nothing.
    fn behind_bytes(&self, position: Position) -> Option<u64> {
        let is_comparable = position.generation == self.reader.last().generation;
        let at = if position >= self.reader.last() { self.reader.end() } else { position.commit_lsn };
        is_comparable.then(|| self.reader.end().0.saturating_sub(at.0))
    }
}

fn segment_json(segment: &SegmentSummary) -> Value {
    json!({
        "file": segment.file_name,
        "bytes": segment.bytes,
        "generation": segment.generation.0,
        "system_identifier": segment.identity.system_identifier.to_string(),
        "timeline": segment.identity.timeline,
        "database": segment.identity.database,
        "slot": segment.identity.slot,
        "after": segment.before.to_string(),
        "first": first(segment).map(|position| position.to_string()),
        "last": segment.last.map(|position| position.to_string()),
        "first_committed_at": segment.first.map(|head| rfc3339(head.committed_at)),
    })
}

fn source_text(identity: &SourceIdentity, generation: u32) -> String {
    format!(
        "generation {generation}: system {}, timeline {}, database {}, slot {}",
        identity.system_identifier,
        identity.timeline,
        identity.database.escape_debug(),
        identity.slot.escape_debug()
    )
}

fn segment_text(segment: &SegmentSummary) -> String {
    let text = |position: Option<Position>| position.map_or("-".to_owned(), |position| position.to_string());
    let committed_at = segment.first.map_or("-".to_owned(), |head| rfc3339(head.committed_at));
    format!(
        "  {:<42} {:>12}  {:<22} {:<22} {committed_at}",
        segment.file_name,
        segment.bytes,
        text(first(segment)),
        text(segment.last)
    )
}

fn first(segment: &SegmentSummary) -> Option<Position> {
    let head = segment.first?;
    Some(Position { generation: segment.generation, commit_lsn: head.commit_lsn, ordinal: head.first_ordinal })
}
