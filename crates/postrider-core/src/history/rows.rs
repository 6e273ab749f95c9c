//! I1, I2 (rows), I3, I4 and I7: what happened to each row.

use super::{Cause, Invariant, Record, Rules, Violation, WorkStep, name, violation};
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
    /// Where it was submitted.
    submitted: Option<usize>,
    /// Terminal, or parked with a reason.
    at_rest: bool,
    /// The newest fence, and where it was written.
    fence: Option<(i64, usize)>,
    /// Who claimed the newest fence and has not written its outcome yet.
    holder: Option<OwnerId>,
    /// With where the row came into it.
    stage: Option<(&'a StageName, usize)>,
    epoch: u32,
}

#[derive(Debug, Default)]
struct Step {
    requests: u32,
    deferrals: u32,
    resumes: u32,
    /// Where the first effect was.
    effect: Option<usize>,
}

impl<'a> Rows<'a> {
    pub(super) fn new(rules: &'a Rules) -> Rows<'a> {
        let stages =
            rules.stages.iter().enumerate().map(|(place, rule)| (&rule.name, (place, rule.attempt_limit))).collect();
        Rows { stages, rows: BTreeMap::new(), steps: BTreeMap::new() }
    }

    pub(super) fn take(&mut self, at: usize, record: &'a Record, found: &mut Vec<Violation>) {
        match record {
            Record::Submitted { key, stage } => {
                let row = self.rows.entry(key).or_default();
                row.submitted = Some(at);
                row.fence = row.fence.or(Some((0, at)));
                row.stage = Some((stage, at));
            }
            Record::ClaimWritten { key, epoch, fence, owner, .. } => {
                let row = self.raise(at, key, *fence, found);
                row.holder = Some(*owner);
                row.epoch = *epoch;
                row.at_rest = false;
            }
            Record::FenceRaised { key, fence } => self.raise(at, key, *fence, found).holder = None,
            Record::Resumed { key, fence } => self.resume(at, key, *fence, found),
            Record::CheckpointWritten { key, stage, fence, owner, deferred } => {
                self.checkpoint(at, key, (*fence, *owner), found);
                if *deferred {
                    let epoch = self.rows.entry(key).or_default().epoch;
                    self.step(&WorkStep { key: key.clone(), stage: stage.clone(), epoch }).deferrals += 1;
                }
            }
            Record::StageEntered { key, stage, cause } => self.enter(at, key, (stage, *cause), found),
            Record::Parked { key, reason } => self.rows.entry(key).or_default().at_rest = !reason.is_empty(),
            Record::Closed { key } => self.rows.entry(key).or_default().at_rest = true,
            Record::RequestReceived { work, .. } => self.request(at, work, found),
            Record::EffectCommitted { work } => self.effect(at, work, found),
            _ => {}
        }
    }

    /// Everything has come to rest: what has not is lost.
    pub(super) fn end(&self, found: &mut Vec<Violation>) {
        for (key, row) in &self.rows {
            if let Some(at) = row.submitted.filter(|_| !row.at_rest) {
                let row = name(key);
                let sentence = format!("row {row} is neither terminal nor parked with a reason");
                found.push(violation(Invariant::I2, &row, sentence, &[at]));
            }
        }
    }

    fn raise(&mut self, at: usize, key: &'a WorkKey, fence: i64, found: &mut Vec<Violation>) -> &mut Row<'a> {
        let row = self.rows.entry(key).or_default();
        if let Some((held, before)) = row.fence.filter(|(held, _)| fence <= *held) {
            let name = name(key);
            let sentence = format!("row {name} got fence {fence} after {held}");
            found.push(violation(Invariant::I3, &name, sentence, &[before, at]));
        }
        row.fence = Some((fence, at));
        row
    }

    fn resume(&mut self, at: usize, key: &'a WorkKey, fence: i64, found: &mut Vec<Violation>) {
        let row = self.raise(at, key, fence, found);
        (row.holder, row.at_rest) = (None, false);
        let (stage, epoch) = (row.stage, row.epoch);
        if let Some((stage, _)) = stage {
            self.step(&WorkStep { key: key.clone(), stage: stage.clone(), epoch }).resumes += 1;
        }
    }

    fn checkpoint(&mut self, at: usize, key: &'a WorkKey, who: (i64, OwnerId), found: &mut Vec<Violation>) {
        let row = self.rows.entry(key).or_default();
        let (fence, owner) = who;
        if row.fence.map(|(held, _)| held) != Some(fence) || row.holder != Some(owner) {
            let name = name(key);
            let sentence = format!("row {name} was written under fence {fence} by who does not hold it");
            let records: Vec<usize> = row.fence.map(|(_, before)| before).into_iter().chain([at]).collect();
            found.push(violation(Invariant::I3, &name, sentence, &records));
        }
        row.holder = None;
    }

    fn enter(&mut self, at: usize, key: &'a WorkKey, to: (&'a StageName, Cause), found: &mut Vec<Violation>) {
        let place = |stage: &StageName| self.stages.get(stage).map(|(place, _)| *place);
        let (stage, cause) = to;
        let from = self.rows.get(key).and_then(|row| row.stage);
        if cause == Cause::Success && place(stage) <= from.and_then(|(stage, _)| place(stage)) {
            let name = name(key);
            let sentence = format!("row {name} came into stage {stage} from a later one or itself");
            let records: Vec<usize> = from.map(|(_, before)| before).into_iter().chain([at]).collect();
            found.push(violation(Invariant::I4, &name, sentence, &records));
        }
        self.rows.entry(key).or_default().stage = Some((stage, at));
    }

    fn request(&mut self, at: usize, work: &WorkStep, found: &mut Vec<Violation>) {
        let limit = self.stages.get(&work.stage).map_or(0, |(_, limit)| *limit);
        let step = self.step(work);
        step.requests = step.requests.saturating_add(1);
        let budgets = step.resumes.saturating_add(1);
        let (requests, deferrals) = (step.requests, step.deferrals);
        if requests > limit.saturating_mul(budgets).saturating_add(deferrals) {
            let (row, stage) = (name(&work.key), &work.stage);
            let allowed = format!("limit {limit}, {budgets} budgets and {deferrals} deferrals");
            let sentence = format!("stage {stage} of row {row} got request {requests} at {allowed}");
            found.push(violation(Invariant::I7, &row, sentence, &[at]));
        }
    }

    fn effect(&mut self, at: usize, work: &WorkStep, found: &mut Vec<Violation>) {
        let before = *self.step(work).effect.get_or_insert(at);
        if before != at {
            let (row, stage, epoch) = (name(&work.key), &work.stage, work.epoch);
            let sentence = format!("stage {stage} of row {row} took effect again in epoch {epoch}");
            found.push(violation(Invariant::I1, &row, sentence, &[before, at]));
        }
    }

    fn step(&mut self, work: &WorkStep) -> &mut Step {
        if !self.steps.contains_key(work) {
            self.steps.insert(work.clone(), Step::default());
        }
        self.steps.get_mut(work).expect("a step that was just put there")
    }
}
