//! One change of the log with the table it belongs to.

use crate::pgoutput::{LogicalMessage, Oids, OldTuple, Tuple, TupleValue};
use crate::relation::{Relation, Relations};
use std::sync::Arc;

/// A change, borrowed from the part it stands in and from the decoder's tables.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    Insert {
        relation: &'a Arc<Relation>,
        new: Tuple<'a>,
    },
    /// `old` is there where the replica identity's columns changed, and always under REPLICA IDENTITY FULL.
    Update {
        relation: &'a Arc<Relation>,
        old: Option<OldTuple<'a>>,
        new: Tuple<'a>,
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

/// The tables of one TRUNCATE; each is known to the decoder.
#[derive(Debug, Clone, Copy)]
pub struct TruncatedRelations<'a> {
    known: &'a Relations,
    oids: Oids<'a>,
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

/// The column at `index` of the new version, taken from the whole old one where the update did not touch it. It stays
/// [`TupleValue::Unchanged`] where the log does not have it.
pub fn new_value<'a>(old: Option<OldTuple<'a>>, new: Tuple<'a>, index: usize) -> Option<TupleValue<'a>> {
    match (new.column(index)?, old) {
        (TupleValue::Unchanged, Some(OldTuple::Full(old))) => old.column(index),
        (value, _) => Some(value),
    }
}
