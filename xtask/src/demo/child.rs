//! A process of the demo: its output goes to a log file, and it is gone when its value is.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};
use crate::workspace::PATIENCE;

/// A running process.
#[derive(Debug)]
pub(super) struct Child {
    name: &'static str,
    log: PathBuf,
    process: process::Child,
    kept: bool,
}

impl Child {
    pub(super) fn start(name: &'static str, log: &Path, command: &mut Command) -> Result<Self> {
        let out = OpenOptions::new().create(true).append(true).open(log).context(|| format!("cannot log {name}"))?;
        let err = out.try_clone().context(|| format!("cannot log {name}"))?;
        let process =
            command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().context(|| format!("cannot start {name}"))?;
        Ok(Self { name, log: log.to_path_buf(), process, kept: false })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the log has a whole line that begins with `start`, and returns the rest of it.
    pub(super) async fn wait_for_line(&mut self, start: &str) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let whole_lines = log.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
            if let Some(rest) = whole_lines.filter_map(|line| line.strip_prefix(start)).next() {
                return Ok(rest.to_owned());
            }
            self.still_runs()?;
            if Instant::now() > deadline {
                return Err(Error::new(format!("{} did not say `{start}`", self.name)));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// # Errors
    /// When the process has ended by itself.
    pub(super) fn still_runs(&mut self) -> Result<()> {
        match self.process.try_wait().context(|| format!("cannot look at {}", self.name))? {
            None => Ok(()),
            Some(status) => Err(Error::new(format!("{} ended by itself ({status})", self.name))),
        }
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub(super) fn kill9(&mut self) -> Result<()> {
        self.process.kill().context(|| format!("cannot kill {}", self.name))?;
        self.process.wait().context(|| format!("cannot wait for {}", self.name))?;
        Ok(())
    }

    /// Leaves it running when this value is dropped.
    pub(super) fn keep(&mut self) {
        self.kept = true;
    }

    /// The last lines of its log.
    pub(super) fn last_words(&self) -> String {
        const LINES: usize = 10;
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default();
        format!("{} said last:\n{}", self.name, tail.join("\n"))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.kept {
            // It may be gone already; there is nothing else to do about it here.
            let _ = self.process.kill().and_then(|()| self.process.wait());
        }
    }
}
