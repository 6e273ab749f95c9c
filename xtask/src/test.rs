//! `cargo x test`: everything that can fail, and one line at the end that says what did.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use clap::{Args, ValueEnum as _};

use crate::error::{Context, Result};
use crate::services::Service;
use crate::workspace;

/// Run every test: the workspace's, on real servers and in the simulation; `cargo x sim` runs more seeds of that.
#[derive(Debug, Args)]
pub(crate) struct Test {
    /// Leave out the tests that need this server: those in modules named `needs_NAME`.
    #[arg(long, value_name = "NAME")]
    without: Vec<Service>,
    /// Run only the tests whose name contains this.
    #[arg(last = true)]
    filter: Option<String>,
}

/// What has been counted, over all that ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Test {
    /// Runs all and says whether nothing failed.
    pub(crate) fn run(self) -> Result<bool> {
        for service in Service::value_variants().iter().filter(|service| !self.without.contains(service)) {
            service.ensure()?;
        }
        let mut tally = Tally::default();
        let failures = run_counted(&mut self.cargo_test(), self.filter.is_none(), &mut tally)?;
        failures.iter().for_each(|line| println!("{line}"));
        println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
        Ok(tally.failed == 0)
    }

    fn cargo_test(&self) -> Command {
        let mut command = workspace::cargo();
        command.args(["test", "--workspace", "--no-fail-fast", "--"]).args(&self.filter);
        for service in &self.without {
            command.args(["--skip", &format!("needs_{}", service.name())]);
        }
        command
    }
}

/// Runs a command, shows what it prints as it comes, and counts its results. One that fails without a failed test counts as one itself.
/// Gives what failed tests said, which may stand far above the end.
fn run_counted(command: &mut Command, filtered_is_skipped: bool, tally: &mut Tally) -> Result<Vec<String>> {
    let line = workspace::line(command);
    eprintln!("> {line}");
    let mut child = command.stdout(Stdio::piped()).spawn().context(|| format!("cannot run `{line}`"))?;
    let failed_before = tally.failed;
    let mut results = 0_u32;
    let mut failures = Vec::new();
    let mut within_failures = false;
    let stdout = child.stdout.take().expect("stdout was asked for");
    for printed in BufReader::new(stdout).split(b'\n') {
        let printed = printed.context(|| format!("cannot read from `{line}`"))?;
        let printed = String::from_utf8_lossy(&printed);
        println!("{printed}");
        within_failures |= printed == "failures:";
        if let Some(counted) = read_result(&printed, filtered_is_skipped) {
            tally.add(counted);
            results += 1;
            within_failures = false;
        }
        if within_failures {
            failures.push(printed.into_owned());
        }
    }
    let status = child.wait().context(|| format!("cannot wait for `{line}`"))?;
    match (status.success(), results) {
        (true, 0) => tally.passed += 1,
        (false, _) if tally.failed == failed_before => {
            eprintln!("`{line}` failed ({status})");
            tally.failed += 1;
        }
        _ => {}
    }
    Ok(failures)
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Reads `test result: ok. 7 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 1.78s`.
fn read_result(line: &str, filtered_is_skipped: bool) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |name: &str| {
        counts.split("; ").find_map(|part| part.strip_suffix(name)?.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let filtered = if filtered_is_skipped { count("filtered out") } else { 0 };
    Some(Tally { passed: count("passed"), failed: count("failed"), skipped: count("ignored") + filtered })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: &str = "test result: ok. 7 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 1.78s";

    #[test]
    fn the_result_line_is_read() {
        assert_eq!(read_result(OK, false), Some(Tally { passed: 7, failed: 0, skipped: 1 }));
        assert_eq!(read_result(OK, true), Some(Tally { passed: 7, failed: 0, skipped: 3 }));
        let failed =
            "test result: FAILED. 0 passed; 12 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(read_result(failed, true), Some(Tally { passed: 0, failed: 12, skipped: 0 }));
        assert_eq!(read_result("test a ... ok", true), None);
    }

    fn counted(script: &str) -> Tally {
        let mut tally = Tally::default();
        run_counted(Command::new("sh").args(["-c", script]), true, &mut tally).unwrap();
        tally
    }

    #[test]
    fn a_runner_that_fails_before_its_tests_is_a_failure() {
        assert_eq!(counted("exit 101"), Tally { passed: 0, failed: 1, skipped: 0 });
        assert_eq!(counted(&format!("echo '{OK}'; exit 101")), Tally { passed: 7, failed: 1, skipped: 3 });
    }

    #[test]
    fn failed_tests_count_once_and_a_silent_success_is_one_pass() {
        let failed = OK.replace("ok. 7 passed; 0 failed", "FAILED. 5 passed; 2 failed");
        assert_eq!(counted(&format!("echo '{failed}'; exit 101")), Tally { passed: 5, failed: 2, skipped: 3 });
        assert_eq!(counted("true"), Tally { passed: 1, failed: 0, skipped: 0 });
    }

    #[test]
    fn what_failed_tests_say_is_given_and_nothing_else() {
        let script = format!(
            "printf '%s\\n' 'test a ... FAILED' '' 'failures:' '---- a stdout ----' 'why' '' 'failures:' '    a' '{}' 'test b ... ok' '{OK}'",
            OK.replace("ok. 7 passed; 0 failed", "FAILED. 0 passed; 1 failed")
        );
        let said = run_counted(Command::new("sh").args(["-c", &script]), true, &mut Tally::default()).unwrap();
        assert_eq!(said, ["failures:", "---- a stdout ----", "why", "", "failures:", "    a"]);
    }
}
