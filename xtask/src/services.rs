//! `cargo x services`: the real servers that the tests, the benches and the demo run against.

pub(crate) mod postgres;

use clap::{Args, Subcommand, ValueEnum};

use self::postgres::cluster::Cluster;
use self::postgres::installation::find;
use self::postgres::standing::Standing;
use crate::error::Result;

/// Start, stop and look at a real server.
#[derive(Debug, Args)]
pub(crate) struct Services {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start it, fetching it first where it is missing, and print its address.
    Up(Which),
    /// Stop it; its data stays.
    Down(Which),
    /// Say whether it runs.
    Status(Which),
    /// Print the folder of its programs, fetching them first where they are missing.
    Path(Which),
}

#[derive(Debug, Args)]
struct Which {
    /// The server.
    name: Service,
    /// The major version, 14 to 18; without it the first that is found.
    #[arg(long)]
    version: Option<u32>,
}

/// A server that tests can need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    Postgres,
}

impl Services {
    pub(crate) fn run(self) -> Result<()> {
        match self.action {
            Action::Up(Which { name: Service::Postgres, version }) => {
                let standing = Cluster::builder(&find(version)?).fsync(true).start_standing()?;
                eprintln!("postgres: running, process {}, log {}", standing.pid(), standing.log_path().display());
                println!("{}", standing.url());
            }
            Action::Down(Which { name: Service::Postgres, version }) => match running(version)? {
                Some(standing) => standing.stop()?,
                None => eprintln!("postgres: was not running"),
            },
            Action::Status(Which { name: Service::Postgres, version }) => match running(version)? {
                Some(standing) => println!("running {} {}", standing.pid(), standing.url()),
                None => println!("stopped"),
            },
            Action::Path(Which { name: Service::Postgres, version }) => {
                println!("{}", find(version)?.bin_dir().display());
            }
        }
        Ok(())
    }
}

impl Service {
    /// The name as it is typed.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
        }
    }

    /// Makes sure that the server can be had, before anything is built for it.
    pub(crate) fn ensure(self) -> Result<()> {
        match self {
            Self::Postgres => find(None).map(drop),
        }
    }
}

/// The server that `up` started, of this version or of any.
fn running(version: Option<u32>) -> Result<Option<Standing>> {
    let versions = version.map_or_else(|| postgres::installation::SUPPORTED.rev().collect(), |version| vec![version]);
    for version in versions {
        if let Some(standing) = Standing::of_version(version)? {
            return Ok(Some(standing));
        }
    }
    Ok(None)
}
