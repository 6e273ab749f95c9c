//! What the tools that look at a journal share: where it is, from where to where it is read, and which changes are wanted.
//!
//! They look at the files and never ask the process that writes them, so they work beside it, without it, and on a copy.

mod filter;
mod last;
mod lines;
mod place;
mod show;
mod walk;

pub(crate) use filter::FilterArguments;
pub(crate) use place::{Limit, Place};
pub(crate) use show::Style;
pub(crate) use walk::{Range, Seen, Visit, Wish, walk};

use crate::config::{self, Configuration};
use crate::{output, wiring};
use filter::Filter;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::position::Position;
use postrider_core::route::Routing;
use postrider_core::time::Timestamp;
use postrider_engine::World;
use postrider_journal::Reader;
use show::Show;
use std::path::PathBuf;

/// The configuration file where neither it nor a directory is named.
const DEFAULT_FILE: &str = "postrider.toml";

/// Where the journal is, as it is typed.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct JournalPlace {
    /// The configuration file, which names the journal's directory [default: postrider.toml].
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    file: Option<PathBuf>,
    /// The journal's directory itself, or that of a copy; no configuration is needed then.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// From where to where, as it is typed.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Span {
    /// The last place: as --from; it is shown itself.
    #[arg(long, value_name = "PLACE")]
    pub(crate) to: Option<Place>,
    /// End after so many lines.
    #[arg(long, value_name = "LINES")]
    pub(crate) limit: Option<u64>,
}

/// What is shown first.
#[derive(Debug, Clone, Copy)]
pub(crate) enum First {
    /// What stands at this place.
    At(Place),
    /// The first of so many last lines.
    OfLast(u64),
}

impl JournalPlace {
    /// The configuration, where one is named or no directory is.
    pub(crate) fn configuration(&self) -> Result<Option<Configuration>> {
        match (&self.file, &self.dir) {
            (None, Some(_)) => Ok(None),
            (file, _) => {
                let file = file.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
                Ok(Some(config::load(&file)?))
            }
        }
    }

    /// The directory.
    pub(crate) fn dir(&self, configuration: Option<&Configuration>) -> PathBuf {
        let configured = || configuration.map(|configuration| configuration.journal.dir.clone());
        self.dir.clone().or_else(configured).unwrap_or_default()
    }
}

/// Prints what stands in the journal from `first` on.
pub(crate) async fn show(
    place: &JournalPlace,
    first: First,
    span: &Span,
    follow: bool,
    (filter, style): (FilterArguments, Style),
) -> Result<()> {
    let configuration = place.configuration()?;
    if filter.needs_routing() && configuration.is_none() {
        return Err(Error::new(
            ErrorKind::Configuration,
            "without a configuration nothing says which tables are meant",
        )
        .with_hint("Name the configuration with `-c FILE`, too, or show every table with `--kind rows`."));
    }
    let routing = configuration.as_ref().map_or_else(Routing::default, wiring::routing);
    let mut reader = Reader::open(&place.dir(configuration.as_ref()))?;
    let (_, world) = wiring::chance()?;
    let (after, skipped) = match first {
        First::At(from) => (begin(from, &reader, world.now())?, 0),
        First::OfLast(lines) => {
            let counted = Filter::new(filter.clone(), routing.clone());
            let last::Beginning { after, skipped } = last::begin(&mut reader, lines, counted, &world).await?;
            (after, skipped)
        }
    };
    let to = span.to.map(|to| to.end(&reader, world.now()));
    let mut show = Show::new(Filter::new(filter, routing), style, span.limit).skip(skipped);
    walk(&mut reader, Range { after, to, follow }, &world, &mut show).await
}

/// What comes after this is shown; says so where something between it and the place that was asked for may be gone.
fn begin(from: Place, reader: &Reader, now: Timestamp) -> Result<Position> {
    let start = from.begin(reader, now)?;
    if start.earlier_is_gone {
        output::talk(&format!(
            "postrider: the journal begins later than that: what was committed before {} is no longer held",
            start.after
        ));
    }
    Ok(start.after)
}
