//! Column values as the server writes them under the session settings that every connection of ours pins
//! (`datestyle = ISO`, `timezone = UTC`, `bytea_output = hex`, `client_encoding = UTF8`).
//!
//! Here is what routing needs: a column read as one type, without a look at what the log says of it. [`Type`] and
//! [`Value`] are for every other reader: any type, typed; `docs/values.md` has the rules.
#![deny(clippy::indexing_slicing, clippy::as_conversions, clippy::arithmetic_side_effects)]

mod array;
mod builtin;
mod composite;
mod data_type;
mod date_time;
mod interval;
mod network;
mod quoted;
mod range;
pub(crate) mod typed;

pub use array::{Array, Dimension};
pub use composite::{HstorePairs, composite_fields, hstore_pairs};
pub use data_type::Type;
pub use date_time::{Date, DateTime, Extended, TimeOfDay, ZonedTime};
pub use interval::{Interval, Span};
pub use network::{Inet, MacAddr};
pub use range::Range;
pub use typed::{Numeric, Value};

use crate::pgoutput::TupleValue;
use crate::time::Timestamp;
use std::fmt;

/// What the bytes of a column are, by the oid of its type (`pg_type.dat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// `json`, `jsonb`: JSON text.
    Json,
    /// `bytea`: bytes behind `\x` in hexadecimal.
    Bytea,
    /// Every other type: text that means what its type says.
    Text,
}

/// Why a value cannot be taken. The value itself is never told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueProblem {
    Null,
    /// Stored out of line and not touched by the update, so the log does not have it.
    Unchanged,
    /// In binary form, which was not asked for.
    Binary,
    NotUtf8,
    NotInteger,
    NotTimestamp,
    NotBytea,
    NotStageState,
    NotJsonObject,
    /// Not what the server writes for this type.
    Malformed(&'static str),
}

impl ValueKind {
    pub fn of(type_oid: u32) -> ValueKind {
        match type_oid {
            114 | 3802 => ValueKind::Json,
            17 => ValueKind::Bytea,
            _ => ValueKind::Text,
        }
    }
}

impl fmt::Display for ValueProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ValueProblem::Malformed(type_name) => return write!(f, "does not read as {type_name}"),
            ValueProblem::Null => "is NULL",
            ValueProblem::Unchanged => "is not in the log, because the update did not touch it",
            ValueProblem::Binary => "came in binary form",
            ValueProblem::NotUtf8 => "is not valid UTF-8",
            ValueProblem::NotInteger => "is not an integer in range",
            ValueProblem::NotTimestamp => "is not a timestamp with time zone",
            ValueProblem::NotBytea => "is not hexadecimal bytea",
            ValueProblem::NotStageState => "is not a stage state",
            ValueProblem::NotJsonObject => "is not a JSON object",
        })
    }
}

/// The value of a column as its type says; `None` for NULL.
pub fn typed(data_type: &Type, value: TupleValue<'_>) -> Result<Option<Value>, ValueProblem> {
    text(value)?.map(|text| Value::read(data_type, text)).transpose()
}

/// The bytes of a column; `None` for NULL.
pub fn bytes(value: TupleValue<'_>) -> Result<Option<&[u8]>, ValueProblem> {
    match value {
        TupleValue::Null => Ok(None),
        TupleValue::Text(bytes) => Ok(Some(bytes)),
        TupleValue::Unchanged => Err(ValueProblem::Unchanged),
        TupleValue::Binary(_) => Err(ValueProblem::Binary),
    }
}

/// The text of a column; `None` for NULL.
pub fn text(value: TupleValue<'_>) -> Result<Option<&str>, ValueProblem> {
    match bytes(value)? {
        None => Ok(None),
        Some(bytes) => std::str::from_utf8(bytes).map(Some).map_err(|_| ValueProblem::NotUtf8),
    }
}

/// The text of a column that is never NULL.
pub fn required_text(value: TupleValue<'_>) -> Result<&str, ValueProblem> {
    text(value)?.ok_or(ValueProblem::Null)
}

/// A `smallint`, `integer` or `bigint` that is never NULL, in the range of `N`.
pub fn integer<N: std::str::FromStr>(value: TupleValue<'_>) -> Result<N, ValueProblem> {
    required_text(value)?.parse().map_err(|_| ValueProblem::NotInteger)
}

/// A `timestamptz`; `None` for NULL.
pub fn timestamp(value: TupleValue<'_>) -> Result<Option<Timestamp>, ValueProblem> {
    match text(value)? {
        None => Ok(None),
        Some(text) => parse_timestamptz(text).map(Some).ok_or(ValueProblem::NotTimestamp),
    }
}

/// Reads `\x` and pairs of hexadecimal digits.
pub fn parse_bytea(text: &[u8]) -> Result<Vec<u8>, ValueProblem> {
    let digits = text.strip_prefix(b"\\x").ok_or(ValueProblem::NotBytea)?;
    data_encoding::HEXLOWER_PERMISSIVE.decode(digits).map_err(|_| ValueProblem::NotBytea)
}

/// Reads a `timestamptz` as [`DateTime::parse_zoned`] does; `infinity` and `-infinity` are the ends of time. The
/// server's last 29 years, from 294247 on, are beyond [`Timestamp`] and count as `infinity`.
pub fn parse_timestamptz(text: &str) -> Option<Timestamp> {
    Some(match DateTime::parse_zoned(text)?.0 {
        Extended::NegativeInfinity => Timestamp(i64::MIN),
        Extended::Finite(micros) => Timestamp::from_postgres_micros(micros),
        Extended::Infinity => Timestamp(i64::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_is_read_as_the_server_writes_it() {
        // SELECT t, (extract(epoch FROM t) * 1000000)::bigint on PostgreSQL 15 under the pinned settings.
        for (text, micros) in [
            ("1970-01-01 00:00:00+00", 0),
            ("2024-02-29 04:05:06.789+00", 1_709_179_506_789_000),
            ("1999-12-31 23:59:59.999999+00", 946_684_799_999_999),
            ("0001-01-01 00:00:00+00", -62_135_596_800_000_000),
            ("0044-03-15 12:00:00+00 BC", -63_517_780_800_000_000),
            ("4714-11-24 00:00:00+00 BC", -210_866_803_200_000_000),
            ("2024-02-03 09:35:06+05:30", 1_706_933_106_000_000),
            ("2024-02-02 20:05:06-08", 1_706_933_106_000_000),
            ("1880-01-01 00:19:32+00:19:32", -2_840_140_800_000_000),
            ("infinity", i64::MAX),
            ("-infinity", i64::MIN),
        ] {
            assert_eq!(parse_timestamptz(text), Some(Timestamp(micros)), "{text}");
        }
    }

    #[test]
    fn the_last_years_of_the_server_count_as_infinity() {
        assert_eq!(parse_timestamptz("294276-12-31 23:59:59.999999+00"), Some(Timestamp(i64::MAX)));
    }

    #[test]
    fn what_is_no_timestamp_is_refused() {
        for text in [
            "",
            "2024-02-03",
            "2024-02-03 04:05:06",
            "2024-13-03 04:05:06+00",
            "2024-02-03 04:05+00",
            "2024-02-03 04:05:06.1234567+00",
            "2024-02-03 04:05:06.+00:00:00:00",
            "24-02-03 04:05:06+00",
            "2024-02-03T04:05:06+00",
            "9999999-02-03 04:05:06+00",
            "2024-02-03 04:05:06+0é",
        ] {
            assert_eq!(parse_timestamptz(text), None, "{text}");
        }
    }

    #[test]
    fn bytea_is_read_from_hexadecimal() {
        assert_eq!(parse_bytea(b"\\x00ff1A"), Ok(vec![0, 255, 26]));
        assert_eq!(parse_bytea(b"\\x"), Ok(vec![]));
        for text in [&b"00ff"[..], b"\\x0", b"\\xzz", b""] {
            assert_eq!(parse_bytea(text), Err(ValueProblem::NotBytea));
        }
    }

    #[test]
    fn an_integer_out_of_range_is_refused() {
        assert_eq!(integer::<u32>(TupleValue::Text(b"7")), Ok(7));
        assert_eq!(integer::<u32>(TupleValue::Text(b"-1")), Err(ValueProblem::NotInteger));
        assert_eq!(integer::<i64>(TupleValue::Null), Err(ValueProblem::Null));
        assert_eq!(integer::<i64>(TupleValue::Unchanged), Err(ValueProblem::Unchanged));
        assert_eq!(text(TupleValue::Text(b"\xff")), Err(ValueProblem::NotUtf8));
    }
}
