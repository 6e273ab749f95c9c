#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use super::*;
use crate::assemble::Assembler;
use crate::decode::Decoder;
use crate::pgoutput::encode::{self, OldValues};
use crate::position::{Generation, Lsn};
use crate::relation::{Column, Relation, ReplicaIdentity};
use crate::route::{OutboxPrefix, OutboxTable, Route, Router, Routing, WorkMapping};
use crate::transaction::{Part, PartHead, PartKind, TransactionBatch, push_message};
use crate::work::{StageState, StateWords};
use expect_test::{Expect, expect};
use std::fmt::Write;
use std::sync::Arc;

const ALL_KINDS: &str = include_str!("../../tests/golden/pg15/all_kinds.hex");

const HEAD: PartHead = PartHead {
    kind: PartKind::Transaction,
    commit_lsn: Lsn(0xABC),
    end_lsn: Lsn(0xAF0),
    xid: 1,
    committed_at: Timestamp(5),
    first_ordinal: 0,
    changes: 0,
    first: true,
    last: true,
};

fn routing() -> Routing {
    Routing {
        outbox_tables: vec![OutboxTable::default()],
        outbox_prefixes: vec![OutboxPrefix { prefix: "outbox".into() }],
        work: Some(WorkMapping::default()),
    }
}

/// What the consumers get of a part, one line for each change that is ours.
fn shape_part(decoder: &mut Decoder, router: &mut Router, part: Part<'_>, out: &mut String) -> Result<(), ShapeError> {
    let head = part.head;
    let mut changes = decoder.changes(part);
    while let Some(change) = changes.next() {
        let (ordinal, change) = change.unwrap();
        let position = Position { generation: Generation::FIRST, commit_lsn: head.commit_lsn, ordinal };
        match router.route(&change).unwrap() {
            Route::Outbox(row) => write_event(out, &outbox_event(&row, position, head.committed_at)?),
            Route::OutboxMessage(message) => write_event(out, &message_event(&message, position, head.committed_at)),
            Route::Work(row) => writeln!(out, "{:?}", work_change(&row)?).unwrap(),
            Route::WorkNotice(notice) => writeln!(out, "{:?}", noticed_change(&notice)?).unwrap(),
            Route::Pause(notice) => writeln!(out, "{:?}", pause_change(&notice)?).unwrap(),
            Route::Presence(notice) => writeln!(out, "{:?}", presence(&notice)?).unwrap(),
            Route::Ignore(crate::route::Ignored::UnrelatedTable) => {}
            Route::Ignore(reason) => writeln!(out, "ignored: {reason:?}").unwrap(),
            Route::Alarm(alarm) => writeln!(out, "alarm: {alarm:?}").unwrap(),
        }
    }
    Ok(())
}

fn write_event(out: &mut String, event: &Event) {
    writeln!(
        out,
        "{} #{} from {} key {:?} type {:?} topic {:?} headers {:?} payload {:?}",
        event.id,
        event.position.ordinal,
        event.source,
        event.key,
        event.event_type,
        event.topic,
        event.headers,
        event.payload
    )
    .unwrap();
}

/// The recording has an insert and delete in one transaction, a NULL payload, a poller's mark, another update, a truncate, and a work
/// row that is inserted, claimed, given another key and deleted.
#[test]
fn a_servers_recording_becomes_events_and_work_versions() {
    let mut assembler = Assembler::new(Lsn::ZERO);
    let mut batch = TransactionBatch::new();
    for line in ALL_KINDS.lines().filter(|line| !line.starts_with('#')) {
        assembler.push(&data_encoding::HEXLOWER.decode(line.as_bytes()).unwrap(), &mut batch).unwrap();
    }
    let (mut decoder, mut router) = (Decoder::new(), Router::new(routing()));
    let mut text = String::new();
    for part in batch.parts() {
        shape_part(&mut decoder, &mut router, part, &mut text).unwrap();
    }
    expect![[r#"
        m1 #0 from outbox key None type None topic None headers None payload Json(b"{\"n\":1}")
        00000000-0000-0000-0000-000000000001 #0 from public.outbox_event key Some("q-1") type Some("QuoteBound") topic None headers Some(b"{\"h\": \"v\"}") payload Json(b"{\"a\": [1, 2], \"b\": 1.10}")
        ignored: OutboxDelete
        00000000-0000-0000-0000-000000000002 #0 from public.outbox_event key Some("q-1") type Some("Null") topic None headers None payload Null
        ignored: PublishedMark
        alarm: OutboxUpdated { table: "public.outbox_event" }
        alarm: Truncated { tables: [(Outbox, "public.outbox_event"), (Work, "public.pending_work")] }
        Version { version: WorkVersion { key: WorkKey(["g", "1"]), definition: None, stage: StageName("PRICING"), state: Pending, attempt_count: 0, deferral_count: 0, fence: 0, epoch: 0, next_attempt_at: None, lease_until: None, lease_owner: None, closed: false }, moved_from: None }
        Version { version: WorkVersion { key: WorkKey(["g", "1"]), definition: None, stage: StageName("PRICING"), state: Running, attempt_count: 1, deferral_count: 0, fence: 1, epoch: 0, next_attempt_at: None, lease_until: Some(Timestamp(1706933166500000)), lease_owner: Some(OwnerId(255)), closed: false }, moved_from: None }
        Version { version: WorkVersion { key: WorkKey(["g", "2"]), definition: None, stage: StageName("PRICING"), state: Running, attempt_count: 1, deferral_count: 0, fence: 1, epoch: 0, next_attempt_at: None, lease_until: Some(Timestamp(1706933166500000)), lease_owner: Some(OwnerId(255)), closed: false }, moved_from: Some(WorkKey(["g", "1"])) }
        Gone(WorkKey(["g", "2"]))
    "#]].assert_eq(&text);
}

fn message(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    bytes
}

fn table(oid: u32, name: &str, columns: &[(&str, u32)]) -> Vec<u8> {
    let columns = columns.iter().map(|(name, type_oid)| Column {
        name: (*name).to_owned(),
        type_oid: *type_oid,
        type_modifier: -1,
        key: false,
    });
    let columns = columns.collect();
    let replica_identity = ReplicaIdentity::Full;
    let relation = Relation { oid, schema: "public".into(), name: name.into(), replica_identity, columns };
    message(|out| encode::relation(out, &relation))
}

fn outbox(payload_type: u32) -> Vec<u8> {
    let columns = [
        ("id", 20),
        ("aggregate_key", 25),
        ("event_type", 25),
        ("payload", payload_type),
        ("headers", 3802),
        ("topic", 25),
    ];
    table(1, "outbox_event", &columns)
}

fn insert(texts: &[Option<&str>]) -> Vec<u8> {
    let values: Vec<_> =
        texts.iter().map(|text| text.map_or(TupleValue::Null, |text| TupleValue::Text(text.as_bytes()))).collect();
    message(|out| encode::insert(out, 1, &values))
}

fn shape(messages: &[Vec<u8>]) -> Result<String, ShapeError> {
    shape_by(routing(), messages)
}

fn shape_by(routing: Routing, messages: &[Vec<u8>]) -> Result<String, ShapeError> {
    let mut block = Vec::new();
    for message in messages {
        assert!(push_message(&mut block, message));
    }
    let mut text = String::new();
    shape_part(&mut Decoder::new(), &mut Router::new(routing), Part::new(HEAD, &block), &mut text)?;
    Ok(text)
}

fn check(messages: &[Vec<u8>], expected: Expect) {
    let text = match shape(messages) {
        Ok(text) => text,
        Err(error) => error.to_string(),
    };
    expected.assert_eq(&text);
}

#[test]
fn a_payload_is_taken_by_the_type_of_its_column() {
    let row = |payload| insert(&[Some("1"), Some("k"), Some("t"), payload, None, Some("orders")]);
    let messages = [
        outbox(114),
        row(Some(" {\"b\": 1.10}")),
        row(None),
        outbox(25),
        row(Some("{}")),
        row(Some("not JSON")),
        outbox(17),
        row(Some("\\x00ff")),
    ];
    check(
        &messages,
        expect![[r#"
        1 #0 from public.outbox_event key Some("k") type Some("t") topic Some("orders") headers None payload Json(b" {\"b\": 1.10}")
        1 #1 from public.outbox_event key Some("k") type Some("t") topic Some("orders") headers None payload Null
        1 #2 from public.outbox_event key Some("k") type Some("t") topic Some("orders") headers None payload Text(b"{}")
        1 #3 from public.outbox_event key Some("k") type Some("t") topic Some("orders") headers None payload Text(b"not JSON")
        1 #4 from public.outbox_event key Some("k") type Some("t") topic Some("orders") headers None payload Binary(b"\0\xff")
    "#]],
    );
}

#[test]
fn an_event_may_lack_everything_but_its_id() {
    check(
        &[outbox(25), insert(&[Some("1"), None, None, None, None, None])],
        expect![[r#"
        1 #0 from public.outbox_event key None type None topic None headers None payload Null
    "#]],
    );
    check(
        &[outbox(25), insert(&[None, None, None, None, None, None])],
        expect![[r#"column "id" of table "public.outbox_event" is NULL"#]],
    );
}

#[test]
fn a_value_that_cannot_be_taken_is_named_by_its_column_and_never_told() {
    let row = |payload, headers| insert(&[Some("1"), None, None, Some(payload), Some(headers), None]);
    check(
        &[outbox(17), row("secret", "{}")],
        expect![[r#"column "payload" of table "public.outbox_event" is not hexadecimal bytea"#]],
    );
    check(
        &[outbox(25), row("", "[\"secret\"]")],
        expect![[r#"column "headers" of table "public.outbox_event" is not a JSON object"#]],
    );
    check(
        &[outbox(25), row("", " null")],
        expect![[r#"
        1 #0 from public.outbox_event key None type None topic None headers None payload Text(b"")
    "#]],
    );
    let binary = [TupleValue::Binary(b"\0"); 6];
    check(
        &[outbox(25), message(|out| encode::insert(out, 1, &binary))],
        expect![[r#"column "id" of table "public.outbox_event" came in binary form"#]],
    );
    let invalid = [TupleValue::Text(b"\xff"); 6];
    check(
        &[outbox(25), message(|out| encode::insert(out, 1, &invalid))],
        expect![[r#"column "id" of table "public.outbox_event" is not valid UTF-8"#]],
    );
    let error = shape(&[outbox(17), row("secret", "{}")]).expect_err("no bytea");
    expect![[r#"PR010 a row has a value that cannot be taken. Column "payload" of table "public.outbox_event" is not hexadecimal bytea."#]].assert_eq(&Error::from(error).report());
}

#[test]
fn a_message_is_an_envelope_or_as_a_whole_the_payload() {
    let logical = |content: &[u8]| {
        let logical =
            crate::pgoutput::LogicalMessage { transactional: true, lsn: Lsn(0xA11), prefix: "outbox", content };
        message(|out| encode::logical_message(out, &logical))
    };
    let contents: [&[u8]; 12] = [
        br#"{"id":"e1","key":"k","type":"T","topic":"o","headers":{"a":"b"},"payload":{ "n":1.10 }}"#,
        br#"{"id":7,"payload":null,"key":null,"headers":null}"#,
        br#"{"id":"quo\"ted","payload":"text"}"#,
        br#"{"payload":1}"#,
        br#"{"id":"e1","type":"T"}"#,
        br#"{"payload":1,"amount":2}"#,
        br#"{"payload":1,"id":{}}"#,
        br#"{"payload":1,"headers":[]}"#,
        b"[1, 2]",
        b"123",
        b"{broken",
        b"\xff\0",
    ];
    check(
        &contents.map(logical),
        expect![[r#"
        e1 #0 from outbox key Some("k") type Some("T") topic Some("o") headers Some(b"{\"a\":\"b\"}") payload Json(b"{ \"n\":1.10 }")
        7 #0 from outbox key None type None topic None headers None payload Null
        quo"ted #0 from outbox key None type None topic None headers None payload Json(b"\"text\"")
        1:0/ABC:0:0/A11 #0 from outbox key None type None topic None headers None payload Json(b"1")
        1:0/ABC:0:0/A11 #0 from outbox key None type None topic None headers None payload Json(b"{\"id\":\"e1\",\"type\":\"T\"}")
        1:0/ABC:0:0/A11 #0 from outbox key None type None topic None headers None payload Json(b"{\"payload\":1,\"amount\":2}")
        1:0/ABC:0:0/A11 #0 from outbox key None type None topic None headers None payload Json(b"{\"payload\":1,\"id\":{}}")
        1:0/ABC:0:0/A11 #0 from outbox key None type None topic None headers None payload Json(b"{\"payload\":1,\"headers\":[]}")
        1:0/ABC:0:0/A11 #0 from outbox key None type None topic None headers None payload Json(b"[1, 2]")
        1:0/ABC:0:0/A11 #0 from outbox key None type None topic None headers None payload Text(b"123")
        1:0/ABC:0:0/A11 #0 from outbox key None type None topic None headers None payload Text(b"{broken")
        1:0/ABC:0:0/A11 #0 from outbox key None type None topic None headers None payload Binary(b"\xff\0")
    "#]],
    );
}

const WORK: [&str; 13] = [
    "group_id",
    "quote_id",
    "stage",
    "stage_state",
    "attempt_count",
    "deferral_count",
    "fence",
    "epoch",
    "next_attempt_at",
    "lease_until",
    "lease_owner",
    "closed_at",
    "definition",
];

fn work_table() -> Vec<u8> {
    table(2, "pending_work", &WORK.map(|name| (name, 25)))
}

fn work_row<'a>(changed: &[(&str, Option<&'a str>)]) -> Vec<TupleValue<'a>> {
    let mut texts = [
        Some("g"),
        Some("1"),
        Some("A"),
        Some("PENDING"),
        Some("0"),
        Some("0"),
        Some("0"),
        Some("0"),
        None,
        None,
        None,
        None,
        None,
    ];
    for (column, text) in changed {
        texts[WORK.iter().position(|name| name == column).unwrap()] = *text;
    }
    texts.map(|text| text.map_or(TupleValue::Null, |text| TupleValue::Text(text.as_bytes()))).to_vec()
}

#[test]
fn a_work_version_is_refused_by_the_column_that_is_wrong() {
    let mut text = String::new();
    for (column, value) in [
        ("group_id", None),
        ("stage", None),
        ("stage_state", Some("SECRET")),
        ("attempt_count", Some("-1")),
        ("fence", Some("x")),
        ("epoch", None),
        ("lease_until", Some("soon")),
    ] {
        let row = work_row(&[(column, value)]);
        let error = shape(&[work_table(), message(|out| encode::insert(out, 2, &row))]).expect_err("refused");
        writeln!(text, "{error}").unwrap();
    }
    expect![[r#"
        column "group_id" of table "public.pending_work" is NULL
        column "stage" of table "public.pending_work" is NULL
        column "stage_state" of table "public.pending_work" is not a stage state
        column "attempt_count" of table "public.pending_work" is not an integer in range
        column "fence" of table "public.pending_work" is not an integer in range
        column "epoch" of table "public.pending_work" is NULL
        column "lease_until" of table "public.pending_work" is not a timestamp with time zone
    "#]]
    .assert_eq(&text);
}

#[test]
fn an_owner_that_is_none_of_ours_is_somebody_elses() {
    let row = work_row(&[("lease_owner", Some("host-7")), ("closed_at", Some("2024-01-01 00:00:00+00"))]);
    let text = shape(&[work_table(), message(|out| encode::insert(out, 2, &row))]).unwrap();
    assert!(text.contains("lease_owner: None") && text.contains("closed: true"), "{text}");
}

#[test]
fn what_an_update_did_not_touch_comes_from_the_whole_old_row() {
    let before = work_row(&[("fence", Some("41"))]);
    let mut after = work_row(&[("attempt_count", Some("2"))]);
    after[1] = TupleValue::Unchanged;
    after[6] = TupleValue::Unchanged;
    let update = message(|out| encode::update(out, 2, Some(OldValues::Full(&before)), &after));
    check(
        &[work_table(), update],
        expect![[r#"
            Version { version: WorkVersion { key: WorkKey(["g", "1"]), definition: None, stage: StageName("A"), state: Pending, attempt_count: 2, deferral_count: 0, fence: 41, epoch: 0, next_attempt_at: None, lease_until: None, lease_owner: None, closed: false }, moved_from: None }
        "#]],
    );
    let update = message(|out| encode::update(out, 2, None, &after));
    check(
        &[work_table(), update],
        expect![[
            r#"column "quote_id" of table "public.pending_work" is not in the log, because the update did not touch it"#
        ]],
    );
}

/// A table of somebody's own: its key, where a row is, and its words for that.
fn bare_routing() -> Routing {
    let own = [(StageState::Running, &["IN_PROGRESS", "CALLED"][..]), (StageState::Done, &["BY_HAND", "OK"])];
    let own = own.map(|(state, words)| (state, words.iter().map(|word| (*word).to_owned()).collect()));
    let mapping = WorkMapping {
        table: "jobs".into(),
        key: vec!["id".into()],
        stage: "step".into(),
        stage_state: "status".into(),
        states: Arc::new(StateWords::new(&own.into()).expect("words of their own")),
        attempt_count: None,
        deferral_count: None,
        fence: None,
        epoch: None,
        next_attempt_at: None,
        lease_until: None,
        lease_owner: None,
        closed_at: None,
        definition: None,
        ..WorkMapping::default()
    };
    Routing { work: Some(mapping), ..Routing::default() }
}

#[test]
fn a_table_may_have_words_of_its_own_and_no_more_than_a_key_a_stage_and_a_state() {
    let jobs = table(3, "jobs", &[("id", 20), ("note", 25), ("step", 25), ("status", 25)]);
    let insert = |status| {
        let row = [Some("7"), None, Some("A"), Some(status)];
        let values =
            row.map(|text: Option<&str>| text.map_or(TupleValue::Null, |text| TupleValue::Text(text.as_bytes())));
        message(|out| encode::insert(out, 3, &values))
    };
    let prefix = "postrider.work:public.jobs";
    let content = br#"{"key":["7"],"stage":"A","stage_state":"OK"}"#;
    let told = crate::pgoutput::LogicalMessage { transactional: true, lsn: Lsn(1), prefix, content };
    let messages =
        [jobs.clone(), insert("PENDING"), insert("CALLED"), message(|out| encode::logical_message(out, &told))];
    expect![[r#"
        Version { version: WorkVersion { key: WorkKey(["7"]), definition: None, stage: StageName("A"), state: Pending, attempt_count: 0, deferral_count: 0, fence: 0, epoch: 0, next_attempt_at: None, lease_until: None, lease_owner: None, closed: false }, moved_from: None }
        Version { version: WorkVersion { key: WorkKey(["7"]), definition: None, stage: StageName("A"), state: Running, attempt_count: 0, deferral_count: 0, fence: 0, epoch: 0, next_attempt_at: None, lease_until: None, lease_owner: None, closed: false }, moved_from: None }
        Version { version: WorkVersion { key: WorkKey(["7"]), definition: None, stage: StageName("A"), state: Done, attempt_count: 0, deferral_count: 0, fence: 0, epoch: 0, next_attempt_at: None, lease_until: None, lease_owner: None, closed: true }, moved_from: None }
    "#]]
    .assert_eq(&shape_by(bare_routing(), &messages).unwrap());
    let ours = shape_by(bare_routing(), &[jobs, insert("RUNNING")]).unwrap_err();
    assert_eq!(ours.to_string(), "column \"status\" of table \"public.jobs\" is not a stage state");
}

fn notice(content: &[u8]) -> Vec<u8> {
    let prefix = "postrider.work:public.pending_work";
    let logical = crate::pgoutput::LogicalMessage { transactional: true, lsn: Lsn(1), prefix, content };
    message(|out| encode::logical_message(out, &logical))
}

#[test]
fn a_notice_of_the_work_tables_trigger_is_a_version_or_the_end_of_a_row() {
    let columns = r#""stage":"PRICING","stage_state":"RETRY","attempt_count":"2","deferral_count":"0","fence":"7","epoch":"0","next_attempt_at":"2024-02-03 04:05:06+00","lease_until":null,"lease_owner":null,"closed_at":null"#;
    let messages = [
        notice(format!(r#"{{"key" : ["g", "1"], {columns}}}"#).as_bytes()),
        notice(format!(r#"{{"key":["g","2"],"was":["g","1"],{columns}}}"#).as_bytes()),
        notice(br#"{"gone" : ["g", "2"]}"#),
        notice(b"truncate"),
    ];
    check(
        &messages,
        expect![[r#"
            Version { version: WorkVersion { key: WorkKey(["g", "1"]), definition: None, stage: StageName("PRICING"), state: Retry, attempt_count: 2, deferral_count: 0, fence: 7, epoch: 0, next_attempt_at: Some(Timestamp(1706933106000000)), lease_until: None, lease_owner: None, closed: false }, moved_from: None }
            Version { version: WorkVersion { key: WorkKey(["g", "2"]), definition: None, stage: StageName("PRICING"), state: Retry, attempt_count: 2, deferral_count: 0, fence: 7, epoch: 0, next_attempt_at: Some(Timestamp(1706933106000000)), lease_until: None, lease_owner: None, closed: false }, moved_from: Some(WorkKey(["g", "1"])) }
            Gone(WorkKey(["g", "2"]))
            alarm: Truncated { tables: [(Work, "public.pending_work")] }
        "#]],
    );
}

#[test]
fn a_notice_that_does_not_read_is_refused_by_the_member_that_is_wrong() {
    let errors: Vec<String> = [
        &b"not JSON"[..],
        b"[]",
        br#"{"gone":[]}"#,
        br#"{"gone":[1]}"#,
        br#"{"key":["g","1"]}"#,
        br#"{"stage":"A"}"#,
        br#"{"key":["g"],"stage":"A","stage_state":"SOON"}"#,
        br#"{"key":["g"],"stage":"A","stage_state":"RETRY","attempt_count":"x"}"#,
    ]
    .into_iter()
    .map(|content| shape(&[notice(content)]).unwrap_err().to_string())
    .collect();
    expect![[r#"
        column "notice" of table "public.pending_work" is not a JSON object
        column "notice" of table "public.pending_work" is not a JSON object
        column "gone" of table "public.pending_work" is NULL
        column "gone" of table "public.pending_work" is NULL
        column "stage" of table "public.pending_work" is NULL
        column "key" of table "public.pending_work" is NULL
        column "stage_state" of table "public.pending_work" is not a stage state
        column "attempt_count" of table "public.pending_work" is not an integer in range"#]]
    .assert_eq(&errors.join("\n"));
}

fn pause_message(content: &str) -> Vec<u8> {
    let (prefix, content) = ("postrider.stages:public.pending_work", content.as_bytes());
    let logical = crate::pgoutput::LogicalMessage { transactional: true, lsn: Lsn(1), prefix, content };
    message(|out| encode::logical_message(out, &logical))
}

#[test]
fn an_order_that_pauses_or_resumes_a_part_is_read_or_refused_by_the_member_that_is_wrong() {
    check(
        &[
            pause_message(
                r#"{"op":"pause","stage":"A","definition":"","endpoint":"","since":5,"who":"ada","why":"x"}"#,
            ),
            pause_message(r#"{"op":"resume","stage":"","definition":"","endpoint":"http://b:80"}"#),
        ],
        expect![[r#"
            Pause(Paused { part: Stage { stage: StageName("A"), definition: None }, since: Timestamp(5), who: "ada", why: "x" })
            Resume(Endpoint("http://b:80"))
        "#]],
    );
    let bad = ["", "[]", r#"{"op":"pause"}"#, r#"{"op":"pause","stage":"A","since":"5"}"#, r#"{"op":"x","stage":"A"}"#];
    let errors = bad.map(|content| shape(&[pause_message(content)]).unwrap_err().to_string());
    expect![[r#"
        column "pause" of table "public.pending_work" is not a JSON object
        column "pause" of table "public.pending_work" is not a JSON object
        column "stage" of table "public.pending_work" is NULL
        column "since" of table "public.pending_work" is not an integer in range
        column "op" of table "public.pending_work" is NULL"#]]
    .assert_eq(&errors.join("\n"));
}
