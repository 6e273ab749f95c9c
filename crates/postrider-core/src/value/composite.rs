//! Composites and hstore as their output functions write them: `(a,"b c",)`, `"k"=>"v", "n"=>NULL`.

use super::quoted::{Cursor, Escapes, quote};
use std::borrow::Cow;

/// Keys and values of an `hstore`, `None` for NULL.
pub type HstorePairs<'a> = Vec<(Cow<'a, str>, Option<Cow<'a, str>>)>;

/// The fields of a composite, `None` for NULL; `None` as a whole where the text is no composite. One without fields
/// is written `()`, which is also how one with a single NULL is written: it has one field here.
pub fn composite_fields(text: &str) -> Option<Vec<Option<Cow<'_, str>>>> {
    let mut cursor = Cursor::new(text);
    let mut fields = Vec::new();
    if !cursor.eat('(') {
        return None;
    }
    loop {
        fields.push(cursor.item(&[',', ')'])?);
        if cursor.eat(')') {
            break;
        }
        if !cursor.eat(',') {
            return None;
        }
    }
    cursor.is_at_end().then_some(fields)
}

/// The pairs of an `hstore` in the order of the text; `None` as a whole where it is none.
pub fn hstore_pairs(text: &str) -> Option<HstorePairs<'_>> {
    let mut cursor = Cursor::new(text);
    let mut pairs = Vec::new();
    while !cursor.is_at_end() {
        if !pairs.is_empty() && !cursor.eat_text(", ") {
            return None;
        }
        let key = cursor.quoted(Escapes::Backslash)?;
        if !cursor.eat_text("=>") {
            return None;
        }
        let value = if cursor.eat_text("NULL") { None } else { Some(cursor.quoted(Escapes::Backslash)?) };
        pairs.push((key, value));
    }
    Some(pairs)
}

/// Writes fields as `record_out` does.
pub(super) fn write_composite<'a>(out: &mut String, fields: impl Iterator<Item = Option<Cow<'a, str>>>) {
    let is_special = |c: char| matches!(c, '"' | '\\' | '(' | ')' | ',') || c.is_ascii_whitespace() || c == '\u{b}';
    out.push('(');
    for (field, index) in fields.zip(0..) {
        if index > 0 {
            out.push(',');
        }
        match field {
            None => {}
            Some(text) if text.is_empty() || text.contains(is_special) => quote(out, &text, Escapes::Doubled),
            Some(text) => out.push_str(&text),
        }
    }
    out.push(')');
}

/// Writes pairs as `hstore_out` does.
pub(super) fn write_hstore(out: &mut String, pairs: &[(String, Option<String>)]) {
    for ((key, value), index) in pairs.iter().zip(0..) {
        if index > 0 {
            out.push_str(", ");
        }
        quote(out, key, Escapes::Backslash);
        out.push_str("=>");
        match value {
            None => out.push_str("NULL"),
            Some(value) => quote(out, value, Escapes::Backslash),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Option<Vec<Option<String>>> {
        Some(composite_fields(text)?.into_iter().map(|field| field.map(Cow::into_owned)).collect())
    }

    #[test]
    fn an_empty_field_is_null_unless_it_is_quoted() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(fields("(,,)"), Some(vec![None, None, None]));
        assert_eq!(fields("(\"\",)"), Some(vec![text(""), None]));
        assert_eq!(fields("(\"a, \"\"b\"\"\",7,t)"), Some(vec![text("a, \"b\""), text("7"), text("t")]));
        assert_eq!(fields("(\"a\\\\b\",[x])"), Some(vec![text("a\\b"), text("[x]")]));
        assert_eq!(fields("()"), Some(vec![None]));
    }

    #[test]
    fn what_is_no_composite_and_no_hstore_is_refused() {
        for text in ["", "(", ")", "(a", "(a,", "(a)b", "(\"a)", "(a\"b\")", "a,b"] {
            assert_eq!(fields(text), None, "{text}");
        }
        for text in ["a", "\"a\"", "\"a\"=>", "\"a\"=>b", "\"a\"=>\"b\",", "\"a\"=>\"b\", ", "\"a\"=>NULLx", ", "] {
            assert_eq!(hstore_pairs(text), None, "{text}");
        }
    }

    #[test]
    fn hstore_tells_null_from_the_word() {
        let pairs = hstore_pairs(r#"""=>"", "n"=>NULL, "k 1"=>"v\"x", "m"=>"NULL""#).unwrap();
        let expected = [("", Some("")), ("n", None), ("k 1", Some("v\"x")), ("m", Some("NULL"))]
            .map(|(key, value)| (Cow::Borrowed(key), value.map(Cow::Borrowed)));
        assert_eq!(pairs, expected);
        assert_eq!(hstore_pairs(""), Some(vec![]));
    }
}
