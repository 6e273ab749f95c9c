//! Where the server is and who we are there, from a URL or `key=value` text and the environment.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use postrider_core::error::{Error, ErrorKind, Result};
use tokio::task::JoinHandle;
use tokio_postgres::config::{ChannelBinding, Host, SslMode};
use tokio_postgres::{Client, Config};

use crate::errors::{Phase, map_client_error};
use crate::tls::Tls;
use text::Taken;

mod text;

/// What the server's sessions are pinned to, whatever the role's or the database's own settings are: else the same
/// value has many texts, and warnings that mean a loss may be kept from us.
pub(crate) const PINNED_SETTINGS: [(&str, &str); 7] = [
    ("datestyle", "ISO"),
    ("intervalstyle", "postgres"),
    ("extra_float_digits", "3"),
    ("timezone", "UTC"),
    ("bytea_output", "hex"),
    ("search_path", "pg_catalog"),
    ("client_min_messages", "warning"),
];

/// For one host, from the first packet to a usable session, where the address names no `connect_timeout`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long sent bytes may stay unacknowledged, where the address names no `tcp_user_timeout`.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 4;
const DEFAULT_PORT: u16 = 5432;

/// A server's address and our credentials there. `Debug` prints no password.
#[derive(Clone)]
pub struct ConnectOptions {
    config: Config,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) user: String,
    pub(crate) database: String,
    pub(crate) tls: TlsPolicy,
}

/// How much TLS there must be; the words of libpq (manual, "SSL Support", table "SSL Mode Descriptions").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsMode {
    Disable,
    /// TLS where the server has it; protects from nobody who can answer in the server's place.
    Prefer,
    /// TLS, with whatever certificate; with a root certificate given it is `VerifyCa`, as in libpq.
    Require,
    /// TLS with a certificate signed by a root that we know.
    VerifyCa,
    /// `VerifyCa`, and the certificate is for this very host.
    VerifyFull,
}

/// What TLS must prove, and by whose word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsPolicy {
    pub(crate) mode: TlsMode,
    pub(crate) roots: TlsRoots,
}

/// Whose signatures count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TlsRoots {
    /// Those that the operating system trusts.
    System,
    /// Those in a PEM file; a server's own certificate in it counts too.
    File(PathBuf),
}

/// One place where the server may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `address` spares the look-up of `host`, which the certificate is checked against all the same.
    Tcp { host: String, address: Option<IpAddr>, port: u16 },
    /// The socket `.s.PGSQL.<port>` in a directory.
    Unix { directory: PathBuf, port: u16 },
}

impl ConnectOptions {
    /// Reads `postgres://…` or `key=value …` as libpq does, and fills what is missing from `environment`: `PGHOST`,
    /// `PGPORT`, `PGUSER`,
    /// `PGPASSWORD`, `PGDATABASE`, `PGSSLMODE`, `PGSSLROOTCERT`.
    ///
    /// # Errors
    /// `Configuration`, for text that cannot be read and where no user is named. The error never quotes the text: it
    /// may hold a password.
    pub fn parse(address: &str, environment: &BTreeMap<String, String>) -> Result<ConnectOptions> {
        let Taken { rest, mut ssl_mode, mut ssl_root } = text::take_tls(address)?;
        let mut config = Config::from_str(&rest)
            .map_err(|error| invalid("the connection string is not valid").with_source(error))?;
        let variable = |name: &str| environment.get(name).filter(|value| !value.is_empty());
        ssl_mode = ssl_mode.or_else(|| variable("PGSSLMODE").cloned());
        ssl_root = ssl_root.or_else(|| variable("PGSSLROOTCERT").cloned());
        fill(&mut config, &variable)?;
        let user = config.get_user().map(str::to_owned).ok_or_else(|| {
            invalid("the connection string names no user")
                .with_hint("Write postgres://user@host/database, or set PGUSER.")
        })?;
        let database = config.get_dbname().unwrap_or(&user).to_owned();
        config.dbname(&database);
        let endpoints = endpoints(&config)?;
        let tls = tls_policy(ssl_mode.as_deref(), ssl_root, &endpoints)?;
        pin(&mut config, tls.mode);
        Ok(ConnectOptions { config, endpoints, user, database, tls })
    }

    /// The database that sessions are in.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The role that sessions have.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The places where the server may be, for an error's detail: `host:port` or the socket's path, separated by
    /// commas.
    pub fn location(&self) -> String {
        self.endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(", ")
    }

    /// For an ordinary session by tokio-postgres, with everything pinned.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn password(&self) -> Option<&[u8]> {
        self.config.get_password()
    }

    /// The same, but the hosts together are given up for unreachable after this long, if not earlier. What a host says once it is
    /// reached may still take its time.
    pub(crate) fn reaching_within(mut self, limit: Duration) -> ConnectOptions {
        let hosts = u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX).max(1);
        self.config.connect_timeout(self.connect_timeout().min(limit / hosts));
        self
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT)
    }

    pub(crate) fn tcp_user_timeout(&self) -> Duration {
        self.config.get_tcp_user_timeout().copied().unwrap_or(TCP_USER_TIMEOUT)
    }

    pub(crate) fn keepalive(&self) -> Option<(Duration, Duration, u32)> {
        self.config.get_keepalives().then(|| {
            let interval = self.config.get_keepalives_interval().unwrap_or(KEEPALIVE_INTERVAL);
            (
                self.config.get_keepalives_idle(),
                interval,
                self.config.get_keepalives_retries().unwrap_or(KEEPALIVE_RETRIES),
            )
        })
    }

    pub(crate) fn channel_binding(&self) -> ChannelBinding {
        self.config.get_channel_binding()
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("endpoints", &self.endpoints)
            .field("user", &self.user)
            .field("password", &self.password().map(|_| format_args!("…")))
            .field("database", &self.database)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Endpoint::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Endpoint::Unix { directory, port } => write!(f, "{}/.s.PGSQL.{port}", directory.display()),
        }
    }
}

impl FromStr for TlsMode {
    type Err = Error;

    fn from_str(word: &str) -> Result<TlsMode> {
        match word {
            "disable" => Ok(TlsMode::Disable),
            "prefer" => Ok(TlsMode::Prefer),
            "require" => Ok(TlsMode::Require),
            "verify-ca" => Ok(TlsMode::VerifyCa),
            "verify-full" => Ok(TlsMode::VerifyFull),
            _ => Err(invalid("the connection string has an unknown sslmode")
                .with_hint("Use one of disable, prefer, require, verify-ca, verify-full.")),
        }
    }
}

/// Opens a session with the pinned settings. The task drives the connection and ends with it: once the client is
/// dropped, or with the error that the
/// connection ended by.
///
/// # Errors
/// `Authentication`, `Privilege`, `Configuration` (no such database, TLS), `Disconnected` with the places that were
/// tried.
pub async fn connect_client(options: &ConnectOptions) -> Result<(Client, JoinHandle<Result<()>>)> {
    let tls = Tls::new(&options.tls)?;
    let (client, connection) = options.config().connect(tls).await.map_err(|error| {
        let error = map_client_error(Phase::Connect, error);
        if error.detail().is_some() {
            return error;
        }
        error.with_detail(format!("The server is {}.", options.location()))
    })?;
    let task = tokio::spawn(async move { connection.await.map_err(|error| map_client_error(Phase::Query, error)) });
    Ok((client, task))
}

fn fill<'a>(config: &mut Config, variable: &impl Fn(&str) -> Option<&'a String>) -> Result<()> {
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        let hosts = variable("PGHOST").map_or("localhost", String::as_str);
        for host in hosts.split(',') {
            if host.starts_with('/') {
                config.host_path(host)
            } else {
                config.host(host)
            };
        }
    }
    if config.get_ports().is_empty() {
        for port in variable("PGPORT").into_iter().flat_map(|ports| ports.split(',')) {
            config.port(port.trim().parse().map_err(|_| invalid("PGPORT is no port number"))?);
        }
    }
    if config.get_user().is_none()
        && let Some(user) = variable("PGUSER")
    {
        config.user(user);
    }
    if config.get_password().is_none()
        && let Some(password) = variable("PGPASSWORD")
    {
        config.password(password);
    }
    if config.get_dbname().is_none()
        && let Some(database) = variable("PGDATABASE")
    {
        config.dbname(database);
    }
    Ok(())
}

fn endpoints(config: &Config) -> Result<Vec<Endpoint>> {
    let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let count = hosts.len().max(addresses.len());
    let lists_match = |len: usize| len <= 1 || len == count;
    if !lists_match(ports.len()) || (!hosts.is_empty() && !addresses.is_empty() && hosts.len() != addresses.len()) {
        return Err(invalid("the connection string has lists of hosts and ports of different lengths"));
    }
    let endpoint = |place: usize| {
        let port = ports.get(place).or(ports.first()).copied().unwrap_or(DEFAULT_PORT);
        let address = addresses.get(place).copied();
        match hosts.get(place) {
            Some(Host::Tcp(host)) => Some(Endpoint::Tcp { host: host.clone(), address, port }),
            Some(Host::Unix(directory)) => Some(Endpoint::Unix { directory: directory.clone(), port }),
            None => address.map(|address| Endpoint::Tcp { host: address.to_string(), address: Some(address), port }),
        }
    };
    Ok((0..count).filter_map(endpoint).collect())
}

fn tls_policy(mode: Option<&str>, root: Option<String>, endpoints: &[Endpoint]) -> Result<TlsPolicy> {
    let mut mode = mode.map_or(Ok(TlsMode::Prefer), TlsMode::from_str)?;
    if mode == TlsMode::Require && root.is_some() {
        mode = TlsMode::VerifyCa;
    }
    // The server offers no TLS on a socket of the file system, and libpq asks for none there.
    if endpoints.iter().all(|endpoint| matches!(endpoint, Endpoint::Unix { .. })) {
        mode = TlsMode::Disable;
    }
    let roots = match root {
        Some(path) if path != "system" => TlsRoots::File(PathBuf::from(path)),
        _ => TlsRoots::System,
    };
    Ok(TlsPolicy { mode, roots })
}

fn pin(config: &mut Config, mode: TlsMode) {
    config.ssl_mode(match mode {
        TlsMode::Disable => SslMode::Disable,
        TlsMode::Prefer => SslMode::Prefer,
        TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
    });
    let mut options = config.get_options().unwrap_or("").to_owned();
    for (name, value) in PINNED_SETTINGS {
        options.push_str(&format!(" -c {name}={value}"));
    }
    config.options(options.trim_start());
    if config.get_application_name().is_none() {
        config.application_name("postrider");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(TCP_USER_TIMEOUT);
    }
    // Two hours is the value where nothing was said.
    if config.get_keepalives_idle() == Duration::from_secs(2 * 60 * 60) {
        config.keepalives_idle(KEEPALIVE_IDLE);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(KEEPALIVE_INTERVAL);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(KEEPALIVE_RETRIES);
    }
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::Configuration, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(text: &str, environment: &[(&str, &str)], wanted: Expect) {
        let environment = environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let found = match ConnectOptions::parse(text, &environment) {
            Ok(options) => format!(
                "{}@{}/{} {:?} {:?} {}",
                options.user,
                options.location(),
                options.database,
                options.tls.mode,
                options.tls.roots,
                options.password().map_or("-".into(), String::from_utf8_lossy),
            ),
            Err(error) => error.report(),
        };
        wanted.assert_eq(&found);
    }

    #[test]
    fn urls_and_pairs_are_read_as_libpq_does() {
        check(
            "postgres://me:p%40ss%3Aw%2Ford%25%23%3F%C3%A9@db.example:6000/quoting?sslmode=verify-full&sslrootcert=/a%20b.crt",
            &[],
            expect![[r#"me@db.example:6000/quoting VerifyFull File("/a b.crt") p@ss:w/ord%#?é"#]],
        );
        check(
            r"host=db user = me sslmode=require password='it\'s \\ it' dbname=q",
            &[],
            expect![[r"me@db:5432/q Require System it's \ it"]],
        );
        check("postgres://me@[::1]/q?sslmode=disable", &[], expect!["me@[::1]:5432/q Disable System -"]);
        check("host=/run/pg user=me sslmode=require", &[], expect!["me@/run/pg/.s.PGSQL.5432/me Disable System -"]);
        check(
            "host=a,b port=1,2 user=me sslrootcert=/r sslmode=require",
            &[],
            expect![[r#"me@a:1, b:2/me VerifyCa File("/r") -"#]],
        );
    }

    #[test]
    fn the_environment_fills_what_is_missing_and_nothing_else() {
        let environment = [
            ("PGHOST", "db"),
            ("PGPORT", "6000"),
            ("PGUSER", "you"),
            ("PGPASSWORD", "secret"),
            ("PGDATABASE", "q"),
            ("PGSSLMODE", "verify-ca"),
            ("PGSSLROOTCERT", "system"),
        ];
        check("", &environment, expect!["you@db:6000/q VerifyCa System secret"]);
        check(
            "host=h port=7 user=me password=mine dbname=d sslmode=disable",
            &environment,
            expect!["me@h:7/d Disable System mine"],
        );
    }

    #[test]
    fn what_cannot_be_read_is_named_without_the_secret() {
        check(
            "host=db password=hush",
            &[],
            expect!["PR001 the connection string names no user. Write postgres://user@host/database, or set PGUSER."],
        );
        check(
            "host=db user=me sslmode=maybe",
            &[],
            expect![
                "PR001 the connection string has an unknown sslmode. Use one of disable, prefer, require, verify-ca, verify-full."
            ],
        );
        for text in
            ["host=db user=me password='hush", "postgres://me:hush@db:port/", "user=me nonsense=hush", "user=me hush"]
        {
            let error = ConnectOptions::parse(text, &BTreeMap::new()).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Configuration, "{text}");
            assert!(!error.report().contains("hush"), "{}", error.report());
        }
    }

    #[test]
    fn debug_prints_no_password() {
        let options = ConnectOptions::parse("postgres://me:hush@db/q", &BTreeMap::new()).expect("it is valid");
        let text = format!("{options:?}");
        assert!(!text.contains("hush") && text.contains('…'), "{text}");
    }
}
