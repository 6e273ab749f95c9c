#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
use crate::executor::play::{Play, stage};
use postrider_core::paused::{PauseChange, Paused, PausedPart};
use postrider_core::position::Position;
use postrider_core::rate::Rate;
use postrider_core::snapshot::Snapshot;
use postrider_core::stage::{Next, StagePolicy};
use postrider_core::time::Timestamp;
use postrider_core::work::WorkKey;
use std::collections::BTreeMap;
use std::time::Duration;

fn part(stage: &str) -> PausedPart {
    PausedPart::of([stage, "", ""]).unwrap()
}

fn pause(part: PausedPart) -> Paused {
    Paused { part, since: Timestamp(0), who: "ada".to_owned(), why: "because".to_owned() }
}

impl Play {
    fn hear(&mut self, change: PauseChange, xid: u32) {
        self.state.pause_heard(Ok(change), xid, Position::START);
    }

    fn pause(&mut self, part: PausedPart) {
        self.hear(PauseChange::Pause(pause(part)), 100);
    }

    fn resume(&mut self, part: PausedPart) {
        self.hear(PauseChange::Resume(part), 101);
    }

    fn calls_of(&self, stage: &str) -> usize {
        self.left.iter().filter(|(_, left)| left.as_str() == stage).count()
    }

    fn paused(&self) -> Vec<String> {
        self.state.telemetry.status().paused.iter().map(|paused| paused.part.to_string()).collect()
    }
}

fn two_stages() -> Play {
    let first = StagePolicy { next: vec![Next::of("LAST")], ..stage("FIRST", "http://first", None) };
    Play::new(vec![first, stage("LAST", "http://last", None)], BTreeMap::new())
}

#[test]
fn a_success_stops_before_a_paused_stage_and_goes_on_in_order_when_that_is_resumed() {
    let mut play = two_stages();
    play.submit("FIRST", 30);
    play.start();
    play.pause(part("LAST"));
    play.run();
    assert_eq!((play.calls_of("FIRST"), play.calls_of("LAST"), play.state.rows.len()), (30, 0, 30));
    assert_eq!(play.state.until_next_timer(), None, "what waits for a person waits for no clock");
    assert_eq!(play.state.claimable_count(), 0, "nor does the next statement wait for it");
    play.claimed.clear();
    play.resume(part("LAST"));
    play.run();
    assert_eq!((play.calls_of("LAST"), play.state.rows.len()), (30, 0));
    assert_eq!(play.claimed.len(), 30);
}

#[test]
fn calls_that_are_on_their_way_end_and_claims_that_are_come_back_unsent() {
    let mut play = two_stages();
    play.submit("FIRST", 10);
    play.start();
    while play.calling().count() == 0 {
        play.step();
    }
    assert_eq!(play.calls_of("FIRST"), 10);
    let late = WorkKey::new(["late", "1"]);
    play.submit_row(&late, "FIRST", None);
    play.start();
    assert!(play.under_way("FIRST").any(|key| *key == late), "one more is claimed");
    play.pause(part("FIRST"));
    play.run();
    assert_eq!((play.calls_of("FIRST"), play.calls_of("LAST")), (10, 10), "nothing more left");
    assert_eq!(play.state.rows.len(), 1);
    assert!(play.state.in_use.values().all(|used| *used == 0), "every slot came back: {:?}", play.state.in_use);
    play.resume(part("FIRST"));
    play.run();
    assert_eq!((play.calls_of("FIRST"), play.calls_of("LAST"), play.state.rows.len()), (11, 11, 0));
}

#[test]
fn a_paused_endpoint_holds_all_its_stages_and_neither_rate_nor_timer_turns_for_it() {
    let rate = Some(Rate { calls: 1, per: Duration::from_secs(1), burst: 1 });
    let stages = vec![stage("A", "http://one", rate), stage("B", "http://one", None), stage("C", "http://two", None)];
    let mut play = Play::new(stages, BTreeMap::new());
    let endpoint = PausedPart::of(["", "", "http://one"]).unwrap();
    play.pause(endpoint.clone());
    for name in ["A", "B", "C"] {
        play.submit(name, 3);
    }
    let at = play.world.now.load(std::sync::atomic::Ordering::Relaxed);
    play.submit_row(&WorkKey::new(["later", "1"]), "B", Some(Timestamp(at + 1_000_000)));
    play.run();
    assert_eq!(["A", "B", "C"].map(|name| play.calls_of(name)), [0, 0, 3]);
    assert_eq!(play.paused(), ["endpoint http://one"]);
    play.resume(endpoint);
    play.run();
    assert_eq!(["A", "B", "C"].map(|name| play.calls_of(name)), [3, 4, 3]);
    assert!(play.took() >= Duration::from_secs(2), "the rate holds again: {:?}", play.took());
}

/// Rows of a paused stage wait, and so they are nobody's turn: those of other stages at the same endpoint chain as if they were not there.
#[test]
fn a_paused_stage_with_a_higher_priority_is_in_nobodys_way() {
    let urgent = StagePolicy { priority: 9, ..stage("URGENT", "http://last", None) };
    let first = StagePolicy { next: vec![Next::of("LAST")], ..stage("FIRST", "http://first", None) };
    let mut play = Play::new(vec![first, stage("LAST", "http://last", None), urgent], BTreeMap::new());
    play.pause(part("URGENT"));
    play.submit("URGENT", 5);
    play.submit("FIRST", 5);
    play.run();
    assert_eq!((play.calls_of("LAST"), play.calls_of("URGENT")), (5, 0));
    assert_eq!(play.claimed.len(), 5, "each of them was chained, and claimed once");
}

#[test]
fn a_read_and_the_log_say_the_same_in_whatever_order_they_come() {
    let snapshot = |text| Snapshot::parse(text).unwrap();
    let mut play = two_stages();
    play.hear(PauseChange::Pause(pause(part("FIRST"))), 20);
    play.hear(PauseChange::Pause(pause(part("LAST"))), 21);
    assert_eq!(play.paused(), ["stage FIRST", "stage LAST"]);
    // The read sees the first of them, and an order that the log has not brought yet.
    play.state.pauses_read(&[pause(part("FIRST")), pause(part("OTHER"))], &snapshot("21:21:"));
    assert_eq!(play.paused(), ["stage FIRST", "stage LAST", "stage OTHER"]);
    // The log brings what the read saw, and what went before.
    play.hear(PauseChange::Resume(part("OTHER")), 18);
    play.hear(PauseChange::Pause(pause(part("OTHER"))), 19);
    assert_eq!(play.paused(), ["stage FIRST", "stage LAST", "stage OTHER"]);
    play.hear(PauseChange::Resume(part("FIRST")), 22);
    // A read that began before that order brings nothing back; one that sees it agrees, as does one that finds a row deleted by hand.
    play.state.pauses_read(&[pause(part("FIRST")), pause(part("LAST"))], &snapshot("22:22:"));
    assert_eq!(play.paused(), ["stage LAST"]);
    play.state.pauses_read(&[], &snapshot("30:30:"));
    assert_eq!(play.paused(), Vec::<String>::new());
}
