//! Drops a journal that nobody goes on from.

use crate::disk::Disk as _;
use crate::disk::directory::{Directory, LOCK};
use crate::failure;
use crate::open::in_use_or;
use postrider_core::error::Result;
use std::path::Path;
use std::{fs, io};

/// Removes all that is in the journal's directory, if it is there.
///
/// # Errors
/// `Disk` if another process has it open, or the disk refuses.
pub fn discard(dir: &Path) -> Result<()> {
    if !dir.is_dir() {
        return Ok(());
    }
    let disk = Directory::new(dir);
    let lock = disk.lock().map_err(|error| in_use_or(&disk.location(), error))?;
    let outcome = remove_all_in(dir).map_err(|error| failure::disk("cannot remove an old journal", error));
    drop(lock);
    outcome
}

/// The lock's file stays: whoever waits for it has it open.
fn remove_all_in(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else if entry.file_name() != LOCK {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
