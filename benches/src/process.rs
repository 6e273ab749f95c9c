//! What a process has used, from `/proc`, and processes that are gone when their value is.

use std::fs;
use std::io::Write as _;
use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal as listen};
use xtask::error::{Context, Error, Result};
use xtask::process::{children_of, signal, wait_gone};

/// How long a process may take to end when it is asked to.
const END_WITHIN: Duration = Duration::from_secs(30);

/// Linux tells the times in `/proc/PID/stat` in hundredths of a second, whatever the kernel's own tick is (proc(5)).
const TICK: Duration = Duration::from_millis(10);

/// A process that is killed when its value is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    name: &'static str,
    child: Child,
}

impl Running {
    pub(crate) fn start(name: &'static str, command: &mut Command) -> Result<Self> {
        let child = command.spawn().context(|| format!("cannot start {name}"))?;
        Ok(Self { name, child })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// # Errors
    /// When it has ended by itself.
    pub(crate) fn still_runs(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => Err(Error::new(format!("{} ended by itself ({status})", self.name))),
        }
    }

    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context(|| format!("cannot look at {}", self.name))
    }

    /// What it says, where its command has a pipe for that. Once.
    pub(crate) fn stdout(&mut self) -> Result<ChildStdout> {
        self.child.stdout.take().ok_or_else(|| Error::new(format!("{} cannot be heard", self.name)))
    }

    /// Tells it something, where its command has a pipe for that.
    pub(crate) fn tell(&mut self, words: &str) -> Result<()> {
        let stdin = self.child.stdin.as_mut().ok_or_else(|| Error::new(format!("{} does not listen", self.name)))?;
        stdin.write_all(words.as_bytes()).context(|| format!("{} does not listen any more", self.name))
    }

    /// Asks it to end with SIGTERM, and waits for it.
    pub(crate) fn stop(mut self) -> Result<()> {
        signal("TERM", &[self.pid()])?;
        wait_gone(&[self.pid()], END_WITHIN)?;
        let status = self.child.wait().context(|| format!("cannot wait for {}", self.name))?;
        if status.success() { Ok(()) } else { Err(Error::new(format!("{} ended badly ({status})", self.name))) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may be gone already; there is nothing else to do about it here.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// From now on SIGTERM does not end this process by itself, and can be waited for.
pub(crate) fn on_terminate() -> Result<Signal> {
    listen(SignalKind::terminate()).context(|| "cannot wait for SIGTERM")
}

/// User and system time of all children of ours that ended and were waited for.
pub(crate) fn cpu_of_ended_children() -> Duration {
    let ticks = stat_field("self", CUTIME) + stat_field("self", CUTIME + 1);
    TICK * u32::try_from(ticks).unwrap_or(u32::MAX)
}

/// User and system time of a server: the postmaster and all its processes, those that have ended, too.
pub(crate) fn cpu_of_server(postmaster: u32) -> Duration {
    let pid = postmaster.to_string();
    let ended = || stat_field(&pid, CUTIME) + stat_field(&pid, CUTIME + 1);
    loop {
        let before = ended();
        let running: Duration = children_of(postmaster).into_iter().chain([postmaster]).map(running_time).sum();
        // A process that ended on the way was counted by neither or by both.
        if ended() == before {
            return running + TICK * u32::try_from(before).unwrap_or(u32::MAX);
        }
    }
}

/// The most memory the process has had resident so far, in bytes; `None` once it is gone.
pub(crate) fn peak_resident(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kilobytes * 1024)
}

/// Place of `cutime` in `/proc/PID/stat` behind the name, from 0; `cstime` follows it.
const CUTIME: usize = 13;

/// Time on a processor, in nanoseconds where the kernel tells them so fine, of a process of one thread.
fn running_time(pid: u32) -> Duration {
    let schedstat = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    match schedstat.split(' ').next().and_then(|field| field.parse().ok()) {
        Some(nanos) if nanos > 0 => Duration::from_nanos(nanos),
        _ => {
            let pid = pid.to_string();
            TICK * u32::try_from(stat_field(&pid, CUTIME - 2) + stat_field(&pid, CUTIME - 1)).unwrap_or(u32::MAX)
        }
    }
}

fn stat_field(pid: &str, index: usize) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The program's name stands in brackets and may itself contain spaces and brackets.
    let (_, rest) = stat.rsplit_once(") ").unwrap_or_default();
    rest.split(' ').nth(index).and_then(|field| field.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_child_is_counted_once_it_has_ended() {
        let before = cpu_of_ended_children();
        let mut child =
            Command::new("sh").args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]).spawn().unwrap();
        assert!(child.wait().unwrap().success());
        assert!(cpu_of_ended_children() - before >= TICK);
    }

    #[test]
    fn a_peak_is_read_while_the_process_lives() {
        let own = peak_resident(std::process::id()).unwrap();
        assert!((1 << 20..1 << 34).contains(&own), "{own}");
        assert!(running_time(std::process::id()) > Duration::ZERO);
        assert_eq!(peak_resident(u32::MAX), None);
    }
}
