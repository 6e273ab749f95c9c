//! Moves a consumer's position by hand, while no process has the journal open, and keeps a record of it.
//!
//! `moves.jsonl` has a line for each move, in whatever form the caller gives it. The record is durable before the position
//! is, so that there is no move without one.

use crate::disk::directory::Directory;
use crate::disk::{Disk, DiskLock, SyncPoint};
use crate::failure;
use crate::positions::Positions;
use postrider_core::error::Result;
use postrider_core::position::Position;
use std::io;
use std::path::Path;
use std::sync::Arc;

const RECORD: &str = "moves.jsonl";

/// A journal that is locked for moving positions; the lock is given back on drop.
#[derive(Debug)]
pub struct Moving {
    disk: Arc<dyn Disk>,
    _lock: Box<dyn DiskLock>,
    positions: Positions,
}

impl Moving {
    /// Locks the journal in directory `dir`, which must be there. `None`: a process has it open.
    ///
    /// # Errors
    ///
    /// `JournalCorrupt` if the positions cannot be read; `Disk` if the disk refuses.
    pub fn lock(dir: &Path) -> Result<Option<Moving>> {
        Moving::lock_on(Arc::new(Directory::new(dir)))
    }

    /// Locks the journal on any [`Disk`]; otherwise as [`Moving::lock`].
    ///
    /// # Errors
    ///
    /// As those of [`Moving::lock`].
    pub fn lock_on(disk: Arc<dyn Disk>) -> Result<Option<Moving>> {
        match disk.lock() {
            Ok(lock) => {
                let positions = Positions::open(disk.as_ref())?;
                Ok(Some(Moving { disk, _lock: lock, positions }))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(failure::disk("cannot lock the journal", error)),
        }
    }

    /// Moves `consumer` to `position`. `record` is one line without its end.
    ///
    /// # Errors
    ///
    /// `Disk` if the disk refuses; the position is then where it was, or where it shall be.
    pub fn move_consumer(&self, consumer: &str, position: Position, record: &str) -> Result<()> {
        self.append(record).map_err(|error| failure::disk("cannot record that a position is moved", error))?;
        self.positions.write(self.disk.as_ref(), [(consumer.into(), position)].into_iter())
    }

    fn append(&self, record: &str) -> io::Result<()> {
        let file = match self.disk.open(RECORD) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.disk.create(RECORD)?,
            file => file?,
        };
        let length = file.length()?;
        // A line that a crash left torn is ended, so that it spoils no other.
        let mut last = [b'\n'];
        file.read_at(&mut last, length.saturating_sub(1))?;
        let separator = if last == [b'\n'] { "" } else { "\n" };
        file.write_at(format!("{separator}{record}\n").as_bytes(), length)?;
        file.sync(SyncPoint::PositionsData)?;
        self.disk.sync_names(SyncPoint::PositionsName)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use super::*;
    use crate::Reader;
    use crate::testing::FakeDisk;
    use crate::tests::{SMALL, block_on, open_fake, whole};
    use std::collections::BTreeMap;

    #[test]
    fn a_position_is_moved_both_ways_and_recorded_and_the_others_stay() {
        let disk = FakeDisk::new();
        let opened = open_fake(&disk, &SMALL);
        block_on(opened.positions.save(&[("events".into(), whole(30)), ("other".into(), whole(40))])).unwrap();
        assert!(Moving::lock_on(Arc::new(disk.clone())).unwrap().is_none(), "a process has it");
        drop(opened);
        disk.put(RECORD, b"torn".to_vec());
        for (lsn, record) in [(10, "back"), (50, "forward")] {
            let moving = Moving::lock_on(Arc::new(disk.clone())).unwrap().unwrap();
            moving.move_consumer("events", whole(lsn), record).unwrap();
        }
        let disk = disk.crash(1);
        assert_eq!(disk.files()[RECORD], b"torn\nback\nforward\n");
        let reader = Reader::open_on(Arc::new(disk.clone())).unwrap();
        let expected = BTreeMap::from([("events".into(), whole(50)), ("other".into(), whole(40))]);
        assert_eq!(reader.positions().unwrap(), expected);
        assert_eq!(open_fake(&disk, &SMALL).positions.load("events").unwrap(), Some(whole(50)));
    }

    #[test]
    fn a_move_is_recorded_before_it_is_made() {
        for operations in 0.. {
            let disk = FakeDisk::new();
            drop(open_fake(&disk, &SMALL));
            let moving = Moving::lock_on(Arc::new(disk.clone())).unwrap().unwrap();
            disk.power_off_after(operations);
            let moved = moving.move_consumer("events", whole(10), "moved").is_ok();
            let after = disk.crash(operations);
            let is_there =
                Reader::open_on(Arc::new(after.clone())).unwrap().positions().unwrap().contains_key("events");
            let is_recorded = after.files().get(RECORD).is_some_and(|bytes| bytes == b"moved\n");
            assert!(is_recorded || !is_there, "after {operations} operations");
            if moved {
                assert!(is_there && is_recorded);
                return;
            }
        }
    }
}
