//! The only place that prints: data on standard output, talk on standard error.

use postrider_core::error::Error;
use serde_json::{Value, json};
use std::error::Error as _;
use std::io::Write;

/// Prints data. A reader that went away is no error of ours.
pub(crate) fn data(text: &str) {
    print(std::io::stdout().lock(), text);
}

/// Prints data as one JSON document.
pub(crate) fn json(value: &Value) {
    data(&format!("{value:#}"));
}

/// Prints what is not data.
pub(crate) fn talk(text: &str) {
    print(std::io::stderr().lock(), text);
}

/// Prints an error with all its causes, once, for the person at the terminal.
pub(crate) fn error(error: &Error) {
    let code = error.kind().code();
    talk(&format!(
        "postrider: error {}\n`postrider explain {code}` says what it costs and what to type.",
        describe(error)
    ));
}

/// Code, message and causes on one line; detail and hint on further ones.
pub(crate) fn describe(error: &Error) -> String {
    let mut text = format!("{}: {}", error.kind().code(), error.message());
    for cause in causes(error) {
        text.push_str(": ");
        text.push_str(&cause);
    }
    for extra in [error.detail(), error.hint()].into_iter().flatten() {
        text.push('\n');
        text.push_str(extra);
    }
    text
}

/// An error for a program.
pub(crate) fn error_json(error: &Error) -> Value {
    json!({
        "code": error.kind().code(),
        "message": error.message(),
        "causes": causes(error),
        "detail": error.detail(),
        "hint": error.hint(),
        "exit_code": error.kind().exit_code(),
    })
}

fn causes(error: &Error) -> Vec<String> {
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    causes
}

fn print(mut stream: impl Write, text: &str) {
    // There is nobody left to tell.
    let _ = stream.write_all(text.as_bytes());
    if !text.ends_with('\n') {
        let _ = stream.write_all(b"\n");
    }
    let _ = stream.flush();
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::error::ErrorKind;

    #[test]
    fn an_error_is_described_with_its_causes_detail_and_hint_once() {
        let error = Error::new(ErrorKind::SlotMissing, "the replication slot does not exist")
            .with_source(std::io::Error::other("first cause"))
            .with_detail("The slot is called so.")
            .with_hint("Create it.");
        assert_eq!(
            describe(&error),
            "PR004: the replication slot does not exist: first cause\nThe slot is called so.\nCreate it."
        );
        assert_eq!(error_json(&error)["causes"], json!(["first cause"]));
    }
}
