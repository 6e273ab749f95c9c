//! What: puts the messages of the stream together to committed transactions.
//! Where: second step of the walk, after *frame*, before *append*.
//! Takes and gives: pgoutput messages in stream order; parts of transactions, in commit order, each exactly once.
//! Never: looks at a table or a column, waits, or holds a transaction whole.

use crate::error::{Error, ErrorKind};
use crate::pgoutput::ParseError;
use crate::ports::SchemaBlock;
use crate::position::Lsn;
use crate::time::Timestamp;
use crate::transaction::TransactionBatch;

/// The state between two messages.
#[derive(Debug)]
pub struct Assembler {}

/// A message that cannot stand where it stands, or that this version does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssembleError {
    Malformed(ParseError),
}

impl Assembler {
    /// An assembler behind a journal that ends at `journal_end`: what the server sends again from before is dropped.
    pub fn new(journal_end: Lsn) -> Assembler { todo!() }
    /// Takes one message; adds the parts that it completes to `batch`.
    pub fn push(&mut self, payload: &[u8], batch: &mut TransactionBatch) -> Result<(), AssembleError> { todo!() }
    /// Takes a keep-alive: adds a mark to `batch` where that moves the end and no transaction is open. Whether it did.
    pub fn mark(&mut self, wal_end: Lsn, at: Timestamp, batch: &mut TransactionBatch) -> bool { todo!() }
    /// The connection was lost; every part given so far is in the journal, but for those of the open transaction.
    pub fn restart(&mut self) { todo!() }
    /// End LSN up to which everything has been received, whether it left a part or not.
    pub fn received_end(&self) -> Lsn { todo!() }
    /// A transaction is open.
    pub fn in_transaction(&self) -> bool { todo!() }
    /// The messages of types and tables in force now, types first.
    pub fn schema(&mut self) -> &SchemaBlock { todo!() }
    /// How many non-transactional logical messages were dropped.
    pub fn ignored_messages(&self) -> u64 { todo!() }
}

impl From<AssembleError> for Error {
    fn from(error: AssembleError) -> Error { Error::new(ErrorKind::Protocol, "x") }
}
