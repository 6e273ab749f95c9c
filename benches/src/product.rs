//! The product's own binary, as a user runs it.

use std::fs::OpenOptions;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

use xtask::error::{Context, Error, Result};

use crate::process::Running;

/// The configuration's name in the folder of the run.
pub(crate) const CONFIGURATION: &str = "postrider.toml";

/// `postrider setup`, with the configuration in this folder.
pub(crate) fn set_up(home: &Path) -> Result<()> {
    xtask::process::run(&mut command(home, "setup")?).map(drop)
}

/// `postrider run`, with the configuration in this folder; what it says goes to `postrider.log` there.
pub(crate) fn start(home: &Path) -> Result<Running> {
    let log = OpenOptions::new().create(true).append(true).open(home.join("postrider.log"));
    let log = log.context(|| "cannot open the log of postrider")?;
    let mut command = command(home, "run")?;
    command.stdin(Stdio::null()).stdout(log.try_clone().context(|| "cannot open the log of postrider")?).stderr(log);
    Running::start("postrider", &mut command)
}

/// An address on loopback that is free now.
pub(crate) fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context(|| "cannot find a free port")?;
    listener.local_addr().context(|| "cannot find a free port")
}

fn command(home: &Path, verb: &str) -> Result<Command> {
    let program = std::env::current_exe().context(|| "cannot find this program")?.with_file_name("postrider");
    if !program.exists() {
        return Err(Error::new("the product is not built")
            .hint("`cargo x bench` builds it; or run `cargo build --release --package postrider`."));
    }
    let mut command = Command::new(program);
    command.arg(verb).arg("-c").arg(home.join(CONFIGURATION));
    Ok(command)
}
