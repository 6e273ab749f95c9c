//! Arrays as `array_out` writes them: `{1,NULL,"a b"}`, `{{1,2},{3,4}}`, `[0:1]={7,8}`.

use super::quoted::{Cursor, Escapes, quote};
use std::borrow::Cow;

/// The most dimensions that the server knows (`MAXDIM`).
const DIMENSIONS_MAX: usize = 6;

/// The elements in row-major order, `None` for NULL, and how they lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array<E> {
    /// From the outermost to the innermost; none in an empty array.
    pub dimensions: Vec<Dimension>,
    pub elements: Vec<Option<E>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dimension {
    /// The subscript of the first element; 1 unless the text says otherwise.
    pub lower: i32,
    pub length: usize,
}

/// Braces that are open while an array is read.
#[derive(Debug, Default)]
struct Nesting {
    /// How many members each open brace has so far.
    counts: Vec<usize>,
    /// How many members the braces of each depth have, once one was closed.
    lengths: Vec<Option<usize>>,
    /// How many braces stand around an element.
    depth: Option<usize>,
}

impl<'a> Array<Cow<'a, str>> {
    /// Reads the text of an array; `None` where it is none. The elements are still text.
    pub fn parse(text: &'a str, delimiter: char) -> Option<Array<Cow<'a, str>>> {
        let mut cursor = Cursor::new(text);
        let bounds = bounds(&mut cursor)?;
        if cursor.eat_text("{}") {
            let is_whole = bounds.is_empty() && cursor.is_at_end();
            return is_whole.then(|| Array { dimensions: Vec::new(), elements: Vec::new() });
        }
        let mut elements = Vec::new();
        let mut nesting = Nesting::default();
        loop {
            while cursor.eat('{') {
                nesting.open()?;
            }
            elements.push(element(&mut cursor, delimiter)?);
            nesting.element()?;
            while cursor.eat('}') {
                nesting.close()?;
            }
            if nesting.counts.is_empty() {
                break;
            }
            if !cursor.eat(delimiter) {
                return None;
            }
        }
        let dimensions = nesting.dimensions(&bounds).filter(|_| cursor.is_at_end())?;
        Some(Array { dimensions, elements })
    }
}

impl<E> Array<E> {
    /// The same array of other elements; `None` and an error end it.
    pub fn try_map<F, X>(self, mut map: impl FnMut(E) -> Result<F, X>) -> Result<Array<F>, X> {
        let map = |element: Option<E>| element.map(&mut map).transpose();
        let elements = self.elements.into_iter().map(map).collect::<Result<_, X>>()?;
        Ok(Array { dimensions: self.dimensions, elements })
    }

    /// Whether every dimension starts at 1, as arrays do unless somebody took care.
    pub fn starts_at_one(&self) -> bool {
        self.dimensions.iter().all(|dimension| dimension.lower == 1)
    }

    /// Writes the elements with brackets around each row, row of rows and so on.
    pub(crate) fn write_nested<X>(
        &self,
        out: &mut String,
        [open, delimiter, close]: [char; 3],
        mut write: impl FnMut(&mut String, Option<&E>) -> Result<(), X>,
    ) -> Result<(), X> {
        if self.dimensions.is_empty() {
            out.extend([open, close]);
            return Ok(());
        }
        // How many elements the brackets of each depth hold.
        let mut spans: Vec<usize> = Vec::with_capacity(self.dimensions.len());
        for dimension in self.dimensions.iter().rev() {
            spans.push(spans.last().copied().unwrap_or(1).saturating_mul(dimension.length));
        }
        let edges = |at: usize| spans.iter().filter(move |span| at.checked_rem(**span) == Some(0)).count();
        for (element, at) in self.elements.iter().zip(0_usize..) {
            if at > 0 {
                out.push(delimiter);
            }
            out.extend(std::iter::repeat_n(open, edges(at)));
            write(out, element.as_ref())?;
            out.extend(std::iter::repeat_n(close, edges(at.saturating_add(1))));
        }
        Ok(())
    }

    /// Writes the array as the server does.
    pub(super) fn write_text(&self, out: &mut String, delimiter: char, text_of: impl Fn(&E) -> String) {
        if !self.starts_at_one() {
            for Dimension { lower, length } in &self.dimensions {
                let last = i64::try_from(*length).unwrap_or(i64::MAX).saturating_add(i64::from(*lower));
                out.push_str(&format!("[{lower}:{}]", last.saturating_sub(1)));
            }
            out.push('=');
        }
        let written = self.write_nested(out, ['{', delimiter, '}'], |out, element| {
            match element {
                None => out.push_str("NULL"),
                Some(element) => write_element(out, &text_of(element), delimiter),
            }
            Ok::<(), std::convert::Infallible>(())
        });
        let Ok(()) = written;
    }
}

impl Nesting {
    fn open(&mut self) -> Option<()> {
        if self.counts.len() >= self.depth.unwrap_or(DIMENSIONS_MAX) {
            return None;
        }
        self.counts.push(0);
        if self.lengths.len() < self.counts.len() {
            self.lengths.push(None);
        }
        Some(())
    }

    /// Takes note of an element: all stand equally deep.
    fn element(&mut self) -> Option<()> {
        let depth = self.counts.len();
        if *self.depth.get_or_insert(depth) != depth {
            return None;
        }
        self.member()
    }

    fn member(&mut self) -> Option<()> {
        let count = self.counts.last_mut()?;
        *count = count.checked_add(1)?;
        Some(())
    }

    /// Takes note of a closed brace: all of one depth have equally many members.
    fn close(&mut self) -> Option<()> {
        let count = self.counts.pop()?;
        let length = self.lengths.get_mut(self.counts.len())?;
        if *length.get_or_insert(count) != count {
            return None;
        }
        if self.counts.is_empty() { Some(()) } else { self.member() }
    }

    fn dimensions(self, bounds: &[(i32, i32)]) -> Option<Vec<Dimension>> {
        let lengths: Vec<usize> = self.lengths.into_iter().collect::<Option<_>>()?;
        if bounds.is_empty() {
            return Some(lengths.into_iter().map(|length| Dimension { lower: 1, length }).collect());
        }
        if bounds.len() != lengths.len() {
            return None;
        }
        let dimension = |((lower, upper), length): (&(i32, i32), usize)| {
            let span = i64::from(*upper).saturating_sub(i64::from(*lower)).saturating_add(1);
            (usize::try_from(span) == Ok(length)).then_some(Dimension { lower: *lower, length })
        };
        bounds.iter().zip(lengths).map(dimension).collect()
    }
}

/// `[2:3][0:1]=`, or nothing.
fn bounds(cursor: &mut Cursor<'_>) -> Option<Vec<(i32, i32)>> {
    let mut bounds = Vec::new();
    while cursor.eat('[') {
        let lower = cursor.until(&[':']).parse().ok()?;
        cursor.eat(':');
        let upper = cursor.until(&[']']).parse().ok()?;
        if !cursor.eat(']') || bounds.len() == DIMENSIONS_MAX {
            return None;
        }
        bounds.push((lower, upper));
    }
    (bounds.is_empty() || cursor.eat('=')).then_some(bounds)
}

/// An element, where one must be. A bare NULL is none; a quoted one is text.
fn element<'a>(cursor: &mut Cursor<'a>, delimiter: char) -> Option<Option<Cow<'a, str>>> {
    if let Some(content) = cursor.quoted(Escapes::Backslash) {
        return Some(Some(content));
    }
    let bare = cursor.until(&[delimiter, '{', '}', '"', '\\']);
    match bare {
        "" => None,
        _ if bare.eq_ignore_ascii_case("NULL") => Some(None),
        _ => Some(Some(Cow::Borrowed(bare))),
    }
}

/// Quotes what `array_out` quotes.
fn write_element(out: &mut String, text: &str, delimiter: char) {
    let is_special =
        |c: char| c == delimiter || matches!(c, '"' | '\\' | '{' | '}' | ' ' | '\t' | '\n' | '\r' | '\u{b}' | '\u{c}');
    if text.is_empty() || text.eq_ignore_ascii_case("NULL") || text.contains(is_special) {
        quote(out, text, Escapes::Backslash);
    } else {
        out.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = (Vec<(i32, usize)>, Vec<Option<String>>);

    fn read(text: &str) -> Option<Read> {
        let array = Array::parse(text, ',')?;
        let dimensions = array.dimensions.iter().map(|d| (d.lower, d.length)).collect();
        Some((dimensions, array.elements.into_iter().map(|e| e.map(Cow::into_owned)).collect()))
    }

    fn some(texts: &[&str]) -> Vec<Option<String>> {
        texts.iter().map(|text| Some((*text).to_owned())).collect()
    }

    #[test]
    fn shapes_and_bounds_are_read() {
        assert_eq!(read("{}"), Some((vec![], vec![])));
        assert_eq!(read("{{1,2},{3,4}}"), Some((vec![(1, 2), (1, 2)], some(&["1", "2", "3", "4"]))));
        assert_eq!(read("[2:3][0:0]={{a},{b}}"), Some((vec![(2, 2), (0, 1)], some(&["a", "b"]))));
        assert_eq!(read("[-5:-5]={1}"), Some((vec![(-5, 1)], some(&["1"]))));
        assert_eq!(read("{{{{{{1}}}}}}"), Some((vec![(1, 1); 6], some(&["1"]))));
    }

    #[test]
    fn a_bare_null_is_none_and_a_quoted_one_is_text() {
        let (_, elements) = read(r#"{"NULL",NULL,"","a\"b","a\\b","x,y","{q}"}"#).unwrap();
        let expected = [Some("NULL"), None, Some(""), Some("a\"b"), Some("a\\b"), Some("x,y"), Some("{q}")];
        assert_eq!(elements, expected.map(|element| element.map(str::to_owned)));
    }

    #[test]
    fn what_is_no_array_is_refused() {
        for text in [
            "",
            "{",
            "}",
            "{1",
            "1}",
            "{1,}",
            "{,1}",
            "{1}2",
            "{1}{2}",
            "{{1},{2,3}}",
            "{{1},2}",
            "{1,{2}}",
            "{{}}",
            "{{1},{}}",
            "[0:1]={1}",
            "[0:1]{1,2}",
            "[0:0]={}",
            "[0]={1}",
            "[1:1][1:1]={1}",
            "[a:b]={1}",
            "{\"a}",
            "{a\"b\"}",
            "{\"a\"b}",
            "{a\\b}",
            "{{{{{{{1}}}}}}}",
            "[0:99999999999]={1}",
            "[-2147483648:2147483647]={1}",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
