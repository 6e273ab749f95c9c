//! Attempts whose end nobody wrote, since somebody else wrote the row without raising its fence: the next statement that writes the row tells
//! the history of them.

use postrider_core::ports::Untold;

use super::asked::Asked;
use super::layout::Micros;

/// They come beside `asked`, as arrays with a place for each of its rows: hardly a statement has one.
pub(super) struct UntoldColumns {
    /// NULL for a row without such an attempt, as is the reason.
    pub(super) stage: String,
    pub(super) reason: String,
    /// When the attempt began, for any row.
    pub(super) began_at: String,
}

impl UntoldColumns {
    /// The arrays are the parameters behind so many others.
    pub(super) fn behind(others: usize) -> UntoldColumns {
        let of_row = |index, kind| format!("(${}::{kind}[])[asked.ord::int4]", others + index);
        UntoldColumns {
            stage: of_row(1, "text"),
            reason: of_row(3, "text"),
            // Who wrote the row may have written its time, too.
            began_at: format!("least(asked.claimed_at, {})", of_row(2, "timestamptz")),
        }
    }

    /// What holds for a row with such an attempt, and what for the others.
    pub(super) fn either(&self, untold: &str, otherwise: &str) -> String {
        format!("CASE WHEN {} IS NULL THEN {otherwise} ELSE {untold} END", self.stage)
    }
}

/// The arrays.
pub(super) fn ask<'a>(asked: &mut Asked<'a>, attempts: impl Iterator<Item = Option<&'a Untold>> + Clone) {
    asked.other(attempts.clone().map(|attempt| attempt.map(|attempt| attempt.stage.as_str())).collect::<Vec<_>>());
    let claimed_at = attempts.clone().map(|attempt| attempt.and_then(|attempt| attempt.claimed_at).map(Micros));
    asked.other(claimed_at.collect::<Vec<_>>());
    asked.other(attempts.map(|attempt| attempt.map(|attempt| attempt.reason.as_str())).collect::<Vec<_>>());
}
