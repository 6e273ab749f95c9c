//! What: reads the messages of a part as changes of known tables.
//! Where: first step behind the journal, after *follow*, before *observe* and *route*.
//! Takes and gives: a part; its changes with their ordinals, borrowed.
//! Never: copies a row, or needs anything beyond the messages it was given.

use crate::change::Change;
use crate::error::{Error, ErrorKind};
use crate::pgoutput::ParseError;
use crate::ports::SchemaBlock;
use crate::relation::Relations;
use crate::transaction::Part;
use crate::transaction::Messages;

/// The tables in force at the place it has read up to.
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
    UnknownRelation { oid: u32 },
}

impl Decoder {
    pub fn new() -> Decoder { Decoder::default() }
    /// Takes the messages in force where the next part stands (from [`crate::ports::Follower::schema`]).
    pub fn load(&mut self, schema: &SchemaBlock) -> Result<(), DecodeError> { todo!() }
    /// The changes of a part. Read them all: the tables change on the way.
    pub fn changes<'d>(&'d mut self, part: Part<'d>) -> Changes<'d> { todo!() }
}

impl Changes<'_> {
    /// The next change and its ordinal within the transaction; a logical message has the ordinal of the change after it.
    #[expect(clippy::should_implement_trait, reason = "it lends")]
    pub fn next(&mut self) -> Option<Result<(u64, Change<'_>), DecodeError>> { todo!() }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Error { Error::new(ErrorKind::Protocol, "x") }
}
