//! `postrider journal ls`: which segments there are, and how far each consumer is in them.

use crate::reading::JournalPlace;
use crate::{exit, output};
use postrider_core::error::{ErrorKind, Result};
use postrider_core::ports::SourceIdentity;
use postrider_core::position::{Generation, Position};
use postrider_delivery::rfc3339;
use postrider_journal::{Reader, SegmentSummary, Survey, Surveyed, survey};
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
        let read = Reader::open(&dir).and_then(|reader| Ok((reader.segments()?, reader.positions()?, reader)));
        let (segments, consumers, reader) = match read {
            Err(error) if error.kind() == ErrorKind::JournalCorrupt => {
                self.show_survey(&dir.display().to_string(), &survey(&dir)?);
                return Ok(error.kind().exit_code());
            }
            read => read?,
        };
        let listing = Listing { dir: dir.display().to_string(), reader, segments, consumers };
        if self.json {
            output::json(&listing.to_json());
        } else {
            output::data(&listing.to_text());
        }
        Ok(exit::OK)
    }

    fn show_survey(&self, dir: &str, survey: &Survey) {
        if self.json {
            let consumers = survey.consumers.iter();
            output::json(&json!({
                "dir": dir,
                "ok": false,
                "exit_code": ErrorKind::JournalCorrupt.exit_code(),
                "segments": survey.segments.iter().map(surveyed_json).collect::<Vec<_>>(),
                "consumers": consumers.map(|(name, at)| json!({ "name": name.as_ref(), "position": at.to_string() })).collect::<Vec<_>>(),
            }));
        } else {
            output::data(&survey_text(dir, survey));
        }
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
            lines.extend(segment_lines(segment, &mut source));
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

fn surveyed_json(surveyed: &Surveyed) -> Value {
    match surveyed {
        Surveyed::Listed(segment) => segment_json(segment),
        Surveyed::Damaged { file_name, offset, what } => {
            json!({ "file": file_name, "offset": offset, "damaged": what })
        }
        Surveyed::Missing(count) => json!({ "missing": count }),
    }
}

fn survey_text(dir: &str, survey: &Survey) -> String {
    let mut lines = vec![format!("{dir}: damaged")];
    let mut source = None;
    for surveyed in &survey.segments {
        match surveyed {
            Surveyed::Listed(segment) => lines.extend(segment_lines(segment, &mut source)),
            Surveyed::Damaged { file_name, offset, what } => {
                lines.push(format!("  {file_name:<42} damaged at byte {offset}: {what}"));
            }
            Surveyed::Missing(1) => lines.push("  one segment is missing here".to_owned()),
            Surveyed::Missing(count) => lines.push(format!("  {count} segments are missing here")),
        }
    }
    lines.extend(survey.consumers.iter().map(|(name, position)| format!("consumer {name}: saved at {position}")));
    lines.push(
        "Restore what is damaged or missing from a copy; `postrider journal verify` says what can be read around it."
            .to_owned(),
    );
    lines.join("\n")
}

/// The segment's line, after one of its own for the source where that changes, so that a failover is seen where it happened.
fn segment_lines<'a>(
    segment: &'a SegmentSummary,
    source: &mut Option<(&'a SourceIdentity, Generation)>,
) -> Vec<String> {
    let of = (&segment.identity, segment.generation);
    let mut lines = Vec::new();
    if source.replace(of) != Some(of) {
        lines.push(source_text(&segment.identity, segment.generation.0));
        lines.push(format!("  {:<42} {:>12}  {:<22} {:<22} first commit", "segment", "bytes", "first", "last"));
    }
    lines.push(segment_text(segment));
    lines
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
