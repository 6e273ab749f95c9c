//! A value made from files, and made anew when one of them changes.
//!
//! The files are looked at when the value is asked for, at most once in a while. What replaces a file may be half written, or not
//! be there yet: then the value of before holds, and the next look may bring a better one.

use postrider_core::error::{Error, ErrorKind, Result};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A file with more in it is none of ours.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Is told of a change: the files, and why they cannot be used, where they cannot.
type Told = dyn Fn(&[PathBuf], Option<&str>) + Send + Sync;

/// How files are looked at.
#[derive(Clone)]
pub struct FileWatch {
    /// At most once in so long.
    every: Duration,
    told: Option<Arc<Told>>,
}

impl FileWatch {
    /// Looks at most once in so long; once a second without this.
    #[must_use]
    pub fn every(self, every: Duration) -> FileWatch {
        FileWatch { every, ..self }
    }

    /// Calls `told` each time that files have changed, with the reason where they cannot be used and what was read before is kept.
    #[must_use]
    pub fn on_change(self, told: impl Fn(&[PathBuf], Option<&str>) + Send + Sync + 'static) -> FileWatch {
        FileWatch { told: Some(Arc::new(told)), ..self }
    }

    fn tell(&self, paths: &[PathBuf], refusal: Option<&str>) {
        if let Some(told) = &self.told {
            told(paths, refusal);
        }
    }
}

impl Default for FileWatch {
    fn default() -> FileWatch {
        FileWatch { every: Duration::from_secs(1), told: None }
    }
}

impl fmt::Debug for FileWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileWatch").field("every", &self.every).finish_non_exhaustive()
    }
}

/// Makes a value from the files' contents, in the order of their paths.
type Make<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T> + Send + Sync>;

pub(crate) struct FromFiles<T> {
    paths: Vec<PathBuf>,
    make: Make<T>,
    watch: FileWatch,
    held: Mutex<Held<T>>,
}

struct Held<T> {
    value: Arc<T>,
    marks: Vec<Option<Mark>>,
    /// What was read last, or why it could not be; the value may be older.
    read: Result<Vec<Vec<u8>>, String>,
    /// The files were read again after they had changed, and were the same.
    settled: bool,
    looked_at: Instant,
}

/// What tells a file from the one before it without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl<T> FromFiles<T> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// `Configuration` where one cannot be read or used.
    pub(crate) fn new(
        paths: Vec<PathBuf>,
        watch: &FileWatch,
        make: impl Fn(&[Vec<u8>]) -> Result<T> + Send + Sync + 'static,
    ) -> Result<FromFiles<T>> {
        // Before the contents: a file that changes between is seen to have changed.
        let marks = paths.iter().map(|path| mark(path)).collect();
        let contents = paths.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
        let value = Arc::new(make(&contents)?);
        let held = Held { value, marks, read: Ok(contents), settled: false, looked_at: Instant::now() };
        Ok(FromFiles { paths, make: Box::new(make), watch: watch.clone(), held: Mutex::new(held) })
    }

    /// The value of now.
    pub(crate) fn current(&self) -> Arc<T> {
        // Whoever panicked while holding it left a value that was whole.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.paths.is_empty() && held.looked_at.elapsed() >= self.watch.every {
            held.looked_at = Instant::now();
            self.look(&mut held);
        }
        Arc::clone(&held.value)
    }

    /// A look at a few small local files does not wait, so it is done where we stand.
    fn look(&self, held: &mut Held<T>) {
        let marks: Vec<Option<Mark>> = self.paths.iter().map(|path| mark(path)).collect();
        let same = marks == held.marks;
        if same && held.settled {
            return;
        }
        // A file can change twice within one tick of its file system's clock, so each change is followed by a second reading.
        held.settled = same;
        held.marks = marks;
        let read = self.paths.iter().map(|path| read(path)).collect::<Result<Vec<_>>>();
        let read = read.map_err(|error| error.report());
        if read == held.read {
            return;
        }
        let made = match &read {
            Ok(contents) => (self.make)(contents).map_err(|error| error.report()),
            Err(reason) => Err(reason.clone()),
        };
        held.read = read;
        match made {
            Ok(value) => {
                held.value = Arc::new(value);
                tracing::info!(files = ?self.paths, "credentials have changed; the new ones are used from now on");
                self.watch.tell(&self.paths, None);
            }
            Err(reason) => {
                tracing::error!(files = ?self.paths, reason, "credentials have changed and cannot be used; those of before are kept");
                self.watch.tell(&self.paths, Some(&reason));
            }
        }
    }
}

impl<T> fmt::Debug for FromFiles<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromFiles").field("paths", &self.paths).finish_non_exhaustive()
    }
}

/// `None` where there is no such file; reading it says more.
fn mark(path: &Path) -> Option<Mark> {
    let seen = fs::metadata(path).ok()?;
    let modified = (seen.mtime(), seen.mtime_nsec());
    Some(Mark { device: seen.dev(), inode: seen.ino(), bytes: seen.size(), modified })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let unreadable = |detail: String| {
        Error::new(ErrorKind::Configuration, "unreadable file of credentials")
            .with_detail(format!("{}: {detail}.", path.display()))
            .with_hint("Correct the path in the configuration, or let the user that runs Postrider read the file.")
    };
    let seen = fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
    // To open a pipe could wait for ever.
    if !seen.is_file() {
        return Err(unreadable("it is not a file".to_owned()));
    }
    let file = File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let mut contents = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut contents).map_err(|error| unreadable(error.to_string()))?;
    if contents.len() as u64 > FILE_BYTES_MAX {
        return Err(unreadable("it has more than 1 MiB".to_owned()));
    }
    Ok(contents)
}

#[cfg(test)]
#[path = "from_files_tests.rs"]
mod tests;
