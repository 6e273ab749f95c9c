//! A server with one table, and a reader of its log that keeps what it got as the intake does.

use postrider_core::assemble::Assembler;
use postrider_core::change::Change;
use postrider_core::decode::Decoder;
use postrider_core::error::Error;
use postrider_core::frame::Frame;
use postrider_core::pgoutput::TupleValue;
use postrider_core::ports::{LogSession, LogSource};
use postrider_core::position::{Generation, Lsn};
use postrider_core::transaction::TransactionBatch;
use postrider_journal::{Life, open_staging};
use postrider_postgres::{ConnectOptions, ReplicationSource};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls};
use xtask::postgres::{Cluster, Shutdown, find, shared};

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// These tests never change their server.
const LIFE: Life = Life { system_identifier: 1, generation: Generation::FIRST, begun: Vec::new() };
/// Room for transactions in progress.
const STAGING_BYTES: u64 = 1 << 30;

/// A database with the table `t` and the publication `p`, in the cluster that all tests of a version share, or in one of its own.
pub(super) struct Server {
    place: Place,
    database: String,
}

enum Place {
    Shared(Arc<Cluster>),
    Own(Box<Cluster>),
}

/// A session of its own.
pub(super) struct Session {
    runtime: Runtime,
    client: Client,
}

/// A slot, its reader, and what came of it.
pub(super) struct Drain {
    runtime: Runtime,
    url: String,
    slot: String,
    folder: PathBuf,
    source: ReplicationSource,
    session: Option<LogSession>,
    assembler: Assembler,
    decoder: Decoder,
    batch: TransactionBatch,
    /// End of the last complete part, as a journal would have it.
    end: Lsn,
    events: Vec<Event>,
    kinds: String,
    crashed_at: usize,
    bytes: usize,
    wal_end: Lsn,
    /// A keep-alive moves the end, as it does in a journal; without it only transactions do, so that all before the last comes again.
    keeps_marks: bool,
    /// Gids of what was given up.
    given_up: Vec<String>,
}

/// A row by its first column, or a message by its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    commit_lsn: Lsn,
    ordinal: u64,
    content: String,
    /// Columns; 0 for a message.
    width: usize,
}

/// How reading on ended.
pub(super) enum Outcome {
    /// The log has no more.
    Read,
    Failed(Error),
}

impl Server {
    /// Settings hold for the sessions in the database, replication included.
    pub(super) fn start(version: u32, settings: &[(&str, &str)]) -> Server {
        Server::in_place(Place::Shared(shared(version).unwrap()), settings)
    }

    /// On a cluster that nobody else uses, so that it can be restarted.
    pub(super) fn alone(version: u32, settings: &[(&str, &str)]) -> Server {
        let cluster = Cluster::builder(&find(Some(version)).unwrap()).start().unwrap();
        Server::in_place(Place::Own(Box::new(cluster)), settings)
    }

    fn in_place(place: Place, settings: &[(&str, &str)]) -> Server {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let database = format!("held_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let server = Server { place, database: database.clone() };
        let first = Session::open(&server.cluster().url());
        first.run(&format!("CREATE DATABASE {database} TEMPLATE template0"));
        for (name, value) in settings {
            first.run(&format!("ALTER DATABASE {database} SET {name} = '{value}'"));
        }
        server.run("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t");
        server.run("SELECT pg_create_logical_replication_slot('@_start', 'pgoutput')");
        server
    }

    fn cluster(&self) -> &Cluster {
        match &self.place {
            Place::Shared(cluster) => cluster,
            Place::Own(cluster) => cluster,
        }
    }

    fn url(&self) -> String {
        self.cluster().url_of(&self.database)
    }

    pub(super) fn session(&self) -> Session {
        Session::open(&self.url())
    }

    /// Runs statements; `@` in them stands for the database's name, for names that are one for the whole cluster.
    pub(super) fn run(&self, sql: &str) {
        // A transaction block may not stand in one string with what comes after it.
        let session = self.session();
        for statement in sql.replace('@', &self.database).split_inclusive(';') {
            session.run(statement);
        }
    }

    /// A reader from the beginning on: each test's table is new, so each reader has a copy of the first slot.
    pub(super) fn drain(&self, slot: &str, wish: impl FnOnce(ReplicationSource) -> ReplicationSource) -> Drain {
        let slot = format!("{}_{slot}", self.database);
        self.run(&format!("SELECT pg_copy_logical_replication_slot('@_start', '{slot}')"));
        let folder = self.cluster().home_dir().join(&slot);
        let source = wish(source(&self.url(), &slot));
        let assembler = assembler(&folder, STAGING_BYTES, Lsn::ZERO);
        Drain {
            runtime: Builder::new_current_thread().enable_all().build().unwrap(),
            url: self.url(),
            slot,
            folder,
            source,
            session: None,
            assembler,
            decoder: Decoder::new(),
            batch: TransactionBatch::new(),
            end: Lsn::ZERO,
            events: Vec::new(),
            kinds: String::new(),
            crashed_at: 0,
            bytes: 0,
            wal_end: Lsn::ZERO,
            keeps_marks: false,
            given_up: Vec::new(),
        }
    }

    pub(super) fn restart(&mut self, how: Shutdown) {
        let Place::Own(cluster) = &mut self.place else { panic!("others use the server") };
        cluster.restart(how).unwrap();
    }
}

/// In a shared cluster slots and prepared transactions would hold up whoever comes after.
impl Drop for Server {
    fn drop(&mut self) {
        let Place::Shared(_) = &self.place else { return };
        let session = self.session();
        let of = format!("database = '{}'", self.database);
        let open = format!("SELECT coalesce(string_agg(gid, ' '), '') FROM pg_prepared_xacts WHERE {of}");
        for gid in session.text(&open).split_whitespace() {
            session.run(&format!("ROLLBACK PREPARED '{gid}'"));
        }
        let end_readers =
            format!("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE {of} AND active");
        let free =
            format!("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE {of} AND NOT active");
        let left = format!("SELECT count(*)::text FROM pg_replication_slots WHERE {of}");
        let deadline = Instant::now() + PATIENCE;
        while session.text(&left) != "0" && Instant::now() < deadline {
            session.run(&format!("{end_readers}; {free}"));
        }
    }
}

impl Session {
    fn open(url: &str) -> Session {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (client, connection) = runtime.block_on(tokio_postgres::connect(url, NoTls)).unwrap();
        runtime.spawn(connection);
        Session { runtime, client }
    }

    #[track_caller]
    pub(super) fn run(&self, sql: &str) {
        self.runtime.block_on(self.client.batch_execute(sql)).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    fn text(&self, sql: &str) -> String {
        self.runtime.block_on(self.client.query_one(sql, &[])).unwrap().get(0)
    }
}

impl Drain {
    /// Reads to the end of the log as it is now.
    #[track_caller]
    pub(super) fn read_to_end(mut self) -> Drain {
        self.read_to_end_of_log();
        self
    }

    #[track_caller]
    pub(super) fn read_to_end_of_log(&mut self) {
        if let Outcome::Failed(error) = self.read_on() {
            panic!("{}: {}", self.kinds, error.report());
        }
    }

    /// Reads to the end of the log as it is now, or to an error.
    #[track_caller]
    pub(super) fn read_on(&mut self) -> Outcome {
        let target = self.log_end();
        self.read_while(|drain| drain.wal_end < target)
    }

    #[track_caller]
    pub(super) fn read_until_kinds(&mut self, kinds: &str) {
        let outcome = self.read_while(|drain| !drain.kinds.contains(kinds));
        assert!(matches!(outcome, Outcome::Read));
    }

    #[track_caller]
    pub(super) fn read_bytes(&mut self, bytes: usize) {
        let outcome = self.read_while(|drain| drain.bytes < bytes);
        assert!(matches!(outcome, Outcome::Read));
    }

    /// Says to the server that everything up to the end is durable.
    pub(super) fn confirm(&mut self) {
        let end = self.assembler.received_end();
        let session = self.session.take().expect("it is connected");
        session.confirmer.received(end);
        session.confirmer.confirm(end, true);
        self.runtime.block_on(session.confirmer.finish()).unwrap();
        // An empty part would be a mark: the journal goes as far as was confirmed.
        self.end = self.end.max(end);
    }

    /// The process dies, and another one opens what it left.
    pub(super) fn crash(&mut self) {
        self.session = None;
        self.assembler = Assembler::new(self.end);
        self.assembler = assembler(&self.folder, STAGING_BYTES, self.end);
        self.decoder = Decoder::new();
        self.crashed_at = self.kinds.len();
        (self.bytes, self.wal_end) = (0, Lsn::ZERO);
    }

    /// The process dies, somebody moves the slot to the end of the log, and that is adopted.
    pub(super) fn left_behind(&mut self) {
        self.session = None;
        let slot = &self.slot;
        let moved =
            format!("SELECT end_lsn::text FROM pg_replication_slot_advance('{slot}', pg_current_wal_flush_lsn())");
        self.end = Session::open(&self.url).text(&moved).parse().unwrap();
        self.keeps_marks = true;
        self.crash();
    }

    /// The gids of what was given up, without the database's name.
    pub(super) fn given_up(&self) -> Vec<&str> {
        self.given_up.iter().map(|gid| gid.rsplit('_').next().unwrap()).collect()
    }

    /// From now on transactions in progress have only so much room.
    pub(super) fn room(&mut self, bytes: u64) {
        self.assembler = Assembler::new(self.end);
        self.assembler = assembler(&self.folder, bytes, self.end);
    }

    /// The connection is opened again, as the assembler wants it.
    pub(super) fn reconnect(&mut self) {
        self.session = None;
        self.assembler.restart().unwrap();
        self.wal_end = Lsn::ZERO;
    }

    /// As `crash`, and the folder is gone.
    pub(super) fn lose_staging(&mut self) {
        self.assembler = Assembler::new(self.end);
        std::fs::remove_dir_all(self.folder.join("staging")).unwrap();
        self.crash();
    }

    /// Asks for something else from the next connection on.
    pub(super) fn wish(&mut self, wish: impl FnOnce(ReplicationSource) -> ReplicationSource) {
        self.source = wish(source(&self.url, &self.slot));
    }

    /// The server has another address after its restart.
    pub(super) fn moved(&mut self, server: &Server) {
        self.url = server.url();
        self.wish(|source| source.streaming(true).two_phase(true));
    }

    /// The journal is durable to its end.
    pub(super) fn release(&mut self) {
        self.assembler.release(self.assembler.received_end()).unwrap();
    }

    #[track_caller]
    pub(super) fn open_error(&mut self) -> Error {
        self.runtime.block_on(self.source.open(self.end)).expect_err("it opens")
    }

    pub(super) fn end(&self) -> Lsn {
        self.end
    }

    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    pub(super) fn contents(&self) -> Vec<&str> {
        self.events.iter().map(|event| &*event.content).collect()
    }

    /// The widths of the rows in order, and how many of each.
    pub(super) fn widths(&self) -> Vec<(usize, usize)> {
        let chunks = self.events.chunk_by(|one, other| one.width == other.width);
        chunks.map(|chunk| (chunk[0].width, chunk.len())).collect()
    }

    /// The first bytes of the messages.
    pub(super) fn kinds(&self) -> &str {
        &self.kinds
    }

    pub(super) fn kinds_since_crash(&self) -> &str {
        &self.kinds[self.crashed_at..]
    }

    pub(super) fn count(&self, kind: char) -> usize {
        self.kinds.matches(kind).count()
    }

    pub(super) fn staged_files(&self) -> usize {
        std::fs::read_dir(self.folder.join("staging")).unwrap().count()
    }

    fn log_end(&self) -> Lsn {
        Session::open(&self.url).text("SELECT pg_current_wal_flush_lsn()::text").parse().unwrap()
    }

    #[track_caller]
    fn read_while(&mut self, goes_on: impl Fn(&Drain) -> bool) -> Outcome {
        while goes_on(self) {
            if self.session.is_none() {
                let whole = self.assembler.wants_whole();
                let opened = if whole { self.source.open_whole(self.end) } else { self.source.open(self.end) };
                match self.runtime.block_on(opened) {
                    Ok(session) => {
                        self.assembler.expect_verdicts(session.outcomes.as_ref().expect("it is a primary"));
                        self.session = Some(session);
                    }
                    // The server may take a moment to find that the session before is gone.
                    Err(error) if error.kind() == postrider_core::error::ErrorKind::SlotInUse => continue,
                    Err(error) => return Outcome::Failed(error),
                }
            }
            if let Err(error) = self.read_once() {
                self.session = None;
                return Outcome::Failed(error);
            }
        }
        Outcome::Read
    }

    fn read_once(&mut self) -> Result<(), Error> {
        let session = self.session.as_mut().expect("it is connected");
        let read = async { tokio::time::timeout(PATIENCE, session.reader.read()).await.expect("nothing comes") };
        let frames = self.runtime.block_on(read)?;
        for frame in frames.frames() {
            match frame.unwrap() {
                Frame::XLogData { payload, .. } => {
                    self.bytes += payload.len();
                    self.kinds.push(char::from(payload[0]));
                    self.assembler.push(payload, &mut self.batch)?;
                    while self.assembler.is_copying() {
                        self.assembler.copy(&mut self.batch)?;
                        self.note();
                    }
                }
                Frame::KeepAlive { wal_end, sent_at, .. } => {
                    self.wal_end = self.wal_end.max(wal_end);
                    if self.keeps_marks {
                        self.assembler.mark(wal_end, sent_at, &mut self.batch);
                    }
                }
            }
        }
        self.note();
        for missed in self.assembler.missed() {
            self.assembler.give_up(&missed)?;
            self.given_up.push(missed.prepared.gid);
        }
        let received = self.assembler.received_end();
        self.wal_end = self.wal_end.max(received);
        let session = self.session.as_ref().expect("it is connected");
        session.confirmer.received(received);
        Ok(())
    }

    fn note(&mut self) {
        for part in self.batch.parts() {
            let commit_lsn = part.head.commit_lsn;
            let mut changes = self.decoder.changes(part);
            while let Some(change) = changes.next() {
                let (ordinal, change) = change.unwrap();
                let (content, width) = match change {
                    Change::Insert { new, .. } => (text(new.columns().next()), new.len()),
                    Change::Message(message) => (String::from_utf8_lossy(message.content).into_owned(), 0),
                    other => panic!("{other:?}"),
                };
                self.events.push(Event { commit_lsn, ordinal, content, width });
            }
            if part.head.last {
                self.end = part.head.end_lsn;
            }
        }
        self.batch.clear();
    }
}

fn source(url: &str, slot: &str) -> ReplicationSource {
    ReplicationSource::new(ConnectOptions::parse(url, &BTreeMap::new()).unwrap(), slot, "p")
}

fn assembler(folder: &Path, bytes_max: u64, end: Lsn) -> Assembler {
    let staging = open_staging(folder, LIFE, bytes_max).unwrap();
    let mut assembler = Assembler::with_staging(end, staging);
    assembler.restart().unwrap();
    assembler
}

fn text(value: Option<TupleValue<'_>>) -> String {
    let Some(TupleValue::Text(text)) = value else { panic!("{value:?}") };
    String::from_utf8_lossy(text).into_owned()
}
