//! The journal's errors, and the first one that ends it.

use crate::disk::Disk;
use postrider_core::error::{Error, ErrorKind};
use std::io;
use std::sync::OnceLock;

/// The disk refused something.
pub(crate) fn disk(message: &'static str, error: io::Error) -> Error {
    Error::new(ErrorKind::Disk, message).with_source(error)
}

/// A file holds what the journal did not write there.
pub(crate) fn corrupt(disk: &dyn Disk, file: &str, offset: u64, what: &str) -> Error {
    Error::new(ErrorKind::JournalCorrupt, "the journal is damaged")
        .with_detail(format!("In {}, file {file}, at byte {offset}: {what}.", disk.location()))
        .with_hint("Restore the directory from a copy, or start with an empty one and rebuild the consumers.")
}

/// A length in memory as an offset in a file.
pub(crate) fn offset(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// The first failure of the disk. It stays: after a failed fsync the kernel may have thrown the pages away, and a second
/// one that succeeds proves nothing.
#[derive(Debug, Default)]
pub(crate) struct FirstFailure(OnceLock<String>);

impl FirstFailure {
    /// Keeps the failure if it is the first.
    pub(crate) fn keep(&self, error: &Error) {
        // A later failure follows from the first.
        let _ = self.0.set(error.report());
    }

    /// The error for everyone after the first failure.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.0.get() {
            None => Ok(()),
            Some(report) => Err(Error::new(ErrorKind::Disk, "the journal stopped after a failure of the disk")
                .with_detail(format!("The first failure was: {}.", report.trim_end_matches('.')))
                .with_hint("Repair the disk and start again: what was not yet confirmed is sent once more.")),
        }
    }
}
