//! Where things are in the checkout, and cargo as the commands call it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::{Context, Error, Result};

/// The folder of the workspace's `Cargo.toml`.
pub fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}

/// What cargo sets for the programs that it runs (cargo's book, "Environment Variables"). A build script that looks at one of them would run
/// again, and what is built from it anew, whenever it is cargo that was run by another program than the last time.
const SET_BY_CARGO: [&str; 6] =
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE", "CARGO_TARGET_TMPDIR"];

/// `cargo` in the workspace's root, as the one that runs us if there is one, and as a person would call it.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if SET_BY_CARGO.iter().any(|begin| name.as_encoded_bytes().starts_with(begin.as_bytes())) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command that talks to the user itself.
///
/// # Errors
/// When it cannot be started or fails; what is wrong it has said on its own.
pub fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    let status = command.status().context(|| format!("cannot run `{line}`"))?;
    if status.success() { Ok(()) } else { Err(Error::new(format!("`{line}` failed ({status})"))) }
}

/// Builds the programs of the demo and of the tests of the whole into `binaries`, a profile's folder such as `target/debug`.
///
/// # Errors
/// When they cannot be built; the compiler has said why.
pub fn build_programs(binaries: &Path) -> Result<()> {
    let mut cargo = cargo();
    cargo.args(["build", "--package", "postrider", "--package", "quoting-service"]);
    if binaries.file_name().is_some_and(|name| name == "release") {
        cargo.arg("--release");
    }
    if let Some(target) = binaries.parent() {
        cargo.arg("--target-dir").arg(target);
    }
    run(&mut cargo)
}

/// The command as one would type it.
pub fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The tracked and untracked files of the checkout that git does not ignore, relative to the root.
///
/// # Errors
/// When this is no git checkout or git is missing.
pub fn files() -> Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = crate::process::run(&mut git)?;
    let mut files: Vec<_> = listed.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect();
    files.retain(|file| root().join(file).is_file());
    files.sort();
    files.dedup();
    Ok(files)
}

/// How long a start or a stop may take before it counts as failed; generous, since two cores are shared by all.
pub const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_is_not_told_for_whom_cargo_runs_us() {
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some(), "a test is run by cargo");
        let cargo = cargo();
        let kept: Vec<_> = cargo.get_envs().filter(|(_, value)| value.is_some()).collect();
        assert!(kept.is_empty(), "{kept:?}");
        assert!(cargo.get_envs().any(|(name, value)| name == "CARGO_PKG_NAME" && value.is_none()));
        assert!(cargo.get_envs().all(|(name, _)| name != "CARGO_HOME" && name != "CARGO_TARGET_DIR"));
    }
}
