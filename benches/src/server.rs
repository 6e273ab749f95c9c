//! The server that both sides of a bench share: a private cluster that syncs to disk.

use std::fs;
use std::path::Path;

use tokio_postgres::{Client, Config, NoTls};
use xtask::error::{Context, Error, Result};
use xtask::postgres::{Cluster, find};
use xtask::workspace;

/// A cluster, and one session of the bench's own.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
}

/// The publication of every bench.
pub(crate) const PUBLICATION: &str = "postrider";

impl Server {
    /// Starts a cluster with fsync on and these further settings, and installs `sql/source`.
    pub(crate) async fn start(settings: &[(&str, &str)]) -> Result<Self> {
        Self::start_version(None, settings).await
    }

    /// As [`Server::start`], of this major version where one is given.
    pub(crate) async fn start_version(major: Option<u32>, settings: &[(&str, &str)]) -> Result<Self> {
        let mut builder = Cluster::builder(&find(major)?).fsync(true);
        for (name, value) in settings {
            builder = builder.setting(name, value);
        }
        let cluster = builder.start()?;
        let client = connect(&cluster.url()).await?;
        install_tables(&client).await?;
        Ok(Self { cluster, client })
    }

    pub(crate) fn url(&self) -> String {
        self.cluster.url()
    }

    pub(crate) fn postmaster(&self) -> Result<u32> {
        self.cluster.pid().ok_or_else(|| Error::new("the server does not run"))
    }

    pub(crate) async fn execute(&self, sql: &str) -> Result<()> {
        self.client.batch_execute(sql).await.context(|| format!("the server refused: {sql}"))
    }

    /// The one text that a query returns.
    pub(crate) async fn text(&self, sql: &str) -> Result<String> {
        let row = self.client.query_one(sql, &[]).await.context(|| format!("the server refused: {sql}"))?;
        row.try_get(0).context(|| format!("no text came of: {sql}"))
    }

    /// What has been set, as a bench's output states it.
    pub(crate) fn describe(version: &str, settings: &[(&str, &str)]) -> String {
        let mut text = format!("PostgreSQL {version}, wal_level=logical, fsync=on");
        for (name, value) in settings {
            text.push_str(&format!(", {name}={value}"));
        }
        text
    }
}

/// A session; its connection is driven by a task that ends with it.
pub(crate) async fn connect(url: &str) -> Result<Client> {
    let config: Config = url.parse().context(|| "cannot read the database's address")?;
    let (client, connection) = config.connect(NoTls).await.context(|| "cannot connect to the database")?;
    tokio::spawn(connection);
    Ok(client)
}

async fn install_tables(client: &Client) -> Result<()> {
    for folder in ["sql/source", "sql/store"] {
        let entries = fs::read_dir(workspace::root().join(folder)).context(|| format!("cannot read {folder}"))?;
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        for file in files.iter().filter(|file| file.extension() == Some("sql".as_ref())) {
            install(client, file).await?;
        }
    }
    Ok(())
}

async fn install(client: &Client, file: &Path) -> Result<()> {
    let sql = fs::read_to_string(file).context(|| format!("cannot read {}", file.display()))?;
    client.batch_execute(&sql).await.context(|| format!("cannot install {}", file.display()))
}
