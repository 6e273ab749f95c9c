#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use super::{Configuration, Problem, reference, understand};
use expect_test::{Expect, expect, expect_file};
use postrider_core::rate::Rate;
use postrider_core::work::StageState;
use postrider_engine::{Ack, EndpointPolicy, UnfencedWrites};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const EXAMPLE: &str = include_str!("../../../../docs/postrider.toml");

const SMALLEST: &str = r#"
[source]
url = "postgres://postrider@db/quoting"
[journal]
dir = "/var/lib/postrider"
[[outbox]]
prefix = "outbox"
[[sink]]
name = "events"
kind = "ndjson"
path = "-"
"#;

fn environment() -> BTreeMap<String, String> {
    BTreeMap::from([("PRICING_URL".to_owned(), "http://pricing:80/".to_owned())])
}

fn read(text: &str) -> Result<Configuration, Vec<Problem>> {
    understand(text, &environment())
}

/// The problems of `text`, one a line.
fn check(text: &str, expected: Expect) {
    let problems = read(text).expect_err("the text has problems");
    let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    expected.assert_eq(&lines.join("\n"));
}

/// A stage in an otherwise good file; the stage's keys begin on line 1.
fn check_stage(keys: &str, expected: Expect) {
    check(
        &format!(
            "work.stage = [{{ {keys} }}]\nwork.table = \"w\"\nsource.url = \"postgres://u@h/d\"\njournal.dir = \"d\"\n"
        ),
        expected,
    );
}

fn check_sink(keys: &str, expected: Expect) {
    check(
        &format!(
            "sink = [{{ {keys} }}]\noutbox = [{{ prefix = \"o\" }}]\nsource.url = \"postgres://u@h/d\"\njournal.dir = \"d\"\n"
        ),
        expected,
    );
}

#[test]
fn the_example_is_a_configuration() {
    let configuration = read(EXAMPLE).unwrap();
    assert_eq!(configuration.outbox_tables.len(), 2);
    assert_eq!(configuration.outbox_tables[1].columns.key.as_deref(), Some("customer"));
    assert_eq!(configuration.outbox_tables[1].columns.topic, None);
    assert_eq!(configuration.outbox_tables[1].columns.headers.as_deref(), Some("headers"));
    assert_eq!(configuration.outbox_prefixes.len(), 1);
    let work = configuration.work.as_ref().unwrap();
    assert_eq!(work.definitions.current().as_str(), "quote@3");
    assert_eq!((work.definitions.steps().count(), work.endpoints.len()), (3, 3));
    assert_eq!(configuration.sinks.len(), 2);
    assert_eq!(configuration.wal_guard_bytes, Some(4 << 30));
}

#[test]
fn what_is_left_out_has_its_default() {
    let configuration = read(SMALLEST).unwrap();
    assert_eq!(configuration.ack, Ack::Sinks);
    assert_eq!(configuration.wal_guard_bytes, None);
    assert_eq!(configuration.source.slot, "postrider");
    assert_eq!(configuration.source.publication, "postrider");
    assert_eq!(configuration.listen.to_string(), "127.0.0.1:9464");
    assert_eq!(configuration.journal.segment_bytes, 64 << 20);
    assert_eq!(configuration.journal.retention_bytes, 20 << 30);
    assert_eq!(configuration.drain, Duration::from_secs(20));
    assert!(configuration.sinks[0].required);
}

#[test]
fn every_default_of_the_reference_page_is_what_leaving_the_key_out_means() {
    let typed = r#"
        ack = "sinks"
        source = { url = "postgres://u@h/d", slot = "postrider", publication = "postrider", streaming = true,
            two_phase = false, standby = false }
        journal = { dir = "d", segment_size = "64MiB", retention = { size = "20GiB" }, when_full = "block", staging_size = "10GiB" }
        outbox = [{ table = "o", columns = { id = "id", aggregate_key = "aggregate_key", event_type = "event_type",
            payload = "payload", topic = "topic", headers = "headers", created_at = "created_at",
            published_at = "published_at" } }]
        server = { listen = "127.0.0.1:9464" }
        limits = { drain = "20s" }
        periods = { heartbeat = "10s", slot_health = "30s", sweep = "1m", summary = "1m" }
        [[sink]]
        name = "s"
        kind = "http"
        from = "outbox"
        url = "http://h/"
        required = true
        wait_visible = false
        in_flight = 16
        timeout = "30s"
        [work]
        table = "w"
        mode = "execute"
        history = { enabled = true, retention = "30d" }
        quiet = true
        unfenced_writes = "park"
        definition = "default@1"
        columns = { key = ["group_id", "quote_id"], stage = "stage", stage_state = "stage_state",
            attempt_count = "attempt_count", deferral_count = "deferral_count", fence = "fence", epoch = "epoch",
            next_attempt_at = "next_attempt_at", lease_until = "lease_until", lease_owner = "lease_owner",
            closed_at = "closed_at", definition = "definition", request_hash = "request_hash", payload = "payload",
            last_error = "last_error", updated_at = "updated_at" }
        [[work.stage]]
        name = "A"
        url = "http://h/"
        class = "keyed"
        attempts = 5
        deferrals = 100
        timeout = "30s"
        lease = "1m"
        backoff = { first = "1s", max = "5m" }
        concurrency = 64
        serial = false
        priority = 0
        by_others = false
        request_size = "16MiB"
        entry = true
    "#;
    let left_out = r#"
        source = { url = "postgres://u@h/d" }
        journal = { dir = "d" }
        outbox = [{ table = "o" }]
        sink = [{ name = "s", kind = "http", url = "http://h/" }]
        work = { table = "w", stage = [{ name = "A", url = "http://h/", class = "keyed" }] }
    "#;
    assert_eq!(format!("{:#?}", read(typed).unwrap()), format!("{:#?}", read(left_out).unwrap()));
    // A default that is added to the page must be added here, too.
    let defaults = reference().matches("Default: `").count();
    let written: usize = [" = \"", " = true", " = false"].iter().map(|value| typed.matches(value).count()).sum();
    let numbers = ["attempts = 5", "deferrals = 100", "concurrency = 64", "priority = 0", "in_flight = 16", "key = ["];
    let mandatory = ["url = ", "dir = ", "name = ", "kind = ", "table = ", "class = "];
    let others: usize = mandatory.iter().map(|key| typed.matches(&format!("{key}\"")).count()).sum();
    // `lease` has a default that is a sentence.
    assert_eq!(defaults, written + numbers.len() - others - 1);
}

#[test]
fn what_becomes_of_unfenced_writes_is_one_of_two_words() {
    let typed = |word: &str| {
        let stage = "{ name = \"A\", url = \"http://h/\", class = \"same_tx\" }";
        format!(
            "work = {{ table = \"w\", unfenced_writes = \"{word}\", stage = [{stage}] }}\n[source]\nurl = \"postgres://u@h/d\"\n[journal]\ndir = \"d\"\n"
        )
    };
    let meant = |word| read(&typed(word)).unwrap().work.unwrap();
    assert_eq!(meant("park").unfenced, UnfencedWrites::Park);
    let reread = meant("reread");
    assert!(reread.unfenced == UnfencedWrites::Reread && reread.has_same_tx());
    let problems = read(&typed("parc")).expect_err("the word is refused");
    let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
    assert_eq!(messages, ["`work.unfenced_writes` is an unknown word, \"parc\""]);
}

#[test]
fn the_reference_page_is_the_committed_one() {
    expect_file!["../../../../docs/configuration.md"].assert_eq(&reference());
}

#[test]
fn every_problem_is_reported_at_once_in_the_order_of_the_file() {
    check(
        r#"
ack = "sink"
[source]
url = "mysql://u@h/d"
publicaton = "x"
slot = "Post-Rider"
[journal]
segment_size = "64MB"
retention = { siz = "1GiB" }
ack = "journal"
[work]
table = "a.b.c"
[[work.stage]]
name = "A"
url = "ftp://h/"
next = "PRICNG"
class = "external"
attempts = 0
timeout = 30
[[work.stage]]
name = "PRICING"
url = "http://h/"
next = "PRICING"
[[sink]]
name = "s"
kind = "kafka"
brokers = ["localhost:9092"]
[[sink]]
name = "s"
kind = "htp"
[server]
listen = "localhost"
"#,
        expect![[r#"
            2:7: `ack` is an unknown word, "sink" (did you mean `sinks`?)
            4:7: `source.url` is no address of a server: its scheme is neither postgres nor postgresql (write postgres://user@host:5432/database)
            5:1: unknown key `publicaton` in `source` (did you mean `publication`?)
            6:8: `source.slot` is no name of a replication slot (lower-case letters, digits and underscores, at most 63)
            7:1: `journal.dir` is missing
            8:16: `journal.segment_size` is not a size: kB, MB and GB mean 1000 to some and 1024 to others (B, KiB, MiB, GiB or TiB follow the number, as in "64MiB")
            9:15: unknown key `siz` in `journal.retention` (did you mean `size`?)
            10:1: unknown key `ack` in `journal` (`ack` stands at the top of the file, before the first [table])
            12:9: `work.table` names no table (write "schema.table", without further quotation marks)
            15:7: `work.stage.url` is no URL of an endpoint: its scheme is neither http nor https
            16:8: `work.stage.next` names no stage, "PRICNG" (did you mean `PRICING`?)
            17:9: `work.stage.class` "external" is not in this version (in this version: natural, keyed, same_tx)
            18:12: `work.stage.attempts` is 0, expected at least 1
            19:11: `work.stage.timeout` is a whole number, expected a duration in quotation marks: ms, s, m, h or d follow the number, as in "30s"
            20:1: `work.stage.class` is missing, and has no default ("natural" if doing the work again finds it done, "keyed" if the receiver stores its answers, "same_tx" if it moves the row on in its own transaction)
            23:8: the stage "PRICING" leads back to itself (a row that came to it again would be asked under the key that was answered already, and get that answer again; give the second visit a stage of its own)
            24:1: a sink takes events, and there is no [[outbox]] that they could come from (add [[outbox]] with a table or a prefix)
            26:8: `sink.kind` "kafka" is not in this version (in this version: http, ndjson)
            27:1: `sink.brokers` is not in this version
            29:8: `sink.name` stands here twice: each sink has a position of its own
            30:8: `sink.kind` is an unknown word, "htp" (did you mean `http`?)
            32:10: `server.listen` is no address with a port (write "127.0.0.1:9464")"#]],
    );
}

#[test]
fn syntax_errors_are_reported_alone() {
    check(
        "[source\nurl = \"postgres://u@h/d\"\nslot = = 1\n",
        expect![[r#"
        1:8: not TOML: unclosed table, expected `]`
        3:8: not TOML: extra `=`, expected nothing
        3:10: not TOML: unexpected key or value, expected newline, `#`"#]],
    );
    check("ack = \"sinks\"\nack = \"journal\"\n", expect!["2:1: not TOML: duplicate key"]);
}

#[test]
fn a_standby_is_read_without_stages_and_without_a_slot_that_other_standbys_keep() {
    let with = |source: &str| {
        let url = "url = \"postgres://postrider@db/quoting\"";
        SMALLEST.replace(url, &format!("{url}\n{source}"))
    };
    assert!(read(&with("standby = true")).unwrap().source.standby);
    check(
        &(with("standby = true") + "wait_visible = true\n"),
        expect![
            "13:16: `sink.wait_visible` does not go with `source.standby`: a standby cannot say what is visible on the primary (read from the primary, or leave out `wait_visible` and let the receiver ask until the row is there)"
        ],
    );
    check(
        &with("standby = true\nfailover = true"),
        expect![
            "5:12: `source.failover` does not go with `source.standby`: only a primary's slot is kept on standbys (take one of them out)"
        ],
    );
    check(
        &(with("standby = true")
            + "[work]\ntable = \"w\"\nstage = [{ name = \"A\", url = \"http://h/\", class = \"keyed\" }]\n"),
        expect![
            "4:11: `source.standby` does not go with [work]: claims are written, and a standby takes no writes (give the stages a process of their own, with the primary's address, a slot and a journal of its own)"
        ],
    );
}

#[test]
fn the_history_is_kept_for_as_long_as_the_journal_can_be_replayed() {
    const DAY: Duration = Duration::from_secs(86_400);
    let with = |age: &str, history: &str| {
        format!(
            "{SMALLEST}[journal.retention]\n{age}[work]\ntable = \"w\"\n\
             stage = [{{ name = \"A\", url = \"http://h/\", class = \"keyed\" }}]\n{history}"
        )
    };
    let kept = |age, history| read(&with(age, history)).unwrap().work.unwrap().history;
    assert_eq!(kept("", ""), Some(30 * DAY));
    assert_eq!(kept("age = \"40d\"\n", ""), Some(40 * DAY));
    assert_eq!(kept("age = \"40d\"\n", "history = { retention = \"40d\" }"), Some(40 * DAY));
    assert_eq!(kept("", "history = { retention = \"1h\" }"), Some(DAY / 24));
    assert_eq!(kept("", "history = { enabled = false }"), None);
    check(
        &with("age = \"40d\"\n", "history = { retention = \"39d\" }"),
        expect![
            "17:25: `work.history.retention` is shorter than `journal.retention.age` (what can be replayed could no longer be looked up: keep the history at least as long as the journal)"
        ],
    );
}

#[test]
fn a_password_command_is_a_program_with_its_arguments() {
    let with = |source: &str| SMALLEST.replace("url = \"postgres://postrider@db/quoting\"", source);
    let command = "url = \"postgres://u@h/d\"\npassword_command = [\"aws\", \"rds\", \"hush\"]";
    let options = format!("{:?}", read(&with(command)).unwrap().source.options);
    assert!(options.contains("aws") && !options.contains("hush"), "{options}");
    check(
        &with("url = \"postgres://u@h/d\"\npassword_command = []"),
        expect![[
            r#"4:20: `source.password_command` is of no use: the password command has no program (write the program and each of its arguments: ["program", "argument"])"#
        ]],
    );
    check(
        &with("url = \"postgres://u:hush@h/d\"\npassword_command = [\"aws\"]"),
        expect![
            "4:20: `source.password_command` is of no use: the address holds a password, and there is a password command (take one of them away)"
        ],
    );
    check(
        &with("url = \"postgres://u@h/d\"\npassword_command = \"aws\""),
        expect!["4:20: `source.password_command` is a text, expected a list in brackets"],
    );
    check(
        &with("url = \"postgres://u@h/d?sslmod=require\""),
        expect![
            "3:7: `source.url` is no address of a server: `sslmod` is no connection parameter (did you mean `sslmode`?)"
        ],
    );
}

#[test]
fn an_empty_file_says_what_is_missing() {
    check(
        "",
        expect![[r#"
        there is nothing to do: neither [work] nor [[sink]] (add the work table and its stages, or an outbox and a sink, or both)
        `source` is missing
        `journal` is missing"#]],
    );
}

#[test]
fn a_wrong_type_says_what_was_expected() {
    check(
        "ack = 1\nwal_guard = 5\nsource = 1\njournal = []\noutbox = { table = \"t\" }\nsink = [1]\nwork = \"w\"\n\
         periods = { heartbeat = 1.5 }\nlimits = { drain = true }\nserver = { listen = 2024-01-01 }\n",
        expect![[r#"
            1:7: `ack` is a whole number, expected a text in quotation marks
            2:13: `wal_guard` is a whole number, expected a size in quotation marks: B, KiB, MiB, GiB or TiB follow the number, as in "64MiB"
            3:10: `source` is a whole number, expected a table
            4:11: `journal` is a list, expected a table
            5:10: `outbox` is a table, expected a list of tables: write [[outbox]]
            6:9: `sink` is a whole number, expected a table
            7:8: `work` is a text, expected a table
            8:25: `periods.heartbeat` is a number with a fraction, expected a duration in quotation marks: ms, s, m, h or d follow the number, as in "30s"
            9:20: `limits.drain` is true or false, expected a duration in quotation marks: ms, s, m, h or d follow the number, as in "30s"
            10:21: `server.listen` is a date, expected a text in quotation marks"#]],
    );
    check_stage(
        "name = \"A\", url = \"http://h/\", class = \"keyed\", attempts = -1, deferrals = 4294967296",
        expect![[r#"
        1:76: `work.stage.attempts` is out of range: 0 to 4294967295 can stand here
        1:92: `work.stage.deferrals` is out of range: 0 to 4294967295 can stand here"#]],
    );
    check_sink(
        "name = \"s\", kind = \"ndjson\", path = \"-\", required = \"yes\"",
        expect!["1:63: `sink.required` is a text, expected true or false"],
    );
}

#[test]
fn the_ways_on_are_one_name_or_a_list_and_never_lead_back() {
    check(
        r#"
source.url = "postgres://u@h/d"
journal.dir = "d"
[work]
table = "w"
[[work.stage]]
name = "A"
url = "http://h/"
class = "keyed"
next = ["B", "DONE", "D"]
[[work.stage]]
name = "B"
url = "http://h/"
class = "keyed"
next = ["DONE", "C", "DONE"]
[[work.stage]]
name = "C"
url = "http://h/"
class = "keyed"
next = ["DONE", "B"]
[[work.stage]]
name = "DONE"
url = "http://h/"
class = "keyed"
next = []
[[work.stage]]
name = "E"
url = "http://h/"
class = "keyed"
next = 1
"#,
        expect![[r#"
            10:22: `work.stage.next` names no stage, "D" (did you mean `A`?)
            15:9: the stage "B" leads back to itself (a row that came to it again would be asked under the key that was answered already, and get that answer again; give the second visit a stage of its own)
            15:22: `work.stage.next` names "DONE" twice
            20:9: the stage "C" leads back to itself (a row that came to it again would be asked under the key that was answered already, and get that answer again; give the second visit a stage of its own)
            22:8: `work.stage.name` "DONE" is no name for a stage (as `next` the word ends the workflow)
            25:8: `work.stage.next` is empty (leave it out to end the workflow)
            30:8: `work.stage.next` is a whole number, expected a text in quotation marks, or a list of such"#]],
    );
}

#[test]
fn a_definition_has_a_name_of_its_own_and_a_version() {
    let with = |work: &str| {
        format!(
            "source.url = \"postgres://u@h/d\"\njournal.dir = \"d\"\n[work]\ntable = \"w\"\n\
             stage = [{{ name = \"A\", url = \"http://h/\", class = \"keyed\" }}]\n{work}"
        )
    };
    let earlier = "name = \"A\"\nurl = \"http://h/\"\nclass = \"keyed\"\n";
    check(
        &with("definition = \"quote\"\n"),
        expect![[
            r#"6:14: `work.definition` is no name of a definition (write "name@version", as in "quote@3", in visible ASCII without blanks)"#
        ]],
    );
    check(
        &with("definition = \"q uote@1\"\n[[work.earlier]]\nname = \"quote@\"\n"),
        expect![[r#"
        6:14: `work.definition` is no name of a definition (write "name@version", as in "quote@3", in visible ASCII without blanks)
        7:1: `work.earlier.stage` is missing
        8:8: `work.earlier.name` is no name of a definition (write "name@version", as in "quote@3", in visible ASCII without blanks)"#]],
    );
    check(
        &with(&format!(
            "definition = \"q@2\"\n[[work.earlier]]\nname = \"q@2\"\n[[work.earlier.stage]]\n{earlier}[[work.earlier]]\n[[work.earlier.stage]]\n{earlier}next = \"B\"\n"
        )),
        expect![[r#"
            7:1: the definition "q@2" stands here twice
            13:1: `work.earlier.name` is missing
            18:8: `work.stage.next` names no stage, "B" (did you mean `A`?)"#]],
    );
}

#[test]
fn a_class_must_be_given_and_be_of_this_version() {
    check_stage(
        "name = \"A\", url = \"http://h/\"",
        expect![[
            r#"1:15: `work.stage.class` is missing, and has no default ("natural" if doing the work again finds it done, "keyed" if the receiver stores its answers, "same_tx" if it moves the row on in its own transaction)"#
        ]],
    );
    for class in ["external", "async"] {
        let keys = format!("name = \"A\", url = \"http://h/\", class = \"{class}\"");
        let text = format!(
            "work = {{ table = \"w\", stage = [{{ {keys} }}] }}\n[source]\nurl = \"postgres://u@h/d\"\n[journal]\ndir = \"d\"\n"
        );
        let problems = read(&text).expect_err("the class is refused");
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].message, format!("`work.stage.class` \"{class}\" is not in this version"));
    }
    check_stage(
        "name = \"A\", url = \"http://h/\", class = \"keyd\", async = true",
        expect![[r#"
        1:56: `work.stage.class` is an unknown word, "keyd" (did you mean `keyed`?)
        1:64: `work.stage.async` is not in this version"#]],
    );
}

#[test]
fn the_group_of_a_row_is_a_column_of_its_key() {
    let fair_by = |keys: &str| {
        let text = format!(
            "[source]\nurl = \"postgres://u@h/d\"\n[journal]\ndir = \"d\"\n[work]\ntable = \"w\"\n{keys}\n\
             [[work.stage]]\nname = \"A\"\nurl = \"http://h/\"\nclass = \"keyed\"\n"
        );
        read(&text).map(|configuration| configuration.work.expect("there is a work table").fair_by)
    };
    assert_eq!(fair_by("").expect("valid"), Some(0));
    assert_eq!(fair_by("fair_by = \"quote_id\"").expect("valid"), Some(1));
    assert_eq!(fair_by("fair_by = \"\"").expect("valid"), None);
    assert_eq!(fair_by("columns = { key = [\"id\"] }").expect("valid"), None);
    assert_eq!(fair_by("columns = { key = [\"id\"] }\nfair_by = \"id\"").expect("valid"), Some(0));
    let problems = fair_by("fair_by = \"group\"").expect_err("no column of the key");
    let expected = "7:11: `work.fair_by` names no column of `work.columns.key`, \"group\" (did you mean `group_id`?)";
    assert_eq!(problems.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
}

#[test]
fn a_lease_must_outlive_its_request() {
    check_stage(
        "name = \"A\", url = \"http://h/\", class = \"keyed\", timeout = \"1m\", lease = \"60s\"",
        expect![
            "1:89: `work.stage.lease` is not longer than `work.stage.timeout` (a row would be taken over while its request is still under way)"
        ],
    );
    check_stage(
        "name = \"A\", url = \"http://h/\", class = \"keyed\", timeout = \"0s\"",
        expect!["1:75: `work.stage.timeout` is 0, expected some time"],
    );
    check_stage(
        "name = \"A\", url = \"http://h/\", class = \"keyed\", backoff = { first = \"1m\", max = \"1s\" }",
        expect!["1:97: `work.stage.backoff.max` is less than `work.stage.backoff.first`"],
    );
}

#[test]
fn headers_must_be_sendable_and_not_ours() {
    check_stage(
        "name = \"A\", url = \"http://h/\", class = \"keyed\", headers = { \"a b\" = \"x\", Idempotency-Key = \"x\", Postrider-Fence = \"1\", X-A = \"a\\nb\", X-B = \"env:NOT_THERE\", X-C = 1 }",
        expect![[r#"
            1:85: `work.stage.headers.a b` cannot be used: its name is not a valid header name
            1:108: `work.stage.headers.Idempotency-Key` cannot be used: its name is one that Postrider or HTTP itself sets
            1:131: `work.stage.headers.Postrider-Fence` cannot be used: its name is one that Postrider or HTTP itself sets
            1:142: `work.stage.headers.X-A` cannot be used: its value has a line break
            1:156: `work.stage.headers.X-B` refers to an environment variable that is not set (set NOT_THERE, or write the value itself)
            1:179: `work.stage.headers.X-C` is a whole number, expected a text in quotation marks"#]],
    );
}

#[test]
fn a_stage_has_the_access_of_all_stages_but_for_what_it_says_itself() {
    let text = r#"
        source = { url = "postgres://u@h/d" }
        journal = { dir = "d" }
        [work]
        table = "w"
        headers = { Authorization = "Bearer file:/run/secrets/token", X-Team = "quotes" }
        tls = { ca = "/etc/ca.pem", certificate = "/etc/us.pem", key = "/etc/us.key" }
        signing_secret = "file:/run/secrets/signing"
        [[work.stage]]
        name = "A"
        url = "https://a/"
        class = "keyed"
        next = "B"
        [[work.stage]]
        name = "B"
        url = "https://b/"
        class = "keyed"
        next = "C"
        headers = { authorization = "Basic env:PRICING_URL" }
        tls = { ca = "/etc/other.pem" }
        signing_secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"
        [[work.stage]]
        name = "C"
        url = "http://c/"
        class = "keyed"
    "#;
    let endpoints = read(text).unwrap().work.unwrap().endpoints;
    let told: Vec<String> = endpoints.values().map(|endpoint| format!("{endpoint:?}")).collect();
    expect![[r#"
        Endpoint { origin: "https://a:443", headers: ["x-team"], header_files: [authorization from /run/secrets/token], signing: with the secrets of /run/secrets/signing, tls: Some(TlsFiles { authorities: Some("/etc/ca.pem"), client: Some(ClientFiles { certificate: "/etc/us.pem", key: "/etc/us.key" }) }), .. }
        Endpoint { origin: "https://b:443", headers: ["x-team", "authorization"], header_files: [], signing: with 2 secrets, tls: Some(TlsFiles { authorities: Some("/etc/other.pem"), client: None }), .. }
        Endpoint { origin: "http://c:80", headers: ["x-team"], header_files: [authorization from /run/secrets/token], signing: with the secrets of /run/secrets/signing, tls: None, .. }"#]].assert_eq(&told.join("\n"));
}

#[test]
fn access_that_cannot_be_is_reported_with_its_place_and_once() {
    check(
        r#"
source = { url = "postgres://u@h/d" }
journal = { dir = "d" }
[work]
table = "w"
headers = { traceparent = "x", Host = "file:/h", X-A = "Bearer file:" }
signing_secret = "hunter2"
[[work.stage]]
name = "A"
url = "http://h/"
class = "keyed"
next = "B"
tls = { ca = "" }
headers = { X-A = "a\nb" }
[[work.stage]]
name = "B"
url = "https://h/"
class = "keyed"
next = "C"
tls = { certificate = "c" }
signing_secret = "whsec_aHVudGVyMg=="
[[work.stage]]
name = "C"
url = "https://h/"
class = "keyed"
next = "D"
tls = {}
signing_secret = "env:NOT_THERE"
[[work.stage]]
name = "D"
url = "http://h/"
class = "keyed"
tls = { ca = "c" }
"#,
        expect![[r#"
            6:27: `work.headers.traceparent` cannot be used: its name is one that Postrider or HTTP itself sets
            6:39: `work.headers.Host` cannot be used: its name is one that Postrider or HTTP itself sets
            6:56: `work.headers.X-A` names no file behind `file:`
            7:18: `work.signing_secret` cannot be used: it does not begin with whsec_
            13:7: `work.stage.tls` cannot be used: certificates go with https:// alone
            13:14: `work.stage.tls.ca` is empty
            14:19: `work.stage.headers.X-A` cannot be used: its value has a line break
            20:7: `work.stage.tls.certificate` and `work.stage.tls.key` go together, and one of them is missing
            21:18: `work.stage.signing_secret` cannot be used: it has less than 24 or more than 64 bytes
            27:7: `work.stage.tls` names no file
            28:18: `work.stage.signing_secret` refers to an environment variable that is not set (set NOT_THERE, or write the value itself)
            33:7: `work.stage.tls` cannot be used: certificates go with https:// alone"#]],
    );
}

#[test]
fn a_rate_has_a_burst_and_an_endpoint_is_known_by_where_it_is() {
    let text = r#"
        source = { url = "postgres://u@h/d" }
        journal = { dir = "d" }
        [work]
        table = "w"
        endpoint = [{ url = "HTTP://H:80/anywhere", concurrency = 9, rate = "20/h" }]
        [[work.stage]]
        name = "A"
        url = "http://h/a"
        class = "keyed"
        rate = "100/s"
        next = "B"
        [[work.stage]]
        name = "B"
        url = "http://h/b"
        class = "keyed"
        rate = "5/m"
        burst = 7
    "#;
    let work = read(text).unwrap().work.unwrap();
    let rates: Vec<_> = work.definitions.steps().map(|(_, stage)| stage.rate.unwrap()).collect();
    let (second, minute, hour) = (Duration::from_secs(1), Duration::from_secs(60), Duration::from_secs(3_600));
    assert_eq!(rates, [Rate { calls: 100, per: second, burst: 10 }, Rate { calls: 5, per: minute, burst: 7 }]);
    let policy = EndpointPolicy { concurrency: Some(9), rate: Some(Rate { calls: 20, per: hour, burst: 1 }) };
    assert_eq!(work.endpoint_policies, BTreeMap::from([("http://h:80".into(), policy)]));
}

#[test]
fn a_rate_that_is_none_and_an_endpoint_without_a_stage_are_reported() {
    check(
        r#"
source = { url = "postgres://u@h/d" }
journal = { dir = "d" }
[work]
table = "w"
[[work.endpoint]]
url = "http://g/"
rate = "1/s"
[[work.endpoint]]
url = "http://h/"
[[work.endpoint]]
url = "http://h/other"
concurrency = 0
[[work.endpoint]]
url = "h"
burst = 3
[[work.stage]]
name = "A"
url = "http://h/"
class = "keyed"
rate = "0/s"
next = "B"
[[work.stage]]
name = "B"
url = "http://h/"
class = "keyed"
rate = "100"
burst = 2
"#,
        expect![[r#"
            7:7: `work.endpoint.url` is not where a stage is: http://g:80 (did you mean `http://h:80`?)
            9:1: `work.endpoint` limits nothing (add `concurrency` or `rate`, or take the table out)
            12:7: `work.endpoint.url` http://h:80 stands here twice
            13:15: `work.endpoint.concurrency` is 0, expected at least 1
            14:1: `work.endpoint` limits nothing (add `concurrency` or `rate`, or take the table out)
            15:7: `work.endpoint.url` is no URL of an endpoint: it has no scheme: it must begin with http:// or https://
            16:9: `work.endpoint.burst` goes with `work.endpoint.rate`, which is missing
            21:8: `work.stage.rate` is 0, expected at least 1
            27:8: `work.stage.rate` is not a rate: the unit is missing or unknown (/s, /m or /h follow the number, as in "100/s")"#]],
    );
}

#[test]
fn an_environment_reference_is_resolved() {
    let text = "work = { table = \"w\", stage = [{ name = \"A\", url = \"env:PRICING_URL\", class = \"keyed\" }] }\n\
                [source]\nurl = \"env:NOT_THERE\"\n[journal]\ndir = \"d\"\n";
    check(
        text,
        expect![
            "3:7: `source.url` refers to an environment variable that is not set (set NOT_THERE, or write the value itself)"
        ],
    );
}

#[test]
fn kinds_of_sinks_that_are_not_here_yet_are_named() {
    for kind in ["kafka", "opensearch", "elasticsearch", "clickhouse", "postgres", "webhook"] {
        let text = format!("{}\n[[sink]]\nname = \"later\"\nkind = \"{kind}\"\n", SMALLEST);
        let problems = read(&text).expect_err("the kind is refused");
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].message, format!("`sink.kind` \"{kind}\" is not in this version"));
        assert_eq!(problems[0].line, Some(15));
    }
}

#[test]
fn a_file_of_two_sinks_is_recognised_however_it_is_spelled() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| format!("{}/{name}", dir.path().display());
    std::fs::create_dir(dir.path().join("d")).unwrap();
    std::fs::write(dir.path().join("there"), "").unwrap();
    std::os::unix::fs::symlink(dir.path().join("there"), dir.path().join("link")).unwrap();
    std::os::unix::fs::symlink(dir.path(), dir.path().join("d/up")).unwrap();
    std::fs::hard_link(dir.path().join("there"), dir.path().join("second_name")).unwrap();
    let mentioned = |first: &str, second: &str| {
        let sink =
            |name: &str, path: &str| format!("[[sink]]\nname = \"{name}\"\nkind = \"ndjson\"\npath = \"{path}\"\n");
        let text = format!("{SMALLEST}{}{}", sink("first", first), sink("second", second));
        read(&text).err().map(|problems| problems[0].message.clone())
    };
    let twice = Some("`sink.path` names the file of another sink: two writers would mix their lines".to_owned());
    let same = [
        ("there", "./there"),
        ("there", "d/../there"),
        ("link", "there"),
        ("new", "d/up/new"),
        ("there", "second_name"),
        ("d/up/second_name", "link"),
    ];
    for (first, second) in same {
        assert_eq!(mentioned(&at(first), &at(second)), twice, "{first} and {second}");
    }
    assert_eq!(mentioned("no_such_folder/new", "./no_such_folder//new"), twice);
    assert_eq!(mentioned(&at("there"), &at("new")), None);
    assert_eq!(mentioned("./-", &at("new")), None, "it is no standard output");
}

#[test]
fn a_sink_is_told_only_what_its_kind_takes() {
    check_sink(
        "name = \"a b\", kind = \"ndjson\", url = \"http://h/\", in_flight = 1",
        expect![[r#"
        1:9: `sink.path` is missing
        1:18: `sink.name` has characters that a name may not have (letters, digits, `_`, `-` and `.`, at most 63)
        1:48: `sink.url` goes with kind "http"
        1:73: `sink.in_flight` goes with kind "http""#]],
    );
    check_sink(
        "name = \"s\", kind = \"http\", path = \"-\", in_flight = 0, from = \"work\"",
        expect![[r#"
        1:9: `sink.url` is missing
        1:45: `sink.path` goes with kind "ndjson"
        1:62: `sink.in_flight` is 0, expected at least 1
        1:72: `sink.from` "work" is not in this version (in this version: outbox)"#]],
    );
    check(
        &format!("{SMALLEST}[[sink]]\nname = \"events\"\nkind = \"ndjson\"\npath = \"-\"\n"),
        expect![[r#"
        13:8: `sink.name` stands here twice: each sink has a position of its own
        15:8: `sink.path` names the file of another sink: two writers would mix their lines (give each sink a file of its own)"#]],
    );
    check(
        "[[sink]]\nname = \"s\"\nkind = \"ndjson\"\npath = \"-\"\n[source]\nurl = \"postgres://u@h/d\"\n[journal]\ndir = \"d\"\n",
        expect![
            "1:1: a sink takes events, and there is no [[outbox]] that they could come from (add [[outbox]] with a table or a prefix)"
        ],
    );
}

#[test]
fn a_table_of_ones_own_has_its_own_names_and_words() {
    let own = |keys: &str| {
        format!(
            "{SMALLEST}[work]\ntable = \"own.jobs\"\n{keys}[[work.stage]]\nname = \"A\"\nurl = \"http://h/\"\nclass = \"keyed\"\n"
        )
    };
    let keys = "columns = { key = [\"id\"], fence = \"token\", deferral_count = \"\", epoch = \"\", payload = \"input\" }\n\
                states = { PENDING = \"NEW\", RUNNING = [\"PENDING\", \"BUSY\"] }\n";
    let work = read(&own(keys)).unwrap().work.unwrap();
    let mapping = &work.mapping;
    assert_eq!((mapping.fence.as_deref(), mapping.payload.as_deref()), (Some("token"), Some("input")));
    assert_eq!((&mapping.deferral_count, &mapping.epoch), (&None, &None));
    assert_eq!(mapping.states.words(StageState::Running).collect::<Vec<_>>(), ["PENDING", "BUSY"]);
    assert_eq!(mapping.states.state("BUSY"), Some(StageState::Running));
    assert_eq!(work.definitions.steps().map(|(_, policy)| policy.deferral_limit).collect::<Vec<_>>(), [None]);
    check(
        &own("columns = { fence = \"\", updated_at = \"\", stage = \"\", deferral_count = \"\" }\n\
              states = { PENDING = \"OK\", DONE = \"OK\", RUNING = \"X\", RETRY = \"\" }\n")
        .replace("class = \"keyed\"", "class = \"keyed\"\ndeferrals = 3"),
        expect![[r#"
            14:21: `work.columns.fence` is empty. The fence alone decides who may write a row, and attempt_count cannot take its place: it falls when a stage ends (ALTER TABLE "own"."jobs" ADD COLUMN "fence" bigint NOT NULL DEFAULT 0;)
            14:38: `work.columns.updated_at` is empty. Nobody could tell when an attempt began, or how long a row has been as it is (ALTER TABLE "own"."jobs" ADD COLUMN "updated_at" timestamptz NOT NULL DEFAULT now();)
            14:50: `work.columns.stage` is empty
            15:35: `work.states` has the word "OK" for PENDING and for DONE (each word is one state's; a state that is not named here has ours)
            15:50: unknown state `RUNING` in `work.states` (did you mean `RUNNING`?)
            15:63: `work.states.RETRY` is empty
            20:13: `work.stage.deferrals` takes a column for them, and `work.columns.deferral_count` is empty (take it out: without the column each deferral uses an attempt)"#]],
    );
}

#[test]
fn a_word_stands_once_and_is_shown_where_it_stands_again() {
    let check_states = |states: &str, expected: Expect| {
        let work = "[work]\ntable = \"jobs\"\n";
        let stage = "[[work.stage]]\nname = \"A\"\nurl = \"http://h/\"\nclass = \"keyed\"\n";
        check(&format!("{SMALLEST}{work}[work.states]\n{states}{stage}"), expected);
    };
    check_states(
        "PENDING = [\"NEW\", \"QUEUED\"]\nDONE = [\n  \"OK\",\n  \"QUEUED\",\n]\n",
        expect![[
            r#"18:3: `work.states` has the word "QUEUED" for PENDING and for DONE (each word is one state's; a state that is not named here has ours)"#
        ]],
    );
    check_states(
        "NON_RESUMABLE = [\"FAILED\",\n\"POISON\",\n\"FAILED\"]\n",
        expect![[
            r#"17:1: `work.states.NON_RESUMABLE` has the word "FAILED" twice (once is enough: of several words the first is written)"#
        ]],
    );
    check_states(
        "PENDING = [\"NEW\", \"RETRY\"]\n",
        expect![[
            r#"15:19: `work.states` has the word "RETRY" for PENDING and for RETRY (each word is one state's; a state that is not named here has ours)"#
        ]],
    );
    check_states(
        "PENDING = []\nDONE = [\"OK\", \"\"]\nRETRY = [\"AGAIN\", 3]\nUNKNOWN = 3\n",
        expect![[r#"
            15:11: `work.states.PENDING` is empty
            16:15: `work.states.DONE` is empty
            17:19: `work.states.RETRY` is a whole number, expected a text in quotation marks
            18:11: `work.states.UNKNOWN` is a whole number, expected a text in quotation marks, or a list of such"#]],
    );
}

#[test]
fn who_only_looks_on_takes_a_table_as_it_is() {
    let own = |mode: &str| {
        format!(
            "{SMALLEST}[work]\ntable = \"jobs\"\nmode = \"{mode}\"\ncolumns = {{ fence = \"\", lease_until = \"\", deferral_count = \"\" }}\n\
             [[work.stage]]\nname = \"A\"\nurl = \"http://h/\"\nclass = \"keyed\"\ndeferrals = 3\n"
        )
    };
    let configuration = read(&own("observe")).unwrap();
    assert!(configuration.work.is_some() && configuration.executed().is_none());
    check(&own("look"), expect![[r#"14:8: `work.mode` is an unknown word, "look" (known here: execute, observe)"#]]);
}

#[test]
fn an_outbox_is_a_table_or_a_prefix() {
    check(
        &format!(
            "{SMALLEST}[[outbox]]\ntable = \"t\"\nprefix = \"p\"\n[[outbox]]\n[[outbox]]\nprefix = \"outbox\"\n\
             [[outbox]]\nprefix = \"q\"\ncolumns = {{ id = \"i\" }}\n[[outbox]]\ntable = \"t\"\ncolumns = {{ id = \"\" }}\n"
        ),
        expect![[r#"
            14:10: `outbox` has both `table` and `prefix` (make it two [[outbox]])
            15:1: `outbox` has neither `table` nor `prefix`
            16:1: this outbox stands here twice
            20:11: `outbox.columns` goes with `table`: a message has no columns
            23:18: `outbox.columns.id` is empty"#]],
    );
}

#[test]
fn no_secret_is_printed() {
    let text = EXAMPLE.replace("postrider@db", "postrider:Geheimnis@db").replace("Bearer example", "Bearer Geheimnis");
    let configuration = read(&text).unwrap();
    assert!(!format!("{configuration:#?}").contains("Geheimnis"));
    let broken = text.replace("db:5432", "db:port").replace("\"http://quoting-core", "\"Geheimnis://quoting-core");
    let problems = read(&broken).expect_err("the URLs are wrong");
    assert!(problems.len() >= 4);
    assert!(!format!("{problems:?}").contains("Geheimnis"));
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "\\PC*") {
        let _ = read(&text);
    }

    /// Cuts, doubles and overwrites pieces of the example, so that the reader is reached behind the parser.
    #[test]
    fn a_damaged_example_never_panics(
        edits in prop::collection::vec((0usize..EXAMPLE.len(), 0usize..40, prop::sample::select(PIECES)), 1..6)
    ) {
        let mut text = EXAMPLE.to_owned();
        for (start, length, piece) in edits {
            let floor = |at: usize| (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap();
            let (start, end) = (floor(start), floor(start + length));
            text.replace_range(start..end, piece);
        }
        for problem in read(&text).err().unwrap_or_default() {
            prop_assert!(problem.line.is_none_or(|line| line <= text.matches('\n').count() + 1));
        }
    }
}

const PIECES: &[&str] = &[
    "",
    "\n",
    "\"",
    "=",
    "[",
    "]",
    "{ }",
    "0",
    "-1",
    "1e9",
    "true",
    "\u{1F98B}",
    "[[sink]]\n",
    "name = \"x\"\n",
    "\"0s\"",
    ".",
];

#[test]
fn how_long_a_key_is_kept_takes_a_history() {
    let work = |history: &str| {
        format!(
            "source = {{ url = \"postgres://u@h/d\" }}\njournal = {{ dir = \"d\" }}\n[work]\ntable = \"w\"\n{history}\n\
             [[work.stage]]\nname = \"A\"\nurl = \"http://h/\"\nclass = \"keyed\"\nkey_retention = \"1d\"\n"
        )
    };
    assert!(read(&work("")).is_ok());
    check(
        &work("history = { enabled = false }"),
        expect![
            "10:17: `work.stage.key_retention` takes a history (take `work.history.enabled = false` out: without a history nobody knows how old a key is)"
        ],
    );
}
