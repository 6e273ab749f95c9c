//! How far the last fsync came, beside the segments.
//!
//! `synced`, numbers little-endian: `PSTRSYN1`, the number of the segment (64 bits), the place in its file (64), the number by
//! which the file system knows that file (64), then CRC32C over all before it. It is written in place after an fsync and not synced itself:
//! what the disk has of it may be older, or nothing, and never says too much. So a bad frame before that place was changed after it was
//! durable, and only what stands behind it can be torn. Of a copy of the segment it says nothing, since the copy may have been
//! taken earlier than that of this file.
#![deny(clippy::indexing_slicing, clippy::as_conversions, clippy::arithmetic_side_effects)]

use crate::disk::{Disk, DiskFile, read_whole};
use crate::failure;
use crate::sealed::{Magic, seal, unseal};
use postrider_core::error::{Error, Result};
use std::io;
use std::sync::Arc;

const MAGIC: Magic = *b"PSTRSYN1";
pub(crate) const FILE: &str = "synced";

/// The file, open for as long as the journal is.
#[derive(Debug)]
pub(crate) struct Synced(Arc<dyn DiskFile>);

/// A place in a segment up to which everything was durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SyncedTo {
    /// Number of the segment.
    pub(crate) segment: u64,
    /// In its file, in bytes.
    pub(crate) offset: u64,
    /// The segment's file itself.
    pub(crate) file: u64,
}

impl Synced {
    /// Opens the file, or makes it.
    pub(crate) fn open(disk: &dyn Disk) -> io::Result<Synced> {
        match disk.open(FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk.create(FILE).map(Synced),
            opened => opened.map(Synced),
        }
    }

    /// Notes a place that is durable by now.
    pub(crate) fn note(&self, to: SyncedTo) -> io::Result<()> {
        let fields = [to.segment, to.offset, to.file].map(u64::to_le_bytes).concat();
        self.0.write_at(&seal([MAGIC.as_slice(), &fields].concat()), 0)
    }
}

impl SyncedTo {
    /// What was noted last, as far as the disk has it whole.
    pub(crate) fn read(disk: &dyn Disk) -> Result<Option<SyncedTo>> {
        let bytes = read_whole(disk, FILE).map_err(|error| failure::disk("cannot read the journal", error))?;
        Ok(bytes.as_deref().and_then(decode))
    }

    /// Whether what stands right behind `offset` of this segment was durable.
    pub(crate) fn is_behind(self, segment: u64, file: &dyn DiskFile, offset: u64) -> Result<bool> {
        if self.segment != segment || self.offset <= offset {
            return Ok(false);
        }
        let number = file.number().map_err(|error| failure::disk("cannot read the journal", error))?;
        Ok(self.file == number)
    }
}

/// The newest segment that was durable is not among those up to `newest`: why not, as a clause.
pub(crate) fn missing(synced: Option<SyncedTo>, newest: u64) -> Option<String> {
    let SyncedTo { segment, .. } = synced?;
    (segment > newest).then(|| {
        let held =
            if newest == 0 { "there is none".to_owned() } else { format!("the newest here is segment {newest}") };
        format!("segment {segment} was durable, and {held}")
    })
}

/// The error of a journal whose newest segment is missing.
pub(crate) fn shortened(disk: &dyn Disk, what: &str) -> Error {
    failure::corrupt(disk, FILE, 0, what).with_hint(format!(
        "Put the missing file back. Where that cannot be, or where this is a copy that was taken without it, remove the file {FILE}: the next start goes on \
         behind what is there, and the server sends the rest again if it still has it; if it does not, the start says so."
    ))
}

/// The error of what is no longer as it was when it was durable.
pub(crate) fn changed(disk: &dyn Disk, file: &str, offset: u64, what: &str) -> Error {
    let what = format!("{what}, and it was durable");
    failure::corrupt(disk, file, offset, &what).with_hint(format!(
        "Restore the file from a copy. Where that cannot be, remove the file {FILE} beside it: the next start cuts the journal at its last \
         whole transaction, and the server sends the rest again if it still has it; if it does not, the start says so."
    ))
}

fn decode(bytes: &[u8]) -> Option<SyncedTo> {
    let mut fields = unseal(bytes, MAGIC)?;
    let to = SyncedTo { segment: fields.u64()?, offset: fields.u64()?, file: fields.u64()? };
    fields.0.is_empty().then_some(to)
}
