#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may stop at the first surprise")]

use super::encode::{self, OldValues};
use super::*;
use crate::position::Lsn;
use crate::relation::{Column, Relation as Table, Relations, ReplicaIdentity};
use crate::time::Timestamp;
use crate::value::parse_timestamptz;
use expect_test::expect;
use proptest::prelude::*;
use std::fmt::Write;

const ALL_KINDS: &str = include_str!("../../tests/golden/pg15/all_kinds.hex");
const ALL_KINDS_BY_THE_SERVER: &str = include_str!("../../tests/golden/pg15/all_kinds.txt");
const STREAMED: &str = include_str!("../../tests/golden/pg15/streamed_and_prepared.hex");

fn messages(golden: &str) -> Vec<Vec<u8>> {
    let lines = golden.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| data_encoding::HEXLOWER.decode(line.as_bytes()).unwrap()).collect()
}

/// The server's other plugin wrote down the same stretch of the log: what we read must render to the same text.
#[test]
fn the_server_agrees_with_what_we_read() {
    let mut tables = Relations::new();
    let mut xid = 0;
    let mut ours = Vec::new();
    for bytes in messages(ALL_KINDS) {
        match Message::parse(&bytes).unwrap() {
            Message::Begin(begin) => {
                xid = begin.xid;
                ours.push(format!("BEGIN {xid}"));
            }
            Message::Commit(commit) => ours.push(format!("COMMIT {xid} at {}", commit.committed_at.0)),
            Message::Relation(relation) => tables.apply_relation(&relation),
            Message::Type(data_type) => tables.apply_type(&data_type),
            Message::Origin(_) => {}
            message => ours.push(render(&tables, &message)),
        }
    }
    assert_eq!(ours.join("\n"), by_the_server().join("\n"));
}

/// The lines of `test_decoding`, with commit times as numbers, and without transactions that are empty to `pgoutput`.
fn by_the_server() -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in ALL_KINDS_BY_THE_SERVER.lines().filter(|line| !line.starts_with('#')) {
        if !line.starts_with("COMMIT") {
            lines.push(line.to_owned());
        } else if lines.last().is_some_and(|last| last.starts_with("BEGIN")) {
            lines.pop();
        } else {
            let (commit, at) = line.trim_end_matches(')').split_once(" (at ").unwrap();
            lines.push(format!("{commit} at {}", parse_timestamptz(at).unwrap().0));
        }
    }
    lines
}

fn render(tables: &Relations, message: &Message<'_>) -> String {
    let table = |oid| tables.table(oid).unwrap();
    match message {
        Message::Insert(insert) => {
            let table = table(insert.relation_oid);
            format!("table {}: INSERT:{}", qualified(table), columns(tables, table, insert.new, false))
        }
        Message::Update(update) => {
            let table = table(update.relation_oid);
            let new = columns(tables, table, update.new, false);
            match update.old {
                None => format!("table {}: UPDATE:{new}", qualified(table)),
                Some(old) => {
                    let old = columns(tables, table, old.tuple(), true);
                    format!("table {}: UPDATE: old-key:{old} new-tuple:{new}", qualified(table))
                }
            }
        }
        Message::Delete(delete) => {
            let table = table(delete.relation_oid);
            format!("table {}: DELETE:{}", qualified(table), columns(tables, table, delete.old.tuple(), true))
        }
        Message::Truncate(truncate) => {
            let names: Vec<_> = truncate.relation_oids.iter().map(|oid| qualified(table(oid))).collect();
            let flags = match (truncate.restart_identity, truncate.cascade) {
                (false, false) => " (no-flags)",
                (true, false) => " restart_seqs",
                (false, true) => " cascade",
                (true, true) => " restart_seqs cascade",
            };
            format!("table {}: TRUNCATE:{flags}", names.join(", "))
        }
        Message::LogicalMessage(message) => format!(
            "message: transactional: {} prefix: {}, sz: {} content:{}",
            u8::from(message.transactional),
            message.prefix,
            message.content.len(),
            std::str::from_utf8(message.content).unwrap()
        ),
        other => panic!("not in the recording: {other:?}"),
    }
}

fn columns(tables: &Relations, table: &Table, tuple: Tuple<'_>, skip_nulls: bool) -> String {
    assert_eq!(tuple.len(), table.columns.len());
    let mut text = String::new();
    for (column, value) in table.columns.iter().zip(tuple.columns()) {
        let (type_name, quoted) = match column.type_oid {
            20 => ("bigint", false),
            23 => ("integer", false),
            25 => ("text", true),
            1184 => ("timestamp with time zone", true),
            1700 => ("numeric", false),
            17 => ("bytea", true),
            2950 => ("uuid", true),
            3802 => ("jsonb", true),
            oid => (tables.named_type(oid).unwrap().name.as_str(), true),
        };
        let value = match value {
            TupleValue::Null if skip_nulls => continue,
            TupleValue::Null => "null".to_owned(),
            TupleValue::Unchanged => "unchanged-toast-datum".to_owned(),
            TupleValue::Text(bytes) => {
                let bytes = std::str::from_utf8(bytes).unwrap();
                if quoted { format!("'{}'", bytes.replace('\'', "''")) } else { bytes.to_owned() }
            }
            TupleValue::Binary(_) => panic!("not asked for"),
        };
        write!(text, " {}[{type_name}]:{value}", column.name).unwrap();
    }
    text
}

fn qualified(table: &Table) -> String {
    format!("{}.{}", quoted(&table.schema), quoted(&table.name))
}

fn quoted(name: &str) -> String {
    let plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

fn first(golden: &str, tag: u8) -> Vec<u8> {
    messages(golden).into_iter().find(|message| message[0] == tag).unwrap()
}

#[test]
fn descriptions_and_origins_are_read_as_the_server_sent_them() {
    let relation = first(ALL_KINDS, b'R');
    let Message::Relation(relation) = Message::parse(&relation).unwrap() else { panic!("a relation") };
    let columns: Vec<_> = relation.columns().map(|c| (c.key, c.name, c.type_modifier)).collect();
    let described = (relation.schema, relation.name, relation.replica_identity, columns);
    expect![[
        r#"("public", "item", Default, [(true, "id", -1), (false, "name", -1), (false, "m", -1), (false, "note", -1)])"#
    ]]
    .assert_eq(&format!("{described:?}"));

    let data_type = first(ALL_KINDS, b'Y');
    let Message::Type(data_type) = Message::parse(&data_type).unwrap() else { panic!("a type") };
    expect![[r#"("public", "mood")"#]].assert_eq(&format!("{:?}", (data_type.schema, data_type.name)));

    let origin = first(ALL_KINDS, b'O');
    expect![[r#"Ok(Origin(Origin { commit_lsn: Lsn(2748), name: "other" }))"#]]
        .assert_eq(&format!("{:?}", Message::parse(&origin)));
}

/// A streamed transaction whose savepoint rolled back, one that rolled back as a whole, two prepared ones with either verdict, and
/// one both streamed and prepared.
#[test]
fn streamed_and_prepared_transactions_are_read_as_the_server_sent_them() {
    let mut in_stream = false;
    let mut text = String::new();
    for bytes in messages(STREAMED) {
        let (xid, message) =
            if in_stream { Message::parse_streamed(&bytes) } else { Message::parse(&bytes).map(|m| (None, m)) }
                .unwrap();
        in_stream = match message {
            Message::StreamStart(_) => true,
            Message::StreamStop => false,
            _ => in_stream,
        };
        let line = streamed_line(xid, &message);
        // One line for each block of a stream.
        write!(text, "{line}{}", if in_stream { ", " } else { "\n" }).unwrap();
    }
    expect![[r#"
        start 796 first true, type Some(796) mood, relation Some(796) item, insert Some(796), insert Some(796), stop
        start 796 first false, insert Some(796), insert Some(796), stop
        start 796 first false, insert Some(797), insert Some(797), stop
        abort 797 of 796 None
        start 796 first false, relation Some(798) nokey, truncate Some(798), type Some(798) mood, relation Some(798) item, insert Some(798), insert Some(798), stop
        start 796 first false, insert Some(798), insert Some(798), stop
        start 796 first false, insert Some(798), insert Some(798), stop
        commit 796
        start 799 first true, type Some(799) mood, relation Some(799) item, insert Some(799), insert Some(799), stop
        start 799 first false, insert Some(799), insert Some(799), stop
        abort 799 of 799 None
        begin prepare 800 "gid one"
        relation None nokey
        insert None
        prepare 800 "gid one"
        commit prepared 800 "gid one"
        begin prepare 801 "gid two"
        insert None
        prepare 801 "gid two"
        rollback prepared 801 "gid two"
        start 802 first true, type Some(802) mood, relation Some(802) item, insert Some(802), insert Some(802), stop
        start 802 first false, insert Some(802), insert Some(802), stop
        start 802 first false, insert Some(802), insert Some(802), stop
        stream prepare 802 "gid three"
        commit prepared 802 "gid three"
    "#]]
    .assert_eq(&text);
}

fn streamed_line(xid: Option<u32>, message: &Message<'_>) -> String {
    match message {
        Message::StreamStart(start) => format!("start {} first {}", start.xid, start.first),
        Message::StreamStop => "stop".to_owned(),
        Message::StreamCommit(commit) => format!("commit {}", commit.xid),
        Message::StreamAbort(abort) => format!("abort {} of {} {:?}", abort.subxid, abort.xid, abort.place),
        Message::BeginPrepare(begin) => format!("begin prepare {} {:?}", begin.xid, begin.gid),
        Message::Prepare(prepare) => format!("prepare {} {:?}", prepare.xid, prepare.gid),
        Message::CommitPrepared(commit) => format!("commit prepared {} {:?}", commit.xid, commit.gid),
        Message::RollbackPrepared(rollback) => format!("rollback prepared {} {:?}", rollback.xid, rollback.gid),
        Message::StreamPrepare(prepare) => format!("stream prepare {} {:?}", prepare.xid, prepare.gid),
        Message::Insert(_) => format!("insert {xid:?}"),
        Message::Truncate(_) => format!("truncate {xid:?}"),
        Message::Relation(relation) => format!("relation {xid:?} {}", relation.name),
        Message::Type(data_type) => format!("type {xid:?} {}", data_type.name),
        other => format!("{other:?}"),
    }
}

#[test]
fn every_cut_of_a_servers_message_is_an_error_with_its_offset() {
    for bytes in messages(ALL_KINDS) {
        for cut in 0..bytes.len() {
            let error = Message::parse(&bytes[..cut]).expect_err("cut short");
            assert!(error.offset <= cut, "{error}");
        }
        let longer = [&bytes[..], b"x"].concat();
        let error = Message::parse(&longer).expect_err("one byte too many");
        assert_eq!((error.offset, error.problem), (bytes.len(), ParseProblem::TrailingBytes));
    }
}

#[test]
fn an_error_says_where_and_why() {
    for (bytes, expected) in [
        (&b""[..], "message ends within a field at byte 0 of a message with tag 0x00"),
        (b"?", "unknown kind of message at byte 0 of a message with tag 0x3f"),
        (b"I\0\0\0\x01X", "unknown marker 0x58 at byte 5 of a message with tag 0x49"),
        (b"I\0\0\0\x01N\0\x01q", "unknown marker 0x71 at byte 8 of a message with tag 0x49"),
        (b"I\0\0\0\x01N\xff\xff", "negative length at byte 6 of a message with tag 0x49"),
        (b"I\0\0\0\x01N\0\x01t\xff\xff\xff\xff", "negative length at byte 9 of a message with tag 0x49"),
        (b"I\0\0\0\x01N\0\x01t\x7f\xff\xff\xff", "message ends within a field at byte 13 of a message with tag 0x49"),
        (b"Y\0\0\0\x01\xff\0a\0", "name is not valid UTF-8 at byte 5 of a message with tag 0x59"),
        (b"T\x7f\xff\xff\xff\0", "message ends within a field at byte 6 of a message with tag 0x54"),
        (b"R\0\0\0\x01a\0b\0x\0\0", "unknown marker 0x78 at byte 9 of a message with tag 0x52"),
    ] {
        assert_eq!(Message::parse(bytes).expect_err("malformed").to_string(), expected);
    }
}

fn name() -> impl Strategy<Value = String> {
    "[^\0]{0,12}"
}

#[derive(Debug, Clone)]
enum Owned {
    Null,
    Unchanged,
    Text(Vec<u8>),
    Binary(Vec<u8>),
}

fn tuple() -> impl Strategy<Value = Vec<Owned>> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..20);
    let value = prop_oneof![
        Just(Owned::Null),
        Just(Owned::Unchanged),
        bytes().prop_map(Owned::Text),
        bytes().prop_map(Owned::Binary)
    ];
    prop::collection::vec(value, 0..6)
}

fn borrow(values: &[Owned]) -> Vec<TupleValue<'_>> {
    let borrowed = values.iter().map(|value| match value {
        Owned::Null => TupleValue::Null,
        Owned::Unchanged => TupleValue::Unchanged,
        Owned::Text(bytes) => TupleValue::Text(bytes),
        Owned::Binary(bytes) => TupleValue::Binary(bytes),
    });
    borrowed.collect()
}

fn read_back(tuple: Tuple<'_>) -> Vec<TupleValue<'_>> {
    tuple.columns().collect()
}

/// Encodes with `write` and checks that the parser reads `message` back, inside a stream block and outside.
fn check_fixed(message: Message<'_>, write: impl Fn(&mut Vec<u8>)) {
    let mut bytes = Vec::new();
    write(&mut bytes);
    assert_eq!(Message::parse(&bytes), Ok(message));
    if matches!(bytes[0], b'R' | b'Y' | b'I' | b'U' | b'D' | b'T' | b'M') {
        bytes.splice(1..1, 77_u32.to_be_bytes());
        assert_eq!(Message::parse_streamed(&bytes), Ok((Some(77), message)));
    }
}

proptest! {
    #[test]
    fn transaction_messages_read_back(a: u64, b: u64, micros in any::<i32>(), xid: u32, flags: u8, gid in name(), first: bool) {
        let (a, b) = (Lsn(a), Lsn(b));
        let at = Timestamp::from_postgres_micros(i64::from(micros).wrapping_mul(1_000_003));
        let gid = gid.as_str();
        let begin = Begin { final_lsn: a, committed_at: at, xid };
        check_fixed(Message::Begin(begin), |out| encode::begin(out, &begin));
        let commit = Commit { flags, commit_lsn: a, end_lsn: b, committed_at: at };
        check_fixed(Message::Commit(commit), |out| encode::commit(out, &commit));
        let origin = Origin { commit_lsn: a, name: gid };
        check_fixed(Message::Origin(origin), |out| encode::origin(out, &origin));
        let start = StreamStart { xid, first };
        check_fixed(Message::StreamStart(start), |out| encode::stream_start(out, &start));
        check_fixed(Message::StreamStop, encode::stream_stop);
        let commit = StreamCommit { xid, flags, commit_lsn: a, end_lsn: b, committed_at: at };
        check_fixed(Message::StreamCommit(commit), |out| encode::stream_commit(out, &commit));
        let place = first.then_some(AbortPlace { abort_lsn: a, aborted_at: at });
        let abort = StreamAbort { xid, subxid: !xid, place };
        check_fixed(Message::StreamAbort(abort), |out| encode::stream_abort(out, &abort));
        let begin = BeginPrepare { prepare_lsn: a, end_lsn: b, prepared_at: at, xid, gid };
        check_fixed(Message::BeginPrepare(begin), |out| encode::begin_prepare(out, &begin));
        let prepare = Prepare { flags, prepare_lsn: a, end_lsn: b, prepared_at: at, xid, gid };
        check_fixed(Message::Prepare(prepare), |out| encode::prepare(out, &prepare));
        let commit = CommitPrepared { flags, commit_lsn: a, end_lsn: b, committed_at: at, xid, gid };
        check_fixed(Message::CommitPrepared(commit), |out| encode::commit_prepared(out, &commit));
        let rollback =
            RollbackPrepared { flags, prepare_end_lsn: a, end_lsn: b, prepared_at: at, rolled_back_at: at, xid, gid };
        check_fixed(Message::RollbackPrepared(rollback), |out| encode::rollback_prepared(out, &rollback));
        let prepare = StreamPrepare { flags, prepare_lsn: a, end_lsn: b, prepared_at: at, xid, gid };
        check_fixed(Message::StreamPrepare(prepare), |out| encode::stream_prepare(out, &prepare));
    }

    #[test]
    fn descriptions_and_messages_read_back(
        oid: u32,
        schema in name(),
        table in name(),
        columns in prop::collection::vec((name(), any::<u32>(), any::<i32>(), any::<bool>()), 0..6),
        identity in prop::sample::select(&b"dnfi"[..]),
        content in prop::collection::vec(any::<u8>(), 0..40),
        transactional: bool,
    ) {
        let columns = columns
            .into_iter()
            .map(|(name, type_oid, type_modifier, key)| Column { name, type_oid, type_modifier, key })
            .collect();
        let replica_identity = ReplicaIdentity::from_marker(identity).unwrap();
        let schema = if schema.is_empty() { "pg_catalog".to_owned() } else { schema };
        let described = Table { oid, schema, name: table, replica_identity, columns };
        let mut bytes = Vec::new();
        encode::relation(&mut bytes, &described);
        let Message::Relation(relation) = Message::parse(&bytes).unwrap() else { panic!("a relation") };
        let mut tables = Relations::new();
        tables.apply_relation(&relation);
        prop_assert_eq!(&**tables.table(oid).unwrap(), &described);

        let data_type = DataType { oid, schema: &described.schema, name: &described.name };
        check_fixed(Message::Type(data_type), |out| encode::data_type(out, &data_type));
        let message = LogicalMessage { transactional, lsn: Lsn(9), prefix: &described.name, content: &content };
        check_fixed(Message::LogicalMessage(message), |out| encode::logical_message(out, &message));
    }

    #[test]
    fn changes_read_back(
        oid: u32,
        new in tuple(),
        old in tuple(),
        kind in 0..3_u8,
        oids in prop::collection::vec(any::<u32>(), 0..5),
        cascade: bool,
        restart: bool,
    ) {
        let (new, old) = (borrow(&new), borrow(&old));
        let mut bytes = Vec::new();
        encode::insert(&mut bytes, oid, &new);
        let Message::Insert(insert) = Message::parse(&bytes).unwrap() else { panic!("an insert") };
        prop_assert_eq!((insert.relation_oid, read_back(insert.new)), (oid, new.clone()));

        let old_values = [None, Some(OldValues::Key(&old)), Some(OldValues::Full(&old))][usize::from(kind)];
        bytes.clear();
        encode::update(&mut bytes, oid, old_values, &new);
        let Message::Update(update) = Message::parse(&bytes).unwrap() else { panic!("an update") };
        prop_assert_eq!((update.relation_oid, read_back(update.new)), (oid, new));
        prop_assert_eq!(update.old.map(|old| read_back(old.tuple())), old_values.map(|_| old.clone()));
        prop_assert_eq!(matches!(update.old, Some(OldTuple::Key(_))), kind == 1);

        if let Some(old_values) = old_values {
            bytes.clear();
            encode::delete(&mut bytes, oid, old_values);
            let Message::Delete(delete) = Message::parse(&bytes).unwrap() else { panic!("a delete") };
            prop_assert_eq!((delete.relation_oid, read_back(delete.old.tuple())), (oid, old));
            prop_assert_eq!(matches!(delete.old, OldTuple::Key(_)), kind == 1);
        }

        bytes.clear();
        encode::truncate(&mut bytes, &oids, cascade, restart);
        let Message::Truncate(truncate) = Message::parse(&bytes).unwrap() else { panic!("a truncate") };
        prop_assert_eq!((truncate.cascade, truncate.restart_identity), (cascade, restart));
        prop_assert_eq!(truncate.relation_oids.iter().collect::<Vec<_>>(), oids);
    }

    /// Whatever comes, the parser returns, points within the message, and what it accepts can be walked.
    #[test]
    fn no_bytes_make_it_panic(
        tag in prop::sample::select(&b"BCORYIUDTMSEcAbPKrp?"[..]),
        body in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(&b"\0\0\0\x01NKOtnub"[..])], 0..60),
    ) {
        let bytes = [&[tag][..], &body].concat();
        for result in [Message::parse(&bytes), Message::parse_streamed(&bytes).map(|(_, message)| message)] {
            match result {
                Ok(Message::Insert(insert)) => prop_assert_eq!(insert.new.columns().count(), insert.new.len()),
                Ok(Message::Relation(relation)) => { relation.columns().count(); }
                Ok(_) => {}
                Err(error) => prop_assert!(error.offset <= bytes.len()),
            }
        }
    }

    /// One damaged byte of a real message is read or refused, and never more.
    #[test]
    fn no_damage_makes_it_panic(which: prop::sample::Index, place: prop::sample::Index, byte: u8) {
        let recorded = messages(ALL_KINDS);
        let mut bytes = which.get(&recorded).clone();
        let at = place.index(bytes.len());
        bytes[at] = byte;
        if let Err(error) = Message::parse(&bytes) {
            prop_assert!(error.offset <= bytes.len());
        }
    }
}
