//! Which crate may know which. Cargo keeps an arrow that is there; this keeps the others from being drawn.

use super::{Finding, Source};

const CORE: &str = "postrider-core";

/// Each crate and the crates of ours that it may depend on.
const ARROWS: [(&str, &[&str]); 8] = [
    (CORE, &[]),
    ("postrider-engine", &[CORE]),
    ("postrider-journal", &[CORE]),
    ("postrider-postgres", &[CORE]),
    ("postrider-delivery", &[CORE]),
    ("postrider-receiver", &[CORE]),
    ("quoting-service", &["postrider-receiver"]),
    ("postrider", &[CORE, "postrider-engine", "postrider-journal", "postrider-postgres", "postrider-delivery"]),
];

/// Looks at a crate's `Cargo.toml`.
pub fn check(source: &Source) -> Vec<Finding> {
    let Some(name) = source.path.strip_prefix("crates/").and_then(|path| path.strip_suffix("/Cargo.toml")) else {
        return Vec::new();
    };
    let Ok(manifest) = source.text.parse::<toml::Table>() else {
        return vec![Finding::new(source, 0, "is not TOML")];
    };
    let Some((_, allowed)) = ARROWS.iter().find(|(of, _)| *of == name) else {
        return vec![Finding::new(source, 0, format!("{name} stands in no arrow; add it to ARROWS with its reason"))];
    };
    let mut findings = Vec::new();
    for (section, tools) in [("dependencies", &[][..]), ("build-dependencies", &[]), ("dev-dependencies", &["xtask"])] {
        let Some(dependencies) = manifest.get(section).and_then(toml::Value::as_table) else { continue };
        for dependency in dependencies.keys().filter(|dependency| is_ours(dependency)) {
            if !allowed.contains(&dependency.as_str()) && !tools.contains(&dependency.as_str()) {
                let message = format!("{name} must not know {dependency} ({section})");
                findings.push(Finding::new(source, 0, message));
            }
        }
    }
    findings
}

fn is_ours(dependency: &str) -> bool {
    dependency.starts_with("postrider") || ["quoting-service", "xtask"].contains(&dependency)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(krate: &str, manifest: &str) -> Vec<String> {
        let source = Source::sample(&format!("crates/{krate}/Cargo.toml"), manifest);
        check(&source).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn siblings_never_import_each_other() {
        let manifest =
            "[dependencies]\nbytes = \"1\"\npostrider-core.workspace = true\npostrider-postgres.workspace = true\n";
        assert_eq!(
            findings("postrider-engine", manifest),
            ["postrider-engine must not know postrider-postgres (dependencies)"]
        );
    }

    #[test]
    fn the_base_knows_nobody_and_the_roof_not_the_receiver() {
        assert_eq!(findings(CORE, "[dependencies]\npostrider-journal.workspace = true\n").len(), 1);
        assert_eq!(findings("postrider", "[dependencies]\npostrider-receiver.workspace = true\n").len(), 1);
        assert_eq!(findings("postrider", "[dependencies]\npostrider-engine.workspace = true\n"), [""; 0]);
    }

    #[test]
    fn tests_may_start_servers_and_product_code_may_not() {
        assert_eq!(findings("postrider-postgres", "[dev-dependencies]\nxtask.workspace = true\n"), [""; 0]);
        assert_eq!(findings("postrider-postgres", "[dependencies]\nxtask.workspace = true\n").len(), 1);
        assert_eq!(findings("postrider-postgres", "[dev-dependencies]\npostrider-engine.workspace = true\n").len(), 1);
    }

    #[test]
    fn a_new_crate_must_be_placed() {
        assert_eq!(findings("postrider-extra", "[dependencies]\n").len(), 1);
    }
}
