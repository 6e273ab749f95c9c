//! What: the word that makes an answer to a stage call authoritative.
//! Where: in the receiver's answer, header `Postrider-Outcome`.
//! Takes and gives: a closed set of words, as text and back.
//! Never: decides anything.

use std::fmt;
use std::str::FromStr;

/// The value of the header `Postrider-Outcome`. Without the header a status code may be a proxy's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The stage's work is done, now or by the request that this one repeats.
    Done,
    /// The work had been done before, by another way than this key.
    AlreadyDone,
    /// The work goes on; its end comes as a callback, or as the row's own advance.
    Accepted,
    /// The same key is being executed at this moment: ask again soon.
    InProgress,
    /// Nothing was done, and a later try may succeed.
    Retry,
    /// Nothing was done, and no later try will succeed.
    Permanent,
    /// The request's fence is older than one seen before: stop, write nothing.
    Stale,
    /// An external call was begun and its end is not known: reconcile before asking again.
    Unknown,
}

impl Outcome {
    /// The header's name as sent; names of headers know no case.
    pub const HEADER: &'static str = "Postrider-Outcome";

    /// Every word, in the order of the protocol's page.
    pub const ALL: [Outcome; 8] = [
        Outcome::Done,
        Outcome::AlreadyDone,
        Outcome::Accepted,
        Outcome::InProgress,
        Outcome::Retry,
        Outcome::Permanent,
        Outcome::Stale,
        Outcome::Unknown,
    ];

    /// The header's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Done => "done",
            Outcome::AlreadyDone => "already-done",
            Outcome::Accepted => "accepted",
            Outcome::InProgress => "in-progress",
            Outcome::Retry => "retry",
            Outcome::Permanent => "permanent",
            Outcome::Stale => "stale",
            Outcome::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Outcome {
    type Err = UnknownOutcome;

    fn from_str(value: &str) -> Result<Outcome, UnknownOutcome> {
        Outcome::ALL.into_iter().find(|outcome| outcome.as_str() == value).ok_or(UnknownOutcome)
    }
}

/// The header's value is none of the protocol's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownOutcome;

impl fmt::Display for UnknownOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("outcome is none of the known words")
    }
}

impl std::error::Error for UnknownOutcome {}

#[cfg(test)]
mod tests {
    use super::{Outcome, UnknownOutcome};

    #[test]
    fn every_word_reads_back() {
        for outcome in Outcome::ALL {
            assert_eq!(outcome.as_str().parse(), Ok(outcome));
        }
        assert_eq!("Done".parse::<Outcome>(), Err(UnknownOutcome));
        assert_eq!("".parse::<Outcome>(), Err(UnknownOutcome));
    }
}
