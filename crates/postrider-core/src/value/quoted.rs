//! A walk over text in which items are quoted, as arrays, records, ranges and hstore are written.

use std::borrow::Cow;

/// What is still unread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    rest: &'a str,
}

/// How a quote is written within quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escapes {
    /// Behind a backslash: arrays, hstore.
    Backslash,
    /// Twice, or behind a backslash: records, ranges.
    Doubled,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Cursor<'a> {
        Cursor { rest: text }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes `wanted` if it comes next.
    pub(super) fn eat(&mut self, wanted: char) -> bool {
        self.eat_text(wanted.encode_utf8(&mut [0; 4]))
    }

    /// Takes `wanted` if it comes next.
    pub(super) fn eat_text(&mut self, wanted: &str) -> bool {
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Takes all up to the first of these characters, or to the end.
    pub(super) fn until(&mut self, stops: &[char]) -> &'a str {
        let end = self.rest.find(stops).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at_checked(end).unwrap_or((self.rest, ""));
        self.rest = rest;
        taken
    }

    /// What stands between quotes, where the next character is one. `None` where it is none, or the quotes do not end.
    pub(super) fn quoted(&mut self, escapes: Escapes) -> Option<Cow<'a, str>> {
        if !self.eat('"') {
            return None;
        }
        let mut content = Cow::Borrowed(self.until(&['"', '\\']));
        loop {
            if self.eat('"') {
                if escapes == Escapes::Backslash || !self.eat('"') {
                    return Some(content);
                }
                content.to_mut().push('"');
            } else if self.eat('\\') {
                let mut chars = self.rest.chars();
                content.to_mut().push(chars.next()?);
                self.rest = chars.as_str();
            } else {
                return None;
            }
            let more = self.until(&['"', '\\']);
            content.to_mut().push_str(more);
        }
    }

    /// One bound or field: quoted, or bare up to one of `stops`. `None` within for one that is empty and not quoted.
    pub(super) fn item(&mut self, stops: &[char]) -> Option<Option<Cow<'a, str>>> {
        if self.rest.starts_with('"') {
            return self.quoted(Escapes::Doubled).map(Some);
        }
        let bare = self.until(stops);
        let is_plain = !bare.contains(['"', '\\']);
        is_plain.then(|| Some(bare).filter(|bare| !bare.is_empty()).map(Cow::Borrowed))
    }
}

/// Writes quotes, and a backslash or another quote before what needs one.
pub(super) fn quote(out: &mut String, content: &str, escapes: Escapes) {
    out.push('"');
    for c in content.chars() {
        match (c, escapes) {
            ('"' | '\\', Escapes::Doubled) => out.push(c),
            ('"' | '\\', Escapes::Backslash) => out.push('\\'),
            _ => {}
        }
        out.push(c);
    }
    out.push('"');
}
