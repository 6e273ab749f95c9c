//! Words that are not committed: notes to oneself, and the folders of somebody's machine.

use super::{Finding, Source};

/// Notes to oneself: a thing is done, or it is an issue.
const NOTES: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// The beginnings of paths that exist on one machine only.
const MACHINES: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/")];

/// Looks at any text file but the lock file.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    if source.path == "Cargo.lock" {
        return findings;
    }
    for (line, number) in source.text.lines().zip(1..) {
        for note in NOTES.iter().filter(|note| has_word(line, note)) {
            findings.push(Finding::new(source, number, format!("{note}: do it, or open an issue")));
        }
        for path in MACHINES.iter().filter(|path| starts_a_path(line, path)) {
            findings.push(Finding::new(source, number, format!("{path} is a folder of one machine")));
        }
    }
    findings
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
}

fn starts_a_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "./-_~}".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        check(&Source::sample("docs/a.md", text)).len()
    }

    #[test]
    fn notes_to_oneself_are_found() {
        for note in NOTES {
            assert_eq!(count(&format!("// {note}: later")), 1);
            assert_eq!(count(&format!("{note}2 and a{note}")), 0);
        }
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        for path in MACHINES {
            assert_eq!(count(&format!("see {path}somewhere")), 1);
            assert_eq!(count(&format!("see a{path}somewhere")), 0);
        }
    }
}
