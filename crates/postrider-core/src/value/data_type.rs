//! What a column's text means, from what the log says of its type.

use super::builtin;
use crate::relation::{NamedType, Relations};
use std::sync::Arc;

/// How the text of a type is read. What is not told apart here is [`Type::Text`].
///
/// The log names the type of a column by its oid, and sends a TYPE message for each that is not built in. That
/// message has a name and no more: not the labels of an enum, not the fields of a composite. For a domain it has the
/// name of the type below the domain (`logicalrep_write_typ`), so a domain over a built-in type is that type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    Bool,
    Int2,
    Int4,
    Int8,
    /// `oid`, `xid`, `cid`: 32 bits without a sign.
    Oid,
    Float4,
    Float8,
    Numeric,
    /// Character types, enums, and every type that is read no further than its text.
    Text,
    Bytea,
    Date,
    Time,
    TimeTz,
    Timestamp,
    TimestampTz,
    Interval,
    Uuid,
    /// `json`, `jsonb`.
    Json,
    /// `inet`, `cidr`.
    Inet,
    /// `macaddr`, `macaddr8`.
    MacAddr,
    /// `bit`, `bit varying`.
    Bits,
    /// `pg_lsn`.
    Lsn,
    /// The extension's type, known by its name.
    Hstore,
    Array {
        element: Box<Type>,
        delimiter: char,
    },
    Range(Box<Type>),
    /// Of ranges of this type.
    Multirange(Box<Type>),
    /// The fields in order. The log never tells them, so only a caller that knows the table says this.
    Composite(Arc<[Type]>),
    /// A type outside `pg_catalog` that is taken for this one by its name alone. Text that does not read so is text.
    ByName(Box<Type>),
}

impl Type {
    /// The type of a column: by its oid where it is built in, else by what a TYPE message said of it.
    pub fn of(oid: u32, named: Option<&NamedType>) -> Type {
        match (builtin::by_oid(oid), named) {
            (Some(known), _) => known,
            (None, Some(NamedType { schema, name })) if schema.is_empty() || schema == "pg_catalog" => {
                builtin::by_name(name).unwrap_or(Type::Text)
            }
            (None, Some(NamedType { name, .. })) => by_name(name),
            (None, None) => Type::Text,
        }
    }

    /// As [`Type::of`], with what is known at this place of the log.
    pub fn in_force(oid: u32, relations: &Relations) -> Type {
        Type::of(oid, relations.named_type(oid))
    }

    /// An array of `element` with the delimiter of nearly every type.
    pub fn array_of(element: Type) -> Type {
        Type::Array { element: Box::new(element), delimiter: ',' }
    }

    /// What an error calls it.
    pub fn name(&self) -> &'static str {
        match self {
            Type::Bool => "boolean",
            Type::Int2 => "smallint",
            Type::Int4 => "integer",
            Type::Int8 => "bigint",
            Type::Oid => "oid",
            Type::Float4 => "real",
            Type::Float8 => "double precision",
            Type::Numeric => "numeric",
            Type::Text => "text",
            Type::Bytea => "bytea",
            Type::Date => "date",
            Type::Time => "time",
            Type::TimeTz => "time with time zone",
            Type::Timestamp => "timestamp",
            Type::TimestampTz => "timestamp with time zone",
            Type::Interval => "interval",
            Type::Uuid => "uuid",
            Type::Json => "json",
            Type::Inet => "inet",
            Type::MacAddr => "macaddr",
            Type::Bits => "bit",
            Type::Lsn => "pg_lsn",
            Type::Hstore => "hstore",
            Type::Array { .. } => "array",
            Type::Range(_) => "range",
            Type::Multirange(_) => "multirange",
            Type::Composite(_) => "composite",
            Type::ByName(taken_for) => taken_for.name(),
        }
    }
}

/// Outside of `pg_catalog`. The server names an array type after its element with `_` before it, where that is free.
fn by_name(name: &str) -> Type {
    match (name, name.strip_prefix('_')) {
        ("hstore", _) => Type::ByName(Box::new(Type::Hstore)),
        (_, Some("hstore")) => Type::ByName(Box::new(Type::array_of(Type::Hstore))),
        (_, Some(_)) => Type::ByName(Box::new(Type::array_of(Type::Text))),
        _ => Type::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(schema: &str, name: &str) -> Type {
        Type::of(16_400, Some(&NamedType { schema: schema.to_owned(), name: name.to_owned() }))
    }

    #[test]
    fn a_domain_is_the_type_below_it() {
        assert_eq!(named("", "int4"), Type::Int4);
        assert_eq!(named("pg_catalog", "_numeric"), Type::array_of(Type::Numeric));
        assert_eq!(named("", "no_such_type"), Type::Text);
    }

    #[test]
    fn a_type_of_the_user_is_text_or_an_array_of_it() {
        assert_eq!(named("public", "mood"), Type::Text);
        assert_eq!(named("public", "int4"), Type::Text);
        assert_eq!(named("public", "_mood"), Type::ByName(Box::new(Type::array_of(Type::Text))));
        assert_eq!(named("any", "hstore"), Type::ByName(Box::new(Type::Hstore)));
        assert_eq!(Type::of(16_400, None), Type::Text);
    }

    #[test]
    fn boxes_are_separated_by_semicolons() {
        assert_eq!(Type::of(1020, None), Type::Array { element: Box::new(Type::Text), delimiter: ';' });
        assert_eq!(Type::of(6150, None), Type::array_of(Type::Multirange(Box::new(Type::Int4))));
    }
}
