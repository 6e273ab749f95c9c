//! The real ports: PostgreSQL, the disk, HTTP.

use postrider_core::paused::{PauseChange, Paused};
use postrider_core::ports::{BoxFuture, LogSource, Sink, SourceIdentity, StageCaller, Staging, WorkTable};
use postrider_core::position::{Generation, Lsn};
use postrider_core::route::WorkMapping;
use postrider_core::stage::Step;
use postrider_core::work::{OwnerId, WorkKey};
use postrider_delivery::{Endpoint, HttpEventSettings, HttpEventSink, HttpSettings, HttpStageCaller, NdjsonSink};
use postrider_journal::Life;
use postrider_postgres::{
    Access, ConnectOptions, Note, Operator, PgWorkTable, ReplicationSource, WorkTableSettings, create_slot,
};
use postrider_tests::port_tests::stage_caller::Play;
use postrider_tests::port_tests::{journal, log, sink, stage_caller, staging, work_table};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::{Client, NoTls};
use xtask::postgres::{Cluster, find};

/// A folder of one test, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("postrider-port-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left in the temporary folder does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Journals(Folder);

impl journal::Fixture for Journals {
    fn open(&self) -> journal::Doors {
        let identity = SourceIdentity { system_identifier: 7, timeline: 1, database: "core".into(), slot: "s".into() };
        let opened = postrider_journal::open(&self.0.0.join("journal"), &identity, &Default::default()).unwrap();
        journal::Doors { writer: opened.writer, journal: opened.journal, positions: opened.positions }
    }
}

#[tokio::test]
async fn the_journal_is_one() {
    journal::suite(&Journals(Folder::new("journal"))).await;
}

struct Stagings(Folder);

impl staging::Fixture for Stagings {
    fn open(&self) -> Box<dyn Staging> {
        let life = Life { system_identifier: 1, generation: Generation::FIRST, begun: Vec::new() };
        postrider_journal::open_staging(&self.0.0.join("journal"), life, 100_000).unwrap()
    }
}

#[test]
fn the_staging_area_is_one() {
    staging::suite(&Stagings(Folder::new("staging")));
}

pub(super) mod needs_postgres {
    use super::*;

    pub(in super::super) struct Server {
        pub(in super::super) client: Client,
        options: ConnectOptions,
        _cluster: Cluster,
    }

    impl Server {
        async fn start() -> Server {
            let cluster = Cluster::builder(&find(None).unwrap()).start().unwrap();
            let (client, connection) = tokio_postgres::connect(&cluster.url(), NoTls).await.unwrap();
            tokio::spawn(connection);
            let options = ConnectOptions::parse(&cluster.url(), &BTreeMap::new()).unwrap();
            let store = ["0001_create_work_history", "0002_create_operator_actions", "0003_create_pauses"];
            let store = store.map(|file| format!("sql/store/{file}.sql"));
            for file in std::iter::once("sql/source/0001_create_pending_work.sql".to_owned()).chain(store) {
                let statements = std::fs::read_to_string(xtask::workspace::root().join(file)).unwrap();
                client.batch_execute(&statements).await.unwrap();
            }
            Server { client, options, _cluster: cluster }
        }
    }

    /// The work table of a server that was just started.
    pub(in super::super) struct Work {
        pub(in super::super) server: Server,
        table: PgWorkTable,
        owner: OwnerId,
    }

    impl work_table::Fixture for Work {
        fn table(&self) -> &dyn WorkTable {
            &self.table
        }

        fn owner(&self) -> OwnerId {
            self.owner
        }

        fn submit<'a>(&'a self, key: &'a WorkKey, stage: &'a str) -> BoxFuture<'a, ()> {
            Box::pin(async move {
                let parts: Vec<&str> = key.parts().collect();
                let sql =
                    "INSERT INTO pending_work (group_id, quote_id, stage, payload) VALUES ($1, $2, $3, '{\"n\": 1}')";
                self.server.client.execute(sql, &[&parts[0], &parts[1], &stage]).await.unwrap();
            })
        }

        fn order(&self, change: PauseChange) -> BoxFuture<'_, ()> {
            Box::pin(async move {
                let options = &self.server.options;
                let operator = Operator::open(options, &WorkMapping::default(), true, Access::Pause).await.unwrap();
                let note = |verb: &str, who: &str, why: &str| {
                    let [verb, who, why] = [verb, who, why].map(str::to_owned);
                    Note { verb, who, why, evidence: None }
                };
                let is_new = match change {
                    PauseChange::Pause(Paused { part, who, why, .. }) => {
                        operator.pause(&part, &note("stage pause", &who, &why)).await
                    }
                    PauseChange::Resume(part) => operator.resume(&part, &note("stage resume", "ada", "done")).await,
                };
                assert!(is_new.unwrap());
            })
        }

        fn pass(&self, span: Duration) -> BoxFuture<'_, ()> {
            Box::pin(async move {
                self.server.client.execute("SELECT pg_sleep($1)", &[&span.as_secs_f64()]).await.unwrap();
            })
        }
    }

    pub(in super::super) async fn work() -> Work {
        let server = Server::start().await;
        let owner = OwnerId(0x0FED_CBA9_8765_4321);
        // The server was started a moment ago, and nobody else is reconnecting.
        let settings = WorkTableSettings { owner_grace: Duration::ZERO, ..WorkTableSettings::new(owner) };
        let table = PgWorkTable::open(server.options.clone(), &WorkMapping::default(), &settings).await.unwrap();
        Work { server, table, owner }
    }

    #[tokio::test]
    async fn the_work_table_is_one() {
        work_table::suite(&work().await).await;
    }

    struct Source {
        server: Server,
        source: ReplicationSource,
    }

    impl log::Fixture for Source {
        fn source(&self) -> &dyn LogSource {
            &self.source
        }

        fn emit<'a>(&'a self, text: &'a str) -> BoxFuture<'a, ()> {
            Box::pin(async move {
                let sql = "SELECT pg_logical_emit_message(true, 'port', $1)";
                self.server.client.execute(sql, &[&text]).await.unwrap();
            })
        }

        fn confirmed(&self) -> BoxFuture<'_, Lsn> {
            Box::pin(async move {
                let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'port'";
                let row = self.server.client.query_one(sql, &[]).await.unwrap();
                row.get::<_, &str>(0).parse().unwrap()
            })
        }
    }

    #[tokio::test]
    async fn the_log_is_one() {
        let server = Server::start().await;
        server.client.batch_execute("CREATE PUBLICATION port FOR TABLE pending_work").await.unwrap();
        create_slot(&server.options, "port", Duration::from_secs(30)).await.unwrap();
        let source = ReplicationSource::new(server.options.clone(), "port", "port");
        log::suite(&Source { server, source }).await;
    }
}

struct Lines(Folder);

impl sink::Fixture for Lines {
    fn open(&self) -> Box<dyn Sink> {
        Box::new(NdjsonSink::open(&self.0.0.join("events.ndjson")).unwrap())
    }

    fn ids(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.0.0.join("events.ndjson")).unwrap();
        let id = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["id"].as_str().unwrap().to_owned()
        };
        let mut ids: Vec<String> = text.lines().map(id).collect();
        let mut seen = std::collections::BTreeSet::new();
        ids.retain(|id| seen.insert(id.clone()));
        ids
    }
}

#[tokio::test]
async fn the_sink_of_lines_is_one() {
    sink::suite(&Lines(Folder::new("lines"))).await;
}

/// An HTTP server that plays what it is told, one answer for each connection.
struct Server {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    play: Mutex<Option<Play>>,
    /// Of each request the value of the header that identifies it.
    seen: Mutex<Vec<String>>,
}

impl Server {
    async fn start(identifying: &'static str) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let known = shared.clone();
        tokio::spawn(async move {
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                tokio::spawn(answer(connection, known.clone(), identifying));
            }
        });
        Server { port, shared }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::parse(&format!("http://127.0.0.1:{}/", self.port)).unwrap()
    }

    fn seen(&self) -> Vec<String> {
        self.shared.seen.lock().unwrap().clone()
    }
}

async fn answer(connection: TcpStream, shared: Arc<Shared>, identifying: &str) {
    let mut connection = BufReader::new(connection);
    let mut length = 0;
    let mut id = String::new();
    loop {
        let mut line = String::new();
        if connection.read_line(&mut line).await.unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.trim().trim_matches('"');
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().unwrap();
        } else if name.eq_ignore_ascii_case(identifying) {
            value.clone_into(&mut id);
        }
    }
    connection.read_exact(&mut vec![0; length]).await.unwrap();
    shared.seen.lock().unwrap().push(id);
    let play = *shared.play.lock().unwrap();
    let head = match play {
        Some(Play::Defer) => "429 Too Many Requests\r\nPostrider-Outcome: retry\r\nRetry-After: 2",
        Some(Play::Fail) => "500 Internal Server Error",
        Some(Play::Stall) => return std::future::pending().await,
        Some(Play::Hang | Play::Gone) => return,
        Some(Play::Done) | None => "200 OK\r\nPostrider-Outcome: done",
    };
    let reply = format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    // The caller may be gone.
    let _ = connection.write_all(reply.as_bytes()).await;
}

struct Calls {
    server: Server,
    caller: HttpStageCaller,
    /// The way to a port where nobody listens.
    nowhere: HttpStageCaller,
}

impl stage_caller::Fixture for Calls {
    fn caller(&self) -> &dyn StageCaller {
        let gone = *self.server.shared.play.lock().unwrap() == Some(Play::Gone);
        if gone { &self.nowhere } else { &self.caller }
    }

    fn play(&self, play: Play) {
        *self.server.shared.play.lock().unwrap() = Some(play);
    }

    fn requests(&self) -> Vec<String> {
        self.server.seen()
    }
}

#[tokio::test]
async fn the_stage_caller_is_one() {
    let caller = |endpoint| {
        let endpoints = BTreeMap::from([(Step::new("quote@1", "APPROVAL"), endpoint)]);
        HttpStageCaller::new(endpoints, &HttpSettings::default()).unwrap()
    };
    let server = Server::start("idempotency-key").await;
    // The port stays bound, so that nobody else gets it, and refuses, since it does not listen.
    let closed = tokio::net::TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = closed.local_addr().unwrap().port();
    let nowhere = caller(Endpoint::parse(&format!("http://127.0.0.1:{port}/")).unwrap());
    stage_caller::suite(&Calls { caller: caller(server.endpoint()), nowhere, server }).await;
}

struct Posts(Server);

impl sink::Fixture for Posts {
    fn open(&self) -> Box<dyn Sink> {
        Box::new(HttpEventSink::new(self.0.endpoint(), &HttpEventSettings::default()).unwrap())
    }

    fn ids(&self) -> Vec<String> {
        let mut ids = self.0.seen();
        let mut seen = std::collections::BTreeSet::new();
        ids.retain(|id| seen.insert(id.clone()));
        ids
    }
}

#[tokio::test]
async fn the_http_sink_is_one() {
    sink::suite(&Posts(Server::start("webhook-id").await)).await;
}
