//! The model of the protocol: nothing is broken in any of its states, and what is left out of the protocol on purpose is found.

use postrider_core::history::check;
use postrider_tests::model::{Bounds, Finding, Mistake, Searched, replay, rules, search};

/// One row, and any two things that can go wrong.
const ONE_ROW: Bounds = Bounds {
    rows: 1,
    same_tx: false,
    misfortunes: 2,
    crashes: 2,
    losses: 2,
    delays: 2,
    expiries: 2,
    resumes: 2,
    cancels: 2,
    lost_commits: 0,
    depth_max: usize::MAX,
};

/// Two rows that share three executors, and any one thing that can go wrong.
const TWO_ROWS: Bounds = Bounds { rows: 2, misfortunes: 1, ..ONE_ROW };

/// With any two things it is some ten million states: those within so many steps are walked.
const TWO_ROWS_BOUNDED: Bounds = Bounds { rows: 2, depth_max: 9, ..ONE_ROW };

fn holds(name: &str, bounds: Bounds, mistakes: &[Mistake]) -> Searched {
    let searched = search(bounds, mistakes, None);
    let Searched { states, steps, depth, whole, found } = &searched;
    println!("{name}: {states} states, {steps} steps, depth {depth}, whole {whole}");
    if let Some(found) = found {
        panic!("{name}: {:?} after {:#?}", found.finding, replay(bounds, mistakes, found));
    }
    searched
}

#[test]
fn no_state_of_one_row_breaks_an_invariant() {
    assert!(holds("one row", ONE_ROW, &[]).whole);
}

#[test]
fn no_state_of_two_rows_breaks_an_invariant() {
    assert!(holds("two rows", TWO_ROWS, &[]).whole);
    assert!(holds("two rows, two misfortunes", TWO_ROWS_BOUNDED, &[]).states > 100_000);
}

/// The mistake is found, and the history checker finds the same in what happens on the way there.
fn finds(mistakes: &[Mistake], bounds: Bounds, finding: Finding) {
    let searched = search(bounds, mistakes, Some(finding));
    let Some(found) = &searched.found else {
        panic!("{mistakes:?} do not lead to {finding:?} in {} states", searched.states);
    };
    let history = replay(bounds, mistakes, found);
    let violations = check(&history, &rules());
    let told = violations.iter().any(|violation| violation.invariant == finding.invariant());
    assert!(told, "{mistakes:?} {finding:?}: {violations:?} of {history:#?}");
    println!("{mistakes:?}: {finding:?} after {} states", searched.states);
}

#[test]
fn a_checkpoint_that_ignores_the_fence_is_found() {
    finds(&[Mistake::CheckpointIgnoresFence], ONE_ROW, Finding::WrittenByStranger);
}

#[test]
fn a_checkpoint_without_owner_and_state_is_found() {
    let mistakes = [Mistake::CheckpointIgnoresOwner, Mistake::CheckpointIgnoresState];
    finds(&mistakes, ONE_ROW, Finding::WrittenByStranger);
}

/// Owner and state are each a second line: either alone holds while fences are never given twice and everybody raises them.
#[test]
fn a_checkpoint_that_ignores_the_owner_is_found_where_the_server_loses_a_claim() {
    let bounds = Bounds { lost_commits: 1, ..ONE_ROW };
    let lossy = [Mistake::ClaimNotDurable];
    let guarded = search(bounds, &lossy, Some(Finding::WrittenByStranger));
    assert!(guarded.found.is_none() && guarded.whole);
    finds(&[Mistake::ClaimNotDurable, Mistake::CheckpointIgnoresOwner], bounds, Finding::WrittenByStranger);
}

#[test]
fn a_checkpoint_that_ignores_the_state_is_found_where_a_cancel_keeps_the_fence() {
    let careless = [Mistake::CancelKeepsFence];
    let guarded = search(ONE_ROW, &careless, Some(Finding::WrittenByStranger));
    assert!(guarded.found.is_none() && guarded.whole);
    finds(&[Mistake::CancelKeepsFence, Mistake::CheckpointIgnoresState], ONE_ROW, Finding::WrittenByStranger);
}

#[test]
fn owner_and_state_alone_are_second_lines_of_a_checkpoint() {
    assert!(holds("without the owner", ONE_ROW, &[Mistake::CheckpointIgnoresOwner]).whole);
    assert!(holds("without the state", ONE_ROW, &[Mistake::CheckpointIgnoresState]).whole);
}

#[test]
fn a_checkpoint_without_a_guard_moves_a_stage_back() {
    let mistakes = [
        Mistake::CheckpointIgnoresStage,
        Mistake::CheckpointIgnoresFence,
        Mistake::CheckpointIgnoresOwner,
        Mistake::CheckpointIgnoresState,
    ];
    finds(&mistakes, ONE_ROW, Finding::StageBack);
}

#[test]
fn attempts_as_a_fence_are_given_twice_after_a_resume() {
    let bounds = Bounds { cancels: 0, ..ONE_ROW };
    finds(&[Mistake::AttemptIsFence], bounds, Finding::FenceTwice);
    // And somebody who slept through it writes over the outcome of another.
    finds(&[Mistake::AttemptIsFence, Mistake::CheckpointIgnoresOwner], bounds, Finding::WrittenByStranger);
}

#[test]
fn a_claim_that_is_not_durable_is_found() {
    let bounds = Bounds { lost_commits: 1, ..ONE_ROW };
    finds(&[Mistake::ClaimNotDurable], bounds, Finding::FenceTwice);
    finds(&[Mistake::ClaimNotDurable], bounds, Finding::RequestBeyondLimit);
}

#[test]
fn a_cancel_that_keeps_the_fence_is_found() {
    finds(&[Mistake::CancelKeepsFence], ONE_ROW, Finding::FenceTwice);
}

#[test]
fn a_claim_that_counts_no_attempt_is_found() {
    finds(&[Mistake::AttemptsUncounted], ONE_ROW, Finding::RequestBeyondLimit);
}

#[test]
fn a_key_that_changes_with_the_attempt_is_found() {
    finds(&[Mistake::KeyPerAttempt], ONE_ROW, Finding::EffectTwice);
}

#[test]
fn rows_that_nobody_takes_over_are_found() {
    finds(&[Mistake::NoTakeOver], ONE_ROW, Finding::Stuck);
}

/// The first stage's receiver moves its row on; the fence alone keeps it from doing its work twice.
const MOVED_ON: Bounds = Bounds { same_tx: true, ..ONE_ROW };

#[test]
fn no_state_of_a_row_that_its_receiver_moves_on_breaks_an_invariant() {
    assert!(holds("one row, moved on by its receiver", MOVED_ON, &[]).whole);
    let two = Bounds { rows: 2, misfortunes: 1, ..MOVED_ON };
    assert!(holds("two rows, moved on by their receiver", two, &[]).whole);
}

#[test]
fn a_receiver_that_commits_past_its_refusal_is_found() {
    finds(&[Mistake::StaleIsCommitted], MOVED_ON, Finding::EffectTwice);
}

#[test]
fn an_advance_that_keeps_the_fence_is_found() {
    finds(&[Mistake::AdvanceKeepsFence], MOVED_ON, Finding::FenceTwice);
}

/// The guards are a second line: an outcome that is written beside an advance is refused by them, and found without them.
#[test]
fn a_checkpoint_beside_an_advance_is_refused_by_its_guard_and_found_without_it() {
    let beside = Mistake::CheckpointBesideAdvance;
    assert!(holds("a checkpoint beside an advance", MOVED_ON, &[beside]).whole);
    let unguarded = [
        beside,
        Mistake::CheckpointIgnoresStage,
        Mistake::CheckpointIgnoresFence,
        Mistake::CheckpointIgnoresOwner,
        Mistake::CheckpointIgnoresState,
    ];
    finds(&unguarded, MOVED_ON, Finding::WrittenByStranger);
}
