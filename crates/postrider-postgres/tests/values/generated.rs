//! Values that nobody thought of: made from a seed, stored, read from the log, and held against the server.

use std::sync::Arc;

use fastrand::Rng;
use postrider_core::json::write_string;
use postrider_core::value::{Array, Dimension, Type, Value};

use crate::database::Database;
use crate::oracle::verify;

const ROWS: i32 = 120;
const SEED: u64 = 0x504f_5354;
/// What quoting goes wrong on.
const LETTERS: [&str; 26] = [
    "a", "B", "ä", "語", "😀", " ", "  ", "\t", "\n", "\r", "\u{b}", "\u{c}", "\u{1}", "\u{7f}", "\"", "\\", "'", "{",
    "}", "(", ")", "[", ",", ";", "=>", "NULL",
];

/// A type, and an expression of it.
type Maker = (&'static str, fn(&mut Rng) -> String);

const MAKERS: [Maker; 36] = [
    ("boolean", |rng| rng.bool().to_string()),
    ("int2", |rng| cast(rng.i16(..), "int2")),
    ("int4", |rng| cast(rng.i32(..), "int4")),
    ("int8", |rng| cast(rng.i64(..), "int8")),
    ("oid", |rng| cast(rng.u32(..), "oid")),
    ("float4", |rng| cast(format_args!("{:e}", f32::from_bits(rng.u32(..))), "float4")),
    ("float8", |rng| cast(float8(rng), "float8")),
    ("numeric", |rng| cast(numeric(rng), "numeric")),
    ("numeric(30,5)", |rng| cast(format_args!("{}.{:05}", rng.i64(..), rng.u32(..100_000)), "numeric(30,5)")),
    ("text", |rng| literal(&text(rng))),
    ("char(7)", |rng| format!("{}::char(7)", literal(&text(rng).chars().take(7).collect::<String>()))),
    ("name", |rng| format!("{}::name", literal(&text(rng)))),
    ("bytea", |rng| cast(format_args!("\\x{}", hex(rng, 20)), "bytea")),
    ("date", date),
    ("time", |rng| cast(clock(rng), "time")),
    ("timetz", |rng| format!("'{}{}'::timetz", clock(rng), offset(rng))),
    ("timestamp", |rng| instant(rng, "timestamp")),
    ("timestamptz", |rng| instant(rng, "timestamptz")),
    ("interval", interval),
    ("uuid", |rng| cast(format_args!("{:032x}", rng.u128(..)), "uuid")),
    ("json", |rng| format!("{}::json", literal(&json(rng, 3)))),
    ("jsonb", |rng| format!("{}::jsonb", literal(&json(rng, 3)))),
    ("inet", inet),
    ("macaddr8", |rng| cast(format_args!("{:016x}", rng.u64(..)), "macaddr8")),
    ("varbit", |rng| cast(format_args!("{:b}", rng.u64(..)), "varbit")),
    ("pg_lsn", |rng| cast(format_args!("{:X}/{:X}", rng.u32(..), rng.u32(..)), "pg_lsn")),
    ("text[]", |rng| array(rng, "text[]", |rng| Value::Text(text(rng)))),
    ("int4[]", |rng| array(rng, "int4[]", |rng| Value::Int(i64::from(rng.i32(..))))),
    ("float8[]", |rng| array(rng, "float8[]", |rng| Value::Text(float8(rng)))),
    ("timestamptz[]", |rng| format!("ARRAY[{}, NULL, {}]", instant(rng, "timestamptz"), instant(rng, "timestamptz"))),
    ("int8range", |rng| range(rng, "int8range", |rng| rng.i64(-1_000_000..1_000_000).to_string())),
    ("numrange", |rng| range(rng, "numrange", |rng| cast(format_args!("{}.{}", rng.i32(..), rng.u32(..)), "numeric"))),
    ("tsrange", |rng| range(rng, "tsrange", |rng| instant(rng, "timestamp"))),
    ("int4multirange", |rng| {
        let bound = |rng: &mut Rng| rng.i32(-10_000..10_000).to_string();
        format!("int4multirange({}, {})", range(rng, "int4range", bound), range(rng, "int4range", bound))
    }),
    ("hstore", |rng| {
        let keys = [text(rng), text(rng), text(rng)].map(|key| literal(&key)).join(",");
        format!("hstore(ARRAY[{keys}], ARRAY[{}, NULL, {}])", literal(&text(rng)), literal(&text(rng)))
    }),
    ("pair", |rng| format!("ROW({}, {}, NULL)::pair", literal(&text(rng)), rng.i32(..))),
];

pub(crate) async fn generated_values_are_what_the_server_says(version: u32) {
    let database = Database::create(version).await;
    database.run("CREATE EXTENSION hstore SCHEMA public; CREATE TYPE pair AS (a text, b int, c boolean)").await;
    let mut rng = Rng::with_seed(SEED);
    for ((sql_type, make), index) in MAKERS.iter().zip(0..) {
        let rows: Vec<String> = (0..ROWS).map(|id| format!("({id}, {})", make(&mut rng))).collect();
        let table = format!("g{index}");
        let rows = rows.join(",\n");
        database.run(&format!("CREATE TABLE {table} (id int, v {sql_type}); INSERT INTO {table} VALUES {rows}")).await;
    }
    let seen = database.inserts().await;
    assert_eq!(seen.len(), MAKERS.len() * usize::try_from(ROWS).unwrap());
    let pair = Type::Composite(Arc::new([Type::Text, Type::Int4, Type::Bool]));
    let known = format!("g{}.v", MAKERS.len() - 1);
    verify(&database, &seen, &[(known.as_str(), pair)]).await;
}

fn cast(text: impl std::fmt::Display, sql_type: &str) -> String {
    format!("'{text}'::{sql_type}")
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn text(rng: &mut Rng) -> String {
    (0..rng.usize(..6)).map(|_| LETTERS[rng.usize(..LETTERS.len())]).collect()
}

fn hex(rng: &mut Rng, most: usize) -> String {
    (0..rng.usize(..most)).map(|_| format!("{:02x}", rng.u8(..))).collect()
}

fn float8(rng: &mut Rng) -> String {
    match rng.u8(..6) {
        0 => ["NaN", "Infinity", "-Infinity", "-0", "5e-324", "0.1"][rng.usize(..6)].to_owned(),
        1 => (rng.i32(-1000..1000) / 8).to_string(),
        _ => format!("{:e}", f64::from_bits(rng.u64(..))),
    }
}

fn numeric(rng: &mut Rng) -> String {
    let digits = |rng: &mut Rng, least, most| -> String {
        (0..rng.usize(least..most)).map(|_| char::from(b'0' + rng.u8(..10))).collect()
    };
    match rng.u8(..10) {
        0 => ["NaN", "Infinity", "-Infinity", "0", "0.000"][rng.usize(..5)].to_owned(),
        1 => format!("{}e{}", rng.i32(..), rng.i16(-200..200)),
        _ => format!("{}{}.{}", if rng.bool() { "-" } else { "" }, digits(rng, 1, 60), digits(rng, 1, 40)),
    }
}

fn date(rng: &mut Rng) -> String {
    match rng.u8(..10) {
        0 => "'infinity'::date".to_owned(),
        1 => "'-infinity'::date".to_owned(),
        2..6 => format!("date '2000-01-01' + {}", rng.i32(-800_000..200_000)),
        // From 4714-11-24 BC to 5874897-12-31.
        _ => format!("date '2000-01-01' + {}", rng.i32(-2_451_507..2_145_031_949)),
    }
}

fn instant(rng: &mut Rng, sql_type: &str) -> String {
    let start = format!("{sql_type} '2000-01-01 00:00:00'");
    match rng.u8(..10) {
        0 => format!("'infinity'::{sql_type}"),
        1 => format!("'-infinity'::{sql_type}"),
        2..6 => format!("{start} + '{} seconds'::interval", rng.i32(..)),
        // From 4714-11-24 BC to 294276-12-31.
        _ => {
            let micros = rng.i64(-211_813_488_000_000_000..9_223_371_331_200_000_000);
            let (days, rest) = (micros / 86_400_000_000, micros % 86_400_000_000);
            format!("{start} + '{days} days {}'::interval", span(rest))
        }
    }
}

fn clock(rng: &mut Rng) -> String {
    if rng.u8(..10) == 0 {
        return "24:00:00".to_owned();
    }
    let fraction = ["", ".5", ".000001", ".123456"][rng.usize(..4)];
    format!("{:02}:{:02}:{:02}{fraction}", rng.u8(..24), rng.u8(..60), rng.u8(..60))
}

fn offset(rng: &mut Rng) -> String {
    let sign = if rng.bool() { '+' } else { '-' };
    match rng.u8(..3) {
        0 => format!("{sign}{:02}", rng.u8(..16)),
        1 => format!("{sign}{:02}:{:02}", rng.u8(..16), rng.u8(..60)),
        _ => format!("{sign}{:02}:{:02}:{:02}", rng.u8(..16), rng.u8(..60), rng.u8(..60)),
    }
}

/// Hours stay in 32 bits: PostgreSQL 14 does not read its own text of more.
fn interval(rng: &mut Rng) -> String {
    let part = |rng: &mut Rng| if rng.bool() { 0 } else { rng.i32(..) >> rng.u8(..31) };
    let (months, days) = (part(rng), part(rng));
    let micros = if rng.bool() { 0 } else { rng.i64(..) >> rng.u8(1..60) };
    format!("'{months} mons {days} days {}'::interval", span(micros))
}

/// Hours, minutes and seconds: PostgreSQL 14 takes no more than 32 bits of microseconds.
fn span(micros: i64) -> String {
    let (sign, seconds) = (if micros < 0 { "-" } else { "+" }, micros.unsigned_abs() / 1_000_000);
    let fraction = micros.unsigned_abs() % 1_000_000;
    format!("{sign}{}:{:02}:{:02}.{fraction:06}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn inet(rng: &mut Rng) -> String {
    if rng.bool() {
        let [a, b, c, d] = rng.u32(..).to_be_bytes();
        return format!("'{a}.{b}.{c}.{d}/{}'::inet", rng.u8(..33));
    }
    // Groups of zeros, so that there is something to leave out.
    let groups: Vec<String> =
        (0..8).map(|_| if rng.bool() { 0 } else { rng.u16(..) }).map(|group| format!("{group:x}")).collect();
    format!("'{}/{}'::inet", groups.join(":"), rng.u8(..129))
}

fn json(rng: &mut Rng, depth: u8) -> String {
    let members = |rng: &mut Rng| rng.usize(..3);
    match rng.u8(if depth == 0 { 0..4 } else { 0..6 }) {
        0 => ["null", "true", "false", "-0", "1e300"][rng.usize(..5)].to_owned(),
        1 => rng.i64(..).to_string(),
        2 => format!("{}.{:03}", rng.i32(1..), rng.u16(..1000)),
        3 => quoted(&text(rng)),
        4 => format!("[{}]", (0..members(rng)).map(|_| json(rng, depth - 1)).collect::<Vec<_>>().join(", ")),
        _ => {
            let member = |rng: &mut Rng| format!("{} : {}", quoted(&text(rng)), json(rng, depth - 1));
            format!("{{{}}}", (0..members(rng)).map(|_| member(rng)).collect::<Vec<_>>().join(","))
        }
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::new();
    write_string(&mut out, text);
    out
}

/// Of up to three dimensions that start anywhere.
fn array(rng: &mut Rng, sql_type: &str, element: impl Fn(&mut Rng) -> Value) -> String {
    let lower = |rng: &mut Rng| if rng.bool() { 1 } else { rng.i32(-5..5) };
    let dimensions: Vec<Dimension> =
        (0..rng.usize(..4)).map(|_| Dimension { lower: lower(rng), length: rng.usize(1..4) }).collect();
    let count = if dimensions.is_empty() { 0 } else { dimensions.iter().map(|dimension| dimension.length).product() };
    let elements = (0..count).map(|_| (rng.u8(..4) > 0).then(|| element(rng))).collect();
    format!(
        "{}::{sql_type}",
        literal(&Value::Array { delimiter: ',', array: Array { dimensions, elements } }.to_string())
    )
}

fn range(rng: &mut Rng, name: &str, bound: impl Fn(&mut Rng) -> String) -> String {
    let bounds = ["[)", "(]", "[]", "()"][rng.usize(..4)];
    let (a, b) = (bound(rng), bound(rng));
    match rng.u8(..6) {
        0 => format!("{name}(NULL, {a}, '{bounds}')"),
        1 => format!("{name}({a}, NULL, '{bounds}')"),
        _ => format!("{name}(least({a}, {b}), greatest({a}, {b}), '{bounds}')"),
    }
}
