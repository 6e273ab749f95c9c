//! What: holds calls to the rates of their stages and endpoints, and to how many an endpoint takes at once.
//! Where: beside *claim* and *call*.
//! Takes and gives: for which stage a slot was taken and whether its call left; how many more may be claimed, and when the next.
//! Never: touches a row, or waits.

use super::state::State;
use crate::settings::WorkSettings;
use postrider_core::rate::Bucket;
use postrider_core::stage::StagePolicy;
use postrider_core::time::Timestamp;
use postrider_core::work::StageName;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The tokens of the stages and endpoints that have a rate.
#[derive(Debug, Default)]
pub(super) struct Pace {
    stages: BTreeMap<StageName, Bucket>,
    endpoints: BTreeMap<Arc<str>, Bucket>,
}

impl Pace {
    pub(super) fn new(settings: &WorkSettings) -> Pace {
        let stages = settings.graph.stages().filter_map(|stage| Some((stage.name.clone(), Bucket::new(stage.rate?))));
        let endpoints = settings.endpoints.iter();
        Pace {
            stages: stages.collect(),
            endpoints: endpoints
                .filter_map(|(endpoint, policy)| Some((endpoint.clone(), Bucket::new(policy.rate?))))
                .collect(),
        }
    }

    fn of(&self, stage: &StagePolicy) -> impl Iterator<Item = &Bucket> {
        self.stages.get(&stage.name).into_iter().chain(self.endpoints.get(&stage.endpoint))
    }

    /// How long until each of a stage's buckets has one more. `None`: nothing to wait for.
    fn until_free(&self, stage: &StagePolicy, now: Timestamp) -> Option<Duration> {
        self.of(stage).filter_map(|bucket| bucket.until_free(now)).max()
    }
}

impl State {
    /// How many calls of the stage the rates, and its endpoint's concurrency, leave.
    pub(super) fn paced(&self, stage: &StagePolicy) -> u32 {
        let now = self.world.now();
        let free = self.pace.of(stage).map(|bucket| bucket.free(now)).min().unwrap_or(u32::MAX);
        let limit = self.settings.endpoints.get(&stage.endpoint).and_then(|policy| policy.concurrency);
        let Some(limit) = limit else { return free };
        let neighbours = self.settings.graph.stages().filter(|other| other.endpoint == stage.endpoint);
        let used = neighbours
            .filter_map(|other| self.in_use.get(&other.name))
            .fold(0, |sum: u32, used| sum.saturating_add(*used));
        free.min(limit.saturating_sub(used))
    }

    /// A slot was taken: its call will leave.
    pub(super) fn promise_call(&mut self, stage: &StageName) {
        self.each_bucket(stage, |bucket, _| bucket.promise());
    }

    /// The slot is given back, and no call left.
    pub(super) fn withdraw_call(&mut self, stage: &StageName) {
        self.each_bucket(stage, |bucket, _| bucket.withdraw());
    }

    /// The call leaves.
    pub(super) fn depart(&mut self, stage: &StageName) {
        self.each_bucket(stage, Bucket::take);
    }

    /// How long until a stage that rows wait for may make one more call.
    pub(super) fn until_next_token(&self) -> Option<Duration> {
        let now = self.world.now();
        let waiting = self.settings.graph.stages().filter(|stage| self.rows.has_due(&stage.name));
        waiting.filter_map(|stage| self.pace.until_free(stage, now)).min()
    }

    fn each_bucket(&mut self, stage: &StageName, mut change: impl FnMut(&mut Bucket, Timestamp)) {
        let now = self.world.now();
        let endpoint = self.endpoint_of(stage);
        let endpoint = endpoint.and_then(|endpoint| self.pace.endpoints.get_mut(&endpoint));
        self.pace.stages.get_mut(stage).into_iter().chain(endpoint).for_each(|bucket| change(bucket, now));
    }
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
