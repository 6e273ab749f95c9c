//! Each promise names a test that is there.

use super::{Finding, Source};

/// The page whose sentences name their tests.
const PROMISES: &str = "docs/guarantees.md";

/// A word in code quotes with so many underscores is the name of a test.
const UNDERSCORES_MIN: usize = 3;

/// Looks at the page of promises; `is_test` says whether a function of that name is among the tests.
pub fn check(source: &Source, is_test: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    if source.path != PROMISES {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (line, number) in source.text.lines().zip(1..) {
        let names = line.split('`').skip(1).step_by(2).filter(|word| looks_like_a_test(word));
        for name in names.filter(|name| !is_test(name)) {
            findings.push(Finding::new(
                source,
                number,
                format!("the promise names the test {name}, which is not there"),
            ));
        }
    }
    findings
}

fn looks_like_a_test(word: &str) -> bool {
    word.matches('_').count() >= UNDERSCORES_MIN && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_without_its_test_is_found() {
        let page =
            Source::sample(PROMISES, "- Kept (`a_promise_is_kept`).\n- Broken (`no_such_test_exists`, `wal_guard`).\n");
        let findings = check(&page, &|name| name == "a_promise_is_kept");
        assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
    }
}
