//! A cluster that stands on its own, started by a process that may be gone: known by its folder, stopped by its id.

use std::fs;
use std::path::{Path, PathBuf};

use super::folder;
use crate::error::{Context, Result};
use crate::process::{is_alive, runs, signal, wait_gone};
use crate::workspace::PATIENCE;

/// A running cluster as its folder describes it.
#[derive(Clone, Debug)]
pub struct Standing {
    home: PathBuf,
    pid: u32,
    port: u16,
    password: String,
}

impl Standing {
    /// The cluster that `cargo x services up postgres` started for this version, if it runs.
    ///
    /// # Errors
    /// When the folder of the run cannot be had.
    pub fn of_version(major: u32) -> Result<Option<Self>> {
        Ok(Self::at(&folder::base()?.join(lasting_name(major))))
    }

    /// The cluster in a folder, if it runs.
    pub(super) fn at(home: &Path) -> Option<Self> {
        let data = home.join("data");
        let text = fs::read_to_string(data.join("postmaster.pid")).ok()?;
        let (pid, port) = read_pid_file(&text)?;
        let password = fs::read_to_string(home.join("password")).ok()?;
        (is_alive(pid) && runs(pid, &data)).then(|| Self { home: home.to_path_buf(), pid, port, password })
    }

    /// The address of its database `postgres`, for its superuser.
    pub fn url(&self) -> String {
        format!("postgres://postgres:{}@127.0.0.1:{}/postgres", self.password, self.port)
    }

    /// The process id of the postmaster.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The server's log.
    pub fn log_path(&self) -> PathBuf {
        self.home.join("log")
    }

    /// Stops it fast and waits until it is gone.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn stop(&self) -> Result<()> {
        signal("INT", &[self.pid])?;
        wait_gone(&[self.pid], PATIENCE).context(|| format!("the server in {} did not stop", self.home.display()))
    }
}

/// The name of the folder of a cluster that stands on its own.
pub(super) fn lasting_name(major: u32) -> String {
    format!("service-{major}")
}

/// The process id and the port from `postmaster.pid`: its first and its fourth line.
fn read_pid_file(text: &str) -> Option<(u32, u16)> {
    let mut lines = text.lines();
    let pid = lines.next()?.trim().parse().ok()?;
    let port = lines.nth(2)?.trim().parse().ok()?;
    Some((pid, port))
}

/// Whether the postmaster `pid` has written that it takes connections.
pub(super) fn is_ready(data: &Path, pid: u32) -> bool {
    let Ok(text) = fs::read_to_string(data.join("postmaster.pid")) else { return false };
    let mut lines = text.lines();
    let own = lines.next().is_some_and(|line| line.trim() == pid.to_string());
    own && lines.nth(6).is_some_and(|status| matches!(status.trim(), "ready" | "standby"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pid_file_gives_process_and_port() {
        let text = "4711\n/tmp/data\n1700000000\n54321\n\n127.0.0.1\n  55   0\nready   \n";
        assert_eq!(read_pid_file(text), Some((4711, 54321)));
        assert_eq!(read_pid_file("4711\n"), None);
    }
}
