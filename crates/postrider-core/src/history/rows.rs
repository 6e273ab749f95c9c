//! I1, I2 (rows), I3, I4 and I7: what happened to each row.

use super::{Cause, Invariant, Record, Rules, Violation, WorkStep, name, report};
use crate::ports::Transition;
use crate::work::{OwnerId, StageName, WorkKey};
use std::collections::BTreeMap;

/// What the records say of all rows so far.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    /// Place in the order, and attempt limit.
    stages: BTreeMap<&'a StageName, (usize, u32)>,
    rows: BTreeMap<&'a WorkKey, Row<'a>>,
    steps: BTreeMap<WorkStep, Step>,
}

#[derive(Debug, Default)]
struct Row<'a> {
    submitted: bool,
    /// Terminal, or parked with a reason.
    at_rest: bool,
    fence: Option<i64>,
    /// Who claimed the newest fence and has not written its outcome yet.
    holder: Option<OwnerId>,
    stage: Option<&'a StageName>,
    epoch: u32,
}

#[derive(Debug, Default)]
struct Step {
    requests: u32,
    deferrals: u32,
    resumes: u32,
    effects: u32,
}

impl<'a> Rows<'a> {
    pub(super) fn new(rules: &'a Rules) -> Rows<'a> {
        let stages =
            rules.stages.iter().enumerate().map(|(place, rule)| (&rule.name, (place, rule.attempt_limit))).collect();
        Rows { stages, rows: BTreeMap::new(), steps: BTreeMap::new() }
    }

    pub(super) fn take(&mut self, record: &'a Record, found: &mut Vec<Violation>) {
        match record {
            Record::Submitted { key, stage } => {
                let row = self.rows.entry(key).or_default();
                row.submitted = true;
                row.fence = Some(row.fence.unwrap_or_default());
                row.stage = Some(stage);
            }
            Record::ClaimWritten { key, epoch, fence, owner, .. } => {
                let row = self.raise(key, *fence, found);
                row.holder = Some(*owner);
                row.epoch = *epoch;
                row.at_rest = false;
            }
            Record::FenceRaised { key, fence } => self.raise(key, *fence, found).holder = None,
            Record::Resumed { key, fence } => {
                let row = self.raise(key, *fence, found);
                (row.holder, row.at_rest) = (None, false);
                if let Some(work) =
                    row.stage.map(|stage| WorkStep { key: key.clone(), stage: stage.clone(), epoch: row.epoch })
                {
                    self.step(&work).resumes += 1;
                }
            }
            Record::CheckpointWritten { key, stage, fence, owner, transition } => {
                self.checkpoint(key, *fence, *owner, found);
                if matches!(transition, Transition::Defer { counted: true, .. }) {
                    let epoch = self.rows.entry(key).or_default().epoch;
                    self.step(&WorkStep { key: key.clone(), stage: stage.clone(), epoch }).deferrals += 1;
                }
            }
            Record::StageEntered { key, stage, cause } => self.enter(key, stage, *cause, found),
            Record::Parked { key, reason } => self.rows.entry(key).or_default().at_rest = !reason.is_empty(),
            Record::Closed { key } => self.rows.entry(key).or_default().at_rest = true,
            Record::RequestReceived { work, .. } => self.request(work, found),
            Record::EffectCommitted { work } => {
                let step = self.step(work);
                step.effects += 1;
                if step.effects > 1 {
                    let (row, stage, epoch) = (name(&work.key), &work.stage, work.epoch);
                    report(
                        found,
                        Invariant::I1,
                        format!("stage {stage} of row {row} took effect again in epoch {epoch}"),
                    );
                }
            }
            _ => {}
        }
    }

    /// Everything has come to rest: what has not is lost.
    pub(super) fn end(&self, found: &mut Vec<Violation>) {
        for (key, row) in &self.rows {
            if row.submitted && !row.at_rest {
                report(found, Invariant::I2, format!("row {} is neither terminal nor parked with a reason", name(key)));
            }
        }
    }

    fn raise(&mut self, key: &'a WorkKey, fence: i64, found: &mut Vec<Violation>) -> &mut Row<'a> {
        let row = self.rows.entry(key).or_default();
        if row.fence.is_some_and(|held| fence <= held) {
            let held = row.fence.unwrap_or_default();
            report(found, Invariant::I3, format!("row {} got fence {fence} after {held}", name(key)));
        }
        row.fence = Some(fence);
        row
    }

    fn checkpoint(&mut self, key: &'a WorkKey, fence: i64, owner: OwnerId, found: &mut Vec<Violation>) {
        let row = self.rows.entry(key).or_default();
        if row.fence != Some(fence) || row.holder != Some(owner) {
            let row = name(key);
            report(found, Invariant::I3, format!("row {row} was written under fence {fence} by who does not hold it"));
        }
        row.holder = None;
    }

    fn enter(&mut self, key: &'a WorkKey, stage: &'a StageName, cause: Cause, found: &mut Vec<Violation>) {
        let place = |stage: &StageName| self.stages.get(stage).map(|(place, _)| *place);
        let to = place(stage);
        let from = self.rows.get(key).and_then(|row| row.stage).and_then(place);
        if cause == Cause::Success && to <= from {
            report(
                found,
                Invariant::I4,
                format!("row {} came into stage {stage} from a later one or itself", name(key)),
            );
        }
        self.rows.entry(key).or_default().stage = Some(stage);
    }

    fn request(&mut self, work: &WorkStep, found: &mut Vec<Violation>) {
        let limit = self.stages.get(&work.stage).map_or(0, |(_, limit)| *limit);
        let step = self.step(work);
        step.requests += 1;
        let budgets = step.resumes.saturating_add(1);
        if step.requests > limit.saturating_mul(budgets).saturating_add(step.deferrals) {
            let (requests, deferrals) = (step.requests, step.deferrals);
            let (row, stage) = (name(&work.key), &work.stage);
            report(
                found,
                Invariant::I7,
                format!(
                    "stage {stage} of row {row} got request {requests} at limit {limit}, {budgets} budgets and {deferrals} deferrals"
                ),
            );
        }
    }

    fn step(&mut self, work: &WorkStep) -> &mut Step {
        if !self.steps.contains_key(work) {
            self.steps.insert(work.clone(), Step::default());
        }
        self.steps.get_mut(work).expect("a step that was just put there")
    }
}
