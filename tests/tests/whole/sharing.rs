//! Several orchestrators on one database: they share the rows, and what one of them leaves behind when it dies, another takes over.

use super::fixture::{Database, Endpoint, Play, Rider, Scene, outbox, sink_http, stage, wait_until, work};
use postrider_core::error::ErrorKind;

/// A further process for the stages of `first`, from the same configuration but for what one machine has once.
fn further(scene: &Scene, name: &str, first: &Rider) -> Rider {
    let mut further = scene.rider(name, first.plan.rest.clone());
    (further.plan.slot, further.plan.publication) = (first.plan.slot.clone(), first.plan.publication.clone());
    further
}

fn start_stages_only(rider: &mut Rider) {
    rider.start_command(&["run", "--stages-only", "--log", "info"]);
    wait_until("a further process is ready", || {
        rider.still_runs();
        rider.readiness().starts_with("ready\n")
    });
}

/// Until each knows of so many.
fn wait_for_members(riders: &[&Rider], executors: i64) {
    wait_until(&format!("each knows {executors} executors"), || {
        riders.iter().all(|rider| rider.metric("postrider_executors") == executors)
    });
}

fn stages(endpoint: &Endpoint) -> String {
    let address = endpoint.address();
    let lease = "lease = \"10m\"\n";
    let stages = [stage("PRICING", &address, Some("APPROVAL"), lease), stage("APPROVAL", &address, None, lease)];
    // What is not shared well would wait for the sweep.
    work(&stages) + "[periods]\nsweep = \"10m\"\n"
}

#[test]
fn a_further_process_on_a_temporary_slot_has_its_share_of_the_rows_and_nobody_claims_anothers() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let rest = outbox() + &sink_http("events", &endpoint.address(), "") + &stages(&endpoint);
    let mut first = scene.rider("first", rest);
    first.setup();
    first.start_ready();
    let (mut second, mut third) = (further(&scene, "second", &first), further(&scene, "third", &first));
    start_stages_only(&mut second);
    start_stages_only(&mut third);
    wait_for_members(&[&first, &second, &third], 3);
    let slots = "SELECT count(*) FILTER (WHERE temporary), count(*) FROM pg_replication_slots";
    assert_eq!(scene.db.rows(slots), [["2", "3"]]);

    scene.db.submit(0..300);
    wait_until("every row is done, and every event delivered", || {
        scene.open_rows() == 0 && endpoint.count("/events") == 300
    });
    assert_eq!((endpoint.count("/stages/pricing"), endpoint.count("/stages/approval")), (300, 300));
    let owners = "SELECT count(*) FROM postrider.work_history WHERE outcome = 'done' GROUP BY owner";
    let shares: Vec<i64> = scene.db.rows(owners).iter().map(|row| row[0].parse().expect("a number")).collect();
    assert!(shares.len() == 3 && shares.iter().all(|share| (120..280).contains(share)), "{shares:?} of 600");
    for rider in [&first, &second, &third] {
        assert_eq!(rider.metric("postrider_claims_lost_total"), 0, "nobody tries a row that is another's");
        for metric in ["sweep_hits", "early_sweep_hits"] {
            assert_eq!(rider.metric(&format!("postrider_{metric}_total")), 0, "{metric}");
        }
    }

    // One leaves in good order, and one is killed; nothing of them is left.
    second.signal("TERM");
    assert_eq!(second.wait().0, Some(0));
    third.kill9();
    wait_for_members(&[&first], 1);
    assert_eq!(first.metric_of("postrider_executor_changes_total", "how=\"left\""), 1.0);
    assert_eq!(first.metric_of("postrider_executor_changes_total", "how=\"died\""), 1.0);
    wait_until("their slots are gone", || scene.db.rows(slots) == [["0", "1"]]);
    scene.db.submit(300..400);
    wait_until("every row is done", || scene.open_rows() == 0);
    start_stages_only(&mut third);
    wait_for_members(&[&first, &third], 2);
}

#[test]
fn rows_that_nobody_had_begun_with_when_their_executor_died_are_begun_within_two_seconds() {
    let scene = Scene::start();
    // Nothing is answered, so that what is due beyond the concurrency waits.
    let endpoint = Endpoint::alone(|_, _| Play::Hold);
    let mut first = scene.rider("first", stages(&endpoint).replace("lease =", "concurrency = 10\nlease ="));
    first.setup();
    first.start_ready();
    let mut second = further(&scene, "second", &first);
    start_stages_only(&mut second);
    wait_for_members(&[&first, &second], 2);
    scene.db.submit(0..60);
    wait_until("both have all that they may", || endpoint.held() == 20);
    wait_until("the locks say who lives", || scene.db.is("SELECT now() > pg_postmaster_start_time() + interval '6 s'"));
    let killed_at = scene.db.text("SELECT clock_timestamp()");
    second.kill9();
    endpoint.release();
    wait_until("every row is done", || scene.open_rows() == 0);
    // What the dead one ran was taken over, and what waited for it was begun: the last row of both waited for nothing else.
    let last = format!(
        "SELECT max(started_at) - '{killed_at}'::timestamptz FROM postrider.work_history WHERE stage = 'PRICING'"
    );
    assert!(scene.db.is(&format!("SELECT ({last}) <= interval '2 s'")), "it took {}", scene.db.text(&last));
    assert_eq!(first.metric("postrider_sweep_hits_total"), 0);
}

/// It hears of none of these outcomes from the log.
#[test]
fn what_an_executor_that_leaves_has_done_goes_on_with_another_while_the_first_still_waits_for_a_call() {
    let scene = Scene::start();
    let (pricing, slow) = (Endpoint::alone(|_, _| Play::Hold), Endpoint::alone(|_, _| Play::Hold));
    let stages = stages(&pricing).replace("[periods]", "[limits]\ndrain = \"10m\"\n[periods]");
    let slow_stage = stage("SLOW", &slow.address(), None, "lease = \"10m\"\ntimeout = \"5m\"\n");
    let mut first = scene.rider("first", stages + &slow_stage);
    first.setup();
    first.start_ready();
    scene.db.submit(0..10);
    scene.db.run("INSERT INTO pending_work (group_id, quote_id, stage, payload) VALUES ('slow', 'slow', 'SLOW', '{}')");
    wait_until("the first runs them all", || pricing.held() + slow.held() == 11);
    let mut second = further(&scene, "second", &first);
    start_stages_only(&mut second);
    wait_for_members(&[&first, &second], 2);

    first.signal("TERM");
    wait_until("the second knows all that the first still runs", || second.metric("postrider_open_rows") == 11);
    pricing.release();
    wait_until("the second has gone on", || pricing.count("/stages/approval") == 10 && scene.open_rows() == 1);
    first.still_runs();
    assert_eq!(second.metric("postrider_claims_lost_total"), 0);
    slow.release();
    assert_eq!(first.wait().0, Some(0));
    wait_until("every row is done", || scene.open_rows() == 0);
    assert_eq!((pricing.count("/stages/pricing"), slow.requests().len()), (10, 1), "nothing was asked for twice");
}

#[test]
fn a_temporary_slot_that_is_lost_is_made_anew_and_what_was_committed_between_is_done() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let first = scene.rider("first", stages(&endpoint));
    first.setup();
    // Nobody else would do it.
    let mut second = further(&scene, "second", &first);
    start_stages_only(&mut second);
    for round in 0..5 {
        let numbers = round * 40..(round + 1) * 40;
        let cut = "SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots WHERE temporary";
        std::thread::scope(|threads| {
            let other = Database::connect(&scene.url());
            threads.spawn(move || other.submit(numbers));
            wait_until("the slot is read", || scene.db.number(cut) == 1);
        });
        wait_until("every row is done", || scene.open_rows() == 0);
    }
    assert!(second.metric("postrider_reconnects_total") > 0);
    assert_eq!(second.metric("postrider_sweep_hits_total"), 0);
    second.still_runs();
}

#[test]
fn stages_only_is_refused_where_there_are_none_and_beside_another_of_the_same_directory() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let sink = outbox() + &sink_http("events", &endpoint.address(), "");
    let mut first = scene.rider("first", stages(&endpoint));
    first.setup();
    let refused = |rider: &mut Rider, kind: ErrorKind, words: &str| {
        rider.start_command(&["run", "--stages-only"]);
        let (code, _) = rider.wait();
        assert_eq!(code, Some(i32::from(kind.exit_code())), "{}", rider.said());
        assert!(rider.said().contains(words), "{}", rider.said());
    };
    let mut without = scene.rider("without", sink);
    refused(&mut without, ErrorKind::Configuration, "there are no stages to share");
    let mut second = further(&scene, "second", &first);
    start_stages_only(&mut second);
    let mut third = further(&scene, "third", &first);
    third.plan.journal = second.plan.journal.clone();
    refused(&mut third, ErrorKind::Disk, "another process has the journal open");
    second.signal("TERM");
    assert_eq!(second.wait().0, Some(0));

    // A journal that somebody goes on from is not taken for one of these.
    let home = first.plan.journal.clone();
    first.plan.journal = home.join("stages");
    first.start_ready();
    first.signal("TERM");
    assert_eq!(first.wait().0, Some(0));
    third.plan.journal = home;
    refused(&mut third, ErrorKind::JournalForeign, "the journal of a slot that lasts");
    first.start_ready();
}

#[test]
fn a_server_without_a_slot_to_spare_is_asked_until_it_has_one() {
    let scene = Scene::with(|builder| builder.setting("max_replication_slots", "1"));
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let first = scene.rider("first", stages(&endpoint));
    first.setup();
    let mut second = further(&scene, "second", &first);
    second.start_command(&["run", "--stages-only", "--log", "info"]);
    second.wait_to_say("the temporary replication slot cannot be made yet");
    second.still_runs();
    scene.db.run(&format!("SELECT pg_drop_replication_slot('{}')", first.plan.slot));
    scene.db.submit(0..5);
    wait_until("every row is done", || scene.open_rows() == 0);
}

/// The times are the server's: when the process was killed, and when the claims that took its rows over were written.
#[test]
fn what_an_orchestrator_had_under_way_when_it_died_is_taken_over_within_two_seconds_by_one_that_runs_beside_it() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, before| if before == 0 { Play::Hold } else { Play::Answer });
    let keys = "lease = \"10m\"\n";
    let stages = || work(&[stage("PRICING", &endpoint.address(), None, keys)]) + "[periods]\nsweep = \"10m\"\n";
    let (mut first, mut second) = (scene.rider("first", stages()), scene.rider("second", stages()));
    first.setup();
    second.setup();
    first.start_ready();
    scene.db.submit(0..20);
    wait_until("the first has calls under way", || endpoint.held() == 20);
    second.start_ready();
    scene.db.submit(20..40);
    wait_until("each row has a call under way", || endpoint.held() == 40);
    let owners = "SELECT count(*) FROM pending_work GROUP BY lease_owner ORDER BY min(quote_id)";
    let shares: Vec<i64> = scene.db.rows(owners).iter().map(|row| row[0].parse().expect("a number")).collect();
    let of_first = shares[0];
    assert!(of_first >= 20 && shares.iter().sum::<i64>() == 40, "{shares:?}");

    // Of a server that has just started nobody knows whose lock is gone and who is still reconnecting.
    wait_until("the locks say who lives", || scene.db.is("SELECT now() > pg_postmaster_start_time() + interval '6 s'"));
    let killed_at = scene.db.text("SELECT clock_timestamp()");
    first.kill9();
    wait_until("its rows are done", || {
        scene.db.number("SELECT count(*) FROM pending_work WHERE closed_at IS NOT NULL") == of_first
    });
    let taken = format!(
        "SELECT count(*), max(ended_at) - '{killed_at}'::timestamptz <= interval '2 s', max(ended_at) - '{killed_at}'::timestamptz
           FROM postrider.work_history WHERE outcome = 'taken_over' AND reason = 'OWNER_GONE'"
    );
    let taken = scene.db.rows(&taken).remove(0);
    assert_eq!(taken[..2], [of_first.to_string(), "t".to_owned()], "it took {}", taken[2]);
    assert_eq!(second.metric("postrider_take_overs_total"), of_first);

    endpoint.release();
    wait_until("every row is done", || scene.open_rows() == 0);
    let requests = 40 + usize::try_from(of_first).expect("a number");
    assert_eq!(endpoint.requests().len(), requests, "nobody else's row was asked for again");
    second.still_runs();
}
