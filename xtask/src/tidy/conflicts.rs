//! A merge that was not finished: its markers stand in no file.

use super::{Finding, Source};

/// How the lines begin between which a choice is left open. The line between the two is a heading's in Markdown, and so is no sign.
const MARKERS: [&str; 3] = ["<<<<<<< ", "||||||| ", ">>>>>>> "];

/// Looks at any text file.
pub fn check(source: &Source) -> Vec<Finding> {
    let lines = source.text.lines().zip(1..);
    let marked = lines.filter(|(line, _)| MARKERS.iter().any(|marker| line.starts_with(marker)));
    marked.map(|(_, number)| Finding::new(source, number, "is the marker of an unfinished merge: finish it")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Source::sample(path, text)).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_marker_is_found_in_whatever_file_it_stands() {
        let text = "a\n<<<<<<< HEAD\nb\n||||||| base\nc\n=======\nd\n>>>>>>> other\n";
        for path in ["CHANGELOG.md", "docs/a.toml", "sql/a.sql", "crates/x/src/a.rs"] {
            assert_eq!(lines(path, text), [2, 4, 8], "{path}");
        }
    }

    #[test]
    fn what_only_looks_like_one_is_none() {
        assert_eq!(lines("a.md", "Title\n=======\n    <<<<<<< HEAD\n>>>>>>>quoted\n<<<<<<<\n"), [0; 0]);
    }
}
