//! What: takes in the end of a stage call and says what becomes of the row.
//! Where: after *call*, before *checkpoint*.
//! Takes and gives: the call's ticket and its outcome; the row waits for its checkpoint.
//! Never: writes, or starts the same key again.

use super::rows::{Doubt, Ending};
use super::state::{CallTicket, State};
use crate::telemetry::{BadEnd, StageHarm, StageLabel, VerdictLabel};
use postrider_core::judge::{Attempt, Verdict, judge};
use postrider_core::outcome::Outcome;
use postrider_core::stage::StageClass;
use postrider_core::trace::TraceId;
use postrider_core::work::StageName;

impl State {
    /// A call ended.
    pub(crate) fn called(&mut self, ticket: &CallTicket, outcome: &Outcome) {
        self.release_slot(&ticket.step, &ticket.key, ticket.era);
        self.note_evidence(ticket, outcome);
        let not_sent = self.not_sent.entry(ticket.step.clone()).or_default();
        *not_sent = if matches!(outcome, Outcome::NotSent(_)) { not_sent.saturating_add(1) } else { 0 };
        if matches!(outcome, Outcome::Answered(answer) if answer.replayed) {
            let label = StageLabel { stage: ticket.step.stage.to_string() };
            self.telemetry.answers_replayed.get_or_create(&label).inc();
        }
        let attempt = Attempt {
            number: ticket.attempt,
            deferrals: ticket.deferrals,
            not_sent_in_a_row: *not_sent,
            random: self.world.random(),
        };
        let Ok(policy) = self.settings.definitions.policy(&ticket.step) else { return };
        if !self.is_held(ticket) {
            tracing::debug!(stage = %ticket.step.stage, fence = ticket.fence, "a call ended whose row had gone on already");
            return;
        }
        if let Some(row) = self.rows.row_mut(&ticket.key) {
            row.status = outcome.status();
        }
        let verdict = judge(policy, attempt, outcome);
        if policy.class == StageClass::SameTx && !matches!(outcome, Outcome::NotSent(_)) {
            return self.doubt(&ticket.key, Doubt::Call(Box::new((ticket.clone(), verdict))));
        }
        self.conclude(ticket, verdict);
    }

    /// What a call came to is counted, and waits for its checkpoint.
    pub(super) fn conclude(&mut self, ticket: &CallTicket, verdict: Verdict) {
        let Ok(policy) = self.settings.definitions.policy(&ticket.step) else { return };
        let label = VerdictLabel { stage: ticket.step.stage.to_string(), verdict: verdict.as_str() };
        self.telemetry.verdicts.get_or_create(&label).inc();
        self.log(ticket, &verdict);
        self.count(&ticket.step.stage, policy.class, &verdict);
        match verdict {
            Verdict::Done { next } => self.settle(&ticket.key, Ending::Done(next)),
            Verdict::Stale => self.doubt(&ticket.key, Doubt::Stale),
            other => {
                if let Some(transition) = other.into_transition() {
                    self.settle(&ticket.key, Ending::Other(transition));
                }
            }
        }
    }

    /// Counts the end of a call for who asks how the stage is.
    fn count(&self, stage: &StageName, class: StageClass, verdict: &Verdict) {
        let at = self.world.now();
        let (harm, reason) = match verdict {
            Verdict::Done { .. } => {
                return self.telemetry.update_stage(stage.as_str(), class, |calls| calls.note_good(at));
            }
            Verdict::Stale => return,
            Verdict::Defer { reason, counted: false, .. } => (StageHarm::Waiting, reason),
            Verdict::Defer { reason, counted: true, .. } => (StageHarm::Deferring, reason),
            Verdict::Retry { reason, .. } => (StageHarm::Retrying, reason),
            Verdict::Park { reason } => (StageHarm::Parking, reason),
            Verdict::Unknown { reason } => (StageHarm::Unknown, reason),
        };
        let end = BadEnd { harm, reason: reason.clone(), at };
        self.telemetry.update_stage(stage.as_str(), class, |calls| calls.note_bad(end));
    }

    fn log(&self, ticket: &CallTicket, verdict: &Verdict) {
        if matches!(verdict, Verdict::Done { .. }) {
            return;
        }
        let (stage, attempt, fence, trace) =
            (&ticket.step.stage, ticket.attempt, ticket.fence, TraceId::of(&ticket.key));
        match verdict {
            Verdict::Done { .. } => {}
            Verdict::Defer { reason, counted: false, .. } if self.not_sent.get(&ticket.step) == Some(&1) => {
                tracing::warn!(%stage, reason, "a stage's endpoint cannot be reached; its rows wait and use no attempt; check the stage's url and the service behind it");
            }
            Verdict::Retry { after, reason } | Verdict::Defer { after, reason, .. } => {
                tracing::info!(%stage, %trace, attempt, fence, ?after, reason, "a stage call is tried again");
            }
            Verdict::Park { reason } | Verdict::Unknown { reason } => {
                tracing::warn!(%stage, %trace, attempt, fence, reason, "a stage call needs a person");
            }
            Verdict::Stale => tracing::warn!(%stage, %trace, attempt, fence, "a receiver says that our fence is old"),
        }
    }
}
