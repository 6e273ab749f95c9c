//! A directory of the operating system.

use crate::disk::{Disk, DiskFile, DiskLock, SyncPoint};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file whose lock says that the journal is open.
pub(crate) const LOCK: &str = "lock";

/// The real [`Disk`].
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    writable: bool,
}

#[derive(Debug)]
struct OpenFile(File);

#[derive(Debug)]
struct Locked(#[expect(dead_code, reason = "the lock lasts as long as the open file")] File);

impl Directory {
    pub(crate) fn new(path: &Path) -> Directory {
        Directory { path: path.to_owned(), writable: true }
    }

    /// A directory in which nothing is made, changed or locked, and no right to write is needed.
    pub(crate) fn read_only(path: &Path) -> Directory {
        Directory { path: path.to_owned(), writable: false }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The path of a name that is about to be made, changed or removed.
    fn changed_file(&self, name: &str) -> io::Result<PathBuf> {
        if self.writable { Ok(self.file(name)) } else { Err(io::ErrorKind::ReadOnlyFilesystem.into()) }
    }
}

impl Disk for Directory {
    fn location(&self) -> String {
        self.path.display().to_string()
    }

    fn make(&self) -> io::Result<()> {
        if self.writable { make_durably(&self.path) } else { Err(io::ErrorKind::ReadOnlyFilesystem.into()) }
    }

    fn lock(&self) -> io::Result<Box<dyn DiskLock>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(self.changed_file(LOCK)?)?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(Locked(file))),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            // A name that is not UTF-8 is none of ours.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(self.changed_file(name)?)?;
        Ok(Arc::new(OpenFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(self.writable).open(self.file(name))?;
        Ok(Arc::new(OpenFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.changed_file(from)?, self.changed_file(to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.changed_file(name)?)
    }

    fn sync_names(&self, _: SyncPoint) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn sync_parent(&self, _: SyncPoint) -> io::Result<()> {
        sync_directory(self.path.canonicalize()?.parent().unwrap_or(Path::new("/")))
    }
}

impl DiskFile for OpenFile {
    fn number(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.ino())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.0.read_at(rest, offset.saturating_add(u64::try_from(filled).unwrap_or(u64::MAX))) {
                Ok(0) => break,
                Ok(count) => filled = filled.saturating_add(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync(&self, _: SyncPoint) -> io::Result<()> {
        // fdatasync: the length is written with the bytes, the time stamps are not needed.
        self.0.sync_data()
    }
}

impl DiskLock for Locked {}

/// Makes a directory and those above it, each durable before the next.
fn make_durably(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let above = path.parent().unwrap_or(Path::new("/"));
    make_durably(above)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
        Ok(()) if above.as_os_str().is_empty() => Ok(()),
        Ok(()) => sync_directory(above),
    }
}

/// A directory that we may not read was set up by somebody else, who had to make it durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        opened => opened?.sync_all(),
    }
}
