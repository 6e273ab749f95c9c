//! A private PostgreSQL cluster on loopback: started, stopped, killed and removed by who made it.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::account::Account;
use super::certificate;
use super::folder::Folder;
use super::installation::Installation;
use super::standing::{Standing, is_ready, lasting_name};
use super::template;
use crate::error::{Context, Error, Result};
use crate::port;
use crate::process::{LOOK_EVERY, children_of, signal, wait_gone};
use crate::workspace::PATIENCE;

/// A running cluster of its own: a random port on 127.0.0.1, no other socket, a generated password, logical decoding on. Dropping it stops the
/// server, waits for it, and removes its files.
#[derive(Debug)]
pub struct Cluster {
    installation: Installation,
    account: Account,
    folder: Folder,
    port: u16,
    password: String,
    postmaster: Option<Child>,
}

/// How a server is asked to stop (manual, "Shutting Down the Server").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Waits for its sessions to end.
    Smart,
    /// Ends its sessions; replication clients are sent everything first.
    Fast,
    /// Stops at once and recovers at the next start.
    Immediate,
}

/// What a cluster is to be like.
#[derive(Clone, Debug)]
pub struct Builder {
    installation: Installation,
    fsync: bool,
    tls: bool,
    own_identity: bool,
    initdb_arguments: Vec<String>,
    settings: Vec<(String, String)>,
}

impl Builder {
    /// Whether the server syncs to disk. Off by default, for tests: a killed server loses nothing by that, only a killed machine does.
    #[must_use]
    pub fn fsync(mut self, on: bool) -> Self {
        self.fsync = on;
        self
    }

    /// Whether the server takes TLS, with a self-signed certificate (`Cluster::certificate_path`).
    #[must_use]
    pub fn tls(mut self, on: bool) -> Self {
        self.tls = on;
        self
    }

    /// A setting of `postgresql.conf`; the last of a name wins.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Gives the cluster a system identifier of its own. Else it is a copy and has that of every other copy, which starts faster.
    #[must_use]
    pub fn own_identity(mut self) -> Self {
        self.own_identity = true;
        self
    }

    /// A further argument of `initdb`, `--encoding=LATIN1` for example; implies `own_identity`.
    #[must_use]
    pub fn initdb_argument(mut self, argument: &str) -> Self {
        self.initdb_arguments.push(argument.to_owned());
        self.own_identity()
    }

    /// Makes the cluster and starts it.
    ///
    /// # Errors
    /// When it does not start, with the end of the server's log.
    pub fn start(self) -> Result<Cluster> {
        let folder = Folder::of_this_run()?;
        self.start_in(folder)
    }

    /// Starts the cluster of this version that stands on its own, or finds it running; its data stays from one time to the next.
    ///
    /// # Errors
    /// When it does not start, with the end of the server's log.
    pub fn start_standing(self) -> Result<Standing> {
        let major = self.installation.major();
        if let Some(standing) = Standing::of_version(major)? {
            return Ok(standing);
        }
        self.start_in(Folder::lasting(&lasting_name(major))?)?.leave_running()
    }

    fn start_in(self, folder: Folder) -> Result<Cluster> {
        let account = Account::of_servers()?;
        let home = folder.path().to_path_buf();
        if !home.join("data").exists() {
            if self.own_identity {
                template::initialize(&self.installation, &account, &home, &self.initdb_arguments)?;
            } else {
                template::copy(&self.installation, &account, &home)?;
            }
            if self.tls {
                certificate::write(&account, &home)?;
            }
            append(&home.join("data/postgresql.conf"), &self.configuration())?;
        }
        Cluster::start_copy(self.installation, account, folder)
    }

    fn configuration(&self) -> String {
        let on_off = |on: bool| if on { "on" } else { "off" };
        let fixed = [
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            ("wal_level", "logical"),
            ("max_replication_slots", "20"),
            ("max_wal_senders", "20"),
            ("max_prepared_transactions", "20"),
            ("log_line_prefix", "%m [%p] %q%a "),
            ("fsync", on_off(self.fsync)),
            ("ssl", on_off(self.tls)),
        ];
        let given = self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        fixed.into_iter().chain(given).map(|(name, value)| line(name, value)).collect()
    }
}

impl Cluster {
    /// A cluster of this installation, to be described further.
    pub fn builder(installation: &Installation) -> Builder {
        Builder {
            installation: installation.clone(),
            fsync: false,
            tls: false,
            own_identity: false,
            initdb_arguments: Vec::new(),
            settings: Vec::new(),
        }
    }

    /// Starts what is ready in the folder.
    pub(super) fn start_copy(installation: Installation, account: Account, folder: Folder) -> Result<Cluster> {
        let password = fs::read_to_string(folder.path().join("password")).context(|| "cannot read the password")?;
        let mut cluster = Cluster { installation, account, folder, port: 0, password, postmaster: None };
        cluster.start_on_free_port()?;
        Ok(cluster)
    }

    /// The address of the database `postgres`, for the superuser.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The address of a database, for the superuser.
    pub fn url_of(&self, database: &str) -> String {
        self.url_as("postgres", &self.password, database)
    }

    /// The address of a database, for a role. The password goes in as it is: no character that an URL would read otherwise.
    pub fn url_as(&self, role: &str, password: &str, database: &str) -> String {
        format!("postgres://{role}:{password}@127.0.0.1:{}/{database}", self.port)
    }

    /// The port on 127.0.0.1; it stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The superuser's password.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// The programs it runs from.
    pub fn installation(&self) -> &Installation {
        &self.installation
    }

    /// The folder of the cluster; a test may put files of its own beside the data.
    pub fn home_dir(&self) -> &Path {
        self.folder.path()
    }

    /// The data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The server's log, all starts in one file.
    pub fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// What the server has logged so far.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn read_log(&self) -> Result<String> {
        let bytes = fs::read(self.log_path()).context(|| "cannot read the server's log")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The certificate that a client is to trust, where TLS was asked for.
    pub fn certificate_path(&self) -> PathBuf {
        self.folder.path().join("server.crt")
    }

    /// The process id of the postmaster, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.postmaster.as_ref().map(Child::id)
    }

    /// Adds a setting to `postgresql.conf`; it holds from the next start or reload on.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        append(&self.data_dir().join("postgresql.conf"), &line(name, value))
    }

    /// Makes the server read its configuration again. It does so a moment later.
    ///
    /// # Errors
    /// When it does not run.
    pub fn reload(&self) -> Result<()> {
        signal("HUP", &[self.running_pid()?])
    }

    /// Starts a stopped or killed server again, on the same port.
    ///
    /// # Errors
    /// When it runs already, or does not start: then with the end of its log.
    pub fn start(&mut self) -> Result<()> {
        if self.postmaster.is_some() {
            return Err(Error::new("the server runs already"));
        }
        let logged_before = fs::metadata(self.log_path()).map_or(0, |log| log.len());
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())
            .context(|| "cannot open the server's log")?;
        let stdout = log.try_clone().context(|| "cannot open the server's log")?;
        let mut postgres = self.account.command(self.installation.tool("postgres"));
        postgres.arg("-D").arg(self.data_dir()).stdin(Stdio::null()).stdout(stdout).stderr(log);
        let mut child = postgres.spawn().context(|| "cannot start the server")?;
        let deadline = Instant::now() + PATIENCE;
        while !is_ready(&self.data_dir(), child.id()) {
            let ended = child.try_wait().context(|| "cannot wait for the server")?.is_some();
            if ended || Instant::now() > deadline {
                // It has ended, or is to: what it said is all that counts.
                let _ = child.kill().and_then(|()| child.wait());
                return Err(self.start_failure(logged_before));
            }
            thread::sleep(LOOK_EVERY);
        }
        self.postmaster = Some(child);
        Ok(())
    }

    /// Stops the server and starts it again.
    ///
    /// # Errors
    /// When it does not stop in time or does not start.
    pub fn restart(&mut self, mode: Shutdown) -> Result<()> {
        self.stop(mode)?;
        self.start()
    }

    /// Stops the server and says how long that took.
    ///
    /// # Errors
    /// When it does not run, or is not gone in time: then it is killed.
    pub fn stop(&mut self, mode: Shutdown) -> Result<Duration> {
        let pid = self.running_pid()?;
        let began = Instant::now();
        signal(mode.signal(), &[pid])?;
        if let Err(error) = wait_gone(&[pid], PATIENCE) {
            self.kill9()?;
            return Err(Error::new(format!("the server was killed, since it did not stop: {error}")));
        }
        let took = began.elapsed();
        self.reap()?;
        Ok(took)
    }

    /// Stops the server fast and says how long that took.
    ///
    /// # Errors
    /// As `stop`.
    pub fn stop_fast(&mut self) -> Result<Duration> {
        self.stop(Shutdown::Fast)
    }

    /// Kills the postmaster and all its processes with SIGKILL, as a crash does.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill9(&mut self) -> Result<()> {
        let pid = self.running_pid()?;
        let mut all = vec![pid];
        all.extend(children_of(pid));
        signal("KILL", &all)?;
        wait_gone(&all, PATIENCE)?;
        self.reap()
    }

    /// Leaves the server running and its files in place when this value is gone.
    ///
    /// # Errors
    /// When it does not run, or its folder cannot be marked.
    pub fn leave_running(mut self) -> Result<Standing> {
        self.folder.keep()?;
        let standing = Standing::at(self.folder.path()).ok_or_else(|| Error::new("the server does not run"))?;
        // Not ours to stop any more.
        self.postmaster = None;
        Ok(standing)
    }

    fn start_on_free_port(&mut self) -> Result<()> {
        const ATTEMPTS: usize = 5;
        for _ in 1..ATTEMPTS {
            self.take_free_port()?;
            match self.start() {
                // Somebody else took the port between our look and the server's.
                Err(error) if error.to_string().contains("could not bind") => {}
                outcome => return outcome,
            }
        }
        self.take_free_port()?;
        self.start()
    }

    fn take_free_port(&mut self) -> Result<()> {
        self.port = port::free()?;
        self.set("port", &self.port.to_string())
    }

    fn start_failure(&self, logged_before: u64) -> Error {
        const TAIL_LINES: usize = 20;
        let log = self.read_log().unwrap_or_default();
        let start = usize::try_from(logged_before).unwrap_or(0);
        let lines: Vec<_> = log.get(start..).unwrap_or(&log).lines().collect();
        let tail = lines.get(lines.len().saturating_sub(TAIL_LINES)..).unwrap_or_default().join("\n");
        Error::new(format!("PostgreSQL {} did not start:\n{tail}", self.installation.version()))
    }

    fn running_pid(&self) -> Result<u32> {
        self.pid().ok_or_else(|| Error::new("the server does not run"))
    }

    fn reap(&mut self) -> Result<()> {
        if let Some(mut child) = self.postmaster.take() {
            child.wait().context(|| "cannot wait for the server")?;
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.postmaster.is_some() && self.stop(Shutdown::Immediate).is_err() {
            eprintln!("postgres: the server in {} did not stop", self.folder.path().display());
        }
    }
}

impl Shutdown {
    fn signal(self) -> &'static str {
        match self {
            Self::Smart => "TERM",
            Self::Fast => "INT",
            Self::Immediate => "QUIT",
        }
    }
}

pub(super) fn line(name: &str, value: &str) -> String {
    format!("{name} = '{}'\n", value.replace('\'', "''"))
}

pub(super) fn append(path: &Path, text: &str) -> Result<()> {
    let file: std::io::Result<File> = OpenOptions::new().append(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).context(|| format!("cannot write {}", path.display()))
}
