//! One PostgreSQL installation: where its programs are and which version they are of.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::account::Account;
use super::fetch;
use crate::error::{Error, Result};
use crate::process::run;

/// The versions that Postrider supports.
pub(crate) const SUPPORTED: std::ops::RangeInclusive<u32> = 14..=18;

/// The folder of a server's programs, checked: `postgres`, `initdb` and `pg_ctl` of one version from 14 to 18, with `pgoutput`.
#[derive(Clone, Debug)]
pub struct Installation {
    bin: PathBuf,
    version: String,
    major: u32,
    origin: &'static str,
}

impl Installation {
    /// The folder of the programs.
    pub fn bin_dir(&self) -> &Path {
        &self.bin
    }

    /// One program of it, `psql` for example. It need not exist: only the server's own are certain.
    pub fn tool(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// The version as the server says it, `15.18`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The major version, `15`.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// Looks at a folder of programs.
    ///
    /// # Errors
    /// When it is not what the type promises, with the reason.
    pub(crate) fn inspect(dir: &Path, origin: &'static str) -> Result<Self> {
        // A link on the path (/usr/local/bin) stands for the folder it points into: the libraries are beside that one.
        let postgres = fs::canonicalize(dir.join("postgres"))
            .map_err(|_| Error::new(format!("{} has no postgres", dir.display())))?;
        let bin = postgres.parent().unwrap_or(dir).to_path_buf();
        let account = Account::of_servers()?;
        let banner = run(account.command(&postgres).arg("--version"))?;
        let initdb = run(account.command(bin.join("initdb")).arg("--version"))?;
        let (major, version) =
            parse_version(&banner).ok_or_else(|| Error::new(format!("{} is not PostgreSQL", postgres.display())))?;
        if !SUPPORTED.contains(&major) {
            return Err(Error::new(format!("version {version} is not one of 14 to 18")));
        }
        if parse_version(&initdb) != Some((major, version.clone())) || !bin.join("pg_ctl").is_file() {
            return Err(Error::new(format!("{} has no initdb and pg_ctl of its version", bin.display())));
        }
        if !has_pgoutput(&bin, major) {
            return Err(Error::new(format!("{} has no pgoutput", bin.display())));
        }
        Ok(Self { bin, version, major, origin })
    }
}

/// Finds a PostgreSQL of the version asked for, or of any supported one, and says on stderr which.
///
/// Looked for in this order: the folder `POSTRIDER_PG_BIN`; the search path; `/usr/lib/postgresql/*/bin`; the project's own cache
/// (`POSTRIDER_CACHE`, else `~/.cache/postrider`, for root `/var/cache/postrider`); else it is fetched into that cache.
///
/// # Errors
/// When `POSTRIDER_PG_BIN` names something else than an installation, or nothing was found and nothing could be fetched.
pub fn find(version: Option<u32>) -> Result<Installation> {
    if let Some(major) = version.filter(|major| !SUPPORTED.contains(major)) {
        return Err(Error::new(format!("PostgreSQL {major} is not supported")).hint("Ask for one of 14 to 18."));
    }
    let found = match named_by_environment()?.filter(|found| fits(found, version)) {
        Some(found) => found,
        None => match on_this_machine(version) {
            Some(found) => found,
            None => fetch::fetch(version)?,
        },
    };
    eprintln!("postgres: {} in {} ({})", found.version, found.bin.display(), found.origin);
    Ok(found)
}

fn named_by_environment() -> Result<Option<Installation>> {
    let Some(dir) = env::var_os("POSTRIDER_PG_BIN") else { return Ok(None) };
    let origin = "named by POSTRIDER_PG_BIN";
    match Installation::inspect(Path::new(&dir), origin) {
        Ok(found) => Ok(Some(found)),
        Err(error) => Err(Error::new(format!("POSTRIDER_PG_BIN is unusable: {}", error.report()))
            .hint("Set it to the folder of `postgres` and `initdb`, or unset it.")),
    }
}

/// What is installed already, without fetching anything.
pub(super) fn on_this_machine(version: Option<u32>) -> Option<Installation> {
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).map(|dir| (dir, "on the path"));
    let debian = SUPPORTED
        .rev()
        .map(|major| (PathBuf::from(format!("/usr/lib/postgresql/{major}/bin")), "a package of this system"));
    let cached = fetch::cached_bin_dirs().into_iter().map(|dir| (dir, "in the project's cache"));
    on_path
        .chain(debian)
        .chain(cached)
        .filter(|(dir, _)| dir.join("postgres").exists())
        .filter_map(|(dir, origin)| Installation::inspect(&dir, origin).ok())
        .find(|found| fits(found, version))
}

fn fits(found: &Installation, version: Option<u32>) -> bool {
    version.is_none_or(|major| found.major == major)
}

/// Reads `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)` as `(15, "15.18")`.
fn parse_version(banner: &str) -> Option<(u32, String)> {
    let (_, rest) = banner.split_once("(PostgreSQL) ")?;
    let version = rest.split_whitespace().next()?;
    let digits = version.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((digits.parse().ok()?, version.to_owned()))
}

fn has_pgoutput(bin: &Path, major: u32) -> bool {
    let prefix = bin.parent().unwrap_or(bin);
    let libraries =
        [prefix.join("lib"), prefix.join("lib/postgresql"), PathBuf::from(format!("/usr/lib/postgresql/{major}/lib"))];
    libraries.iter().any(|dir| dir.join("pgoutput.so").is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_the_banner() {
        let check = |banner: &str, expected: Option<(u32, &str)>| {
            let read = parse_version(banner);
            assert_eq!(read, expected.map(|(major, version)| (major, version.to_owned())), "{banner}");
        };
        check("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n", Some((15, "15.18")));
        check("initdb (PostgreSQL) 18beta2\n", Some((18, "18beta2")));
        check("postgres (EnterpriseDB) 15.1\n", None);
        check("", None);
    }

    #[test]
    fn a_folder_without_a_server_is_refused_with_the_reason() {
        let error = Installation::inspect(Path::new("/nonexistent"), "test").unwrap_err();
        assert_eq!(error.to_string(), "/nonexistent has no postgres");
    }

    #[test]
    fn an_unsupported_version_is_refused_with_the_cure() {
        let report = find(Some(9)).unwrap_err().report();
        assert!(report.contains("not supported") && report.contains("14 to 18"), "{report}");
    }
}
