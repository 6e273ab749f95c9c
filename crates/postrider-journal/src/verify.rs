//! Reads every frame of every segment and says what is wrong, without stopping at the first.

use crate::disk::Disk;
use crate::disk::directory::Directory;
use crate::frame::FrameHead;
use crate::frames::{Damage, Next, OpenFailure, OpenedSegment, Place, open_either};
use crate::positions::Positions;
use crate::reader::{names, no_journal};
use crate::segment::SegmentName;
use crate::synced::{self, SyncedTo};
use postrider_core::error::{ErrorKind, Result};
use postrider_core::ports::{SchemaBlock, SourceIdentity};
use postrider_core::position::{Lsn, Position};
use postrider_core::transaction::{Part, PartHead, PartKind};
use std::path::Path;

/// Looks into what the frames hold, and hears what is wrong with them.
pub trait Examiner {
    /// The schema frame of a segment; why it cannot be used.
    fn schema(&mut self, schema: &SchemaBlock) -> Result<(), String>;

    /// The next part; why it cannot be used.
    fn part(&mut self, part: Part<'_>) -> Result<(), String>;

    /// Something is not as it must be. The rest of its segment is not looked at.
    fn found(&mut self, fault: Fault);
}

/// What is wrong with a file of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub file: String,
    /// Where in the file, in bytes.
    pub offset: u64,
    pub what: String,
    pub kind: FaultKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The end of the last segment is no whole transaction. It is being written, or a crash left it, and the next start cuts
    /// it; a last frame that was changed on the disk looks the same, unless it is known to have been durable.
    Unfinished,
    /// Nothing after `after` can be read in this segment. `until` is where the next segment goes on, if there is one.
    Damaged { after: Position, until: Option<Position> },
    /// The positions of the consumers cannot be read.
    Positions,
}

/// How much was looked at and is as it must be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    pub segments: u64,
    pub bytes: u64,
    pub frames: u64,
    pub transactions: u64,
    pub changes: u64,
}

/// Verifies the journal in directory `dir`; it may be in use. Writes nothing.
///
/// # Errors
///
/// `Disk` if the directory cannot be read; `JournalForeign` if it holds no journal, or one of another version. What is wrong
/// with the journal itself goes to `examiner`.
pub fn verify(dir: &Path, examiner: &mut dyn Examiner) -> Result<Verified> {
    verify_on(&Directory::read_only(dir), examiner)
}

/// Verifies the journal on any [`Disk`]; otherwise as [`verify`].
///
/// # Errors
///
/// As those of [`verify`].
pub fn verify_on(disk: &dyn Disk, examiner: &mut dyn Examiner) -> Result<Verified> {
    // First of all, since a process may go on writing.
    let synced = SyncedTo::read(disk)?;
    let (proven, provisional) = names(disk)?;
    let tail = proven.last().ok_or_else(|| no_journal(disk))?.number;
    let names: Vec<_> = proven.into_iter().chain(provisional.into_iter().filter(|name| name.number > tail)).collect();
    let mut walk = Walk {
        disk,
        examiner,
        synced,
        tail,
        last: None,
        end: Position::START,
        identity: None,
        verified: Verified::default(),
    };
    for (name, next) in names.iter().zip(names.iter().skip(1).map(Some).chain([None])) {
        walk.segment(*name, next.copied())?;
    }
    if let Some(what) = synced::missing(synced, tail) {
        let kind = FaultKind::Damaged { after: walk.end, until: None };
        walk.examiner.found(Fault { file: synced::FILE.to_owned(), offset: 0, what, kind });
    }
    match Positions::open(disk) {
        Err(error) if error.kind() == ErrorKind::JournalCorrupt => walk.examiner.found(Fault {
            file: Positions::FILE.to_owned(),
            offset: 0,
            what: "the file does not match its checksum".to_owned(),
            kind: FaultKind::Positions,
        }),
        positions => drop(positions?),
    }
    Ok(walk.verified)
}

/// The way from the oldest segment to the newest.
struct Walk<'a> {
    disk: &'a dyn Disk,
    examiner: &'a mut dyn Examiner,
    synced: Option<SyncedTo>,
    /// From the segment of this number on, the end may be torn: nothing says yet that it is whole.
    tail: u64,
    /// The segment before, and where it ends if it is good to its end.
    last: Option<(SegmentName, Option<Place>)>,
    /// The last position that can be read.
    end: Position,
    identity: Option<SourceIdentity>,
    verified: Verified,
}

impl Walk<'_> {
    fn segment(&mut self, name: SegmentName, next: Option<SegmentName>) -> Result<()> {
        let until = next.and_then(|next| open_either(self.disk, next).ok()).map(|next| next.header.before());
        let before = self.last.replace((name, None));
        let opened = match open_either(self.disk, name) {
            Ok(opened) => opened,
            // Retention took it since the names were read.
            Err(OpenFailure::Missing) if before.is_none() => {
                self.last = None;
                return Ok(());
            }
            Err(OpenFailure::Missing) => {
                let damage = Damage { offset: 0, what: "the file is missing" };
                self.found(name, damage, FaultKind::Damaged { after: starting(name), until });
                return Ok(());
            }
            Err(OpenFailure::Damaged(_, damage)) if name.number > self.tail => {
                self.found(name, damage, FaultKind::Unfinished);
                return Ok(());
            }
            Err(OpenFailure::Damaged(_, damage)) => {
                self.found(name, damage, FaultKind::Damaged { after: starting(name), until });
                return Ok(());
            }
            Err(OpenFailure::Other(error)) => return Err(error),
        };
        self.verified.segments = self.verified.segments.saturating_add(1);
        if let Err(damage) = self.head(before, &opened) {
            let kind = if name.number > self.tail {
                FaultKind::Unfinished
            } else {
                FaultKind::Damaged { after: opened.header.before(), until }
            };
            self.found(name, damage, kind);
            return Ok(());
        }
        let schema = self.examiner.schema(&opened.schema);
        self.frames(opened, until, schema)
    }

    /// Whether the segment is of the same source and follows from the one before.
    fn head(&mut self, before: Option<(SegmentName, Option<Place>)>, opened: &OpenedSegment) -> Result<(), Damage> {
        let header = &opened.header;
        let at_head = |what| Err(Damage { offset: 0, what });
        let identity = self.identity.get_or_insert_with(|| header.identity.clone());
        let of_source = |identity: &SourceIdentity| (identity.database.clone(), identity.slot.clone());
        if !header.begins_generation() && of_source(identity) != of_source(&header.identity) {
            return at_head("the segment belongs to another database or slot than the first");
        }
        self.identity = Some(header.identity.clone());
        let Some((name, place)) = before else { return Ok(()) };
        if name.number.checked_add(1) != Some(header.name.number) {
            return at_head("the segment before this one is missing");
        }
        match place {
            Some(place) if !header.follows(place.chain, place.order.end) => {
                at_head("the segment does not follow from the one before it")
            }
            _ => Ok(()),
        }
    }

    fn frames(&mut self, opened: OpenedSegment, until: Option<Position>, schema: Result<(), String>) -> Result<()> {
        let OpenedSegment { header, mut frames, .. } = opened;
        let (name, mut after, mut complete) = (header.name, header.before(), frames.offset());
        let length = frames.length()?;
        self.verified.bytes = self.verified.bytes.saturating_add(length);
        let mut unusable = schema.err().map(|why| (frames.offset(), why));
        let damage = loop {
            if let Some((offset, what)) = unusable.take() {
                let fault = Fault { file: name.proven(), offset, what, kind: FaultKind::Damaged { after, until } };
                self.examiner.found(fault);
                return Ok(());
            }
            let (offset, is_whole) = (frames.offset(), frames.order().is_complete());
            match frames.next(length)? {
                Next::Frame(FrameHead::Part(head), block) => {
                    unusable = self.examiner.part(Part::new(head, block)).err().map(|why| (offset, why));
                    self.count(&head);
                }
                Next::Frame(FrameHead::Schema, _) => {
                    break Some(Damage { offset, what: "a schema frame stands among the parts" });
                }
                Next::Bad(what) => break Some(Damage { offset, what }),
                Next::End if is_whole => break None,
                Next::End => break Some(Damage { offset, what: "the last transaction is not complete" }),
            }
            if frames.order().is_complete() && unusable.is_none() {
                complete = frames.offset();
                after = Position::whole(name.generation, frames.order().commit).max(after);
            }
        };
        self.end = after;
        let was_durable = match self.synced {
            Some(synced) => synced.is_behind(name.number, frames.file().as_ref(), complete)?,
            None => false,
        };
        let is_shorter = || Damage { offset: complete, what: "the file ends before what was durable" };
        let Some(damage) = damage.or_else(|| was_durable.then(is_shorter)) else {
            self.last = Some((name, Some(frames.place())));
            return Ok(());
        };
        let torn = name.number >= self.tail && !was_durable && !frames.is_followed(length)?;
        let kind = if torn { FaultKind::Unfinished } else { FaultKind::Damaged { after, until } };
        self.found(name, damage, kind);
        Ok(())
    }

    fn count(&mut self, head: &PartHead) {
        let verified = &mut self.verified;
        verified.frames = verified.frames.saturating_add(1);
        verified.changes = verified.changes.saturating_add(u64::from(head.changes));
        if head.last && head.kind == PartKind::Transaction {
            verified.transactions = verified.transactions.saturating_add(1);
        }
    }

    fn found(&mut self, name: SegmentName, damage: Damage, kind: FaultKind) {
        let Damage { offset, what } = damage;
        self.examiner.found(Fault { file: name.proven(), offset, what: what.to_owned(), kind });
    }
}

/// The last position before a segment whose head cannot be read, as far as its name tells.
fn starting(name: SegmentName) -> Position {
    Position::whole(name.generation, Lsn(name.start.0.saturating_sub(1)))
}
