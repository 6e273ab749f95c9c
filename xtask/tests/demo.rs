//! The demo can fail: each protection that is taken away shows as doubled effects.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::process::Command;

/// Runs a short demo under a sabotage, which breaks an invariant, and returns its exit code and its table.
fn sabotaged(protection: &str, invariant: &str) -> (Option<i32>, serde_json::Value) {
    let json = std::env::temp_dir().join(format!("postrider-demo-{}-{protection}.json", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["demo", "--quotes", "150", "--kills", "5", "--seed", "1", "--sabotage", protection, "--json"])
        .arg(&json)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(json.exists(), "the demo wrote no table: {said}");
    // The checker finds it, too, in the lines of what happened.
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        told.contains(&format!("\n{invariant}: ")) && told.contains("FAILED: the history breaks a promise"),
        "{told}"
    );
    let table = fs::read(&json).expect("the table can be read");
    fs::remove_file(&json).unwrap();
    (output.status.code(), serde_json::from_slice(&table).unwrap())
}

#[test]
fn without_keys_effects_are_doubled_and_the_demo_fails() {
    let (code, table) = sabotaged("no-keys", "I1");
    assert_eq!(code, Some(1));
    assert!(table["effects_doubled"].as_i64().unwrap() > 0, "{table}");
}

#[test]
fn without_the_fence_effects_are_doubled_and_the_demo_fails() {
    let (code, table) = sabotaged("no-fence", "I3");
    assert_eq!(code, Some(1));
    assert!(table["effects_doubled"].as_i64().unwrap() > 0, "{table}");
}
