//! The reference page of the configuration, made from the one declaration of each key.

use crate::config::table::{KeyShape, Shape, TableShape, Typed};
use crate::config::typed;

/// The whole page, as Markdown.
pub(crate) fn reference() -> String {
    let mut page = String::from(HEAD);
    if let Shape::Table(file) = typed::File::shape() {
        table_section(&mut page, ("Top level", ""), TOP, &file, &mut Vec::new());
    }
    page
}

const TOP: &[&str] = &["Keys of the file itself: they stand before the first table."];

/// Keys of a table that is not shown twice.
const LONG: usize = 8;

const HEAD: &str = "\
# Configuration

Postrider reads one TOML file, named by `-c FILE`. `postrider check -c FILE` says everything that is wrong with it, each
with its line, without running; unknown keys are errors. Durations are a whole number and `ms`, `s`, `m`, `h` or `d`;
sizes a whole number and `B`, `KiB`, `MiB`, `GiB` or `TiB`; both in quotation marks. `postrider.toml` beside this page is
a whole example.

This page is printed by `postrider explain --configuration`.
";

/// A table with as many keys as `LONG` is shown once; where it stands again, its own words name the first place.
fn table_section(
    page: &mut String,
    (title, path): (&str, &str),
    doc: &[&str],
    table: &TableShape,
    shown: &mut Vec<Vec<&'static str>>,
) {
    page.push_str(&format!("\n## {title}\n\n{}\n", paragraph(doc)));
    let names: Vec<&'static str> = table.keys.iter().map(|key| key.name).collect();
    if names.len() >= LONG && shown.contains(&names) {
        return;
    }
    shown.push(names);
    let (nested, plain): (Vec<&KeyShape>, Vec<&KeyShape>) =
        table.keys.iter().partition(|key| table_of(&key.shape).is_some());
    if !plain.is_empty() {
        page.push('\n');
    }
    for key in plain {
        page.push_str(&format!("- `{}` ({}): {}\n", key.name, noun(&key.shape), paragraph(key.doc)));
    }
    for key in nested {
        let path = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
        let Some(inner) = table_of(&key.shape) else { continue };
        let title = if matches!(key.shape, Shape::List(_)) { format!("`[[{path}]]`") } else { format!("`[{path}]`") };
        table_section(page, (&title, &path), key.doc, inner, shown);
    }
}

fn table_of(shape: &Shape) -> Option<&TableShape> {
    match shape {
        Shape::Table(table) => Some(table),
        Shape::List(element) => table_of(element),
        Shape::Plain(_) | Shape::Named(_) => None,
    }
}

fn noun(shape: &Shape) -> String {
    match shape {
        Shape::Plain(noun) => (*noun).to_owned(),
        Shape::List(element) => format!("list of {}", noun(element)),
        Shape::Named(element) => format!("table of {}", noun(element)),
        Shape::Table(_) => "table".to_owned(),
    }
}

/// The lines of a doc comment as one paragraph.
fn paragraph(doc: &[&str]) -> String {
    doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}
