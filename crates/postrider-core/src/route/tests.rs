#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use super::*;
use crate::decode::Decoder;
use crate::pgoutput::LogicalMessage;
use crate::pgoutput::encode::{self, OldValues};
use crate::ports::SchemaBlock;
use crate::relation::{Column, ReplicaIdentity};
use crate::time::Timestamp;
use crate::transaction::{Part, PartHead, PartKind, push_message};
use expect_test::expect;

const HEAD: PartHead = PartHead {
    kind: PartKind::Transaction,
    commit_lsn: Lsn(1),
    end_lsn: Lsn(2),
    xid: 1,
    committed_at: Timestamp(0),
    first_ordinal: 0,
    changes: 0,
    first: true,
    last: true,
};

const OUTBOX: [&str; 6] = ["id", "aggregate_key", "event_type", "payload", "headers", "topic"];

fn message(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    bytes
}

fn table(oid: u32, name: &str, columns: &[&str]) -> Vec<u8> {
    let columns =
        columns.iter().map(|column| Column { name: (*column).to_owned(), type_oid: 25, type_modifier: -1, key: true });
    let columns = columns.collect();
    let replica_identity = ReplicaIdentity::Default;
    let relation = Relation { oid, schema: "public".into(), name: name.into(), replica_identity, columns };
    message(|out| encode::relation(out, &relation))
}

fn values<'a>(texts: &[Option<&'a str>]) -> Vec<TupleValue<'a>> {
    texts.iter().map(|text| text.map_or(TupleValue::Null, |text| TupleValue::Text(text.as_bytes()))).collect()
}

fn insert(oid: u32, columns: usize) -> Vec<u8> {
    message(|out| encode::insert(out, oid, &vec![TupleValue::Null; columns]))
}

fn router() -> Router {
    Router::new(Routing {
        outbox_tables: vec![OutboxTable::default()],
        outbox_prefixes: vec![OutboxPrefix { prefix: "outbox".into() }],
        work: Some(WorkMapping::default()),
    })
}

/// The routes of some messages, each as one word, behind descriptions of the tables.
fn routes(router: &mut Router, decoder: &mut Decoder, messages: &[Vec<u8>]) -> Result<Vec<String>, RouteError> {
    let mut block = Vec::new();
    for message in messages {
        assert!(push_message(&mut block, message));
    }
    let mut changes = decoder.changes(Part::new(HEAD, &block));
    let mut words = Vec::new();
    while let Some(change) = changes.next() {
        words.push(match router.route(&change.unwrap().1)? {
            Route::Outbox(_) => "outbox".to_owned(),
            Route::OutboxMessage(_) => "message".to_owned(),
            Route::Work(WorkRow { new: Some(_), .. }) => "work".to_owned(),
            Route::Work(WorkRow { new: None, .. }) => "gone".to_owned(),
            Route::WorkNotice(_) => "notice".to_owned(),
            Route::Pause(_) => "pause".to_owned(),
            Route::Presence(_) => "presence".to_owned(),
            Route::Ignore(reason) => format!("{reason:?}"),
            Route::Alarm(alarm) => format!("{alarm:?}"),
        });
    }
    Ok(words)
}

fn outbox_with_mark() -> Vec<u8> {
    table(1, "outbox_event", &[&OUTBOX[..], &["published_at"]].concat())
}

#[test]
fn an_outbox_row_is_routed_from_its_insert_even_where_it_is_deleted_at_once() {
    let delete = message(|out| encode::delete(out, 1, OldValues::Key(&[TupleValue::Null; 6])));
    let messages = [table(1, "outbox_event", &OUTBOX), insert(1, 6), delete];
    let words = routes(&mut router(), &mut Decoder::new(), &messages).unwrap();
    assert_eq!(words, ["outbox", "OutboxDelete"]);
}

#[test]
fn an_update_of_published_at_alone_is_a_pollers_mark() {
    let row = |event_type, published| [Some("1"), Some("k"), Some(event_type), Some("{}"), None, None, published];
    let update =
        |old: Option<OldValues<'_>>, new: &[Option<&str>]| message(|out| encode::update(out, 1, old, &values(new)));
    let before = values(&row("a", None));
    let mut untouched = values(&row("a", Some("now")));
    untouched[3] = TupleValue::Unchanged;
    let messages = [
        outbox_with_mark(),
        update(None, &row("a", Some("now"))),
        update(None, &row("a", None)),
        update(Some(OldValues::Full(&before)), &row("a", Some("now"))),
        update(Some(OldValues::Full(&before)), &row("b", Some("now"))),
        message(|out| encode::update(out, 1, Some(OldValues::Full(&before)), &untouched)),
        update(Some(OldValues::Key(&before)), &row("a", Some("now"))),
    ];
    let words = routes(&mut router(), &mut Decoder::new(), &messages).unwrap();
    let alarm = "OutboxUpdated { table: \"public.outbox_event\" }";
    assert_eq!(words, ["PublishedMark", alarm, "PublishedMark", alarm, "PublishedMark", alarm]);
}

#[test]
fn every_update_alarms_where_no_poller_can_mark() {
    let update = message(|out| encode::update(out, 1, None, &values(&[Some("x"); 6])));
    let messages = [table(1, "outbox_event", &OUTBOX), update];
    let words = routes(&mut router(), &mut Decoder::new(), &messages).unwrap();
    assert_eq!(words, ["OutboxUpdated { table: \"public.outbox_event\" }"]);
}

#[test]
fn a_truncate_alarms_for_each_table_of_ours_and_for_no_other() {
    let work = WorkMapping::default();
    let columns: Vec<&str> = work.version_columns().into_iter().filter_map(|(_, own)| own).collect();
    let columns = [&["group_id", "quote_id"], columns.as_slice()].concat();
    let truncate = |oids: &[u32]| message(|out| encode::truncate(out, oids, false, false));
    let messages = [
        table(1, "outbox_event", &OUTBOX),
        table(2, "pending_work", &columns),
        table(3, "other", &["id"]),
        truncate(&[3]),
        truncate(&[3, 2, 1]),
        insert(2, 13),
    ];
    let words = routes(&mut router(), &mut Decoder::new(), &messages).unwrap();
    expect![[r#"["UnrelatedTable", "Truncated { tables: [(Work, \"public.pending_work\"), (Outbox, \"public.outbox_event\")] }", "work"]"#]]
        .assert_eq(&format!("{words:?}"));
}

#[test]
fn messages_are_routed_by_their_whole_prefix() {
    let logical = |prefix| {
        let logical = LogicalMessage { transactional: true, lsn: Lsn(1), prefix, content: b"" };
        message(|out| encode::logical_message(out, &logical))
    };
    let messages = [logical("outbox"), logical("outbox2"), logical("")];
    let words = routes(&mut router(), &mut Decoder::new(), &messages).unwrap();
    assert_eq!(words, ["message", "UnrelatedPrefix", "UnrelatedPrefix"]);
}

#[test]
fn a_missing_column_is_named_with_its_table() {
    let messages = [table(1, "outbox_event", &OUTBOX[..5]), insert(1, 5)];
    let error = routes(&mut router(), &mut Decoder::new(), &messages).expect_err("no topic");
    assert_eq!((&*error.table, error.column.as_str()), ("public.outbox_event", "topic"));
    expect![[r#"PR010 a table lacks a column that the configuration names. Column "topic" of table "public.outbox_event" is missing from the log. Map the column to its name in the table, and see that the publication's column list has it."#]]
        .assert_eq(&Error::from(error).report());
}

/// A table that was renamed, or whose oid was used again, is judged anew; so is one seen through another decoder.
#[test]
fn a_table_described_anew_is_looked_up_anew() {
    let mut router = router();
    let mut decoder = Decoder::new();
    let messages = [
        table(1, "other", &OUTBOX),
        insert(1, 6),
        table(1, "outbox_event", &OUTBOX),
        insert(1, 6),
        table(1, "other", &OUTBOX),
        insert(1, 6),
    ];
    let words = routes(&mut router, &mut decoder, &messages).unwrap();
    assert_eq!(words, ["UnrelatedTable", "outbox", "UnrelatedTable"]);
    let mut second = Decoder::new();
    second.load(&SchemaBlock::default()).unwrap();
    let words = routes(&mut router, &mut second, &[table(1, "outbox_event", &OUTBOX), insert(1, 6)]).unwrap();
    assert_eq!(words, ["outbox"]);
}

#[test]
fn two_parts_of_an_event_cannot_share_a_column() {
    let columns = OutboxColumns { topic: Some("event_type".into()), ..OutboxColumns::default() };
    let outbox = OutboxTable { columns, ..OutboxTable::default() };
    let mut router = Router::new(Routing { outbox_tables: vec![outbox], ..Routing::default() });
    let messages = [table(1, "outbox_event", &OUTBOX), insert(1, 6)];
    let error = routes(&mut router, &mut Decoder::new(), &messages).expect_err("shared");
    assert_eq!(error.column, "event_type");
}
