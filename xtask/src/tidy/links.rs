//! Relative links in Markdown lead somewhere.

use super::{Finding, Source};

/// Looks at a Markdown file; `exists` says whether a path from the workspace's root is there.
pub fn check(source: &Source, exists: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    if !source.has_extension("md") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut in_code = false;
    for (line, number) in source.text.lines().zip(1..) {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            continue;
        }
        if in_code {
            continue;
        }
        for target in targets(line).filter(|target| is_relative(target)) {
            let path = target.split('#').next().unwrap_or(target);
            if resolve(&source.path, path).is_none_or(|resolved| !exists(&resolved)) {
                findings.push(Finding::new(source, number, format!("the link to {target} leads nowhere")));
            }
        }
    }
    findings
}

/// What stands in the brackets of `[…](…)`, outside of `code`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let prose = line.split('`').step_by(2);
    prose.flat_map(|text| text.split("](").skip(1)).filter_map(|rest| {
        let inside = rest.split(')').next()?;
        inside.split_whitespace().next()
    })
}

fn is_relative(target: &str) -> bool {
    !target.starts_with('#') && !target.contains("://") && !target.starts_with("mailto:")
}

/// The path from the root that `target` means in `file`; none if it leaves the checkout.
fn resolve(file: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = match target.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => file.split('/').collect(),
    };
    parts.pop();
    for part in target.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop()?;
        } else {
            parts.push(part);
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let exists = |path: &str| ["README.md", "docs/why.md", "docs/adr"].contains(&path);
        check(&Source::sample(path, text), &exists).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        assert_eq!(messages("README.md", "see [why](docs/wy.md)"), ["the link to docs/wy.md leads nowhere"]);
        assert_eq!(messages("docs/why.md", "[a](../../README.md) and [b](adr/none.md#x)").len(), 2);
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        let text =
            "[a](why.md#part) [b](../README.md) [c](./adr/) [d](https://x.y/z) [e](#here) [f](/README.md \"title\")";
        assert_eq!(messages("docs/why.md", text), [""; 0]);
    }

    #[test]
    fn code_is_no_link() {
        assert_eq!(messages("README.md", "`a[i](none)`\n```\n[x](none)\n```\n"), [""; 0]);
    }
}
