//! What a configuration means: valid by construction, every default filled in.

pub(crate) mod declared;
mod endpoint;
mod mapping;
mod pace;
pub(crate) mod sink;
mod source;
pub(crate) mod work;

use crate::config::meaning::sink::Sink;
use crate::config::meaning::work::{Mode, Work};
use crate::config::place::{At, Place};
use crate::config::problem::Problems;
use crate::config::quantity::Span;
use crate::config::secret::Secret;
use crate::config::table::suggest;
use crate::config::typed;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::route::{OutboxPrefix, OutboxTable};
use postrider_core::work::OwnerId;
use postrider_engine::{Ack, Periods, WhenFull};
use postrider_postgres::{ConnectOptions, Failover};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Names of PostgreSQL are cut at so many bytes.
const NAME_BYTES_MAX: usize = 63;

/// Everything that the product is told.
#[derive(Debug)]
pub(crate) struct Configuration {
    pub(crate) source: Source,
    pub(crate) journal: Journal,
    pub(crate) ack: Ack,
    /// `None`: no guard.
    pub(crate) wal_guard_bytes: Option<u64>,
    pub(crate) outbox_tables: Vec<OutboxTable>,
    pub(crate) outbox_prefixes: Vec<OutboxPrefix>,
    pub(crate) work: Option<Work>,
    pub(crate) sinks: Vec<Sink>,
    /// Where the console listens.
    pub(crate) listen: SocketAddr,
    pub(crate) periods: Periods,
    /// How long a shutdown waits for requests in flight.
    pub(crate) drain: Duration,
}

impl Configuration {
    /// The work table, where its stages are executed by us.
    pub(crate) fn executed(&self) -> Option<&Work> {
        self.work.as_ref().filter(|work| work.mode == Mode::Execute)
    }

    /// What is left of it for a further process that shares the stages with the one that has the slot: a temporary slot of its own, a journal
    /// of its own beneath the other's directory, and neither outbox nor sink.
    ///
    /// # Errors
    /// `Configuration` where there are no stages to share.
    pub(crate) fn of_stages_only(mut self, owner: OwnerId) -> Result<Configuration> {
        if self.executed().is_none() {
            return Err(Error::new(ErrorKind::Configuration, "there are no stages to share")
                .with_detail("`--stages-only` starts a further process for the stages of [work].")
                .with_hint("Give the configuration a [work] with mode = \"execute\", or leave out --stages-only."));
        }
        self.outbox_tables.clear();
        self.outbox_prefixes.clear();
        self.sinks.clear();
        self.journal.dir.push("stages");
        self.source.slot = temporary_slot(&self.source.slot, owner);
        self.source.temporary = true;
        self.source.two_phase = false;
        Ok(self)
    }
}

#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) options: ConnectOptions,
    pub(crate) slot: String,
    pub(crate) publication: String,
    pub(crate) streaming: bool,
    pub(crate) two_phase: bool,
    pub(crate) failover: Failover,
    /// The server may be a standby.
    pub(crate) standby: bool,
    /// The slot goes with its connection: [`Configuration::of_stages_only`].
    pub(crate) temporary: bool,
}

#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) dir: PathBuf,
    pub(crate) segment_bytes: u64,
    pub(crate) retention_bytes: u64,
    /// `None`: age is no reason.
    pub(crate) retention_age: Option<Duration>,
    pub(crate) when_full: WhenFull,
    pub(crate) staging_bytes: u64,
}

/// A name that no other process gives its slot. Names of slots are ASCII.
fn temporary_slot(slot: &str, owner: OwnerId) -> String {
    let end = format!("_{owner}");
    let begin = slot.get(..NAME_BYTES_MAX - end.len()).unwrap_or(slot);
    format!("{begin}{end}")
}

/// Whether [`temporary_slot`] made the name.
pub(crate) fn is_temporary_slot(slot: &str) -> bool {
    slot.rsplit_once('_').is_some_and(|(_, end)| end.len() == 16 && end.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Reads the whole file's meaning. `None` only if something was reported.
pub(crate) fn understand(
    file: typed::File,
    environment: &BTreeMap<String, String>,
    problems: &mut Problems,
) -> Option<Configuration> {
    let mut reader = Reader { environment, problems };
    let unread = reader.problems.is_mistyped("work") || reader.problems.is_mistyped("sink");
    if !unread && file.work.is_none() && file.sink.as_ref().is_none_or(|sinks| sinks.value.is_empty()) {
        reader.problems.report_with_hint(
            Place::FILE,
            "there is nothing to do: neither [work] nor [[sink]]",
            "add the work table and its stages, or an outbox and a sink, or both",
        );
    }
    // Every part is read before the first missing one ends it, so that all problems come at once.
    let (outbox_tables, outbox_prefixes) = reader.outboxes(file.outbox);
    let standby = file.source.as_ref().and_then(|source| source.value.standby.as_ref());
    let standby = standby.filter(|standby| standby.value).map(|standby| standby.place);
    let source = reader.source(file.source);
    let journal = reader.journal(file.journal);
    let ack = reader.ack(file.ack);
    let work_place = file.work.as_ref().map_or(Place::FILE, |work| work.place);
    let replay_window = journal.as_ref().and_then(|journal| journal.retention_age);
    let work = file.work.map(|work| reader.work(work, replay_window));
    if let Some(place) = work.as_ref().and(standby) {
        reader.problems.report_with_hint(
            place,
            "`source.standby` does not go with [work]: claims are written, and a standby takes no writes",
            "give the stages a process of their own, with the primary's address, a slot and a journal of its own",
        );
    }
    let sinks = file.sink.iter().flat_map(|sinks| &sinks.value);
    let waits = sinks.filter_map(|sink| sink.value.wait_visible.as_ref().filter(|wait| wait.value));
    for wait in waits.filter(|_| standby.is_some()) {
        reader.problems.report_with_hint(
            wait.place,
            "`sink.wait_visible` does not go with `source.standby`: a standby cannot say what is visible on the primary",
            "read from the primary, or leave out `wait_visible` and let the receiver ask until the row is there",
        );
    }
    if let Some(Some(work)) = &work
        && outbox_tables
            .iter()
            .any(|outbox| (&outbox.schema, &outbox.table) == (&work.mapping.schema, &work.mapping.table))
    {
        reader.problems.report(work_place, "`work.table` is the table of an outbox, too");
    }
    let sinks = reader.sinks(file.sink, outbox_tables.len() + outbox_prefixes.len());
    let listen = reader.listen(file.server);
    let periods = reader.periods(file.periods);
    let drain = file.limits.and_then(|limits| limits.value.drain);
    Some(Configuration {
        source: source?,
        journal: journal?,
        ack: ack?,
        wal_guard_bytes: file.wal_guard.map(|size| size.value.0),
        outbox_tables,
        outbox_prefixes,
        work: match work {
            Some(work) => Some(work?),
            None => None,
        },
        sinks,
        listen: listen?,
        periods,
        drain: reader.span("limits.drain", drain, Duration::from_secs(20)),
    })
}

/// Turns typed values into meant ones and reports what has no meaning.
struct Reader<'a> {
    environment: &'a BTreeMap<String, String>,
    problems: &'a mut Problems,
}

impl Reader<'_> {
    fn missing<T>(&mut self, place: Place, path: &str) -> Option<T> {
        self.problems.report_missing(place, path);
        None
    }

    fn mandatory<T>(&mut self, value: Option<At<T>>, place: Place, path: &str) -> Option<At<T>> {
        value.or_else(|| self.missing(place, path))
    }

    /// A text that may not be empty.
    fn name(&mut self, value: Option<At<String>>, place: Place, path: &str) -> Option<At<String>> {
        let name = self.mandatory(value, place, path)?;
        if name.value.trim().is_empty() {
            self.problems.report(name.place, format!("`{path}` is empty"));
            return None;
        }
        Some(name)
    }

    /// Schema and name of a table.
    fn table(&mut self, value: Option<At<String>>, place: Place, path: &str) -> Option<(String, String)> {
        let text = self.name(value, place, path)?;
        let table = schema_and_name(&text.value);
        if table.is_none() {
            self.problems.report_with_hint(
                text.place,
                format!("`{path}` names no table"),
                "write \"schema.table\", without further quotation marks",
            );
        }
        table
    }

    /// A column's name: the typed one, or that of the key.
    fn column(&mut self, value: Option<At<String>>, path: &str, default: &str) -> String {
        let Some(typed) = value else { return default.to_owned() };
        let name = self.name(Some(typed), Place::FILE, &format!("{path}.{default}"));
        name.map_or_else(String::new, |name| name.value)
    }

    /// A number that must be at least 1.
    fn count(&mut self, value: Option<At<u32>>, path: &str, default: u32) -> u32 {
        match value {
            Some(At { value: 0, place }) => {
                self.problems.report(place, format!("`{path}` is 0, expected at least 1"));
                default
            }
            Some(number) => number.value,
            None => default,
        }
    }

    /// A span that must be longer than nothing.
    fn span(&mut self, path: &str, value: Option<At<Span>>, default: Duration) -> Duration {
        match value {
            Some(span) if span.value.0.is_zero() => {
                self.problems.report(span.place, format!("`{path}` is 0, expected some time"));
                default
            }
            Some(span) => span.value.0,
            None => default,
        }
    }

    /// The text, or the environment variable's that it refers to as `env:NAME`.
    fn resolve(&mut self, secret: At<Secret>, path: &str) -> Option<At<Secret>> {
        let Some(name) = secret.value.reveal().strip_prefix("env:") else {
            return Some(secret);
        };
        let Some(text) = self.environment.get(name) else {
            self.problems.report_with_hint(
                secret.place,
                format!("`{path}` refers to an environment variable that is not set"),
                format!("set {}, or write the value itself", name.escape_debug()),
            );
            return None;
        };
        Some(At { value: Secret::new(text), place: secret.place })
    }

    /// Reports a word that is not among `known`; those of `later` belong to the design and not to this version.
    fn word(&mut self, word: &At<String>, path: &str, known: &[&str], later: &[&str]) {
        let value = word.value.as_str();
        if later.contains(&value) {
            self.problems.report_with_hint(
                word.place,
                format!("`{path}` \"{value}\" is not in this version"),
                format!("in this version: {}", known.join(", ")),
            );
        } else {
            let hint = suggest(value, known);
            let message = format!("`{path}` is an unknown word, \"{}\"", value.escape_debug());
            self.problems.report_with_hint(word.place, message, hint);
        }
    }
}

/// Reads `schema.table` or `table`, without quotation marks: what is typed is the name as the catalogue has it.
fn schema_and_name(text: &str) -> Option<(String, String)> {
    let (schema, name) = text.split_once('.').unwrap_or(("public", text));
    let is_name = |part: &str| !part.is_empty() && part.len() <= NAME_BYTES_MAX && !part.contains(['.', '"', '\0']);
    (is_name(schema) && is_name(name)).then(|| (schema.to_owned(), name.to_owned()))
}

/// What another crate says about a value, as the tail of a problem: the detail where there is one.
fn reason(error: &Error) -> String {
    clause(error.detail().unwrap_or_else(|| error.message()))
}

/// A sentence as a part of another one.
fn clause(sentence: &str) -> String {
    let mut characters = sentence.trim_end_matches('.').chars();
    characters.next().map(|first| first.to_lowercase().chain(characters).collect()).unwrap_or_default()
}
