//! What: keeps calls away from an endpoint that fails, and lets them come back a few at a time.
//! Where: beside *claim* and *judge*.
//! Takes and gives: the ends of calls; when a circuit opens and closes.
//! Never: touches a row: those of an endpoint that is not called wait where they are, in memory.

use super::state::{CallTicket, State};
use crate::telemetry::{EndpointLabel, OpenCircuit};
use postrider_core::breaker::{Breaker, Change, Evidence};
use postrider_core::outcome::Outcome;
use std::sync::Arc;
use std::time::Duration;

impl State {
    /// Takes in what the end of a call says of its endpoint.
    pub(super) fn note_evidence(&mut self, ticket: &CallTicket, outcome: &Outcome) {
        let Some(endpoint) = self.endpoint_of(&ticket.step) else { return };
        let settings = self.limits.breaker;
        let circuit = self.circuits.entry(endpoint.clone()).or_insert_with(|| Breaker::new(settings));
        match circuit.note(ticket.era, Evidence::of(outcome), self.world.now(), self.world.random()) {
            Some(Change::Opened { until }) => {
                self.tries.insert(endpoint.clone(), 0);
                let since = self.world.now();
                let pause = until.since(since);
                self.telemetry.update(|status| {
                    let open = status.circuits.entry(endpoint.to_string());
                    open.or_insert(OpenCircuit { since, tries_at: until }).tries_at = until;
                });
                self.show_circuit(&endpoint, 1);
                tracing::warn!(
                    %endpoint,
                    ?pause,
                    "an endpoint is not called any more, since its calls fail one after the other; its rows wait unclaimed, and one call tries it after this pause; start the service, or correct the url of its stages"
                );
            }
            Some(Change::Closed) => {
                self.telemetry.update(|status| {
                    status.circuits.remove(&*endpoint);
                });
                self.show_circuit(&endpoint, 0);
                tracing::info!(%endpoint, "an endpoint is called as before");
            }
            None => {}
        }
    }

    /// How long until an endpoint that rows wait for may be tried again.
    pub(super) fn until_next_try(&self) -> Option<Duration> {
        let waiting = self.startable_steps().filter_map(|step| self.settings.definitions.policy(step).ok());
        let tries = waiting.filter_map(|stage| self.circuits.get(&stage.endpoint)?.tries_at());
        // One whose time has come waits for its call to end, not for the clock.
        let now = self.world.now();
        tries.filter(|at| *at > now).map(|at| at.since(now)).min()
    }

    fn show_circuit(&self, endpoint: &Arc<str>, open: i64) {
        let label = EndpointLabel { endpoint: endpoint.to_string() };
        self.telemetry.circuits_open.get_or_create(&label).set(open);
    }
}
