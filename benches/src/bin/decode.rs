//! `cargo x bench decode`: see `benches/README.md`.

use std::process::ExitCode;

fn main() -> ExitCode {
    postrider_benches::main::<postrider_benches::decode::Decode>()
}
