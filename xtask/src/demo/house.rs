//! The parts of the demo: a private cluster, the quoting service, the orchestrator.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tokio_postgres::{Client, Config, NoTls};

use super::Sabotage;
use super::child::Child;
use crate::error::{Context, Error, Result};
use crate::port;
use crate::postgres::{Cluster, find};
use crate::workspace::{self, PATIENCE};

/// Everything that runs, ended in the right order when dropped.
#[derive(Debug)]
pub(super) struct House {
    orchestrator: Option<Child>,
    service: Option<Child>,
    cluster: Cluster,
    binaries: PathBuf,
    home: PathBuf,
}

const DATABASE: &str = "quoting";

/// The stages in their order, each with its successor.
pub(super) const STAGES: [(&str, Option<&str>); 4] =
    [("PRICING", Some("APPROVAL")), ("APPROVAL", Some("BINDING")), ("BINDING", Some("ISSUING")), ("ISSUING", None)];

/// More than a run can need: the kills are to be survived, not counted out.
pub(super) const ATTEMPTS: u32 = 1_000;

/// How many business effects each quote is to have.
pub(super) const STAGES_OF_A_QUOTE: i64 = 4;

/// The faults of the quoting service: replies that are dropped or held back after the work was committed.
const SERVICE_FAULTS: [&str; 6] = ["--drop-replies", "0.03", "--stall", "0.06", "--stall-ms", "700"];

/// The fence is what tells an old attempt from a new one; with this trigger it never rises.
const HOLD_FENCE: &str = "
    CREATE FUNCTION demo_hold_fence() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN NEW.fence := 0; RETURN NEW; END $$;
    CREATE TRIGGER demo_hold_fence BEFORE UPDATE ON pending_work
        FOR EACH ROW EXECUTE FUNCTION demo_hold_fence();";

impl House {
    /// Starts the cluster and the quoting service, installs the tables, and lets Postrider set itself up.
    pub(super) async fn start(binaries: &Path, seed: u64, sabotage: Option<Sabotage>) -> Result<Self> {
        let cluster = Cluster::builder(&find(None)?).fsync(true).start()?;
        let home = cluster.home_dir().to_path_buf();
        let binaries = binaries.to_path_buf();
        let mut house = Self { orchestrator: None, service: None, cluster, binaries, home };
        connect(&house.cluster.url(), "demo")
            .await?
            .batch_execute(&format!("CREATE DATABASE {DATABASE}"))
            .await
            .context(|| "cannot create the database")?;
        house.install_tables(sabotage).await?;
        let service = house.start_service(seed, sabotage).await?;
        house.write_configuration(&service)?;
        crate::process::run(&mut house.postrider("setup"))
            .map_err(|error| Error::new(format!("postrider setup: {error}")))?;
        Ok(house)
    }

    /// A connection of the demo's own, under this application name.
    pub(super) async fn connect(&self, application: &str) -> Result<Client> {
        connect(&self.url(), application).await
    }

    /// Starts the orchestrator; it does not wait for anything.
    pub(super) fn spawn_orchestrator(&mut self) -> Result<()> {
        let log = self.home.join("postrider.log");
        self.orchestrator = Some(Child::start("postrider", &log, &mut self.postrider("run"))?);
        Ok(())
    }

    /// Waits until the orchestrator reads the log, through another server process than `before`; returns the server process that it has now.
    pub(super) async fn wait_until_reading(&mut self, before: Option<i32>) -> Result<Option<i32>> {
        const READER: &str = "SELECT max(active_pid) FROM pg_replication_slots WHERE active";
        let client = self.connect("demo").await?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let row = client.query_one(READER, &[]).await.context(|| "cannot look at the slot")?;
            let reader: Option<i32> = row.get(0);
            if reader.is_some() && reader != before {
                return Ok(reader);
            }
            self.orchestrator_still_runs()?;
            if Instant::now() > deadline {
                return Err(Error::new("the orchestrator did not begin to read the log"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(super) fn kill_orchestrator(&mut self) -> Result<()> {
        match self.orchestrator.as_mut() {
            Some(orchestrator) => orchestrator.kill9(),
            None => Err(Error::new("the orchestrator was not started")),
        }
    }

    pub(super) fn orchestrator_still_runs(&mut self) -> Result<()> {
        self.orchestrator.as_mut().map_or(Ok(()), Child::still_runs)
    }

    /// Waits until every row is closed and every event was acted on; says whether that came within `limit`.
    pub(super) async fn wait_until_done(&mut self, limit: Duration) -> Result<bool> {
        const DONE: &str = "
            SELECT (SELECT count(*) FROM pending_work WHERE closed_at IS NULL),
                   (SELECT count(*) FROM outbox_event o
                     WHERE NOT EXISTS (SELECT FROM quoting.event_effects e WHERE e.event_id = o.id))";
        let client = self.connect("demo").await?;
        let deadline = Instant::now() + limit;
        loop {
            let row = client.query_one(DONE, &[]).await.context(|| "cannot count what is done")?;
            let (open, undelivered): (i64, i64) = (row.get(0), row.get(1));
            if open == 0 && undelivered == 0 {
                return Ok(true);
            }
            if Instant::now() > deadline {
                return Ok(false);
            }
            self.orchestrator_still_runs()?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Leaves all of it running and says how to look at it and how to end it.
    pub(super) fn leave_running(self) -> Result<String> {
        let Self { orchestrator, service, cluster, binaries, home } = self;
        let url = cluster.url_of(DATABASE);
        let mut pids = Vec::new();
        for mut child in [orchestrator, service].into_iter().flatten() {
            child.keep();
            pids.push(child.pid().to_string());
        }
        let standing = cluster.leave_running()?;
        let (home, postrider) = (home.display(), binaries.join("postrider").display().to_string());
        Ok(format!(
            "\nEverything is left running.\n\
             database   psql {url}\n\
             status     {postrider} status -c {home}/postrider.toml\n\
             logs       {home}/postrider.log  {home}/quoting-service.log  {home}/log\n\
             end it     kill {} && kill -INT {}",
            pids.join(" "),
            standing.pid(),
        ))
    }

    /// What the processes said last, for a run that failed.
    pub(super) fn last_words(&self) -> String {
        let children = [&self.orchestrator, &self.service];
        let words: Vec<_> = children.into_iter().flatten().map(Child::last_words).collect();
        words.join("\n")
    }

    async fn install_tables(&self, sabotage: Option<Sabotage>) -> Result<()> {
        let client = self.connect("demo").await?;
        for folder in ["sql/source", "sql/store"] {
            let entries = fs::read_dir(workspace::root().join(folder)).context(|| format!("cannot read {folder}"))?;
            let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
            files.sort();
            for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "sql")) {
                let sql = fs::read_to_string(file).context(|| format!("cannot read {}", file.display()))?;
                client.batch_execute(&sql).await.context(|| format!("cannot install {}", file.display()))?;
            }
        }
        if sabotage == Some(Sabotage::NoFence) {
            client.batch_execute(HOLD_FENCE).await.context(|| "cannot install the sabotage")?;
        }
        Ok(())
    }

    /// Starts the quoting service, which installs its own tables, and returns its address.
    async fn start_service(&mut self, seed: u64, sabotage: Option<Sabotage>) -> Result<String> {
        let mut command = Command::new(self.binaries.join("quoting-service"));
        command.args(["--listen", "127.0.0.1:0", "--database", &self.url(), "--seed", &seed.to_string()]);
        command.args(SERVICE_FAULTS);
        if let Some(sabotage) = sabotage {
            command.args(["--sabotage", sabotage.name()]);
        }
        let log = self.home.join("quoting-service.log");
        let mut service = Child::start("quoting-service", &log, &mut command)?;
        let address = service.wait_for_line("listening on ").await;
        self.service = Some(service);
        address.map_err(|error| error.hint(self.last_words()))
    }

    fn write_configuration(&self, service: &str) -> Result<()> {
        let path = self.home.join("postrider.toml");
        let console_port = port::free()?;
        fs::write(&path, configuration(&self.url(), &self.home, service, console_port))
            .context(|| format!("cannot write {}", path.display()))
    }

    /// The program itself.
    pub(super) fn program(&self) -> PathBuf {
        self.binaries.join("postrider")
    }

    /// A file beside everything else, which goes with it.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    fn postrider(&self, verb: &str) -> Command {
        let mut command = Command::new(self.program());
        command.arg(verb).arg("-c").arg(self.home.join("postrider.toml"));
        command
    }

    fn url(&self) -> String {
        self.cluster.url_of(DATABASE)
    }
}

async fn connect(url: &str, application: &str) -> Result<Client> {
    let mut config: Config = url.parse().context(|| "cannot read the database's address")?;
    config.application_name(application);
    let (client, connection) = config.connect(NoTls).await.context(|| "cannot connect to the database")?;
    tokio::spawn(connection);
    Ok(client)
}

fn configuration(url: &str, home: &Path, service: &str, console_port: u16) -> String {
    let journal = home.join("journal");
    let mut text = format!(
        r#"[source]
url = "{url}"
slot = "postrider"
publication = "postrider"

[journal]
dir = "{}"

[server]
listen = "127.0.0.1:{console_port}"

[[outbox]]
table = "public.outbox_event"

[work]
table = "public.pending_work"
definition = "quoting@1"
"#,
        journal.display()
    );
    for (name, next) in STAGES {
        let next = next.map(|next| format!("next = \"{next}\"\n")).unwrap_or_default();
        let path = name.to_lowercase();
        text.push_str(&format!(
            r#"
[[work.stage]]
name = "{name}"
url = "http://{service}/stages/{path}"
{next}class = "keyed"
attempts = {ATTEMPTS}
timeout = "500ms"
lease = "10s"
backoff = {{ first = "20ms", max = "200ms" }}
concurrency = 64
"#
        ));
    }
    text.push_str(&format!(
        r#"
[[sink]]
name = "events"
kind = "http"
from = "outbox"
url = "http://{service}/events"
"#
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_toml_with_four_stages_that_end() {
        let text = configuration("postgres://a:b@127.0.0.1:1/quoting", Path::new("/tmp/x"), "127.0.0.1:2", 3);
        assert!(text.contains("listen = \"127.0.0.1:3\""));
        let table: toml::Table = text.parse().unwrap();
        let stages = table["work"]["stage"].as_array().unwrap();
        assert_eq!(i64::try_from(stages.len()), Ok(STAGES_OF_A_QUOTE));
        assert_eq!(stages[0]["url"].as_str(), Some("http://127.0.0.1:2/stages/pricing"));
        for pair in stages.windows(2) {
            assert_eq!(pair[0]["next"], pair[1]["name"]);
        }
        assert!(stages[3].get("next").is_none());
    }
}
