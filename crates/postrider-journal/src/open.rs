//! Opens a journal, and the doors it gives.

use crate::append::Appender;
use crate::disk::directory::Directory;
use crate::disk::{Disk, SyncPoint};
use crate::failure;
use crate::follow::Cursor;
use crate::gaps::Gaps;
use crate::log::Log;
use crate::positions::{Positions, SavedPositions};
use crate::recover::{Heir, Tail, recover};
use crate::retention::{Bounds, Retention};
use crate::staging::Life;
use crate::sync::{Beside, SyncThread};
use crate::synced::{Synced, SyncedTo};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{BoxFuture, Follower, Gap, Journal, JournalWriter, PositionStore, Room, SourceIdentity};
use postrider_core::position::{Generation, Lsn, Position};
use postrider_core::time::Timestamp;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How large the journal may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// A segment is finished with the append that makes it so large, in bytes. One transaction is never split, so a segment
    /// can be larger.
    pub segment_bytes: u64,
    /// Old segments go, if nobody needs them, once all together are larger, in bytes.
    pub retain_bytes: u64,
    /// Old segments go, if nobody needs them, once all in them was committed longer ago than this; `None`: age is no reason.
    pub retain_age: Option<Duration>,
}

/// An open journal. The directory stays locked until all three are dropped; that waits for the fsync under way, if any.
#[derive(Debug)]
pub struct Opened {
    /// Whose log the end of the journal is; the source may be on a later timeline by now.
    pub identity: SourceIdentity,
    /// For the staging area beside it.
    pub life: Life,
    pub writer: Box<dyn JournalWriter>,
    pub journal: Arc<dyn Journal>,
    pub positions: Arc<dyn PositionStore>,
}

/// The door of the readers.
#[derive(Debug)]
struct OpenJournal {
    sync: Arc<SyncThread>,
    bounds: Bounds,
}

impl Default for Settings {
    /// Segments of 64 MiB, 20 GiB of them.
    fn default() -> Settings {
        Settings { segment_bytes: 64 * 1024 * 1024, retain_bytes: 20 * 1024 * 1024 * 1024, retain_age: None }
    }
}

/// Opens the journal in directory `dir`, makes it if it is not there, and repairs its end after a crash.
///
/// Reads the last segment to its end and the heads of all others. The end is durable when this returns.
///
/// # Errors
///
/// `JournalForeign` if it belongs to another source or another version wrote it (a source on a later timeline is the same:
/// whether it goes on from the journal's end is for the source to say when the stream is opened); `JournalCorrupt` if a segment is missing or
/// the head of one, or the positions file, is damaged; `Disk` if another process has it open or the disk refuses.
pub fn open(dir: &Path, identity: &SourceIdentity, settings: &Settings) -> Result<Opened> {
    open_on(Arc::new(Directory::new(dir)), identity, settings)
}

/// Opens the journal on any [`Disk`]; otherwise as [`open`].
///
/// # Errors
///
/// As those of [`open`].
pub fn open_on(disk: Arc<dyn Disk>, identity: &SourceIdentity, settings: &Settings) -> Result<Opened> {
    let refused = |error| failure::disk("cannot open the journal", error);
    disk.make().map_err(refused)?;
    let lock = disk.lock().map_err(|error| in_use_or(&disk.location(), error))?;
    disk.sync_parent(SyncPoint::Parent).map_err(refused)?;
    let recovered = recover(disk.as_ref(), Heir::Source(identity))?;
    let recovered = recovered.ok_or_else(|| Error::new(ErrorKind::Internal, "the journal has no segment"))?;
    let synced = Synced::open(disk.as_ref()).map_err(refused)?;
    let Tail { end, file, .. } = &recovered.tail;
    synced
        .note(SyncedTo { segment: end.segment, offset: end.offset, file: file.number().map_err(refused)? })
        .map_err(refused)?;
    let beside = Beside { positions: Positions::open(disk.as_ref())?, gaps: Gaps::open(disk.as_ref())?, synced };
    let log = Arc::new(Log::new(disk, recovered.segments, recovered.tail.end));
    let life = Life {
        system_identifier: recovered.identity.system_identifier,
        generation: log.generation,
        begun: recovered.begun,
    };
    let bounds = Bounds { bytes_max: settings.retain_bytes, age_max: settings.retain_age };
    let sync = Arc::new(SyncThread::start(log, lock, beside, Retention::new(bounds))?);
    let name = sync.log().segment(recovered.tail.end.segment)?.name;
    sync.watch_segment(name, Arc::clone(&recovered.tail.file), SyncPoint::SegmentData);
    Ok(Opened {
        writer: Box::new(Appender::new(Arc::clone(&sync), recovered.identity.clone(), settings, recovered.tail)),
        identity: recovered.identity,
        life,
        journal: Arc::new(OpenJournal { sync: Arc::clone(&sync), bounds }),
        positions: Arc::new(SavedPositions(sync)),
    })
}

impl Journal for OpenJournal {
    fn generation(&self) -> Generation {
        self.sync.log().generation
    }

    fn appended(&self) -> Lsn {
        self.sync.log().end.borrow().lsn
    }

    fn durable(&self) -> Lsn {
        *self.sync.log().durable.borrow()
    }

    fn durable_past(&self, lsn: Lsn) -> BoxFuture<'_, Result<Lsn>> {
        Box::pin(self.sync.durable_past(lsn))
    }

    /// [`Position::START`] means the oldest transaction held, whether or not earlier ones were dropped. The schema at the first
    /// batch is known once `next` has given it.
    fn follow(&self, after: Position) -> Result<Box<dyn Follower>> {
        Ok(Box::new(Cursor::open(Arc::clone(self.sync.log()), after)?))
    }

    fn room(&self, now: Timestamp) -> Room {
        let log = self.sync.log();
        let end = *log.end.borrow();
        self.bounds.room(&log.segments(), end, now)
    }

    fn release(&self, position: Position, now: Timestamp) -> Result<()> {
        self.sync.log().failure.check()?;
        self.sync.release(position, now);
        Ok(())
    }

    fn gaps(&self) -> Vec<Gap> {
        self.sync.gaps().all()
    }

    fn record(&self, gap: Gap) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.sync.record(gap))
    }
}

pub(crate) fn in_use_or(location: &str, error: io::Error) -> Error {
    if error.kind() != io::ErrorKind::WouldBlock {
        return failure::disk("cannot lock the journal", error);
    }
    Error::new(ErrorKind::Disk, "another process has the journal open")
        .with_detail(format!("The directory is {location}."))
        .with_hint("Stop the other process, or give this one a directory of its own.")
}
