#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use super::{RowShape, write_value};
use crate::change::Row;
use crate::pgoutput::encode;
use crate::pgoutput::{Message, OldTuple, Tuple, TupleValue};
use crate::relation::{Column, Relation, Relations, ReplicaIdentity};
use crate::value::{Type, Value, ValueProblem};
use proptest::prelude::{Strategy, any, prop_assert, proptest};
use std::sync::Arc;

fn of(oid: u32) -> Type {
    Type::of(oid, None)
}

fn json(data_type: &Type, text: &str) -> Result<String, ValueProblem> {
    let mut out = String::new();
    write_value(&mut out, data_type, text).map(|()| out)
}

#[track_caller]
fn check(data_type: &Type, text: &str, expected: &str) {
    assert_eq!(json(data_type, text).as_deref(), Ok(expected), "{text}");
}

#[test]
fn numbers_keep_their_text_and_what_is_no_number_is_a_string() {
    check(&Type::Int8, "9223372036854775807", "9223372036854775807");
    check(&Type::Numeric, "1.10", "1.10");
    check(&Type::Numeric, "100000000000000000000", "100000000000000000000");
    check(&Type::Float8, "1e+300", "1e+300");
    check(&Type::Float8, "-0", "-0");
    for special in ["NaN", "Infinity", "-Infinity"] {
        check(&Type::Numeric, special, &format!("\"{special}\""));
        check(&Type::Float4, special, &format!("\"{special}\""));
    }
    check(&Type::Oid, "4294967295", "\"4294967295\"");
    check(&Type::Bool, "t", "true");
}

#[test]
fn strings_are_escaped_and_no_more_than_needed() {
    check(&Type::Text, "ä\"\\\n\r\t\u{8}\u{c}\u{1}/\u{7f}", "\"ä\\\"\\\\\\n\\r\\t\\b\\f\\u0001/\u{7f}\"");
    check(&Type::Text, "", "\"\"");
    check(&Type::Bytea, "\\x00ff", "\"\\\\x00ff\"");
}

#[test]
fn json_is_embedded_as_it_is_on_one_line() {
    check(&Type::Json, "{\"a\":1e400,  \"a\":1.0}", "{\"a\":1e400,  \"a\":1.0}");
    check(&Type::Json, "[1,\r\n2]", "[1,  2]");
    check(&Type::Json, "\"\\u0000\\ud800\"", "\"\\u0000\\ud800\"");
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    check(&Type::Json, &deep, &deep);
}

#[test]
fn arrays_nest_and_say_their_bounds_where_these_are_not_one() {
    check(&of(1007), "{}", "[]");
    check(&of(1007), "{{1,2},{3,NULL}}", "[[1,2],[3,null]]");
    check(&of(1007), "[0:1]={7,8}", r#"{"lower":[0],"values":[7,8]}"#);
    check(&of(1009), "[2:3][0:1]={{a,b},{c,NULL}}", r#"{"lower":[2,0],"values":[["a","b"],["c",null]]}"#);
    check(&of(1231), "{NaN,1.50}", r#"["NaN",1.50]"#);
    check(&of(1020), "{(1,1),(0,0);NULL}", r#"["(1,1),(0,0)",null]"#);
    check(
        &of(199),
        r#"{NULL,"null","{\"a\": null}"}"#,
        r#"{"lower":[1],"values":[null,null,{"a": null}],"json_null":[1]}"#,
    );
}

#[test]
fn ranges_and_composites_keep_their_structure() {
    check(&of(3904), "[1,5)", r#"{"lower":1,"upper":5,"bounds":"[)"}"#);
    check(&of(3904), "empty", r#"{"empty":true}"#);
    check(
        &of(3908),
        "[\"2024-01-01 00:00:00\",infinity]",
        r#"{"lower":"2024-01-01T00:00:00","upper":"infinity","bounds":"[]"}"#,
    );
    check(&of(4451), "{}", "[]");
    check(&of(4451), "{(,3),[5,7)}", r#"[{"lower":null,"upper":3,"bounds":"()"},{"lower":5,"upper":7,"bounds":"[)"}]"#);
    let composite = Type::Composite(Arc::new([Type::Text, Type::Int4, Type::Bool]));
    check(&composite, "(\"a, \"\"b\"\"\",7,t)", r#"["a, \"b\"",7,true]"#);
    check(&composite, "(,,)", "[null,null,null]");
    check(&Type::Composite(Arc::new([])), "()", "[]");
    let documents = Type::Composite(Arc::new([Type::Json, Type::Json]));
    check(&documents, "(,null)", r#"{"values":[null,null],"json_null":[1]}"#);
    assert_eq!(json(&composite, "(a,7)"), Err(ValueProblem::Malformed("composite")));
}

#[test]
fn a_type_known_by_name_only_is_text_where_it_does_not_read_so() {
    let moods = Type::ByName(Box::new(Type::array_of(Type::Text)));
    check(&moods, "{sad,NULL}", r#"["sad",null]"#);
    check(&moods, "{sad", r#""{sad""#);
    check(&Type::ByName(Box::new(Type::Hstore)), r#""a"=>NULL, "b"=>"1""#, r#"{"a":null,"b":"1"}"#);
    check(&Type::ByName(Box::new(Type::Hstore)), "an enum's label", "\"an enum's label\"");
}

#[test]
fn an_error_names_the_type_and_leaves_nothing_written() {
    let mut out = "before".to_owned();
    let problem = write_value(&mut out, &of(1007), "{1,secret}").unwrap_err();
    assert_eq!(problem.to_string(), "does not read as integer");
    assert_eq!(out, "before");
}

/// Two columns: `id integer`, the key, and `doc json`.
fn shape() -> RowShape {
    let column = |name: &str, type_oid, key| Column { name: name.to_owned(), type_oid, type_modifier: -1, key };
    let relation = Relation {
        oid: 1,
        schema: "public".to_owned(),
        name: "t".to_owned(),
        replica_identity: ReplicaIdentity::Default,
        columns: vec![column("id", 23, true), column("d\"oc", 114, false)],
    };
    RowShape::of(&relation, &Relations::new())
}

fn with_tuple<T>(values: &[TupleValue<'_>], act: impl FnOnce(Tuple<'_>) -> T) -> T {
    let mut message = Vec::new();
    encode::insert(&mut message, 1, values);
    match Message::parse(&message).unwrap() {
        Message::Insert(insert) => act(insert.new),
        _ => unreachable!("an insert was written"),
    }
}

fn new_row(values: &[TupleValue<'_>], old: Option<OldTuple<'_>>) -> String {
    let mut out = String::new();
    with_tuple(values, |new| shape().write_new(&mut out, Row::new(new, old))).unwrap();
    out
}

#[test]
fn a_row_tells_null_json_null_and_unchanged_apart() {
    let id = TupleValue::Text(b"1");
    let row = |doc| new_row(&[id, doc], None);
    assert_eq!(row(TupleValue::Null), r#"{"columns":{"id":1,"d\"oc":null}}"#);
    assert_eq!(row(TupleValue::Text(b" null")), r#"{"columns":{"id":1,"d\"oc": null},"json_null":["d\"oc"]}"#);
    assert_eq!(row(TupleValue::Unchanged), r#"{"columns":{"id":1},"unchanged":["d\"oc"]}"#);
    assert_eq!(
        new_row(&[TupleValue::Unchanged, TupleValue::Null], None),
        r#"{"columns":{"d\"oc":null},"unchanged":["id"]}"#
    );
}

#[test]
fn an_untouched_column_is_taken_from_the_whole_old_row_and_never_from_a_key() {
    with_tuple(&[TupleValue::Text(b"1"), TupleValue::Text(b"[2]")], |old| {
        let new = [TupleValue::Text(b"1"), TupleValue::Unchanged];
        assert_eq!(new_row(&new, Some(OldTuple::Full(old))), r#"{"columns":{"id":1,"d\"oc":[2]}}"#);
        // Of an old version that is a key only, what is no key comes as NULL.
        with_tuple(&[TupleValue::Text(b"1"), TupleValue::Null], |key| {
            let row = new_row(&new, Some(OldTuple::Key(key)));
            assert_eq!(row, r#"{"columns":{"id":1},"unchanged":["d\"oc"]}"#);
        });
    });
}

#[test]
fn an_old_key_has_no_other_columns() {
    with_tuple(&[TupleValue::Text(b"1"), TupleValue::Null], |old| {
        let written = |old| {
            let mut out = String::new();
            shape().write_old(&mut out, old).unwrap();
            out
        };
        assert_eq!(written(OldTuple::Key(old)), r#"{"columns":{"id":1}}"#);
        assert_eq!(written(OldTuple::Full(old)), r#"{"columns":{"id":1,"d\"oc":null}}"#);
    });
}

#[test]
fn a_row_with_a_value_that_does_not_read_names_its_column() {
    let mut out = "before".to_owned();
    let values = [TupleValue::Text(b"1"), TupleValue::Text(b"\xff")];
    let error = with_tuple(&values, |new| shape().write_new(&mut out, Row::new(new, None))).unwrap_err();
    assert_eq!(error.to_string(), "column \"d\"oc\" of table \"public.t\" is not valid UTF-8");
    assert_eq!(out, "before");
}

/// Oids of types that are read in each of the ways there are.
const OIDS: [u32; 45] = [
    16, 17, 20, 21, 23, 25, 26, 114, 142, 600, 650, 700, 701, 774, 829, 869, 1000, 1007, 1009, 1020, 1021, 1082, 1083,
    1114, 1115, 1184, 1186, 1187, 1231, 1266, 1560, 1700, 2950, 3220, 3802, 3807, 3904, 3906, 3908, 3910, 3912, 4451,
    4532, 4533, 6150,
];

fn every_type() -> impl Iterator<Item = Type> {
    let by_name = [Type::Hstore, Type::Composite(Arc::new([Type::Int4, Type::Text]))];
    OIDS.into_iter().map(of).chain(by_name.clone()).chain(by_name.map(|named| Type::ByName(Box::new(named))))
}

/// Text of the letters that the formats are made of, so that much of it gets far.
fn likely_text() -> impl Strategy<Value = String> {
    const WORDS: [&str; 39] = [
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        ",",
        ";",
        ":",
        "\"",
        "\\",
        "=",
        "=>",
        "NULL",
        "null",
        "NaN",
        "infinity",
        "-",
        "+",
        ".",
        "1",
        "0",
        "24",
        "99999999999999999999",
        "e",
        "a",
        " ",
        " BC",
        "empty",
        "year",
        "days",
        "mon",
        "/",
        "\\x",
        "2024-02-29",
        "04:05:06",
        "ä",
        "\n",
        "\u{1}",
    ];
    proptest::collection::vec(proptest::sample::select(&WORDS[..]), 0..14).prop_map(|words| words.concat())
}

/// What is read is written so that it reads as the same again, and what is written as JSON is JSON on one line.
fn holds(text: &str) -> Result<(), String> {
    for data_type in every_type() {
        if let Ok(value) = Value::read(&data_type, text) {
            let again = Value::read(&data_type, &value.to_string());
            let same = again.as_ref().map(|again| format!("{again:?}")) == Ok(format!("{value:?}"));
            if !same {
                return Err(format!("{data_type:?}: {value:?}, then {again:?}"));
            }
        }
        if let Ok(json) = json(&data_type, text)
            && (serde_json::from_str::<&serde_json::value::RawValue>(&json).is_err() || json.contains(['\n', '\r']))
        {
            return Err(format!("{data_type:?}: {json}"));
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        let held = holds(&text);
        prop_assert!(held.is_ok(), "{held:?}");
    }

    #[test]
    fn text_of_the_formats_letters_is_read_or_refused(text in likely_text()) {
        let held = holds(&text);
        prop_assert!(held.is_ok(), "{held:?}");
    }

    #[test]
    fn whatever_is_written_as_an_array_is_read_again(elements in proptest::collection::vec(any::<Option<String>>(), 1..5)) {
        let array = crate::value::Array {
            dimensions: vec![crate::value::Dimension { lower: -3, length: elements.len() }],
            elements: elements.into_iter().map(|element| element.map(Value::Text)).collect(),
        };
        let value = Value::Array { delimiter: ',', array };
        prop_assert!(Value::read(&of(1009), &value.to_string()) == Ok(value));
    }
}
