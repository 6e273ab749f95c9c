//! The file port: the few things the journal does to its directory, so that a test can take the power away.
//!
//! The real one is a directory of the operating system, the fake one [`crate::testing::FakeDisk`]. Names are file
//! names within the one directory; offsets and lengths are bytes.

pub(crate) mod directory;

use std::fmt;
use std::io;
use std::sync::Arc;

/// What is longer is no small file of ours.
const SMALL_FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The directory of one journal.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Where this is, for an error message.
    fn location(&self) -> String;

    /// Makes the directory if it is not there.
    fn make(&self) -> io::Result<()>;

    /// Takes the lock of the directory until the value is dropped; [`io::ErrorKind::WouldBlock`] where another has it.
    fn lock(&self) -> io::Result<Box<dyn DiskLock>>;

    /// The names of all files, in no order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes a new, empty file; [`io::ErrorKind::AlreadyExists`] where there is one.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file to read and write; [`io::ErrorKind::NotFound`] where there is none.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Gives a file another name and replaces what had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a name; who has the file open can go on reading it.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all changes of names durable.
    fn sync_names(&self, point: SyncPoint) -> io::Result<()>;

    /// Makes the directory itself durable in its parent, if this process may read the parent.
    fn sync_parent(&self, point: SyncPoint) -> io::Result<()>;
}

/// One open file; all calls may come from several threads at once.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// What tells the file from a copy of it.
    fn number(&self) -> io::Result<u64>;

    /// Length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Reads at `offset` until `buffer` is full or the file ends; returns how many bytes.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all bytes at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Cuts the file to `length` bytes.
    fn truncate(&self, length: u64) -> io::Result<()>;

    /// Makes the bytes and the length durable.
    fn sync(&self, point: SyncPoint) -> io::Result<()>;
}

/// The lock of a directory; given back on drop.
pub trait DiskLock: Send + Sync + fmt::Debug {}

/// Every place that waits for the disk, so that a test can leave each out and must see the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SyncPoint {
    /// The directory in its parent, at open.
    Parent,
    /// The last segment, at open: a killed process may have left it in the page cache.
    OpenedData,
    /// The names, at open, for the same reason.
    OpenedNames,
    /// The segment that is being written.
    SegmentData,
    /// The segment that is finished, before the one after it gets its name.
    SegmentSealed,
    /// A new segment with its head, before it gets its name.
    SegmentHead,
    /// The name of a new segment.
    SegmentName,
    /// The name of a segment that retention removed, before the next is removed.
    SegmentRemoved,
    /// The new positions file, before it replaces the old.
    PositionsData,
    /// The name of the new positions file.
    PositionsName,
    /// A prepared transaction in the staging area, before it gets its name.
    StagedData,
    /// The name of a prepared transaction.
    StagedName,
    /// The name that says that the verdict on a prepared transaction has come.
    VerdictName,
    /// The new file of gaps, before it replaces the old.
    GapsData,
    /// The name of the new file of gaps.
    GapsName,
}

impl SyncPoint {
    /// Every place there is.
    pub const ALL: [SyncPoint; 15] = [
        SyncPoint::Parent,
        SyncPoint::OpenedData,
        SyncPoint::OpenedNames,
        SyncPoint::SegmentData,
        SyncPoint::SegmentSealed,
        SyncPoint::SegmentHead,
        SyncPoint::SegmentName,
        SyncPoint::SegmentRemoved,
        SyncPoint::PositionsData,
        SyncPoint::PositionsName,
        SyncPoint::StagedData,
        SyncPoint::StagedName,
        SyncPoint::VerdictName,
        SyncPoint::GapsData,
        SyncPoint::GapsName,
    ];
}

/// The content of a small file; `None` where there is none.
pub(crate) fn read_whole(disk: &dyn Disk, name: &str) -> io::Result<Option<Vec<u8>>> {
    let file = match disk.open(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let length = file.length()?.min(SMALL_FILE_BYTES_MAX);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    Ok(Some(bytes))
}

/// Puts a small file in the place of the one before, whole or not at all; `points` are those of its content and its name.
pub(crate) fn replace(disk: &dyn Disk, name: &str, bytes: &[u8], points: [SyncPoint; 2]) -> io::Result<()> {
    let new_name = format!("{name}.new");
    match disk.remove(&new_name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let [content, names] = points;
    let file = disk.create(&new_name)?;
    file.write_at(bytes, 0)?;
    file.sync(content)?;
    disk.rename(&new_name, name)?;
    disk.sync_names(names)
}
