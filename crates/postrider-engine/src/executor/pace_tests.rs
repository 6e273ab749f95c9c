#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
use super::*;
use crate::clock::ServerClock;
use crate::executor::state::CallTicket;
use crate::limits::Limits;
use crate::settings::EndpointPolicy;
use crate::telemetry::Telemetry;
use crate::world::World;
use postrider_core::outcome::{Answer, Declared, Outcome};
use postrider_core::ports::{BoxFuture, CheckpointReply, Claim, ClaimReply, ClaimRequest};
use postrider_core::rate::Rate;
use postrider_core::stage::{Backoff, StageClass, StageGraph};
use postrider_core::work::{OwnerId, StageState, WorkKey, WorkVersion};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A world whose time the test moves.
#[derive(Debug)]
struct StillWorld {
    now: AtomicI64,
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

fn stage(name: &str, endpoint: &str, rate: Option<Rate>) -> StagePolicy {
    StagePolicy {
        name: StageName::new(name),
        class: StageClass::Keyed,
        endpoint: endpoint.into(),
        next: vec![postrider_core::stage::Next::End],
        attempt_limit: 5,
        deferral_limit: 5,
        timeout: Duration::from_secs(30),
        lease: Duration::from_secs(60),
        backoff: Backoff { first: Duration::from_secs(1), max: Duration::from_secs(1) },
        concurrency: 64,
        rate,
        request_bytes_max: 1_000,
    }
}

fn per_second(calls: u32, burst: u32) -> Rate {
    Rate { calls, per: Duration::from_secs(1), burst }
}

/// What will happen, at its time.
enum Coming {
    Claimed(Vec<ClaimRequest>),
    Called(CallTicket),
}

/// A state whose statements and calls take a while, each another one.
struct Play {
    state: State,
    world: Arc<StillWorld>,
    coming: Vec<(Timestamp, Coming)>,
    /// When each call left, and for which stage.
    left: Vec<(Timestamp, StageName)>,
    /// The most that were on their way at once.
    most: u32,
}

impl Play {
    fn new(stages: Vec<StagePolicy>, endpoints: BTreeMap<Arc<str>, EndpointPolicy>) -> Play {
        let world = Arc::new(StillWorld { now: AtomicI64::new(1_700_000_000_000_000), draws: AtomicU64::new(7) });
        let settings = WorkSettings {
            graph: StageGraph::new(stages).unwrap(),
            endpoints,
            key_names: vec!["k".to_owned()],
            owner: OwnerId(1),
            quiet: true,
            history: None,
        };
        let (limits, clock) = (Limits::default(), ServerClock::new(world.clone()));
        let state = State::new(settings, limits, world.clone(), clock, Arc::new(Telemetry::default()));
        Play { state, world, coming: Vec::new(), left: Vec::new(), most: 0 }
    }

    fn submit(&mut self, stage: &str, rows: usize) {
        for row in 0..rows {
            let version = WorkVersion {
                key: WorkKey::new([format!("{stage}-{row}")]),
                stage: StageName::new(stage),
                state: StageState::Pending,
                attempt_count: 0,
                deferral_count: 0,
                fence: 0,
                epoch: 0,
                next_attempt_at: None,
                lease_until: None,
                lease_owner: None,
                closed: false,
            };
            self.state.observe_version(version, 1);
        }
    }

    /// Until nothing is left to do. Nothing but the state says how long to wait.
    fn run(&mut self) {
        loop {
            self.start();
            let next = self.coming.iter().map(|(at, _)| *at).min();
            let timer = self.state.until_next_timer().map(|span| self.world.now().after(span));
            let Some(at) = next.into_iter().chain(timer).min() else { return };
            self.world.now.store(at.0.max(self.world.now().0), Ordering::Relaxed);
            let (due, later) = std::mem::take(&mut self.coming).into_iter().partition(|(due, _)| *due <= at);
            self.coming = later;
            due.into_iter().for_each(|(_, coming)| self.come(coming));
        }
    }

    fn start(&mut self) {
        self.state.fire_timers();
        let claims = self.coming.iter().filter(|(_, coming)| matches!(coming, Coming::Claimed(_))).count();
        if claims < 2 {
            let (requests, _) = self.state.next_claims();
            if !requests.is_empty() {
                // As a rule a few milliseconds, and now and then the server stands still for a second.
                let slow = self.world.random().is_multiple_of(10);
                let after = self.after(if slow { 1_000_000 } else { 5_000 });
                self.coming.push((after, Coming::Claimed(requests)));
            }
        }
        for (ticket, _) in self.state.take_calls() {
            self.left.push((self.world.now(), ticket.stage.clone()));
            let after = self.after(200_000);
            self.coming.push((after, Coming::Called(ticket)));
        }
        let calls = self.coming.iter().filter(|(_, coming)| matches!(coming, Coming::Called(_))).count();
        self.most = self.most.max(u32::try_from(calls).unwrap());
    }

    fn come(&mut self, coming: Coming) {
        match coming {
            Coming::Claimed(requests) => {
                let replies = requests.iter().map(|request| ClaimReply::Claimed(claim(request))).collect();
                self.state.claims_replied(requests, replies);
            }
            Coming::Called(ticket) => {
                let answer = Answer {
                    status: 200,
                    declared: Some(Declared::Done),
                    replayed: false,
                    next: None,
                    retry_after: None,
                };
                self.state.called(&ticket, &Outcome::Answered(answer));
                let written = self.state.next_checkpoints();
                let replies = written.iter().map(|done| CheckpointReply::Written { key: done.key.clone() }).collect();
                self.state.checkpoints_replied(written, replies);
            }
        }
    }

    /// A time up to so far away.
    fn after(&self, micros_max: u64) -> Timestamp {
        self.world.now().after(Duration::from_micros(1 + self.world.random() % micros_max))
    }

    /// Of any two calls that leave for these stages, no more leave between them than burst and rate allow.
    fn assert_paced(&self, stages: &[&str], rate: Rate) {
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

    fn took(&self) -> Duration {
        self.left.last().unwrap().0.since(self.left[0].0)
    }
}

fn claim(request: &ClaimRequest) -> Claim {
    Claim {
        key: request.key.clone(),
        stage: request.stage.clone(),
        fence: request.seen_fence + 1,
        attempt: 1,
        deferrals: 0,
        epoch: 0,
        definition: None,
        payload: "{}".to_owned(),
        payload_changed: false,
    }
}

#[test]
fn an_endpoint_and_a_stage_see_no_more_calls_than_their_rates_allow_and_get_them_all() {
    let (shared, own) = (per_second(100, 10), per_second(30, 3));
    let policy = EndpointPolicy { rate: Some(shared), concurrency: None };
    let stages =
        vec![stage("A", "http://core", Some(own)), stage("B", "http://core", None), stage("C", "http://else", None)];
    let mut play = Play::new(stages, BTreeMap::from([("http://core".into(), policy)]));
    for name in ["A", "B", "C"] {
        play.submit(name, 300);
    }
    play.run();
    assert_eq!(play.left.len(), 900, "every call leaves");
    play.assert_paced(&["A", "B"], shared);
    play.assert_paced(&["A"], own);
    // What a claim that stands still was promised is kept back for it, so these rates are not always reached; a third of them is.
    assert!(play.took() < Duration::from_secs(30), "300 calls at 30 a second took {:?}", play.took());
}

#[test]
fn an_endpoint_gets_no_more_calls_at_once_than_it_takes_however_many_stages_it_has() {
    let policy = EndpointPolicy { rate: None, concurrency: Some(5) };
    let stages = vec![stage("A", "http://core", None), stage("B", "http://core", None)];
    let mut play = Play::new(stages, BTreeMap::from([("http://core".into(), policy)]));
    play.submit("A", 50);
    play.submit("B", 50);
    play.run();
    assert_eq!((play.left.len(), play.most), (100, 5));
}
