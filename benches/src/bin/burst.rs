//! `cargo x bench burst`: see `benches/README.md`.

use std::process::ExitCode;

fn main() -> ExitCode {
    postrider_benches::main::<postrider_benches::burst::Burst>()
}
