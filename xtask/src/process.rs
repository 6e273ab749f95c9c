//! Processes by their id: a signal, whether one is alive, waiting until it is gone. Nothing here goes by name.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};

/// How often a process or a file is looked at while something is waited for.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(3);

/// Sends `signal` (`INT`, `KILL`, …) to each process; one that is gone already is no error.
pub fn signal(signal: &str, pids: &[u32]) -> Result<()> {
    if pids.is_empty() {
        return Ok(());
    }
    let list = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    // The shell's own `kill`: Debian's minimal images have no other.
    Command::new("sh")
        .arg("-c")
        .arg(format!("kill -{signal} {list} 2>/dev/null"))
        .status()
        .context(|| format!("cannot send SIG{signal}"))?;
    Ok(())
}

/// Whether the process is there and running; one that ended and was not waited for yet counts as gone.
pub fn is_alive(pid: u32) -> bool {
    stat_fields(pid).is_some_and(|fields| fields.state != 'Z' && fields.state != 'X')
}

/// Waits until none of the processes is alive any more.
///
/// # Errors
/// When one of them is still there after `limit`.
pub fn wait_gone(pids: &[u32], limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    while pids.iter().any(|pid| is_alive(*pid)) {
        if Instant::now() > deadline {
            return Err(Error::new(format!("a process did not end within {limit:?}")));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// The direct children of a process.
pub fn children_of(parent: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| stat_fields(*pid).is_some_and(|fields| fields.parent == parent))
        .collect()
}

/// Whether `text` stands in the command line of the process: proof that a stored id still means the same program.
pub fn runs(pid: u32, text: &Path) -> bool {
    fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| String::from_utf8_lossy(&line).contains(text.to_string_lossy().as_ref()))
}

/// Runs a command to its end and returns what it printed on stdout.
///
/// # Errors
/// When it cannot be started, or fails: then with what it said on stderr.
pub fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let Output { status, stdout, stderr } = command.output().context(|| format!("cannot run {program}"))?;
    if !status.success() {
        let said = String::from_utf8_lossy(&stderr);
        return Err(Error::new(format!("{program} failed ({status}): {}", said.trim())));
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

struct Stat {
    state: char,
    parent: u32,
}

fn stat_fields(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in brackets and may itself contain spaces and brackets.
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(Stat { state, parent })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_seen_signalled_and_gone_before_it_is_waited_for() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(is_alive(child.id()));
        assert!(children_of(std::process::id()).contains(&child.id()));
        signal("KILL", &[child.id()]).unwrap();
        wait_gone(&[child.id()], Duration::from_secs(10)).unwrap();
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_process_that_stays_is_an_error() {
        let error = wait_gone(&[std::process::id()], Duration::from_millis(20)).unwrap_err();
        assert!(error.to_string().contains("did not end"));
    }

    #[test]
    fn a_failing_command_says_what_it_said() {
        let error = run(Command::new("sh").args(["-c", "echo no such thing >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("no such thing"), "{error}");
    }
}
