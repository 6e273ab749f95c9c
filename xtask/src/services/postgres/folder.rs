//! Folders for clusters: each belongs to one process, and what a killed process left behind is cleared by the next.

use std::fs::{self, DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::account::{Account, own_uid};
use super::standing::Standing;
use crate::error::{Context, Error, Result};

/// A folder that lives as long as this value, unless it is kept. The lock on the file beside it says that we are alive.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    lock: Option<File>,
    kept: bool,
}

impl Folder {
    /// A new folder of this run.
    pub(super) fn of_this_run() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let base = base()?;
        clear_abandoned(&base);
        loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = base.join(format!("run-{}-{number}", std::process::id()));
            let beside = path.with_extension("lock");
            let lock = File::create(&beside).context(|| "cannot create a lock file")?;
            lock.lock().context(|| "cannot lock a run folder")?;
            // Between the two calls another process may have taken the file for an abandoned one.
            if !beside.exists() || path.exists() {
                continue;
            }
            create_dir(&path)?;
            return Ok(Self { path, lock: Some(lock), kept: false });
        }
    }

    /// A folder by its name that stays when we end.
    pub(super) fn lasting(name: &str) -> Result<Self> {
        let path = base()?.join(name);
        if !path.exists() {
            create_dir(&path)?;
        }
        Ok(Self { path, lock: None, kept: true })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the folder there when this value is dropped, and tells later runs to do the same.
    pub(super) fn keep(&mut self) -> Result<()> {
        self.kept = true;
        File::create(self.path.join("kept")).context(|| "cannot mark the folder as kept")?;
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // Nothing can be done about a folder that does not go; the next run tries again.
        let _ = fs::remove_dir_all(&self.path);
        if self.lock.take().is_some() {
            let _ = fs::remove_file(self.path.with_extension("lock"));
        }
    }
}

/// The folder above all clusters of this user; the server's account can pass through it.
pub(super) fn base() -> Result<PathBuf> {
    let uid = own_uid()?;
    let base = std::env::temp_dir().join(format!("postrider-{uid}"));
    if !base.exists() {
        // Two processes may start at once: who comes second finds it there.
        let _ = DirBuilder::new().mode(0o711).create(&base);
    }
    let found = fs::symlink_metadata(&base).context(|| format!("cannot create {}", base.display()))?;
    if !found.is_dir() || found.uid() != uid {
        return Err(Error::new(format!("{} belongs to somebody else", base.display()))
            .hint("Set TMPDIR to a folder of your own."));
    }
    let mode = if Account::of_servers()?.is_other() { 0o711 } else { 0o700 };
    fs::set_permissions(&base, Permissions::from_mode(mode)).context(|| "cannot open the run folder")?;
    Ok(base)
}

pub(super) fn create_dir(path: &Path) -> Result<()> {
    DirBuilder::new().mode(0o755).create(path).context(|| format!("cannot create {}", path.display()))
}

/// Stops and removes the clusters of processes that ended without doing it themselves.
fn clear_abandoned(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for lock_path in entries.flatten().map(|entry| entry.path()) {
        let is_run = lock_path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("run-"));
        if !is_run || lock_path.extension().is_none_or(|extension| extension != "lock") {
            continue;
        }
        let Ok(lock) = File::open(&lock_path) else { continue };
        let folder = lock_path.with_extension("");
        if lock.try_lock().is_err() {
            continue;
        }
        let standing = Standing::at(&folder);
        if standing.is_some() && folder.join("kept").exists() {
            continue;
        }
        // A server that does not stop keeps its folder; the next run tries again.
        if standing.is_none_or(|standing| standing.stop().is_ok()) {
            let _ = fs::remove_dir_all(&folder);
            let _ = fs::remove_file(&lock_path);
        }
    }
}
