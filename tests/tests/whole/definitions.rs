//! Rows keep the definition that they began under; what the configuration lacks of it is said, beforehand and in the row.

use super::fixture::{Endpoint, Play, Scene, stage, wait_until};

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
    let status = rider.end_of(&["status"]);
    assert!(String::from_utf8_lossy(&status.stdout).contains(version_gone), "{status:?}");

    // With the earlier definition a person lets the row go on, and it goes its own way.
    rider.kill9();
    rider.plan.rest = configuration("quote@2", &new, &old);
    rider.start_ready();
    scene.db.run("UPDATE pending_work SET stage_state = 'PENDING', fence = fence + 1 WHERE quote_id = 'old'");
    wait_until("it is done", || row(&scene, "old")[1] == "DONE");
    assert_eq!(row(&scene, "old")[..3], ["REFERRAL", "DONE", "quote@1"]);
    let definitions: Vec<String> =
        endpoint.requests().iter().map(|request| request.header("postrider-definition").to_owned()).collect();
    assert_eq!(definitions, ["quote@2", "quote@1", "quote@1"]);
}
