//! What a guarded statement is asked: a table of parameters with a row for each work row that it names.
//!
//! Many rows come as arrays, but for the columns that say the same of all of them: those come as plain values, as all do where a single row is
//! named. The server is done with a plain value sooner than with an array.

use std::sync::Arc;

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::work::WorkKey;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::layout::unreadable;
use crate::client::Parameters;

/// The columns of `asked` behind the key, `(type, name)`: those that differ from row to row, and those that as a rule do not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns<'a> {
    pub(super) each: &'a [(&'static str, &'static str)],
    pub(super) alike: &'a [(&'static str, &'static str)],
}

impl Columns<'_> {
    pub(super) const fn len(&self) -> usize {
        self.each.len() + self.alike.len()
    }
}

/// How the columns come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// All as arrays.
    Many,
    /// Key and `each` as arrays, the others as plain values.
    Alike,
    /// All as plain values.
    One,
}

/// The same statement for each shape of what it is asked.
#[derive(Debug)]
pub(super) struct Statement {
    many: Arc<str>,
    alike: Arc<str>,
    one: Arc<str>,
}

/// A statement's parameters: a column for each of `asked`, in its order, then those that the statement has beside them.
pub(super) struct Asked<'a> {
    rows: usize,
    columns: Vec<Column<'a>>,
    others: Parameters<'a>,
}

struct Column<'a> {
    is_of_each: bool,
    /// Where the rows have one value.
    value: Option<Parameter<'a>>,
    array: Parameter<'a>,
}

type Parameter<'a> = Box<dyn ToSql + Sync + Send + 'a>;

impl Statement {
    pub(super) fn new(text: impl Fn(Shape) -> String) -> Statement {
        Statement { many: text(Shape::Many).into(), alike: text(Shape::Alike).into(), one: text(Shape::One).into() }
    }

    pub(super) fn text(&self, shape: Shape) -> &Arc<str> {
        match shape {
            Shape::Many => &self.many,
            Shape::Alike => &self.alike,
            Shape::One => &self.one,
        }
    }
}

impl<'a> Asked<'a> {
    /// Begins with the columns of the key.
    pub(super) fn new(width: usize, keys: impl ExactSizeIterator<Item = &'a WorkKey>) -> Result<Asked<'a>> {
        let mut asked = Asked { rows: keys.len(), columns: Vec::new(), others: Parameters::new() };
        for column in key_columns(width, keys)? {
            asked.push(column, true);
        }
        Ok(asked)
    }

    /// The next column of those that differ from row to row.
    pub(super) fn each<T: ToSql + Clone + PartialEq + Sync + Send + 'a>(&mut self, values: impl Iterator<Item = T>) {
        self.push(values.collect(), true);
    }

    /// The next column of those that as a rule do not differ.
    pub(super) fn alike<T: ToSql + Clone + PartialEq + Sync + Send + 'a>(&mut self, values: impl Iterator<Item = T>) {
        self.push(values.collect(), false);
    }

    /// What the statement takes beside its rows.
    pub(super) fn other(&mut self, value: impl ToSql + Sync + Send + 'a) {
        self.others.push(Box::new(value));
    }

    /// The parameters, and for which of the statement's texts they are.
    pub(super) fn finish(self) -> (Shape, Parameters<'a>) {
        let is_alike = |column: &Column<'_>| column.is_of_each || column.value.is_some();
        let shape = match self.rows {
            1 => Shape::One,
            _ if self.columns.iter().all(is_alike) => Shape::Alike,
            _ => Shape::Many,
        };
        let parameter = |column: Column<'a>| match (shape, column.value) {
            (Shape::One, Some(value)) => value,
            (Shape::Alike, Some(value)) if !column.is_of_each => value,
            _ => column.array,
        };
        (shape, self.columns.into_iter().map(parameter).chain(self.others).collect())
    }

    fn push<T: ToSql + Clone + PartialEq + Sync + Send + 'a>(&mut self, values: Vec<T>, is_of_each: bool) {
        let first = values.first().filter(|first| values.iter().all(|value| value == *first));
        let value = first.cloned().map(|value| Box::new(value) as Parameter<'a>);
        self.columns.push(Column { is_of_each, value, array: Box::new(values) });
    }
}

/// For each column of the key its texts in these keys.
fn key_columns<'a>(width: usize, keys: impl ExactSizeIterator<Item = &'a WorkKey>) -> Result<Vec<Vec<&'a str>>> {
    let mut columns: Vec<Vec<&str>> = (0..width).map(|_| Vec::with_capacity(keys.len())).collect();
    for key in keys {
        if key.parts().count() != width {
            return Err(Error::new(ErrorKind::Internal, "a work key has another number of parts than the table's key"));
        }
        columns.iter_mut().zip(key.parts()).for_each(|(column, part)| column.push(part));
    }
    Ok(columns)
}

/// The arrays of the key columns for these keys, as parameters.
pub(crate) fn key_parameters<'a>(
    width: usize,
    keys: impl ExactSizeIterator<Item = &'a WorkKey>,
) -> Result<Parameters<'a>> {
    Ok(key_columns(width, keys)?.into_iter().map(|column| Box::new(column) as Parameter<'a>).collect())
}

/// What was asked for that an answer is about, with its place: the answer's first column is `ord`.
pub(crate) fn find_asked<'a, T>(answer: &Row, asked: &'a [T]) -> Result<(usize, &'a T)> {
    let ord: i64 = answer.try_get(0).map_err(unreadable)?;
    let place = usize::try_from(ord).ok().and_then(|ord| ord.checked_sub(1));
    place
        .and_then(|place| Some((place, asked.get(place)?)))
        .ok_or_else(|| Error::new(ErrorKind::Internal, "a statement answered for a row it was not asked for"))
}
