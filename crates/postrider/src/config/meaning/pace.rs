//! The meaning of rates: how often a stage is called, and what an endpoint takes over all its stages.

use crate::config::meaning::{Reader, reason};
use crate::config::place::At;
use crate::config::quantity::Frequency;
use crate::config::table::suggest;
use crate::config::typed;
use postrider_core::rate::Rate;
use postrider_delivery::Endpoint;
use postrider_engine::EndpointPolicy;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What may leave at once, where nothing is typed: so much as the rate gives in this time.
const BURST_SPAN: Duration = Duration::from_millis(100);

impl Reader<'_> {
    pub(super) fn rate(&mut self, rate: Option<At<Frequency>>, burst: Option<At<u32>>, path: &str) -> Option<Rate> {
        let Some(At { value: Frequency { calls, per }, place }) = rate else {
            if let Some(burst) = burst.filter(|_| !self.problems.is_mistyped(&format!("{path}.rate"))) {
                self.problems.report(burst.place, format!("`{path}.burst` goes with `{path}.rate`, which is missing"));
            }
            return None;
        };
        if calls == 0 {
            self.problems.report(place, format!("`{path}.rate` is 0, expected at least 1"));
            return None;
        }
        let gives = u128::from(calls).saturating_mul(BURST_SPAN.as_micros()) / per.as_micros().max(1);
        let burst = self.count(burst, &format!("{path}.burst"), u32::try_from(gives).unwrap_or(u32::MAX).max(1));
        Some(Rate { calls, per, burst })
    }

    /// By origin. `known`: those of the stages; `None` where not all of them could be read.
    pub(super) fn endpoint_policies(
        &mut self,
        typed: Option<At<Vec<At<typed::WorkEndpoint>>>>,
        known: Option<&[&str]>,
    ) -> BTreeMap<Arc<str>, EndpointPolicy> {
        const PATH: &str = "work.endpoint";
        let mut policies = BTreeMap::new();
        for At { value: endpoint, place } in typed.map(|typed| typed.value).unwrap_or_default() {
            let rate = self.rate(endpoint.rate, endpoint.burst, PATH);
            let concurrency = endpoint.concurrency.map(|limit| self.count(Some(limit), "work.endpoint.concurrency", 1));
            if rate.is_none() && concurrency.is_none() {
                self.problems.report_with_hint(
                    place,
                    "`work.endpoint` limits nothing",
                    "add `concurrency` or `rate`, or take the table out",
                );
            }
            let Some(url) = self.name(endpoint.url, place, "work.endpoint.url") else { continue };
            let origin = match Endpoint::parse(&url.value) {
                Ok(endpoint) => endpoint.origin().to_owned(),
                Err(error) => {
                    let message = format!("`work.endpoint.url` is no URL of an endpoint: {}", reason(&error));
                    self.problems.report(url.place, message);
                    continue;
                }
            };
            if let Some(known) = known.filter(|known| !known.contains(&origin.as_str())) {
                let message = format!("`work.endpoint.url` is not where a stage is: {origin}");
                self.problems.report_with_hint(url.place, message, suggest(&origin, known));
            }
            if policies.insert(origin.as_str().into(), EndpointPolicy { concurrency, rate }).is_some() {
                self.problems.report(url.place, format!("`work.endpoint.url` {origin} stands here twice"));
            }
        }
        policies
    }
}
