#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
use super::*;
use crate::executor::play::{Play, stage};
use crate::settings::UnfencedWrites;
use postrider_core::outcome::{Answer, Declared, Lost, NotSent, Outcome};
use postrider_core::ports::{Checkpoint, CheckpointReply, ClaimReply, Reading, Transition, Untold};
use postrider_core::snapshot::Snapshot;
use postrider_core::stage::{Next, StagePolicy};
use postrider_core::work::{OwnerId, StageName, StageState};
use std::collections::BTreeMap;

/// A row in the stage A whose call is under way.
struct Scene {
    play: Play,
    ticket: CallTicket,
}

impl Scene {
    fn calling(class: StageClass) -> Scene {
        let first = StagePolicy { class, next: vec![Next::of("B"), Next::End], ..stage("A", "http://core", None) };
        let mut play = Play::new(vec![first, stage("B", "http://core", None)], BTreeMap::new());
        play.submit("A", 1);
        // It is claimed, and then its call leaves.
        play.step();
        play.start();
        let ticket = play.calling().next().unwrap().clone();
        Scene { play, ticket }
    }

    /// The row as our claim left it.
    fn claimed(&self) -> WorkVersion {
        WorkVersion {
            definition: Some(self.ticket.step.definition.clone()),
            state: StageState::Running,
            attempt_count: 1,
            fence: self.ticket.fence,
            lease_owner: Some(OwnerId(1)),
            ..WorkVersion::unclaimed(self.ticket.key.clone(), self.ticket.step.stage.as_str())
        }
    }

    /// As somebody wrote it to B.
    fn at_b(&self, fence_more: i64) -> WorkVersion {
        let claimed = self.claimed();
        let (stage, state) = (StageName::new("B"), StageState::Pending);
        WorkVersion { stage, state, fence: claimed.fence + fence_more, lease_owner: None, ..claimed }
    }

    fn ends(&mut self, outcome: &Outcome) {
        self.play.state.called(&self.ticket, outcome);
    }

    fn is_read(&mut self, version: WorkVersion) {
        let keys = self.play.state.next_reads();
        assert_eq!(keys, std::slice::from_ref(&self.ticket.key), "the row is read");
        self.play.state.resolve(&keys, Reading { rows: vec![version], snapshot: Snapshot::default() });
    }

    /// The one outcome that is written now.
    fn written(&mut self) -> (String, Transition) {
        let mut checkpoints = self.play.state.next_checkpoints();
        assert_eq!(checkpoints.len(), 1, "{checkpoints:?}");
        let checkpoint = checkpoints.remove(0);
        (checkpoint.stage.to_string(), checkpoint.transition)
    }

    /// Writes the outcome, is refused, and reads the row.
    fn is_refused(&mut self, version: WorkVersion) {
        let checkpoints = self.play.state.next_checkpoints();
        assert_eq!(checkpoints.len(), 1, "{checkpoints:?}");
        self.play.state.checkpoints_replied(checkpoints, Vec::new());
        self.is_read(version);
    }

    /// What is claimed now: stage, fence that was seen, reason of a refusal.
    fn claims(&mut self) -> Vec<(String, i64, Option<String>)> {
        assert_eq!(self.play.state.next_checkpoints(), [], "nothing is written beside the claim");
        let (requests, _) = self.play.state.next_claims();
        requests.into_iter().map(|it| (it.stage.to_string(), it.seen_fence, it.refusal)).collect()
    }

    fn counted(&self) -> (u64, u64, u64) {
        let telemetry = &self.play.state.telemetry;
        let of = |stage: &str| StageLabel { stage: stage.to_owned() };
        (
            telemetry.done_by_receiver.get_or_create(&of("A")).get(),
            telemetry.unfenced_writes.get_or_create(&of("B")).get(),
            telemetry.stale_checkpoints.get(),
        )
    }

    fn slots_used(&self) -> u32 {
        self.play.state.in_use.values().sum()
    }
}

/// The attempt was in A, wherever the row is.
fn assert_is_of_a(untold: Option<&Untold>) {
    let told = untold.map(|attempt| (attempt.stage.as_str(), attempt.reason.starts_with("UNFENCED_WRITE: ")));
    assert_eq!(told, Some(("A", true)));
}

fn answered(status: u16, declared: Declared) -> Outcome {
    Outcome::Answered(Answer::new(status, Some(declared)))
}

fn to_b(fence: i64) -> Vec<(String, i64, Option<String>)> {
    vec![("B".to_owned(), fence, None)]
}

#[test]
fn e08_whatever_was_answered_a_row_that_its_receiver_moved_on_is_a_success() {
    let outcomes = [
        answered(200, Declared::Done),
        answered(409, Declared::AlreadyDone),
        answered(409, Declared::InProgress),
        answered(412, Declared::Stale),
        answered(500, Declared::Unknown),
        answered(422, Declared::Permanent),
        Outcome::Lost(Lost::Timeout),
    ];
    for outcome in outcomes {
        let mut scene = Scene::calling(StageClass::SameTx);
        scene.ends(&outcome);
        assert_eq!(scene.play.state.next_checkpoints(), [], "the row has the first word: {outcome:?}");
        let row = scene.at_b(1);
        scene.is_read(row);
        assert_eq!(scene.claims(), to_b(2), "{outcome:?}");
        assert_eq!(scene.counted(), (1, 0, 0), "{outcome:?}");
    }
}

#[test]
fn a_row_that_its_receiver_closed_is_done_and_forgotten() {
    let mut scene = Scene::calling(StageClass::SameTx);
    scene.ends(&answered(200, Declared::Done));
    let closed = WorkVersion { stage: StageName::new("A"), state: StageState::Done, closed: true, ..scene.at_b(1) };
    scene.is_read(closed);
    assert_eq!((scene.claims(), scene.counted(), scene.play.state.rows.len()), (vec![], (1, 0, 0), 0));
}

#[test]
fn a_success_without_an_advance_is_parked_and_says_what_to_do() {
    for outcome in [answered(200, Declared::Done), answered(409, Declared::AlreadyDone)] {
        let mut scene = Scene::calling(StageClass::SameTx);
        scene.ends(&outcome);
        let row = scene.claimed();
        scene.is_read(row);
        let (stage, Transition::Park { reason }) = scene.written() else { panic!("it is parked") };
        assert!(stage == "A" && reason.starts_with("NOT_ADVANCED: "), "{reason}");
        assert!(reason.contains("postrider_advance_"), "{reason}");
    }
}

#[test]
fn a_row_that_is_still_the_claims_is_judged_as_any_other() {
    let mut scene = Scene::calling(StageClass::SameTx);
    scene.ends(&Outcome::Lost(Lost::Timeout));
    let row = scene.claimed();
    scene.is_read(row);
    assert!(matches!(scene.written(), (_, Transition::Retry { .. })));
    // What was not sent changed nothing, and costs no read.
    let mut scene = Scene::calling(StageClass::SameTx);
    scene.ends(&Outcome::NotSent(NotSent::Refused));
    assert_eq!(scene.play.state.next_reads(), []);
    assert!(matches!(scene.written(), (_, Transition::Defer { counted: false, .. })));
}

/// The next stage need not wait for an answer that says nothing new.
#[test]
fn e07_an_advance_that_the_log_shows_ends_the_attempt_before_its_answer_comes() {
    let mut scene = Scene::calling(StageClass::SameTx);
    let moved = scene.at_b(1);
    scene.play.state.observe_version(moved, 7);
    assert_eq!(scene.claims(), to_b(2));
    assert_eq!((scene.counted(), scene.slots_used()), ((1, 0, 0), 2), "the call still has its slot");
    scene.ends(&Outcome::Lost(Lost::Timeout));
    assert_eq!(scene.play.state.next_reads(), []);
    assert_eq!((scene.claims(), scene.counted(), scene.slots_used()), (vec![], (1, 0, 0), 1));
}

#[test]
fn an_advance_of_another_class_waits_for_its_call() {
    let mut scene = Scene::calling(StageClass::Keyed);
    let moved = scene.at_b(1);
    scene.play.state.observe_version(moved, 7);
    assert_eq!((scene.claims(), scene.counted()), (vec![], (0, 0, 0)));
}

/// The receiver was slow, we gave the attempt up, and its commit came before our own word did.
#[test]
fn an_advance_that_comes_before_our_outcome_is_written_is_a_success_and_not_stale() {
    let mut scene = Scene::calling(StageClass::SameTx);
    scene.ends(&Outcome::Lost(Lost::Timeout));
    let row = scene.claimed();
    scene.is_read(row);
    let moved = scene.at_b(1);
    scene.is_refused(moved);
    assert_eq!((scene.claims(), scene.counted()), (to_b(2), (1, 0, 0)));
}

#[test]
fn e09_a_row_that_was_written_without_its_fence_is_parked_where_it_was_put() {
    for class in [StageClass::Keyed, StageClass::SameTx] {
        let mut scene = Scene::calling(class);
        let mut done = answered(200, Declared::Done);
        if let Outcome::Answered(answer) = &mut done {
            answer.next = Some("DONE".to_owned());
        }
        scene.ends(&done);
        let row = scene.at_b(0);
        if class == StageClass::Keyed {
            scene.is_refused(row)
        } else {
            scene.is_read(row)
        }
        let (requests, _) = scene.play.state.next_claims();
        let [request] = &requests[..] else { panic!("{requests:?}") };
        assert_eq!((request.stage.as_str(), request.seen_fence), ("B", 1));
        assert!(request.refusal.as_ref().is_some_and(|reason| reason.starts_with("UNFENCED_WRITE: ")), "{request:?}");
        assert_is_of_a(request.untold.as_ref());
        let parked = ClaimReply::Parked { key: scene.ticket.key.clone(), fence: 2 };
        scene.play.state.claims_replied(&requests, vec![parked]);
        assert_eq!((scene.claims(), scene.counted().1, scene.slots_used()), (vec![], 1, 0), "{class:?}");
        assert!(scene.play.state.rows_unfenced.is_empty());
    }
}

#[test]
fn e09_by_the_other_policy_the_row_goes_on_from_where_it_was_put() {
    let mut scene = Scene::calling(StageClass::Keyed);
    scene.play.state.settings.unfenced = UnfencedWrites::Reread;
    scene.ends(&Outcome::Lost(Lost::Timeout));
    let row = scene.at_b(0);
    scene.is_refused(row);
    let (requests, _) = scene.play.state.next_claims();
    let [request] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!((request.stage.as_str(), request.seen_fence, &request.refusal), ("B", 1, &None));
    assert_is_of_a(request.untold.as_ref());
    assert_eq!(scene.counted(), (0, 1, 0));
    scene.play.state.claims_replied(&requests, vec![ClaimReply::AtLimit { key: scene.ticket.key.clone(), fence: 2 }]);
    assert!(scene.play.state.rows_unfenced.is_empty(), "it is told once");
}

/// It is given back there, and asked for as any other.
#[test]
fn e09_by_the_other_policy_a_running_row_goes_on_from_the_stage_that_it_was_put_into() {
    let mut scene = Scene::calling(StageClass::Keyed);
    scene.play.state.settings.unfenced = UnfencedWrites::Reread;
    scene.ends(&Outcome::Lost(Lost::Timeout));
    let moved = WorkVersion { state: StageState::Running, lease_owner: Some(OwnerId(1)), ..scene.at_b(0) };
    scene.is_refused(moved.clone());
    let lost = scene.play.state.next_checkpoints();
    let [Checkpoint { stage, transition: Transition::Release, untold, .. }] = &lost[..] else { panic!("{lost:?}") };
    assert_eq!(stage.as_str(), "B");
    assert_is_of_a(untold.as_ref());
    // The reply was lost, and somebody writes the row once more.
    scene.play.state.checkpoints_lost(lost);
    scene.is_read(WorkVersion { stage: StageName::new("A"), state: StageState::Pending, lease_owner: None, ..moved });
    let (requests, _) = scene.play.state.next_claims();
    assert_is_of_a(requests[0].untold.as_ref());
}

/// Somebody moved the stage of the running row and nothing else: it still is our claim's, and no other may write it.
#[test]
fn e09_a_running_row_whose_stage_was_changed_is_parked_by_its_holder() {
    let mut scene = Scene::calling(StageClass::Keyed);
    scene.ends(&Outcome::Lost(Lost::Timeout));
    let moved = WorkVersion { state: StageState::Running, lease_owner: Some(OwnerId(1)), ..scene.at_b(0) };
    scene.is_refused(moved);
    let checkpoints = scene.play.state.next_checkpoints();
    let [Checkpoint { stage, transition: Transition::Park { reason }, untold, .. }] = &checkpoints[..] else {
        panic!("{checkpoints:?}")
    };
    assert!(stage.as_str() == "B" && reason.starts_with("UNFENCED_WRITE: "), "{reason}");
    assert_is_of_a(untold.as_ref());
}

#[test]
fn an_unfenced_write_is_told_when_the_log_shows_it_and_once() {
    let mut scene = Scene::calling(StageClass::Keyed);
    let row = scene.at_b(0);
    scene.play.state.observe_version(row.clone(), 7);
    assert_eq!(scene.counted().1, 1, "before the call has ended");
    scene.ends(&Outcome::Lost(Lost::Timeout));
    scene.is_refused(row);
    assert_eq!(scene.counted().1, 1);
}

#[test]
fn our_own_outcome_is_never_taken_for_somebody_elses() {
    let mut scene = Scene::calling(StageClass::Keyed);
    scene.ends(&Outcome::Lost(Lost::Timeout));
    let row = WorkVersion { state: StageState::Retry, lease_owner: None, ..scene.claimed() };
    // In the log's own time, and by a statement whose reply was lost and that ran all the same.
    scene.play.state.observe_version(row.clone(), 7);
    scene.is_refused(row);
    assert_eq!(scene.counted(), (0, 0, 0));
    let mut scene = Scene::calling(StageClass::Keyed);
    scene.play.state.observe_version(scene.claimed(), 7);
    scene.ends(&Outcome::Lost(Lost::Timeout));
    let checkpoints = scene.play.state.next_checkpoints();
    let written = CheckpointReply::Written { key: scene.ticket.key.clone() };
    scene.play.state.checkpoints_replied(checkpoints, vec![written]);
    assert_eq!(scene.counted(), (0, 0, 0));
}

/// It was an advance since B had no free slot, and its statement is written behind the read that has it sent again.
#[test]
fn an_advance_that_is_written_late_is_our_own_although_the_next_stage_is_free_by_then() {
    let mut scene = Scene::calling(StageClass::Keyed);
    let Outcome::Answered(done) = answered(200, Declared::Done) else { unreachable!("it is an answer") };
    scene.ends(&Outcome::Answered(Answer { next: Some("B".to_owned()), ..done }));
    scene.play.state.draining = true;
    let lost = scene.play.state.next_checkpoints();
    assert!(matches!(lost[0].transition, Transition::Advance { .. }), "{lost:?}");
    scene.play.state.draining = false;
    scene.play.state.checkpoints_lost(lost);
    scene.is_read(scene.claimed());
    let row = scene.at_b(0);
    scene.is_refused(row);
    assert_eq!(scene.counted(), (0, 0, 0));
}

/// Whose a claim is, the fence alone says then.
#[test]
fn a_table_without_owners_is_written_under_the_fence_and_nothing_in_it_is_unfenced() {
    let mut scene = Scene::calling(StageClass::Keyed);
    scene.play.state.settings.names_owner = false;
    let row = WorkVersion { lease_owner: None, ..scene.claimed() };
    scene.play.state.observe_version(row.clone(), 7);
    scene.ends(&Outcome::Lost(Lost::Timeout));
    // Another session had the row locked.
    scene.is_refused(row);
    assert_eq!(scene.counted(), (0, 0, 0));
    let held = scene.play.state.rows.row(&scene.ticket.key).map(|row| matches!(row.phase, Phase::Held(..)));
    assert_eq!(held, Some(true), "the outcome is written a little later");
}
