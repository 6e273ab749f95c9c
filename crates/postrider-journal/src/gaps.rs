//! What consumers do not get: one small file, written anew at each change, so that nothing is left out without a word.
//!
//! `gaps`, numbers little-endian: `PSTRGAPS`, then for each gap the time it was found (64 bits, microseconds since 1970), the
//! consumer (16-bit length, UTF-8; empty: everybody), the two positions as in `positions`, the reason (a text like the
//! consumer's), and one byte that is 1 where a person has accepted it; then CRC32C over all before it.

use crate::bytes_in::{push_position, push_text};
use crate::disk::{Disk, SyncPoint, read_whole, replace};
use crate::failure;
use crate::sealed::{Magic, seal, unseal};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::Gap;
use postrider_core::time::Timestamp;
use std::sync::{Mutex, PoisonError};

const FILE: &str = "gaps";
const MAGIC: Magic = *b"PSTRGAPS";

/// The gaps that are on record, oldest first.
#[derive(Debug)]
pub(crate) struct Gaps {
    held: Mutex<Vec<Gap>>,
}

impl Gaps {
    /// Reads the file; none is an empty one.
    pub(crate) fn open(disk: &dyn Disk) -> Result<Gaps> {
        let refused = |error| failure::disk("cannot read the gaps on record", error);
        let held = match read_whole(disk, FILE).map_err(refused)? {
            None => Vec::new(),
            Some(bytes) => decode(&bytes).ok_or_else(|| corrupt(disk))?,
        };
        Ok(Gaps { held: Mutex::new(held) })
    }

    pub(crate) fn all(&self) -> Vec<Gap> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds a gap, or makes the one longer that it goes on from. Waits for the disk.
    pub(crate) fn record(&self, disk: &dyn Disk, gap: Gap) -> Result<()> {
        let mut all = self.all();
        let same = |held: &Gap| held.consumer == gap.consumer && held.reason == gap.reason && held.from <= gap.from;
        if all.iter().any(|held| same(held) && gap.to <= held.to) {
            return Ok(());
        }
        match all.iter_mut().find(|held| !held.accepted && same(held) && gap.from <= held.to) {
            Some(held) => held.to = gap.to,
            None => all.push(gap),
        }
        self.write(disk, all)
    }

    /// A person goes on without what is missing. Waits for the disk.
    pub(crate) fn accept(&self, disk: &dyn Disk) -> Result<()> {
        let mut all = self.all();
        all.iter_mut().for_each(|gap| gap.accepted = true);
        self.write(disk, all)
    }

    fn write(&self, disk: &dyn Disk, all: Vec<Gap>) -> Result<()> {
        let bytes =
            encode(&all).ok_or_else(|| Error::new(ErrorKind::Internal, "a gap has a text of more than 65535 bytes"))?;
        replace(disk, FILE, &bytes, [SyncPoint::GapsData, SyncPoint::GapsName])
            .map_err(|error| failure::disk("cannot put a gap on record", error))?;
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = all;
        Ok(())
    }
}

fn encode(gaps: &[Gap]) -> Option<Vec<u8>> {
    let mut bytes = MAGIC.to_vec();
    for gap in gaps {
        bytes.extend_from_slice(&gap.at.0.to_le_bytes());
        push_text(&mut bytes, gap.consumer.as_deref().unwrap_or_default())?;
        push_position(&mut bytes, gap.from);
        push_position(&mut bytes, gap.to);
        push_text(&mut bytes, &gap.reason)?;
        bytes.push(u8::from(gap.accepted));
    }
    Some(seal(bytes))
}

fn decode(bytes: &[u8]) -> Option<Vec<Gap>> {
    let mut fields = unseal(bytes, MAGIC)?;
    let mut gaps = Vec::new();
    while !fields.0.is_empty() {
        gaps.push(Gap {
            at: Timestamp(fields.i64()?),
            consumer: Some(fields.text()?).filter(|name| !name.is_empty()).map(Into::into),
            from: fields.position()?,
            to: fields.position()?,
            reason: fields.text()?.to_owned(),
            accepted: fields.u8()? != 0,
        });
    }
    Some(gaps)
}

fn corrupt(disk: &dyn Disk) -> Error {
    Error::new(ErrorKind::JournalCorrupt, "the gaps on record are damaged")
        .with_detail(format!("The file {FILE} in {} does not match its checksum.", disk.location()))
        .with_hint("Restore the file from a copy, or remove it: what it said is then known to nobody.")
}
