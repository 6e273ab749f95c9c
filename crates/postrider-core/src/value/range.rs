//! Ranges and multiranges as `range_out` and `multirange_out` write them: `[1,5)`, `empty`, `{[1,3),[5,7)}`.

use super::quoted::{Cursor, Escapes, quote};
use std::borrow::Cow;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Range<B> {
    Empty,
    /// `None` where there is no bound on that side; then it is not inclusive.
    Span {
        lower: Option<B>,
        lower_inclusive: bool,
        upper: Option<B>,
        upper_inclusive: bool,
    },
}

impl<'a> Range<Cow<'a, str>> {
    /// Reads the text of a range; `None` where it is none. The bounds are still text.
    pub fn parse(text: &'a str) -> Option<Range<Cow<'a, str>>> {
        let mut cursor = Cursor::new(text);
        Range::take(&mut cursor).filter(|_| cursor.is_at_end())
    }

    /// Reads the text of a multirange; `None` where it is none.
    pub fn parse_multirange(text: &'a str) -> Option<Vec<Range<Cow<'a, str>>>> {
        let mut cursor = Cursor::new(text);
        let mut ranges = Vec::new();
        if !cursor.eat('{') {
            return None;
        }
        if !cursor.eat('}') {
            loop {
                ranges.push(Range::take(&mut cursor)?);
                if cursor.eat('}') {
                    break;
                }
                if !cursor.eat(',') {
                    return None;
                }
            }
        }
        cursor.is_at_end().then_some(ranges)
    }

    fn take(cursor: &mut Cursor<'a>) -> Option<Range<Cow<'a, str>>> {
        if cursor.eat_text("empty") {
            return Some(Range::Empty);
        }
        let lower_inclusive = cursor.eat('[');
        if !lower_inclusive && !cursor.eat('(') {
            return None;
        }
        let lower = cursor.item(&[','])?;
        if !cursor.eat(',') {
            return None;
        }
        let upper = cursor.item(&[')', ']'])?;
        let upper_inclusive = cursor.eat(']');
        if !upper_inclusive && !cursor.eat(')') {
            return None;
        }
        Some(Range::Span { lower, lower_inclusive, upper, upper_inclusive })
    }
}

impl<B> Range<B> {
    /// The same range of other bounds; an error ends it.
    pub fn try_map<C, X>(self, mut map: impl FnMut(B) -> Result<C, X>) -> Result<Range<C>, X> {
        Ok(match self {
            Range::Empty => Range::Empty,
            Range::Span { lower, lower_inclusive, upper, upper_inclusive } => Range::Span {
                lower: lower.map(&mut map).transpose()?,
                lower_inclusive,
                upper: upper.map(&mut map).transpose()?,
                upper_inclusive,
            },
        })
    }

    /// Writes the range as the server does.
    pub(super) fn write_text(&self, out: &mut String, text_of: impl Fn(&B) -> String) {
        let Range::Span { lower, lower_inclusive, upper, upper_inclusive } = self else {
            out.push_str("empty");
            return;
        };
        let write_bound = |out: &mut String, bound: &Option<B>| {
            if let Some(bound) = bound {
                write_bound(out, &text_of(bound));
            }
        };
        out.push(if *lower_inclusive { '[' } else { '(' });
        write_bound(out, lower);
        out.push(',');
        write_bound(out, upper);
        out.push(if *upper_inclusive { ']' } else { ')' });
    }
}

/// Quotes what `range_out` quotes.
fn write_bound(out: &mut String, text: &str) {
    let is_special =
        |c: char| matches!(c, '"' | '\\' | '(' | ')' | '[' | ']' | ',') || c.is_ascii_whitespace() || c == '\u{b}';
    if text.is_empty() || text.contains(is_special) {
        quote(out, text, Escapes::Doubled);
    } else {
        out.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_told_from_no_bounds() {
        let span = |lower, lower_inclusive, upper, upper_inclusive| Range::Span {
            lower: Option::map(lower, Cow::Borrowed),
            lower_inclusive,
            upper: Option::map(upper, Cow::Borrowed),
            upper_inclusive,
        };
        assert_eq!(Range::parse("empty"), Some(Range::Empty));
        assert_eq!(Range::parse("[1,5)"), Some(span(Some("1"), true, Some("5"), false)));
        assert_eq!(Range::parse("(,)"), Some(span(None, false, None, false)));
        assert_eq!(Range::parse("[\"\",\"a\"\"b\\\\\"]"), Some(span(Some(""), true, Some("a\"b\\"), true)));
        let two = vec![span(Some("1"), true, Some("3"), false), span(Some("5"), true, None, false)];
        assert_eq!(Range::parse_multirange("{[1,3),[5,)}"), Some(two));
        assert_eq!(Range::parse_multirange("{}"), Some(vec![]));
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in ["", "[", "[1", "[1,", "[1,2", "1,2", "[1,2)x", "[\"1,2)", "[1\"\",2)", "emptyx", "[,"] {
            assert_eq!(Range::parse(text), None, "{text}");
        }
        for text in ["", "{", "[1,2)", "{[1,2)", "{[1,2),}", "{,}", "{}x"] {
            assert_eq!(Range::parse_multirange(text), None, "{text}");
        }
    }
}
