//! `cargo x bench drain`: see `benches/README.md`.

use std::process::ExitCode;

fn main() -> ExitCode {
    postrider_benches::main::<postrider_benches::drain::Drain>()
}
