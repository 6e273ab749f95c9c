//! Reads one segment frame by frame, in reads of about 256 KiB, every CRC checked.

use crate::disk::{Disk, DiskFile};
use crate::failure;
use crate::frame::{self, FrameHead, HEADER_BYTES, RawHeader};
use crate::order::Order;
use crate::segment::{HEADER_BYTES_MAX, InvalidHeader, SegmentHeader, SegmentName};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::SchemaBlock;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// How much is read at once.
const READ_BYTES: usize = 256 * 1024;

/// A cursor in one segment.
#[derive(Debug)]
pub(crate) struct Frames {
    file: Arc<dyn DiskFile>,
    /// The name the file was opened under.
    file_name: String,
    buffer: Vec<u8>,
    /// The bytes of the buffer that are read and not yet handed out.
    held: Range<usize>,
    /// Where in the file the next frame starts.
    offset: u64,
    /// CRC of the frame before.
    chain: u32,
    order: Order,
}

/// What stands at the cursor.
#[derive(Debug)]
pub(crate) enum Next<'a> {
    /// A frame; the cursor stands behind it.
    Frame(FrameHead, &'a [u8]),
    /// The limit, exactly.
    End,
    /// No frame, for this reason; the cursor stays.
    Bad(&'static str),
}

/// A segment whose head was read.
#[derive(Debug)]
pub(crate) struct OpenedSegment {
    pub(crate) header: SegmentHeader,
    pub(crate) schema: SchemaBlock,
    pub(crate) frames: Frames,
}

/// Why a segment cannot be opened.
#[derive(Debug)]
pub(crate) enum OpenFailure {
    /// There is no such file.
    Missing,
    /// Its head is no head, or not that of this name.
    Damaged(Error, Damage),
    /// The disk refused, or the format is of another version.
    Other(Error),
}

/// What is wrong with a file, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) offset: u64,
    pub(crate) what: &'static str,
}

/// Where a frame ends, and what stood before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// In the file, in bytes.
    pub(crate) offset: u64,
    /// CRC of the frame before.
    pub(crate) chain: u32,
    pub(crate) order: Order,
}

impl OpenFailure {
    /// For one who needs the segment.
    pub(crate) fn into_error(self) -> Error {
        match self {
            OpenFailure::Missing => {
                failure::disk("cannot open a segment of the journal", io::ErrorKind::NotFound.into())
            }
            OpenFailure::Damaged(error, _) | OpenFailure::Other(error) => error,
        }
    }
}

/// A segment's file with its header read.
#[derive(Debug)]
pub(crate) struct OpenedHeader {
    pub(crate) header: SegmentHeader,
    pub(crate) file: Arc<dyn DiskFile>,
    length: usize,
    crc: u32,
}

/// Opens the file `file_name` of segment `name` and reads its header.
pub(crate) fn open_header(disk: &dyn Disk, name: SegmentName, file_name: &str) -> Result<OpenedHeader, OpenFailure> {
    let file = match disk.open(file_name) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(OpenFailure::Missing),
        Err(error) => return Err(OpenFailure::Other(failure::disk("cannot open a segment of the journal", error))),
    };
    let damaged = |what| Err(damaged(disk, file_name, Damage { offset: 0, what }));
    let mut head = vec![0; HEADER_BYTES_MAX];
    let count = file.read_at(&mut head, 0).map_err(|error| OpenFailure::Other(refused(error)))?;
    match SegmentHeader::decode(head.get(..count).unwrap_or_default()) {
        Ok((header, length, crc)) if header.name == name => Ok(OpenedHeader { header, file, length, crc }),
        Ok(_) => damaged("the header is that of another segment"),
        Err(InvalidHeader::Damaged) => damaged("the header does not match its checksum"),
        Err(InvalidHeader::Version(version)) => Err(OpenFailure::Other(foreign_version(disk, version))),
    }
}

/// Opens the file `file_name` of segment `name` and reads its header and its schema.
pub(crate) fn open_segment(disk: &dyn Disk, name: SegmentName, file_name: &str) -> Result<OpenedSegment, OpenFailure> {
    let OpenedHeader { header, file, length, crc } = open_header(disk, name, file_name)?;
    let mut frames = Frames {
        file,
        file_name: file_name.to_owned(),
        buffer: Vec::new(),
        held: 0..0,
        offset: failure::offset(length),
        chain: crc,
        order: header.order(),
    };
    let end = frames.length().map_err(OpenFailure::Other)?;
    let what = match frames.next(end).map_err(OpenFailure::Other)? {
        Next::Frame(FrameHead::Schema, block) => {
            let schema = SchemaBlock(block.to_vec());
            return Ok(OpenedSegment { header, schema, frames });
        }
        Next::Bad(what) => what,
        Next::Frame(FrameHead::Part(_), _) | Next::End => "the schema frame is missing",
    };
    Err(damaged(disk, file_name, Damage { offset: failure::offset(length), what }))
}

/// Opens a segment under whichever of its two names it has now.
pub(crate) fn open_either(disk: &dyn Disk, name: SegmentName) -> Result<OpenedSegment, OpenFailure> {
    let (proven, provisional) = (name.proven(), name.provisional());
    for file_name in [&proven, &provisional, &proven] {
        match open_segment(disk, name, file_name) {
            Err(OpenFailure::Missing) => {}
            opened => return opened,
        }
    }
    Err(OpenFailure::Missing)
}

impl Frames {
    /// Length of the segment's file in bytes.
    pub(crate) fn length(&self) -> Result<u64> {
        self.file.length().map_err(refused)
    }

    pub(crate) fn file(&self) -> &Arc<dyn DiskFile> {
        &self.file
    }

    pub(crate) fn file_name(&self) -> &str {
        &self.file_name
    }

    /// Where the next frame starts, in bytes.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// CRC of the frame before.
    pub(crate) fn chain(&self) -> u32 {
        self.chain
    }

    /// What came so far, from the segment's header on.
    pub(crate) fn order(&self) -> Order {
        self.order
    }

    /// Where the cursor stands.
    pub(crate) fn place(&self) -> Place {
        Place { offset: self.offset, chain: self.chain, order: self.order }
    }

    /// Goes to a place where it has been, and forgets what it holds of the file.
    pub(crate) fn go_back(&mut self, place: Place) {
        (self.offset, self.chain, self.order) = (place.offset, place.chain, place.order);
        self.held = 0..0;
    }

    /// Whether the bad frame at the cursor was written whole and changed later: then the one after it is the next in the chain of
    /// either the CRC that stands in the bad one, or of the CRC of what does.
    pub(crate) fn is_followed(&mut self, limit: u64) -> Result<bool> {
        let rest = limit.saturating_sub(self.offset);
        self.read_up_to(READ_BYTES, rest)?;
        let Some(length) = self.frame_length().filter(|length| failure::offset(*length) <= rest) else {
            return Ok(false);
        };
        self.read_up_to(length.saturating_add(HEADER_BYTES), rest)?;
        let after = self.held.start.saturating_add(length)..self.held.end;
        let Some(next_length) = self.buffer.get(after).and_then(frame_length) else { return Ok(false) };
        let both = length.saturating_add(next_length);
        if failure::offset(both) > rest {
            return Ok(false);
        }
        self.read_up_to(both, rest)?;
        let held = self.buffer.get(self.held.clone()).unwrap_or_default();
        let (Some((bad, after)), Some(stored)) = (held.split_at_checked(length), frame::raw_header(held)) else {
            return Ok(false);
        };
        let next = after.get(..next_length).unwrap_or_default();
        let chains = [stored.crc, frame::crc(bad, self.chain)];
        Ok(chains.into_iter().any(|chain| frame::read_frame(next, chain).is_some()))
    }

    /// The next frame is in memory, whole.
    pub(crate) fn holds_next(&self) -> bool {
        self.held_frame().is_some()
    }

    /// Reads the next frame that lies before `limit`, a place in the file where a frame ends.
    pub(crate) fn next(&mut self, limit: u64) -> Result<Next<'_>> {
        if self.offset >= limit {
            return Ok(Next::End);
        }
        if self.held_frame().is_none()
            && let Some(reason) = self.fill(limit)?
        {
            return Ok(Next::Bad(reason));
        }
        let Some(range) = self.held_frame() else {
            return Ok(Next::Bad("the file ends within a frame"));
        };
        let length = range.len();
        let bytes = self.buffer.get(range).unwrap_or_default();
        let Some(raw) = frame::raw_header(bytes) else { return Ok(Next::Bad("the file ends within a frame")) };
        let Some((head, block)) = frame::read_frame(bytes, self.chain) else {
            return Ok(Next::Bad("a frame does not match its checksum"));
        };
        if let FrameHead::Part(part) = &head
            && let Err(rule) = self.order.admit(part)
        {
            return Ok(Next::Bad(rule));
        }
        self.chain = raw.crc;
        self.held.start = self.held.start.saturating_add(length);
        self.offset = self.offset.saturating_add(failure::offset(length));
        Ok(Next::Frame(head, block))
    }

    /// Where in the buffer the next frame is, if it is there to its end.
    fn held_frame(&self) -> Option<Range<usize>> {
        let length = self.frame_length()?;
        (length <= self.held.len()).then(|| self.held.start..self.held.start.saturating_add(length))
    }

    /// How long the next frame says it is, if that much is in memory.
    fn frame_length(&self) -> Option<usize> {
        frame_length(self.buffer.get(self.held.clone())?)
    }

    /// Reads on until the next frame is in memory, or says why it cannot be.
    fn fill(&mut self, limit: u64) -> Result<Option<&'static str>> {
        let rest = limit.saturating_sub(self.offset);
        self.read_up_to(READ_BYTES, rest)?;
        let Some(length) = self.frame_length() else { return Ok(Some("the file ends within a frame")) };
        if failure::offset(length) > rest {
            return Ok(Some("a frame is longer than the file"));
        }
        // Only a frame that the file has room for gets here, so a damaged length cannot ask for more than the file.
        self.read_up_to(length, rest)?;
        Ok(None)
    }

    /// Holds at least `wanted` bytes from the cursor on, or all `rest` that there are.
    fn read_up_to(&mut self, wanted: usize, rest: u64) -> Result<()> {
        let wanted = wanted.min(usize::try_from(rest).unwrap_or(usize::MAX));
        if self.held.len() >= wanted {
            return Ok(());
        }
        self.buffer.copy_within(self.held.clone(), 0);
        self.held = 0..self.held.len();
        let size = wanted.max(READ_BYTES);
        if self.buffer.len() != size {
            self.buffer.resize(size, 0);
            self.buffer.shrink_to_fit();
        }
        let from = self.offset.saturating_add(failure::offset(self.held.end));
        let room = self.buffer.get_mut(self.held.end..wanted).unwrap_or_default();
        let count = self.file.read_at(room, from).map_err(refused)?;
        self.held.end = self.held.end.saturating_add(count);
        Ok(())
    }
}

/// How long a frame that starts with `bytes` says it is.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let RawHeader { block_length, .. } = frame::raw_header(bytes)?;
    HEADER_BYTES.checked_add(usize::try_from(block_length).ok()?)
}

fn damaged(disk: &dyn Disk, file_name: &str, damage: Damage) -> OpenFailure {
    OpenFailure::Damaged(failure::corrupt(disk, file_name, damage.offset, damage.what), damage)
}

fn refused(error: io::Error) -> Error {
    failure::disk("cannot read the journal", error)
}

fn foreign_version(disk: &dyn Disk, version: u32) -> Error {
    Error::new(ErrorKind::JournalForeign, "the journal has a format that this version cannot read")
        .with_detail(format!("The journal in {} has format {version}.", disk.location()))
        .with_hint("Run the version that wrote it, or give this one an empty directory.")
}
