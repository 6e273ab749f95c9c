//! The rules of the house that no compiler holds. Each takes text and gives findings, so that each is proved on a sample that breaks it.

pub mod arrows;
pub mod conflicts;
pub mod headers;
pub mod links;
pub mod names;
pub mod promises;
pub mod purity;
pub mod size;
pub mod words;

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::Path;

use crate::error::{Context, Result};
use crate::workspace;

/// One broken rule: where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file, relative to the workspace.
    pub file: String,
    /// The line, from 1; 0 where the whole file is meant.
    pub line: usize,
    /// What is wrong, and the cure.
    pub message: String,
}

/// One file of the checkout: its path from the root, with `/` between the parts, and its text.
#[derive(Clone, Debug)]
pub struct Source {
    pub path: String,
    pub text: String,
}

impl Finding {
    fn new(source: &Source, line: usize, message: impl Into<String>) -> Self {
        Self { file: source.path.clone(), line, message: message.into() }
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

impl Source {
    /// A file that exists only in a test of a rule.
    pub fn sample(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// The stem of the file's name.
    fn stem(&self) -> &str {
        Path::new(&self.path).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
    }

    fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == extension)
    }

    /// Whether the file is Rust that goes into a crate's library or binary.
    fn is_product_code(&self) -> bool {
        let in_src = self.path.starts_with("crates/") || self.path.starts_with("xtask/");
        let is_test = self.stem() == "tests" || self.stem().ends_with("_tests");
        in_src && self.path.contains("/src/") && self.has_extension("rs") && !is_test
    }

    /// The lines of a Rust file with their numbers, without its test module.
    fn product_lines(&self) -> Vec<(usize, &str)> {
        let mut kept = Vec::new();
        let mut lines = self.text.lines().zip(1..).peekable();
        while let Some((line, number)) = lines.next() {
            let opens_tests = line == "#[cfg(test)]"
                && lines.peek().is_some_and(|(next, _)| next.starts_with("mod ") || next.starts_with("#["));
            if !opens_tests {
                kept.push((number, line));
                continue;
            }
            // The formatter puts the end of a top-level block, and of nothing inside it, in the first column.
            for (inner, _) in lines.by_ref() {
                if inner == "}" || (inner.starts_with("mod ") && inner.ends_with(';')) {
                    break;
                }
            }
        }
        kept
    }
}

/// The text files of the checkout.
///
/// # Errors
/// When this is no git checkout, or a file cannot be read.
pub fn sources() -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for path in workspace::files()? {
        let bytes = fs::read(workspace::root().join(&path)).context(|| format!("cannot read {}", path.display()))?;
        // What is not text (recorded server output) has no rules.
        if let Ok(text) = String::from_utf8(bytes) {
            sources.push(Source { path: path.to_string_lossy().into_owned(), text });
        }
    }
    Ok(sources)
}

/// Every rule over every file.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let exists = |path: &str| workspace::root().join(path).exists();
    let is_test = |name: &str| {
        let declaration = format!("fn {name}(");
        sources.iter().any(|source| source.has_extension("rs") && source.text.contains(&declaration))
    };
    let mut findings = Vec::new();
    for source in sources {
        findings.extend(arrows::check(source));
        findings.extend(conflicts::check(source));
        findings.extend(headers::check(source));
        findings.extend(links::check(source, &exists));
        findings.extend(names::check(source));
        findings.extend(promises::check(source, &is_test));
        findings.extend(purity::check(source));
        findings.extend(size::check(source));
        findings.extend(words::check(source));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn product_lines_leave_the_test_module_out() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {\n    }\n}\nfn c() {}\n";
        let source = Source::sample("crates/x/src/a.rs", text);
        assert_eq!(source.product_lines(), [(1, "fn a() {}"), (7, "fn c() {}")]);
        let apart = Source::sample("crates/x/src/a.rs", "fn a() {}\n#[cfg(test)]\nmod tests;\nfn c() {}\n");
        assert_eq!(apart.product_lines(), [(1, "fn a() {}"), (4, "fn c() {}")]);
        let one_item = Source::sample("crates/x/src/a.rs", "#[cfg(test)]\nfn only_in_tests() {}\n");
        assert_eq!(one_item.product_lines().len(), 2);
    }

    #[test]
    fn product_code_is_what_is_built_into_a_crate() {
        let check = |path, expected| assert_eq!(Source::sample(path, "").is_product_code(), expected, "{path}");
        check("crates/postrider-core/src/frame.rs", true);
        check("xtask/src/main.rs", true);
        check("crates/postrider-core/tests/golden.rs", false);
        check("crates/postrider-core/src/frame/tests.rs", false);
        check("crates/postrider-core/src/frame_tests.rs", false);
        check("crates/postrider-core/Cargo.toml", false);
        check("tests/src/lib.rs", false);
    }
}
