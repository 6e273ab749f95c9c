//! The definition of a workflow: its stages, and what each promises and is allowed.

use crate::rate::Rate;
use crate::work::{DefinitionName, StageName};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What the receiver does so that a repeated request is harmless. There is no default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageClass {
    /// The work has a natural key: doing it again finds it done.
    Natural,
    /// The receiver stores its answer under the idempotency key and replays it.
    Keyed,
    /// The receiver moves the row on itself, in the transaction of its work: a request that comes late finds the fence raised, and its work
    /// is rolled back.
    SameTx,
}

/// Exponential back-off. Who spreads it takes a random share of each pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub max: Duration,
}

impl Backoff {
    /// The pause after the `n`th failure in a row: `first · 2^(n−1)`, at most `max`; none after none.
    pub fn pause(self, n: u32) -> Duration {
        let Some(doublings) = n.checked_sub(1) else { return Duration::ZERO };
        let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.max)
    }

    /// Full jitter: a random share of the pause.
    pub fn jittered(self, n: u32, random: u64) -> Duration {
        share(self.pause(n), random)
    }

    /// Half of the pause for certain, the other half by chance: for who must not come back at once.
    pub fn spread(self, n: u32, random: u64) -> Duration {
        let half = self.pause(n) / 2;
        half.saturating_add(share(half, random))
    }
}

/// A random share of a span: `random / 2^64` of it, to the microsecond.
pub(crate) fn share(span: Duration, random: u64) -> Duration {
    let micros = span.as_micros().saturating_mul(u128::from(random)) >> 64;
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

/// The word that names the workflow's end where stages are named; no stage can have it as its name.
pub const END: &str = "DONE";

/// Where a workflow goes from a stage.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Next {
    Stage(StageName),
    /// The workflow ends here.
    End,
}

/// Why an answer's choice of the next stage cannot be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextProblem {
    /// There are several ways on, and the answer names none.
    Missing,
    /// The answer names what is no way on from this stage.
    Unknown,
}

/// One stage of a workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagePolicy {
    pub name: StageName,
    pub class: StageClass,
    /// Who is called, as `scheme://host:port`; stages of one endpoint share its circuit.
    pub endpoint: Arc<str>,
    /// The ways on after a success, at least one. Of several, the answer names which.
    pub next: Vec<Next>,
    /// Requests that may be made for one row in this stage and epoch, deferrals apart.
    pub attempt_limit: u32,
    /// How often the endpoint may put one row off (429, 503 with Retry-After) without using an attempt. `None`: the table does not count
    /// that, and each time uses one.
    pub deferral_limit: Option<u32>,
    /// From the start of the request to the last byte of the answer.
    pub timeout: Duration,
    /// How long a claim is held before others may take it over; longer than `timeout`.
    pub lease: Duration,
    pub backoff: Backoff,
    /// Requests in flight at once, from one process.
    pub concurrency: u32,
    /// How often calls may leave, from one process; `None`: as often as there is something to do.
    pub rate: Option<Rate>,
    /// One row of a group at a time, in one process.
    pub serial: bool,
    /// Among stages with due rows, one with a higher priority gets what there is first.
    pub priority: u32,
    /// Somebody else works on the stage: none of its rows is claimed here, nor taken over.
    pub by_others: bool,
    /// A request with a larger body does not leave: its row is parked.
    pub request_bytes_max: u64,
}

/// All stages, valid by construction: each `next` exists and no path comes back to where it was, since a stage that is come to again
/// would be asked under the key that was answered already.
#[derive(Debug, Clone, Default)]
pub struct StageGraph {
    stages: BTreeMap<StageName, StagePolicy>,
}

/// A stage of one definition: where a row is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Step {
    pub definition: DefinitionName,
    pub stage: StageName,
}

impl Step {
    pub fn new(definition: &str, stage: &str) -> Step {
        Step { definition: DefinitionName::new(definition), stage: StageName::new(stage) }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.stage, self.definition)
    }
}

/// All definitions that rows may be under: the current one, and earlier ones.
#[derive(Debug, Clone)]
pub struct Definitions {
    current: DefinitionName,
    graphs: BTreeMap<DefinitionName, StageGraph>,
}

/// What the configuration lacks of a row's step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gone {
    /// It has no such definition.
    Version,
    /// The definition has no such stage.
    Stage,
}

impl Gone {
    /// The word that the reason begins with.
    pub fn as_str(self) -> &'static str {
        match self {
            Gone::Version => "VERSION_GONE",
            Gone::Stage => "STAGE_GONE",
        }
    }

    /// Why a row of this step is parked.
    pub fn reason(self, step: &Step) -> String {
        let (definition, stage) = (step.definition.as_str().escape_debug(), step.stage.as_str().escape_debug());
        let lacking = match self {
            Gone::Version => format!("no definition \"{definition}\""),
            Gone::Stage => format!("no stage \"{stage}\" in the definition \"{definition}\""),
        };
        format!("{}: the configuration has {lacking}", self.as_str())
    }
}

impl Definitions {
    /// With the one definition that rows without one get at their first claim.
    pub fn new(current: DefinitionName, graph: StageGraph) -> Definitions {
        Definitions { current: current.clone(), graphs: BTreeMap::from([(current, graph)]) }
    }

    /// With a further definition, that rows may still be under.
    #[must_use]
    pub fn with_earlier(mut self, name: DefinitionName, graph: StageGraph) -> Definitions {
        self.graphs.insert(name, graph);
        self
    }

    pub fn current(&self) -> &DefinitionName {
        &self.current
    }

    /// The step of a row that says so. Where it is a known one, its names are shared, so that they are in memory once.
    pub fn step(&self, definition: Option<&DefinitionName>, stage: &StageName) -> Step {
        let asked = definition.unwrap_or(&self.current);
        let known = self.graphs.get_key_value(asked);
        let stage = known.and_then(|(_, graph)| graph.stages.get_key_value(stage)).map_or(stage, |(known, _)| known);
        Step { definition: known.map_or(asked, |(known, _)| known).clone(), stage: stage.clone() }
    }

    pub fn policy(&self, step: &Step) -> Result<&StagePolicy, Gone> {
        let graph = self.graphs.get(&step.definition).ok_or(Gone::Version)?;
        graph.stage(&step.stage).ok_or(Gone::Stage)
    }

    /// Every step there is.
    pub fn steps(&self) -> impl Iterator<Item = (Step, &StagePolicy)> {
        self.graphs.iter().flat_map(|(definition, graph)| {
            let step = |stage: &StageName| Step { definition: definition.clone(), stage: stage.clone() };
            graph.stages().map(move |policy| (step(&policy.name), policy))
        })
    }

    /// Every definition with its stages.
    pub fn graphs(&self) -> impl Iterator<Item = (&DefinitionName, &StageGraph)> {
        self.graphs.iter()
    }
}

/// Why a list of stages is no workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GraphProblem {
    Duplicate(StageName),
    NextMissing { stage: StageName, next: StageName },
    Cycle(StageName),
}

impl Next {
    /// The stage of that name, or the end.
    pub fn of(name: &str) -> Next {
        if name == END { Next::End } else { Next::Stage(StageName::new(name)) }
    }

    /// The name as an answer gives it.
    pub fn as_str(&self) -> &str {
        match self {
            Next::Stage(name) => name.as_str(),
            Next::End => END,
        }
    }
}

impl StagePolicy {
    /// The way on that an answer takes: the one that it names, or the only one where it names none.
    pub fn choose(&self, named: Option<&str>) -> Result<&Next, NextProblem> {
        match (named, &self.next[..]) {
            (Some(name), ways) => ways.iter().find(|way| way.as_str() == name).ok_or(NextProblem::Unknown),
            (None, [only]) => Ok(only),
            (None, _) => Err(NextProblem::Missing),
        }
    }

    /// The stages among the ways on.
    pub fn next_stages(&self) -> impl Iterator<Item = &StageName> {
        self.next.iter().filter_map(|next| match next {
            Next::Stage(name) => Some(name),
            Next::End => None,
        })
    }
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
            for next in policy.next_stages().filter(|next| !graph.stages.contains_key(next)) {
                problems.push(GraphProblem::NextMissing { stage: policy.name.clone(), next: next.clone() });
            }
            if graph.returns_to(&policy.name) {
                problems.push(GraphProblem::Cycle(policy.name.clone()));
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
        self.reached_from(start).contains(start)
    }

    /// The stages that a workflow can come to from this one.
    fn reached_from(&self, start: &StageName) -> BTreeSet<&StageName> {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&StagePolicy> = self.stages.get(start).into_iter().collect();
        while let Some(policy) = open.pop() {
            let fresh = policy.next_stages().filter_map(|next| self.stages.get(next));
            open.extend(fresh.filter(|next| reached.insert(&next.name)));
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str, next: &[&str]) -> StagePolicy {
        StagePolicy {
            name: StageName::new(name),
            class: StageClass::Keyed,
            endpoint: "http://core".into(),
            next: next.iter().map(|next| Next::of(next)).collect(),
            attempt_limit: 5,
            deferral_limit: Some(100),
            timeout: Duration::from_secs(30),
            lease: Duration::from_secs(60),
            backoff: Backoff { first: Duration::from_secs(1), max: Duration::from_secs(300) },
            concurrency: 64,
            rate: None,
            serial: false,
            priority: 0,
            by_others: false,
            request_bytes_max: 1 << 20,
        }
    }

    #[test]
    fn a_pause_doubles_up_to_its_bound_and_is_spread_over_its_upper_half() {
        let backoff = Backoff { first: Duration::from_millis(1), max: Duration::from_secs(1) };
        let pauses: Vec<u128> =
            [0, 1, 2, 5, 10, 11, 33, u32::MAX].into_iter().map(|n| backoff.pause(n).as_millis()).collect();
        assert_eq!(pauses, [0, 1, 2, 16, 512, 1000, 1000, 1000]);
        let spread = |random| backoff.spread(11, random).as_millis();
        assert_eq!((spread(0), spread(1 << 63), spread(u64::MAX)), (500, 750, 999));
        let jittered = |random| backoff.jittered(11, random).as_millis();
        assert_eq!((jittered(0), jittered(u64::MAX)), (0, 999));
    }

    #[test]
    fn a_linear_workflow_is_accepted() {
        assert!(StageGraph::new(vec![policy("A", &["B"]), policy("B", &["DONE"])]).is_ok());
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let problems = StageGraph::new(vec![
            policy("A", &["D", "X"]),
            policy("B", &["D", "C"]),
            policy("C", &["DONE", "B"]),
            policy("D", &["DONE"]),
            policy("D", &["DONE"]),
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
        let problems = StageGraph::new(vec![policy("A", &["B"]), policy("B", &["B"])]).expect_err("a cycle");
        assert_eq!(problems, [GraphProblem::Cycle(StageName::new("B"))]);
    }

    #[test]
    fn ways_that_part_and_meet_again_are_no_cycle() {
        let stages =
            vec![policy("A", &["B", "C", "DONE"]), policy("B", &["D"]), policy("C", &["D"]), policy("D", &["DONE"])];
        assert!(StageGraph::new(stages).is_ok());
    }

    #[test]
    fn the_answer_chooses_among_several_ways_and_may_confirm_the_only_one() {
        let (several, only, last) = (policy("A", &["B", "DONE"]), policy("A", &["B"]), policy("A", &["DONE"]));
        let to_b = Next::Stage(StageName::new("B"));
        let cases = [
            (&several, Some("B"), Ok(&to_b)),
            (&several, Some("DONE"), Ok(&Next::End)),
            (&several, Some("C"), Err(NextProblem::Unknown)),
            (&several, Some(""), Err(NextProblem::Unknown)),
            (&several, None, Err(NextProblem::Missing)),
            (&only, None, Ok(&to_b)),
            (&only, Some("B"), Ok(&to_b)),
            (&only, Some("DONE"), Err(NextProblem::Unknown)),
            (&last, None, Ok(&Next::End)),
            (&last, Some("DONE"), Ok(&Next::End)),
            (&last, Some("A"), Err(NextProblem::Unknown)),
        ];
        for (policy, named, expected) in cases {
            assert_eq!(policy.choose(named), expected, "{named:?} of {:?}", policy.next);
        }
    }

    #[test]
    fn a_row_is_under_its_own_definition_and_without_one_under_the_current() {
        let name = DefinitionName::new;
        let graph = |stages: &[&str]| {
            StageGraph::new(stages.iter().map(|stage| policy(stage, &["DONE"])).collect()).expect("stages")
        };
        let definitions =
            Definitions::new(name("quote@3"), graph(&["A"])).with_earlier(name("quote@2"), graph(&["A", "B"]));
        let seen = |definition: Option<&str>, stage| {
            let step = definitions.step(definition.map(name).as_ref(), &StageName::new(stage));
            let found = definitions.policy(&step).map(|policy| policy.name.to_string());
            (step.to_string(), found.map_err(|gone| gone.reason(&step)))
        };
        let gone = |reason: &str| Err(reason.to_owned());
        assert_eq!(seen(None, "A"), ("A of quote@3".to_owned(), Ok("A".to_owned())));
        assert_eq!(seen(Some("quote@2"), "B"), ("B of quote@2".to_owned(), Ok("B".to_owned())));
        let expected = gone("STAGE_GONE: the configuration has no stage \"B\" in the definition \"quote@3\"");
        assert_eq!(seen(None, "B"), ("B of quote@3".to_owned(), expected));
        let expected = gone("VERSION_GONE: the configuration has no definition \"quote@1\"");
        assert_eq!(seen(Some("quote@1"), "A"), ("A of quote@1".to_owned(), expected));
        assert_eq!(
            definitions.steps().map(|(step, _)| step.to_string()).collect::<Vec<_>>(),
            ["A of quote@2", "B of quote@2", "A of quote@3"]
        );
    }
}
