//! No file grows past what one can read at a sitting.

use super::{Finding, Source};

/// The most lines of product code in a file; its test module does not count.
const LIMIT: usize = 600;

/// Files that are over the limit, with the size that each may not exceed. The numbers only go down, and a line goes once it is not needed.
const KNOWN: [(&str, usize); 0] = [];

/// Looks at a Rust file.
pub fn check(source: &Source) -> Vec<Finding> {
    check_against(source, &KNOWN)
}

fn check_against(source: &Source, known: &[(&str, usize)]) -> Vec<Finding> {
    if !source.is_product_code() {
        return Vec::new();
    }
    let size = source.product_lines().len();
    let message = match known.iter().find(|(path, _)| *path == source.path) {
        Some((_, most)) if size > *most => format!("has {size} lines of product code and was to shrink from {most}"),
        Some((_, most)) if size < *most => format!("has shrunk to {size} lines; lower its number from {most}"),
        None if size > LIMIT => format!("has {size} lines of product code, more than {LIMIT}; split it by its nouns"),
        _ => return Vec::new(),
    };
    vec![Finding::new(source, 0, message)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(lines: usize) -> Source {
        let tests = "#[cfg(test)]\nmod tests {\n".to_owned() + &"    //\n".repeat(900) + "}\n";
        Source::sample("crates/x/src/a.rs", &("//\n".repeat(lines) + &tests))
    }

    #[test]
    fn the_limit_counts_product_code_only() {
        assert_eq!(check(&source(600)), []);
        assert_eq!(check(&source(601)).len(), 1);
    }

    #[test]
    fn the_ratchet_goes_one_way() {
        let known = [("crates/x/src/a.rs", 700)];
        assert_eq!(check_against(&source(700), &known), []);
        assert_eq!(check_against(&source(701), &known).len(), 1);
        assert_eq!(check_against(&source(650), &known).len(), 1);
    }
}
