//! What was read, written as the server's own plugin `test_decoding` writes it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use postrider_core::change::Change;
use postrider_core::pgoutput::{LogicalMessage, Tuple, TupleValue};
use postrider_core::relation::{Relation, Relations};

/// Words that the server quotes as names, of those that the cases use.
const KEYWORDS: [&str; 1] = ["select"];

/// The types whose values it writes without quotes.
const BARE_TYPES: [u32; 8] = [20, 21, 23, 26, 700, 701, 1700, 16];
const BIT_TYPES: [u32; 2] = [1560, 1562];
const BOOL: u32 = 16;

/// One change; `types` names the built-in types.
pub fn line(change: &Change<'_>, relations: &Relations, types: &BTreeMap<u32, String>) -> String {
    let writer = Writer { relations, types };
    match *change {
        Change::Insert { relation, new } => {
            format!("table {}: INSERT:{}", table(relation), writer.columns(relation, new.sent(), false))
        }
        Change::Update { relation, old, new } => {
            let new = writer.columns(relation, new.sent(), false);
            match old {
                None => format!("table {}: UPDATE:{new}", table(relation)),
                Some(old) => {
                    let old = writer.columns(relation, old.tuple(), true);
                    format!("table {}: UPDATE: old-key:{old} new-tuple:{new}", table(relation))
                }
            }
        }
        Change::Delete { relation, old } => {
            format!("table {}: DELETE:{}", table(relation), writer.columns(relation, old.tuple(), true))
        }
        Change::Truncate { relations, cascade, restart_identity } => {
            let names: Vec<String> = relations.iter().map(|relation| table(relation)).collect();
            let flags = match (restart_identity, cascade) {
                (false, false) => " (no-flags)",
                (true, false) => " restart_seqs",
                (false, true) => " cascade",
                (true, true) => " restart_seqs cascade",
            };
            format!("table {}: TRUNCATE:{flags}", names.join(", "))
        }
        Change::Message(message) => logical_message(&message),
    }
}

/// A logical message.
pub fn logical_message(message: &LogicalMessage<'_>) -> String {
    format!(
        "message: transactional: {} prefix: {}, sz: {} content:{}",
        u8::from(message.transactional),
        message.prefix,
        message.content.len(),
        std::str::from_utf8(message.content).unwrap()
    )
}

struct Writer<'a> {
    relations: &'a Relations,
    types: &'a BTreeMap<u32, String>,
}

impl Writer<'_> {
    fn columns(&self, relation: &Relation, tuple: Tuple<'_>, skip_nulls: bool) -> String {
        let mut text = String::new();
        for (column, value) in relation.columns.iter().zip(tuple.columns()) {
            let value = match value {
                TupleValue::Null if skip_nulls => continue,
                TupleValue::Null => "null".to_owned(),
                TupleValue::Unchanged => "unchanged-toast-datum".to_owned(),
                TupleValue::Text(bytes) => literal(column.type_oid, std::str::from_utf8(bytes).unwrap()),
                TupleValue::Binary(_) => panic!("binary was not asked for"),
            };
            write!(text, " {}[{}]:{value}", name(&column.name), self.type_name(column.type_oid)).unwrap();
        }
        text
    }

    fn type_name(&self, oid: u32) -> String {
        if let Some(name) = self.types.get(&oid) {
            return name.clone();
        }
        let Some(named) = self.relations.named_type(oid) else { panic!("type {oid} was never named") };
        match named.name.strip_prefix('_') {
            Some(element) => format!("{}.{}[]", name(&named.schema), name(element)),
            // A domain, which comes with the name of the built-in type below it.
            None if named.schema.is_empty() => named.name.clone(),
            None => format!("{}.{}", name(&named.schema), name(&named.name)),
        }
    }
}

fn literal(type_oid: u32, text: &str) -> String {
    match type_oid {
        BOOL => if text == "t" { "true" } else { "false" }.to_owned(),
        _ if BARE_TYPES.contains(&type_oid) => text.to_owned(),
        _ if BIT_TYPES.contains(&type_oid) => format!("B'{text}'"),
        _ => format!("'{}'", text.replace('\'', "''")),
    }
}

fn table(relation: &Relation) -> String {
    format!("{}.{}", name(&relation.schema), name(&relation.name))
}

fn name(name: &str) -> String {
    let mut bytes = name.bytes();
    let starts = bytes.next().is_some_and(|first| first.is_ascii_lowercase() || first == b'_');
    let goes_on = bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    let is_plain = starts && goes_on && !KEYWORDS.contains(&name);
    if is_plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}
