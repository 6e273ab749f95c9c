//! The simulation finds nothing in the engine, and finds what is built in on purpose.

use postrider_core::history::{Invariant, check, lines};
use postrider_tests::sim::campaign;
use postrider_tests::sim::scenario::Scenario;
use postrider_tests::sim::scenario::alone::{Hidden, begun_anew_meanwhile, overtaken_within_a_sweep};
use postrider_tests::sim::shared::Bug;
use std::time::Duration;

/// A planted bug must be found within so many seeds.
const SEEDS_TO_FIND: u64 = 40;

#[test]
fn a_thousand_seeds_of_faults_break_no_invariant_and_hit_every_await_and_fault() {
    let (text, well) = campaign::run(Scenario::default(), 0, 1_000).print();
    assert!(well, "{text}");
    println!("{text}");
}

/// The seed that shows the invariant broken; few rows find it as well and faster.
fn find(bug: Bug, invariant: Invariant, scenario: Scenario) {
    let scenario = Scenario { bug: Some(bug), rows: 40, ..scenario };
    let shows = |seed: &u64| scenario.run(*seed).violations.iter().any(|violation| violation.invariant == invariant);
    let found = (0..SEEDS_TO_FIND).find(shows);
    let seed = found.unwrap_or_else(|| panic!("{SEEDS_TO_FIND} seeds with {bug:?} do not break {invariant}"));
    // Whoever reads the lines of that seed finds the same.
    let report = scenario.run(seed);
    let read = lines::read(&lines::write(&report.rules, &report.history)).unwrap();
    assert_eq!(check(&read.records, &read.rules), report.violations);
}

#[test]
fn a_receiver_that_ignores_keys_breaks_i1() {
    find(Bug::ReceiverIgnoresKeys, Invariant::I1, Scenario::default());
}

#[test]
fn a_row_that_the_log_and_the_table_forget_breaks_i2() {
    find(Bug::RowForgotten, Invariant::I2, Scenario::default());
}

#[test]
fn an_event_that_a_sink_loses_breaks_i2() {
    find(Bug::SinkLoses, Invariant::I2, Scenario::default());
}

#[test]
fn a_claim_that_keeps_the_fence_breaks_i3() {
    find(Bug::ClaimKeepsFence, Invariant::I3, Scenario::default());
}

#[test]
fn a_receiver_that_commits_past_its_refusal_breaks_i1() {
    find(Bug::AdvanceSwallowed, Invariant::I1, Scenario::default());
}

#[test]
fn a_checkpoint_beside_an_advance_breaks_i3() {
    find(Bug::CheckpointBesideAdvance, Invariant::I3, Scenario::default());
}

#[test]
fn a_checkpoint_without_its_guard_breaks_i4() {
    find(Bug::CheckpointUnguarded, Invariant::I4, Scenario::default());
}

#[test]
fn an_answer_that_is_not_stored_breaks_i5() {
    find(Bug::AnswerNotStored, Invariant::I5, Scenario::default());
}

#[test]
fn a_sink_that_reorders_breaks_i6() {
    find(Bug::SinkReorders, Invariant::I6, Scenario::default());
}

#[test]
fn claims_that_count_no_attempts_break_i7() {
    find(Bug::AttemptsUncounted, Invariant::I7, Scenario { attempt_limit: 2, fault_rate: 120, ..Scenario::default() });
}

#[test]
fn an_external_call_that_is_sent_again_blindly_breaks_i8() {
    find(Bug::IntentResent, Invariant::I8, Scenario::default());
}

#[test]
fn a_journal_that_lies_about_its_fsync_breaks_i9() {
    find(Bug::JournalLies, Invariant::I9, Scenario::default());
}

#[test]
fn without_a_bug_tight_limits_and_many_faults_break_nothing() {
    let scenario = Scenario { attempt_limit: 2, fault_rate: 120, rows: 40, ..Scenario::default() };
    let (text, well) = campaign::run(scenario, 0, 50).print();
    assert!(well, "{text}");
}

/// Its first read of the open rows cannot see the row, and its log goes on behind it. The sweep comes each 20 seconds here.
#[test]
fn a_row_that_nobody_saw_when_its_executor_began_anew_is_begun_with_within_seconds() {
    let found = begun_anew_meanwhile(Hidden::Row, Duration::from_secs(2));
    assert!(found.waited <= Duration::from_secs(6), "{found:?}");
    assert_eq!((found.early_sweep_hits, found.sweep_hits), (1, 0), "it is no anomaly");
    // The first early sweep does not see it either.
    let found = begun_anew_meanwhile(Hidden::Row, Duration::from_secs(6));
    assert!(found.waited <= Duration::from_secs(8), "{found:?}");
    assert_eq!((found.early_sweep_hits, found.sweep_hits), (1, 0));
}

#[test]
fn a_stage_whose_resume_nobody_saw_when_its_executor_began_anew_goes_on_within_seconds() {
    for (hidden_for, waited) in
        [(2, 6), (6, 8)].map(|(one, other)| (Duration::from_secs(one), Duration::from_secs(other)))
    {
        let found = begun_anew_meanwhile(Hidden::Resume, hidden_for);
        assert!(found.waited <= waited, "{found:?}");
        assert_eq!((found.early_sweep_hits, found.sweep_hits), (0, 0));
    }
}

/// The sweep is given up: what it had passed by then would not be read again.
#[test]
fn a_journal_that_drops_its_oldest_while_a_sweep_reads_leaves_no_row_waiting() {
    let found = overtaken_within_a_sweep();
    assert!(found.waited <= Duration::from_secs(6), "{found:?}");
    assert_eq!((found.early_sweep_hits, found.sweep_hits), (0, 0));
}
