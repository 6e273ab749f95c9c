//! The table of built-in types against the catalogue.

use postrider_core::relation::NamedType;
use postrider_core::value::Type;

use crate::database::Database;

pub(crate) async fn the_built_in_types_are_those_of_the_server(version: u32) {
    let database = Database::create(version).await;
    let rows = database
        .admin
        .query(
            "SELECT t.oid, t.typname::text, t.typarray, t.typtype::text, r.rngsubtype, m.rngsubtype, a.typdelim::text
             FROM pg_type AS t
             LEFT JOIN pg_range AS r ON r.rngtypid = t.oid
             LEFT JOIN pg_range AS m ON m.rngmultitypid = t.oid
             LEFT JOIN pg_type AS a ON a.oid = t.typarray
             WHERE t.oid < 10000 AND t.typtype IN ('b', 'r', 'm') AND t.typcategory <> 'A' AND t.typarray <> 0",
            &[],
        )
        .await
        .unwrap();
    assert!(rows.len() > 60);
    for row in rows {
        let (oid, name, array_oid): (u32, String, u32) = (row.get(0), row.get(1), row.get(2));
        let kind: String = row.get(3);
        let of = |oid| Type::of(oid, None);
        let data_type = of(oid);
        match kind.as_str() {
            "r" => assert_eq!(data_type, Type::Range(Box::new(of(row.get(4)))), "{name}"),
            "m" => assert_eq!(data_type, Type::Multirange(Box::new(of(row.get(5)))), "{name}"),
            _ => assert!(!matches!(data_type, Type::Range(_) | Type::Multirange(_)), "{name}"),
        }
        let delimiter = row.get::<_, String>(6).chars().next().unwrap();
        let array = Type::Array { element: Box::new(data_type.clone()), delimiter };
        assert_eq!(of(array_oid), array, "{name}");
        // A domain is told by the name of the type below it.
        let named = |name: String| Type::of(100_000, Some(&NamedType { schema: String::new(), name }));
        assert_eq!(named(name.clone()), data_type, "{name}");
        assert_eq!(named(format!("_{name}")), array, "{name}");
    }
    for (name, data_type) in [
        ("bool", Type::Bool),
        ("int8", Type::Int8),
        ("numeric", Type::Numeric),
        ("timestamptz", Type::TimestampTz),
        ("jsonb", Type::Json),
        ("uuid", Type::Uuid),
        ("bytea", Type::Bytea),
    ] {
        let row = database.admin.query_one("SELECT to_regtype($1)::oid", &[&name]).await.unwrap();
        assert_eq!(Type::of(row.get(0), None), data_type, "{name}");
    }
}
