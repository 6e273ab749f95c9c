//! Looks at a journal beside the process that writes it, or at a copy of one.
//!
//! It locks nothing, repairs nothing and writes nothing. It shares no memory with the writer, so it learns of a new end by
//! looking at the files ([`Reader::refresh`]); what it then reads takes the followers' own path. Where a crash left the end
//! torn, or the writer is in the middle of a transaction, its end is the last complete transaction or mark, as the writer's.

use crate::disk::Disk;
use crate::disk::directory::Directory;
use crate::failure;
use crate::follow::Cursor;
use crate::frame::FrameHead;
use crate::frames::{Damage, Frames, Next, OpenFailure, OpenedSegment, Place, open_either};
use crate::gaps::Gaps;
use crate::log::{End, Log, Segment};
use crate::positions::Positions;
use crate::recover::{list, mark_cuts};
use crate::retention::Bounds;
use crate::segment::SegmentName;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{Follower, Gap, Room, SchemaBlock, SourceIdentity};
use postrider_core::position::{Generation, Lsn, Position};
use postrider_core::time::Timestamp;
use postrider_core::transaction::{PartHead, PartKind, TransactionBatch};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A journal that is only looked at. In memory it holds the names of the segments and a buffer.
#[derive(Debug)]
pub struct Reader {
    log: Arc<Log>,
    /// In the last segment, at or behind the end.
    frames: Frames,
    complete: Place,
    identity: SourceIdentity,
    /// Where the last transaction before the segment of `frames` stands.
    before: Position,
}

/// A cursor over what a [`Reader`] found.
#[derive(Debug)]
pub struct Reading {
    log: Arc<Log>,
    cursor: Cursor,
}

/// One segment as it is told to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentSummary {
    pub file_name: String,
    pub generation: Generation,
    pub identity: SourceIdentity,
    /// Length of the file.
    pub bytes: u64,
    /// The last transaction before it.
    pub before: Position,
    /// Its first frame.
    pub first: Option<PartHead>,
    /// The position of its last whole transaction, if there is one in it.
    pub last: Option<Position>,
}

impl Reader {
    /// Looks at the journal in directory `dir`: the heads of all segments, and the last one to its end.
    ///
    /// # Errors
    ///
    /// `Disk` if there is no such directory or it cannot be read; `JournalForeign` if it holds no journal, or one of another
    /// version; `JournalCorrupt` if a segment is missing or the head of one is damaged.
    pub fn open(dir: &Path) -> Result<Reader> {
        Reader::open_on(Arc::new(Directory::read_only(dir)))
    }

    /// Looks at the journal on any [`Disk`]; otherwise as [`Reader::open`].
    ///
    /// # Errors
    ///
    /// As those of [`Reader::open`].
    pub fn open_on(disk: Arc<dyn Disk>) -> Result<Reader> {
        let (segments, last) = held(disk.as_ref())?;
        let place = last.frames.place();
        let end = End { segment: last.header.name.number, offset: place.offset, lsn: place.order.end };
        let log = Arc::new(Log::new(disk, segments, end));
        let mut reader = Reader {
            log,
            frames: last.frames,
            complete: place,
            identity: last.header.identity.clone(),
            before: last.header.before(),
        };
        reader.refresh()?;
        Ok(reader)
    }

    /// Takes in what was written since the last look; `true` where the end has moved.
    ///
    /// # Errors
    ///
    /// `JournalCorrupt` if a frame is bad and more was written after it; `Disk` if the disk refuses.
    pub fn refresh(&mut self) -> Result<bool> {
        let before = *self.log.end.borrow();
        loop {
            // The names first: once there is a next segment, this one has its final length.
            let (next, overtaken) = self.next_segment()?;
            if overtaken {
                let (segments, last) = held(self.log.disk.as_ref())?;
                *self.log.segments() = segments;
                self.enter(last);
                continue;
            }
            let bad = self.scan()?;
            self.publish();
            let Some((name, proven)) = next else { break };
            let opened = match open_either(self.log.disk.as_ref(), name) {
                Ok(opened) => opened,
                // It is being made, or its maker died over it.
                Err(OpenFailure::Missing) => break,
                Err(OpenFailure::Damaged(..)) if !proven => break,
                Err(failure) => return Err(opening(self.log.disk.as_ref(), name, failure)),
            };
            let place = self.complete;
            if opened.header.follows(place.chain, place.order.end) && bad.is_none() {
                self.log.segments().push_back(listed(&opened));
                self.enter(opened);
            } else if proven {
                let Damage { offset, what } = bad
                    .unwrap_or(Damage { offset: place.offset, what: "the next segment does not follow from this one" });
                return Err(failure::corrupt(self.log.disk.as_ref(), self.frames.file_name(), offset, what));
            } else {
                break;
            }
        }
        forget_removed(&self.log)?;
        Ok(*self.log.end.borrow() != before)
    }

    /// The last whole transaction; where there is none, the position that the journal begins with.
    pub fn last(&self) -> Position {
        let Place { order, .. } = self.complete;
        match order.commit {
            Lsn::ZERO => self.before,
            commit => Position::whole(self.log.end_generation(), commit),
        }
    }

    /// End LSN of the last complete transaction or mark.
    pub fn end(&self) -> Lsn {
        self.log.end.borrow().lsn
    }

    /// What comes after this can be read, and nothing before it.
    pub fn oldest(&self) -> Position {
        self.log.segments().front().map_or(Position::START, |segment| segment.before)
    }

    /// The segments from the oldest on. Reads the first frame of each.
    ///
    /// # Errors
    ///
    /// `JournalCorrupt` if the head of one is damaged; `Disk` if the disk refuses.
    pub fn segments(&self) -> Result<Vec<SegmentSummary>> {
        let held: Vec<Segment> = self.log.segments().iter().copied().collect();
        let ends = held.iter().skip(1).map(|next| next.before).chain([self.last()]);
        let mut summaries = Vec::with_capacity(held.len());
        for (segment, last) in held.iter().zip(ends) {
            let Some(mut opened) = self.open_held(*segment)? else { continue };
            summaries.push(SegmentSummary {
                file_name: opened.frames.file_name().to_owned(),
                generation: segment.name.generation,
                identity: opened.header.identity.clone(),
                bytes: opened.frames.length()?,
                before: segment.before,
                first: self.first_head(&mut opened)?,
                last: (last != segment.before).then_some(last),
            });
        }
        Ok(summaries)
    }

    /// What would have to go under these bounds, as the journal itself would say but for the bytes behind the last frame of a file. Reads the first frame of each segment.
    ///
    /// # Errors
    ///
    /// As those of [`Reader::segments`].
    pub fn room(&self, retain_bytes: u64, retain_age: Option<Duration>, now: Timestamp) -> Result<Room> {
        let end = *self.log.end.borrow();
        let mut segments = self.log.segments().clone();
        for segment in &mut segments {
            let Some(mut opened) = self.open_held(*segment)? else { continue };
            segment.begun_at = self.first_head(&mut opened)?.map(|head| head.committed_at);
            if segment.name.number != end.segment {
                segment.sealed_bytes = opened.frames.length()?;
            }
        }
        Ok(Bounds { bytes_max: retain_bytes, age_max: retain_age }.room(&segments, end, now))
    }

    /// A cursor after `after`. [`Position::START`] means the oldest transaction held.
    ///
    /// # Errors
    ///
    /// `JournalForeign` with the oldest position held, if what comes after `after` is no longer there.
    pub fn read(&self, after: Position) -> Result<Reading> {
        loop {
            match Cursor::open(Arc::clone(&self.log), after) {
                Ok(cursor) => return Ok(Reading { log: Arc::clone(&self.log), cursor }),
                Err(_) if forget_removed(&self.log)? => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The position before the first transaction, in commit order, that was committed at `at` or later by the server's clock;
    /// `None` where there is none yet. Reads at most one segment but the heads of all.
    ///
    /// # Errors
    ///
    /// As those of [`Reader::segments`] and [`Reading::next`].
    pub fn before(&self, at: Timestamp) -> Result<Option<Position>> {
        let held: Vec<Segment> = self.log.segments().iter().copied().collect();
        let mut start = self.oldest();
        for segment in held {
            let Some(mut opened) = self.open_held(segment)? else { continue };
            if self.first_head(&mut opened)?.is_none_or(|head| head.committed_at >= at) {
                break;
            }
            start = segment.before;
        }
        let mut reading = self.read(start)?;
        let mut batch = TransactionBatch::new();
        while reading.next(&mut batch)? {
            let late = |head: &PartHead| head.kind == PartKind::Transaction && head.first && head.committed_at >= at;
            if let Some(part) = batch.parts().find(|part| late(&part.head)) {
                let first = Position { generation: reading.generation(), commit_lsn: part.head.commit_lsn, ordinal: 0 };
                return Ok(Some(first.just_before()));
            }
        }
        Ok(None)
    }

    /// Looks at the journal in directory `dir`, if there is one.
    ///
    /// # Errors
    ///
    /// As those of [`Reader::open`].
    pub fn find(dir: &Path) -> Result<Option<Reader>> {
        let disk = Directory::read_only(dir);
        let there = match disk.list() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(failure::disk("cannot list the journal", error)),
            Ok(names) => names.iter().any(|name| matches!(SegmentName::parse(name), Some((_, true)))),
        };
        if there { Reader::open_on(Arc::new(disk)).map(Some) } else { Ok(None) }
    }

    /// Whose log the end of the journal is.
    pub fn identity(&self) -> &SourceIdentity {
        &self.identity
    }

    /// The generation of its end.
    pub fn generation(&self) -> Generation {
        self.log.end_generation()
    }

    /// LSN of the last commit record in this generation; [`Lsn::ZERO`] where there is none.
    pub fn commit(&self) -> Lsn {
        self.complete.order.commit
    }

    /// What is on record as left out, oldest first.
    ///
    /// # Errors
    ///
    /// `JournalCorrupt` if the file is damaged; `Disk` if the disk refuses.
    pub fn gaps(&self) -> Result<Vec<Gap>> {
        Gaps::open(self.log.disk.as_ref()).map(|gaps| gaps.all())
    }

    /// A follower after `after`. It waits at the end that the last [`Reader::refresh`] found.
    ///
    /// # Errors
    ///
    /// As those of [`Reader::read`].
    pub fn follow(&self, after: Position) -> Result<Box<dyn Follower>> {
        Ok(Box::new(Cursor::open(Arc::clone(&self.log), after)?))
    }

    /// How far each consumer was when it was last saved.
    ///
    /// # Errors
    ///
    /// `JournalCorrupt` if the file is damaged; `Disk` if the disk refuses.
    pub fn positions(&self) -> Result<BTreeMap<Arc<str>, Position>> {
        Positions::open(self.log.disk.as_ref()).map(|positions| positions.all())
    }

    /// Reads to where the file ends or goes bad, and remembers the last complete place. What is not complete is read again
    /// with the next look: a writer that lost its connection cuts it and writes something else there.
    fn scan(&mut self) -> Result<Option<Damage>> {
        let resumed = self.frames.offset() != self.complete.offset;
        let length = self.frames.length()?;
        let mut bad = self.scan_to(length)?;
        if resumed && (bad.is_some() || self.frames.offset() > length) {
            // What was read of an open transaction is no longer what stands there.
            self.frames.go_back(self.complete);
            bad = self.scan_to(length)?;
        }
        if bad.is_some() {
            self.frames.go_back(self.complete);
        }
        Ok(bad)
    }

    fn scan_to(&mut self, length: u64) -> Result<Option<Damage>> {
        loop {
            let offset = self.frames.offset();
            match self.frames.next(length)? {
                Next::Frame(FrameHead::Part(_), _) => {}
                Next::Frame(FrameHead::Schema, _) => {
                    return Ok(Some(Damage { offset, what: "a schema frame stands among the parts" }));
                }
                Next::Bad(what) => return Ok(Some(Damage { offset, what })),
                Next::End => return Ok(None),
            }
            if self.frames.order().is_complete() {
                self.complete = self.frames.place();
            }
        }
    }

    fn publish(&self) {
        let segment = self.log.end.borrow().segment;
        self.log.end.send_replace(End { segment, offset: self.complete.offset, lsn: self.complete.order.end });
    }

    /// The segment after the last, with whether it has its proven name; and whether retention took the last and that one.
    fn next_segment(&self) -> Result<(Option<(SegmentName, bool)>, bool)> {
        let (proven, provisional) = names(self.log.disk.as_ref())?;
        let last = self.log.end.borrow().segment;
        let overtaken = proven.first().is_some_and(|oldest| Some(oldest.number) > last.checked_add(1));
        let all = proven.into_iter().map(|name| (name, true)).chain(provisional.into_iter().map(|name| (name, false)));
        Ok((all.into_iter().find(|(name, _)| Some(name.number) == last.checked_add(1)), overtaken))
    }

    fn enter(&mut self, opened: OpenedSegment) {
        self.before = opened.header.before();
        self.identity = opened.header.identity.clone();
        self.complete = opened.frames.place();
        self.frames = opened.frames;
        let end =
            End { segment: opened.header.name.number, offset: self.complete.offset, lsn: self.complete.order.end };
        self.log.end.send_replace(end);
    }

    /// `None` where retention took it.
    fn open_held(&self, segment: Segment) -> Result<Option<OpenedSegment>> {
        match open_either(self.log.disk.as_ref(), segment.name) {
            Ok(opened) => Ok(Some(opened)),
            Err(OpenFailure::Missing) => Ok(None),
            Err(failure) => Err(opening(self.log.disk.as_ref(), segment.name, failure)),
        }
    }

    /// The first frame behind the schema, if it belongs to a complete transaction.
    fn first_head(&self, opened: &mut OpenedSegment) -> Result<Option<PartHead>> {
        let end = *self.log.end.borrow();
        let is_last = end.segment == opened.header.name.number;
        let limit = if is_last { end.offset } else { opened.frames.length()? };
        Ok(match opened.frames.next(limit)? {
            Next::Frame(FrameHead::Part(head), _) => Some(head),
            Next::Frame(FrameHead::Schema, _) | Next::Bad(_) | Next::End => None,
        })
    }
}

impl Reading {
    /// Fills `batch` (cleared first) with parts in order, about [`postrider_core::transaction::PART_BYTES_MAX`] bytes at a time;
    /// `false`, and leaves it empty, at the end that the last [`Reader::refresh`] found.
    ///
    /// # Errors
    ///
    /// `JournalCorrupt` at a bad frame; `JournalForeign` if retention took what comes next; `Disk` if the disk refuses.
    pub fn next(&mut self, batch: &mut TransactionBatch) -> Result<bool> {
        batch.clear();
        while batch.is_empty() {
            match self.cursor.read(batch) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(_) if forget_removed(&self.log)? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The RELATION and TYPE messages in force where the last batch begins, if they changed other than by the messages of
    /// earlier batches.
    pub fn schema(&mut self) -> Option<SchemaBlock> {
        self.cursor.schema()
    }

    /// The generation of the last batch.
    pub fn generation(&self) -> Generation {
        self.cursor.generation()
    }
}

/// The names of the segments in order: proven ones, then provisional ones.
pub(crate) fn names(disk: &dyn Disk) -> Result<(Vec<SegmentName>, Vec<SegmentName>)> {
    list(disk).map_err(|error| {
        error.with_detail(format!("The directory is {}.", disk.location())).with_hint(
            "Name the directory of a journal with `--dir DIR`, or the configuration that does with `-c FILE`.",
        )
    })
}

/// The segments that are there, and the last of them, open. There is always one.
fn held(disk: &dyn Disk) -> Result<(VecDeque<Segment>, OpenedSegment)> {
    let (proven, _) = names(disk)?;
    let mut segments: VecDeque<Segment> = VecDeque::new();
    let mut last = None;
    let mut headers = Vec::new();
    for name in proven {
        if segments.back().is_some_and(|last| last.name.number.checked_add(1) != Some(name.number)) {
            return Err(failure::corrupt(disk, &name.proven(), 0, "the segment before this one is missing"));
        }
        match open_either(disk, name) {
            Ok(opened) => {
                segments.push_back(listed(&opened));
                headers.push(opened.header.clone());
                last = Some(opened);
            }
            // Retention took it since the names were read: the oldest are the first to go.
            Err(OpenFailure::Missing) if segments.is_empty() => {}
            Err(failure) => return Err(opening(disk, name, failure)),
        }
    }
    mark_cuts(&mut segments, &headers);
    last.map(|last| (segments, last)).ok_or_else(|| no_journal(disk))
}

/// Forgets the segments that retention removed; `true` where there were some.
fn forget_removed(log: &Log) -> Result<bool> {
    let (proven, _) = names(log.disk.as_ref())?;
    let there: BTreeSet<u64> = proven.iter().map(|name| name.number).collect();
    let mut segments = log.segments();
    let mut forgot = false;
    // The one that is written last is never removed.
    while segments.len() > 1 && segments.front().is_some_and(|oldest| !there.contains(&oldest.name.number)) {
        segments.pop_front();
        forgot = true;
    }
    Ok(forgot)
}

fn listed(opened: &OpenedSegment) -> Segment {
    let header = &opened.header;
    Segment { name: header.name, before: header.before(), proven: true, sealed_bytes: 0, begun_at: None, cut: None }
}

fn opening(disk: &dyn Disk, name: SegmentName, failure: OpenFailure) -> Error {
    match failure {
        OpenFailure::Damaged(error, _) | OpenFailure::Other(error) => error,
        OpenFailure::Missing => {
            let error = failure::disk("cannot open a segment of the journal", io::ErrorKind::NotFound.into());
            error.with_detail(format!("The file is {} in {}.", name.proven(), disk.location()))
        }
    }
}

pub(crate) fn no_journal(disk: &dyn Disk) -> Error {
    Error::new(ErrorKind::JournalForeign, "the directory holds no journal")
        .with_detail(format!("There is no segment in {}.", disk.location()))
        .with_hint("Name the directory of a journal with `--dir DIR`, or the configuration that does with `-c FILE`.")
}
