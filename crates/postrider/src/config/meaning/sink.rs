//! The meaning of the sinks.

use crate::config::meaning::Reader;
use crate::config::meaning::endpoint::Access;
use crate::config::place::{At, Place};
use crate::config::typed;
use postrider_delivery::Endpoint;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{self, Path, PathBuf};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Sink {
    /// The name under which its position is kept.
    pub(crate) name: String,
    pub(crate) required: bool,
    /// It gets events that can be read back.
    pub(crate) wait_visible: bool,
    pub(crate) target: Target,
}

/// Where events go.
#[derive(Debug)]
pub(crate) enum Target {
    Http(Box<HttpTarget>),
    /// Lines of JSON into a file; `None`: to standard output.
    Ndjson(Option<PathBuf>),
}

#[derive(Debug)]
pub(crate) struct HttpTarget {
    pub(crate) endpoint: Endpoint,
    /// Requests in flight at once.
    pub(crate) in_flight: u32,
    /// From the start of a request to the last byte of its answer.
    pub(crate) timeout: Duration,
}

/// The name under which the engine keeps the stage executor's position.
const EXECUTOR: &str = "work";

const KINDS: [&str; 2] = ["http", "ndjson"];

/// Kinds that the design has and this version does not.
const LATER_KINDS: [&str; 9] =
    ["kafka", "opensearch", "elasticsearch", "clickhouse", "postgres", "webhook", "search", "analytics", "files"];

/// What makes two paths one file.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FileIdentity {
    /// As the file system knows it: a file can have several names.
    Held { device: u64, inode: u64 },
    /// It is not there yet.
    Named(PathBuf),
}

impl FileIdentity {
    fn of(path: &str) -> FileIdentity {
        match fs::metadata(path) {
            Ok(seen) if path != "-" => FileIdentity::Held { device: seen.dev(), inode: seen.ino() },
            _ => FileIdentity::Named(spelled_out(path)),
        }
    }
}

impl Reader<'_> {
    pub(super) fn sinks(&mut self, sinks: Option<At<Vec<At<typed::Sink>>>>, outboxes: usize) -> Vec<Sink> {
        let typed = sinks.map(|sinks| sinks.value).unwrap_or_default();
        if let Some(first) = typed.first().filter(|_| outboxes == 0) {
            self.problems.report_with_hint(
                first.place,
                "a sink takes events, and there is no [[outbox]] that they could come from",
                "add [[outbox]] with a table or a prefix",
            );
        }
        let mut names = BTreeSet::new();
        let mut files = BTreeSet::new();
        let mut meant = Vec::new();
        for At { value, place } in typed {
            if let Some(name) = &value.name
                && !names.insert(name.value.clone())
            {
                self.problems.report(name.place, "`sink.name` stands here twice: each sink has a position of its own");
            }
            if let Some(path) = &value.path
                && !files.insert(FileIdentity::of(&path.value))
            {
                self.problems.report_with_hint(
                    path.place,
                    "`sink.path` names the file of another sink: two writers would mix their lines",
                    "give each sink a file of its own",
                );
            }
            meant.extend(self.sink(value, place));
        }
        meant
    }

    fn sink(&mut self, sink: typed::Sink, place: Place) -> Option<Sink> {
        let name = self.sink_name(sink.name.clone(), place);
        if let Some(from) = sink.from.as_ref().filter(|from| from.value != "outbox") {
            self.word(from, "sink.from", &["outbox"], &["work", "tables"]);
        }
        let required = sink.required.as_ref().is_none_or(|required| required.value);
        let wait_visible = sink.wait_visible.as_ref().is_some_and(|wait| wait.value);
        let kind = self.mandatory(sink.kind.clone(), place, "sink.kind");
        let target = match kind {
            Some(At { value, .. }) if value == "http" => {
                self.http(sink, place).map(|target| Target::Http(Box::new(target)))
            }
            Some(At { value, .. }) if value == "ndjson" => self.ndjson(sink, place),
            Some(kind) => {
                self.word(&kind, "sink.kind", &KINDS, &LATER_KINDS);
                None
            }
            None => None,
        };
        Some(Sink { name: name?, required, wait_visible, target: target? })
    }

    /// The name becomes a metric label and a file's content, so it is kept plain.
    fn sink_name(&mut self, name: Option<At<String>>, place: Place) -> Option<String> {
        let name = self.name(name, place, "sink.name")?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' || byte == b'.';
        if name.value.len() > 63 || !name.value.bytes().all(allowed) {
            self.problems.report_with_hint(
                name.place,
                "`sink.name` has characters that a name may not have",
                "letters, digits, `_`, `-` and `.`, at most 63",
            );
            return None;
        }
        if name.value == EXECUTOR {
            self.problems.report(name.place, "`sink.name` \"work\" is the name of the stage executor");
            return None;
        }
        Some(name.value)
    }

    fn http(&mut self, sink: typed::Sink, place: Place) -> Option<HttpTarget> {
        if let Some(path) = &sink.path {
            self.problems.report(path.place, "`sink.path` goes with kind \"ndjson\"");
        }
        let headers = sink.headers.map(|headers| headers.value).unwrap_or_default();
        let access = Access { path: "sink", headers, ..Access::default() };
        let endpoint = self.endpoint(sink.url, &access, &Access::default(), place);
        let in_flight = self.count(sink.in_flight, "sink.in_flight", 16);
        let timeout = self.span("sink.timeout", sink.timeout, Duration::from_secs(30));
        Some(HttpTarget { endpoint: endpoint?, in_flight, timeout })
    }

    fn ndjson(&mut self, sink: typed::Sink, place: Place) -> Option<Target> {
        let of_http = [
            ("url", sink.url.map(|at| at.place)),
            ("in_flight", sink.in_flight.map(|at| at.place)),
            ("timeout", sink.timeout.map(|at| at.place)),
            ("headers", sink.headers.map(|at| at.place)),
        ];
        for (key, place) in of_http {
            if let Some(place) = place {
                self.problems.report(place, format!("`sink.{key}` goes with kind \"http\""));
            }
        }
        let path = self.name(sink.path, place, "sink.path")?.value;
        Some(Target::Ndjson(if path == "-" { None } else { Some(PathBuf::from(path)) }))
    }
}

/// The same for every way to write one path, through links, too, as far as the folder is there already.
fn spelled_out(path: &str) -> PathBuf {
    if path == "-" {
        return PathBuf::from(path);
    }
    let written = Path::new(path);
    let folder = || {
        let folder = written.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(written.file_name()?))
    };
    let known = written.canonicalize().ok().or_else(folder).or_else(|| path::absolute(written).ok());
    known.unwrap_or_else(|| written.to_owned())
}
