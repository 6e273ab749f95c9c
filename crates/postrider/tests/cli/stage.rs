//! Stages and endpoints that people hold back and let go, with the real binary and nobody who runs.

use crate::live::{configuration, query};
use crate::{Ended, end_of, free_port};
use serde_json::{Value, json};
use xtask::postgres::{Cluster, find};

struct Scene {
    cluster: Cluster,
    dir: tempfile::TempDir,
}

impl Scene {
    fn stage(&self, arguments: &[&str]) -> Ended {
        let file = self.dir.path().join("postrider.toml").to_str().unwrap().to_owned();
        end_of(&[&["stage"], &arguments[..1], &["-c", file.as_str()], &arguments[1..]].concat())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let ended = self.stage(&[arguments, &["--json"]].concat());
        assert!(!ended.stdout.is_empty(), "{}", ended.stderr);
        serde_json::from_str(&ended.stdout).unwrap()
    }

    fn refused(&self, arguments: &[&str], code: i32, words: &str) {
        let ended = self.stage(arguments);
        assert_eq!(ended.code, Some(code), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(words), "{arguments:?}: {}", ended.stderr);
    }

    fn text(&self, statement: &str) -> String {
        query(&self.cluster.url(), &[statement]).unwrap_or_default()
    }
}

#[test]
fn a_part_is_paused_once_and_resumed_once_and_both_are_on_record() {
    let scene =
        Scene { cluster: Cluster::builder(&find(None).unwrap()).start().unwrap(), dir: tempfile::tempdir().unwrap() };
    let port = free_port();
    configuration(scene.dir.path(), &scene.cluster.url(), port, free_port());
    let file = scene.dir.path().join("postrider.toml");
    assert_eq!(end_of(&["setup", "-c", file.to_str().unwrap()]).code, Some(0));
    let origin = format!("http://127.0.0.1:{port}");
    let stage = json!({
        "stage": "PRICING", "definition": "default@1", "endpoint": origin, "paused": false,
    });
    assert_eq!(scene.json(&["ls"]), json!({ "stages": [stage], "paused": [] }));

    // The role that runs may look, and a person's role needs no more for it; to hold back takes more.
    scene.text("CREATE ROLE rider LOGIN PASSWORD 'secret'");
    assert_eq!(end_of(&["setup", "--role", "rider", "-c", file.to_str().unwrap()]).code, Some(0));
    let url = scene.cluster.url_as("rider", "secret", "postgres");
    assert_eq!(scene.json(&["ls", "--url", &url])["paused"], json!([]));
    scene.refused(&["pause", "PRICING", "--why", "x", "--url", &url], 3, "INSERT on postrider.operator_actions");

    // Nothing is ordered without a reason, nor for what the configuration does not have.
    scene.refused(&["pause", "PRICING"], 2, "--why");
    for verb in ["pause", "resume"] {
        for blank in ["", " ", "\t\u{a0}\n"] {
            scene.refused(&[verb, "PRICING", "--why", blank], 2, "it is blank");
            scene.refused(&[verb, "PRICING", "--why", blank, "--dry-run"], 2, "it is blank");
        }
    }
    scene.refused(&["pause", "--why", "x"], 2, "--endpoint");
    scene.refused(&["pause", "PRICING", "--endpoint", &origin, "--why", "x"], 2, "--endpoint");
    scene.refused(&["pause", "PRICE", "--why", "x"], 2, "Its stages are PRICING.");
    scene.refused(
        &["pause", "PRICING", "--definition", "quote@9", "--why", "x"],
        2,
        "that definition has no such stage",
    );
    scene.refused(&["pause", "--endpoint", "http://elsewhere/", "--why", "x"], 2, &format!("called at {origin}."));
    scene.refused(&["pause", "--endpoint", "elsewhere", "--why", "x"], 2, "PR001");
    scene.refused(&["resume", "PRICING", "--why", "x"], 8, "it is not paused");

    let pause = ["pause", "PRICING", "--why", "a \"new\" tariff", "--by", "ada", "--evidence", "ticket 7"];
    let tried = scene.stage(&[&pause[..], &["--dry-run"]].concat());
    assert_eq!((tried.code, tried.stdout.as_str()), (Some(0), "stage pause: stage PRICING, would be done\n"));
    assert_eq!(scene.json(&["ls"])["paused"], json!([]));
    let paused = scene.json(&pause);
    let part = json!({ "stage": "PRICING", "definition": null, "endpoint": null });
    assert_eq!(paused, json!({ "verb": "stage pause", "dry_run": false, "part": part }));
    scene.refused(&pause, 8, "by ada: a \"new\" tariff.");
    assert_eq!(scene.stage(&["pause", "--endpoint", &format!("{origin}/x"), "--why", "moved"]).code, Some(0));
    let listed = scene.json(&["ls"]);
    assert_eq!(listed["stages"][0]["paused"], true);
    assert_eq!((&listed["paused"][0]["part"], &listed["paused"][0]["who"]), (&part, &json!("ada")));
    assert_eq!(listed["paused"][1]["part"]["endpoint"], json!(origin));
    scene.refused(&["resume", "PRICING", "--definition", "default@1", "--why", "x"], 8, "it is not paused");
    assert_eq!(scene.stage(&["resume", "PRICING", "--why", "in force"]).code, Some(0));
    assert_eq!(scene.stage(&["resume", "--endpoint", &origin, "--why", "moved"]).code, Some(0));
    assert_eq!(scene.json(&["ls"])["paused"], json!([]));
    let actions = "SELECT string_agg(concat_ws('|', verb, who, why, evidence, state_after, (database_user = session_user)::text), E'\\n' ORDER BY id)
                     FROM postrider.operator_actions WHERE verb NOT LIKE '%--endpoint%'";
    assert_eq!(
        scene.text(actions),
        "stage pause PRICING|ada|a \"new\" tariff|ticket 7|PAUSED|true\nstage resume PRICING|unknown|in force|ACTIVE|true"
    );
    let endpoints =
        format!("SELECT count(*)::text FROM postrider.operator_actions WHERE verb LIKE '%e --endpoint {origin}'");
    assert_eq!(scene.text(&endpoints), "2");
}
