//! The files of the walk open with four lines that say what each does, where it stands, what it takes and gives, and what it never does.

use super::{Finding, Source};

/// The four lines, in their order.
const LABELS: [&str; 4] = ["//! What: ", "//! Where: ", "//! Takes and gives: ", "//! Never: "];

/// The crates that the walk goes through.
const CRATES: [&str; 5] =
    ["postrider-core", "postrider-engine", "postrider-journal", "postrider-postgres", "postrider-delivery"];

/// The steps of the walk: a file of this name in one of these crates is one of them.
const STEPS: [&str; 17] = [
    "read",
    "assemble",
    "append",
    "follow",
    "decode",
    "observe",
    "claim",
    "call",
    "judge",
    "checkpoint",
    "route",
    "shape",
    "batch",
    "write",
    "settle",
    "confirm",
    "frontier",
];

/// Looks at a Rust file of a crate.
pub fn check(source: &Source) -> Vec<Finding> {
    let is_step = STEPS.contains(&source.stem())
        && CRATES.iter().any(|name| source.path.starts_with(&format!("crates/{name}/src/")));
    let claims_to_be = source.path.starts_with("crates/") && source.text.starts_with(LABELS[0].trim_end());
    if !source.has_extension("rs") || !(is_step || claims_to_be) {
        return Vec::new();
    }
    let header: Vec<_> = source.text.lines().take_while(|line| line.starts_with("//!")).collect();
    let mut from = 0;
    for label in LABELS {
        let rest = header.get(from..).unwrap_or_default();
        match rest.iter().position(|line| line.starts_with(label)) {
            Some(found) if found == 0 || from > 0 => from += found + 1,
            _ => {
                let message = format!(
                    "the file opens with the four lines of the walk; `{}` is missing or out of order",
                    label.trim_end()
                );
                return vec![Finding::new(source, 1, message)];
            }
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "//! What: reads.\n//! Where: first,\n//!   before assemble.\n//! Takes and gives: bytes, frames.\n//! Never: copies.\n\nuse x;\n";

    fn count(path: &str, text: &str) -> usize {
        check(&Source::sample(path, text)).len()
    }

    #[test]
    fn a_step_has_all_four_lines_in_order() {
        assert_eq!(count("crates/postrider-postgres/src/read.rs", GOOD), 0);
        assert_eq!(count("crates/postrider-postgres/src/read.rs", "//! Reads.\n"), 1);
        assert_eq!(count("crates/postrider-engine/src/step/claim.rs", "use x;\n"), 1);
        let swapped = "//! Where: x.\n//! What: y.\n//! Takes and gives: z.\n//! Never: n.\n";
        assert_eq!(count("crates/postrider-core/src/judge.rs", swapped), 1);
        assert_eq!(count("crates/postrider-core/src/judge.rs", &GOOD.replace("//! Never: copies.\n", "")), 1);
    }

    #[test]
    fn a_file_that_begins_the_header_finishes_it() {
        assert_eq!(count("crates/postrider-core/src/other.rs", "//! What: x.\n"), 1);
        assert_eq!(count("crates/postrider-core/src/other.rs", GOOD), 0);
    }

    #[test]
    fn other_files_need_none() {
        assert_eq!(count("crates/postrider-core/src/position.rs", "//! Positions.\n"), 0);
        assert_eq!(count("crates/quoting-service/src/read.rs", "//! Reads.\n"), 0);
    }
}
