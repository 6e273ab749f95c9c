//! Where the server is and who we are there, from a URL or `key=value` text, a service file and the environment.
//!
//! The replication sessions and the ordinary ones are opened from the same value by the same code. What each parameter means, and
//! where that differs from libpq, stands in docs/connections.md.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use postrider_core::error::Result;

use crate::password::{PasswordCommand, PasswordSource};
use given::Given;

mod given;
mod keyword;
mod meaning;
mod service;
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

/// A server's address and our credentials there. `Debug` prints no password.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) target: Target,
    pub(crate) user: String,
    pub(crate) database: String,
    pub(crate) password: PasswordSource,
    pub(crate) proof: ProofPolicy,
    pub(crate) tls: TlsPolicy,
    pub(crate) sockets: SocketPolicy,
    pub(crate) application_name: String,
    /// Command-line options of the server's process, with the pinned settings at the end.
    pub(crate) options: String,
}

/// One place where the server may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `address` spares the look-up of `host`, which the certificate is checked against all the same.
    Tcp { host: String, address: Option<IpAddr>, port: u16 },
    /// The socket `.s.PGSQL.<port>` in a directory.
    Unix { directory: PathBuf, port: u16 },
}

/// Which of several servers will do (`target_session_attrs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    /// A standby, or else any.
    PreferStandby,
}

/// How we may prove who we are, and what the server must prove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProofPolicy {
    pub(crate) channel_binding: ChannelBinding,
    /// `None`: whatever the server asks for.
    pub(crate) methods: Option<Vec<Method>>,
}

/// Whether SCRAM is bound to the TLS session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChannelBinding {
    Disable,
    Prefer,
    Require,
}

/// What a server may ask for; the words of `require_auth`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// Nothing, which is also what it asks for where the client's certificate was enough.
    None,
    /// The password in clear text.
    Password,
    Md5,
    ScramSha256,
    /// One that Postrider does not have.
    Other,
}

/// How much TLS there must be; the words of libpq (manual, "SSL Support", table "SSL Mode Descriptions").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsMode {
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

/// What TLS must prove, by whose word, and what we show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsPolicy {
    pub(crate) mode: TlsMode,
    pub(crate) roots: TlsRoots,
    pub(crate) certificate: Option<ClientCertificate>,
    /// TLS from the first byte, without asking the server first (version 17 and later).
    pub(crate) direct: bool,
    /// Whether the host's name is sent in clear text.
    pub(crate) names_host: bool,
    pub(crate) versions: TlsVersions,
}

/// Whose signatures count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TlsRoots {
    /// Those that the operating system trusts.
    System,
    /// Those in a PEM file; a server's own certificate in it counts too.
    File(PathBuf),
    /// Those in this file if it is there, which is where libpq looks; else those of the operating system.
    Home(PathBuf),
}

/// The certificate that proves us to the server, and its key, both PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// Not named, but where libpq looks: a missing one is none.
    pub(crate) is_optional: bool,
}

/// The versions of TLS that will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsVersions {
    Both,
    Only12,
    Only13,
}

/// How a socket is connected and kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SocketPolicy {
    /// For one host, from the first packet to a usable session; `None`: for ever.
    pub(crate) connect_timeout: Option<Duration>,
    /// How long sent bytes may stay unacknowledged; `None`: as the system has it.
    pub(crate) tcp_user_timeout: Option<Duration>,
    pub(crate) keepalive: Option<Keepalive>,
}

/// When an idle connection is tried, how often, and how often in vain; `None`: as the system has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keepalive {
    pub(crate) idle: Option<Duration>,
    pub(crate) interval: Option<Duration>,
    pub(crate) count: Option<u32>,
}

impl ConnectOptions {
    /// Reads `postgres://…` or `key=value …` as libpq does, and fills what is missing from the service that is named, if one is, and
    /// then from `environment`: `PGHOST`, `PGUSER` and their like.
    ///
    /// # Errors
    /// `Configuration`, for text that cannot be read, what is not supported, and where no user is named. The error never quotes the
    /// text: it may hold a password.
    pub fn parse(address: &str, environment: &BTreeMap<String, String>) -> Result<ConnectOptions> {
        meaning::understand(&Given::gather(address, environment)?, environment)
    }

    /// The same, but each new connection runs `command` and takes what it prints for the password.
    ///
    /// # Errors
    /// `Configuration` where the command has no program, or the address gives a password already.
    pub fn with_password_command(mut self, command: Vec<String>) -> Result<ConnectOptions> {
        let command = PasswordCommand::new(command)?;
        if let PasswordSource::Given { in_address: true, .. } = self.password {
            return Err(text::invalid(
                "The address holds a password, and there is a password command.",
                "Take one of them away.",
            ));
        }
        self.password = PasswordSource::Command(command);
        Ok(self)
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

    /// What to do where the server turns out to be a standby.
    pub(crate) fn primary_hint(&self) -> &'static str {
        if self.endpoints.len() > 1 {
            "Add target_session_attrs=primary to the address: of its hosts the primary is then taken, whichever it is."
        } else {
            "Give the primary's address."
        }
    }

    /// For each of several hosts: the same, but that host alone, and only as long as it is a standby.
    pub(crate) fn standbys(&self) -> Vec<ConnectOptions> {
        if self.endpoints.len() < 2 {
            return Vec::new();
        }
        let alone = |endpoint: &Endpoint| ConnectOptions {
            endpoints: vec![endpoint.clone()],
            target: Target::Standby,
            ..self.clone()
        };
        self.endpoints.iter().map(alone).collect()
    }

    /// The same, but only the host that a connection was made to, by the name that it has there.
    pub(crate) fn at(mut self, endpoint: &str) -> ConnectOptions {
        self.endpoints.retain(|own| own.to_string() == endpoint);
        self
    }

    /// The same, but the hosts together are given up for unreachable after this long, if not earlier.
    pub(crate) fn reaching_within(mut self, limit: Duration) -> ConnectOptions {
        let hosts = u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX).max(1);
        let share = limit / hosts;
        self.sockets.connect_timeout = Some(self.sockets.connect_timeout.map_or(share, |own| own.min(share)));
        self
    }

    /// The same with the password that a command has just printed, where there is a command: for whoever bounds the time to connect.
    pub(crate) async fn with_password_at_hand(mut self) -> Result<ConnectOptions> {
        self.password = self.password.fetched().await?;
        Ok(self)
    }
}

impl Endpoint {
    /// What to do where nobody lets us in there.
    pub(crate) fn unreachable_hint(&self) -> String {
        let (host, port) = match self {
            Endpoint::Tcp { host, port, address } => {
                (address.map_or_else(|| host.clone(), |address| address.to_string()), port)
            }
            Endpoint::Unix { directory, port } => (directory.display().to_string(), port),
        };
        let host = host.replace('\'', r"'\''");
        format!(
            "Check that the server runs, and that host and port in the address are its own: pg_isready -h '{host}' -p {port}"
        )
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

#[cfg(test)]
mod libpq_tests;
#[cfg(test)]
mod tests;
