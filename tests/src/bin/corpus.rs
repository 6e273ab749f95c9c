//! Writes the corpus of each fuzz target into `tests/fuzz/corpus`, where cargo-fuzz looks for it.

use std::fs;
use std::io;
use std::path::Path;

use postrider_tests::fuzz::{TARGETS, corpus};

fn main() -> io::Result<()> {
    for (name, _) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        fs::create_dir_all(&folder)?;
        for (input, number) in corpus::of(name).into_iter().zip(0_usize..) {
            fs::write(folder.join(format!("{number:05}")), input)?;
        }
    }
    Ok(())
}
