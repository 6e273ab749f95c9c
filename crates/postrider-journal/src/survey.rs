//! Lists the segments of a journal that a [`crate::Reader`] refuses: what each holds as far as it can be read, and which cannot.

use crate::disk::Disk;
use crate::disk::directory::Directory;
use crate::frame::FrameHead;
use crate::frames::{Damage, Next, OpenFailure, OpenedSegment, open_either};
use crate::positions::Positions;
use crate::reader::{SegmentSummary, names, no_journal};
use crate::segment::SegmentName;
use postrider_core::error::Result;
use postrider_core::position::Position;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What is left of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// From the oldest on.
    pub segments: Vec<Surveyed>,
    /// How far each consumer was when it was last saved.
    pub consumers: BTreeMap<Arc<str>, Position>,
}

/// A segment, or what is known of one that cannot be listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Surveyed {
    /// Its head is whole; its frames were not looked at but for those of the last one and of one before a gap.
    Listed(Box<SegmentSummary>),
    /// Its head is damaged at this offset.
    Damaged { file_name: String, offset: u64, what: &'static str },
    /// So many segments are missing here.
    Missing(u64),
}

/// Surveys the journal in directory `dir`; it may be in use. Writes nothing.
///
/// # Errors
///
/// `Disk` if the directory cannot be read; `JournalForeign` if it holds no journal, or one of another version; `JournalCorrupt` if
/// the positions of the consumers cannot be read.
pub fn survey(dir: &Path) -> Result<Survey> {
    survey_on(&Directory::read_only(dir))
}

/// Surveys the journal on any [`Disk`]; otherwise as [`survey`].
///
/// # Errors
///
/// As those of [`survey`].
pub fn survey_on(disk: &dyn Disk) -> Result<Survey> {
    let (proven, _) = names(disk)?;
    if proven.is_empty() {
        return Err(no_journal(disk));
    }
    let mut segments = Vec::new();
    // From the newest to the oldest: a good head says where the segment before it ends.
    let mut next: Option<(SegmentName, Option<Position>)> = None;
    for name in proven.into_iter().rev() {
        let until = next.filter(|(next, _)| name.number.checked_add(1) == Some(next.number));
        if let Some((later, _)) = next.filter(|_| until.is_none()) {
            segments.push(Surveyed::Missing(later.number.saturating_sub(name.number).saturating_sub(1)));
        }
        match open_either(disk, name) {
            Ok(opened) => {
                next = Some((name, Some(opened.header.before())));
                segments.push(Surveyed::Listed(Box::new(summary(opened, until.and_then(|(_, before)| before))?)));
            }
            Err(OpenFailure::Damaged(_, Damage { offset, what })) => {
                next = Some((name, None));
                segments.push(Surveyed::Damaged { file_name: name.proven(), offset, what });
            }
            // Retention took it since the names were read.
            Err(OpenFailure::Missing) => {}
            Err(OpenFailure::Other(error)) => return Err(error),
        }
    }
    segments.reverse();
    Ok(Survey { segments, consumers: Positions::open(disk)?.all() })
}

/// `last`: the last transaction in the segment, where the next one says; else its frames are read.
fn summary(opened: OpenedSegment, last: Option<Position>) -> Result<SegmentSummary> {
    let OpenedSegment { header, mut frames, .. } = opened;
    let (before, generation) = (header.before(), header.name.generation);
    let bytes = frames.length()?;
    let mut first = None;
    let mut read_to = before;
    while let Next::Frame(FrameHead::Part(head), _) = frames.next(bytes)? {
        first.get_or_insert(head);
        if last.is_some() {
            break;
        }
        if frames.order().is_complete() {
            read_to = Position::whole(generation, frames.order().commit).max(before);
        }
    }
    let last = last.unwrap_or(read_to);
    Ok(SegmentSummary {
        file_name: frames.file_name().to_owned(),
        generation,
        identity: header.identity,
        bytes,
        before,
        first,
        last: (last != before).then_some(last),
    })
}
