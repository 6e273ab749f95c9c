//! The protocol of claim, lease, checkpoint and take-over as a small state space, walked through whole.
//!
//! What the simulation samples, this enumerates: every order in which executors see a row, claim it, call its receiver, pause, wake
//! up, lose replies, crash and are taken over, with a person who cancels and resumes in between. What a statement does to a
//! row is [`postrider_core::guard`], which a test holds against the server's own statements.

mod protocol;
mod search;
mod state;

pub use protocol::{Bounds, Finding, Mistake, rules};
pub use search::{Found, Searched, replay, search};
