//! Receivers that move their row on in the transaction of their work, and writers of the work table that keep no fence.

use super::fixture::{Database, Endpoint, Play, Request, Rider, Scene, on_every_version, stage, wait_until, work};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

/// PRICING is moved on by its receiver to APPROVAL, which is asked elsewhere.
fn stages(pricing: &Endpoint, approval: &Endpoint, more: &str) -> String {
    let soon = format!("backoff = {{ first = \"10ms\" }}\n{more}");
    let first = stage("PRICING", &pricing.address(), Some("APPROVAL"), &soon);
    work(&[first.replace("\"keyed\"", "\"same_tx\""), stage("APPROVAL", &approval.address(), None, "")])
}

fn start(scene: &Scene, configuration: String) -> Rider {
    let mut rider = scene.rider("rider", configuration);
    rider.setup();
    scene.db.run("CREATE TABLE policies (quote text, fence bigint)");
    rider.start_ready();
    rider
}

fn submit(scene: &Scene, quote: &str) {
    scene.db.run(&format!("INSERT INTO pending_work (group_id, quote_id, stage) VALUES ('g', '{quote}', 'PRICING')"));
}

/// The transaction of a receiver; false: its request is stale, and nothing of it is left.
fn serve(url: &str, request: &Request) -> bool {
    let session = Database::connect(url);
    let (quote, fence) = (request.member("quote_id"), request.fence());
    session.run(&format!("BEGIN; INSERT INTO policies VALUES ('{quote}', {fence})"));
    session.succeeds(&format!(
        "SELECT postrider_advance_pending_work(ARRAY['g', '{quote}'], 'PRICING', {fence}, 'APPROVAL'); COMMIT"
    ))
}

fn row(scene: &Scene) -> Vec<String> {
    scene
        .db
        .rows("SELECT stage, stage_state, fence, attempt_count, coalesce(last_error, '') FROM pending_work")
        .remove(0)
}

fn is_done(scene: &Scene) -> bool {
    row(scene)[1] == "DONE"
}

/// The answer is still on its way when the next stage is done, and again when the orchestrator dies: nobody needs it.
#[test]
fn e07_a_row_that_its_receiver_moved_on_goes_on_without_the_answer_and_is_not_asked_again() {
    on_every_version(|version| {
        let scene = Scene::of_version(version);
        let url = scene.url();
        let pricing = Endpoint::alone(move |request, _| {
            assert!(serve(&url, request));
            Play::Hold
        });
        let approval = Endpoint::alone(|_, _| Play::Answer);
        let mut rider = start(&scene, stages(&pricing, &approval, ""));
        submit(&scene, "q1");
        wait_until("the row is done", || is_done(&scene));
        assert_eq!((pricing.held(), approval.requests().len()), (1, 1), "the first answer is still held");
        assert_eq!(rider.metric("postrider_stages_done_by_receiver_total"), 1);
        rider.kill9();
        rider.start_ready();
        submit(&scene, "q2");
        wait_until("the other row is done", || scene.open_rows() == 0);
        pricing.release();
        assert_eq!((pricing.requests().len(), approval.requests().len()), (2, 2));
        assert_eq!(scene.db.number("SELECT count(*) FROM policies"), 2);
        let told = "SELECT string_agg(stage || ' ' || outcome || ' ' || attempt, ', ' ORDER BY fence) FROM postrider.work_history WHERE key[2] = 'q1'";
        assert_eq!(scene.db.text(told), "PRICING done_by_receiver 1, APPROVAL done 1");
        assert_eq!(rider.metric("postrider_stale_checkpoints_total"), 0);
    });
}

/// The receiver commits after the orchestrator's death: the next one finds the row where it is now.
#[test]
fn e07_an_advance_after_the_orchestrators_death_is_not_asked_for_again() {
    let scene = Scene::start();
    let url = scene.url();
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let pricing = Endpoint::alone(move |request, _| {
        wait.lock().unwrap().recv().unwrap();
        assert!(serve(&url, request));
        Play::Answer
    });
    let approval = Endpoint::alone(|_, _| Play::Answer);
    let mut rider = start(&scene, stages(&pricing, &approval, ""));
    submit(&scene, "q");
    wait_until("the request is there", || pricing.requests().len() == 1);
    rider.kill9();
    go.send(()).unwrap();
    wait_until("the row is moved on", || row(&scene)[0] == "APPROVAL");
    rider.start_ready();
    wait_until("the row is done", || is_done(&scene));
    assert_eq!((pricing.requests().len(), approval.requests().len()), (1, 1));
}

#[test]
fn e08_a_repeat_that_finds_its_row_moved_on_says_so_and_uses_no_attempt() {
    let scene = Scene::start();
    let url = scene.url();
    let pricing = Endpoint::alone(move |request, _| {
        assert!(serve(&url, request));
        Play::Say(409, "already-done")
    });
    let approval = Endpoint::alone(|_, _| Play::Answer);
    let rider = start(&scene, stages(&pricing, &approval, ""));
    submit(&scene, "q");
    wait_until("the row is done", || is_done(&scene));
    assert_eq!((pricing.requests().len(), scene.db.number("SELECT count(*) FROM policies")), (1, 1));
    assert_eq!(row(&scene)[3], "1", "the attempt of APPROVAL, and none of PRICING");
    assert_eq!(rider.metric("postrider_stages_done_by_receiver_total"), 1);
}

/// The first request's transaction takes longer than we wait; the second has moved the row on when it comes to its end.
#[test]
fn a_request_that_was_given_up_and_comes_late_takes_no_effect() {
    let scene = Scene::start();
    let url = scene.url();
    let (go, wait) = channel::<()>();
    let (wait, late) = (Mutex::new(wait), Arc::new(Mutex::new(None)));
    let outcome = late.clone();
    let pricing = Endpoint::alone(move |request, before| {
        if before > 0 {
            assert!(serve(&url, request));
            return Play::Answer;
        }
        wait.lock().unwrap().recv().unwrap();
        *outcome.lock().unwrap() = Some(serve(&url, request));
        Play::Say(412, "stale")
    });
    let approval = Endpoint::alone(|_, _| Play::Answer);
    let _rider = start(&scene, stages(&pricing, &approval, "timeout = \"300ms\"\nlease = \"1m\"\n"));
    submit(&scene, "q");
    wait_until("the row is done", || is_done(&scene));
    go.send(()).unwrap();
    wait_until("the late request has ended", || late.lock().unwrap().is_some());
    assert_eq!(*late.lock().unwrap(), Some(false), "it was stale");
    assert_eq!(scene.db.rows("SELECT fence FROM policies"), [["2"]]);
}

#[test]
fn a_receiver_that_answers_done_without_its_row_is_parked_with_the_cure() {
    let scene = Scene::start();
    let pricing = Endpoint::alone(|_, _| Play::Answer);
    let approval = Endpoint::alone(|_, _| Play::Answer);
    let rider = start(&scene, stages(&pricing, &approval, ""));
    submit(&scene, "q");
    wait_until("the row is parked", || row(&scene)[1] == "NON_RESUMABLE");
    let reason = row(&scene).remove(4);
    assert!(reason.starts_with("NOT_ADVANCED: ") && reason.contains("postrider_advance_"), "{reason}");
    // Without the function `check` says so, and what makes it.
    scene.db.run("DROP FUNCTION postrider_advance_pending_work");
    let check = rider.end_of(&["check"]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(!check.status.success() && said.contains("postrider_advance_pending_work"), "{said}");
}

/// As a program does that knows of no fence.
const UNFENCED: &str = "UPDATE pending_work SET stage = 'APPROVAL', stage_state = 'PENDING'";

const REREAD: &str = "unfenced_writes = \"reread\"\n";

const TOLD: &str = "SELECT string_agg(concat_ws(' ', stage, fence, outcome, left(reason, 14), next_stage), ', ' ORDER BY fence) \
     FROM postrider.work_history";

fn unfenced(scene: &Scene, policy: &str, write: &str) -> (Rider, Endpoint, Endpoint) {
    let pricing = Endpoint::alone(|_, _| Play::Hold);
    let approval = Endpoint::alone(|_, _| Play::Answer);
    let stages =
        [stage("PRICING", &pricing.address(), Some("APPROVAL"), ""), stage("APPROVAL", &approval.address(), None, "")];
    let configuration = work(&stages).replace("[work]\n", &format!("[work]\n{policy}"));
    let rider = start(scene, configuration);
    submit(scene, "q");
    wait_until("the answer is held", || pricing.held() == 1);
    scene.db.run(write);
    // A version in which the row still runs under its claim is found when the call has ended.
    if write == UNFENCED {
        wait_until("the write is seen", || rider.metric("postrider_unfenced_writes_total") == 1);
    }
    pricing.release();
    (rider, pricing, approval)
}

#[test]
fn e09_a_row_that_somebody_wrote_without_its_fence_is_parked_where_it_was_put() {
    let scene = Scene::start();
    let (rider, _pricing, approval) = unfenced(&scene, "", UNFENCED);
    wait_until("the row is parked", || row(&scene)[1] == "NON_RESUMABLE");
    let row = row(&scene);
    assert_eq!(row[..3], ["APPROVAL", "NON_RESUMABLE", "2"], "it never moves back");
    assert!(row[4].starts_with("UNFENCED_WRITE: ") && row[4].contains("ended done"), "{row:?}");
    assert_eq!((rider.metric("postrider_unfenced_writes_total"), approval.requests().len()), (1, 0));
    rider.wait_to_say("did not raise the fence");
    // A person lets it go on.
    let resumed = rider.end_of(&["work", "resume", "g", "q", "--why", "the batch job was moved to advance_stage"]);
    assert!(resumed.status.success(), "{resumed:?}");
    wait_until("it is done", || is_done(&scene));
    assert_eq!(approval.requests().len(), 1);
}

#[test]
fn e09_by_the_other_policy_it_goes_on_from_where_it_was_put() {
    let scene = Scene::start();
    let (rider, pricing, approval) = unfenced(&scene, REREAD, UNFENCED);
    wait_until("it is done", || is_done(&scene));
    assert_eq!(row(&scene)[0], "APPROVAL");
    assert_eq!((pricing.requests().len(), approval.requests().len()), (1, 1));
    assert_eq!(rider.metric("postrider_unfenced_writes_total"), 1);
    assert_eq!(
        scene.db.text(TOLD),
        "PRICING 1 interrupted UNFENCED_WRITE APPROVAL, APPROVAL 2 done APPROVAL",
        "the attempt that was interrupted is told"
    );
}

/// The row is still our claim's then, in a stage that it was not claimed for.
#[test]
fn e09_an_attempt_is_told_in_the_stage_that_it_was_in_where_only_that_was_changed() {
    let stage_alone = "UPDATE pending_work SET stage = 'APPROVAL'";
    let scene = Scene::start();
    let _running = unfenced(&scene, "", stage_alone);
    wait_until("the row is parked", || row(&scene)[..2] == ["APPROVAL", "NON_RESUMABLE"]);
    assert_eq!(scene.db.text(TOLD), "PRICING 1 parked UNFENCED_WRITE APPROVAL");
    let scene = Scene::start();
    let _running = unfenced(&scene, REREAD, stage_alone);
    wait_until("it is done", || is_done(&scene));
    assert_eq!(scene.db.text(TOLD), "PRICING 1 interrupted UNFENCED_WRITE APPROVAL, APPROVAL 2 done APPROVAL");
}

/// The limit is exact, and what is left says why: with the receiver's word that it did nothing the row is parked, without it nobody knows.
#[test]
fn e12_after_its_attempts_a_row_rests_with_the_reason_and_the_last_status() {
    let scene = Scene::start();
    let soon = "attempts = 5\nbackoff = { first = \"1ms\", max = \"5ms\" }\n";
    let refusing = Endpoint::alone(|_, _| Play::Say(503, "retry"));
    let failing = Endpoint::alone(|_, _| Play::Say(500, ""));
    let configuration =
        work(&[stage("PRICING", &refusing.address(), None, soon), stage("APPROVAL", &failing.address(), None, soon)]);
    let _rider = start(&scene, configuration);
    scene.db.run(
        "INSERT INTO pending_work (group_id, quote_id, stage) VALUES ('g', 'a', 'APPROVAL'), ('g', 'p', 'PRICING')",
    );
    let rests = "SELECT count(*) FROM pending_work WHERE stage_state IN ('NON_RESUMABLE', 'UNKNOWN')";
    wait_until("both rest", || scene.db.number(rests) == 2);
    assert_eq!((refusing.requests().len(), failing.requests().len()), (5, 5));
    let rows = scene.db.rows("SELECT stage, stage_state, attempt_count, last_error FROM pending_work ORDER BY stage");
    let expected = [
        ["APPROVAL", "UNKNOWN", "5", "AT_LIMIT: UNKNOWN (HTTP 500)"],
        ["PRICING", "NON_RESUMABLE", "5", "ATTEMPTS_USED_UP: NOT_PROCESSED (HTTP 503)"],
    ];
    assert_eq!(rows, expected);
    let told = "SELECT stage, count(*), max(attempt), count(*) FILTER (WHERE outcome IN ('parked', 'unknown')), max(http_status)
                  FROM postrider.work_history GROUP BY stage ORDER BY stage";
    assert_eq!(scene.db.rows(told), [["APPROVAL", "5", "5", "1", "500"], ["PRICING", "5", "5", "1", "503"]]);
}
