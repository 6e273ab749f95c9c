//! What: writes events as lines of JSON, to a file or to standard output.
//! Where: *write*, between *batch* and *settle*.
//! Takes and gives: a batch of [`Event`]s; gives how many from the front are settled, all or none.
//! Never: settles an event in a file before the file is synced, writes a line twice, or leaves a torn line in front of others.

use crate::event_json::render;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::event::Event;
use postrider_core::ports::{BoxFuture, Sink, Written};
use postrider_core::position::Position;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// How much is read at once when the end of a file is looked at.
const TAIL_BLOCK_BYTES: u64 = 64 * 1024;

/// A sink of lines of JSON, each an event as [`render`] has it.
///
/// A file is in the order of positions and ends with the last event settled, so it is its own memory: events at or before
/// its end are there already and are not written again. Standard output remembers nothing: after a crash lines can come
/// again, and an event is settled when it is written.
#[derive(Debug)]
pub struct NdjsonSink {
    /// Shared with the thread that writes: a write whose future was dropped still ends, and the next one waits for it.
    target: Arc<Mutex<Target>>,
}

impl NdjsonSink {
    /// Opens or creates the file, cuts a torn last line, and locks it against a second process. Reads and writes the disk.
    ///
    /// # Errors
    /// `Configuration` where the last line is none of ours, or another process has the file; `Disk` where it cannot be opened.
    pub fn open(path: &Path) -> Result<NdjsonSink> {
        let file = LineFile::open(path).map_err(|error| {
            let detail = error.detail().map(|detail| format!("{detail} ")).unwrap_or_default();
            error.with_detail(format!("{detail}The file is {}.", path.display()))
        })?;
        Ok(NdjsonSink::new(Target::File(file)))
    }

    /// Writes to standard output, past Rust's own buffer, which would hide that it is closed.
    ///
    /// # Errors
    /// `Configuration` where standard output is closed.
    pub fn stdout() -> Result<NdjsonSink> {
        let closed = |error| Error::new(ErrorKind::Configuration, "standard output is not open").with_source(error);
        Ok(NdjsonSink::stream(io::stdout().as_fd().try_clone_to_owned().map_err(closed)?.into()))
    }

    fn stream(file: File) -> NdjsonSink {
        NdjsonSink::new(Target::Stream { file, torn: false })
    }

    fn new(target: Target) -> NdjsonSink {
        NdjsonSink { target: Arc::new(Mutex::new(target)) }
    }

    async fn append(&mut self, events: &[Event]) -> Written {
        let batch = Batch::of(events);
        let target = Arc::clone(&self.target);
        let write = move || target.lock().unwrap_or_else(PoisonError::into_inner).append(&batch);
        let result = tokio::task::spawn_blocking(write).await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, "writing lines did not end").with_source(error))
        });
        match result {
            Ok(()) => Written { settled: events.len(), error: None },
            Err(error) => Written { settled: 0, error: Some(error) },
        }
    }
}

impl Sink for NdjsonSink {
    /// The position just before the last line's: several events can share one, and the last line may not be the last of
    /// them. Those that are there are recognised when they come again. `None` for standard output and an empty file.
    fn position(&mut self) -> BoxFuture<'_, Result<Option<Position>>> {
        let position = self.target.lock().unwrap_or_else(PoisonError::into_inner).position();
        Box::pin(async move { Ok(position) })
    }

    fn write<'a>(&'a mut self, events: &'a [Event]) -> BoxFuture<'a, Written> {
        Box::pin(self.append(events))
    }
}

/// The lines of a batch.
struct Batch {
    lines: Vec<Line>,
}

struct Line {
    position: Position,
    id: Arc<str>,
    text: Vec<u8>,
}

impl Batch {
    fn of(events: &[Event]) -> Batch {
        Batch { lines: events.iter().map(Line::of).collect() }
    }
}

impl Line {
    fn of(event: &Event) -> Line {
        let mut text = Vec::new();
        render(event, &mut text);
        // Line breaks can only be space between the tokens of a JSON payload: within a string JSON escapes them.
        for byte in text.iter_mut().filter(|byte| matches!(**byte, b'\n' | b'\r')) {
            *byte = b' ';
        }
        text.push(b'\n');
        Line { position: event.position, id: Arc::clone(&event.id), text }
    }
}

#[derive(Debug)]
enum Target {
    File(LineFile),
    Stream {
        file: File,
        /// The last write failed, perhaps within a line.
        torn: bool,
    },
}

impl Target {
    fn position(&self) -> Option<Position> {
        match self {
            Target::File(file) => file.end.as_ref().map(|end| end.position.just_before()),
            Target::Stream { .. } => None,
        }
    }

    fn append(&mut self, batch: &Batch) -> Result<()> {
        match self {
            Target::File(file) => file.append(batch),
            Target::Stream { file, torn } => {
                let mut text = if *torn { vec![b'\n'] } else { Vec::new() };
                batch.lines.iter().for_each(|line| text.extend_from_slice(&line.text));
                *torn = true;
                // A reader that is gone does not come back, but the lines must not be set aside for that, nor may this
                // sink stop the process and with it the others: it stands still until a restart.
                file.write_all(&text).map_err(|error| unavailable("cannot write to standard output", error))?;
                *torn = false;
                Ok(())
            }
        }
    }
}

/// A file of whole lines.
#[derive(Debug)]
struct LineFile {
    file: File,
    /// Where the settled lines end.
    settled_bytes: u64,
    /// Something may stand behind the settled lines.
    dirty: bool,
    end: Option<FileEnd>,
}

/// The events at the last position of a file.
#[derive(Debug, PartialEq, Eq)]
struct FileEnd {
    position: Position,
    ids: Vec<Arc<str>>,
}

impl LineFile {
    fn open(path: &Path) -> Result<LineFile> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path);
        let file = file.map_err(|error| disk("cannot open the file of a sink", error))?;
        file.try_lock().map_err(in_use_or_disk)?;
        let (settled_bytes, end) = cut_and_read_end(&file)?;
        file.sync_all()
            .and_then(|()| sync_directory(path))
            .map_err(|error| disk("cannot sync the file of a sink", error))?;
        Ok(LineFile { file, settled_bytes, dirty: false, end })
    }

    fn append(&mut self, batch: &Batch) -> Result<()> {
        let new: Vec<&Line> = batch.lines.iter().filter(|line| !self.holds(line)).collect();
        let Some(last) = new.last() else { return Ok(()) };
        let failed = |error| unavailable("cannot write to the file of a sink", error);
        if self.dirty {
            self.file.set_len(self.settled_bytes).map_err(failed)?;
        }
        self.dirty = true;
        let text: Vec<u8> = new.iter().flat_map(|line| line.text.iter().copied()).collect();
        self.file.write_all(&text).map_err(failed)?;
        // After a failed sync nobody knows what the disk has, and a second one can succeed without having written.
        self.file.sync_data().map_err(|error| disk("cannot sync the file of a sink", error))?;
        self.dirty = false;
        self.settled_bytes = self.settled_bytes.saturating_add(u64::try_from(text.len()).unwrap_or(u64::MAX));
        let ids_before = self.end.take().filter(|end| end.position == last.position).map(|end| end.ids);
        let ids_new = new.iter().filter(|line| line.position == last.position).map(|line| Arc::clone(&line.id));
        let ids = ids_before.into_iter().flatten().chain(ids_new).collect();
        self.end = Some(FileEnd { position: last.position, ids });
        Ok(())
    }

    fn holds(&self, line: &Line) -> bool {
        self.end.as_ref().is_some_and(|end| {
            line.position < end.position || line.position == end.position && end.ids.contains(&line.id)
        })
    }
}

/// Cuts what a crash tore, and returns where the lines end and which events the last position has.
fn cut_and_read_end(file: &File) -> Result<(u64, Option<FileEnd>)> {
    let unreadable = |error| disk("cannot read the file of a sink", error);
    let size = file.metadata().map_err(unreadable)?.len();
    let mut end = newline_before(file, size).map_err(unreadable)?;
    let mut found: Option<FileEnd> = None;
    let mut at = end;
    while at > 0 {
        let start = newline_before(file, at - 1).map_err(unreadable)?;
        let line = read_range(file, start, at - 1).map_err(unreadable)?;
        match (read_line(&line), &mut found) {
            // A crash of the machine can leave a block that was never written, as zeros; JSON has none.
            (None, None) if line.contains(&0) => end = start,
            (None, None) => {
                return Err(Error::new(ErrorKind::Configuration, "the file of a sink holds something else")
                    .with_detail("Its last line is not an event of Postrider.")
                    .with_hint("Name another file, or move this one away."));
            }
            (Some((position, id)), None) => found = Some(FileEnd { position, ids: vec![id] }),
            (Some((position, id)), Some(held)) if position == held.position => held.ids.push(id),
            (_, Some(_)) => break,
        }
        at = start;
    }
    if end < size {
        tracing::warn!(bytes = size - end, "cut a torn line from the end of a sink's file");
        file.set_len(end).map_err(|error| disk("cannot cut the file of a sink", error))?;
    }
    Ok((end, found))
}

fn read_line(line: &[u8]) -> Option<(Position, Arc<str>)> {
    let line: serde_json::Value = serde_json::from_slice(line).ok()?;
    let position = line.get("position")?.as_str()?.parse().ok()?;
    Some((position, line.get("id")?.as_str()?.into()))
}

/// The offset behind the last line break before `end`, or 0.
fn newline_before(file: &File, end: u64) -> io::Result<u64> {
    let mut upper = end;
    while upper > 0 {
        let lower = upper.saturating_sub(TAIL_BLOCK_BYTES);
        let block = read_range(file, lower, upper)?;
        let after = (lower..upper)
            .rev()
            .zip(block.iter().rev())
            .find(|(_, byte)| **byte == b'\n')
            .map(|(offset, _)| offset + 1);
        if let Some(after) = after {
            return Ok(after);
        }
        upper = lower;
    }
    Ok(0)
}

fn read_range(file: &File, from: u64, to: u64) -> io::Result<Vec<u8>> {
    let length = usize::try_from(to.saturating_sub(from)).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, from)?;
    Ok(bytes)
}

/// Makes the file's name durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

fn in_use_or_disk(error: TryLockError) -> Error {
    match error {
        TryLockError::WouldBlock => {
            Error::new(ErrorKind::Configuration, "the file of a sink is in use by another process")
                .with_hint("End the other process, or name another file in this sink's `path`.")
        }
        TryLockError::Error(error) => disk("cannot lock the file of a sink", error),
    }
}

fn unavailable(message: &str, error: io::Error) -> Error {
    Error::new(ErrorKind::SinkUnavailable, message).with_source(error)
}

fn disk(message: &str, error: io::Error) -> Error {
    Error::new(ErrorKind::Disk, message).with_source(error)
}

#[cfg(test)]
#[path = "ndjson_tests.rs"]
mod tests;
