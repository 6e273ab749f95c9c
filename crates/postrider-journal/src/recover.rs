//! What a directory holds when the journal is opened: reads the end of the log, cuts what a crash left torn, and makes
//! the rest durable.
//!
//! A segment with its proven name says that everything before it is whole on the disk. So only the last of them, and those
//! after it that are still provisional, can be torn: they are read to the first bad frame, cut after the last complete
//! transaction or mark before it, and what follows goes. A segment between that is missing, a proven segment with
//! a bad head, or one of another identity is an error; a bad frame in an older segment is one when it is read.
//!
//! How far the last fsync came stands beside the segments ([`crate::synced`]): a bad frame before that place is an error, too, and so is a newest
//! segment that is missing. Behind
//! it whole frames decide nothing: since the last fsync pages reach the disk in any order, so that a crash of the machine may
//! leave a hole and what was written after it (`a_crash_may_leave_a_hole_with_whole_frames_behind_it`). What that file says may be older
//! than the last fsync, and of a copy it says nothing: then a frame that was durable and changed later is cut like one
//! that was never wholly written, and a warning names the place where whole frames stood behind it. If the server was already told
//! to forget what stood there, its slot lies past our end, and the stream is refused when it is opened.

use crate::disk::{Disk, DiskFile, SyncPoint};
use crate::failure;
use crate::frame::FrameHead;
use crate::frames::{Frames, Next, OpenFailure, OpenedSegment, open_header, open_segment};
use crate::log::{End, Segment};
use crate::order::Order;
use crate::segment::{SegmentHeader, SegmentName};
use crate::synced::{self, SyncedTo};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{SchemaBlock, SourceIdentity, foreign_journal};
use postrider_core::position::{Generation, Lsn};
use postrider_core::time::Timestamp;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Where the writer goes on.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Whose log the last segment is.
    pub(crate) identity: SourceIdentity,
    pub(crate) segments: VecDeque<Segment>,
    pub(crate) tail: Tail,
    /// The generations that begin in these segments, and the log before each that its server has.
    pub(crate) begun: Vec<(Generation, Lsn)>,
}

/// Who may go on with the journal.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Heir<'a> {
    /// The source it belongs to, also on a later timeline.
    Source(&'a SourceIdentity),
    /// Whoever has decided so.
    Anybody,
}

/// The end of the last segment.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) end: End,
    /// CRC of the last frame.
    pub(crate) chain: u32,
    pub(crate) order: Order,
}

/// Reads, cuts and secures what is there; makes the first segment where nothing is. `None`: nothing is, and nobody is named.
pub(crate) fn recover(disk: &dyn Disk, heir: Heir<'_>) -> Result<Option<Recovered>> {
    let (proven, provisional) = list(disk)?;
    let synced = SyncedTo::read(disk)?;
    let mut walk = Walk { disk, synced, headers: Vec::new(), segments: VecDeque::new(), tail: None, torn: false };
    for name in &proven {
        walk.take_proven(*name)?;
    }
    // Before anything is cut: what belongs to somebody else stays as it is.
    walk.check_heir(heir)?;
    if let Some(what) = synced::missing(synced, proven.last().map_or(0, |name| name.number)) {
        return Err(synced::shortened(disk, &what));
    }
    if let Some(last) = proven.last() {
        walk.secure_last(*last)?;
    }
    for name in provisional {
        walk.take_provisional(name)?;
    }
    let tail = match (walk.tail.take(), heir) {
        (Some(tail), _) => tail,
        (None, Heir::Source(identity)) => walk.begin(identity)?,
        (None, Heir::Anybody) => return Ok(None),
    };
    walk.check_heir(heir)?;
    let Some(last) = walk.headers.last() else { return Ok(None) };
    let identity = last.identity.clone();
    mark_cuts(&mut walk.segments, &walk.headers);
    let beginning = walk.headers.iter().filter(|header| header.begins_generation());
    let begun = beginning.map(|header| (header.name.generation, header.cut)).collect();
    Ok(Some(Recovered { identity, segments: walk.segments, tail, begun }))
}

/// Enters in each segment where its generation stopped being the history of the server that is followed now.
pub(crate) fn mark_cuts(segments: &mut VecDeque<Segment>, headers: &[SegmentHeader]) {
    let mut cut = None;
    for (segment, header) in segments.iter_mut().zip(headers).rev() {
        segment.cut = cut;
        if header.begins_generation() {
            let own = Some(header.cut).filter(|own| *own > Lsn::ZERO);
            cut = own.map(|own| cut.map_or(own, |later: Lsn| later.min(own)));
        }
    }
}

/// Writes the head of a new segment behind `chain` and `order`, under its provisional name.
pub(crate) fn create_segment(disk: &dyn Disk, header: &SegmentHeader, schema: &SchemaBlock) -> Result<Tail> {
    let Some((head, chain)) = header.encode(schema) else {
        return Err(Error::new(ErrorKind::Internal, "the head of a segment is longer than its format allows"));
    };
    let refused = |error| failure::disk("cannot start a segment of the journal", error);
    let file = disk.create(&header.name.provisional()).map_err(refused)?;
    file.write_at(&head, 0).map_err(refused)?;
    let end = End { segment: header.name.number, offset: failure::offset(head.len()), lsn: header.name.start };
    Ok(Tail { file, end, chain, order: header.order() })
}

/// Makes a segment durable and then gives it the name that says so. Everything before it has to be durable already.
pub(crate) fn prove(disk: &dyn Disk, name: SegmentName, file: &dyn DiskFile) -> io::Result<()> {
    file.sync(SyncPoint::SegmentHead)?;
    disk.rename(&name.provisional(), &name.proven())?;
    // Before the next segment gets its name: names may reach the disk in any order.
    disk.sync_names(SyncPoint::SegmentName)
}

/// The names of the segments in order: proven ones, then provisional ones.
pub(crate) fn list(disk: &dyn Disk) -> Result<(Vec<SegmentName>, Vec<SegmentName>)> {
    let names = disk.list().map_err(|error| failure::disk("cannot list the journal", error))?;
    let mut parsed: Vec<_> = names.iter().filter_map(|name| SegmentName::parse(name)).collect();
    parsed.sort_unstable();
    let (proven, provisional): (Vec<_>, Vec<_>) = parsed.into_iter().partition(|(_, proven)| *proven);
    let names = |list: Vec<(SegmentName, bool)>| list.into_iter().map(|(name, _)| name).collect();
    Ok((names(proven), names(provisional)))
}

/// When the first transaction of a segment was committed. One that cannot be read is no matter here: whoever follows it is told.
fn begun_at(disk: &dyn Disk, name: SegmentName) -> Option<Timestamp> {
    let mut frames = open_segment(disk, name, &name.proven()).ok()?.frames;
    let length = frames.length().ok()?;
    match frames.next(length).ok()? {
        Next::Frame(FrameHead::Part(head), _) => Some(head.committed_at),
        _ => None,
    }
}

/// The way from the oldest segment to the end of the log.
#[derive(Debug)]
struct Walk<'a> {
    disk: &'a dyn Disk,
    synced: Option<SyncedTo>,
    /// The headers of the segments.
    headers: Vec<SegmentHeader>,
    segments: VecDeque<Segment>,
    tail: Option<Tail>,
    /// Something was cut: nothing after it can have been durable.
    torn: bool,
}

impl Walk<'_> {
    fn take_proven(&mut self, name: SegmentName) -> Result<()> {
        let file_name = name.proven();
        if self.segments.back().is_some_and(|last| last.name.number.checked_add(1) != Some(name.number)) {
            return Err(failure::corrupt(self.disk, &file_name, 0, "the segment before this one is missing"));
        }
        let opened = open_header(self.disk, name, &file_name).map_err(OpenFailure::into_error)?;
        let bytes = opened.file.length().map_err(|error| failure::disk("cannot read the journal", error))?;
        self.push(opened.header, bytes);
        Ok(())
    }

    fn push(&mut self, header: SegmentHeader, sealed_bytes: u64) {
        let (name, before) = (header.name, header.before());
        let begun_at = begun_at(self.disk, name);
        self.segments.push_back(Segment { name, before, proven: true, sealed_bytes, begun_at, cut: None });
        self.headers.push(header);
    }

    /// Cuts the last proven segment and makes it durable: a killed process may have left it in the page cache only.
    fn secure_last(&mut self, name: SegmentName) -> Result<()> {
        let opened = open_segment(self.disk, name, &name.proven()).map_err(OpenFailure::into_error)?;
        self.cut(opened.frames, name)?;
        let refused = |error| failure::disk("cannot make the journal durable", error);
        if let Some(tail) = &self.tail {
            tail.file.sync(SyncPoint::OpenedData).map_err(refused)?;
        }
        self.disk.sync_names(SyncPoint::OpenedNames).map_err(refused)
    }

    /// Goes on into a provisional segment if it follows, and removes it if not.
    fn take_provisional(&mut self, name: SegmentName) -> Result<()> {
        let Some(opened) = self.open_provisional(name)? else {
            self.torn |= self.segments.back().is_none_or(|last| last.name.number < name.number);
            return self
                .disk
                .remove(&name.provisional())
                .map_err(|error| failure::disk("cannot cut the journal", error));
        };
        self.seal_last();
        let header = opened.header;
        self.cut(opened.frames, name)?;
        if let Some(tail) = &self.tail {
            prove(self.disk, name, tail.file.as_ref())
                .map_err(|error| failure::disk("cannot make the journal durable", error))?;
        }
        self.push(header, 0);
        Ok(())
    }

    /// A provisional segment, if its head is whole and fits what stands before it.
    fn open_provisional(&self, name: SegmentName) -> Result<Option<OpenedSegment>> {
        let number = self.segments.back().map_or(0, |last| last.name.number);
        if self.torn || number.checked_add(1) != Some(name.number) {
            return Ok(None);
        }
        let opened = match open_segment(self.disk, name, &name.provisional()) {
            Ok(opened) => opened,
            Err(OpenFailure::Missing | OpenFailure::Damaged(..)) => return Ok(None),
            Err(OpenFailure::Other(error)) => return Err(error),
        };
        let (end, chain) = self.tail.as_ref().map_or((Lsn::ZERO, 0), |tail| (tail.end.lsn, tail.chain));
        Ok(opened.header.follows(chain, end).then_some(opened))
    }

    /// Reads to the last complete transaction or mark and cuts what follows.
    fn cut(&mut self, mut frames: Frames, name: SegmentName) -> Result<()> {
        let length = frames.length()?;
        let place = |frames: &Frames| (frames.offset(), frames.chain(), frames.order());
        let mut complete = place(&frames);
        let end = loop {
            match frames.next(length)? {
                Next::Frame(FrameHead::Part(_), _) => {}
                Next::Frame(FrameHead::Schema, _) => break "a schema frame stands among the parts",
                Next::Bad(what) => break what,
                Next::End => break "the file ends here",
            }
            if frames.order().is_complete() {
                complete = place(&frames);
            }
        };
        if let Some(synced) = self.synced
            && synced.is_behind(name.number, frames.file().as_ref(), complete.0)?
        {
            return Err(synced::changed(self.disk, frames.file_name(), frames.offset(), end));
        }
        if frames.is_followed(length)? {
            tracing::warn!(
                file = frames.file_name(),
                offset = frames.offset(),
                "a frame near the end of the journal is bad, and whole ones stand behind it: a crash of the machine does that, and so does a disk that changes what it holds"
            );
        }
        let (offset, chain, order) = complete;
        if offset != length {
            self.torn = true;
            tracing::info!(
                file = frames.file_name(),
                offset,
                bytes = length.saturating_sub(offset),
                "cut an unfinished write from the end of the journal"
            );
            frames.file().truncate(offset).map_err(|error| failure::disk("cannot cut the journal", error))?;
        }
        let end = End { segment: name.number, offset, lsn: order.end };
        self.tail = Some(Tail { file: Arc::clone(frames.file()), end, chain, order });
        Ok(())
    }

    /// Notes the final length of the last segment, since another follows.
    fn seal_last(&mut self) {
        if let (Some(last), Some(tail)) = (self.segments.back_mut(), &self.tail) {
            last.sealed_bytes = tail.end.offset;
        }
    }

    /// Makes the first segment of a new journal.
    fn begin(&mut self, identity: &SourceIdentity) -> Result<Tail> {
        let generation = Generation::FIRST;
        let header = SegmentHeader {
            identity: identity.clone(),
            name: SegmentName { generation, start: Lsn::ZERO, number: 1 },
            chain: 0,
            commit: Lsn::ZERO,
            commit_generation: generation,
            cut: Lsn::ZERO,
        };
        let name = header.name;
        let tail = create_segment(self.disk, &header, &SchemaBlock::default())?;
        prove(self.disk, name, tail.file.as_ref())
            .map_err(|error| failure::disk("cannot make the journal durable", error))?;
        self.push(header, 0);
        Ok(tail)
    }

    /// A later timeline is the source's to judge: only it knows where the server left the earlier one.
    fn check_heir(&self, heir: Heir<'_>) -> Result<()> {
        let (Heir::Source(identity), Some(last)) = (heir, self.headers.last()) else { return Ok(()) };
        let differs = last.identity.differences(identity);
        if differs.is_empty() {
            return Ok(());
        }
        Err(foreign_journal(&format!("the journal in {}", self.disk.location()), &differs))
    }
}
