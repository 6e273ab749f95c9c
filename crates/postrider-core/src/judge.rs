//! What: says what one outcome of a stage call means for the row.
//! Where: after *call*, before *checkpoint*.
//! Takes and gives: stage policy, attempt, outcome, a random number; a [`Verdict`].
//! Never: touches the row, waits, or decides by anything but its arguments.

use crate::outcome::{Answer, Declared, Lost, Outcome};
use crate::ports::Transition;
use crate::stage::{Backoff, Next, NextProblem, StageClass, StagePolicy, share};
use std::time::Duration;

/// Tries of an answer that smells of a wrong URL or credential, where the stage allows more.
const SUSPECT_ATTEMPTS_MAX: u32 = 3;

/// Pause after `in-progress`: the same key is running, so it will soon be known.
const IN_PROGRESS_BACKOFF: Backoff = Backoff { first: Duration::from_millis(200), max: Duration::from_secs(10) };

/// So much of a name that nobody knows is shown.
const NEXT_CHARS_SHOWN: usize = 64;

/// A receiver that commits its work without the row would do it again at the next request.
const NOT_ADVANCED: &str = "NOT_ADVANCED: the receiver answered that the stage is done, and did not move the row on; its transaction must call postrider_advance_… before it commits";

/// Where a row stands in its budgets when a call ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// Which attempt this was, from 1.
    pub number: u32,
    /// Deferrals before it.
    pub deferrals: u32,
    /// Calls to this stage in a row, over all rows, that were not sent; they use no attempt, so the row cannot count them.
    pub not_sent_in_a_row: u32,
    /// Decides the jitter.
    pub random: u64,
}

/// What to do with the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The stage is done, and the workflow goes on there.
    Done { next: Next },
    /// Try again after a while; the attempt was used.
    Retry { after: Duration, reason: String },
    /// Try again after a while; the attempt is given back. `counted`: it uses the deferral budget.
    Defer { after: Duration, reason: String, counted: bool },
    /// Nobody can go on but a person.
    Park { reason: String },
    /// Nobody knows what the receiver did, and it may not be asked again blindly.
    Unknown { reason: String },
    /// The receiver says that our fence is old: somebody else has the row. Nothing is written.
    Stale,
}

impl Verdict {
    /// The word in metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Verdict::Done { .. } => "done",
            Verdict::Retry { .. } => "retry",
            Verdict::Defer { .. } => "defer",
            Verdict::Park { .. } => "park",
            Verdict::Unknown { .. } => "unknown",
            Verdict::Stale => "stale",
        }
    }

    /// What the checkpoint writes where the row does not go on to another stage: every verdict but `Done` and `Stale`.
    pub fn into_transition(self) -> Option<Transition> {
        match self {
            Verdict::Done { .. } | Verdict::Stale => None,
            Verdict::Retry { after, reason } => Some(Transition::Retry { after, reason }),
            Verdict::Defer { after, reason, counted } => Some(Transition::Defer { after, reason, counted }),
            Verdict::Park { reason } => Some(Transition::Park { reason }),
            Verdict::Unknown { reason } => Some(Transition::Unknown { reason }),
        }
    }
}

/// The judgement.
///
/// A declared outcome is the receiver's own word and decides. Without it the status may be a proxy's: then 5xx means that
/// nobody knows, and what smells of a wrong URL or credential is tried slowly and seldom.
///
/// For a stage whose receiver moves the row on itself, the row has the first word ([`crate::guard::has_advanced`]): the judgement is that of a
/// row which is still the claim's.
pub fn judge(policy: &StagePolicy, attempt: Attempt, outcome: &Outcome) -> Verdict {
    match outcome {
        Outcome::NotSent(why) => Verdict::Defer {
            after: policy.backoff.jittered(attempt.not_sent_in_a_row.max(1), attempt.random),
            reason: why.as_str().to_owned(),
            counted: false,
        },
        Outcome::Lost(lost) => unknown(policy, attempt, None, lost_reason(*lost)),
        Outcome::Answered(answer) => {
            let verdict = match answer.declared {
                Some(declared) => declared_outcome(policy, attempt, answer, declared),
                None => bare_status(policy, attempt, answer),
            };
            naming_the_body(verdict, answer)
        }
    }
}

/// A row that rests says which answer put it there, so that it can be found at the receiver.
fn naming_the_body(verdict: Verdict, answer: &Answer) -> Verdict {
    let Some(hash) = answer.body_sha256 else { return verdict };
    let named = |reason: String| {
        let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{reason}, body sha256 {digits}")
    };
    match verdict {
        Verdict::Park { reason } => Verdict::Park { reason: named(reason) },
        Verdict::Unknown { reason } => Verdict::Unknown { reason: named(reason) },
        other => other,
    }
}

fn declared_outcome(policy: &StagePolicy, attempt: Attempt, answer: &Answer, declared: Declared) -> Verdict {
    match declared {
        Declared::Done | Declared::AlreadyDone => done(policy, answer),
        Declared::Accepted => Verdict::Park { reason: accepted_reason(answer.status) },
        Declared::InProgress => in_progress(policy, attempt, answer),
        Declared::Retry => not_processed(policy, attempt, answer),
        Declared::Permanent => Verdict::Park { reason: status_reason("PERMANENT", answer.status) },
        Declared::Stale => Verdict::Stale,
        Declared::Unknown => Verdict::Unknown { reason: status_reason("UNKNOWN: the receiver says so", answer.status) },
    }
}

fn bare_status(policy: &StagePolicy, attempt: Attempt, answer: &Answer) -> Verdict {
    let status = answer.status;
    match status {
        200 | 201 | 204 => done(policy, answer),
        202 => Verdict::Park { reason: accepted_reason(status) },
        300..=399 => {
            Verdict::Park { reason: status_reason("REDIRECTED: never followed, correct the stage's URL", status) }
        }
        409 => in_progress(policy, attempt, answer),
        408 | 425 | 429 => not_processed(policy, attempt, answer),
        413 | 414 | 431 => Verdict::Park { reason: status_reason("TOO_LARGE", status) },
        401 | 403 | 404 | 405 | 415 | 501 => suspect(policy, attempt, status),
        400..=499 => Verdict::Park { reason: status_reason("PERMANENT", status) },
        500..=599 => unknown(policy, attempt, answer.retry_after, status_reason("UNKNOWN", status)),
        _ => suspect(policy, attempt, status),
    }
}

/// The work is done; where the answer's way on cannot be followed, a person decides. A repeat under the same key gets the same
/// answer, so that nothing is done twice by a resume.
fn done(policy: &StagePolicy, answer: &Answer) -> Verdict {
    if policy.class == StageClass::SameTx {
        return Verdict::Park { reason: status_reason(NOT_ADVANCED, answer.status) };
    }
    let named = answer.next.as_deref();
    let word = match policy.choose(named) {
        Ok(next) => return Verdict::Done { next: next.clone() },
        Err(NextProblem::Missing) => {
            "NEXT_MISSING: the stage is done and has several ways on, and Postrider-Next names none".to_owned()
        }
        Err(NextProblem::Unknown) => {
            let shown: String = named.unwrap_or_default().chars().take(NEXT_CHARS_SHOWN).collect();
            format!(
                "NEXT_UNKNOWN: the stage is done, and Postrider-Next names \"{}\", which is no way on from it",
                shown.escape_debug()
            )
        }
    };
    Verdict::Park { reason: status_reason(&word, answer.status) }
}

/// An unknown outcome of a stage that makes repeats harmless is asked again under the same key; the last one stays unknown.
fn unknown(policy: &StagePolicy, attempt: Attempt, retry_after: Option<Duration>, reason: String) -> Verdict {
    if !repeats_are_harmless(policy.class) {
        return Verdict::Unknown { reason };
    }
    if attempt.number >= policy.attempt_limit {
        return Verdict::Unknown { reason: format!("AT_LIMIT: {reason}") };
    }
    Verdict::Retry { after: pause(policy.backoff, attempt.number, retry_after, attempt.random), reason }
}

fn repeats_are_harmless(class: StageClass) -> bool {
    match class {
        StageClass::Natural | StageClass::Keyed | StageClass::SameTx => true,
    }
}

fn in_progress(policy: &StagePolicy, attempt: Attempt, answer: &Answer) -> Verdict {
    let after = pause(IN_PROGRESS_BACKOFF, attempt.deferrals.saturating_add(1), answer.retry_after, attempt.random);
    defer(policy, attempt, after, status_reason("IN_PROGRESS", answer.status))
}

/// The receiver did not do the work. With `Retry-After` on 429 or 503 it asks for time, which costs no attempt.
fn not_processed(policy: &StagePolicy, attempt: Attempt, answer: &Answer) -> Verdict {
    let reason = status_reason("NOT_PROCESSED", answer.status);
    let after = pause(policy.backoff, attempt.number, answer.retry_after, attempt.random);
    if answer.retry_after.is_some() && matches!(answer.status, 429 | 503) {
        return defer(policy, attempt, after, reason);
    }
    retry(policy, attempt, after, reason)
}

/// The receiver did not do the work, and the attempt is used.
fn retry(policy: &StagePolicy, attempt: Attempt, after: Duration, reason: String) -> Verdict {
    if attempt.number >= policy.attempt_limit {
        return Verdict::Park { reason: format!("ATTEMPTS_USED_UP: {reason}") };
    }
    Verdict::Retry { after, reason }
}

fn defer(policy: &StagePolicy, attempt: Attempt, after: Duration, reason: String) -> Verdict {
    match policy.deferral_limit {
        Some(limit) if attempt.deferrals < limit => Verdict::Defer { after, reason, counted: true },
        Some(_) => Verdict::Park { reason: format!("DEFERRALS_USED_UP: {reason}") },
        None => retry(policy, attempt, after, reason),
    }
}

fn suspect(policy: &StagePolicy, attempt: Attempt, status: u16) -> Verdict {
    let reason = status_reason("SUSPECT_CONFIGURATION", status);
    if attempt.number >= policy.attempt_limit.min(SUSPECT_ATTEMPTS_MAX) {
        return Verdict::Park { reason };
    }
    Verdict::Retry { after: policy.backoff.max, reason }
}

/// The receiver's own wish, moved only upwards and by at most a fifth, so that a herd spreads; else the back-off.
fn pause(backoff: Backoff, n: u32, retry_after: Option<Duration>, random: u64) -> Duration {
    match retry_after {
        Some(wish) => wish.saturating_add(share(wish / 5, random)),
        None => backoff.jittered(n, random),
    }
}

fn status_reason(word: &str, status: u16) -> String {
    format!("{word} (HTTP {status})")
}

fn accepted_reason(status: u16) -> String {
    status_reason("ACCEPTED: the stage is not declared asynchronous", status)
}

fn lost_reason(lost: Lost) -> String {
    lost.as_str().to_owned()
}

#[cfg(test)]
mod tests;
