//! The benches: Postrider against something else, in the same run, on the same server.
//!
//! What each measures, and how, stands in `benches/README.md`.

pub mod burst;
pub mod decode;
pub mod drain;
pub mod latency;
pub mod memory;
pub mod sharing;
pub mod stages;

mod backlog;
mod endpoint;
mod figure;
mod machine;
mod measure;
mod peers;
mod process;
mod product;
mod recvlogical;
mod server;
mod turn;
mod work;

use std::process::ExitCode;

use clap::Parser;
use xtask::error::{Error, Result};

/// That of `postrider`, for the sides that are processes of the bench's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A bench: what may be typed after its name, and what it then does.
pub trait Bench: Parser {
    /// Runs it to its end and prints its figures.
    ///
    /// # Errors
    /// When a side fails, or the sides did not do the same work.
    fn run(self) -> Result<()>;
}

/// Reads the command line and runs the bench. Exit code 0: measured; 1: it could not be; 2: the command line is wrong.
pub fn main<B: Bench>() -> ExitCode {
    match B::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error.report());
            ExitCode::FAILURE
        }
    }
}

/// What `--case` is answered with where no case has that name.
fn no_such_case(names: impl Iterator<Item = &'static str>) -> Error {
    let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
    Error::new("there is no such case").hint(format!("The cases are: {}.", names.join(", ")))
}
