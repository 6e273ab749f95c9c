//! The configuration: what may be typed, what it means, and what is wrong with it.

mod meaning;
mod place;
mod problem;
mod quantity;
mod reference;
mod secret;
mod table;
mod typed;

pub(crate) use meaning::declared::{Declared, Effect};
pub(crate) use meaning::sink::{HttpTarget, Sink, Target};
pub(crate) use meaning::work::{Mode, Work};
pub(crate) use meaning::{Configuration, is_temporary_slot};
pub(crate) use problem::Problem;
pub(crate) use quantity::Span;
pub(crate) use reference::reference;
pub(crate) use table::suggest;

use postrider_core::error::{Error, ErrorKind};
use problem::Problems;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use table::Typed;
use toml::de::{DeTable, DeValue};

/// Larger files are refused unread: no configuration has this size.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// A file that is no configuration, with everything that is wrong with it.
#[derive(Debug)]
pub(crate) enum Unusable {
    Unreadable { path: PathBuf, source: std::io::Error },
    Wrong { path: PathBuf, problems: Vec<Problem> },
}

/// Reads the file at `path`; `env:NAME` is looked up in the environment of this process.
pub(crate) fn load(path: &Path) -> Result<Configuration, Unusable> {
    let text = read_bounded(path).map_err(|source| Unusable::Unreadable { path: path.to_owned(), source })?;
    understand(&text, &environment()).map_err(|problems| Unusable::Wrong { path: path.to_owned(), problems })
}

/// What `text` means, or all that is wrong with it. `environment` is what `env:NAME` refers to.
pub(crate) fn understand(text: &str, environment: &BTreeMap<String, String>) -> Result<Configuration, Vec<Problem>> {
    let mut problems = Problems::default();
    let (document, syntax_errors) = DeTable::parse_recoverable(text);
    for error in &syntax_errors {
        let place = error.span().map_or(place::Place::FILE, |span| place::Place::offset(span.start));
        problems.report(place, format!("not TOML: {}", error.message()));
    }
    // Behind a syntax error keys are missing that the file does have; to report them would mislead.
    if !problems.is_empty() {
        return Err(problems.into_sorted(text));
    }
    let root = toml::Spanned::new(document.span(), DeValue::Table(document.into_inner()));
    let file = typed::File::read(&root, "", &mut problems);
    let meaning = file.and_then(|file| meaning::understand(file, environment, &mut problems));
    match meaning {
        Some(configuration) if problems.is_empty() => Ok(configuration),
        _ => Err(problems.into_sorted(text)),
    }
}

impl Unusable {
    /// The problems as they are listed by `check --json`.
    pub(crate) fn problems(&self) -> &[Problem] {
        match self {
            Unusable::Unreadable { .. } => &[],
            Unusable::Wrong { problems, .. } => problems,
        }
    }
}

impl From<Unusable> for Error {
    fn from(unusable: Unusable) -> Error {
        match unusable {
            Unusable::Unreadable { path, source } => {
                Error::new(ErrorKind::Configuration, "cannot read the configuration file")
                    .with_source(source)
                    .with_detail(format!("The file is {}.", path.display()))
                    .with_hint("Name the file with `-c FILE`; `postrider explain --configuration` says what goes in.")
            }
            Unusable::Wrong { path, problems } => {
                let message = match problems.len() {
                    1 => "the configuration has a problem".to_owned(),
                    count => format!("the configuration has {count} problems"),
                };
                let lines: Vec<String> =
                    problems.iter().map(|problem| format!("{}:{problem}", path.display())).collect();
                Error::new(ErrorKind::Configuration, message).with_detail(lines.join("\n"))
            }
        }
    }
}

/// The environment of this process; what is not UTF-8 in it is left out.
pub(crate) fn environment() -> BTreeMap<String, String> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

fn read_bounded(path: &Path) -> std::io::Result<String> {
    use std::io::{Error, Read};
    let mut text = String::new();
    let read = std::fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if u64::try_from(read).is_ok_and(|bytes| bytes > FILE_BYTES_MAX) {
        return Err(Error::other("the file is larger than 1 MiB"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
