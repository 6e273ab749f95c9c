//! Rows keep the definition that they began under; what the configuration lacks of it is said, beforehand and in the row.

use super::fixture::{Endpoint, Play, Rider, Scene, stage, wait_until};

fn configuration(current: &str, stages: &[String], earlier: &str) -> String {
    format!("[work]\ntable = \"pending_work\"\ndefinition = \"{current}\"\n{}{earlier}", stages.concat())
}

fn submit(scene: &Scene, quote: &str, definition: &str, stage: &str) {
    scene.db.run(&format!(
        "INSERT INTO pending_work (group_id, quote_id, definition, stage, payload)
         VALUES ('g', '{quote}', {definition}, '{stage}', '{{}}')"
    ));
}

fn row(scene: &Scene, quote: &str) -> Vec<String> {
    let sql = format!(
        "SELECT stage, stage_state, coalesce(definition, ''), fence, attempt_count, coalesce(last_error, '')
           FROM pending_work WHERE quote_id = '{quote}'"
    );
    scene.db.rows(&sql).remove(0)
}

#[test]
fn e67_a_row_runs_under_its_own_definition_or_is_parked_and_never_stranded() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let address = endpoint.address();
    let new = [stage("PRICING", &address, None, "")];
    let old = [stage("PRICING", &address, Some("REFERRAL"), ""), stage("REFERRAL", &address, None, "")];
    let old = format!(
        "[[work.earlier]]\nname = \"quote@1\"\n{}",
        old.concat().replace("[[work.stage]]", "[[work.earlier.stage]]")
    );
    let mut rider = scene.rider("rider", configuration("quote@2", &new, ""));
    rider.setup();
    submit(&scene, "fresh", "NULL", "PRICING");
    submit(&scene, "old", "'quote@1'", "PRICING");
    submit(&scene, "gone", "'quote@2'", "REFERRAL");

    let check = rider.end_of(&["check"]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(!check.status.success(), "{said}");
    for word in [
        "1 open row is under the definition \"quote@1\"",
        "stage \"REFERRAL\" of the definition \"quote@2\"",
        "[[work.earlier]]",
    ] {
        assert!(said.contains(word), "check does not say `{word}`: {said}");
    }

    rider.start_ready();
    wait_until("the row without a definition is done", || row(&scene, "fresh")[1] == "DONE");
    assert_eq!(row(&scene, "fresh")[2], "quote@2", "its first claim gave it the current one");
    wait_until("the others are parked", || {
        scene.db.number("SELECT count(*) FROM pending_work WHERE stage_state = 'NON_RESUMABLE'") == 2
    });
    let version_gone = "VERSION_GONE: the configuration has no definition \"quote@1\"";
    assert_eq!(row(&scene, "old"), ["PRICING", "NON_RESUMABLE", "quote@1", "1", "0", version_gone]);
    let stage_gone = "STAGE_GONE: the configuration has no stage \"REFERRAL\" in the definition \"quote@2\"";
    assert_eq!(row(&scene, "gone"), ["REFERRAL", "NON_RESUMABLE", "quote@2", "1", "0", stage_gone]);
    assert_eq!(endpoint.requests().len(), 1);
    assert_eq!(endpoint.requests()[0].header("postrider-definition"), "quote@2");
    wait_until("it is counted", || rider.metric("postrider_rows_refused_total") == 2);
    let waiting = "2 rows wait for a person: 2 NON_RESUMABLE; `postrider work ls --state NON_RESUMABLE`\n";
    let says_waiting = |rider: &Rider| {
        let status = String::from_utf8_lossy(&rider.end_of(&["status"]).stdout).into_owned();
        assert!(status.contains(waiting), "{status}");
        assert_eq!(rider.metric("postrider_rows_waiting_for_a_person"), 2);
        status
    };
    assert!(says_waiting(&rider).contains(version_gone));

    // With the earlier definition a person lets the row go on, and it goes its own way.
    rider.kill9();
    rider.plan.rest = configuration("quote@2", &new, &old);
    rider.start_ready();
    says_waiting(&rider);
    scene.db.run("UPDATE pending_work SET stage_state = 'PENDING', fence = fence + 1 WHERE quote_id = 'old'");
    wait_until("it is done", || row(&scene, "old")[1] == "DONE");
    assert_eq!(row(&scene, "old")[..3], ["REFERRAL", "DONE", "quote@1"]);
    let definitions: Vec<String> =
        endpoint.requests().iter().map(|request| request.header("postrider-definition").to_owned()).collect();
    assert_eq!(definitions, ["quote@2", "quote@1", "quote@1"]);
}

#[test]
fn e67_rows_move_to_another_definition_by_an_order_of_a_person_and_where_that_has_their_stage() {
    let scene = Scene::start();
    let endpoint = Endpoint::alone(|_, _| Play::Answer);
    let address = endpoint.address();
    let stages = [stage("PRICING", &address, Some("RATING"), ""), stage("RATING", &address, None, "")];
    let mut rider = scene.rider("rider", configuration("quote@2", &stages, ""));
    rider.setup();
    submit(&scene, "plain", "'quote@1'", "PRICING");
    submit(&scene, "renamed", "'quote@1'", "TARIFF");
    submit(&scene, "lacking", "'quote@1'", "REFERRAL");
    submit(&scene, "sent", "'quote@1'", "TARIFF");
    scene.db.run("UPDATE pending_work SET request_hash = '\\x00' WHERE quote_id = 'sent'");
    rider.start_ready();
    let states =
        |state: &str| scene.db.number(&format!("SELECT count(*) FROM pending_work WHERE stage_state = '{state}'"));
    wait_until("all are parked", || states("NON_RESUMABLE") == 4);

    let migrate = |more: &[&str]| {
        let words = ["work", "migrate", "--definition", "quote@1", "--to", "quote@2", "--why", "quote@1 is withdrawn"];
        let ended = rider.end_of(&[&words[..], more].concat());
        (ended.status.code(), String::from_utf8_lossy(&ended.stdout).into_owned())
    };
    let told = "migrate --to quote@2 --rename TARIFF=RATING: 2 rows would be done\nnot migrate: 1 row, it may have been asked for under its stage's name, among them g sent\nnot migrate: 1 row, that definition has no such stage: say with --rename what it is called there, among them g lacking\n";
    assert_eq!(migrate(&["--rename", "TARIFF=RATING", "--dry-run"]), (Some(8), told.to_owned()));
    let told_json = migrate(&["--rename", "TARIFF=RATING", "--dry-run", "--json"]).1.replace([' ', '\n'], "");
    assert!(
        told_json.contains(r#""to":"quote@2""#) && told_json.contains(r#""renamed":{"TARIFF":"RATING"}"#),
        "{told_json}"
    );
    assert_eq!(scene.db.number("SELECT count(*) FROM pending_work WHERE definition = 'quote@1'"), 4);
    assert_eq!(migrate(&["--rename", "TARIFF=BINDING"]).0, Some(2), "the target must be there");
    assert_eq!(migrate(&["--rename", "TARIFF=RATING"]), (Some(8), told.replace("would be done", "done")));
    let parked = |quote: &str| row(&scene, quote)[..4].to_vec();
    assert_eq!(parked("plain"), ["PRICING", "NON_RESUMABLE", "quote@2", "2"]);
    assert_eq!(parked("renamed"), ["RATING", "NON_RESUMABLE", "quote@2", "2"]);
    assert_eq!(parked("sent"), ["TARIFF", "NON_RESUMABLE", "quote@1", "1"]);
    let record =
        "SELECT string_agg(concat_ws(' ', verb, stage_before, stage_after, fence_before, fence_after), '; ' ORDER BY key)
                    FROM postrider.operator_actions WHERE verb LIKE 'migrate %'";
    let verb = "migrate --definition quote@1 --to quote@2 --rename TARIFF=RATING";
    assert_eq!(scene.db.text(record), format!("{verb} PRICING PRICING 1 2; {verb} TARIFF RATING 1 2"));

    let resume = ["work", "resume", "--definition", "quote@2", "--state", "NON_RESUMABLE", "--why", "moved"];
    assert!(rider.end_of(&resume).status.success());
    wait_until("they are done", || states("DONE") == 2);
    let paths: Vec<String> = endpoint.requests().iter().map(|request| request.path.clone()).collect();
    assert_eq!((paths.len(), paths.iter().filter(|path| *path == "/stages/pricing").count()), (3, 1), "{paths:?}");
    assert!(endpoint.requests().iter().all(|request| request.header("postrider-definition") == "quote@2"));
}
