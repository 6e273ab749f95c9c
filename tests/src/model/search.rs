//! The walk through all states, breadth first, so that what is found is found on a shortest way.
//!
//! Our own hundred lines, and not a model checker's crate: of such a crate we would use a queue and a set, and its explorer's web
//! server, its threads and its hash tables would come with them. Only fingerprints of 64 bits are kept of states that were seen: of
//! ten million states two have the same by chance once in 370,000 runs, and then a part of the space is not walked.

use super::protocol::{Bounds, Finding, Mistake, Model, Step};
use super::state::State;
use postrider_core::history::Record;
use std::collections::HashMap;

/// What a walk saw.
#[derive(Debug)]
pub struct Searched {
    /// States that differ in more than names.
    pub states: usize,
    pub steps: u64,
    /// The longest of the shortest ways.
    pub depth: usize,
    /// The walk ended before the bound on its depth: these are all states.
    pub whole: bool,
    pub found: Option<Found>,
}

/// A broken promise and the steps that lead to it.
#[derive(Debug)]
pub struct Found {
    pub finding: Finding,
    way: Vec<Step>,
}

/// Walks through all states within the bounds, until one shows what is looked for; `None`: anything at all.
pub fn search(bounds: Bounds, mistakes: &[Mistake], wanted: Option<Finding>) -> Searched {
    let model = Model { bounds, mistakes };
    let start = model.start();
    let mut ways: HashMap<u64, Option<(u64, Step)>> = HashMap::from([(start.fingerprint(), None)]);
    let mut frontier = vec![(start.fingerprint(), start)];
    let mut searched = Searched { states: 1, steps: 0, depth: 0, whole: false, found: None };
    while !frontier.is_empty() && searched.depth < bounds.depth_max {
        let mut next = Vec::new();
        for (from, state) in frontier {
            let steps = model.steps(&state);
            let stuck = steps.is_empty() && !model.is_at_rest(&state);
            if stuck && wanted.is_none_or(|wanted| wanted == Finding::Stuck) {
                return Searched { found: Some(Found { finding: Finding::Stuck, way: way(&ways, from) }), ..searched };
            }
            for step in steps {
                searched.steps += 1;
                let (after, findings) = model.take(&state, step, None);
                let finding = findings.into_iter().find(|finding| wanted.is_none_or(|wanted| wanted == *finding));
                if let Some(finding) = finding {
                    let way = way(&ways, from).into_iter().chain([step]).collect();
                    return Searched { found: Some(Found { finding, way }), ..searched };
                }
                let fingerprint = after.fingerprint();
                if let std::collections::hash_map::Entry::Vacant(entry) = ways.entry(fingerprint) {
                    entry.insert(Some((from, step)));
                    next.push((fingerprint, after));
                }
            }
        }
        searched.states = ways.len();
        searched.depth += usize::from(!next.is_empty());
        frontier = next;
    }
    Searched { whole: frontier.is_empty(), ..searched }
}

fn way(ways: &HashMap<u64, Option<(u64, Step)>>, mut at: u64) -> Vec<Step> {
    let mut steps = Vec::new();
    while let Some(Some((before, step))) = ways.get(&at) {
        steps.push(*step);
        at = *before;
    }
    steps.reverse();
    steps
}

/// What happens on the way, as a history that the history checker reads.
pub fn replay(bounds: Bounds, mistakes: &[Mistake], found: &Found) -> Vec<Record> {
    let model = Model { bounds, mistakes };
    let mut records = model.submissions();
    let mut state: State = model.start();
    for step in &found.way {
        (state, _) = model.take(&state, *step, Some(&mut records));
    }
    records
}
