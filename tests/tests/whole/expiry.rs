//! A key that its receiver may have forgotten is not sent again.

use super::fixture::{Endpoint, Play, Scene, stage, wait_until, work};

#[test]
fn e28_a_row_that_waited_longer_than_its_key_is_kept_is_parked_unsent_until_a_person_finds_out() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let stages = [stage("PRICING", &endpoint.address(), None, "key_retention = \"1d\"\n")];
    let mut rider = scene.rider("rider", work(&stages));
    rider.setup();
    // Asked for two days ago and yesterday, and due; and one that was asked for this morning.
    scene.db.run(
        "INSERT INTO pending_work (group_id, quote_id, stage, stage_state, definition, attempt_count, fence, request_hash, payload)
           SELECT 'g', q, 'PRICING', 'RETRY', 'quoting@1', 2, 2, sha256(convert_to('{}', 'UTF8')), '{}' FROM unnest(ARRAY['old', 'young']) AS q;
         INSERT INTO postrider.work_history (started_at, ended_at, fence, work_table, epoch, attempt, deferrals, key, stage, outcome, next_stage, next_state)
           SELECT now() - age, now() - age, fence, 'pending_work', 0, fence, 0, ARRAY['g', q], 'PRICING', 'retry', 'PRICING', 'RETRY'
           FROM (VALUES ('old', 1, interval '2 days'), ('old', 2, '20 hours'), ('young', 1, '6 hours'), ('young', 2, '5 hours')) AS v (q, fence, age)",
    );
    rider.start_ready();
    let row = |quote: &str| {
        let sql = format!(
            "SELECT stage_state || ' ' || coalesce(last_error, '') FROM pending_work WHERE quote_id = '{quote}'"
        );
        scene.db.text(&sql)
    };
    wait_until("the young one is done", || row("young").starts_with("DONE"));
    wait_until("the old one is parked", || {
        row("old").starts_with("NON_RESUMABLE KEY_EXPIRED: it may have been acted on at ")
    });
    assert_eq!(endpoint.requests().len(), 1, "nothing was sent for it");
    let resumed = rider.end_of(&["work", "resume", "g", "old", "--why", "a test"]);
    let said = String::from_utf8_lossy(&resumed.stderr).into_owned();
    assert!(resumed.status.code() == Some(8) && said.contains("KEY_EXPIRED"), "{said}");

    let found = ["work", "resolve", "g", "old", "--outcome", "not-done", "--why", "it was never there"];
    assert!(rider.end_of(&found).status.success());
    wait_until("it is asked for and done", || row("old").starts_with("DONE"));
    assert_eq!(endpoint.requests().len(), 2);
    rider.still_runs();
}

/// The write hides from the row when the request left.
#[test]
fn e28_an_attempt_whose_row_somebody_wrote_without_the_fence_counts_from_its_claim() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, _| Play::Hold);
    let stages = [stage("PRICING", &endpoint.address(), None, "key_retention = \"1d\"\n")];
    let mut rider = scene.rider("rider", work(&stages));
    rider.setup();
    rider.start_ready();
    scene.db.run("INSERT INTO pending_work (group_id, quote_id, stage, payload) VALUES ('g', 'q', 'PRICING', '{}')");
    wait_until("the answer is held", || endpoint.held() == 1);
    let claimed_at = scene.db.text("SELECT updated_at::text FROM pending_work");
    scene.db.run("UPDATE pending_work SET stage_state = 'PENDING', updated_at = clock_timestamp()");
    endpoint.release();
    wait_until("the row is parked", || {
        scene.db.text("SELECT coalesce(last_error, '') FROM pending_work").starts_with("UNFENCED_WRITE: ")
    });
    let told = "SELECT concat_ws(' ', fence, attempt, stage, outcome, left(reason, 14), next_state, started_at) FROM postrider.work_history";
    let expected = format!("1 1 PRICING parked UNFENCED_WRITE NON_RESUMABLE {claimed_at}");
    assert_eq!(scene.db.text(told), expected);

    let resume = ["work", "resume", "g", "q", "--why", "the program was found", "--dry-run"];
    assert!(rider.end_of(&resume).status.success(), "its key is kept for a day");
    scene.db.run("UPDATE postrider.work_history SET started_at = now() - interval '2 days'");
    let resumed = rider.end_of(&resume);
    let said = String::from_utf8_lossy(&resumed.stderr).into_owned();
    assert!(resumed.status.code() == Some(8) && said.contains("KEY_EXPIRED"), "{said}");
    rider.still_runs();
}
