//! Names that say nothing, files and imports that hide where a thing is.

use super::{Finding, Source};

/// Words that stand for "I did not find the noun".
const EMPTY_WORDS: [&str; 8] = ["manager", "helper", "helpers", "util", "utils", "common", "types", "misc"];

/// Looks at a Rust file.
pub fn check(source: &Source) -> Vec<Finding> {
    if !source.has_extension("rs") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if source.stem() == "mod" {
        findings.push(Finding::new(source, 0, "is a mod.rs; write `name.rs` beside the folder `name`"));
    }
    for word in words_of(source.stem()).filter(|word| EMPTY_WORDS.contains(&word.as_str())) {
        findings.push(Finding::new(source, 0, format!("`{word}` in a file's name says nothing")));
    }
    if !source.is_product_code() {
        return findings;
    }
    for (number, line) in source.product_lines() {
        let code = line.split("//").next().unwrap_or(line).trim();
        if let Some(name) = declared_type(code) {
            for word in words_of(name).filter(|word| EMPTY_WORDS.contains(&word.as_str())) {
                findings.push(Finding::new(source, number, format!("`{word}` in the name {name} says nothing")));
            }
        }
        if is_glob_import(code) {
            findings.push(Finding::new(source, number, "imports with `*`; name what is used"));
        }
    }
    findings
}

/// The name in `pub(crate) struct Name<T> {` and its like.
fn declared_type(code: &str) -> Option<&str> {
    let mut words = code.split_whitespace().skip_while(|word| word.starts_with("pub") || *word == "unsafe");
    let keyword = words.next()?;
    if !["struct", "enum", "trait", "type", "union", "mod"].contains(&keyword) {
        return None;
    }
    let name = words.next()?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

fn is_glob_import(code: &str) -> bool {
    let is_use = code.starts_with("use ") || code.starts_with("pub use ") || code.starts_with("pub(crate) use ");
    is_use && (code.contains("::*") || code.contains("{*"))
}

/// `RowHelper2` and `row_helper` are both `row`, `helper`, …, in lower case.
fn words_of(name: &str) -> impl Iterator<Item = String> {
    let mut words: Vec<String> = vec![String::new()];
    for c in name.chars() {
        if c.is_uppercase() || !c.is_alphabetic() {
            words.push(String::new());
        }
        if let (true, Some(word)) = (c.is_alphabetic(), words.last_mut()) {
            word.extend(c.to_lowercase());
        }
    }
    words.into_iter().filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Source::sample(path, text)).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn empty_words_are_found_in_files_and_types() {
        assert_eq!(messages("crates/x/src/utils.rs", "").len(), 1);
        assert_eq!(messages("tests/src/test_helpers.rs", "").len(), 1);
        assert_eq!(messages("crates/x/src/a.rs", "pub(crate) struct SlotManager<T> {\n").len(), 1);
        assert_eq!(messages("crates/x/src/a.rs", "    pub mod common;\n").len(), 1);
        assert_eq!(messages("crates/x/src/a.rs", "struct Helpful;\nenum TypeOid {}\nlet helper = 1;\n"), [""; 0]);
    }

    #[test]
    fn mod_files_and_glob_imports_are_found() {
        assert_eq!(messages("crates/x/src/a/mod.rs", "").len(), 1);
        assert_eq!(messages("crates/x/src/a.rs", "use std::io::*;\npub use b::{c, d::*};\n").len(), 2);
        assert_eq!(messages("crates/x/src/a.rs", "use std::io::Read;\nlet x = a::b() * 2;\n"), [""; 0]);
        let in_tests = "#[cfg(test)]\nmod tests {\n    use super::*;\n}\n";
        assert_eq!(messages("crates/x/src/a.rs", in_tests), [""; 0]);
    }
}
