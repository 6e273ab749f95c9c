//! A database with a publication of all tables and a slot, on a cluster that the tests of one version share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use postrider_core::assemble::Assembler;
use postrider_core::change::Change;
use postrider_core::decode::Decoder;
use postrider_core::error::Result;
use postrider_core::frame::Frame;
use postrider_core::json::RowShape;
use postrider_core::pgoutput::{Tuple, TupleValue};
use postrider_core::ports::LogSource;
use postrider_core::position::Lsn;
use postrider_core::relation::{Relation, Relations};
use postrider_core::transaction::TransactionBatch;
use postrider_core::value::{self, Type};
use postrider_postgres::{ConnectOptions, ReplicationSource, connect_client, create_slot};
use tokio::time::timeout;
use tokio_postgres::Client;
use xtask::postgres::{Cluster, shared};

const PATIENCE: Duration = Duration::from_secs(120);
/// Its insert says that all before it has been read.
const LAST_TABLE: &str = "the_last";

pub(crate) struct Database {
    /// A superuser's session under the pinned settings, with `public` on its search path.
    pub(crate) admin: Client,
    cluster: Arc<Cluster>,
    name: String,
}

/// A change of a row, as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// `I`, `U` or `D`.
    pub(crate) kind: char,
    pub(crate) table: String,
    /// Of the new version; of the old one where it is a delete.
    pub(crate) cells: Vec<Cell>,
    /// The row as JSON.
    pub(crate) json: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Cell {
    pub(crate) column: String,
    pub(crate) data_type: Type,
    /// `None` for NULL.
    pub(crate) text: Option<String>,
    pub(crate) unchanged: bool,
}

impl Database {
    pub(crate) async fn create(version: u32) -> Database {
        Database::with_encoding(version, "UTF8").await
    }

    pub(crate) async fn with_encoding(version: u32, encoding: &str) -> Database {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let cluster = shared(version).unwrap();
        let name = format!("values_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let (client, _task) = connect_client(&parse(&cluster.url())).await.unwrap();
        let create = format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}'");
        client.batch_execute(&create).await.unwrap();
        let admin = connect(&parse(&cluster.url_of(&name))).await;
        let database = Database { admin, cluster, name };
        database.run(&format!("CREATE TABLE {LAST_TABLE} (id int); CREATE PUBLICATION p FOR ALL TABLES")).await;
        create_slot(&database.options(), &database.name, PATIENCE).await.unwrap();
        database
    }

    pub(crate) fn options(&self) -> ConnectOptions {
        parse(&self.url())
    }

    pub(crate) fn url(&self) -> String {
        self.cluster.url_of(&self.name)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) async fn run(&self, statements: &str) {
        self.admin.batch_execute(statements).await.unwrap_or_else(|error| panic!("{error:?}: {statements}"));
    }

    /// All changes of rows since the database was made, read from the slot. It ends the test's use of the slot.
    pub(crate) async fn changes(&self) -> Vec<Seen> {
        self.try_changes().await.unwrap()
    }

    /// As [`Database::changes`], with the error that the stream ends by.
    pub(crate) async fn try_changes(&self) -> Result<Vec<Seen>> {
        self.run(&format!("INSERT INTO {LAST_TABLE} VALUES (1)")).await;
        let source = ReplicationSource::new(self.options(), self.name.clone(), "p");
        let mut session = source.open(Lsn::ZERO).await.unwrap();
        let mut assembler = Assembler::new(Lsn::ZERO);
        let mut decoder = Decoder::new();
        let mut seen: Vec<Seen> = Vec::new();
        while seen.last().is_none_or(|last| last.table != LAST_TABLE) {
            let frames = timeout(PATIENCE, session.reader.read()).await.expect("nothing comes")?;
            let mut batch = TransactionBatch::new();
            for frame in frames.frames() {
                if let Frame::XLogData { payload, .. } = frame.unwrap() {
                    assembler.push(payload, &mut batch).unwrap();
                }
            }
            for part in batch.parts() {
                let mut changes = decoder.changes(part);
                while let Some(change) = changes.next_with_relations() {
                    let (_, change, relations) = change.unwrap();
                    seen.extend(Seen::of(&change, relations));
                }
            }
        }
        seen.pop();
        Ok(seen)
    }

    /// As [`Database::changes`], where only rows of one table were inserted.
    pub(crate) async fn inserts(&self) -> Vec<Seen> {
        let seen = self.changes().await;
        assert!(seen.iter().all(|seen| seen.kind == 'I'), "{seen:?}");
        seen
    }
}

impl Seen {
    fn of(change: &Change<'_>, relations: &Relations) -> Option<Seen> {
        let mut json = String::new();
        let shape = |relation: &Relation| RowShape::of(relation, relations);
        let (kind, relation, tuple, written) = match *change {
            Change::Insert { relation, new } => ('I', relation, new.sent(), shape(relation).write_new(&mut json, new)),
            Change::Update { relation, new, .. } => {
                ('U', relation, new.sent(), shape(relation).write_new(&mut json, new))
            }
            Change::Delete { relation, old } => ('D', relation, old.tuple(), shape(relation).write_old(&mut json, old)),
            _ => return None,
        };
        written.unwrap();
        Some(Seen { kind, table: relation.name.clone(), cells: cells(relation, relations, tuple), json })
    }

    /// The texts of the columns behind the first.
    pub(crate) fn texts(&self) -> Vec<Option<&str>> {
        self.cells[1..].iter().map(|cell| cell.text.as_deref()).collect()
    }
}

fn cells(relation: &Relation, relations: &Relations, tuple: Tuple<'_>) -> Vec<Cell> {
    let cell = |(column, value): (&postrider_core::relation::Column, TupleValue<'_>)| Cell {
        column: column.name.clone(),
        data_type: Type::in_force(column.type_oid, relations),
        unchanged: value == TupleValue::Unchanged,
        text: if value == TupleValue::Unchanged { None } else { value::text(value).unwrap().map(str::to_owned) },
    };
    relation.columns.iter().zip(tuple.columns()).map(cell).collect()
}

fn parse(url: &str) -> ConnectOptions {
    ConnectOptions::parse(url, &BTreeMap::new()).unwrap()
}

async fn connect(options: &ConnectOptions) -> Client {
    let (client, _task) = connect_client(options).await.unwrap();
    client.batch_execute("SET search_path = public").await.unwrap();
    client
}
