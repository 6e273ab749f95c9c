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
