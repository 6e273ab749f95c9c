//! A value as what it means, for whoever computes with it. Nothing of the text is lost; it can be written again.

use super::array::Array;
use super::composite::{composite_fields, hstore_pairs, write_composite, write_hstore};
use super::data_type::Type;
use super::date_time::{Date, DateTime, TimeOfDay, ZonedTime};
use super::interval::Interval;
use super::network::{Inet, MacAddr};
use super::range::Range;
use super::{ValueProblem, parse_bytea};
use crate::position::Lsn;
use std::borrow::Cow;
use std::fmt;

/// One value that is not NULL. `Display` writes text that the server reads as the same value, and for all but the
/// floating-point numbers the server's own text.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Bool(bool),
    /// `smallint`, `integer`, `bigint`.
    Int(i64),
    Oid(u32),
    Float4(f32),
    Float8(f64),
    Numeric(Numeric),
    Text(String),
    Bytea(Vec<u8>),
    Date(Date),
    Time(TimeOfDay),
    TimeTz(ZonedTime),
    Timestamp(DateTime),
    TimestampTz(DateTime),
    Interval(Interval),
    Uuid([u8; 16]),
    /// JSON text, byte for byte.
    Json(String),
    Inet(Inet),
    MacAddr(MacAddr),
    /// Zeros and ones.
    Bits(String),
    Lsn(Lsn),
    Hstore(Vec<(String, Option<String>)>),
    Array {
        delimiter: char,
        array: Array<Value>,
    },
    Range(Box<Range<Value>>),
    Multirange(Vec<Range<Value>>),
    Composite(Vec<Option<Value>>),
}

/// A `numeric` of up to 131,072 digits before the point and 16,383 behind it: more than any type of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Numeric {
    NegativeInfinity,
    /// All digits, with the scale that they were stored with: `1.10` and `1.1` are equal and not the same.
    Finite(String),
    Infinity,
    NaN,
}

impl Value {
    /// Reads the text of a type as the server writes it under the pinned settings.
    pub fn read(data_type: &Type, text: &str) -> Result<Value, ValueProblem> {
        let malformed = ValueProblem::Malformed(data_type.name());
        match data_type {
            Type::Array { element, delimiter } => {
                let array = Array::parse(text, *delimiter).ok_or(malformed)?;
                Ok(Value::Array { delimiter: *delimiter, array: array.try_map(|text| Value::read(element, &text))? })
            }
            Type::Range(bound) => {
                let range = Range::parse(text).ok_or(malformed)?;
                Ok(Value::Range(Box::new(range.try_map(|text| Value::read(bound, &text))?)))
            }
            Type::Multirange(bound) => {
                let ranges = Range::parse_multirange(text).ok_or(malformed)?;
                let read = |range: Range<Cow<'_, str>>| range.try_map(|text| Value::read(bound, &text));
                ranges.into_iter().map(read).collect::<Result<_, _>>().map(Value::Multirange)
            }
            Type::Composite(types) => {
                let fields = fields_of(types, text).ok_or(malformed)?;
                let read = |(text, data_type): (Option<Cow<'_, str>>, &Type)| {
                    text.map(|text| Value::read(data_type, &text)).transpose()
                };
                fields.into_iter().zip(types.iter()).map(read).collect::<Result<_, _>>().map(Value::Composite)
            }
            Type::ByName(taken_for) => Value::read(taken_for, text).or_else(|_| Ok(Value::Text(text.to_owned()))),
            plain => read_plain(plain, text).ok_or(malformed),
        }
    }
}

impl Numeric {
    /// Reads `NaN`, `Infinity`, `-Infinity`, `-12345.6789`.
    pub fn parse(text: &str) -> Option<Numeric> {
        Some(match text {
            "NaN" => Numeric::NaN,
            "Infinity" => Numeric::Infinity,
            "-Infinity" => Numeric::NegativeInfinity,
            _ => Numeric::Finite(
                Some(text).filter(|text| is_json_number(text) && !text.contains(['e', 'E']))?.to_owned(),
            ),
        })
    }
}

/// The fields of a composite, as many as it has types.
pub(crate) fn fields_of<'a>(types: &[Type], text: &'a str) -> Option<Vec<Option<Cow<'a, str>>>> {
    if types.is_empty() {
        return (text == "()").then(Vec::new);
    }
    composite_fields(text).filter(|fields| fields.len() == types.len())
}

/// Whether the text is a number by the grammar of JSON (RFC 8259, section 6).
pub(crate) fn is_json_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|exponent| digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent)))
}

/// Whether the text is a floating-point number that is not finite, as the server writes it.
pub(crate) fn is_not_finite(text: &str) -> bool {
    matches!(text, "NaN" | "Infinity" | "-Infinity")
}

/// Reads a type that has no other types within.
fn read_plain(data_type: &Type, text: &str) -> Option<Value> {
    let integer = || Some(text).filter(|text| is_json_number(text));
    let float = || Some(text).filter(|text| is_json_number(text) || is_not_finite(text));
    Some(match data_type {
        Type::Bool => Value::Bool(bool_of(text)?),
        Type::Int2 => Value::Int(i64::from(integer()?.parse::<i16>().ok()?)),
        Type::Int4 => Value::Int(i64::from(integer()?.parse::<i32>().ok()?)),
        Type::Int8 => Value::Int(integer()?.parse().ok()?),
        Type::Oid => Value::Oid(integer()?.parse().ok()?),
        Type::Float4 => {
            Value::Float4(float()?.parse().ok().filter(|read: &f32| read.is_finite() != is_not_finite(text))?)
        }
        Type::Float8 => {
            Value::Float8(float()?.parse().ok().filter(|read: &f64| read.is_finite() != is_not_finite(text))?)
        }
        Type::Numeric => Value::Numeric(Numeric::parse(text)?),
        Type::Bytea => Value::Bytea(parse_bytea(text.as_bytes()).ok()?),
        Type::Date => Value::Date(Date::parse(text)?),
        Type::Time => Value::Time(TimeOfDay::parse(text)?),
        Type::TimeTz => Value::TimeTz(ZonedTime::parse(text)?),
        Type::Timestamp => Value::Timestamp(DateTime::parse(text)?),
        Type::TimestampTz => Value::TimestampTz(DateTime::parse_zoned(text)?),
        Type::Interval => Value::Interval(Interval::parse(text)?),
        Type::Uuid => Value::Uuid(uuid(text)?),
        Type::Json => Value::Json(is_json(text).then(|| text.to_owned())?),
        Type::Inet => Value::Inet(Inet::parse(text)?),
        Type::MacAddr => Value::MacAddr(MacAddr::parse(text)?),
        Type::Bits => Value::Bits(text.bytes().all(|bit| matches!(bit, b'0' | b'1')).then(|| text.to_owned())?),
        Type::Lsn => Value::Lsn(text.parse().ok()?),
        Type::Hstore => Value::Hstore(hstore(text)?),
        _ => Value::Text(text.to_owned()),
    })
}

pub(crate) fn bool_of(text: &str) -> Option<bool> {
    match text {
        "t" => Some(true),
        "f" => Some(false),
        _ => None,
    }
}

/// Whether the text is one JSON value. Neither depth nor the size of numbers has a limit here.
pub(crate) fn is_json(text: &str) -> bool {
    serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok()
}

/// 32 hexadecimal digits, with `-` where the server writes one.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let lengths = text.split('-').map(str::len);
    if !lengths.eq([8, 4, 4, 4, 12]) {
        return None;
    }
    let digits = text.replace('-', "");
    data_encoding::HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok()?.try_into().ok()
}

fn hstore(text: &str) -> Option<Vec<(String, Option<String>)>> {
    let pairs = hstore_pairs(text)?.into_iter();
    Some(pairs.map(|(key, value)| (key.into_owned(), value.map(Cow::into_owned))).collect())
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        match self {
            Value::Bool(value) => return f.write_str(if *value { "t" } else { "f" }),
            Value::Int(value) => return value.fmt(f),
            Value::Oid(value) => return value.fmt(f),
            Value::Float4(value) => return write_float(f, f64::from(*value), value),
            Value::Float8(value) => return write_float(f, *value, value),
            Value::Numeric(value) => return value.fmt(f),
            Value::Text(text) | Value::Json(text) | Value::Bits(text) => return f.write_str(text),
            Value::Bytea(bytes) => return write!(f, "\\x{}", data_encoding::HEXLOWER.encode(bytes)),
            Value::Date(date) => return date.fmt(f),
            Value::Time(time) => return time.fmt(f),
            Value::TimeTz(time) => return time.fmt(f),
            Value::Timestamp(instant) => return instant.write(f, ' ', ""),
            Value::TimestampTz(instant) => return instant.write(f, ' ', "+00"),
            Value::Interval(interval) => return interval.fmt(f),
            Value::Uuid(bytes) => return write_uuid(f, bytes),
            Value::Inet(inet) => return inet.fmt(f),
            Value::MacAddr(address) => return address.fmt(f),
            Value::Lsn(lsn) => return lsn.fmt(f),
            Value::Hstore(pairs) => write_hstore(&mut out, pairs),
            Value::Array { delimiter, array } => array.write_text(&mut out, *delimiter, Value::to_string),
            Value::Range(range) => range.write_text(&mut out, Value::to_string),
            Value::Multirange(ranges) => write_multirange(&mut out, ranges),
            Value::Composite(fields) => {
                write_composite(&mut out, fields.iter().map(|field| Some(Cow::Owned(field.as_ref()?.to_string()))));
            }
        }
        f.write_str(&out)
    }
}

impl fmt::Display for Numeric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Numeric::NegativeInfinity => "-Infinity",
            Numeric::Finite(digits) => digits,
            Numeric::Infinity => "Infinity",
            Numeric::NaN => "NaN",
        })
    }
}

/// The shortest digits that read as the same number, with an exponent.
fn write_float(f: &mut fmt::Formatter<'_>, value: f64, shortest: &impl fmt::LowerExp) -> fmt::Result {
    match value {
        f64::INFINITY => f.write_str("Infinity"),
        f64::NEG_INFINITY => f.write_str("-Infinity"),
        _ if value.is_nan() => f.write_str("NaN"),
        _ => shortest.fmt(f),
    }
}

fn write_uuid(f: &mut fmt::Formatter<'_>, bytes: &[u8; 16]) -> fmt::Result {
    for (byte, index) in bytes.iter().zip(0..) {
        write!(f, "{}{byte:02x}", if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" })?;
    }
    Ok(())
}

fn write_multirange(out: &mut String, ranges: &[Range<Value>]) {
    out.push('{');
    for (range, index) in ranges.iter().zip(0..) {
        if index > 0 {
            out.push(',');
        }
        range.write_text(out, Value::to_string);
    }
    out.push('}');
}
