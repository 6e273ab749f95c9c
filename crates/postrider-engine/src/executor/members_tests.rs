#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
use crate::executor::play::{Play, stage};
use crate::executor::timetable::Sweep;
use crate::world::World;
use postrider_core::members::{Presence, Together};
use postrider_core::observe::Rank;
use postrider_core::ports::Reading;
use postrider_core::position::Position;
use postrider_core::snapshot::Snapshot;
use postrider_core::stage::StagePolicy;
use postrider_core::time::Timestamp;
use postrider_core::work::{DefinitionName, OwnerId, StageState, WorkKey, WorkVersion};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

const ME: OwnerId = OwnerId(1);
const OTHER: OwnerId = OwnerId(2);

fn play() -> Play {
    Play::new(vec![stage("PRICING", "http://core", None)], BTreeMap::new())
}

fn pending(number: usize) -> WorkVersion {
    WorkVersion::unclaimed(WorkKey::new(["g", &number.to_string()]), "PRICING")
}

fn said(owner: OwnerId, leaving: bool) -> Presence {
    let definitions = [DefinitionName::new("quote@1")].into();
    Presence { owner, leaving, definitions, together: Together::No }
}

fn hear(play: &mut Play, owner: OwnerId, leaving: bool) {
    let now = play.world.now();
    play.state.presence_heard(Ok(said(owner, leaving)), now, Position::START);
}

fn live(play: &mut Play, living: &[OwnerId]) {
    play.state.owners_replied(Some(&living.iter().copied().collect::<BTreeSet<_>>()));
}

fn join(play: &mut Play) {
    hear(play, OTHER, false);
    live(play, &[ME, OTHER]);
    assert!(play.state.take_answer(), "who joins hears of us");
}

fn after(play: &Play, span: Duration) {
    let now = play.world.now().after(span);
    play.world.now.store(now.0, Ordering::Relaxed);
}

/// How many rows are claimed that are due.
fn claimed(play: &mut Play) -> usize {
    let mut count = 0;
    loop {
        let requests = play.state.next_claims().0;
        if requests.is_empty() {
            return count;
        }
        count += requests.len();
    }
}

fn plenty() -> Play {
    let all = StagePolicy { concurrency: 1_000, ..stage("PRICING", "http://core", None) };
    Play::new(vec![all], BTreeMap::new())
}

#[test]
fn rows_are_shared_with_who_joins_and_taken_back_from_who_leaves() {
    let mut play = plenty();
    (0..200).for_each(|number| play.state.observe_version(pending(number), 7));
    join(&mut play);
    let kept = play.state.rows.len();
    assert!((60..140).contains(&kept), "{kept} of 200 rows");
    (200..400).for_each(|number| play.state.observe_version(pending(number), 8));
    let share = play.state.rows.len();
    assert!((140..260).contains(&share), "{share} of 400 rows");
    let now = play.world.now();
    assert!(!play.state.take_reread(now), "our share became smaller");
    hear(&mut play, OTHER, true);
    assert!(play.state.take_reread(now) && !play.state.take_reread(now));
    // As the read finds them.
    (0..400).for_each(|number| play.state.observe_version(pending(number), 0));
    play.state.open_rows_read(&Snapshot::parse("100:100:").unwrap());
    assert_eq!(play.state.until_reread(now), None);
    assert_eq!(claimed(&mut play), 400);
}

#[test]
fn a_row_that_was_left_to_others_and_that_nobody_sees_yet_is_read_once_more() {
    let mut play = plenty();
    join(&mut play);
    (0..50).for_each(|number| play.state.observe_version(pending(number), 99));
    hear(&mut play, OTHER, true);
    let now = play.world.now();
    assert!(play.state.take_reread(now));
    play.state.open_rows_read(&Snapshot::parse("99:101:99").unwrap());
    assert!(play.state.until_reread(now).is_some_and(|span| !span.is_zero()), "it waits a little");
    after(&play, Duration::from_secs(1));
    assert!(play.state.take_reread(play.world.now()));
    play.state.open_rows_read(&Snapshot::parse("101:101:").unwrap());
    assert_eq!(play.state.until_reread(play.world.now()), None);
}

#[test]
fn who_is_dead_or_long_silent_is_no_member() {
    for silent in [false, true] {
        let mut play = plenty();
        join(&mut play);
        assert_eq!(play.state.telemetry.executors.get(), 2);
        let overdue = play.state.limits.heartbeat_overdue;
        after(&play, overdue);
        if silent {
            live(&mut play, &[ME, OTHER]);
            assert_eq!(play.state.telemetry.executors.get(), 2, "at the bound it still counts");
            after(&play, Duration::from_micros(1));
            live(&mut play, &[ME, OTHER]);
        } else {
            live(&mut play, &[ME]);
            assert_eq!(play.state.telemetry.executors.get(), 2, "it may be reconnecting");
            live(&mut play, &[ME]);
        }
        assert_eq!(play.state.telemetry.executors.get(), 1);
        assert!(play.state.take_reread(play.world.now()));
    }
}

#[test]
fn others_are_asked_after_each_second_and_who_is_alone_asks_nobody() {
    let mut play = play();
    let begin = play.world.now();
    assert_eq!(play.state.owners_mut().until_ask(begin), None);
    join(&mut play);
    for _ in 0..10 {
        let now = play.world.now();
        let span = play.state.owners_mut().until_ask(now).expect("a member's life matters");
        assert!(span <= Duration::from_secs(1), "{span:?}");
        after(&play, span);
        let now = play.world.now();
        play.state.owners_mut().asked(now);
        live(&mut play, &[ME, OTHER]);
    }
    hear(&mut play, OTHER, true);
    let now = play.world.now();
    play.state.owners_mut().asked(now);
    live(&mut play, &[ME]);
    assert_eq!(play.state.owners_mut().until_ask(now), None);
}

#[test]
fn what_is_read_of_long_ago_or_of_the_dead_or_of_ourselves_makes_no_member() {
    let mut play = play();
    let now = play.world.now();
    let long_ago = Timestamp(now.0 - 60_000_000);
    play.state.presence_heard(Ok(said(OTHER, false)), long_ago, Position::START);
    live(&mut play, &[ME, OTHER]);
    hear(&mut play, OwnerId(3), false);
    live(&mut play, &[ME, OTHER]);
    hear(&mut play, ME, false);
    live(&mut play, &[ME, OTHER]);
    assert_eq!(play.state.telemetry.executors.get(), 1);
    assert!(!play.state.take_answer() && !play.state.take_reread(now));
}

#[test]
fn what_another_executor_does_not_begin_with_for_two_sweeps_is_begun_here_or_after_three_whatever_waits_here() {
    for own in [false, true] {
        let mut play = play();
        join(&mut play);
        let theirs: Vec<WorkVersion> = (0..40).map(pending).filter(|version| !play.state.is_mine(version)).collect();
        if own {
            let mine = (0..40).map(pending).find(|version| play.state.is_mine(version)).unwrap();
            play.state.observe_version(mine, 7);
        }
        let held = play.state.rows.len();
        let sweeps = if own { 3 } else { 2 };
        for sweep in 0..sweeps {
            assert_eq!(play.state.rows.len(), held, "sweep {sweep}");
            play.state.read_begins(Some(Sweep::Slow));
            play.state.suspect(&theirs);
            play.state.sweep_ended();
        }
        assert_eq!(play.state.rows.len(), held + theirs.len());
        assert!(play.state.suspects().is_empty(), "they are nothing that the log failed to bring");
    }
}

/// They wait for each other there, and one more who begins would break what the stage promises.
#[test]
fn rows_of_a_stage_that_takes_them_one_at_a_time_are_never_overlooked() {
    let serial = StagePolicy { serial: true, ..stage("PRICING", "http://core", None) };
    let mut play = Play::new(vec![serial], BTreeMap::new());
    let now = play.world.now();
    let other = Presence { together: Together::Part(0), ..said(OTHER, false) };
    play.state.presence_heard(Ok(other), now, Position::START);
    live(&mut play, &[ME, OTHER]);
    let rows = |group: usize| {
        (0..5).map(move |number: usize| WorkVersion {
            key: WorkKey::new([group.to_string(), number.to_string()]),
            ..pending(0)
        })
    };
    let theirs: Vec<WorkVersion> = (0..20).flat_map(rows).filter(|version| !play.state.is_mine(version)).collect();
    assert!(!theirs.is_empty() && theirs.len().is_multiple_of(5), "{} rows, in whole groups", theirs.len());
    for _ in 0..5 {
        play.state.read_begins(Some(Sweep::Slow));
        play.state.suspect(&theirs);
        play.state.sweep_ended();
    }
    assert_eq!(play.state.rows.len(), 0);
}

#[test]
fn who_shares_by_another_rule_is_no_member() {
    let mut play = play();
    let now = play.world.now();
    play.state.presence_heard(Ok(Presence { together: Together::All, ..said(OTHER, false) }), now, Position::START);
    live(&mut play, &[ME, OTHER]);
    assert_eq!(play.state.telemetry.executors.get(), 1);
}

/// With our own transitions out of the log, nobody else knows that it waits.
#[test]
fn a_row_that_waits_by_our_own_outcome_stays_ours_whoever_joins() {
    let mut play = tried();
    assert_eq!(play.state.rows.len(), 100, "each is to be tried again");
    join(&mut play);
    assert_eq!(play.state.rows.len(), 100);
}

/// A hundred rows that we tried, and that wait to be tried again.
fn tried() -> Play {
    let mut play = plenty();
    // No failure of the endpoint's: its circuit stays closed.
    play.status = 429;
    (0..100).for_each(|number| play.state.observe_version(pending(number), 7));
    while play.left.len() < 100 || play.calling().count() > 0 {
        assert!(play.step(), "something is under way");
    }
    play
}

/// The row after the first try, as a read finds it.
fn to_be_tried_again(number: usize, at: Timestamp) -> WorkVersion {
    WorkVersion { state: StageState::Retry, fence: 1, attempt_count: 1, next_attempt_at: Some(at), ..pending(number) }
}

/// Who is to begin with them by hash may have read the rows before we wrote that.
#[test]
fn a_row_that_waits_by_our_own_outcome_stays_ours_behind_a_gap_in_the_log() {
    let mut play = tried();
    join(&mut play);
    play.state.forget_what_waits();
    let at = play.world.now().after(Duration::from_secs(1));
    (0..100).for_each(|number| play.state.observe_version(to_be_tried_again(number, at), 0));
    play.state.open_rows_read(&Snapshot::parse("100:100:").unwrap());
    assert_eq!(play.state.rows.len(), 100);
}

#[test]
fn a_row_that_waits_by_our_own_outcome_stays_ours_where_its_claim_is_lost() {
    let mut play = tried();
    after(&play, Duration::from_secs(2));
    let at = play.world.now();
    play.state.fire_timers();
    let (requests, _) = play.state.next_claims();
    assert!(requests.len() > 50, "{} of them wait no longer", requests.len());
    play.state.claims_lost(&requests);
    let keys = play.state.next_reads();
    let found = |number: usize| {
        let version = to_be_tried_again(number, at);
        WorkVersion { fence: play.state.rows.row(&version.key).unwrap().rank.fence(), ..version }
    };
    let rows = (0..100).map(found).collect();
    play.state.resolve(&keys, Reading { rows, snapshot: Snapshot::parse("100:100:").unwrap() });
    join(&mut play);
    assert_eq!(play.state.rows.len(), 100);
}

/// Who joins came too late to hear that the other leaves.
#[test]
fn what_an_executor_that_leaves_runs_is_not_left_to_who_joins_meanwhile() {
    const THIRD: OwnerId = OwnerId(0x0333);
    let mut play = plenty();
    join(&mut play);
    hear(&mut play, OTHER, true);
    let lease_until = Some(play.world.now().after(Duration::from_secs(600)));
    let (state, lease_owner) = (StageState::Running, Some(OTHER));
    for number in 0..50 {
        let running = WorkVersion { state, fence: 1, lease_owner, lease_until, ..pending(number) };
        play.state.observe_version(running, 0);
    }
    hear(&mut play, THIRD, false);
    live(&mut play, &[ME, OTHER, THIRD]);
    assert_eq!((play.state.telemetry.executors.get(), play.state.rows.len()), (2, 50));
}

/// While it ends its calls nobody hears of their outcomes, with those out of the log.
#[test]
fn what_an_executor_that_leaves_puts_back_is_begun_with_before_it_has_ended() {
    let mut play = play();
    join(&mut play);
    hear(&mut play, OTHER, true);
    let lease_until = Some(play.world.now().after(Duration::from_secs(600)));
    let (state, lease_owner) = (StageState::Running, Some(OTHER));
    let running = |number| WorkVersion { state, fence: 1, lease_owner, lease_until, ..pending(number) };
    (0..2).for_each(|number| play.state.observe_version(running(number), 0));
    let (keys, snapshot) = (vec![running(0).key, running(1).key], Snapshot::parse("100:100:").unwrap());
    let look = |play: &mut Play, rows: Vec<WorkVersion>| {
        let span = play.state.owners_mut().until_ask(play.world.now()).expect("it is not gone yet");
        assert!(span <= Duration::from_secs(1), "{span:?}");
        after(play, span);
        live(play, &[ME, OTHER]);
        assert_eq!(play.state.next_reads(), keys);
        play.state.resolve(&keys, Reading { rows, snapshot: snapshot.clone() });
        claimed(play)
    };
    for _ in 0..3 {
        assert_eq!(look(&mut play, vec![running(0), running(1)]), 0, "they run");
    }
    let now = play.world.now();
    assert_eq!(look(&mut play, vec![to_be_tried_again(0, now), running(1)]), 1);
    assert_eq!(play.state.telemetry.claims_lost.get(), 0, "it was given to us");
    // It is gone without the second row's outcome.
    for _ in 0..2 {
        let now = play.world.now();
        play.state.owners_mut().asked(now);
        live(&mut play, &[ME]);
    }
    assert_eq!(claimed(&mut play), 1);
    assert_eq!(play.state.owners_mut().until_ask(play.world.now()), None);
}

/// A heartbeat of it that was on its way may come after its last word.
#[test]
fn who_left_does_not_come_back() {
    let mut play = play();
    join(&mut play);
    hear(&mut play, OTHER, true);
    hear(&mut play, OTHER, false);
    live(&mut play, &[ME, OTHER]);
    assert_eq!(play.state.telemetry.executors.get(), 1);
}

/// What another executor runs may be long under way; only its lease, or its death, makes it ours.
#[test]
fn what_another_executor_runs_is_not_overlooked() {
    let mut play = play();
    join(&mut play);
    let lease_until = Some(play.world.now().after(Duration::from_secs(600)));
    let running = |version| WorkVersion {
        state: StageState::Running,
        fence: 1,
        lease_owner: Some(OTHER),
        lease_until,
        ..version
    };
    let theirs: Vec<WorkVersion> = (0..40).map(pending).map(running).collect();
    for _ in 0..3 {
        let theirs: Vec<_> = theirs.iter().filter(|version| !play.state.is_mine(version)).cloned().collect();
        play.state.suspect(&theirs);
        play.state.sweep_ended();
    }
    assert_eq!(play.state.rows.len(), 0);
}

#[test]
fn a_row_that_we_run_stays_ours_whoever_joins() {
    let mut play = plenty();
    (0..200).for_each(|number| play.state.observe_version(pending(number), 7));
    assert_eq!(claimed(&mut play), 200);
    join(&mut play);
    assert_eq!(play.state.rows.len(), 200);
    let theirs = (0..200).map(pending).find(|version| !play.state.is_mine(version)).unwrap();
    let row = play.state.rows.row(&theirs.key).unwrap();
    assert_eq!(row.rank, Rank::of(&theirs));
}

/// As while a new configuration is rolled out: whoever lacks the definition would park the row.
#[test]
fn a_row_is_left_to_who_has_its_definition() {
    let mut play = play();
    let newer = || Some(DefinitionName::new("quote@2"));
    let now = play.world.now();
    let both = ["quote@1", "quote@2"].map(DefinitionName::new).into();
    play.state.presence_heard(Ok(Presence { definitions: both, ..said(OTHER, false) }), now, Position::START);
    live(&mut play, &[ME, OTHER]);
    (0..40).for_each(|number| {
        play.state.observe_version(WorkVersion { definition: newer(), ..pending(number) }, 7);
    });
    assert_eq!(play.state.rows.len(), 0);
    hear(&mut play, OTHER, true);
    (0..40).for_each(|number| {
        play.state.observe_version(WorkVersion { definition: newer(), ..pending(number) }, 0);
    });
    assert_eq!(play.state.rows.len(), 40, "alone, nobody else can say that it has no definition");
}

#[test]
fn a_message_that_nobody_can_read_is_an_alarm() {
    use postrider_core::shape::ShapeError;
    use postrider_core::value::ValueProblem;
    let mut play = play();
    let error = ShapeError { table: "public.work".into(), column: "owner".into(), problem: ValueProblem::NotInteger };
    let now = play.world.now();
    play.state.presence_heard(Err(error), now, Position::START);
    let label = crate::telemetry::ConsumerLabel { consumer: "work".to_owned() };
    assert_eq!(play.state.telemetry.alarms.get_or_create(&label).get(), 1);
}
