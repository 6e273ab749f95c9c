//! Several orchestrators on one database: what one of them leaves behind when it dies, another takes over.

use super::fixture::{Endpoint, Play, Scene, stage, wait_until, work};

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
