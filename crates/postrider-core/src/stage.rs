//! The definition of a workflow: its stages, and what each promises and is allowed.

use crate::work::StageName;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What the receiver does so that a repeated request is harmless. There is no default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageClass {
    /// The work has a natural key: doing it again finds it done.
    Natural,
    /// The receiver stores its answer under the idempotency key and replays it.
    Keyed,
}

/// Exponential back-off with full jitter: a random share of `first · 2^(n−1)`, at most `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub max: Duration,
}

/// One stage of a workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagePolicy {
    pub name: StageName,
    pub class: StageClass,
    /// Who is called, as `scheme://host:port`; stages of one endpoint share its circuit.
    pub endpoint: Arc<str>,
    /// The stage after this one; `None` ends the workflow.
    pub next: Option<StageName>,
    /// Requests that may be made for one row in this stage and epoch, deferrals apart.
    pub attempt_limit: u32,
    /// How often the endpoint may put one row off (429, 503 with Retry-After) without using an attempt.
    pub deferral_limit: u32,
    /// From the start of the request to the last byte of the answer.
    pub timeout: Duration,
    /// How long a claim is held before others may take it over; longer than `timeout`.
    pub lease: Duration,
    pub backoff: Backoff,
    /// Requests in flight at once, from one process.
    pub concurrency: u32,
    /// A request with a larger body does not leave: its row is parked.
    pub request_bytes_max: u64,
}

/// All stages, valid by construction: each `next` exists and no path comes back to where it was.
#[derive(Debug, Clone, Default)]
pub struct StageGraph {
    stages: BTreeMap<StageName, StagePolicy>,
}

/// Why a list of stages is no workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GraphProblem {
    Duplicate(StageName),
    NextMissing { stage: StageName, next: StageName },
    Cycle(StageName),
}

impl StageGraph {
    /// Checks the stages as a whole and returns every problem found.
    pub fn new(policies: Vec<StagePolicy>) -> Result<StageGraph, Vec<GraphProblem>> {
        let mut problems = Vec::new();
        let mut stages = BTreeMap::new();
        for policy in policies {
            let name = policy.name.clone();
            if stages.insert(name.clone(), policy).is_some() {
                problems.push(GraphProblem::Duplicate(name));
            }
        }
        let graph = StageGraph { stages };
        for policy in graph.stages.values() {
            match &policy.next {
                Some(next) if !graph.stages.contains_key(next) => {
                    problems.push(GraphProblem::NextMissing { stage: policy.name.clone(), next: next.clone() });
                }
                _ if graph.returns_to(&policy.name) => problems.push(GraphProblem::Cycle(policy.name.clone())),
                _ => {}
            }
        }
        if problems.is_empty() { Ok(graph) } else { Err(problems) }
    }

    pub fn stage(&self, name: &StageName) -> Option<&StagePolicy> {
        self.stages.get(name)
    }

    pub fn stages(&self) -> impl Iterator<Item = &StagePolicy> {
        self.stages.values()
    }

    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    fn returns_to(&self, start: &StageName) -> bool {
        let next_of = |name: &StageName| self.stages.get(name).and_then(|policy| policy.next.as_ref());
        let mut at = next_of(start);
        for _ in 0..self.stages.len() {
            match at {
                Some(name) if name == start => return true,
                Some(name) => at = next_of(name),
                None => return false,
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str, next: Option<&str>) -> StagePolicy {
        StagePolicy {
            name: StageName::new(name),
            class: StageClass::Keyed,
            endpoint: "http://core".into(),
            next: next.map(StageName::new),
            attempt_limit: 5,
            deferral_limit: 100,
            timeout: Duration::from_secs(30),
            lease: Duration::from_secs(60),
            backoff: Backoff { first: Duration::from_secs(1), max: Duration::from_secs(300) },
            concurrency: 64,
            request_bytes_max: 1 << 20,
        }
    }

    #[test]
    fn a_linear_workflow_is_accepted() {
        assert!(StageGraph::new(vec![policy("A", Some("B")), policy("B", None)]).is_ok());
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let problems = StageGraph::new(vec![
            policy("A", Some("X")),
            policy("B", Some("C")),
            policy("C", Some("B")),
            policy("D", None),
            policy("D", None),
        ])
        .expect_err("four problems");
        let name = StageName::new;
        assert_eq!(
            problems,
            [
                GraphProblem::Duplicate(name("D")),
                GraphProblem::NextMissing { stage: name("A"), next: name("X") },
                GraphProblem::Cycle(name("B")),
                GraphProblem::Cycle(name("C")),
            ]
        );
    }

    #[test]
    fn a_stage_that_leads_into_a_cycle_is_not_blamed_for_it() {
        let problems = StageGraph::new(vec![policy("A", Some("B")), policy("B", Some("B"))]).expect_err("a cycle");
        assert_eq!(problems, [GraphProblem::Cycle(StageName::new("B"))]);
    }
}
