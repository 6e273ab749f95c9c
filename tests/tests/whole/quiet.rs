//! Our own transitions stay out of the log, and what others do to a row is heard of at once.

use super::fixture::{Endpoint, Play, Scene, on_every_version, stage, wait_until, work};

/// What the journal has of the work table: the kinds of its changes, and how many messages with the table's prefix.
fn journalled(lines: &str) -> (usize, usize, usize) {
    let count = |sign: &str| lines.lines().filter(|line| line.contains(sign)).count();
    (count("\"op\":\"insert\""), count("\"op\":\"update\""), count("postrider.work:public.pending_work"))
}

#[test]
fn own_transitions_stay_out_of_the_log_and_anybody_elses_change_starts_a_row_at_once() {
    on_every_version(|major| {
        let scene = Scene::of_version(major);
        let endpoint = Endpoint::alone(|_, _| Play::Answer);
        let address = endpoint.address();
        let stages = [
            stage("PRICING", &address, Some("APPROVAL"), ""),
            stage("APPROVAL", &address, None, ""),
            stage("BINDING", &address, None, ""),
        ];
        let mut rider = scene.rider("rider", work(&stages));
        rider.setup();
        rider.start_ready();
        scene.db.submit(0..20);
        wait_until("the rows are done", || scene.open_rows() == 0);
        let seen = rider.end_of(&["tail", "--from", "beginning", "--to", "end", "--kind", "work"]);
        let lines = String::from_utf8_lossy(&seen.stdout).into_owned();
        assert_eq!(journalled(&lines), (20, 0, 0), "{}\n{lines}", String::from_utf8_lossy(&seen.stderr));

        // A person opens a row again, moves one to another stage, and takes one away while it waits for its time.
        scene.db.run(
            "UPDATE pending_work SET closed_at = NULL, stage = 'PRICING', stage_state = 'PENDING', fence = fence + 1, attempt_count = 0
              WHERE quote_id = (SELECT min(quote_id) FROM pending_work)",
        );
        wait_until("the row is done again", || scene.open_rows() == 0 && endpoint.count("/stages/pricing") == 21);
        scene.db.run(
            "INSERT INTO pending_work (group_id, quote_id, stage, next_attempt_at) VALUES ('late', '1', 'BINDING', now() + interval '1 hour'),
                    ('late', '2', 'BINDING', now() + interval '1 hour')",
        );
        wait_until("both are known", || rider.metric("postrider_open_rows") == 2);
        scene.db.run("DELETE FROM pending_work WHERE quote_id = '2' AND group_id = 'late'");
        wait_until("one is forgotten", || rider.metric("postrider_open_rows") == 1);
        scene.db.run("UPDATE pending_work SET next_attempt_at = now(), fence = fence + 1 WHERE group_id = 'late'");
        wait_until("the other is called", || endpoint.count("/stages/binding") == 1);
        assert_eq!(rider.metric("postrider_sweep_hits_total"), 0);
        rider.still_runs();
    });
}

#[test]
fn an_order_of_a_person_is_heard_by_an_orchestrator_that_keeps_its_own_transitions_out_of_the_log() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let stages = [stage("PRICING", &endpoint.address(), None, "")];
    // No sweep may bring it.
    let mut rider = scene.rider("rider", work(&stages) + "[periods]\nsweep = \"10m\"\n");
    rider.setup();
    rider.start_ready();
    scene.db.run(
        "INSERT INTO pending_work (group_id, quote_id, stage, stage_state, attempt_count, next_attempt_at, payload)
         VALUES ('g', 'parked', 'PRICING', 'NON_RESUMABLE', 5, NULL, '{}'), ('g', 'later', 'PRICING', 'RETRY', 1, now() + interval '1 day', '{}'),
                ('g', 'unwanted', 'PRICING', 'RETRY', 1, now() + interval '1 day', '{}')",
    );
    wait_until("those that wait for their time are known", || rider.metric("postrider_open_rows") == 2);
    let order = |verb: &str, quote: &str| {
        let ended = rider.end_of(&["work", verb, "g", quote, "--why", "a test"]);
        assert!(ended.status.success(), "{verb}: {}", String::from_utf8_lossy(&ended.stderr));
    };
    order("resume", "parked");
    wait_until("the parked row is asked for", || endpoint.requests().len() == 1);
    order("retry", "later");
    wait_until("the waiting row is asked for", || endpoint.requests().len() == 2);
    order("cancel", "unwanted");
    wait_until("nothing is known any more", || rider.metric("postrider_open_rows") == 0);
    let states = "SELECT string_agg(quote_id || ' ' || stage_state, ', ' ORDER BY quote_id) FROM pending_work";
    assert_eq!(scene.db.text(states), "later DONE, parked DONE, unwanted CANCELLED");
    for metric in ["sweep_hits", "early_sweep_hits"] {
        assert_eq!(rider.metric(&format!("postrider_{metric}_total")), 0, "{metric}");
    }
    rider.still_runs();
}
