//! Values and rows as JSON, without losing anything: `docs/values.md` has the rules and their reasons.
//!
//! A value is what the server's own `to_json` makes of it under the pinned settings. It is something else only where
//! `to_json` loses something (the bounds of an array), or leaves a structure in text (ranges).
#![deny(clippy::indexing_slicing, clippy::as_conversions, clippy::arithmetic_side_effects)]

use crate::change::Row;
use crate::pgoutput::{OldTuple, TupleValue};
use crate::relation::{Relation, Relations};
use crate::shape::ShapeError;
use crate::value::typed::{bool_of, fields_of, is_json, is_json_number, is_not_finite};
use crate::value::{self, Array, Numeric, Range, Type, Value, ValueProblem, hstore_pairs};
use std::borrow::Cow;
use std::sync::Arc;

/// How the rows of a table become JSON; made once for each version of a relation.
#[derive(Debug, Clone)]
pub struct RowShape {
    /// `schema.table`, for errors.
    table: Arc<str>,
    columns: Vec<Column>,
}

#[derive(Debug, Clone)]
struct Column {
    name: String,
    /// The name in quotes.
    quoted: String,
    data_type: Type,
    key: bool,
}

/// A row while it is written: its columns, and beside them what the columns cannot say.
#[derive(Debug, Default)]
struct Lists {
    unchanged: Vec<usize>,
    json_null: Vec<usize>,
}

impl RowShape {
    /// Takes the types from `relations` as they are known where the relation stands.
    pub fn of(relation: &Relation, relations: &Relations) -> RowShape {
        let column = |column: &crate::relation::Column| Column {
            name: column.name.clone(),
            quoted: quoted(&column.name),
            data_type: Type::in_force(column.type_oid, relations),
            key: column.key,
        };
        RowShape {
            table: format!("{}.{}", relation.schema, relation.name).into(),
            columns: relation.columns.iter().map(column).collect(),
        }
    }

    /// Writes the new version of a row: `{"columns":{…}}`, and where there are such columns the lists `"unchanged"` (they
    /// are not in the log, and not among the columns) and `"json_null"` (their `null` is the value of JSON, not NULL).
    /// After an error `out` is as before.
    pub fn write_new(&self, out: &mut String, new: Row<'_>) -> Result<(), ShapeError> {
        self.write(out, self.columns.iter().zip(new.columns()).zip(0..))
    }

    /// Writes what the log says of the version before, in the same form: the whole row, or the columns of the replica
    /// identity alone. The others are not NULL but unknown, and left out.
    pub fn write_old(&self, out: &mut String, old: OldTuple<'_>) -> Result<(), ShapeError> {
        let all = matches!(old, OldTuple::Full(_));
        let columns = self.columns.iter().zip(old.tuple().columns()).zip(0..);
        self.write(out, columns.filter(|((column, _), _)| all || column.key))
    }

    fn write<'a, 'c>(
        &'c self,
        out: &mut String,
        values: impl Iterator<Item = ((&'c Column, TupleValue<'a>), usize)>,
    ) -> Result<(), ShapeError> {
        let start = out.len();
        let mut lists = Lists::default();
        let mut separator = "";
        out.push_str("{\"columns\":{");
        for ((column, value), index) in values {
            if value == TupleValue::Unchanged {
                lists.unchanged.push(index);
                continue;
            }
            out.push_str(separator);
            separator = ",";
            out.push_str(&column.quoted);
            out.push(':');
            match write_column(out, &column.data_type, value) {
                Ok(is_json_null) => lists.json_null.extend(is_json_null.then_some(index)),
                Err(problem) => {
                    out.truncate(start);
                    let (table, column) = (Arc::clone(&self.table), column.name.clone());
                    return Err(ShapeError { table, column, problem });
                }
            }
        }
        out.push('}');
        self.write_list(out, "unchanged", &lists.unchanged);
        self.write_list(out, "json_null", &lists.json_null);
        out.push('}');
        Ok(())
    }

    fn write_list(&self, out: &mut String, name: &str, indexes: &[usize]) {
        if indexes.is_empty() {
            return;
        }
        let names: Vec<&str> =
            indexes.iter().filter_map(|index| Some(self.columns.get(*index)?.quoted.as_str())).collect();
        out.push_str(&format!(",\"{name}\":[{}]", names.join(",")));
    }
}

/// Writes a value that is not NULL. After an error `out` is as before.
pub fn write_value(out: &mut String, data_type: &Type, text: &str) -> Result<(), ValueProblem> {
    let start = out.len();
    let written = write_typed(out, data_type, text);
    if written.is_err() {
        out.truncate(start);
    }
    written
}

/// Writes text in quotes, with no more escapes than JSON asks for (RFC 8259, section 7).
pub fn write_string(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    while let Some((plain, after)) = rest.find(needs_escape).and_then(|at| rest.split_at_checked(at)) {
        out.push_str(plain);
        let mut chars = after.chars();
        match chars.next() {
            Some('"') => out.push_str("\\\""),
            Some('\\') => out.push_str("\\\\"),
            Some('\n') => out.push_str("\\n"),
            Some('\r') => out.push_str("\\r"),
            Some('\t') => out.push_str("\\t"),
            Some('\u{8}') => out.push_str("\\b"),
            Some('\u{c}') => out.push_str("\\f"),
            Some(control) => out.push_str(&format!("\\u{:04x}", u32::from(control))),
            None => {}
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
    out.push('"');
}

/// Whether this is JSON's own `null` in a column of `json` or `jsonb`, which is not NULL.
pub fn is_json_null(data_type: &Type, text: &str) -> bool {
    *data_type == Type::Json && text.trim_matches([' ', '\t', '\n', '\r']) == "null"
}

/// Says whether the column holds JSON's own `null`.
fn write_column(out: &mut String, data_type: &Type, value: TupleValue<'_>) -> Result<bool, ValueProblem> {
    match value::text(value)? {
        None => {
            out.push_str("null");
            Ok(false)
        }
        Some(text) => {
            write_typed(out, data_type, text)?;
            Ok(is_json_null(data_type, text))
        }
    }
}

fn write_typed(out: &mut String, data_type: &Type, text: &str) -> Result<(), ValueProblem> {
    let malformed = ValueProblem::Malformed(data_type.name());
    match data_type {
        Type::Text => write_string(out, text),
        Type::Int2 | Type::Int4 | Type::Int8 => {
            Value::read(data_type, text)?;
            out.push_str(text);
        }
        Type::Float4 | Type::Float8 if is_json_number(text) => out.push_str(text),
        Type::Float4 | Type::Float8 if is_not_finite(text) => write_string(out, text),
        Type::Float4 | Type::Float8 => return Err(malformed),
        Type::Numeric => match Numeric::parse(text).ok_or(malformed)? {
            Numeric::Finite(digits) => out.push_str(&digits),
            special => write_string(out, &special.to_string()),
        },
        Type::Bool => out.push_str(if bool_of(text).ok_or(malformed)? { "true" } else { "false" }),
        Type::Json => write_json(out, text)?,
        Type::Timestamp | Type::TimestampTz => write_timestamp(out, data_type, text)?,
        Type::Hstore => write_hstore(out, text)?,
        Type::Array { element, delimiter } => {
            write_array(out, element, &Array::parse(text, *delimiter).ok_or(malformed)?)?;
        }
        Type::Range(bound) => write_range(out, bound, Range::parse(text).ok_or(malformed)?)?,
        Type::Multirange(bound) => {
            let ranges = Range::parse_multirange(text).ok_or(malformed)?;
            write_list(out, ranges.into_iter(), |out, range| write_range(out, bound, range))?;
        }
        Type::Composite(types) => write_composite(out, types, &fields_of(types, text).ok_or(malformed)?)?,
        Type::ByName(taken_for) => {
            if write_value(out, taken_for, text).is_err() {
                write_string(out, text);
            }
        }
        _ => {
            Value::read(data_type, text)?;
            write_string(out, text);
        }
    }
    Ok(())
}

fn write_optional(out: &mut String, data_type: &Type, text: Option<&str>) -> Result<(), ValueProblem> {
    match text {
        None => {
            out.push_str("null");
            Ok(())
        }
        Some(text) => write_typed(out, data_type, text),
    }
}

/// The text as it is, but for line breaks: these can only stand between tokens, and become spaces so that what is
/// written has one line.
fn write_json(out: &mut String, text: &str) -> Result<(), ValueProblem> {
    if !is_json(text) {
        return Err(ValueProblem::Malformed("json"));
    }
    if text.contains(['\n', '\r']) {
        out.push_str(&text.replace(['\n', '\r'], " "));
    } else {
        out.push_str(text);
    }
    Ok(())
}

fn write_timestamp(out: &mut String, data_type: &Type, text: &str) -> Result<(), ValueProblem> {
    let iso = match Value::read(data_type, text)? {
        Value::TimestampTz(instant) => instant.to_iso("+00:00"),
        Value::Timestamp(instant) => instant.to_iso(""),
        _ => return Err(ValueProblem::Malformed(data_type.name())),
    };
    write_string(out, &iso);
    Ok(())
}

fn write_hstore(out: &mut String, text: &str) -> Result<(), ValueProblem> {
    let pairs = hstore_pairs(text).ok_or(ValueProblem::Malformed("hstore"))?;
    out.push('{');
    for ((key, value), index) in pairs.iter().zip(0..) {
        if index > 0 {
            out.push(',');
        }
        write_string(out, key);
        out.push(':');
        write_optional(out, &Type::Text, value.as_deref())?;
    }
    out.push('}');
    Ok(())
}

/// Nested lists, or an object around them where they leave something out: bounds, or which `null` is JSON's own.
fn write_array(out: &mut String, element: &Type, array: &Array<Cow<'_, str>>) -> Result<(), ValueProblem> {
    let json_null = json_nulls(array.elements.iter().map(|text| (element, text)));
    let is_plain = array.starts_at_one() && json_null.is_empty();
    if !is_plain {
        let lower: Vec<String> = array.dimensions.iter().map(|dimension| dimension.lower.to_string()).collect();
        out.push_str(&format!("{{\"lower\":[{}],\"values\":", lower.join(",")));
    }
    array.write_nested(out, ['[', ',', ']'], |out, text| write_optional(out, element, text.map(AsRef::as_ref)))?;
    if !is_plain {
        out.push_str(&json_null);
        out.push('}');
    }
    Ok(())
}

/// A list by position, with an object around it where it leaves out which `null` is JSON's own.
fn write_composite(out: &mut String, types: &[Type], fields: &[Option<Cow<'_, str>>]) -> Result<(), ValueProblem> {
    let json_null = json_nulls(types.iter().zip(fields));
    if !json_null.is_empty() {
        out.push_str("{\"values\":");
    }
    write_list(out, types.iter().zip(fields), |out, (data_type, field)| {
        write_optional(out, data_type, field.as_deref())
    })?;
    if !json_null.is_empty() {
        out.push_str(&json_null);
        out.push('}');
    }
    Ok(())
}

/// `,"json_null":[…]` with the places of JSON's own nulls, or nothing where there are none.
fn json_nulls<'a>(values: impl Iterator<Item = (&'a Type, &'a Option<Cow<'a, str>>)>) -> String {
    let is_null =
        |data_type: &Type, text: &Option<Cow<'_, str>>| text.as_ref().is_some_and(|text| is_json_null(data_type, text));
    let places = values.zip(0_usize..).filter(|((data_type, text), _)| is_null(data_type, text));
    let places: Vec<String> = places.map(|(_, place)| place.to_string()).collect();
    if places.is_empty() { String::new() } else { format!(",\"json_null\":[{}]", places.join(",")) }
}

fn write_range(out: &mut String, bound: &Type, range: Range<Cow<'_, str>>) -> Result<(), ValueProblem> {
    let Range::Span { lower, lower_inclusive, upper, upper_inclusive } = range else {
        out.push_str("{\"empty\":true}");
        return Ok(());
    };
    out.push_str("{\"lower\":");
    write_optional(out, bound, lower.as_deref())?;
    out.push_str(",\"upper\":");
    write_optional(out, bound, upper.as_deref())?;
    out.push_str(",\"bounds\":\"");
    out.push(if lower_inclusive { '[' } else { '(' });
    out.push(if upper_inclusive { ']' } else { ')' });
    out.push_str("\"}");
    Ok(())
}

fn write_list<T>(
    out: &mut String,
    members: impl Iterator<Item = T>,
    mut write: impl FnMut(&mut String, T) -> Result<(), ValueProblem>,
) -> Result<(), ValueProblem> {
    out.push('[');
    for (member, index) in members.zip(0..) {
        if index > 0 {
            out.push(',');
        }
        write(out, member)?;
    }
    out.push(']');
    Ok(())
}

fn quoted(text: &str) -> String {
    let mut out = String::new();
    write_string(&mut out, text);
    out
}

fn needs_escape(c: char) -> bool {
    matches!(c, '"' | '\\' | '\0'..='\u{1f}')
}

#[cfg(test)]
mod tests;
