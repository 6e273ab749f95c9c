//! A command that prints the password: the way to the short-lived tokens of managed servers.

use std::fmt;
use std::process::Stdio;
use std::time::Duration;

use postrider_core::error::{Error, ErrorKind, Result};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use super::Secret;

/// A command that takes longer is ended.
const TIMEOUT: Duration = Duration::from_secs(30);
/// What prints more does not print a password.
const OUTPUT_BYTES_MAX: u64 = 64 * 1024;

/// A program and its arguments, started without a shell. `Debug` prints no argument: one may be secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PasswordCommand {
    program: String,
    arguments: Vec<String>,
}

impl PasswordCommand {
    /// # Errors
    /// `Configuration` where there is no program.
    pub(crate) fn new(command: Vec<String>) -> Result<PasswordCommand> {
        let mut words = command.into_iter();
        match words.next().filter(|program| !program.is_empty()) {
            Some(program) => Ok(PasswordCommand { program, arguments: words.collect() }),
            None => Err(Error::new(ErrorKind::Configuration, "the password command has no program")
                .with_hint("Write the program and each of its arguments: [\"program\", \"argument\"].")),
        }
    }

    /// Runs it, and takes the one line that it prints. Neither that nor what it says on stderr goes anywhere else.
    ///
    /// # Errors
    /// `Configuration` where the program cannot be started, `Transient` where it fails, is too slow, or prints anything but one line.
    pub(crate) async fn run(&self) -> Result<Secret> {
        self.run_within(TIMEOUT).await
    }

    async fn run_within(&self, limit: Duration) -> Result<Secret> {
        match timeout(limit, self.run_unbounded()).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(self.failed(format!("did not end within {} s", limit.as_secs()))),
        }
    }

    async fn run_unbounded(&self) -> Result<Secret> {
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| {
                Error::new(ErrorKind::Configuration, "the password command cannot be started")
                    .with_detail(format!("The program is \"{}\".", self.program.escape_debug()))
                    .with_hint("Name a program that is on this process's PATH, or its whole path, and each argument by itself.")
                    .with_source(error)
            })?;
        let mut output = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            let read = stdout.take(OUTPUT_BYTES_MAX).read_to_end(&mut output).await;
            read.map_err(|error| self.failed("cannot be read".to_owned()).with_source(error))?;
        }
        let status =
            child.wait().await.map_err(|error| self.failed("cannot be waited for".to_owned()).with_source(error))?;
        if !status.success() {
            return Err(self.failed(format!("ended with {status}")));
        }
        self.password_in(&output)
    }

    fn password_in(&self, output: &[u8]) -> Result<Secret> {
        let line = output.strip_suffix(b"\n").unwrap_or(output);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return Err(self.failed("printed nothing".to_owned()));
        }
        if line.iter().any(|byte| matches!(byte, b'\n' | b'\r' | 0)) {
            return Err(self.failed("printed more than one line".to_owned()));
        }
        Ok(Secret::new(line))
    }

    fn failed(&self, what: String) -> Error {
        Error::new(ErrorKind::Transient, "the password command gave no password")
            .with_detail(format!("\"{}\" {what}.", self.program.escape_debug()))
            .with_hint(
                "Run it by hand as the user of this process: it must print the password alone and end with status 0.",
            )
    }
}

impl fmt::Debug for PasswordCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordCommand").field("program", &self.program).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> PasswordCommand {
        PasswordCommand::new(["sh", "-c", script].map(str::to_owned).to_vec()).expect("it has a program")
    }

    #[tokio::test]
    async fn one_line_is_the_password_and_nothing_else_is() {
        for (script, password) in
            [("printf 'p@ss w\\n'", "p@ss w"), ("printf tok", "tok"), ("printf 'a\\r\\n'; echo loud >&2", "a")]
        {
            assert_eq!(
                shell(script).run().await.map(|secret| secret.reveal().to_vec()).map_err(|e| e.report()),
                Ok(password.into())
            );
        }
        for (script, words) in [
            ("true", "printed nothing"),
            ("echo hush; echo hush", "more than one line"),
            ("echo hush; echo hush >&2; exit 3", "exit status: 3"),
        ] {
            let error = shell(script).run().await.expect_err(script);
            assert_eq!(error.kind(), ErrorKind::Transient);
            assert!(error.report().contains(words) && !error.report().contains("hush"), "{}", error.report());
        }
        let nowhere =
            PasswordCommand::new(vec!["/nowhere/program".to_owned(), "hush".to_owned()]).expect("it has a program");
        let error = nowhere.run().await.expect_err("there is no such program");
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(
            error.report().contains("/nowhere/program") && !format!("{} {nowhere:?}", error.report()).contains("hush")
        );
        assert_eq!(PasswordCommand::new(Vec::new()).map_err(|error| error.kind()), Err(ErrorKind::Configuration));
    }

    #[tokio::test]
    async fn a_command_that_does_not_end_is_given_up() {
        let error = shell("sleep 60").run_within(Duration::ZERO).await.expect_err("it does not end");
        assert_eq!(error.kind(), ErrorKind::Transient);
        assert!(error.report().contains("did not end within 0 s"), "{}", error.report());
    }
}
