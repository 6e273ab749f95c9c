//! The receivers of the four stages, and the way to them.
//!
//! One moves its row on in the transaction of its work, one knows its work by its natural key, two store their answers under the idempotency
//! key; one of these makes an external call and keeps its own intents. They go on whatever becomes of the caller.

use super::database::Database;
use super::faults::{Fault, Point, Side};
use super::shared::{Bug, Process, Sim};
use super::stage_set::{self, EXTERNAL};
use super::work_table::advance;
use crate::port_tests::stage_caller::Play;
use postrider_core::history::{Record, WorkStep};
use postrider_core::outcome::{Answer, Declared, Lost, NotSent, Outcome};
use postrider_core::ports::{BoxFuture, StageCall, StageCaller};
use postrider_core::stage::StageClass;
use postrider_core::work::WorkKey;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::oneshot;

/// All receivers, with their databases.
#[derive(Debug)]
pub struct Receivers {
    sim: Arc<Sim>,
    /// Where the work rows are.
    database: Arc<Database>,
    state: Mutex<Known>,
    /// How the next request is met, where that is not left to chance.
    script: Mutex<Option<Play>>,
}

#[derive(Debug, Default)]
struct Known {
    /// Keys whose work is under way.
    running: BTreeSet<Arc<str>>,
    /// What was answered under each key: the stored bytes' hash.
    answers: BTreeMap<Arc<str>, u64>,
    /// The highest fence seen under each key.
    fences: BTreeMap<Arc<str>, i64>,
    /// External calls: known to have an intent; and those that the provider has done.
    intents: BTreeMap<Arc<str>, bool>,
    done_outside: BTreeSet<Arc<str>>,
}

/// The way from one process to the receivers.
#[derive(Debug)]
pub struct FakeCaller {
    pub process: Arc<Process>,
    pub receivers: Arc<Receivers>,
}

/// What the receiver does with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Process,
    /// Not processed, and no answer.
    Drop,
    Answer {
        status: u16,
        declared: Option<Declared>,
        retry_after: Option<Duration>,
    },
}

impl StageCaller for FakeCaller {
    fn call(&self, call: StageCall) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            let sim = self.process.sim.clone();
            self.process.point(Point::StageCall, Side::Dispatch).await;
            sim.latency().await;
            let script = self.receivers.script.lock().unwrap().take();
            if script == Some(Play::Gone) || sim.strikes(500) {
                sim.count(Fault::CallNotSent);
                let ways = [NotSent::Refused, NotSent::Resolve, NotSent::ConnectTimeout, NotSent::Tls];
                return Outcome::NotSent(ways[usize::try_from(sim.below(4)).unwrap()]);
            }
            let timeout = call.timeout;
            let (reply, answer) = oneshot::channel();
            let receivers = self.receivers.clone();
            let (manner, delay) =
                script.map_or_else(|| receivers.choose(timeout), |play| receivers.scripted(play, timeout));
            tokio::spawn(async move {
                let outcome = receivers.receive(call, manner, delay).await;
                // The caller may be gone.
                let _ = reply.send(outcome);
            });
            let outcome = tokio::select! {
                biased;
                outcome = answer => outcome.expect("receivers answer"),
                () = sim.clock.sleep(timeout) => Outcome::Lost(Lost::Timeout),
            };
            self.process.point(Point::StageCall, Side::Completion).await;
            if matches!(&outcome, Outcome::Answered(answer) if answer.status == 200) && sim.strikes(700) {
                sim.count(Fault::CallReplyLost);
                return Outcome::Lost(Lost::Reset);
            }
            outcome
        })
    }
}

impl Receivers {
    pub fn new(sim: &Arc<Sim>, database: &Arc<Database>) -> Arc<Receivers> {
        let (sim, database) = (sim.clone(), database.clone());
        Arc::new(Receivers { sim, database, state: Mutex::default(), script: Mutex::default() })
    }

    /// Decides how the next request is met.
    pub fn play(&self, play: Play) {
        *self.script.lock().unwrap() = Some(play);
    }

    fn scripted(&self, play: Play, timeout: Duration) -> (Manner, Duration) {
        let soon = Duration::from_millis(1);
        let answer = |status, declared, retry_after| Manner::Answer { status, declared, retry_after };
        match play {
            Play::Done | Play::Gone => (Manner::Process, soon),
            Play::Defer => (answer(429, Some(Declared::Retry), Some(Duration::from_secs(2))), soon),
            Play::Fail => (answer(500, None, None), soon),
            Play::Stall => (Manner::Process, timeout * 2),
            Play::Hang => (Manner::Drop, soon),
        }
    }

    fn choose(&self, timeout: Duration) -> (Manner, Duration) {
        let sim = &self.sim;
        let usual = Duration::from_micros(500 + sim.below(15_000));
        let seconds = Duration::from_millis(sim.below(800));
        let answer = |status, declared, retry_after| Manner::Answer { status, declared, retry_after };
        if !sim.strikes(4_000) {
            return (Manner::Process, usual);
        }
        match sim.below(24) {
            0..4 => {
                sim.count(Fault::CallStalled);
                (Manner::Process, timeout + sim.millis(1, 2_000))
            }
            4..8 => {
                sim.count(Fault::CallSlow);
                (Manner::Process, sim.millis(50, 450))
            }
            8..12 => {
                sim.count(Fault::CallUnprocessed);
                (Manner::Drop, usual)
            }
            12..15 => {
                sim.count(Fault::CallDeferred);
                (answer(429, Some(Declared::Retry), Some(seconds)), usual)
            }
            15..17 => {
                sim.count(Fault::CallDeferred);
                (answer(503, Some(Declared::Retry), Some(seconds)), usual)
            }
            17..23 => {
                sim.count(Fault::CallFailed);
                (answer(500, None, None), usual)
            }
            _ if sim.one_in(4) => {
                sim.count(Fault::CallRefused);
                (answer(422, Some(Declared::Permanent), None), usual)
            }
            _ => (answer(503, None, None), usual),
        }
    }

    async fn receive(&self, call: StageCall, manner: Manner, delay: Duration) -> Outcome {
        let sim = &self.sim;
        let request = Request::of(&call);
        sim.record(Record::RequestReceived {
            work: request.work.clone(),
            idempotency_key: request.key.clone(),
            fingerprint: request.fingerprint,
            attempt: call.attempt,
            fence: call.fence,
        });
        if self.fence_is_old(&request, call.fence) {
            sim.count(Fault::CallStale);
            return answered(412, Some(Declared::Stale), None);
        }
        match manner {
            Manner::Process => {}
            Manner::Drop => {
                sim.clock.sleep(delay).await;
                return Outcome::Lost(Lost::Reset);
            }
            Manner::Answer { status, declared, retry_after } => {
                sim.clock.sleep(delay).await;
                return answered(status, declared, retry_after);
            }
        }
        if stage_set::class(call.stage.as_str()) == StageClass::SameTx {
            sim.clock.sleep(delay).await;
            return self.move_on(&request, call.fence).await;
        }
        if let Some(outcome) = self.replay(&request) {
            sim.latency().await;
            return outcome;
        }
        if !self.state().running.insert(request.key.clone()) && !sim.has(Bug::ReceiverIgnoresKeys) {
            sim.count(Fault::CallInProgress);
            sim.latency().await;
            return answered(409, Some(Declared::InProgress), None);
        }
        sim.clock.sleep(delay).await;
        let known = call.stage.as_str() != EXTERNAL || self.call_outside(&request).await;
        let outcome = if known { self.commit(&request) } else { answered(500, None, None) };
        self.state().running.remove(&request.key);
        outcome
    }

    /// Work and row in one transaction; the row's lock is waited for.
    async fn move_on(&self, request: &Request, fence: i64) -> Outcome {
        let sim = &self.sim;
        let next = stage_set::next(request.work.stage.as_str());
        if advance(&self.database, &request.work, fence, &next).await {
            let speaks = !request.fingerprint.is_multiple_of(3);
            return answered(200, speaks.then_some(Declared::Done), None);
        }
        sim.count(Fault::AdvanceStale);
        if sim.has(Bug::AdvanceSwallowed) {
            sim.record(Record::EffectCommitted { work: request.work.clone() });
        }
        match sim.below(3) {
            0 => answered(409, Some(Declared::AlreadyDone), None),
            1 => answered(409, None, None),
            _ => answered(412, Some(Declared::Stale), None),
        }
    }

    /// Half of the keys' receivers look at the fence, too.
    fn fence_is_old(&self, request: &Request, fence: i64) -> bool {
        if request.fingerprint.is_multiple_of(2) {
            return false;
        }
        let mut state = self.state();
        let highest = state.fences.entry(request.key.clone()).or_insert(fence);
        *highest = (*highest).max(fence);
        fence < *highest
    }

    /// The answer that was given before, if there is one.
    fn replay(&self, request: &Request) -> Option<Outcome> {
        let sim = &self.sim;
        let stored = *self.state().answers.get(&request.key)?;
        if sim.has(Bug::ReceiverIgnoresKeys) {
            return None;
        }
        sim.count(Fault::CallReplayed);
        let keyed = stage_set::class(request.work.stage.as_str()) == StageClass::Keyed;
        let body_hash = if keyed && sim.has(Bug::AnswerNotStored) { sim.random() } else { stored };
        self.give(request, body_hash);
        if keyed {
            let answer = Answer { replayed: true, ..Answer::new(200, Some(Declared::Done)) };
            return Some(Outcome::Answered(answer));
        }
        Some(answered(200, Some(Declared::AlreadyDone), None))
    }

    /// Effect and answer in one transaction.
    fn commit(&self, request: &Request) -> Outcome {
        let body_hash = self.sim.random();
        self.sim.record(Record::EffectCommitted { work: request.work.clone() });
        let (idempotency_key, fingerprint) = (request.key.clone(), request.fingerprint);
        self.sim.record(Record::AnswerStored { idempotency_key, fingerprint, body_hash });
        self.state().answers.insert(request.key.clone(), body_hash);
        self.give(request, body_hash);
        // Some receivers do not speak the protocol.
        let speaks = !request.fingerprint.is_multiple_of(3);
        answered(200, speaks.then_some(Declared::Done), None)
    }

    fn give(&self, request: &Request, body_hash: u64) {
        let (idempotency_key, fingerprint) = (request.key.clone(), request.fingerprint);
        self.sim.record(Record::AnswerGiven { idempotency_key, fingerprint, body_hash });
    }

    /// The external call: an intent, the call, its outcome. After an outcome that nobody knows the provider is asked first.
    /// Returns whether the outcome is known now.
    async fn call_outside(&self, request: &Request) -> bool {
        let sim = &self.sim;
        let reference: Arc<str> = format!("{}/bind", request.key).into();
        let before = self.state().intents.get(&reference).copied();
        if before == Some(true) {
            return true;
        }
        if before.is_none() {
            sim.record(Record::IntentWritten { reference: reference.clone() });
            self.state().intents.insert(reference.clone(), false);
        } else if !sim.has(Bug::IntentResent) {
            sim.latency().await;
            sim.record(Record::LookedUp { reference: reference.clone() });
            if self.state().done_outside.contains(&reference) {
                return self.outcome_known(&reference);
            }
        }
        sim.record(Record::IntentSent { reference: reference.clone() });
        sim.latency().await;
        let lost = sim.strikes(3_000);
        if !lost || sim.one_in(2) {
            self.state().done_outside.insert(reference.clone());
        }
        if lost {
            sim.count(Fault::ExternalLost);
            return false;
        }
        self.outcome_known(&reference)
    }

    fn outcome_known(&self, reference: &Arc<str>) -> bool {
        self.sim.record(Record::OutcomeWritten { reference: reference.clone() });
        self.state().intents.insert(reference.clone(), true);
        true
    }

    fn state(&self) -> MutexGuard<'_, Known> {
        self.state.lock().unwrap()
    }
}

/// The parts of a request that matter here.
struct Request {
    key: Arc<str>,
    fingerprint: u64,
    work: WorkStep,
}

impl Request {
    fn of(call: &StageCall) -> Request {
        let mut hasher = DefaultHasher::new();
        call.body.hash(&mut hasher);
        let parts: Vec<&str> = call.idempotency_key.split('/').collect();
        let [group, quote, stage, epoch] = parts[..] else { unreachable!("the keys of the simulation are plain") };
        assert_eq!(stage, call.stage.as_str(), "the key names the stage");
        let work =
            WorkStep { key: WorkKey::new([group, quote]), stage: call.stage.clone(), epoch: epoch.parse().unwrap() };
        Request { key: call.idempotency_key.as_str().into(), fingerprint: hasher.finish(), work }
    }
}

fn answered(status: u16, declared: Option<Declared>, retry_after: Option<Duration>) -> Outcome {
    Outcome::Answered(Answer { retry_after, ..Answer::new(status, declared) })
}
