//! How the programs of `benches/peers` come to be: fetched with pinned versions, into a folder of what is built.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::error::{Context, Result};
use xtask::process::run;
use xtask::workspace;

use super::Peer;

/// The files of a peer of npm.
const NPM_FILES: [&str; 3] = ["package.json", LOCK, "worker.mjs"];

const LOCK: &str = "package-lock.json";

/// What was installed from which lock file; npm removes it with the folder that it stands in.
const INSTALLED: &str = "node_modules/.installed-from";

/// Installs the peer into its folder, unless it is there already.
pub(super) fn install(peer: Peer, dir: &Path) -> Result<()> {
    let installed = match peer {
        Peer::GraphileWorker => from_npm("npm", peer, dir),
        Peer::Awa => with_cargo(peer, dir),
    };
    installed.map_err(|error| error.hint(format!("{} Or leave it out with `--without {}`.", needs(peer), peer.name())))
}

/// The program that an installed peer is.
pub(super) fn program(peer: Peer, dir: &Path) -> Command {
    match peer {
        Peer::GraphileWorker => {
            let mut node = Command::new(node(dir));
            node.arg(dir.join("worker.mjs"));
            node
        }
        Peer::Awa => Command::new(dir.join("release/postrider-bench-peer-awa")),
    }
}

fn needs(peer: Peer) -> &'static str {
    match peer {
        Peer::GraphileWorker => "Install Node.js with npm, which fetches the rest from its registry.",
        Peer::Awa => "It is built with cargo, which fetches what it needs from crates.io.",
    }
}

/// The folder with what a peer's program is made of.
fn source(peer: Peer) -> PathBuf {
    workspace::root().join("benches/peers").join(peer.name())
}

/// Cargo sees itself whether there is anything to build.
fn with_cargo(peer: Peer, dir: &Path) -> Result<()> {
    if !dir.exists() {
        eprintln!("peer      {peer}: building it in {}, which takes some minutes", dir.display());
    }
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--release", "--locked", "--quiet", "--manifest-path"]).arg(source(peer).join("Cargo.toml"));
    run(cargo.arg("--target-dir").arg(dir)).map(drop)
}

fn from_npm(npm: &str, peer: Peer, dir: &Path) -> Result<()> {
    let source = source(peer);
    fs::create_dir_all(dir).context(|| format!("cannot create {}", dir.display()))?;
    for file in NPM_FILES {
        fs::copy(source.join(file), dir.join(file)).context(|| format!("cannot copy {file} to {}", dir.display()))?;
    }
    let lock = fs::read(source.join(LOCK)).context(|| format!("cannot read {LOCK}"))?;
    if fs::read(dir.join(INSTALLED)).is_ok_and(|installed| installed == lock) {
        return Ok(());
    }
    eprintln!("peer      {peer}: fetching it with npm into {}", dir.display());
    run(Command::new(npm).current_dir(dir).args(["ci", "--no-audit", "--no-fund", "--loglevel=error"]))?;
    fs::write(dir.join(INSTALLED), lock).context(|| format!("cannot write to {}", dir.display()))
}

/// The Node.js that was installed with the peer, of the version that it asks for; the machine's own where there is none for this processor.
fn node(dir: &Path) -> PathBuf {
    let processor = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    };
    let installed = dir.join(format!("node_modules/node-linux-{processor}/bin/node"));
    if installed.exists() { installed } else { "node".into() }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_version_that_is_told_is_the_one_that_is_pinned() {
        let file = source(Peer::GraphileWorker).join("package.json");
        let package: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        assert_eq!(package["dependencies"]["graphile-worker"], Peer::GraphileWorker.version());
        let manifest = fs::read_to_string(source(Peer::Awa).join("Cargo.toml")).unwrap();
        let pinned = format!("awa = \"={}\"", Peer::Awa.version());
        assert!(manifest.lines().any(|line| line == pinned), "{manifest}");
    }

    #[test]
    fn without_npm_the_cure_is_told_and_with_everything_there_npm_is_not_needed() {
        let dir = std::env::temp_dir().join(format!("postrider-peer-{}", std::process::id()));
        let missing = "there-is-no-such-npm";
        let error = from_npm(missing, Peer::GraphileWorker, &dir).unwrap_err();
        assert!(error.to_string().contains(missing), "{error}");
        fs::create_dir_all(dir.join("node_modules")).unwrap();
        fs::copy(dir.join(LOCK), dir.join(INSTALLED)).unwrap();
        from_npm(missing, Peer::GraphileWorker, &dir).unwrap();
        assert!(dir.join("worker.mjs").exists());
        fs::remove_dir_all(dir).unwrap();
    }
}
