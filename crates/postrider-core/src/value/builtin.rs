//! The types of `pg_type.dat` that a column can have, the same from PostgreSQL 14 to 18.

use super::data_type::Type;

/// One type and its array type.
struct Builtin {
    oid: u32,
    array_oid: u32,
    name: &'static str,
    shape: Shape,
}

enum Shape {
    Plain(Type),
    Range(Type),
    Multirange(Type),
}

/// Types that are read further than their text, and all that have an array type, since arrays are. What is not here is
/// plain text.
#[rustfmt::skip]
static BUILTIN: [Builtin; 74] = [
    plain(16, 1000, "bool", Type::Bool),
    plain(17, 1001, "bytea", Type::Bytea),
    plain(18, 1002, "char", Type::Text),
    plain(19, 1003, "name", Type::Text),
    plain(20, 1016, "int8", Type::Int8),
    plain(21, 1005, "int2", Type::Int2),
    plain(23, 1007, "int4", Type::Int4),
    plain(24, 1008, "regproc", Type::Text),
    plain(25, 1009, "text", Type::Text),
    plain(26, 1028, "oid", Type::Oid),
    plain(27, 1010, "tid", Type::Text),
    plain(28, 1011, "xid", Type::Oid),
    plain(29, 1012, "cid", Type::Oid),
    plain(114, 199, "json", Type::Json),
    plain(142, 143, "xml", Type::Text),
    plain(600, 1017, "point", Type::Text),
    plain(601, 1018, "lseg", Type::Text),
    plain(602, 1019, "path", Type::Text),
    plain(603, 1020, "box", Type::Text),
    plain(604, 1027, "polygon", Type::Text),
    plain(628, 629, "line", Type::Text),
    plain(650, 651, "cidr", Type::Inet),
    plain(700, 1021, "float4", Type::Float4),
    plain(701, 1022, "float8", Type::Float8),
    plain(718, 719, "circle", Type::Text),
    plain(774, 775, "macaddr8", Type::MacAddr),
    plain(790, 791, "money", Type::Text),
    plain(829, 1040, "macaddr", Type::MacAddr),
    plain(869, 1041, "inet", Type::Inet),
    plain(1033, 1034, "aclitem", Type::Text),
    plain(1042, 1014, "bpchar", Type::Text),
    plain(1043, 1015, "varchar", Type::Text),
    plain(1082, 1182, "date", Type::Date),
    plain(1083, 1183, "time", Type::Time),
    plain(1114, 1115, "timestamp", Type::Timestamp),
    plain(1184, 1185, "timestamptz", Type::TimestampTz),
    plain(1186, 1187, "interval", Type::Interval),
    plain(1266, 1270, "timetz", Type::TimeTz),
    plain(1560, 1561, "bit", Type::Bits),
    plain(1562, 1563, "varbit", Type::Bits),
    plain(1700, 1231, "numeric", Type::Numeric),
    plain(1790, 2201, "refcursor", Type::Text),
    plain(2202, 2207, "regprocedure", Type::Text),
    plain(2203, 2208, "regoper", Type::Text),
    plain(2204, 2209, "regoperator", Type::Text),
    plain(2205, 2210, "regclass", Type::Text),
    plain(2206, 2211, "regtype", Type::Text),
    plain(2950, 2951, "uuid", Type::Uuid),
    plain(2970, 2949, "txid_snapshot", Type::Text),
    plain(3220, 3221, "pg_lsn", Type::Lsn),
    plain(3614, 3643, "tsvector", Type::Text),
    plain(3615, 3645, "tsquery", Type::Text),
    plain(3642, 3644, "gtsvector", Type::Text),
    plain(3734, 3735, "regconfig", Type::Text),
    plain(3769, 3770, "regdictionary", Type::Text),
    plain(3802, 3807, "jsonb", Type::Json),
    plain(4072, 4073, "jsonpath", Type::Text),
    plain(4089, 4090, "regnamespace", Type::Text),
    plain(4096, 4097, "regrole", Type::Text),
    plain(4191, 4192, "regcollation", Type::Text),
    plain(5038, 5039, "pg_snapshot", Type::Text),
    plain(5069, 271, "xid8", Type::Text),
    Builtin { oid: 3904, array_oid: 3905, name: "int4range", shape: Shape::Range(Type::Int4) },
    Builtin { oid: 3906, array_oid: 3907, name: "numrange", shape: Shape::Range(Type::Numeric) },
    Builtin { oid: 3908, array_oid: 3909, name: "tsrange", shape: Shape::Range(Type::Timestamp) },
    Builtin { oid: 3910, array_oid: 3911, name: "tstzrange", shape: Shape::Range(Type::TimestampTz) },
    Builtin { oid: 3912, array_oid: 3913, name: "daterange", shape: Shape::Range(Type::Date) },
    Builtin { oid: 3926, array_oid: 3927, name: "int8range", shape: Shape::Range(Type::Int8) },
    Builtin { oid: 4451, array_oid: 6150, name: "int4multirange", shape: Shape::Multirange(Type::Int4) },
    Builtin { oid: 4532, array_oid: 6151, name: "nummultirange", shape: Shape::Multirange(Type::Numeric) },
    Builtin { oid: 4533, array_oid: 6152, name: "tsmultirange", shape: Shape::Multirange(Type::Timestamp) },
    Builtin { oid: 4534, array_oid: 6153, name: "tstzmultirange", shape: Shape::Multirange(Type::TimestampTz) },
    Builtin { oid: 4535, array_oid: 6155, name: "datemultirange", shape: Shape::Multirange(Type::Date) },
    Builtin { oid: 4536, array_oid: 6157, name: "int8multirange", shape: Shape::Multirange(Type::Int8) },
];

/// A built-in type or its array type.
pub(super) fn by_oid(oid: u32) -> Option<Type> {
    BUILTIN.iter().find_map(|builtin| match oid {
        _ if oid == builtin.oid => Some(builtin.data_type()),
        _ if oid == builtin.array_oid => Some(builtin.array_type()),
        _ => None,
    })
}

/// As [`by_oid`], by the name in `pg_type`.
pub(super) fn by_name(name: &str) -> Option<Type> {
    let named = |name: &str| BUILTIN.iter().find(|builtin| builtin.name == name);
    match name.strip_prefix('_') {
        Some(element) => named(element).map(Builtin::array_type),
        None => named(name).map(Builtin::data_type),
    }
}

impl Builtin {
    fn data_type(&self) -> Type {
        match &self.shape {
            Shape::Plain(plain) => plain.clone(),
            Shape::Range(bound) => Type::Range(Box::new(bound.clone())),
            Shape::Multirange(bound) => Type::Multirange(Box::new(bound.clone())),
        }
    }

    /// `box` is the only built-in type whose array separates its elements by something else than a comma.
    fn array_type(&self) -> Type {
        let delimiter = if self.name == "box" { ';' } else { ',' };
        Type::Array { element: Box::new(self.data_type()), delimiter }
    }
}

const fn plain(oid: u32, array_oid: u32, name: &'static str, data_type: Type) -> Builtin {
    Builtin { oid, array_oid, name, shape: Shape::Plain(data_type) }
}
