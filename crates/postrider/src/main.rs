//! The binary: command line, configuration, wiring, console.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod cli;
mod config;
mod connect;
mod console;
mod exit;
mod explain;
mod lint;
mod log;
mod output;
mod reading;
mod succession;
mod wiring;

use clap::Parser;
use std::process::ExitCode;

/// Rows, claims and calls are many small pieces that come and go in batches, which the system's allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::Arguments::parse().obey()
}
