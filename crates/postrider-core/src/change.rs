//! One change of the log with the table it belongs to.

use crate::pgoutput::{LogicalMessage, Oids, OldTuple, Tuple, TupleColumns, TupleValue};
use crate::relation::{Relation, Relations};
use std::sync::Arc;

/// A change, borrowed from the part it stands in and from the decoder's tables.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    Insert {
        relation: &'a Arc<Relation>,
        new: Row<'a>,
    },
    /// `old` is there where the replica identity's columns changed or are stored out of line, and always under REPLICA
    /// IDENTITY FULL.
    Update {
        relation: &'a Arc<Relation>,
        old: Option<OldTuple<'a>>,
        new: Row<'a>,
    },
    Delete {
        relation: &'a Arc<Relation>,
        old: OldTuple<'a>,
    },
    Truncate {
        relations: TruncatedRelations<'a>,
        cascade: bool,
        restart_identity: bool,
    },
    Message(LogicalMessage<'a>),
}

/// The new version of a row. What the update did not touch is taken from the old version where the log has that; it stays
/// [`TupleValue::Unchanged`] where it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row<'a> {
    new: Tuple<'a>,
    old: Option<OldTuple<'a>>,
}

/// Iterator over the columns of a row.
#[derive(Debug, Clone)]
pub struct RowColumns<'a> {
    new: TupleColumns<'a>,
    old: Option<TupleColumns<'a>>,
}

/// The tables of one TRUNCATE; each is known to the decoder.
#[derive(Debug, Clone, Copy)]
pub struct TruncatedRelations<'a> {
    known: &'a Relations,
    oids: Oids<'a>,
}

impl<'a> Row<'a> {
    /// The version that an update made of `old`, or that an insert made of nothing.
    pub fn new(new: Tuple<'a>, old: Option<OldTuple<'a>>) -> Row<'a> {
        Row { new, old }
    }

    /// How many columns there are.
    pub fn len(&self) -> usize {
        self.new.len()
    }

    pub fn is_empty(&self) -> bool {
        self.new.is_empty()
    }

    /// The columns in order.
    pub fn columns(&self) -> RowColumns<'a> {
        RowColumns { new: self.new.columns(), old: self.old.map(|old| old.tuple().columns()) }
    }

    /// The column at `index`, from 0. Walks over the columns before it.
    pub fn column(&self, index: usize) -> Option<TupleValue<'a>> {
        self.columns().nth(index)
    }

    /// The columns as the message has them, nothing filled.
    pub fn sent(&self) -> Tuple<'a> {
        self.new
    }
}

impl<'a> Iterator for RowColumns<'a> {
    type Item = TupleValue<'a>;

    #[inline]
    fn next(&mut self) -> Option<TupleValue<'a>> {
        let new = self.new.next()?;
        let old = self.old.as_mut().and_then(Iterator::next);
        Some(if new == TupleValue::Unchanged { fill(old) } else { new })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.new.size_hint()
    }
}

impl<'a> TruncatedRelations<'a> {
    /// `Err` with the first oid that `known` does not have.
    pub(crate) fn new(known: &'a Relations, oids: Oids<'a>) -> Result<TruncatedRelations<'a>, u32> {
        match oids.iter().find(|oid| known.table(*oid).is_none()) {
            Some(oid) => Err(oid),
            None => Ok(TruncatedRelations { known, oids }),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &'a Arc<Relation>> + use<'a> {
        let known = self.known;
        self.oids.iter().filter_map(move |oid| known.table(oid))
    }
}

/// What stands for an untouched value. Of an old version that is only a key, all other columns are sent as NULL; the key's
/// own are never NULL, and there in full even where they are stored out of line.
fn fill(old: Option<TupleValue<'_>>) -> TupleValue<'_> {
    match old {
        None | Some(TupleValue::Null) => TupleValue::Unchanged,
        Some(old) => old,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use super::*;
    use crate::pgoutput::encode::{self, OldValues};
    use crate::pgoutput::{Message, Update};
    use TupleValue::{Null, Text, Unchanged};

    fn filled(old: Option<OldValues<'_>>, new: &[TupleValue<'_>], check: impl FnOnce(Row<'_>)) {
        let mut bytes = Vec::new();
        encode::update(&mut bytes, 1, old, new);
        let Message::Update(Update { old, new, .. }) = Message::parse(&bytes).unwrap() else { panic!("an update") };
        check(Row::new(new, old));
    }

    #[test]
    fn what_an_update_did_not_touch_is_filled_where_the_old_version_has_it() {
        let new = [Text(b"1"), Unchanged, Unchanged, Null];
        let columns = |row: Row<'_>| format!("{:?}", row.columns().collect::<Vec<_>>());
        let bare = format!("{new:?}");
        filled(None, &new, |row| assert_eq!((columns(row), row.len()), (bare.clone(), 4)));
        // Under FULL everything is there.
        let full = [Text(b"1"), Text(b"big"), Text(b""), Text(b"was")];
        filled(Some(OldValues::Full(&full)), &new, |row| {
            assert_eq!(columns(row), format!("{:?}", [Text(b"1"), Text(b"big"), Text(b""), Null]));
            assert_eq!((row.column(1), row.sent().column(1)), (Some(Text(b"big")), Some(Unchanged)));
            assert_eq!(row.column(4), None);
        });
        // A key stored out of line is there, what is no key is not.
        let key = [Null, Text(b"big"), Null, Null];
        filled(Some(OldValues::Key(&key)), &new, |row| {
            assert_eq!(columns(row), format!("{:?}", [Text(b"1"), Text(b"big"), Unchanged, Null]));
        });
    }
}
