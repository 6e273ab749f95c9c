//! What: reads the messages of a part as changes of known tables.
//! Where: first step behind the journal, after *follow*, before *observe* and *route*.
//! Takes and gives: a part; its changes with their ordinals, borrowed, what an update did not touch filled from the old row.
//! Never: copies a row, or needs anything beyond the messages it was given.

use crate::change::{Change, Row, TruncatedRelations};
use crate::error::{Error, ErrorKind};
use crate::pgoutput::{Message, OldTuple, ParseError, Tuple};
use crate::ports::SchemaBlock;
use crate::relation::{Relation, Relations};
use crate::transaction::{Messages, Part};
use std::fmt;
use std::sync::Arc;

/// The tables in force at the place it has read up to. One for each follower.
#[derive(Debug, Clone, Default)]
pub struct Decoder {
    relations: Relations,
}

/// The changes of one part, one at a time.
#[derive(Debug)]
pub struct Changes<'d> {
    relations: &'d mut Relations,
    messages: Messages<'d>,
    ordinal: u64,
}

/// Why a part cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    Malformed(ParseError),
    /// A change of a table whose RELATION message never came.
    UnknownRelation {
        oid: u32,
    },
    /// A tuple has more or fewer columns than its table.
    ColumnCount {
        oid: u32,
        expected: usize,
        found: usize,
    },
    /// A message that no part holds (BEGIN, COMMIT, or one of a streamed or prepared transaction).
    UnexpectedMessage(u8),
}

impl Decoder {
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// Takes the messages in force where the next part stands (from [`crate::ports::Follower::schema`]).
    pub fn load(&mut self, schema: &SchemaBlock) -> Result<(), DecodeError> {
        for message in Messages::new(&schema.0) {
            match Message::parse(message)? {
                Message::Relation(relation) => self.relations.apply_relation(&relation),
                Message::Type(data_type) => self.relations.apply_type(&data_type),
                _ => return Err(DecodeError::UnexpectedMessage(tag_of(message))),
            }
        }
        Ok(())
    }

    /// The changes of a part. All of them must be read, since tables change on the way.
    pub fn changes<'d>(&'d mut self, part: Part<'d>) -> Changes<'d> {
        Changes { relations: &mut self.relations, messages: part.messages(), ordinal: part.head.first_ordinal }
    }

    /// The tables known so far.
    pub fn relations(&self) -> &Relations {
        &self.relations
    }
}

impl Changes<'_> {
    /// The next change and its ordinal within the transaction. A logical message has the ordinal of the change after
    /// it, and does not count. After an error the rest of the part must not be used.
    #[expect(clippy::should_implement_trait, reason = "what it returns borrows from it, which Iterator cannot say")]
    pub fn next(&mut self) -> Option<Result<(u64, Change<'_>), DecodeError>> {
        Some(self.next_with_relations()?.map(|(ordinal, change, _)| (ordinal, change)))
    }

    /// As [`Changes::next`], with the tables and types in force where the change stands.
    pub fn next_with_relations(&mut self) -> Option<Result<(u64, Change<'_>, &Relations), DecodeError>> {
        loop {
            let bytes = self.messages.next()?;
            let message = match Message::parse(bytes) {
                Ok(message) => message,
                Err(error) => return Some(Err(error.into())),
            };
            match message {
                Message::Relation(relation) => self.relations.apply_relation(&relation),
                Message::Type(data_type) => self.relations.apply_type(&data_type),
                Message::Origin(_) => {}
                Message::LogicalMessage(message) => {
                    return Some(Ok((self.ordinal, Change::Message(message), self.relations)));
                }
                change => {
                    let ordinal = self.ordinal;
                    self.ordinal = ordinal.saturating_add(1);
                    let relations = &*self.relations;
                    return Some(resolve(relations, change, bytes).map(|change| (ordinal, change, relations)));
                }
            }
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Malformed(error) => error.fmt(f),
            DecodeError::UnknownRelation { oid } => {
                write!(f, "a change of the table with oid {oid} came before its description")
            }
            DecodeError::ColumnCount { oid, expected, found } => {
                write!(f, "a row of the table with oid {oid} has {found} columns instead of {expected}")
            }
            DecodeError::UnexpectedMessage(tag) => write!(f, "message 0x{tag:02x} within a transaction's part"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl From<ParseError> for DecodeError {
    fn from(error: ParseError) -> DecodeError {
        DecodeError::Malformed(error)
    }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Error {
        Error::new(ErrorKind::Protocol, "cannot decode a transaction of the journal").with_source(error)
    }
}

/// Names the table of a change. A tuple always has the columns of the RELATION message before it.
#[inline]
fn resolve<'a>(relations: &'a Relations, message: Message<'a>, bytes: &[u8]) -> Result<Change<'a>, DecodeError> {
    match message {
        Message::Insert(insert) => {
            let relation = known(relations, insert.relation_oid)?;
            check_columns(relation, insert.new)?;
            Ok(Change::Insert { relation, new: Row::new(insert.new, None) })
        }
        Message::Update(update) => {
            let relation = known(relations, update.relation_oid)?;
            if let Some(old) = update.old {
                check_columns(relation, old.tuple())?;
            }
            check_columns(relation, update.new)?;
            Ok(Change::Update { relation, old: update.old, new: Row::new(update.new, update.old) })
        }
        Message::Delete(delete) => {
            let relation = known(relations, delete.relation_oid)?;
            check_columns(relation, OldTuple::tuple(&delete.old))?;
            Ok(Change::Delete { relation, old: delete.old })
        }
        Message::Truncate(truncate) => Ok(Change::Truncate {
            relations: TruncatedRelations::new(relations, truncate.relation_oids)
                .map_err(|oid| DecodeError::UnknownRelation { oid })?,
            cascade: truncate.cascade,
            restart_identity: truncate.restart_identity,
        }),
        _ => Err(DecodeError::UnexpectedMessage(tag_of(bytes))),
    }
}

#[inline]
fn known(relations: &Relations, oid: u32) -> Result<&Arc<Relation>, DecodeError> {
    relations.table(oid).ok_or(DecodeError::UnknownRelation { oid })
}

#[inline]
fn check_columns(relation: &Relation, tuple: Tuple<'_>) -> Result<(), DecodeError> {
    let (expected, found) = (relation.columns.len(), tuple.len());
    if expected == found { Ok(()) } else { Err(DecodeError::ColumnCount { oid: relation.oid, expected, found }) }
}

fn tag_of(message: &[u8]) -> u8 {
    message.first().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests;
