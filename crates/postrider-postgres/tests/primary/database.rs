//! A database of its own for each test, on a cluster that tests running at the same time share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use postrider_core::route::{OutboxColumns, OutboxTable, Routing, WorkMapping};
use postrider_core::time::Timestamp;
use postrider_postgres::{ConnectOptions, Failover, SourceObjects, connect_client};
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;
use xtask::postgres::{Cluster, Shutdown, find};

/// A database, and a superuser's session in it whose search path is `public`.
pub(crate) struct Database {
    pub(crate) admin: Client,
    pub(crate) cluster: Arc<Cluster>,
    name: String,
}

impl Database {
    /// On the shared cluster.
    pub(crate) async fn create() -> Database {
        static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
        let cluster = {
            let mut shared = SHARED.lock().unwrap();
            shared.upgrade().unwrap_or_else(|| {
                let cluster = Arc::new(start());
                *shared = Arc::downgrade(&cluster);
                cluster
            })
        };
        Database::on(cluster).await
    }

    /// On a cluster of its own, which may be restarted and changed.
    pub(crate) async fn create_alone() -> Database {
        Database::on(Arc::new(start())).await
    }

    async fn on(cluster: Arc<Cluster>) -> Database {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let (client, _task) = connect_client(&parse(&cluster.url())).await.unwrap();
        client.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let admin = connect(&parse(&cluster.url_of(&name))).await;
        Database { admin, cluster, name }
    }

    /// The superuser's address of this database.
    pub(crate) fn options(&self) -> ConnectOptions {
        parse(&self.cluster.url_of(&self.name))
    }

    /// The superuser's address of another database of the cluster.
    pub(crate) fn options_of(&self, database: &str) -> ConnectOptions {
        parse(&self.cluster.url_of(database))
    }

    /// A session in another database of the cluster.
    pub(crate) async fn client_of(&self, database: &str) -> Client {
        connect(&self.options_of(database)).await
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The server's major version.
    pub(crate) fn major(&self) -> u32 {
        self.cluster.installation().major()
    }

    pub(crate) async fn another_client(&self) -> Client {
        connect(&self.options()).await
    }

    pub(crate) async fn install_work_table(&self) {
        self.run(include_str!("../../../../sql/source/0001_create_pending_work.sql")).await;
        self.install_store().await;
    }

    pub(crate) async fn install_store(&self) {
        self.run(include_str!("../../../../sql/store/0001_create_work_history.sql")).await;
        self.run(include_str!("../../../../sql/store/0002_create_operator_actions.sql")).await;
        self.run(include_str!("../../../../sql/store/0003_create_pauses.sql")).await;
    }

    pub(crate) async fn run(&self, statements: &str) {
        self.admin.batch_execute(statements).await.unwrap();
    }

    /// The one value of a query, as text.
    pub(crate) async fn text(&self, query: &str) -> String {
        self.admin.query_one(query, &[]).await.unwrap().get(0)
    }

    /// Every row of the work table, as text.
    pub(crate) async fn rows(&self) -> String {
        self.text("SELECT string_agg(w::text, E'\\n' ORDER BY group_id, quote_id) FROM pending_work AS w").await
    }

    pub(crate) async fn now(&self) -> Timestamp {
        let micros = "SELECT (extract(epoch FROM now()) * 1000000)::int8";
        Timestamp(self.admin.query_one(micros, &[]).await.unwrap().get(0))
    }

    /// Restarts a cluster that is this database's alone.
    pub(crate) async fn restart(&mut self, mode: Shutdown) {
        Arc::get_mut(&mut self.cluster).unwrap().restart(mode).unwrap();
        self.admin = self.another_client().await;
    }
}

/// The names of `sql/source/0001_create_pending_work.sql`.
pub(crate) fn canonical_mapping() -> WorkMapping {
    let name = str::to_owned;
    WorkMapping {
        schema: name("public"),
        table: name("pending_work"),
        key: vec![name("group_id"), name("quote_id")],
        stage: name("stage"),
        stage_state: name("stage_state"),
        ..WorkMapping::default()
    }
}

/// The tables of `sql/source`, under a publication and a slot of one name.
pub(crate) fn canonical_objects(name: &str) -> SourceObjects {
    let text = str::to_owned;
    let columns = OutboxColumns {
        id: text("id"),
        key: Some(text("aggregate_key")),
        event_type: Some(text("event_type")),
        payload: text("payload"),
        headers: Some(text("headers")),
        topic: Some(text("topic")),
        created_at: Some(text("created_at")),
        published_at: Some(text("published_at")),
    };
    let outbox = OutboxTable { schema: text("public"), table: text("outbox_event"), columns };
    let routing = Routing { outbox_tables: vec![outbox], outbox_prefixes: Vec::new(), work: Some(canonical_mapping()) };
    SourceObjects {
        publication: text(name),
        slot: text(name),
        two_phase: false,
        failover: Failover::default(),
        standby: false,
        quiet: false,
        same_tx: false,
        observe: false,
        routing,
        history: true,
    }
}

/// A slot named as the database, with an empty publication.
pub(crate) async fn replication_slot(database: &Database) -> String {
    let name = database.name();
    database.run("CREATE PUBLICATION none").await;
    database.run(&format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")).await;
    name.to_owned()
}

/// Looks until it is so; after half a minute it never will be.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so().await {
        assert!(Instant::now() < deadline, "not within 30 s: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn parse(url: &str) -> ConnectOptions {
    ConnectOptions::parse(url, &BTreeMap::new()).unwrap()
}

async fn connect(options: &ConnectOptions) -> Client {
    let (client, _task) = connect_client(options).await.unwrap();
    client.batch_execute("SET search_path = public").await.unwrap();
    client
}

/// Of the major version in `POSTRIDER_TEST_POSTGRES`, else of whichever is there.
fn start() -> Cluster {
    let version = std::env::var("POSTRIDER_TEST_POSTGRES").ok().map(|major| major.parse().unwrap());
    Cluster::builder(&find(version).unwrap()).start().unwrap()
}
