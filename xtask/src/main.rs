//! `cargo x …`: the repository's own commands.

use std::process::ExitCode;

fn main() -> ExitCode {
    xtask::cli::run()
}
