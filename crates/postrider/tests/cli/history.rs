//! `postrider verify-history`: one history that breaks each invariant and one that nearly does, and lines that are none.

#![allow(clippy::panic, reason = "a test stops at the first surprise")]

use super::{Ended, end_of};
use expect_test::{Expect, expect};

const RULES: &str = r#"{"history":1,"stages":[{"name":"A","attempt_limit":2},{"name":"B","attempt_limit":2}],"consumers":["partners"],"at_rest":true}"#;

/// The process over the rules and these lines, which begin at line 2.
fn verify(lines: &str, arguments: &[&str]) -> Ended {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    std::fs::write(&path, format!("{RULES}\n{lines}\n")).unwrap();
    let path = path.to_str().unwrap();
    let ended = end_of(&[&["verify-history", path][..], arguments].concat());
    let nameless = |text: String| text.replace(path, "FILE");
    Ended { code: ended.code, stdout: nameless(ended.stdout), stderr: nameless(ended.stderr) }
}

/// Lines in short: a verb and what follows it, for one row, one receiver's key, one external call.
fn line(short: &str) -> String {
    let mut words = short.split_whitespace();
    let (verb, first, second) = (words.next().unwrap(), words.next().unwrap_or(""), words.next().unwrap_or(""));
    let row = |record: &str, rest: &str| format!(r#"{{"record":"{record}","key":["g","q"]{rest}}}"#);
    match verb {
        "submit" => row("submitted", r#","stage":"A""#),
        "claim" => row("claim_written", &format!(r#","stage":"A","fence":{first},"owner":"{second}""#)),
        "write" => row("checkpoint_written", &format!(r#","stage":"A","fence":{first},"owner":"{second}""#)),
        "defer" => {
            row("checkpoint_written", &format!(r#","stage":"A","fence":{first},"owner":"{second}","deferred":true"#))
        }
        "enter" => row("stage_entered", &format!(r#","stage":"{first}","cause":"{second}""#)),
        "request" => row("request_received", &format!(r#","stage":"A","idempotency_key":"k","fingerprint":"{first}""#)),
        "effect" => row("effect_committed", &format!(r#","stage":"A","epoch":{first}"#)),
        "park" => row("parked", &format!(r#","reason":"{first}""#)),
        "close" => row("closed", ""),
        "store" | "give" => {
            let record = if verb == "store" { "answer_stored" } else { "answer_given" };
            format!(r#"{{"record":"{record}","idempotency_key":"k","fingerprint":"f","body_hash":"{first}"}}"#)
        }
        "commit" => format!(r#"{{"record":"event_committed","id":"{first}","key":"{second}"}}"#),
        "deliver" => format!(r#"{{"record":"event_delivered","consumer":"partners","id":"{first}"}}"#),
        "confirm" => format!(
            r#"{{"record":"confirmed","slot":"s","lsn":"0/5","durable":"0/{first}","settled":{{"partners":"0/{second}"}},"policy":"sinks"}}"#
        ),
        "intent" | "sent" | "outcome" | "look" => {
            let records = [("intent", "intent_written"), ("sent", "intent_sent"), ("outcome", "outcome_written")];
            let record = records.iter().find(|(short, _)| *short == verb).map_or("looked_up", |(_, record)| *record);
            format!(r#"{{"record":"{record}","reference":"r"}}"#)
        }
        _ => panic!("no such line: {short}"),
    }
}

fn lines(short: &[&str]) -> String {
    short.iter().map(|short| line(short)).collect::<Vec<_>>().join("\n")
}

fn check(violating: &[&str], near_miss: &[&str], expected: Expect) {
    let broken = verify(&lines(violating), &[]);
    expected.assert_eq(&broken.stdout);
    assert_eq!((broken.code, broken.stderr.as_str()), (Some(1), ""));
    let whole = verify(&lines(near_miss), &[]);
    assert_eq!(whole.stdout, format!("FILE: records {}, violations 0\n", near_miss.len()));
    assert_eq!((whole.code, whole.stderr.as_str()), (Some(0), ""));
}

#[test]
fn each_invariant_has_a_history_that_breaks_it_and_one_that_nearly_does() {
    check(
        &["effect 0", "effect 0"],
        &["effect 0", "effect 1"],
        expect![[r#"
        I1: stage A of row g/q took effect again in epoch 0 (lines 2 and 3)
        FILE: records 2, violations 1
    "#]],
    );
    check(
        &["submit", "park"],
        &["submit", "park PERMANENT"],
        expect![[r#"
        I2: row g/q is neither terminal nor parked with a reason (line 2)
        FILE: records 2, violations 1
    "#]],
    );
    check(
        &["commit a k", "commit b k", "deliver a"],
        &["commit a k", "deliver a", "deliver a"],
        expect![[r#"
        I2: event b never came to consumer partners (line 3)
        FILE: records 3, violations 1
    "#]],
    );
    check(
        &["claim 1 one", "claim 2 two", "write 1 one"],
        &["claim 1 one", "claim 2 two", "write 2 two"],
        expect![[r#"
            I3: row g/q was written under fence 1 by who does not hold it (lines 3 and 4)
            FILE: records 3, violations 1
        "#]],
    );
    check(
        &["claim 1 one", "claim 1 two"],
        &["claim 1 one", "claim 2 one"],
        expect![[r#"
        I3: row g/q got fence 1 after 1 (lines 2 and 3)
        FILE: records 2, violations 1
    "#]],
    );
    check(
        &["submit", "enter B success", "enter A success", "close"],
        &["submit", "enter B success", "enter A operator", "close"],
        expect![[r#"
            I4: row g/q came into stage A from a later one or itself (lines 3 and 4)
            FILE: records 4, violations 1
        "#]],
    );
}

#[test]
fn each_invariant_of_keys_events_and_calls_has_them_too() {
    check(
        &["request f", "request g"],
        &["request f", "request f"],
        expect![[r#"
        I5: key k came with two fingerprints (lines 2 and 3)
        FILE: records 2, violations 1
    "#]],
    );
    check(
        &["store x", "give y"],
        &["store x", "give x"],
        expect![[r#"
        I5: key k was answered in two ways (lines 2 and 3)
        FILE: records 2, violations 1
    "#]],
    );
    check(
        &["commit a k", "commit b k", "deliver b", "deliver a"],
        &["commit a k", "commit b other", "deliver b", "deliver a"],
        expect![[r#"
            I6: consumer partners got event b of key k out of commit order (lines 3 and 4)
            I6: consumer partners got event a of key k out of commit order (lines 2 and 5)
            FILE: records 4, violations 2
        "#]],
    );
    check(
        &["request f", "request f", "request f"],
        &["claim 1 one", "request f", "defer 1 one", "request f", "request f"],
        expect![[r#"
            I7: stage A of row g/q got request 3 at limit 2, 1 budgets and 0 deferrals (line 4)
            FILE: records 3, violations 1
        "#]],
    );
    check(
        &["intent", "sent", "sent"],
        &["intent", "sent", "look", "sent", "outcome"],
        expect![[r#"
        I8: call r was sent again without a look-up (lines 3 and 4)
        FILE: records 3, violations 1
    "#]],
    );
    check(
        &["confirm 5 4"],
        &["confirm 5 5"],
        expect![[r#"
        I9: slot s (partners) was confirmed at 0/5, and only 0/4 is safe (line 2)
        FILE: records 1, violations 1
    "#]],
    );
}

#[test]
fn violations_are_json_for_a_program() {
    let ended = verify(&lines(&["claim 1 one", "claim 1 two"]), &["--json"]);
    assert_eq!(ended.code, Some(1));
    expect![[r#"
        {
          "exit_code": 1,
          "ok": false,
          "records": 2,
          "violations": [
            {
              "about": "g/q",
              "invariant": "I3",
              "lines": [
                2,
                3
              ],
              "sentence": "row g/q got fence 1 after 1"
            }
          ]
        }
    "#]]
    .assert_eq(&ended.stdout);
}

fn check_bad(lines: &str, expected: Expect) {
    let ended = verify(lines, &[]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    let (told, _) = ended.stderr.split_once("`postrider explain PR001`").unwrap();
    expected.assert_eq(told);
}

#[test]
fn a_line_that_cannot_be_read_is_named_with_its_cure() {
    check_bad(
        "{\"record\":\"clos",
        expect![[r#"
        postrider: error PR001: a line of the history cannot be read
        FILE, line 2: it is no JSON at column 15.
        Each line is one JSON object. Where the file's last line was cut, delete it.
    "#]],
    );
    check_bad(
        "[]",
        expect![[r#"
        postrider: error PR001: a line of the history cannot be read
        FILE, line 2: [] is no object.
        Each line is one JSON object.
    "#]],
    );
    check_bad(
        "{\"record\":\"exploded\"}",
        expect![[r#"
        postrider: error PR001: a line of the history cannot be read
        FILE, line 2: there is no record exploded.
        The records are submitted, claim_written, fence_raised, resumed, checkpoint_written, stage_entered, parked, closed, request_received, effect_committed, answer_stored, answer_given, event_committed, event_delivered, confirmed, intent_written, intent_sent, outcome_written, looked_up.
    "#]],
    );
    check_bad(
        "{\"record\":\"closed\"}",
        expect![[r#"
        postrider: error PR001: a line of the history cannot be read
        FILE, line 2: the field key is missing.
        docs/history-format.md has the fields of each record.
    "#]],
    );
    check_bad(
        "{\"record\":\"closed\",\"key\":[]}",
        expect![[r#"
        postrider: error PR001: a line of the history cannot be read
        FILE, line 2: key is empty.
        Give the texts of the key's columns.
    "#]],
    );
    check_bad(
        "{\"record\":\"closed\",\"key\":[\"g\"],\"colour\":1}",
        expect![[r#"
        postrider: error PR001: a line of the history cannot be read
        FILE, line 2: the field colour has no meaning here.
        Leave it out, or correct its name.
    "#]],
    );
    check_bad(
        "{\"record\":\"submitted\",\"key\":[\"g\"],\"stage\":\"C\"}",
        expect![[r#"
        postrider: error PR001: a line of the history cannot be read
        FILE, line 2: the rules have no stage C.
        Add it to the first line, which has A, B.
    "#]],
    );
    check_bad(
        "{\"record\":\"fence_raised\",\"key\":[\"g\"],\"fence\":1.5}",
        expect![[r#"
        postrider: error PR001: a line of the history cannot be read
        FILE, line 2: fence is 1.5.
        It is a whole number.
    "#]],
    );
}

#[test]
fn a_line_that_contradicts_the_ones_above_is_named_with_its_cure() {
    check_bad(
        "{\"record\":\"event_delivered\",\"consumer\":\"nobody\",\"id\":\"a\"}",
        expect![[r#"
        postrider: error PR001: a line of the history cannot be read
        FILE, line 2: the rules have no consumer nobody.
        Add it to the first line, which has partners.
    "#]],
    );
    let twice = lines(&["commit a k", "commit a k"]);
    check_bad(
        &twice,
        expect![[r#"
        postrider: error PR001: a line of the history cannot be read
        FILE, line 3: event a was committed before.
        An event is committed once; its id is its own.
    "#]],
    );
    let back = "{\"record\":\"event_committed\",\"id\":\"a\",\"lsn\":\"0/2\"}\n\
                {\"record\":\"event_committed\",\"id\":\"b\",\"lsn\":\"0/1\"}";
    check_bad(
        back,
        expect![[r#"
        postrider: error PR001: a line of the history cannot be read
        FILE, line 3: event b was committed at 0/1, before the one above at 0/2.
        Write events in the order of their commits.
    "#]],
    );
    check_bad(
        &line("confirm x 5"),
        expect![[r#"
        postrider: error PR001: a line of the history cannot be read
        FILE, line 2: durable is "0/x".
        It is a position as the server writes it, as in "0/16B3748".
    "#]],
    );
    let missing = end_of(&["verify-history", "/nowhere/history.jsonl"]);
    assert_eq!(missing.code, Some(2));
    expect![[r#"
        postrider: error PR001: cannot read the history: No such file or directory (os error 2)
        The file is /nowhere/history.jsonl.
        `postrider explain PR001` says what it costs and what to type.
    "#]]
    .assert_eq(&missing.stderr);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    for first in ["", &line("close"), &RULES.replace(":1,", ":2,")] {
        std::fs::write(&path, first).unwrap();
        let ended = end_of(&["verify-history", path.to_str().unwrap()]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{}", ended.stderr);
        assert!(ended.stderr.contains("line 1"), "{}", ended.stderr);
    }
}
