//! Changes as lines: JSON by the rules of `docs/values.md`, or text for people.

use crate::reading::walk::Seen;
use data_encoding::BASE64;
use postrider_core::change::Change;
use postrider_core::json::{RowShape, write_string};
use postrider_core::pgoutput::{LogicalMessage, OldTuple, tag_name};
use postrider_core::position::{Generation, Position};
use postrider_core::relation::{Relation, Relations};
use postrider_core::shape::ShapeError;
use postrider_core::transaction::{Part, PartHead, PartKind};
use postrider_delivery::rfc3339;
use std::collections::HashMap;
use std::sync::Arc;

/// Writes changes of one part after the other.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// How the rows of each table are written, as long as the tables and types are the same: within one part.
    shapes: HashMap<u32, (Arc<Relation>, RowShape)>,
}

/// The images of a row that a change brings, under the names that they have in JSON.
type Images = [Option<(&'static str, Result<String, ShapeError>)>; 2];

impl Lines {
    /// Another part begins.
    pub(crate) fn begin_part(&mut self) {
        self.shapes.clear();
    }

    /// Appends one change as one object: `position`, `xid`, `time` (of the commit), `op`, then for a row `table`, `new`, and
    /// of the version before `key` or `old`, whichever the log has.
    pub(crate) fn push_json(&mut self, out: &mut String, seen: &Seen<'_>) {
        push_head(out, seen.position, seen.head);
        out.push_str(",\"op\":\"");
        out.push_str(op(seen.change));
        out.push('"');
        match seen.change {
            Change::Insert { relation, .. } | Change::Update { relation, .. } | Change::Delete { relation, .. } => {
                push_member(out, "table", &table_name(relation));
                for (name, image) in self.images(seen).into_iter().flatten() {
                    match image {
                        Ok(row) => out.push_str(&format!(",\"{name}\":{row}")),
                        Err(error) => push_member(out, "error", &error.to_string()),
                    }
                }
            }
            Change::Truncate { relations, cascade, restart_identity } => {
                let mut tables = String::new();
                for relation in relations.iter() {
                    tables.push_str(if tables.is_empty() { "" } else { "," });
                    write_string(&mut tables, &table_name(relation));
                }
                out.push_str(&format!(
                    ",\"tables\":[{tables}],\"cascade\":{cascade},\"restart_identity\":{restart_identity}"
                ));
            }
            Change::Message(message) => push_message(out, message),
        }
        out.push('}');
    }

    /// Appends one change as a line for a person: ordinal, what was done, to what, and the images of the row.
    pub(crate) fn push_text(&mut self, out: &mut String, seen: &Seen<'_>) {
        out.push_str(&format!("  {} {}", seen.position.ordinal, op(seen.change)));
        match seen.change {
            Change::Insert { relation, .. } | Change::Update { relation, .. } | Change::Delete { relation, .. } => {
                out.push_str(&format!(" {}", table_name(relation)));
                for (name, image) in self.images(seen).into_iter().flatten() {
                    match image {
                        Ok(row) => out.push_str(&format!(" {name} {row}")),
                        Err(error) => out.push_str(&format!(" {name}: {error}")),
                    }
                }
            }
            Change::Truncate { relations, cascade, restart_identity } => {
                let tables: Vec<String> = relations.iter().map(|relation| table_name(relation)).collect();
                out.push_str(&format!(" {}", tables.join(", ")));
                out.push_str(if *restart_identity { " restart identity" } else { "" });
                out.push_str(if *cascade { " cascade" } else { "" });
            }
            Change::Message(message) => {
                out.push_str(&format!(" {} at {} {}", message.prefix.escape_debug(), message.lsn, content(message)));
            }
        }
    }

    fn images(&mut self, seen: &Seen<'_>) -> Images {
        match *seen.change {
            Change::Insert { relation, new } => {
                let shape = self.shape(relation, seen.relations);
                [None, Some(("new", written(|out| shape.write_new(out, new))))]
            }
            Change::Update { relation, old, new } => {
                let shape = self.shape(relation, seen.relations);
                let before = old.map(|old| (old_name(old), written(|out| shape.write_old(out, old))));
                [before, Some(("new", written(|out| shape.write_new(out, new))))]
            }
            Change::Delete { relation, old } => {
                let shape = self.shape(relation, seen.relations);
                [Some((old_name(old), written(|out| shape.write_old(out, old)))), None]
            }
            Change::Truncate { .. } | Change::Message(_) => [None, None],
        }
    }

    fn shape(&mut self, relation: &Arc<Relation>, relations: &Relations) -> &RowShape {
        let made = || (Arc::clone(relation), RowShape::of(relation, relations));
        let known = self.shapes.entry(relation.oid).or_insert_with(made);
        if !Arc::ptr_eq(&known.0, relation) {
            *known = made();
        }
        &known.1
    }
}

/// The first line about a transaction, for a person.
pub(crate) fn push_transaction_text(out: &mut String, head: &PartHead, generation: Generation) {
    let position = Position { generation, commit_lsn: head.commit_lsn, ordinal: 0 };
    out.push_str(&format!("transaction {position} xid {} committed {}\n", head.xid, rfc3339(head.committed_at)));
}

/// Appends what a frame of the journal holds: its head, and the tag and size of each message.
pub(crate) fn push_raw_json(out: &mut String, part: &Part<'_>, generation: Generation) {
    let head = &part.head;
    push_head(out, first_of(head, generation), head);
    let kind = if head.kind == PartKind::Mark { "mark" } else { "part" };
    out.push_str(&format!(
        ",\"frame\":\"{kind}\",\"first\":{},\"last\":{},\"changes\":{},\"end_lsn\":\"{}\",\"messages\":[",
        head.first, head.last, head.changes, head.end_lsn
    ));
    for (message, index) in part.messages().zip(0..) {
        out.push_str(if index == 0 { "{\"tag\":" } else { ",{\"tag\":" });
        let (tag, name) = tag_name(message);
        write_string(out, &tag.to_string());
        push_member(out, "message", name);
        out.push_str(&format!(",\"bytes\":{}}}", message.len()));
    }
    out.push_str("]}\n");
}

/// The same for a person.
pub(crate) fn push_raw_text(out: &mut String, part: &Part<'_>, generation: Generation) {
    let head = &part.head;
    if head.kind == PartKind::Mark {
        out.push_str(&format!("mark {}:{} sent {}\n", generation.0, head.end_lsn, rfc3339(head.committed_at)));
        return;
    }
    let place = match (head.first, head.last) {
        (true, true) => "whole",
        (true, false) => "first part",
        (false, false) => "further part",
        (false, true) => "last part",
    };
    out.push_str(&format!(
        "transaction {} xid {} committed {}, {place}, {} changes, {} bytes\n",
        first_of(head, generation),
        head.xid,
        rfc3339(head.committed_at),
        head.changes,
        part.block().len()
    ));
    for message in part.messages() {
        let (tag, name) = tag_name(message);
        out.push_str(&format!("  {} {name} {} bytes\n", tag.escape_debug(), message.len()));
    }
}

fn first_of(head: &PartHead, generation: Generation) -> Position {
    Position { generation, commit_lsn: head.commit_lsn, ordinal: head.first_ordinal }
}

fn push_head(out: &mut String, position: Position, head: &PartHead) {
    let (xid, time) = (head.xid, rfc3339(head.committed_at));
    out.push_str(&format!("{{\"position\":\"{position}\",\"xid\":{xid},\"time\":\"{time}\""));
}

fn push_member(out: &mut String, name: &str, text: &str) {
    out.push_str(&format!(",\"{name}\":"));
    write_string(out, text);
}

fn push_message(out: &mut String, message: &LogicalMessage<'_>) {
    push_member(out, "prefix", message.prefix);
    push_member(out, "lsn", &message.lsn.to_string());
    out.push_str(",\"content\":");
    out.push_str(&content(message));
}

/// A string where the content is text, else its bytes as an event has them.
fn content(message: &LogicalMessage<'_>) -> String {
    let mut out = String::new();
    match std::str::from_utf8(message.content) {
        Ok(text) => write_string(&mut out, text),
        Err(_) => out.push_str(&format!("{{\"base64\":\"{}\"}}", BASE64.encode(message.content))),
    }
    out
}

fn written(write: impl FnOnce(&mut String) -> Result<(), ShapeError>) -> Result<String, ShapeError> {
    let mut out = String::new();
    write(&mut out).map(|()| out)
}

fn old_name(old: OldTuple<'_>) -> &'static str {
    match old {
        OldTuple::Key(_) => "key",
        OldTuple::Full(_) => "old",
    }
}

fn op(change: &Change<'_>) -> &'static str {
    match change {
        Change::Insert { .. } => "insert",
        Change::Update { .. } => "update",
        Change::Delete { .. } => "delete",
        Change::Truncate { .. } => "truncate",
        Change::Message(_) => "message",
    }
}

fn table_name(relation: &Relation) -> String {
    format!("{}.{}", relation.schema, relation.name)
}
