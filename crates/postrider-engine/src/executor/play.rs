//! For tests: the rows and decisions of an executor in virtual time, with a database and endpoints that say yes.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
use super::state::{CallTicket, State};
use crate::clock::ServerClock;
use crate::limits::Limits;
use crate::settings::{EndpointPolicy, UnfencedWrites, WorkSettings};
use crate::telemetry::Telemetry;
use crate::world::World;
use postrider_core::error::{Error, ErrorKind};
use postrider_core::outcome::{Answer, Declared, Outcome};
use postrider_core::ports::{BoxFuture, Checkpoint, CheckpointReply, Claim, ClaimReply, ClaimRequest, Transition};
use postrider_core::rate::Rate;
use postrider_core::stage::{Backoff, Definitions, Next, StageClass, StageGraph, StagePolicy};
use postrider_core::time::Timestamp;
use postrider_core::work::{DefinitionName, OwnerId, StageName, WorkKey, WorkVersion};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// A world whose time the test moves.
#[derive(Debug)]
pub(super) struct StillWorld {
    pub(super) now: AtomicI64,
    draws: AtomicU64,
}

impl World for StillWorld {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::Relaxed))
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn random(&self) -> u64 {
        self.draws.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed)
    }
}

pub(super) fn stage(name: &str, endpoint: &str, rate: Option<Rate>) -> StagePolicy {
    StagePolicy {
        name: StageName::new(name),
        class: StageClass::Keyed,
        endpoint: endpoint.into(),
        next: vec![Next::End],
        attempt_limit: 5,
        deferral_limit: Some(5),
        timeout: Duration::from_secs(30),
        lease: Duration::from_secs(60),
        backoff: Backoff { first: Duration::from_secs(1), max: Duration::from_secs(1) },
        concurrency: 64,
        rate,
        serial: false,
        priority: 0,
        by_others: false,
        request_bytes_max: 1_000,
    }
}

/// What will happen, at its time.
pub(super) enum Coming {
    Claimed(Vec<ClaimRequest>),
    Called(CallTicket),
}

/// A state whose statements and calls take a while, each another one.
pub(super) struct Play {
    pub(super) state: State,
    pub(super) world: Arc<StillWorld>,
    coming: Vec<(Timestamp, Coming)>,
    /// When each call left, and for which stage.
    pub(super) left: Vec<(Timestamp, StageName)>,
    /// The most that were on their way at once, or were to be.
    pub(super) most: u32,
    /// What was claimed, in order.
    pub(super) claimed: Vec<WorkKey>,
    /// What each call is answered with.
    pub(super) status: u16,
    /// So many checkpoints are refused.
    pub(super) refuses: u32,
    /// What rows are submitted under.
    pub(super) definition: Option<DefinitionName>,
    /// What a claim for the stage finds the row under, where that is not what it was submitted under.
    pub(super) found: BTreeMap<(WorkKey, StageName), DefinitionName>,
}

impl Play {
    pub(super) fn new(stages: Vec<StagePolicy>, endpoints: BTreeMap<Arc<str>, EndpointPolicy>) -> Play {
        Play::of(Definitions::new(DefinitionName::new("quote@1"), StageGraph::new(stages).unwrap()), endpoints)
    }

    pub(super) fn of(definitions: Definitions, endpoints: BTreeMap<Arc<str>, EndpointPolicy>) -> Play {
        let world = Arc::new(StillWorld { now: AtomicI64::new(1_700_000_000_000_000), draws: AtomicU64::new(7) });
        let settings = WorkSettings {
            definitions,
            endpoints,
            key_names: vec!["g".to_owned(), "q".to_owned()],
            fair_by: Some(0),
            owner: OwnerId(1),
            quiet: true,
            unfenced: UnfencedWrites::Park,
            names_owner: true,
            history: None,
        };
        let (limits, clock) = (Limits::default(), ServerClock::new(world.clone()));
        let state = State::new(settings, limits, world.clone(), clock, Arc::new(Telemetry::default()));
        Play {
            state,
            world,
            coming: Vec::new(),
            left: Vec::new(),
            most: 0,
            claimed: Vec::new(),
            definition: None,
            found: BTreeMap::new(),
            status: 200,
            refuses: 0,
        }
    }

    pub(super) fn submit(&mut self, stage: &str, rows: usize) {
        for row in 0..rows {
            self.submit_row(&WorkKey::new([stage, &row.to_string()]), stage, None);
        }
    }

    /// `at`: when it is due, where that is not at once.
    pub(super) fn submit_row(&mut self, key: &WorkKey, stage: &str, at: Option<Timestamp>) {
        let waits = WorkVersion::unclaimed(key.clone(), stage);
        let version = WorkVersion { definition: self.definition.clone(), next_attempt_at: at, ..waits };
        self.state.observe_version(version, 1);
    }

    /// Until nothing is left to do. Nothing but the state says how long to wait.
    pub(super) fn run(&mut self) {
        while self.step() {}
    }

    /// Starts what may start, and waits for what comes first; false: nothing does.
    pub(super) fn step(&mut self) -> bool {
        self.start();
        let next = self.coming.iter().map(|(at, _)| *at).min();
        let timer = self.state.until_next_timer().map(|span| self.world.now().after(span));
        let Some(at) = next.into_iter().chain(timer).min() else { return false };
        self.world.now.store(at.0.max(self.world.now().0), Ordering::Relaxed);
        let (due, later) = std::mem::take(&mut self.coming).into_iter().partition(|(due, _)| *due <= at);
        self.coming = later;
        due.into_iter().for_each(|(_, coming)| self.come(coming));
        true
    }

    pub(super) fn start(&mut self) {
        self.state.fire_timers();
        self.write();
        let claims = self.coming.iter().filter(|(_, coming)| matches!(coming, Coming::Claimed(_))).count();
        if claims < 2 {
            let (requests, _) = self.state.next_claims();
            if !requests.is_empty() {
                self.claimed.extend(requests.iter().map(|request| request.key.clone()));
                // As a rule a few milliseconds, and now and then the server stands still for a second.
                let slow = self.world.random().is_multiple_of(10);
                let after = self.after(if slow { 1_000_000 } else { 5_000 });
                self.coming.push((after, Coming::Claimed(requests)));
            }
        }
        for (ticket, _) in self.state.take_calls() {
            self.left.push((self.world.now(), ticket.step.stage.clone()));
            let after = self.after(200_000);
            self.coming.push((after, Coming::Called(ticket)));
        }
        let under_way: usize = self
            .coming
            .iter()
            .map(|(_, coming)| match coming {
                Coming::Claimed(requests) => requests.len(),
                Coming::Called(_) => 1,
            })
            .sum();
        self.most = self.most.max(u32::try_from(under_way).unwrap());
    }

    /// The rows that are claimed or called for a stage.
    pub(super) fn under_way(&self, stage: &str) -> impl Iterator<Item = &WorkKey> {
        let rows = self.coming.iter().flat_map(|(_, coming)| match coming {
            Coming::Claimed(requests) => requests.iter().map(|request| (&request.stage, &request.key)).collect(),
            Coming::Called(ticket) => vec![(&ticket.step.stage, &ticket.key)],
        });
        rows.filter(move |(of, _)| of.as_str() == stage).map(|(_, key)| key)
    }

    /// The calls that are on their way.
    pub(super) fn calling(&self) -> impl Iterator<Item = &CallTicket> {
        self.coming.iter().filter_map(|(_, coming)| match coming {
            Coming::Called(ticket) => Some(ticket),
            Coming::Claimed(_) => None,
        })
    }

    fn come(&mut self, coming: Coming) {
        match coming {
            Coming::Claimed(requests) => {
                let replies = requests.iter().map(|request| {
                    let definition = Some(request.definition.clone());
                    ClaimReply::Claimed(self.claim(&request.key, definition, &request.stage, request.seen_fence))
                });
                let replies = replies.collect();
                self.state.claims_replied(&requests, replies);
            }
            Coming::Called(ticket) => {
                let answer = Answer::new(self.status, (self.status == 200).then_some(Declared::Done));
                self.state.called(&ticket, &Outcome::Answered(answer));
                self.write();
            }
        }
    }

    fn write(&mut self) {
        let written = self.state.next_checkpoints();
        if let Some(fewer) = self.refuses.checked_sub(1).filter(|_| !written.is_empty()) {
            self.refuses = fewer;
            return self.state.checkpoints_refused(written, &Error::new(ErrorKind::Table, "a table is missing"));
        }
        let replies = written.iter().map(|written| self.reply(written)).collect();
        self.state.checkpoints_replied(written, replies);
    }

    /// A time up to so far away.
    fn after(&self, micros_max: u64) -> Timestamp {
        self.world.now().after(Duration::from_micros(1 + self.world.random() % micros_max))
    }

    /// Of any two calls that leave for these stages, no more leave between them than burst and rate allow.
    pub(super) fn assert_paced(&self, stages: &[&str], rate: Rate) {
        let left: Vec<Timestamp> =
            self.left.iter().filter(|(_, stage)| stages.contains(&stage.as_str())).map(|(at, _)| *at).collect();
        for (first, from) in left.iter().enumerate() {
            for (last, to) in left.iter().enumerate().skip(first) {
                let gives = to.since(*from).as_micros() * u128::from(rate.calls) / rate.per.as_micros();
                let count = u128::try_from(last - first + 1).unwrap();
                assert!(count <= u128::from(rate.burst) + gives, "{count} calls in {:?}", to.since(*from));
            }
        }
    }

    pub(super) fn took(&self) -> Duration {
        self.left.last().unwrap().0.since(self.left[0].0)
    }

    fn reply(&self, written: &Checkpoint) -> CheckpointReply {
        match &written.transition {
            Transition::Chain { next, .. } => {
                let definition = self.state.rows.row(&written.key).map(|row| row.step.definition.clone());
                CheckpointReply::Chained(self.claim(&written.key, definition, next, written.fence))
            }
            _ => CheckpointReply::Written { key: written.key.clone() },
        }
    }

    fn claim(&self, key: &WorkKey, definition: Option<DefinitionName>, stage: &StageName, seen_fence: i64) -> Claim {
        Claim {
            key: key.clone(),
            stage: stage.clone(),
            fence: seen_fence + 1,
            attempt: 1,
            deferrals: 0,
            epoch: 0,
            definition: self.found.get(&(key.clone(), stage.clone())).cloned().or(definition),
            payload: "{}".into(),
            was_sent: false,
            key_expired: None,
            payload_changed: false,
            version: None,
        }
    }
}
