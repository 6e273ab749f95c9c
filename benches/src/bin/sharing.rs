//! `cargo x bench sharing`: see `benches/README.md`.

use std::process::ExitCode;

fn main() -> ExitCode {
    postrider_benches::main::<postrider_benches::sharing::Sharing>()
}
