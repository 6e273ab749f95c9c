//! The server as the judge of what we read: its own text, its own equality, its own JSON.

use std::collections::BTreeMap;

use postrider_core::json::write_value;
use postrider_core::value::{Type, Value};

use crate::database::{Cell, Database, Seen};

/// What JSON is right, in SQL, where it is not `to_json`. `range_json` of no bound and `array_json` of no element are
/// NULL as `to_jsonb` has it.
const FUNCTIONS: &str = "
CREATE FUNCTION range_json(r anyrange) RETURNS jsonb LANGUAGE sql AS $$
    SELECT CASE WHEN isempty(r) THEN '{\"empty\": true}' ELSE jsonb_build_object('lower', lower(r), 'upper', upper(r),
        'bounds', (CASE WHEN lower_inc(r) THEN '[' ELSE '(' END) || (CASE WHEN upper_inc(r) THEN ']' ELSE ')' END)) END
$$;
CREATE FUNCTION multirange_json(m anymultirange) RETURNS jsonb LANGUAGE sql AS $$
    SELECT coalesce(jsonb_agg(range_json(r)), '[]') FROM unnest(m) AS r
$$;
CREATE FUNCTION lowers(a anyarray) RETURNS int[] LANGUAGE sql AS $$
    SELECT coalesce(array_agg(array_lower(a, d) ORDER BY d), '{}') FROM generate_series(1, array_ndims(a)) AS d
$$;
CREATE FUNCTION array_json(a anyarray) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN 1 = ALL (lowers(a)) THEN to_json(a)::text
        ELSE '{\"lower\":' || to_json(lowers(a)) || ',\"values\":' || to_json(a) || '}' END
$$;
";

/// Types without an operator `=`, or without one that their arrays can use.
const WITHOUT_EQUALITY: [&str; 6] = ["json", "xml", "point", "polygon", "box", "jsonpath"];

/// What was read of one column: for each row that is not NULL its id, the text, and what became of it.
#[derive(Default)]
struct Column {
    ids: Vec<i32>,
    texts: Vec<String>,
    typed: Vec<String>,
    json: Vec<String>,
}

/// Holds every value of the inserted rows, whose first column is their number `id`, against the tables as they are:
///
/// * the text from the log is the text that the server writes;
/// * the typed value, written again, is that text (but for floating-point numbers), and the server reads it as an equal
///   value and writes that as the same text;
/// * the JSON is the server's own, or what the rules make of it in SQL.
///
/// `known` names the types that the log does not tell: by table and column.
pub(crate) async fn verify(database: &Database, seen: &[Seen], known: &[(&str, Type)]) {
    let exists = "SELECT to_regproc('range_json') IS NOT NULL";
    if !database.admin.query_one(exists, &[]).await.unwrap().get::<_, bool>(0) {
        database.run(FUNCTIONS).await;
    }
    let mut columns: BTreeMap<(&str, &str), (Type, Column)> = BTreeMap::new();
    for row in seen {
        let id = row.cells[0].text.as_deref().unwrap().parse().unwrap();
        for cell in &row.cells[1..] {
            let told = known.iter().find(|(column, _)| *column == format!("{}.{}", row.table, cell.column));
            let data_type = told.map_or_else(|| cell.data_type.clone(), |(_, data_type)| data_type.clone());
            let entry = columns.entry((&row.table, &cell.column));
            let (data_type, column) = entry.or_insert((data_type, Column::default()));
            column.take(id, data_type, cell);
        }
    }
    assert!(!columns.is_empty(), "nothing to verify");
    for ((table, name), (data_type, column)) in columns {
        ask(database, table, name, &data_type, &column).await;
    }
}

impl Column {
    fn take(&mut self, id: i32, data_type: &Type, cell: &Cell) {
        let Some(text) = &cell.text else { return };
        let value = Value::read(data_type, text).unwrap_or_else(|problem| panic!("{text:?} {problem}"));
        let typed = value.to_string();
        if !has_floats(data_type) {
            assert_eq!(&typed, text, "{value:?}");
        }
        let mut json = String::new();
        write_value(&mut json, data_type, text).unwrap_or_else(|problem| panic!("{text:?} {problem}"));
        self.ids.push(id);
        self.texts.push(text.clone());
        self.typed.push(typed);
        self.json.push(json);
    }
}

async fn ask(database: &Database, table: &str, name: &str, data_type: &Type, column: &Column) {
    let of_column = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute
         WHERE attrelid = to_regclass($1) AND attname = $2";
    let sql_type: String = database.admin.query_one(of_column, &[&table, &name]).await.unwrap().get(0);
    let equal = if WITHOUT_EQUALITY.contains(&sql_type.trim_end_matches("[]")) {
        "true".to_owned()
    } else {
        format!("t.{name} IS NOT DISTINCT FROM typed::{sql_type}")
    };
    // `format` calls the output function; a cast would strip the padding of character(n).
    let query = format!(
        "SELECT id, format('%s', t.{name}), text, typed, json,
             format('%s', t.{name}) = text, format('%s', typed::{sql_type}) = text, {equal}, {json}
         FROM unnest($1::int4[], $2::text[], $3::text[], $4::text[]) AS got (id, text, typed, json)
         LEFT JOIN {table} AS t USING (id)",
        json = right_json(name, data_type),
    );
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
        [&column.ids, &column.texts, &column.typed, &column.json];
    let rows = database.admin.query(&query, &parameters).await.unwrap_or_else(|error| panic!("{error:?}: {query}"));
    assert_eq!(rows.len(), column.ids.len(), "{table}.{name}");
    for row in rows {
        let held = [5, 6, 7, 8].map(|index| row.get::<_, Option<bool>>(index) == Some(true));
        let told: Vec<Option<String>> = (1..5).map(|index| row.get(index)).collect();
        let id: i32 = row.get(0);
        assert_eq!(held, [true; 4], "{table}.{name} {id} {sql_type} (text, written again, equal, JSON): {told:#?}");
    }
}

/// A condition on `json`.
fn right_json(name: &str, data_type: &Type) -> String {
    match data_type {
        Type::Range(_) => format!("json::jsonb = range_json(t.{name})"),
        Type::Multirange(_) => format!("json::jsonb = multirange_json(t.{name})"),
        // Which of the nulls are JSON's own, only the case itself can say.
        Type::Array { element, .. } if **element == Type::Json => {
            format!("coalesce(json::jsonb -> 'values', json::jsonb) = to_jsonb(t.{name})")
        }
        Type::Array { .. } => format!("json = array_json(t.{name})"),
        Type::ByName(taken_for) if matches!(**taken_for, Type::Array { .. }) => {
            format!("json::jsonb = array_json(t.{name})::jsonb")
        }
        // hstore's own cast to JSON writes spaces.
        Type::ByName(_) | Type::Hstore => format!("json::jsonb = to_jsonb(t.{name})"),
        // The names of the fields are the test's own.
        Type::Composite(_) => format!("json::jsonb = jsonb_build_array((t.{name}).a, (t.{name}).b, (t.{name}).c)"),
        Type::Json => format!("json = translate(to_json(t.{name})::text, E'\\n\\r', '  ')"),
        _ => format!("json = to_json(t.{name})::text"),
    }
}

fn has_floats(data_type: &Type) -> bool {
    match data_type {
        Type::Float4 | Type::Float8 => true,
        Type::Array { element, .. } => has_floats(element),
        _ => false,
    }
}
