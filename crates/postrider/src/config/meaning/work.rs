//! The meaning of the work table and its stages.

use crate::config::meaning::Reader;
use crate::config::meaning::declared::Declared;
use crate::config::meaning::endpoint::Access;
use crate::config::place::{At, Place};
use crate::config::quantity::Span;
use crate::config::table::{Names, suggest};
use crate::config::typed;
use postrider_core::route::WorkMapping;
use postrider_core::stage::{Backoff, Definitions, END, GraphProblem, Next, StageClass, StageGraph, StagePolicy, Step};
use postrider_core::work::{DefinitionName, StageName};
use postrider_delivery::Endpoint;
use postrider_engine::{EndpointPolicy, UnfencedWrites};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The largest request body where nothing is typed.
const REQUEST_BYTES: u64 = 16 << 20;

/// So long the history of a workflow that has ended is kept, where nothing else is typed.
const HISTORY_RETENTION: Duration = Duration::from_secs(30 * 86_400);
/// What rows without a definition get where the configuration names none.
const DEFAULT_DEFINITION: &str = "default@1";

/// Who works on the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Execute,
    /// Somebody else, and we look on.
    Observe,
}

#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) mode: Mode,
    pub(crate) mapping: WorkMapping,
    /// How long the history of a workflow that has ended is kept; `None`: there is none.
    pub(crate) history: Option<Duration>,
    /// Our own transitions are kept out of the log.
    pub(crate) quiet: bool,
    /// What becomes of rows that others write without raising the fence.
    pub(crate) unfenced: UnfencedWrites,
    /// Which part of the key names a row's group.
    pub(crate) fair_by: Option<usize>,
    pub(crate) definitions: Definitions,
    /// One for each step.
    pub(crate) endpoints: BTreeMap<Step, Endpoint>,
    /// How long the receivers of steps keep a key, where that is known.
    pub(crate) key_retention: BTreeMap<Step, Duration>,
    /// What is said of steps for `check` alone.
    pub(crate) declared: BTreeMap<Step, Declared>,
    /// What endpoints take over all their stages, by origin.
    pub(crate) endpoint_policies: BTreeMap<Arc<str>, EndpointPolicy>,
}

impl Work {
    /// Whether receivers of some stage move their rows on themselves.
    pub(crate) fn has_same_tx(&self) -> bool {
        self.definitions.steps().any(|(_, policy)| policy.class == StageClass::SameTx)
    }
}

/// What the stages of all definitions say beside their policies.
#[derive(Debug, Default)]
struct Found {
    /// The configuration has a history.
    has_history: bool,
    /// The table has a column for deferrals.
    counts_deferrals: bool,
    endpoints: BTreeMap<Step, Endpoint>,
    key_retention: BTreeMap<Step, Duration>,
    declared: BTreeMap<Step, Declared>,
}

/// Where a stage's parts stand, for what is only wrong when all stages are looked at together.
struct StagePlaces {
    name: StageName,
    table: Place,
    /// Of each way on, in order.
    next: Vec<(String, Place)>,
}

impl StagePlaces {
    /// Where the stage names this one as a way on.
    fn next_named(&self, name: &str) -> Place {
        self.next.iter().find(|(next, _)| next == name).map_or(self.table, |(_, place)| *place)
    }
}

impl Reader<'_> {
    /// `replay_window`: how far back the journal can be replayed, where its age bounds that.
    pub(super) fn work(&mut self, work: At<typed::Work>, replay_window: Option<Duration>) -> Option<Work> {
        let At { value: work, place } = work;
        let table = self.table(work.table, place, "work.table");
        let columns = work.columns.map(|columns| columns.value).unwrap_or_default();
        let mode = self.mode(work.mode);
        let mapping = self.mapping(table.clone().unwrap_or_default(), columns, work.states, mode);
        let fair_by = self.fair_by(work.fair_by, &mapping.key);
        let access = Access {
            path: "work",
            headers: work.headers.map(|headers| headers.value).unwrap_or_default(),
            tls: work.tls,
            signing_secret: work.signing_secret,
        };
        let history = self.history(work.history.map(|history| history.value).unwrap_or_default(), replay_window);
        let counts_deferrals = mapping.deferral_count.is_some() || mode == Mode::Observe;
        let mut found = Found { has_history: history.is_some(), counts_deferrals, ..Found::default() };
        let current = self.definition_name(work.definition, "work.definition");
        let current = current.unwrap_or_else(|| DefinitionName::new(DEFAULT_DEFINITION));
        let graph = self.definition(&current, work.stage, (place, "work.stage"), (&access, &mut found));
        let mut earlier = Vec::new();
        for At { value: definition, place } in work.earlier.map(|earlier| earlier.value).unwrap_or_default() {
            let name = self.mandatory(definition.name, place, "work.earlier.name");
            let name = self.definition_name(name, "work.earlier.name").unwrap_or_else(|| DefinitionName::new(""));
            if name == current || earlier.iter().any(|(known, _)| *known == name) {
                self.problems.report(place, format!("the definition \"{name}\" stands here twice"));
            }
            let graph = self.definition(&name, definition.stage, (place, "work.earlier.stage"), (&access, &mut found));
            earlier.push((name, graph));
        }
        let graphs = || std::iter::once(&graph).chain(earlier.iter().map(|(_, graph)| graph));
        let step_count: usize = graphs().flatten().map(|graph| graph.stages().count()).sum();
        let Found { endpoints, key_retention, declared, .. } = found;
        let all_known = graphs().all(Option::is_some) && endpoints.len() == step_count;
        let origins: Vec<&str> = endpoints.values().map(Endpoint::origin).collect();
        let endpoint_policies = self.endpoint_policies(work.endpoint, all_known.then_some(&origins));
        let mut definitions = Definitions::new(current, graph?);
        for (name, graph) in earlier {
            definitions = definitions.with_earlier(name, graph?);
        }
        let quiet = work.quiet.is_none_or(|quiet| quiet.value);
        let unfenced = self.unfenced_writes(work.unfenced_writes);
        Some(Work {
            mode,
            mapping: table.map(|_| mapping)?,
            history,
            quiet,
            unfenced,
            fair_by,
            definitions,
            key_retention,
            declared,
            endpoints,
            endpoint_policies,
        })
    }

    fn mode(&mut self, typed: Option<At<String>>) -> Mode {
        let Some(mode) = typed else { return Mode::Execute };
        match mode.value.as_str() {
            "execute" => return Mode::Execute,
            "observe" => {}
            _ => self.word(&mode, "work.mode", &["execute", "observe"], &[]),
        }
        // Of a word that is reported, too: it asks less of the table, so that nothing is reported that follows from it.
        Mode::Observe
    }

    /// How old a key is tells the history alone: every write of the row changes the row's own time.
    fn key_retention(&mut self, typed: At<Span>, has_history: bool) -> Duration {
        const PATH: &str = "work.stage.key_retention";
        if !has_history {
            self.problems.report_with_hint(
                typed.place,
                format!("`{PATH}` takes a history"),
                "take `work.history.enabled = false` out: without a history nobody knows how old a key is",
            );
        }
        self.span(PATH, Some(typed), Duration::ZERO)
    }

    /// A name of the form `name@version`.
    fn definition_name(&mut self, typed: Option<At<String>>, path: &str) -> Option<DefinitionName> {
        let At { value: text, place } = typed?;
        let parts = text.split_once('@').filter(|(name, version)| !name.is_empty() && !version.is_empty());
        if parts.is_none() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            self.problems.report_with_hint(
                place,
                format!("`{path}` is no name of a definition"),
                "write \"name@version\", as in \"quote@3\", in visible ASCII without blanks",
            );
            return None;
        }
        Some(DefinitionName::new(&text))
    }

    /// The stages of one definition, and where each is called.
    fn definition(
        &mut self,
        name: &DefinitionName,
        stages: Option<At<Vec<At<typed::Stage>>>>,
        (place, path): (Place, &str),
        (access, found): (&Access, &mut Found),
    ) -> Option<StageGraph> {
        let typed_stages = stages.map(|stages| stages.value).unwrap_or_default();
        if typed_stages.is_empty() {
            return self.missing(place, path);
        }
        let mut policies = Vec::new();
        let mut places = Vec::new();
        let mut incomplete = false;
        for (number, At { value: mut stage, place }) in typed_stages.into_iter().enumerate() {
            let declared = self.declared(number == 0, stage.entry.take(), stage.effects.take());
            let kept = stage.key_retention.take().map(|kept| self.key_retention(kept, found.has_history));
            if let Some(deferrals) = stage.deferrals.as_ref().filter(|_| !found.counts_deferrals) {
                self.problems.report_with_hint(
                    deferrals.place,
                    "`work.stage.deferrals` takes a column for them, and `work.columns.deferral_count` is empty",
                    "take it out: without the column each deferral uses an attempt",
                );
            }
            let next = stage.next.iter().flat_map(|next| &next.value.0);
            let next = next.map(|next| (next.value.clone(), next.place)).collect();
            match self.stage(stage, access, place) {
                Some((mut policy, endpoint)) => {
                    policy.deferral_limit = policy.deferral_limit.filter(|_| found.counts_deferrals);
                    places.push(StagePlaces { name: policy.name.clone(), table: place, next });
                    let step = Step { definition: name.clone(), stage: policy.name.clone() };
                    found.key_retention.extend(kept.map(|kept| (step.clone(), kept)));
                    found.declared.insert(step.clone(), declared);
                    found.endpoints.extend(endpoint.map(|endpoint| (step, endpoint)));
                    policies.push(policy);
                }
                None => incomplete = true,
            }
        }
        // Where a stage has no name, a `next` that names no stage may mean that one.
        if incomplete { None } else { self.graph(policies, &places) }
    }

    fn history(&mut self, typed: typed::History, replay_window: Option<Duration>) -> Option<Duration> {
        const PATH: &str = "work.history.retention";
        let window = replay_window.unwrap_or_default();
        let place = typed.retention.as_ref().map_or(Place::FILE, |retention| retention.place);
        let retention = self.span(PATH, typed.retention, HISTORY_RETENTION.max(window));
        if retention < window {
            self.problems.report_with_hint(
                place,
                format!("`{PATH}` is shorter than `journal.retention.age`"),
                "what can be replayed could no longer be looked up: keep the history at least as long as the journal",
            );
        }
        typed.enabled.is_none_or(|enabled| enabled.value).then_some(retention)
    }

    /// `None` where there is no name to know the stage by. A policy with a reported problem is a stand-in that lets the
    /// graph be checked; it is never used.
    fn stage(
        &mut self,
        stage: typed::Stage,
        default: &Access,
        place: Place,
    ) -> Option<(StagePolicy, Option<Endpoint>)> {
        let name = self.stage_name(stage.name, place);
        let class = self.class(stage.class, place);
        let access = Access {
            path: "work.stage",
            headers: stage.headers.map(|headers| headers.value).unwrap_or_default(),
            tls: stage.tls,
            signing_secret: stage.signing_secret,
        };
        let endpoint = self.endpoint(stage.url, &access, default, place);
        let timeout = self.span("work.stage.timeout", stage.timeout, Duration::from_secs(30));
        let lease_place = stage.lease.as_ref().map(|lease| lease.place);
        let lease = self.span("work.stage.lease", stage.lease, timeout.saturating_mul(2));
        if let Some(place) = lease_place.filter(|_| lease <= timeout) {
            self.problems.report_with_hint(
                place,
                "`work.stage.lease` is not longer than `work.stage.timeout`",
                "a row would be taken over while its request is still under way",
            );
        }
        let policy = StagePolicy {
            name: name?,
            class: class.unwrap_or(StageClass::Keyed),
            endpoint: endpoint.as_ref().map_or("", Endpoint::origin).into(),
            next: self.next(stage.next),
            attempt_limit: self.count(stage.attempts, "work.stage.attempts", 5),
            deferral_limit: Some(stage.deferrals.map_or(100, |deferrals| deferrals.value)),
            timeout,
            lease,
            backoff: self.backoff(stage.backoff.map(|backoff| backoff.value).unwrap_or_default()),
            concurrency: self.count(stage.concurrency, "work.stage.concurrency", 64),
            rate: self.rate(stage.rate, stage.burst, "work.stage"),
            serial: stage.serial.is_some_and(|serial| serial.value),
            priority: stage.priority.map_or(0, |priority| priority.value),
            by_others: stage.by_others.is_some_and(|by_others| by_others.value),
            request_bytes_max: stage.request_size.map_or(REQUEST_BYTES, |size| size.value.0),
        };
        Some((policy, endpoint))
    }

    fn stage_name(&mut self, name: Option<At<String>>, place: Place) -> Option<StageName> {
        let name = self.name(name, place, "work.stage.name")?;
        if name.value == END {
            let message = format!("`work.stage.name` \"{END}\" is no name for a stage");
            self.problems.report_with_hint(name.place, message, "as `next` the word ends the workflow");
        }
        Some(StageName::new(&name.value))
    }

    /// The ways on, at least one.
    fn next(&mut self, typed: Option<At<Names>>) -> Vec<Next> {
        let Some(At { value: Names(names), place }) = typed else { return vec![Next::End] };
        if names.is_empty() {
            self.problems.report_with_hint(place, "`work.stage.next` is empty", "leave it out to end the workflow");
        }
        let mut ways = Vec::new();
        for At { value: name, place } in names {
            let way = Next::of(&name);
            if ways.contains(&way) {
                let message = format!("`work.stage.next` names \"{}\" twice", name.escape_debug());
                self.problems.report(place, message);
            } else {
                ways.push(way);
            }
        }
        ways
    }

    fn class(&mut self, class: Option<At<String>>, place: Place) -> Option<StageClass> {
        const KNOWN: [&str; 3] = ["natural", "keyed", "same_tx"];
        let Some(class) = class else {
            if self.problems.is_mistyped("work.stage.class") {
                return None;
            }
            self.problems.report_with_hint(
                place,
                "`work.stage.class` is missing, and has no default",
                "\"natural\" if doing the work again finds it done, \"keyed\" if the receiver stores its answers, \"same_tx\" if it moves the row on in its own transaction",
            );
            return None;
        };
        match class.value.as_str() {
            "natural" => Some(StageClass::Natural),
            "keyed" => Some(StageClass::Keyed),
            "same_tx" => Some(StageClass::SameTx),
            _ => {
                self.word(&class, "work.stage.class", &KNOWN, &["external", "async"]);
                None
            }
        }
    }

    fn unfenced_writes(&mut self, typed: Option<At<String>>) -> UnfencedWrites {
        let Some(typed) = typed else { return UnfencedWrites::default() };
        match typed.value.as_str() {
            "park" => UnfencedWrites::Park,
            "reread" => UnfencedWrites::Reread,
            _ => {
                self.word(&typed, "work.unfenced_writes", &["park", "reread"], &[]);
                UnfencedWrites::default()
            }
        }
    }

    fn backoff(&mut self, typed: typed::Backoff) -> Backoff {
        let place = typed.max.as_ref().or(typed.first.as_ref()).map_or(Place::FILE, |span| span.place);
        let first = self.span("work.stage.backoff.first", typed.first, Duration::from_secs(1));
        let max = self.span("work.stage.backoff.max", typed.max, Duration::from_secs(300).max(first));
        if max < first {
            self.problems.report(place, "`work.stage.backoff.max` is less than `work.stage.backoff.first`");
        }
        Backoff { first, max }
    }

    fn graph(&mut self, policies: Vec<StagePolicy>, places: &[StagePlaces]) -> Option<StageGraph> {
        let names: Vec<String> = policies.iter().map(|policy| policy.name.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let graph_problems = match StageGraph::new(policies) {
            Ok(graph) => return Some(graph),
            Err(problems) => problems,
        };
        let places_of = |name: &StageName| places.iter().rev().find(|places| places.name == *name);
        for problem in graph_problems {
            match problem {
                GraphProblem::Duplicate(name) => {
                    let place = places_of(&name).map_or(Place::FILE, |places| places.table);
                    self.problems.report(place, format!("the stage \"{name}\" stands here twice"));
                }
                GraphProblem::NextMissing { stage, next } => {
                    let place = places_of(&stage).map_or(Place::FILE, |places| places.next_named(next.as_str()));
                    let hint = suggest(next.as_str(), &names);
                    let message = format!("`work.stage.next` names no stage, \"{}\"", next.as_str().escape_debug());
                    self.problems.report_with_hint(place, message, hint);
                }
                GraphProblem::Cycle(name) => {
                    let place = places_of(&name).and_then(|places| Some(places.next.first()?.1)).unwrap_or(Place::FILE);
                    self.problems.report_with_hint(
                        place,
                        format!("the stage \"{name}\" leads back to itself"),
                        "a row that came to it again would be asked under the key that was answered already, and get that answer again; give the second visit a stage of its own",
                    );
                }
            }
        }
        None
    }
}
