#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use super::*;
use crate::position::Generation;

const ONE: OwnerId = OwnerId(1);
const TWO: OwnerId = OwnerId(2);

fn rules() -> Rules {
    let stage = |name| StageRule { name: StageName::new(name), attempt_limit: 2 };
    Rules { stages: vec![stage("A"), stage("B")], consumers: vec!["sink".into()], at_rest: true }
}

fn key() -> WorkKey {
    WorkKey::new(["g", "q"])
}

fn stage(name: &str) -> StageName {
    StageName::new(name)
}

fn step(name: &str) -> WorkStep {
    WorkStep { key: key(), stage: stage(name), epoch: 0 }
}

fn submitted() -> Record {
    Record::Submitted { key: key(), stage: stage("A") }
}

fn closed() -> Record {
    Record::Closed { key: key() }
}

fn claim(fence: i64, owner: OwnerId) -> Record {
    Record::ClaimWritten { key: key(), stage: stage("A"), epoch: 0, fence, owner }
}

fn checkpoint(fence: i64, owner: OwnerId, deferred: bool) -> Record {
    Record::CheckpointWritten { key: key(), stage: stage("A"), fence, owner, deferred }
}

fn entered(name: &str, cause: Cause) -> Record {
    Record::StageEntered { key: key(), stage: stage(name), cause }
}

fn request(fingerprint: u64) -> Record {
    Record::RequestReceived { work: step("A"), idempotency_key: "k".into(), fingerprint, attempt: 1, fence: 1 }
}

fn stored(body_hash: u64) -> Record {
    Record::AnswerStored { idempotency_key: "k".into(), fingerprint: 7, body_hash }
}

fn given(body_hash: u64) -> Record {
    Record::AnswerGiven { idempotency_key: "k".into(), fingerprint: 7, body_hash }
}

fn committed(id: &str, lsn: u64, key: &str) -> Record {
    let position = Position { generation: Generation::FIRST, commit_lsn: Lsn(lsn), ordinal: 0 };
    Record::EventCommitted { id: id.into(), position, key: Some(key.into()) }
}

fn delivered(id: &str) -> Record {
    Record::EventDelivered { consumer: "sink".into(), id: id.into() }
}

fn confirmed(lsn: u64, durable: u64, settled: u64, policy: ConfirmPolicy) -> Record {
    let settled = vec![("sink".into(), Lsn(settled))];
    Record::Confirmed { slot: "s".into(), lsn: Lsn(lsn), durable: Lsn(durable), settled, policy }
}

fn intent(kind: &str) -> Record {
    let reference = "ref".into();
    match kind {
        "written" => Record::IntentWritten { reference },
        "sent" => Record::IntentSent { reference },
        "outcome" => Record::OutcomeWritten { reference },
        _ => Record::LookedUp { reference },
    }
}

fn found(records: &[Record]) -> Vec<Invariant> {
    checked(records, &rules()).into_iter().map(|violation| violation.invariant).collect()
}

fn legal(records: &[Record]) {
    assert_eq!(checked(records, &rules()), []);
}

/// What is found in the records is found in their lines, too.
fn checked(records: &[Record], rules: &Rules) -> Vec<Violation> {
    let found = check(records, rules);
    let text = lines::write(rules, records);
    let read = lines::read(&text).unwrap_or_else(|bad| panic!("{bad}: {text}"));
    assert_eq!((&read.rules, read.records.len()), (rules, records.len()));
    assert_eq!(check(&read.records, &read.rules), found, "{text}");
    found
}

#[test]
fn i1_an_effect_may_be_asked_for_twice_and_happen_once() {
    let effect = |epoch| Record::EffectCommitted { work: WorkStep { epoch, ..step("A") } };
    legal(&[request(7), effect(0), request(7), effect(1)]);
    assert_eq!(found(&[effect(0), effect(0)]), [Invariant::I1]);
}

#[test]
fn i2_a_submission_ends_terminal_or_parked_with_a_reason() {
    let parked = |reason: &str| Record::Parked { key: key(), reason: reason.into() };
    legal(&[submitted(), closed()]);
    legal(&[submitted(), parked("PERMANENT (HTTP 422)")]);
    assert_eq!(found(&[submitted()]), [Invariant::I2]);
    assert_eq!(found(&[submitted(), parked("")]), [Invariant::I2]);
    assert_eq!(found(&[submitted(), parked("no"), claim(1, ONE)]), [Invariant::I2]);
    assert_eq!(found(&[submitted(), parked("no"), Record::Resumed { key: key(), fence: 1 }]), [Invariant::I2]);
}

#[test]
fn i2_an_event_comes_to_every_consumer_and_nothing_is_missed_before_the_rest() {
    let history = [committed("a", 1, "k"), committed("b", 2, "k"), delivered("a")];
    assert_eq!(found(&history), [Invariant::I2]);
    assert_eq!(checked(&history, &Rules { at_rest: false, ..rules() }), []);
}

#[test]
fn i3_a_fence_rises_and_has_one_writer() {
    legal(&[claim(1, ONE), checkpoint(1, ONE, false), claim(2, TWO), claim(3, ONE), checkpoint(3, ONE, false)]);
    assert_eq!(found(&[claim(1, ONE), claim(1, TWO)]), [Invariant::I3]);
    assert_eq!(found(&[claim(2, ONE), claim(1, ONE)]), [Invariant::I3]);
    assert_eq!(found(&[claim(1, ONE), checkpoint(1, TWO, false)]), [Invariant::I3]);
    assert_eq!(found(&[claim(1, ONE), claim(2, TWO), checkpoint(1, ONE, false)]), [Invariant::I3]);
    let twice = [claim(1, ONE), checkpoint(1, ONE, false), checkpoint(1, ONE, false)];
    assert_eq!(found(&twice), [Invariant::I3]);
    let cancelled = [claim(1, ONE), Record::FenceRaised { key: key(), fence: 2 }, checkpoint(1, ONE, false)];
    assert_eq!(found(&cancelled), [Invariant::I3]);
    let unraised = [submitted(), Record::FenceRaised { key: key(), fence: 0 }, closed()];
    assert_eq!(found(&unraised), [Invariant::I3]);
}

#[test]
fn i4_only_compensation_and_operators_move_a_stage_back() {
    let on = [submitted(), entered("B", Cause::Success), closed()];
    legal(&on);
    legal(&[&on[..], &[entered("A", Cause::Operator), entered("A", Cause::Compensation)]].concat());
    assert_eq!(found(&[&on[..], &[entered("A", Cause::Success)]].concat()), [Invariant::I4]);
    assert_eq!(found(&[&on[..], &[entered("B", Cause::Success)]].concat()), [Invariant::I4]);
}

#[test]
fn i5_one_key_has_one_fingerprint_and_one_answer() {
    legal(&[request(7), stored(1), given(1), given(1)]);
    assert_eq!(found(&[request(7), request(8)]), [Invariant::I5]);
    assert_eq!(found(&[request(7), stored(1), given(2)]), [Invariant::I5]);
    assert_eq!(found(&[stored(1), stored(2)]), [Invariant::I5]);
}

#[test]
fn i6_repeats_are_free_and_first_deliveries_keep_the_order_of_their_key() {
    let log = [committed("a", 1, "k"), committed("b", 2, "k"), committed("c", 3, "other")];
    let all = |ids: &[&str]| [&log[..], &ids.iter().map(|id| delivered(id)).collect::<Vec<_>>()].concat();
    legal(&all(&["c", "a", "b", "a", "b"]));
    legal(&all(&["a", "a", "c", "b"]));
    assert_eq!(found(&all(&["b", "a", "c"])), [Invariant::I6, Invariant::I6]);
    assert_eq!(found(&[delivered("x")]), [Invariant::I6]);
}

#[test]
fn i7_requests_stay_within_the_limit_and_the_deferrals() {
    legal(&[request(7), request(7)]);
    legal(&[claim(1, ONE), request(7), checkpoint(1, ONE, true), request(7), request(7)]);
    let uncounted = [claim(1, ONE), request(7), checkpoint(1, ONE, false), request(7), request(7)];
    assert_eq!(found(&uncounted), [Invariant::I7]);
    let resumed = Record::Resumed { key: key(), fence: 1 };
    let twice = [submitted(), request(7), request(7), resumed, request(7), request(7), closed()];
    legal(&twice);
    assert_eq!(found(&[&twice[..], &[request(7)]].concat()), [Invariant::I7]);
}

#[test]
fn i8_a_call_is_sent_again_only_behind_a_look_up() {
    let history = |kinds: &[&str]| kinds.iter().map(|kind| intent(kind)).collect::<Vec<_>>();
    legal(&history(&["written", "sent", "looked up", "sent", "outcome"]));
    assert_eq!(found(&history(&["written", "sent", "sent"])), [Invariant::I8]);
    assert_eq!(found(&history(&["sent"])), [Invariant::I8]);
}

#[test]
fn i9_a_confirm_waits_for_what_its_policy_names() {
    legal(&[confirmed(5, 5, 5, ConfirmPolicy::Sinks), confirmed(9, 9, 5, ConfirmPolicy::Journal)]);
    assert_eq!(found(&[confirmed(6, 5, 9, ConfirmPolicy::Journal)]), [Invariant::I9]);
    assert_eq!(found(&[confirmed(6, 9, 5, ConfirmPolicy::Sinks)]), [Invariant::I9]);
}
