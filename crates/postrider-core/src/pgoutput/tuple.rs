use super::cursor::Cursor;
use super::{ParseError, ParseProblem};

/// The columns of one row version (`TupleData`), checked when it was parsed and split again as it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    column_count: u16,
    bytes: &'a [u8],
}

/// One column of a tuple, in the order of the relation's columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TupleValue<'a> {
    /// `n`
    Null,
    /// `u`: a value stored out of line that the update did not touch, so the log does not have it.
    Unchanged,
    /// `t`: as the type's output function writes it.
    Text(&'a [u8]),
    /// `b`: as the type's send function writes it.
    Binary(&'a [u8]),
}

/// What an update or a delete says of the version before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldTuple<'a> {
    /// `K`: only the columns of the replica identity are meant; the others are sent as NULL.
    Key(Tuple<'a>),
    /// `O`: the whole row, under REPLICA IDENTITY FULL.
    Full(Tuple<'a>),
}

/// Iterator over the columns of a tuple.
#[derive(Debug, Clone)]
pub struct TupleColumns<'a> {
    left: u16,
    rest: &'a [u8],
}

impl<'a> Tuple<'a> {
    /// How many columns there are.
    pub fn len(&self) -> usize {
        usize::from(self.column_count)
    }

    pub fn is_empty(&self) -> bool {
        self.column_count == 0
    }

    /// The columns in order. Splitting is repeated by each call, and cheap.
    pub fn columns(&self) -> TupleColumns<'a> {
        TupleColumns { left: self.column_count, rest: self.bytes }
    }

    /// The column at `index`, from 0. Walks over the columns before it.
    pub fn column(&self, index: usize) -> Option<TupleValue<'a>> {
        self.columns().nth(index)
    }

    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Tuple<'a>, ParseError> {
        let column_count = cursor.count16()?;
        let bytes = cursor.rest();
        let mut rest = bytes;
        for _ in 0..column_count {
            match split_value(rest) {
                Some((_, after)) => rest = after,
                None => {
                    cursor.advance_to(rest);
                    return Err(explain(cursor));
                }
            }
        }
        cursor.advance_to(rest);
        Ok(Tuple { column_count, bytes })
    }
}

impl<'a> OldTuple<'a> {
    /// The columns, whichever kind it is.
    pub fn tuple(&self) -> Tuple<'a> {
        match *self {
            OldTuple::Key(tuple) | OldTuple::Full(tuple) => tuple,
        }
    }
}

impl<'a> Iterator for TupleColumns<'a> {
    type Item = TupleValue<'a>;

    #[inline]
    fn next(&mut self) -> Option<TupleValue<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (value, rest) = split_value(self.rest)?;
        self.rest = rest;
        Some(value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

#[inline]
fn split_value(bytes: &[u8]) -> Option<(TupleValue<'_>, &[u8])> {
    let (&kind, rest) = bytes.split_first()?;
    match kind {
        b'n' => Some((TupleValue::Null, rest)),
        b'u' => Some((TupleValue::Unchanged, rest)),
        b't' | b'b' => {
            let (length, rest) = rest.split_first_chunk::<4>()?;
            let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
            let (value, rest) = rest.split_at_checked(length)?;
            Some((if kind == b't' { TupleValue::Text(value) } else { TupleValue::Binary(value) }, rest))
        }
        _ => None,
    }
}

/// Says why [`split_value`] failed at the cursor.
fn explain(cursor: &mut Cursor<'_>) -> ParseError {
    let at = cursor.offset();
    match cursor.u8() {
        Ok(b't' | b'b') => cursor.sized().err().unwrap_or_else(|| cursor.truncated()),
        Ok(marker) => cursor.error_at(at, ParseProblem::UnknownMarker(marker)),
        Err(error) => error,
    }
}
