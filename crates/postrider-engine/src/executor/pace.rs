//! What: holds calls to the rates of their stages and endpoints, and to how many an endpoint takes at once.
//! Where: beside *claim* and *call*.
//! Takes and gives: for which stage a slot was taken and whether its call left; how many more may be claimed, and when the next.
//! Never: touches a row, or waits.

use super::state::State;
use crate::settings::WorkSettings;
use postrider_core::rate::Bucket;
use postrider_core::stage::{StagePolicy, Step};
use postrider_core::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The tokens of the stages and endpoints that have a rate.
#[derive(Debug, Default)]
pub(super) struct Pace {
    stages: BTreeMap<Step, Bucket>,
    endpoints: BTreeMap<Arc<str>, Bucket>,
}

impl Pace {
    pub(super) fn new(settings: &WorkSettings) -> Pace {
        let steps = settings.definitions.steps();
        let stages = steps.filter_map(|(step, stage)| Some((step, Bucket::new(stage.rate?))));
        let endpoints = settings.endpoints.iter();
        Pace {
            stages: stages.collect(),
            endpoints: endpoints
                .filter_map(|(endpoint, policy)| Some((endpoint.clone(), Bucket::new(policy.rate?))))
                .collect(),
        }
    }

    /// Nothing has a rate.
    fn is_free(&self) -> bool {
        self.stages.is_empty() && self.endpoints.is_empty()
    }

    fn of(&self, step: &Step, stage: &StagePolicy) -> impl Iterator<Item = &Bucket> {
        self.stages.get(step).into_iter().chain(self.endpoints.get(&stage.endpoint))
    }

    /// How long until each of a stage's buckets has one more. `None`: nothing to wait for.
    fn until_free(&self, step: &Step, stage: &StagePolicy, now: Timestamp) -> Option<Duration> {
        self.of(step, stage).filter_map(|bucket| bucket.until_free(now)).max()
    }
}

impl State {
    /// How many calls of the stage the rates, and its endpoint's concurrency, leave.
    pub(super) fn paced(&self, step: &Step, stage: &StagePolicy) -> u32 {
        let now = self.world.now();
        let free = self.pace.of(step, stage).map(|bucket| bucket.free(now)).min().unwrap_or(u32::MAX);
        let limit = self.settings.endpoints.get(&stage.endpoint).and_then(|policy| policy.concurrency);
        let Some(limit) = limit else { return free };
        let steps = self.settings.definitions.steps();
        let neighbours = steps.filter(|(_, other)| other.endpoint == stage.endpoint);
        let used = neighbours
            .filter_map(|(other, _)| self.in_use.get(&other))
            .fold(0, |sum: u32, used| sum.saturating_add(*used));
        free.min(limit.saturating_sub(used))
    }

    /// A slot was taken: its call will leave.
    pub(super) fn promise_call(&mut self, step: &Step) {
        self.each_bucket(step, |bucket, _| bucket.promise());
    }

    /// The slot is given back, and no call left.
    pub(super) fn withdraw_call(&mut self, step: &Step) {
        self.each_bucket(step, |bucket, _| bucket.withdraw());
    }

    /// The call leaves.
    pub(super) fn depart(&mut self, step: &Step) {
        self.each_bucket(step, Bucket::take);
    }

    /// How long until a stage that rows wait for may make one more call.
    pub(super) fn until_next_token(&self) -> Option<Duration> {
        let now = self.world.now();
        let policy = |step| self.settings.definitions.policy(step).ok();
        self.startable_steps().filter_map(|step| self.pace.until_free(step, policy(step)?, now)).min()
    }

    fn each_bucket(&mut self, step: &Step, mut change: impl FnMut(&mut Bucket, Timestamp)) {
        if self.pace.is_free() {
            return;
        }
        let now = self.world.now();
        let endpoint = self.endpoint_of(step);
        let endpoint = endpoint.and_then(|endpoint| self.pace.endpoints.get_mut(&endpoint));
        self.pace.stages.get_mut(step).into_iter().chain(endpoint).for_each(|bucket| change(bucket, now));
    }
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
