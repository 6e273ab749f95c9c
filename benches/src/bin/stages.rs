//! `cargo x bench stages`: see `benches/README.md`.

use std::process::ExitCode;

fn main() -> ExitCode {
    postrider_benches::main::<postrider_benches::stages::Stages>()
}
