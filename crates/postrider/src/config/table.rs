//! Reads TOML tables into typed ones, and describes them: each key is declared once.
//!
//! A table declared by [`typed_table!`] gets three things from the one declaration of each key: the field, the reader
//! that reports every unknown key and every wrong type with its place, and the entry in the reference page.

use crate::config::place::{At, Place};
use crate::config::problem::Problems;
use crate::config::quantity::{ByteSize, Frequency, QuantityError, Span};
use crate::config::secret::Secret;
use crate::config::typed::{LATER_KEYS, TOP_LEVEL_KEYS};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What may stand as a value in the file.
pub(crate) trait Typed: Sized {
    /// How the reference page shows it.
    fn shape() -> Shape;

    /// Reads a value; a value of a wrong type is reported under its `path`.
    fn read(value: &Spanned<DeValue<'_>>, path: &str, problems: &mut Problems) -> Option<Self>;
}

/// What the reference page says about a value.
#[derive(Debug, Clone)]
pub(crate) enum Shape {
    /// A plain value, described in a word or two.
    Plain(&'static str),
    Table(TableShape),
    /// Any number of the same.
    List(Box<Shape>),
    /// The same under names that whoever writes the file chooses, or knows.
    Named(Box<Shape>),
}

#[derive(Debug, Clone)]
pub(crate) struct TableShape {
    pub(crate) keys: Vec<KeyShape>,
}

#[derive(Debug, Clone)]
pub(crate) struct KeyShape {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static [&'static str],
    pub(crate) shape: Shape,
}

/// Declares a table of the configuration.
macro_rules! typed_table {
    ($(#[doc = $doc:literal])* $name:ident { $($(#[doc = $key_doc:literal])* $key:ident: $typed:ty,)* }) => {
        $(#[doc = $doc])*
        #[derive(Debug, Default)]
        pub(crate) struct $name {
            $($(#[doc = $key_doc])* pub(crate) $key: Option<$crate::config::place::At<$typed>>,)*
        }

        impl $crate::config::table::Typed for $name {
            fn shape() -> $crate::config::table::Shape {
                $crate::config::table::Shape::Table($crate::config::table::TableShape {
                    keys: vec![$($crate::config::table::KeyShape {
                        name: stringify!($key),
                        doc: &[$($key_doc),*],
                        shape: <$typed as $crate::config::table::Typed>::shape(),
                    }),*],
                })
            }

            fn read(
                value: &toml::Spanned<toml::de::DeValue<'_>>,
                path: &str,
                problems: &mut $crate::config::problem::Problems,
            ) -> Option<Self> {
                let table = $crate::config::table::expect_table(value, path, problems)?;
                $crate::config::table::refuse_unknown(table, path, &[$(stringify!($key)),*], problems);
                Some($name { $($key: $crate::config::table::read_key(table, path, stringify!($key), problems),)* })
            }
        }
    };
}
pub(crate) use typed_table;

/// The table behind `value`, or a report that it is none.
pub(crate) fn expect_table<'v, 'i>(
    value: &'v Spanned<DeValue<'i>>,
    path: &str,
    problems: &mut Problems,
) -> Option<&'v DeTable<'i>> {
    let table = value.get_ref().as_table();
    if table.is_none() {
        wrong_type(value, path, "a table", problems);
    }
    table
}

/// Reports each key of `table` that is not among `known`, with the nearest known one.
pub(crate) fn refuse_unknown(table: &DeTable<'_>, path: &str, known: &[&str], problems: &mut Problems) {
    for (key, _) in table.iter() {
        let name = key.get_ref().as_ref();
        if known.contains(&name) {
            continue;
        }
        if LATER_KEYS.contains(&(path, name)) {
            problems.report(place_of(key), format!("`{path}.{name}` is not in this version"));
            continue;
        }
        let message = match path {
            "" => format!("unknown key `{}`", name.escape_debug()),
            _ => format!("unknown key `{}` in `{path}`", name.escape_debug()),
        };
        problems.report_with_hint(place_of(key), message, unknown_hint(name, path, known));
    }
}

/// Reads the value of `key`, if it is there.
pub(crate) fn read_key<T: Typed>(table: &DeTable<'_>, path: &str, key: &str, problems: &mut Problems) -> Option<At<T>> {
    let value = table.get(key)?;
    let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    read_at(value, &path, problems)
}

/// Says what stands in place of `known`: the nearest of it, or all of it.
pub(crate) fn suggest(word: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= 1 + candidate.chars().count() / 4);
    match nearest {
        Some((_, candidate)) => format!("did you mean `{candidate}`?"),
        None => format!("known here: {}", known.join(", ")),
    }
}

impl Typed for String {
    fn shape() -> Shape {
        Shape::Plain("text")
    }

    fn read(value: &Spanned<DeValue<'_>>, path: &str, problems: &mut Problems) -> Option<Self> {
        text(value, path, "a text in quotation marks", problems).map(str::to_owned)
    }
}

/// One text, or a list of them.
#[derive(Debug, Default)]
pub(crate) struct Names(pub(crate) Vec<At<String>>);

impl Typed for Names {
    fn shape() -> Shape {
        Shape::Plain("text or list of text")
    }

    fn read(value: &Spanned<DeValue<'_>>, path: &str, problems: &mut Problems) -> Option<Self> {
        match value.get_ref() {
            DeValue::Array(_) => Typed::read(value, path, problems).map(Names),
            DeValue::String(_) => read_at(value, path, problems).map(|name| Names(vec![name])),
            _ => {
                wrong_type(value, path, "a text in quotation marks, or a list of such", problems);
                None
            }
        }
    }
}

impl Typed for Secret {
    fn shape() -> Shape {
        Shape::Plain("text")
    }

    fn read(value: &Spanned<DeValue<'_>>, path: &str, problems: &mut Problems) -> Option<Self> {
        text(value, path, "a text in quotation marks", problems).map(Secret::new)
    }
}

impl Typed for bool {
    fn shape() -> Shape {
        Shape::Plain("true or false")
    }

    fn read(value: &Spanned<DeValue<'_>>, path: &str, problems: &mut Problems) -> Option<Self> {
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            wrong_type(value, path, "true or false", problems);
        }
        flag
    }
}

impl Typed for u32 {
    fn shape() -> Shape {
        Shape::Plain("whole number")
    }

    fn read(value: &Spanned<DeValue<'_>>, path: &str, problems: &mut Problems) -> Option<Self> {
        let Some(integer) = value.get_ref().as_integer() else {
            wrong_type(value, path, "a whole number", problems);
            return None;
        };
        let number = u32::from_str_radix(integer.as_str(), integer.radix()).ok();
        if number.is_none() {
            let message = format!("`{path}` is out of range: 0 to {} can stand here", u32::MAX);
            problems.report_wrong_type(place_of(value), path, message);
        }
        number
    }
}

impl Typed for Span {
    fn shape() -> Shape {
        Shape::Plain("duration")
    }

    fn read(value: &Spanned<DeValue<'_>>, path: &str, problems: &mut Problems) -> Option<Self> {
        quantity(value, path, "a duration", "ms, s, m, h or d follow the number, as in \"30s\"", problems)
    }
}

impl Typed for Frequency {
    fn shape() -> Shape {
        Shape::Plain("rate")
    }

    fn read(value: &Spanned<DeValue<'_>>, path: &str, problems: &mut Problems) -> Option<Self> {
        quantity(value, path, "a rate", "/s, /m or /h follow the number, as in \"100/s\"", problems)
    }
}

impl Typed for ByteSize {
    fn shape() -> Shape {
        Shape::Plain("size")
    }

    fn read(value: &Spanned<DeValue<'_>>, path: &str, problems: &mut Problems) -> Option<Self> {
        quantity(value, path, "a size", "B, KiB, MiB, GiB or TiB follow the number, as in \"64MiB\"", problems)
    }
}

impl<T: Typed> Typed for Vec<At<T>> {
    fn shape() -> Shape {
        Shape::List(Box::new(T::shape()))
    }

    fn read(value: &Spanned<DeValue<'_>>, path: &str, problems: &mut Problems) -> Option<Self> {
        let Some(array) = value.get_ref().as_array() else {
            let wanted = match T::shape() {
                Shape::Table(_) => format!("a list of tables: write [[{path}]]"),
                _ => "a list in brackets".to_owned(),
            };
            wrong_type(value, path, &wanted, problems);
            return None;
        };
        Some(array.iter().filter_map(|element| read_at(element, path, problems)).collect())
    }
}

impl<T: Typed> Typed for BTreeMap<String, At<T>> {
    fn shape() -> Shape {
        Shape::Named(Box::new(T::shape()))
    }

    fn read(value: &Spanned<DeValue<'_>>, path: &str, problems: &mut Problems) -> Option<Self> {
        let table = expect_table(value, path, problems)?;
        let entries = table.iter().filter_map(|(key, value)| {
            let name = key.get_ref().as_ref();
            Some((name.to_owned(), read_at(value, &format!("{path}.{}", name.escape_debug()), problems)?))
        });
        Some(entries.collect())
    }
}

fn read_at<T: Typed>(value: &Spanned<DeValue<'_>>, path: &str, problems: &mut Problems) -> Option<At<T>> {
    let read = T::read(value, path, problems)?;
    Some(At { value: read, place: place_of(value) })
}

fn unknown_hint(name: &str, path: &str, known: &[&str]) -> String {
    // TOML takes a top-level key that follows a table's header for one of that table.
    if !path.is_empty() && TOP_LEVEL_KEYS.contains(&name) {
        return format!("`{name}` stands at the top of the file, before the first [table]");
    }
    suggest(name, known)
}

fn text<'v>(value: &'v Spanned<DeValue<'_>>, path: &str, wanted: &str, problems: &mut Problems) -> Option<&'v str> {
    let text = value.get_ref().as_str();
    if text.is_none() {
        wrong_type(value, path, wanted, problems);
    }
    text
}

fn quantity<T: FromStr<Err = QuantityError>>(
    value: &Spanned<DeValue<'_>>,
    path: &str,
    noun: &str,
    hint: &str,
    problems: &mut Problems,
) -> Option<T> {
    let word = text(value, path, &format!("{noun} in quotation marks: {hint}"), problems)?;
    match word.parse() {
        Ok(quantity) => Some(quantity),
        Err(error) => {
            let message = format!("`{path}` is not {noun}: {error} ({hint})");
            problems.report_wrong_type(place_of(value), path, message);
            None
        }
    }
}

fn wrong_type(value: &Spanned<DeValue<'_>>, path: &str, wanted: &(impl Display + ?Sized), problems: &mut Problems) {
    let found = match value.get_ref() {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    problems.report_wrong_type(place_of(value), path, format!("`{path}` is {found}, expected {wanted}"));
}

fn place_of<T>(value: &Spanned<T>) -> Place {
    Place::offset(value.span().start)
}
