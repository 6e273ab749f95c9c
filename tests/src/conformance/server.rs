//! Runs a case on a real server, and takes down what it sends and what it says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::TryStreamExt as _;
use postrider_core::pgoutput::Message;
use postrider_postgres::{ConnectOptions, connect_client};
use tokio_postgres::{Client, SimpleQueryMessage};
use xtask::postgres::{Cluster, find};

use super::case::{Case, Statement};
use super::recording::{Expected, Recording, Sent, Table, from_hex};
use super::substance::FIRST_USER_OID;

/// How long a reader that has been dropped may hold its slot.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The published tables, with the columns that are published: the publication's list, else all but the generated ones that it
/// leaves out.
const PUBLISHED: &str = "
SELECT schemaname, tablename, to_json(ARRAY(
    SELECT a.attname FROM pg_attribute AS a
    WHERE a.attrelid = format('%I.%I', schemaname, tablename)::regclass AND a.attnum > 0 AND NOT a.attisdropped
        AND COLUMN_IS_PUBLISHED ORDER BY a.attnum)),
    ROW_FILTER
FROM pg_publication_tables WHERE pubname = 'p' ORDER BY 1, 2";

/// A cluster in which nothing happens by itself.
///
/// # Errors
/// When the version cannot be had or does not start.
pub fn quiet(version: u32) -> xtask::error::Result<Cluster> {
    Cluster::builder(&find(Some(version))?).setting("autovacuum", "off").start()
}

/// A database of its own for one case, with a slot of each output plugin.
#[derive(Debug)]
pub struct Database {
    options: ConnectOptions,
    /// Of the database and of its slot of `pgoutput`.
    name: String,
    version: u32,
    /// Its settings are pinned, as are those of every session that reads.
    reader: Client,
}

/// A statement that the server does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub sql: String,
    pub sqlstate: String,
    pub message: String,
}

impl Database {
    /// Makes one, runs the case in it, and leaves all it wrote in the slots. `Err` with what the server refuses.
    pub async fn of(case: &Case, cluster: &Cluster) -> Result<Database, Refusal> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("case_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let maintenance = connect(&options(&cluster.url())).await;
        run(&maintenance, &format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")).await;
        let options = options(&cluster.url_of(&name));
        let reader = connect(&options).await;
        let database = Database { options, name, version: cluster.installation().major(), reader };
        let mut sessions = BTreeMap::new();
        database.play(&case.setup, &mut sessions).await?;
        database.make_slots(case.is_two_phase()).await;
        database.play(&case.script, &mut sessions).await?;
        Ok(database)
    }

    pub fn options(&self) -> &ConnectOptions {
        &self.options
    }

    /// The database's name, which is that of its slot of `pgoutput`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the server sends and says; the slots stay where they are. `Err` where it refuses the options.
    pub async fn record(&self, case: &Case) -> Result<Recording, Refusal> {
        if let Some(settings) = &case.reader {
            run(&self.reader, settings).await;
        }
        let changes = match case.unlike_test_decoding {
            None => {
                let lines = self.test_decoding().await;
                lines.iter().filter_map(|line| published(case, line)).collect()
            }
            Some(_) => case.by_hand.clone(),
        };
        let messages = self.messages(case).await?;
        Ok(Recording {
            server: self.rows("SHOW server_version").await[0][0].split(' ').next().unwrap().to_owned(),
            expected: Expected { changes, types: self.types(&messages).await, tables: self.tables().await },
            messages,
        })
    }

    /// Gives up the slots and the database.
    pub async fn remove(self, cluster: &Cluster) {
        let Database { name, reader, .. } = self;
        drop(reader);
        let maintenance = connect(&options(&cluster.url())).await;
        let active = format!("SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{name}' AND active");
        let deadline = Instant::now() + PATIENCE;
        while !maintenance.query(&active, &[]).await.unwrap().is_empty() {
            assert!(Instant::now() < deadline, "somebody still reads from the slot {name}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        for slot in [name.clone(), format!("{name}_text")] {
            run(&maintenance, &format!("SELECT pg_drop_replication_slot('{slot}')")).await;
        }
        run(&maintenance, &format!("DROP DATABASE {name} WITH (FORCE)")).await;
    }

    async fn play(&self, statements: &[Statement], sessions: &mut BTreeMap<String, Client>) -> Result<(), Refusal> {
        for Statement { session, sql, fails } in statements {
            if !sessions.contains_key(session) {
                let client = connect(&self.options).await;
                run(&client, "SET search_path = public").await;
                sessions.insert(session.clone(), client);
            }
            let refusal = sessions[session].batch_execute(sql).await.err().map(|error| Refusal::of(sql, &error));
            match (refusal, fails) {
                (None, None) => {}
                (Some(refusal), Some(sqlstate)) if refusal.sqlstate == *sqlstate => {}
                (Some(refusal), None) => return Err(refusal),
                (refusal, fails) => panic!("{sql}: {refusal:?} instead of {fails:?}"),
            }
        }
        Ok(())
    }

    /// A slot of `test_decoding` without two-phase decoding shows each transaction when it commits, whatever the other one does.
    async fn make_slots(&self, two_phase: bool) {
        let name = &self.name;
        run(
            &self.reader,
            &format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput', false, {two_phase})"),
        )
        .await;
        run(&self.reader, &format!("SELECT pg_create_logical_replication_slot('{name}_text', 'test_decoding')")).await;
    }

    /// The messages as the plugin writes them, read through SQL: the walsender puts the same bytes behind the header of XLogData.
    async fn messages(&self, case: &Case) -> Result<Vec<Sent>, Refusal> {
        let options: Vec<String> = case.options.iter().map(|(key, value)| format!("'{key}', '{value}'")).collect();
        let sql = format!(
            "SELECT lsn, encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('{}', NULL, NULL, {})",
            self.name,
            options.join(", ")
        );
        let sent = |row: Vec<String>| Sent { lsn: row[0].clone(), payload: from_hex(&row[1]) };
        Ok(self.try_rows(&sql).await?.into_iter().map(sent).collect())
    }

    async fn test_decoding(&self) -> Vec<String> {
        let sql = format!(
            "SELECT data FROM pg_logical_slot_peek_changes('{}_text', NULL, NULL, 'include-timestamp', 'on')",
            self.name
        );
        let lines: Vec<String> = self.rows(&sql).await.into_iter().map(|mut row| row.remove(0)).collect();
        assert!(lines.iter().all(|line| !line.contains('\n')), "a change must fit in a line: {lines:?}");
        lines
    }

    /// The names of the built-in types that the messages speak of.
    async fn types(&self, messages: &[Sent]) -> BTreeMap<u32, String> {
        let mut oids = BTreeSet::new();
        for sent in messages {
            let plain = Message::parse(&sent.payload).ok();
            let streamed = || Message::parse_streamed(&sent.payload).ok().map(|(_, message)| message);
            if let Some(Message::Relation(relation)) = plain.or_else(streamed) {
                oids.extend(relation.columns().map(|column| column.type_oid).filter(|oid| *oid < FIRST_USER_OID));
            }
        }
        let sql = format!("SELECT oid, format_type(oid, NULL) FROM unnest('{{{}}}'::oid[]) AS oid", list(&oids));
        self.rows(&sql).await.into_iter().map(|row| (row[0].parse().unwrap(), row[1].clone())).collect()
    }

    async fn tables(&self) -> Vec<Table> {
        let (column_is_published, row_filter) = match self.version {
            14 => ("a.attgenerated = ''", "NULL"),
            15..=17 => ("a.attname = ANY (attnames) AND a.attgenerated = ''", "rowfilter"),
            _ => ("a.attname = ANY (attnames)", "rowfilter"),
        };
        let published = PUBLISHED.replace("COLUMN_IS_PUBLISHED", column_is_published).replace("ROW_FILTER", row_filter);
        let mut tables = Vec::new();
        for row in self.rows(&published).await {
            let [schema, name, columns, filter] = row.try_into().unwrap();
            let columns: Vec<String> = serde_json::from_str(&columns).unwrap();
            let quoted: Vec<String> = columns.iter().map(|column| quoted(column)).collect();
            let filter = if filter.is_empty() { String::new() } else { format!(" WHERE {filter}") };
            let copy = format!(
                "COPY (SELECT {} FROM {}.{}{filter}) TO STDOUT",
                quoted.join(", "),
                self::quoted(&schema),
                self::quoted(&name)
            );
            tables.push(Table { schema, name, columns, rows: self.copy(&copy).await });
        }
        tables
    }

    async fn copy(&self, sql: &str) -> Vec<String> {
        let chunks: Vec<bytes::Bytes> = self.reader.copy_out(sql).await.unwrap().try_collect().await.unwrap();
        let text = String::from_utf8(chunks.concat()).unwrap();
        let mut rows: Vec<String> = text.lines().map(str::to_owned).collect();
        rows.sort();
        rows
    }

    async fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        self.try_rows(sql).await.unwrap_or_else(|refusal| panic!("{refusal:?}"))
    }

    /// The rows as text, NULL as nothing.
    async fn try_rows(&self, sql: &str) -> Result<Vec<Vec<String>>, Refusal> {
        let messages = self.reader.simple_query(sql).await.map_err(|error| Refusal::of(sql, &error))?;
        let row = |message: &SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|column| row.get(column).unwrap_or_default().to_owned()).collect())
            }
            _ => None,
        };
        Ok(messages.iter().filter_map(row).collect())
    }
}

impl Refusal {
    fn of(sql: &str, error: &tokio_postgres::Error) -> Refusal {
        let Some(refusal) = error.as_db_error() else { panic!("{sql}: {error:?}") };
        let message = refusal.message().to_owned();
        Refusal { sql: sql.to_owned(), sqlstate: refusal.code().code().to_owned(), message }
    }
}

pub(super) fn options(url: &str) -> ConnectOptions {
    ConnectOptions::parse(url, &BTreeMap::new()).unwrap()
}

async fn connect(options: &ConnectOptions) -> Client {
    connect_client(options).await.unwrap().0
}

async fn run(client: &Client, sql: &str) {
    client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// What is left of a line without the tables that the publication does not have.
fn published(case: &Case, line: &str) -> Option<String> {
    let is_unpublished = |table: &str| case.unpublished.iter().any(|unpublished| unpublished == table);
    let Some((tables, rest)) = line.strip_prefix("table ").and_then(|line| line.split_once(": ")) else {
        return Some(line.to_owned());
    };
    let kept: Vec<&str> = tables.split(", ").filter(|table| !is_unpublished(table)).collect();
    (!kept.is_empty()).then(|| format!("table {}: {rest}", kept.join(", ")))
}

fn list(oids: &BTreeSet<u32>) -> String {
    oids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
