//! `pg_recvlogical`, PostgreSQL's own reader of a slot, at its best options.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use postrider_core::pgoutput::{Message, ParseProblem, TupleValue};
use xtask::error::{Context, Error, Result};

use crate::measure::Tally;
use crate::server::{PUBLICATION, Server};

pub(crate) const NAME: &str = "pg_recvlogical";

/// How it is asked to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Protocol 2, binary values, streaming of large transactions: what it is fastest with.
    Fastest,
    /// Protocol 1 and binary values: what it is fastest with where a transaction is read after its commit.
    Whole,
    /// Protocol 1 and text, so that its bytes can be compared with ours.
    Comparable,
}

/// The command that reads a slot into `output` and ends at `end`.
pub(crate) fn command(server: &Server, slot: &str, end: &str, output: &Path, format: Format) -> Command {
    let mut command = Command::new(server.cluster.installation().tool(NAME));
    command.args(["--start", "--no-loop", "--slot", slot, "--endpos", end, "--dbname", &server.url()]);
    command.arg("--file").arg(output).args(["-o", &format!("publication_names={PUBLICATION}")]);
    match format {
        Format::Fastest => command.args(["-o", "proto_version=2", "-o", "binary=true", "-o", "streaming=on"]),
        Format::Whole => command.args(["-o", "proto_version=1", "-o", "binary=true"]),
        Format::Comparable => command.args(["-o", "proto_version=1"]),
    };
    command.stdin(Stdio::null());
    command
}

/// Counts the rows in a file it wrote. It writes each message as it is and a line feed after it.
pub(crate) fn tally(file: &Path) -> Result<Tally> {
    let bytes = fs::read(file).context(|| format!("cannot read {}", file.display()))?;
    let mut tally = Tally::default();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        // The parser says where a message ends that has more behind it.
        let length = match Message::parse(rest) {
            Err(error) if error.problem == ParseProblem::TrailingBytes => error.offset,
            other => return Err(Error::new(format!("{NAME} wrote what is no message: {:?}", other.err()))),
        };
        let (message, after) = rest.split_at(length);
        if let Ok(Message::Insert(insert)) = Message::parse(message) {
            tally.row(insert.new.columns().map(bytes_of));
        }
        rest = after.strip_prefix(b"\n").ok_or_else(|| Error::new("a line feed is missing in the output"))?;
    }
    Ok(tally)
}

/// The bytes of a column; `None` where there are none.
pub(crate) fn bytes_of(value: TupleValue<'_>) -> Option<&[u8]> {
    match value {
        TupleValue::Null | TupleValue::Unchanged => None,
        TupleValue::Text(bytes) | TupleValue::Binary(bytes) => Some(bytes),
    }
}
