//! The base crate decides and never acts: no clock, no chance, no files, no sockets, no environment, no runtime.

use super::{Finding, Source};

/// What the base must not name.
const DOORS: [&str; 13] = [
    "std::fs",
    "TcpStream",
    "UdpSocket",
    "ToSocketAddrs",
    "std::env",
    "std::thread",
    "std::process",
    "SystemTime::now",
    "Instant::now",
    "tokio::",
    "fastrand",
    "println!",
    "async fn",
];

/// Looks at a Rust file of the base crate.
pub fn check(source: &Source) -> Vec<Finding> {
    if !source.path.starts_with("crates/postrider-core/src/") || !source.is_product_code() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, line) in source.product_lines() {
        let code = line.split("//").next().unwrap_or(line);
        for door in DOORS.iter().filter(|door| code.contains(**door)) {
            findings.push(Finding::new(source, number, format!("the core is pure; `{door}` comes in through a port")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_in_the_core_is_found() {
        let count = |path: &str, text: &str| check(&Source::sample(path, text)).len();
        assert_eq!(count("crates/postrider-core/src/a.rs", "let now = Instant::now();\n"), 1);
        assert_eq!(count("crates/postrider-core/src/a.rs", "use std::fs::File;\n"), 1);
        assert_eq!(count("crates/postrider-core/src/a.rs", "// Never calls Instant::now.\n"), 0);
        assert_eq!(count("crates/postrider-engine/src/a.rs", "let now = Instant::now();\n"), 0);
    }
}
