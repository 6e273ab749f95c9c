//! The cases of types, each on a table of its own. The first column is the row's number.

use std::sync::Arc;

use postrider_core::value::{Type, Value, ValueProblem, composite_fields};
use tokio_postgres::NoTls;

use crate::database::{Database, Seen};
use crate::oracle::verify;

/// Runs the statements, reads the inserts, and holds them against the expected text and the server.
async fn check(version: u32, statements: &str, expected: &[&[Option<&str>]]) -> (Database, Vec<Seen>) {
    let database = Database::create(version).await;
    database.run(statements).await;
    let seen = database.inserts().await;
    let texts: Vec<_> = seen.iter().map(Seen::texts).collect();
    assert_eq!(texts, expected);
    verify(&database, &seen, &[]).await;
    (database, seen)
}

fn json(seen: &[Seen]) -> Vec<&str> {
    seen.iter().map(|seen| seen.json.as_str()).collect()
}

pub(crate) async fn t_01_numeric_specials(version: u32) {
    let (_, seen) = check(
        version,
        "CREATE TABLE n (id int PRIMARY KEY, a numeric, b numeric(20,4), c float8, d float4);
         INSERT INTO n VALUES (1, 'NaN', 'NaN', 'NaN', 'NaN'), (2, 'Infinity', NULL, '-Infinity', 'Infinity'),
             (3, 1e20, 12345.6789, 0.1, 0.1), (4, 123456789012345678901234567890.123456789, 0, -0.0, 1e-45),
             (5, 1.10, 1, 1e300, 3.4e38), (6, '-Infinity', NULL, '-0', 9007199254740993)",
        &[
            &[Some("NaN"), Some("NaN"), Some("NaN"), Some("NaN")],
            &[Some("Infinity"), None, Some("-Infinity"), Some("Infinity")],
            &[Some("100000000000000000000"), Some("12345.6789"), Some("0.1"), Some("0.1")],
            &[Some("123456789012345678901234567890.123456789"), Some("0.0000"), Some("0"), Some("1e-45")],
            &[Some("1.10"), Some("1.0000"), Some("1e+300"), Some("3.4e+38")],
            &[Some("-Infinity"), None, Some("-0"), Some("9.007199e+15")],
        ],
    )
    .await;
    assert_eq!(
        json(&seen),
        [
            r#"{"columns":{"id":1,"a":"NaN","b":"NaN","c":"NaN","d":"NaN"}}"#,
            r#"{"columns":{"id":2,"a":"Infinity","b":null,"c":"-Infinity","d":"Infinity"}}"#,
            r#"{"columns":{"id":3,"a":100000000000000000000,"b":12345.6789,"c":0.1,"d":0.1}}"#,
            r#"{"columns":{"id":4,"a":123456789012345678901234567890.123456789,"b":0.0000,"c":0,"d":1e-45}}"#,
            r#"{"columns":{"id":5,"a":1.10,"b":1.0000,"c":1e+300,"d":3.4e+38}}"#,
            r#"{"columns":{"id":6,"a":"-Infinity","b":null,"c":-0,"d":9.007199e+15}}"#,
        ]
    );
}

pub(crate) async fn t_02_infinity_before_christ_and_far_dates(version: u32) {
    let (_, seen) = check(
        version,
        "CREATE TABLE d (id int PRIMARY KEY, a date, b timestamp, c timestamptz);
         INSERT INTO d VALUES (1, 'infinity', 'infinity', 'infinity'), (2, '-infinity', '-infinity', '-infinity'),
             (3, '0044-03-15 BC', '0001-12-31 23:40:28 BC', '0044-03-15 12:00 UTC BC'),
             (4, '5874897-12-31', '294276-12-31 23:59:59.999999', '15000-12-31 23:40:28 UTC'),
             (5, '4714-11-24 BC', '4714-11-24 00:00 BC', '294276-12-31 23:59:59.999999 UTC')",
        &[
            &[Some("infinity"); 3],
            &[Some("-infinity"); 3],
            &[Some("0044-03-15 BC"), Some("0001-12-31 23:40:28 BC"), Some("0044-03-15 12:00:00+00 BC")],
            &[Some("5874897-12-31"), Some("294276-12-31 23:59:59.999999"), Some("15000-12-31 23:40:28+00")],
            &[Some("4714-11-24 BC"), Some("4714-11-24 00:00:00 BC"), Some("294276-12-31 23:59:59.999999+00")],
        ],
    )
    .await;
    assert_eq!(
        seen[2].json,
        r#"{"columns":{"id":3,"a":"0044-03-15 BC","b":"0001-12-31T23:40:28 BC","c":"0044-03-15T12:00:00+00:00 BC"}}"#
    );
}

pub(crate) async fn t_04_midnight_at_the_end_and_leap_seconds(version: u32) {
    check(
        version,
        "CREATE TABLE t (id int PRIMARY KEY, a time, b timetz);
         INSERT INTO t VALUES (1, '24:00', '24:00+00'), (2, '23:59:60', '04:05:06.789-15:59:59'),
             (3, '00:00', '00:00+05:30')",
        &[
            &[Some("24:00:00"), Some("24:00:00+00")],
            &[Some("24:00:00"), Some("04:05:06.789-15:59:59")],
            &[Some("00:00:00"), Some("00:00:00+05:30")],
        ],
    )
    .await;
}

pub(crate) async fn t_06_intervals(version: u32) {
    let (database, seen) = check(
        version,
        "CREATE TABLE i (id int PRIMARY KEY, a interval);
         INSERT INTO i VALUES (1, '1 year 2 mons -3 days 04:05:06.789'), (2, '1 mon -1 day'), (3, 'P178Y'), (4, '0'),
             (5, '-1 year -2 mons +3 days -00:00:00.000001'), (6, '24 months 30 days 24:00:00')",
        &[
            &[Some("1 year 2 mons -3 days +04:05:06.789")],
            &[Some("1 mon -1 days")],
            &[Some("178 years")],
            &[Some("00:00:00")],
            &[Some("-1 years -2 mons +3 days -00:00:00.000001")],
            &[Some("2 years 30 days 24:00:00")],
        ],
    )
    .await;
    // The server's own word for months, days and time apart.
    for row in seen {
        let Some(Value::Interval(interval)) = read(&row, 1) else { panic!("{row:?}") };
        let postrider_core::value::Extended::Finite(span) = interval.0 else { panic!("{row:?}") };
        let parts = "SELECT (extract(year FROM a) * 12 + extract(month FROM a))::int, extract(day FROM a)::int,
             (extract(hour FROM a) * 3600000000 + extract(minute FROM a) * 60000000
             + extract(microseconds FROM a))::int8 FROM i WHERE id::text = $1";
        let server = database.admin.query_one(parts, &[&row.cells[0].text]).await.unwrap();
        assert_eq!((span.months, span.days, span.micros), (server.get(0), server.get(1), server.get(2)), "{row:?}");
    }
    if version >= 17 {
        check(
            version,
            "CREATE TABLE i (id int PRIMARY KEY, a interval);
             INSERT INTO i VALUES (1, 'infinity'), (2, '-infinity')",
            &[&[Some("infinity")], &[Some("-infinity")]],
        )
        .await;
    }
}

pub(crate) async fn t_08_arrays(version: u32) {
    let (_, seen) = check(
        version,
        r#"CREATE TABLE a (id int PRIMARY KEY, i int[], t text[], n numeric[], b box[]);
         INSERT INTO a VALUES (1, '{1,NULL,3}', '{"NULL",NULL,NULL,"","a b","a\"b","a\\\\b","x,y","{q}"}', '{NaN,1.50}',
             '{(1,1),(0,0);(2,2),(1,1)}'),
             (2, '{{1,2},{3,4}}', '[2:3][0:1]={{a,b},{c,d}}', NULL, NULL), (3, '[0:1]={7,8}', '{}', '[-5:-5]={1}', '{}'),
             (4, '{}', '{{{null},{nULL}}}', '{}', '{NULL}')"#,
        &[
            &[
                Some("{1,NULL,3}"),
                Some(r#"{"NULL",NULL,NULL,"","a b","a\"b","a\\\\b","x,y","{q}"}"#),
                Some("{NaN,1.50}"),
                Some("{(1,1),(0,0);(2,2),(1,1)}"),
            ],
            &[Some("{{1,2},{3,4}}"), Some("[2:3][0:1]={{a,b},{c,d}}"), None, None],
            &[Some("[0:1]={7,8}"), Some("{}"), Some("[-5:-5]={1}"), Some("{}")],
            &[Some("{}"), Some("{{{NULL},{NULL}}}"), Some("{}"), Some("{NULL}")],
        ],
    )
    .await;
    assert_eq!(
        json(&seen[..3]),
        [
            concat!(
                r#"{"columns":{"id":1,"i":[1,null,3],"t":["NULL",null,null,"","a b","a\"b","a\\\\b","x,y","{q}"],"#,
                r#""n":["NaN",1.50],"b":["(1,1),(0,0)","(2,2),(1,1)"]}}"#
            ),
            concat!(
                r#"{"columns":{"id":2,"i":[[1,2],[3,4]],"t":{"lower":[2,0],"values":[["a","b"],["c","d"]]},"#,
                r#""n":null,"b":null}}"#
            ),
            concat!(
                r#"{"columns":{"id":3,"i":{"lower":[0],"values":[7,8]},"t":[],"#,
                r#""n":{"lower":[-5],"values":[1]},"b":[]}}"#
            ),
        ]
    );
}

pub(crate) async fn t_09_enums_changing_under_way(version: u32) {
    let database = Database::create(version).await;
    for statement in [
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE e (m mood PRIMARY KEY, a mood[])",
        "INSERT INTO e VALUES ('sad', '{ok}')",
        "ALTER TYPE mood ADD VALUE 'happy' BEFORE 'ok'",
        "INSERT INTO e VALUES ('happy', '{happy,NULL}')",
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
        "DELETE FROM e WHERE m = 'blue'",
        "INSERT INTO e VALUES ('blue', '{}')",
    ] {
        database.run(statement).await;
    }
    let seen = database.changes().await;
    // The log keeps what was stored: the label comes from the catalogue as it stands at that place of the log.
    let told: Vec<_> = seen.iter().map(|seen| (seen.kind, seen.json.as_str())).collect();
    assert_eq!(
        told,
        [
            ('I', r#"{"columns":{"m":"sad","a":["ok"]}}"#),
            ('I', r#"{"columns":{"m":"happy","a":["happy",null]}}"#),
            ('D', r#"{"columns":{"m":"blue"}}"#),
            ('I', r#"{"columns":{"m":"blue","a":[]}}"#),
        ]
    );
}

pub(crate) async fn t_11_composites(version: u32) {
    let database = Database::create(version).await;
    database
        .run(
            r#"CREATE TYPE item AS (a text, b int, c bool);
             CREATE TABLE c (id int PRIMARY KEY, one item, many item[]);
             INSERT INTO c VALUES (1, ('a, "b"', 7, true), ARRAY[('x', 1, false), (NULL, NULL, NULL)]::item[]),
                 (2, (NULL, NULL, NULL), '{}'), (3, ('', 0, NULL), NULL), (4, (E'\\ (', -1, false), '{NULL}')"#,
        )
        .await;
    let seen = database.inserts().await;
    let texts: Vec<_> = seen.iter().map(Seen::texts).collect();
    assert_eq!(
        texts,
        [
            [Some(r#"("a, ""b""",7,t)"#), Some(r#"{"(x,1,f)","(,,)"}"#)],
            [Some("(,,)"), Some("{}")],
            [Some(r#"("",0,)"#), None],
            [Some(r#"("\\ (",-1,f)"#), Some("{NULL}")],
        ]
    );
    assert_eq!(composite_fields("(,,)"), Some(vec![None, None, None]));
    // What the log tells is a name: a composite is a string, unless somebody knows its fields.
    assert_eq!(seen[1].json, r#"{"columns":{"id":2,"one":"(,,)","many":[]}}"#);
    let one: Vec<Seen> = seen.iter().map(|row| Seen { cells: row.cells[..2].to_vec(), ..row.clone() }).collect();
    let item = Type::Composite(Arc::new([Type::Text, Type::Int4, Type::Bool]));
    verify(&database, &one, &[("c.one", item.clone())]).await;
    let many = Type::array_of(item);
    let Value::Array { array, .. } = Value::read(&many, seen[0].cells[2].text.as_deref().unwrap()).unwrap() else {
        panic!("{seen:?}");
    };
    assert_eq!(array.elements[1], Some(Value::Composite(vec![None, None, None])));
}

pub(crate) async fn t_13_other_built_in_types_and_extensions(version: u32) {
    let statements = r#"CREATE EXTENSION hstore SCHEMA public; CREATE EXTENSION citext SCHEMA public;
         CREATE EXTENSION ltree SCHEMA public;
         CREATE TABLE o (id int PRIMARY KEY, h hstore, ct citext, lt ltree, x xml, ip inet, m8 macaddr8, ts tsvector,
             jp jsonpath, lsn pg_lsn, ch "char", na name, b3 bit(3), vb varbit, u uuid, o oid, p point,
             m macaddr, ci cidr, mo money, tq tsquery, x8 xid8, hs hstore[]);
         INSERT INTO o VALUES (1, '""=>"", n=>NULL, "k 1"=>"v\"x"', 'MiXed', 'a.b', '<a>&lt;</a>', '::1/64',
             '08:00:2b:01:02:03:04:05', 'a:1 b:2', '$.a', '16/B374D848', 'x', 'n', '101', '',
             'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 4294967295, '(1.5,-2)', '08002b:010203', '10.0.0.0/8', 12.5,
             'a & b', '18446744073709551615', ARRAY['a=>1'::hstore, NULL]),
             (2, '', '', '', NULL, '192.168.0.1', NULL, '', NULL, '0/0', '', '', '000', '1', NULL, 0, NULL,
              NULL, '::/0', -1, NULL, NULL, '{}')"#;
    check(
        version,
        statements,
        &[
            &[
                Some(r#"""=>"", "n"=>NULL, "k 1"=>"v\"x""#),
                Some("MiXed"),
                Some("a.b"),
                Some("<a>&lt;</a>"),
                Some("::1/64"),
                Some("08:00:2b:01:02:03:04:05"),
                Some("'a':1 'b':2"),
                Some("$.\"a\""),
                Some("16/B374D848"),
                Some("x"),
                Some("n"),
                Some("101"),
                Some(""),
                Some("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
                Some("4294967295"),
                Some("(1.5,-2)"),
                Some("08:00:2b:01:02:03"),
                Some("10.0.0.0/8"),
                Some("$12.50"),
                Some("'a' & 'b'"),
                Some("18446744073709551615"),
                Some(r#"{"\"a\"=>\"1\"",NULL}"#),
            ],
            &[
                Some(""),
                Some(""),
                Some(""),
                None,
                Some("192.168.0.1"),
                None,
                Some(""),
                None,
                Some("0/0"),
                Some(""),
                Some(""),
                Some("000"),
                Some("1"),
                None,
                Some("0"),
                None,
                None,
                Some("::/0"),
                Some("-$1.00"),
                None,
                None,
                Some("{}"),
            ],
        ],
    )
    .await;
}

pub(crate) async fn t_14_json_and_jsonb(version: u32) {
    let (_, seen) = check(
        version,
        r#"CREATE TABLE j (id int PRIMARY KEY, a json, b jsonb, c json[]);
         INSERT INTO j VALUES (1, '{"a":1,  "a":1e400}', '{"a":9007199254740993,"b":1,"a":1.0}', NULL),
             (2, 'null', 'null', '{}'), (3, NULL, NULL, '{NULL,"null"}'), (4, '"\u0000"', '"\u00e4"', '{"{\"a\": null}"}'),
             (5, E'[1,\n 2]', '[9007199254740993, 1234567890123456789012345.678]', '{NULL}')"#,
        &[
            &[Some(r#"{"a":1,  "a":1e400}"#), Some(r#"{"a": 1.0, "b": 1}"#), None],
            &[Some("null"), Some("null"), Some("{}")],
            &[None, None, Some("{NULL,\"null\"}")],
            &[Some(r#""\u0000""#), Some("\"ä\""), Some(r#"{"{\"a\": null}"}"#)],
            &[Some("[1,\n 2]"), Some("[9007199254740993, 1234567890123456789012345.678]"), Some("{NULL}")],
        ],
    )
    .await;
    // NULL and JSON's own null are the same word in JSON, so the latter is listed beside the columns.
    assert_eq!(
        json(&seen),
        [
            r#"{"columns":{"id":1,"a":{"a":1,  "a":1e400},"b":{"a": 1.0, "b": 1},"c":null}}"#,
            r#"{"columns":{"id":2,"a":null,"b":null,"c":[]},"json_null":["a","b"]}"#,
            r#"{"columns":{"id":3,"a":null,"b":null,"c":{"lower":[1],"values":[null,null],"json_null":[1]}}}"#,
            r#"{"columns":{"id":4,"a":"\u0000","b":"ä","c":[{"a": null}]}}"#,
            r#"{"columns":{"id":5,"a":[1,  2],"b":[9007199254740993, 1234567890123456789012345.678],"c":[null]}}"#,
        ]
    );
}

pub(crate) async fn t_15_settings_of_the_database_do_not_leak(version: u32) {
    let database = Database::create(version).await;
    let name = database.name();
    for setting in [
        "timezone = 'Asia/Kathmandu'",
        "datestyle = 'SQL, DMY'",
        "intervalstyle = 'iso_8601'",
        "bytea_output = 'escape'",
        "extra_float_digits = 0",
    ] {
        database.run(&format!("ALTER DATABASE {name} SET {setting}")).await;
    }
    database
        .run(
            r"CREATE TABLE s (id int PRIMARY KEY, a float8, b timestamptz, c bytea, d interval);
             INSERT INTO s VALUES (1, 0.1::float8 + 0.2::float8, '2024-02-03 04:05+00', '\x00ff41', '1 day 2:03')",
        )
        .await;
    // A session that pins nothing gets what the database says.
    let (client, connection) = tokio_postgres::connect(&database.url(), NoTls).await.unwrap();
    let unpinned = tokio::spawn(connection);
    let text = "SELECT format('%s|%s|%s|%s', a, b, c, d) FROM public.s";
    let leaked: String = client.query_one(text, &[]).await.unwrap().get(0);
    assert_eq!(leaked, r"0.3|03/02/2024 09:50:00 +0545|\000\377A|P1DT2H3M");
    drop(client);
    unpinned.await.unwrap().unwrap();

    let seen = database.inserts().await;
    let expected = ["0.30000000000000004", "2024-02-03 04:05:00+00", r"\x00ff41", "1 day 02:03:00"];
    assert_eq!(seen[0].texts(), expected.map(Some));
    verify(&database, &seen, &[]).await;
}

pub(crate) async fn t_16_padding_and_empty_text(version: u32) {
    let (_, seen) = check(
        version,
        "CREATE TABLE c (id int PRIMARY KEY, a char(5), b varchar(5), c text, d char(3)[]);
         INSERT INTO c VALUES (1, 'ab', '', '', '{x}'), (2, '', NULL, NULL, NULL), (3, NULL, 'ä ', E'\\t\\n\\\\', '{}')",
        &[
            &[Some("ab   "), Some(""), Some(""), Some("{\"x  \"}")],
            &[Some("     "), None, None, None],
            &[None, Some("ä "), Some("\t\n\\"), Some("{}")],
        ],
    )
    .await;
    assert_eq!(seen[0].json, r#"{"columns":{"id":1,"a":"ab   ","b":"","c":"","d":["x  "]}}"#);
}

pub(crate) async fn t_17_bytea(version: u32) {
    let (_, seen) = check(
        version,
        r"CREATE TABLE b (id int PRIMARY KEY, a bytea, b bytea[]);
         INSERT INTO b VALUES (1, '\x00ff5c', ARRAY['\x00'::bytea, NULL]), (2, '\x', '{}'), (3, NULL, NULL)",
        &[&[Some(r"\x00ff5c"), Some(r#"{"\\x00",NULL}"#)], &[Some(r"\x"), Some("{}")], &[None, None]],
    )
    .await;
    assert_eq!(read(&seen[0], 1), Some(Value::Bytea(vec![0, 255, 92])));
    assert_eq!(Value::read(&Type::Bytea, r"\000\377A"), Err(ValueProblem::Malformed("bytea")));
    assert_eq!(Value::read(&Type::Bytea, "garbage"), Err(ValueProblem::Malformed("bytea")));
}

pub(crate) async fn domains_are_the_type_below_them(version: u32) {
    let (_, seen) = check(
        version,
        "CREATE EXTENSION hstore SCHEMA public;
         CREATE DOMAIN price AS numeric(10,2); CREATE DOMAIN higher_price AS price CHECK (VALUE > 1);
         CREATE DOMAIN numbers AS int[]; CREATE DOMAIN doc AS jsonb; CREATE DOMAIN pairs AS hstore;
         CREATE TABLE d (id int PRIMARY KEY, a higher_price, b numbers, c doc, d pairs,
             e information_schema.cardinal_number);
         INSERT INTO d VALUES (1, 1.5, '{1,2}', '{\"a\": 1}', 'a=>1', 7)",
        &[&[Some("1.50"), Some("{1,2}"), Some("{\"a\": 1}"), Some("\"a\"=>\"1\""), Some("7")]],
    )
    .await;
    assert_eq!(seen[0].json, r#"{"columns":{"id":1,"a":1.50,"b":[1,2],"c":{"a": 1},"d":{"a":"1"},"e":7}}"#);
}

pub(crate) async fn ranges_and_multiranges(version: u32) {
    let (_, seen) = check(
        version,
        "CREATE TABLE r (id int PRIMARY KEY, a int4range, b numrange, c tstzrange, d datemultirange, e tsrange);
         INSERT INTO r VALUES (1, '[1,5]', '(1.50,NaN]', '[2024-01-01 00:00+00,infinity]', '{}', NULL),
             (2, 'empty', '(,)', '(,)', '{[2024-01-01,2024-02-01),(2025-01-01,)}', '[0044-03-15 12:00 BC,)')",
        &[
            &[Some("[1,6)"), Some("(1.50,NaN]"), Some("[\"2024-01-01 00:00:00+00\",infinity]"), Some("{}"), None],
            &[
                Some("empty"),
                Some("(,)"),
                Some("(,)"),
                Some("{[2024-01-01,2024-02-01),[2025-01-02,)}"),
                Some("[\"0044-03-15 12:00:00 BC\",)"),
            ],
        ],
    )
    .await;
    assert_eq!(
        seen[0].json,
        concat!(
            r#"{"columns":{"id":1,"a":{"lower":1,"upper":6,"bounds":"[)"},"b":{"lower":1.50,"upper":"NaN","bounds":"(]"},"#,
            r#""c":{"lower":"2024-01-01T00:00:00+00:00","upper":"infinity","bounds":"[]"},"d":[],"e":null}}"#
        )
    );
}

pub(crate) async fn untouched_columns_are_marked_or_filled(version: u32) {
    let database = Database::create(version).await;
    for statement in [
        "CREATE TABLE u (id int PRIMARY KEY, big text, n int)",
        "ALTER TABLE u ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO u VALUES (1, repeat('x', 20000), 1)",
        "UPDATE u SET n = 2",
        "ALTER TABLE u REPLICA IDENTITY FULL",
        "UPDATE u SET n = 3",
        "DELETE FROM u",
    ] {
        database.run(statement).await;
    }
    let seen = database.changes().await;
    assert_eq!(seen[1].json, r#"{"columns":{"id":1,"n":2},"unchanged":["big"]}"#);
    assert!(seen[1].cells[1].unchanged);
    let row = |n| format!(r#"{{"columns":{{"id":1,"big":"{}","n":{n}}}}}"#, "x".repeat(20_000));
    assert!(seen[2].cells[1].unchanged && seen[2].json == row(3), "filled from the old row");
    assert!(seen[3].kind == 'D' && seen[3].json == row(3));
}

pub(crate) async fn every_server_encoding_arrives_as_utf8(version: u32) {
    for (encoding, text) in [
        ("EUC_CN", "\u{4e2d}"),
        ("EUC_JIS_2004", "\u{8a9e}"),
        ("EUC_JP", "\u{8a9e}\u{3042}"),
        ("EUC_KR", "\u{ac00}"),
        ("EUC_TW", "\u{4e2d}"),
        ("ISO_8859_5", "\u{436}"),
        ("ISO_8859_6", "\u{628}"),
        ("ISO_8859_7", "\u{3b1}"),
        ("ISO_8859_8", "\u{5d0}"),
        ("KOI8R", "\u{436}"),
        ("KOI8U", "\u{454}"),
        ("LATIN1", "\u{e4}\u{ff}"),
        ("LATIN2", "\u{142}"),
        ("LATIN3", "\u{127}"),
        ("LATIN4", "\u{101}"),
        ("LATIN5", "\u{131}"),
        ("LATIN6", "\u{111}"),
        ("LATIN7", "\u{173}"),
        ("LATIN8", "\u{1e0b}"),
        ("LATIN9", "\u{20ac}"),
        ("LATIN10", "\u{21b}"),
        ("SQL_ASCII", "\u{e4}"),
        ("UTF8", "\u{1f600}"),
        ("WIN866", "\u{436}"),
        ("WIN874", "\u{e01}"),
        ("WIN1250", "\u{142}"),
        ("WIN1251", "\u{436}"),
        ("WIN1252", "\u{20ac}\u{201e}"),
        ("WIN1253", "\u{3b1}"),
        ("WIN1254", "\u{131}"),
        ("WIN1255", "\u{5d0}"),
        ("WIN1256", "\u{628}"),
        ("WIN1257", "\u{173}"),
        ("WIN1258", "\u{1a1}"),
    ] {
        let database = Database::with_encoding(version, encoding).await;
        let statements =
            format!("CREATE TABLE \"t{text}\" (id int, v text); INSERT INTO \"t{text}\" VALUES (1, '{text}')");
        database.run(&statements).await;
        let seen = database.inserts().await;
        assert_eq!(
            (seen[0].table.as_str(), seen[0].texts()),
            (format!("t{text}").as_str(), vec![Some(text)]),
            "{encoding}"
        );
    }
    // A database that knows no encoding can hold any bytes. The server checks them on the way to us, and sends nothing
    // that is not UTF-8.
    let database = Database::with_encoding(version, "SQL_ASCII").await;
    database.run(r"CREATE TABLE t (id int, v text); INSERT INTO t VALUES (1, convert_from('\xff', 'SQL_ASCII'))").await;
    let error = database.try_changes().await.unwrap_err();
    assert!(error.report().contains("22021, in the change at "), "{}", error.report());
    assert!(error.report().contains("SQL_ASCII"), "{}", error.report());
}

fn read(seen: &Seen, index: usize) -> Option<Value> {
    let cell = &seen.cells[index];
    Some(Value::read(&cell.data_type, cell.text.as_deref()?).unwrap())
}
