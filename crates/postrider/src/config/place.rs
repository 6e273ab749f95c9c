//! Where something stands in a configuration file.

use std::fmt;

/// A place in the file: the byte offset at which something begins, or the file as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(Option<usize>);

impl Place {
    /// The file as a whole: for what is missing.
    pub(crate) const FILE: Place = Place(None);

    pub(crate) fn offset(bytes: usize) -> Place {
        Place(Some(bytes))
    }

    /// Line and column in `text`, both from 1, the column in characters; `None` for the file as a whole.
    pub(crate) fn line_and_column(self, text: &str) -> Option<LineColumn> {
        let mut end = self.0?.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let before = text.get(..end)?;
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |tail| tail.chars().count()) + 1;
        Some(LineColumn { line, column })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LineColumn {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl fmt::Display for LineColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) place: Place,
}
