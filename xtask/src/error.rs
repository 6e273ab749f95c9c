//! The error of the repository's own commands: one sentence, and the cure where there is one.

use std::fmt::{self, Display, Formatter};

/// What went wrong, in one sentence, with the cure in a second one where somebody can do something.
#[derive(Debug)]
pub struct Error {
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error that says `message`: lowercase, no full stop.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, source: None }
    }

    /// The same error with its cure, a full sentence.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The error with its causes and its cure, as it is printed once, at the edge.
    pub fn report(&self) -> String {
        let mut text = self.message.clone();
        let mut cause = std::error::Error::source(self);
        while let Some(inner) = cause {
            text.push_str(": ");
            text.push_str(&inner.to_string());
            cause = inner.source();
        }
        if let Some(hint) = &self.hint {
            text.push_str("\nhint: ");
            text.push_str(hint);
        }
        text
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

/// Says what was being done when something failed.
pub trait Context<T> {
    /// Puts `message()` in front of the error.
    fn context<M: Into<String>>(self, message: impl FnOnce() -> M) -> Result<T>;
}

impl<T, E: std::error::Error + Send + Sync + 'static> Context<T> for std::result::Result<T, E> {
    fn context<M: Into<String>>(self, message: impl FnOnce() -> M) -> Result<T> {
        self.map_err(|source| Error { message: message().into(), hint: None, source: Some(Box::new(source)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_prints_the_chain_once_and_the_cure_last() {
        let inner = std::io::Error::other("disk full");
        let failed: std::result::Result<(), _> = Err(inner);
        let error = failed.context(|| "cannot write the log").unwrap_err().hint("Free some space.");
        assert_eq!(error.report(), "cannot write the log: disk full\nhint: Free some space.");
        assert_eq!(error.to_string(), "cannot write the log");
    }
}
