//! How far each consumer is: one small file, written anew at each save.
//!
//! `positions`, numbers little-endian: `PSTRPOS1`, then for each consumer its name (16-bit length, UTF-8), generation (32
//! bits), LSN of the commit record (64) and ordinal (64), then CRC32C over all before it. It is written under another name,
//! made durable, and renamed.

use crate::bytes_in::{push_position, push_text};
use crate::disk::{Disk, SyncPoint, read_whole, replace};
use crate::failure;
use crate::sealed::{Magic, seal, unseal};
use crate::sync::SyncThread;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{BoxFuture, PositionStore};
use postrider_core::position::Position;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

const MAGIC: Magic = *b"PSTRPOS1";

/// The positions that are durable.
#[derive(Debug)]
pub(crate) struct Positions {
    held: Mutex<BTreeMap<Arc<str>, Position>>,
}

/// The door to them.
#[derive(Debug)]
pub(crate) struct SavedPositions(pub(crate) Arc<SyncThread>);

impl Positions {
    /// The name of the file.
    pub(crate) const FILE: &str = "positions";

    /// Reads the file; none is an empty one.
    pub(crate) fn open(disk: &dyn Disk) -> Result<Positions> {
        let refused = |error| failure::disk("cannot read the positions of the consumers", error);
        let held = match read_whole(disk, Positions::FILE).map_err(refused)? {
            None => BTreeMap::new(),
            Some(bytes) => decode(&bytes).ok_or_else(|| corrupt(disk))?,
        };
        Ok(Positions { held: Mutex::new(held) })
    }

    /// Every consumer's.
    pub(crate) fn all(&self) -> BTreeMap<Arc<str>, Position> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn find(&self, consumer: &str) -> Option<Position> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).get(consumer).copied()
    }

    /// Writes the file with `changed` in it. Called by the sync thread only.
    pub(crate) fn write(&self, disk: &dyn Disk, changed: impl Iterator<Item = (Arc<str>, Position)>) -> Result<()> {
        let mut all = self.all();
        all.extend(changed);
        let bytes = encode(&all)
            .ok_or_else(|| Error::new(ErrorKind::Internal, "the name of a consumer is longer than 65535 bytes"))?;
        replace(disk, Positions::FILE, &bytes, [SyncPoint::PositionsData, SyncPoint::PositionsName])
            .map_err(|error| failure::disk("cannot save the positions of the consumers", error))?;
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = all;
        Ok(())
    }
}

impl PositionStore for SavedPositions {
    fn load(&self, consumer: &str) -> Result<Option<Position>> {
        Ok(self.0.positions().find(consumer))
    }

    fn save<'a>(&'a self, positions: &'a [(Arc<str>, Position)]) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.0.save(positions))
    }
}

fn encode(positions: &BTreeMap<Arc<str>, Position>) -> Option<Vec<u8>> {
    let mut bytes = MAGIC.to_vec();
    for (name, position) in positions {
        push_text(&mut bytes, name)?;
        push_position(&mut bytes, *position);
    }
    Some(seal(bytes))
}

fn decode(bytes: &[u8]) -> Option<BTreeMap<Arc<str>, Position>> {
    let mut fields = unseal(bytes, MAGIC)?;
    let mut positions = BTreeMap::new();
    while !fields.0.is_empty() {
        let name: Arc<str> = fields.text()?.into();
        positions.insert(name, fields.position()?);
    }
    Some(positions)
}

fn corrupt(disk: &dyn Disk) -> Error {
    Error::new(ErrorKind::JournalCorrupt, "the positions of the consumers are damaged")
        .with_detail(format!("The file {} in {} does not match its checksum.", Positions::FILE, disk.location()))
        .with_hint(
            "Restore the file from a copy, or remove it: every consumer then starts at the oldest position held.",
        )
}
