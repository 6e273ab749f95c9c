//! Prints what is wanted of a journal, line by line, until there is enough of it or nobody reads any more.

use crate::reading::filter::{Filter, Wanted};
use crate::reading::lines::{Lines, push_raw_json, push_raw_text, push_transaction_text};
use crate::reading::walk::{Seen, Visit, Wish};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::position::{Generation, Lsn};
use postrider_core::transaction::{Part, PartKind};
use postrider_delivery::render;
use std::io::{BufWriter, ErrorKind as IoErrorKind, StdoutLock, Write};
use std::ops::ControlFlow;

/// How it is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// One JSON object for each change.
    Json,
    /// Lines for a person.
    Text,
    /// What the journal's frames hold; `true`: as JSON.
    Raw { json: bool },
}

/// Prints changes on standard output.
#[derive(Debug)]
pub(crate) struct Show {
    out: BufWriter<StdoutLock<'static>>,
    filter: Filter,
    lines: Lines,
    style: Style,
    /// So many changes that are wanted are left out first.
    skipped: u64,
    /// So many lines may still follow.
    left: u64,
    generation: Generation,
    /// The transaction whose first line was printed last.
    introduced: Option<(Generation, Lsn)>,
    line: String,
}

impl Show {
    pub(crate) fn new(filter: Filter, style: Style, limit: Option<u64>) -> Show {
        Show {
            out: BufWriter::new(std::io::stdout().lock()),
            filter,
            lines: Lines::default(),
            style,
            skipped: 0,
            left: limit.unwrap_or(u64::MAX),
            generation: Generation::FIRST,
            introduced: None,
            line: String::new(),
        }
    }

    /// Leaves out the first so many changes that are wanted.
    pub(crate) fn skip(self, skipped: u64) -> Show {
        Show { skipped, ..self }
    }

    /// Prints what was gathered as one line of those that are counted.
    fn print(&mut self) -> Result<ControlFlow<()>> {
        self.left = self.left.saturating_sub(1);
        let printed = self.out.write_all(self.line.as_bytes());
        self.line.clear();
        // What one very large row took is given back.
        self.line.shrink_to(1024 * 1024);
        if self.left == 0 && printed.is_ok() {
            return Ok(ControlFlow::Break(()));
        }
        readable(printed)
    }

    fn push_row(&mut self, seen: &Seen<'_>) {
        if self.style == Style::Json {
            self.lines.push_json(&mut self.line, seen);
        } else {
            let transaction = (self.generation, seen.head.commit_lsn);
            if self.introduced.replace(transaction) != Some(transaction) {
                push_transaction_text(&mut self.line, seen.head, self.generation);
            }
            self.lines.push_text(&mut self.line, seen);
        }
        self.line.push('\n');
    }
}

impl Visit for Show {
    fn part(&mut self, part: &Part<'_>, generation: Generation) -> Result<Wish> {
        self.generation = generation;
        self.lines.begin_part();
        match self.style {
            Style::Json | Style::Text if part.head.kind == PartKind::Transaction => return Ok(Wish::Changes),
            Style::Json | Style::Text => return Ok(Wish::Nothing),
            Style::Raw { json: true } => push_raw_json(&mut self.line, part, generation),
            Style::Raw { json: false } => push_raw_text(&mut self.line, part, generation),
        }
        Ok(if self.print()?.is_break() { Wish::Enough } else { Wish::Nothing })
    }

    fn change(&mut self, seen: &Seen<'_>) -> Result<ControlFlow<()>> {
        match self.filter.admit(seen)? {
            Wanted::No => return Ok(ControlFlow::Continue(())),
            Wanted::Row | Wanted::Event(_) if self.skipped > 0 => {
                self.skipped -= 1;
                return Ok(ControlFlow::Continue(()));
            }
            Wanted::Row => self.push_row(seen),
            Wanted::Event(event) => {
                let mut bytes = Vec::new();
                render(&event, &mut bytes);
                // Line breaks can only be space between the tokens of a JSON payload.
                self.line.push_str(&String::from_utf8_lossy(&bytes).replace(['\n', '\r'], " "));
                self.line.push('\n');
            }
        }
        self.print()
    }

    fn rest(&mut self) -> Result<ControlFlow<()>> {
        let flushed = self.out.flush();
        readable(flushed)
    }
}

/// A reader that went away has seen enough.
fn readable(printed: std::io::Result<()>) -> Result<ControlFlow<()>> {
    match printed {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == IoErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(Error::new(ErrorKind::Disk, "cannot write to standard output").with_source(error)),
    }
}
