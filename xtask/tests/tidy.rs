//! The tidy test: every rule of the house over every file of the checkout.

use xtask::tidy;

#[test]
fn the_house_is_tidy() {
    let sources = tidy::sources().unwrap();
    assert!(sources.len() > 50, "only {} files were found", sources.len());
    let findings = tidy::check(&sources);
    let list: Vec<_> = findings.iter().map(ToString::to_string).collect();
    assert!(list.is_empty(), "{} findings:\n{}", list.len(), list.join("\n"));
}
