//! Tables that the changes are applied to: at the end they must be those of the server.

use std::collections::BTreeMap;

use postrider_core::change::Change;
use postrider_core::pgoutput::{OldTuple, TupleValue};
use postrider_core::relation::Relation;

use super::recording::Table;

/// Text by column; a column that is not there is NULL.
type Row = BTreeMap<String, String>;

/// What the changes made of empty tables.
#[derive(Debug, Default)]
pub struct Replica {
    /// By oid, with the latest name.
    tables: BTreeMap<u32, (String, String, Vec<Row>)>,
}

impl Replica {
    pub fn apply(&mut self, change: &Change<'_>) {
        match *change {
            Change::Insert { relation, new } => {
                let mut row = Row::new();
                update(&mut row, relation, new.columns());
                self.rows(relation).push(row);
            }
            Change::Update { relation, old, new } => {
                let identity = match old {
                    Some(old) => old_identity(relation, old),
                    None => identity(relation, new.columns(), |column| relation.columns[column].key),
                };
                let row = self.find(relation, &identity);
                update(row, relation, new.columns());
            }
            Change::Delete { relation, old } => {
                let identity = old_identity(relation, old);
                let rows = self.rows(relation);
                let at = rows.iter().position(|row| matches(row, &identity));
                rows.remove(at.unwrap_or_else(|| panic!("no such row to delete: {identity:?}")));
            }
            Change::Truncate { relations, .. } => {
                relations.iter().for_each(|relation| self.rows(relation).clear());
            }
            Change::Message(_) => {}
        }
    }

    /// The rows of a table, as COPY writes the columns, sorted.
    pub fn copy(&self, table: &Table) -> Vec<String> {
        // Of tables that had the same name one after the other, the latest has the highest oid.
        let found = self.tables.values().rev().find(|(schema, name, _)| (schema, name) == (&table.schema, &table.name));
        let write = |row: &Row| {
            let fields =
                table.columns.iter().map(|column| row.get(column).map_or("\\N".to_owned(), |text| escape(text)));
            fields.collect::<Vec<_>>().join("\t")
        };
        let mut rows: Vec<String> = found.map(|(_, _, rows)| rows.iter().map(write).collect()).unwrap_or_default();
        rows.sort();
        rows
    }

    fn rows(&mut self, relation: &Relation) -> &mut Vec<Row> {
        let table = self.tables.entry(relation.oid).or_default();
        (table.0, table.1) = (relation.schema.clone(), relation.name.clone());
        &mut table.2
    }

    fn find(&mut self, relation: &Relation, identity: &[(String, Option<String>)]) -> &mut Row {
        let name = relation.name.clone();
        let found = self.rows(relation).iter_mut().find(|row| matches(row, identity));
        found.unwrap_or_else(|| panic!("no such row of {name} to update: {identity:?}"))
    }
}

fn update<'a>(row: &mut Row, relation: &Relation, values: impl Iterator<Item = TupleValue<'a>>) {
    for (column, value) in relation.columns.iter().zip(values) {
        match value {
            TupleValue::Text(text) => drop(row.insert(column.name.clone(), String::from_utf8(text.to_vec()).unwrap())),
            TupleValue::Null => drop(row.remove(&column.name)),
            // What the log does not have stays.
            TupleValue::Unchanged => {}
            TupleValue::Binary(_) => panic!("binary was not asked for"),
        }
    }
}

fn old_identity(relation: &Relation, old: OldTuple<'_>) -> Vec<(String, Option<String>)> {
    let whole = matches!(old, OldTuple::Full(_));
    identity(relation, old.tuple().columns(), |column| whole || relation.columns[column].key)
}

fn identity<'a>(
    relation: &Relation,
    values: impl Iterator<Item = TupleValue<'a>>,
    counts: impl Fn(usize) -> bool,
) -> Vec<(String, Option<String>)> {
    let text = |value| match value {
        TupleValue::Text(text) => Some(String::from_utf8(text.to_vec()).unwrap()),
        TupleValue::Null => None,
        other => panic!("an identity has all its values: {other:?}"),
    };
    let columns = relation.columns.iter().zip(values).enumerate();
    let counted = columns.filter(|(index, _)| counts(*index));
    let identity: Vec<_> = counted.map(|(_, (column, value))| (column.name.clone(), text(value))).collect();
    assert!(!identity.is_empty(), "{} has no identity", relation.name);
    identity
}

fn matches(row: &Row, identity: &[(String, Option<String>)]) -> bool {
    identity.iter().all(|(column, value)| row.get(column) == value.as_ref())
}

/// Manual, COPY, "Text Format".
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t")
}
