//! Reading an answer cell by cell: a row that we cannot read is left out and reported, and takes no other row with it.

use std::collections::BTreeSet;

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::layout::Column;

/// The cells of one row, read from left to right.
pub(crate) struct Cells<'a> {
    row: &'a Row,
    next: usize,
}

/// A value that we cannot read.
#[derive(Debug)]
pub(crate) struct Unreadable<'a> {
    pub(crate) column: &'a Column,
    /// Where it is a text that stands for nothing we know.
    pub(crate) word: Option<String>,
}

/// What could not be read of the rows of one call.
#[derive(Debug, Default)]
pub(crate) struct LeftOut<'a> {
    pub(crate) row_count: usize,
    pub(crate) columns: BTreeSet<&'a str>,
}

impl<'a> Cells<'a> {
    pub(crate) fn new(row: &'a Row, first: usize) -> Cells<'a> {
        Cells { row, next: first }
    }

    /// The next cell, which holds the value of `column`.
    pub(crate) fn take<'c, T: FromSql<'a>>(&mut self, column: &'c Column) -> Result<T, Unreadable<'c>> {
        let index = self.next;
        self.next = index.saturating_add(1);
        self.row.try_get(index).map_err(|_| Unreadable::of(column))
    }

    /// The next cell, a number that is never negative.
    pub(crate) fn take_count<'c>(&mut self, column: &'c Column) -> Result<u32, Unreadable<'c>> {
        u32::try_from(self.take::<i64>(column)?).map_err(|_| Unreadable::of(column))
    }
}

impl<'a> Unreadable<'a> {
    pub(crate) fn of(column: &'a Column) -> Unreadable<'a> {
        Unreadable { column, word: None }
    }
}

impl<'a> LeftOut<'a> {
    /// The row, if it could be read.
    pub(crate) fn sort<T>(&mut self, read: Result<T, Unreadable<'a>>) -> Option<T> {
        read.map_err(|Unreadable { column, .. }| {
            self.row_count += 1;
            self.columns.insert(&column.name);
        })
        .ok()
    }

    /// Says which columns hold such values, if any does, and in how many rows; the rows' keys are values, too.
    pub(crate) fn report(self) {
        if self.row_count > 0 {
            let columns = self.columns.into_iter().collect::<Vec<_>>().join(", ");
            tracing::error!(
                rows = self.row_count,
                columns,
                "the work table holds rows that we cannot read; they are left out: `postrider work ls` names them, and says what to type"
            );
        }
    }
}
