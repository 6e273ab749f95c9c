//! What the parameters mean, with every default filled in.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use postrider_core::error::Result;

use super::given::Given;
use super::text::invalid;
use super::{
    ChannelBinding, ClientCertificate, ConnectOptions, Endpoint, Keepalive, Method, PINNED_SETTINGS, ProofPolicy,
    SocketPolicy, Target, TlsMode, TlsPolicy, TlsRoots, TlsVersions,
};
use crate::password::{PasswordSource, Secret};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_COUNT: i32 = 4;
const DEFAULT_HOST: &str = "localhost";
const DEFAULT_PORT: u16 = 5432;
const APPLICATION_NAME: &str = "postrider";

/// Turns the parameters into options that can be connected with.
pub(crate) fn understand(given: &Given, environment: &BTreeMap<String, String>) -> Result<ConnectOptions> {
    let home = environment.get("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let endpoints = endpoints(given)?;
    let user = given
        .plain("user")
        .ok_or_else(|| invalid("It names no user.", "Write postgres://user@host/database, or set PGUSER."))?;
    let name = given.plain("application_name").or_else(|| given.plain("fallback_application_name"));
    Ok(ConnectOptions {
        endpoints,
        target: target(given)?,
        database: given.plain("dbname").unwrap_or_else(|| user.clone()),
        user,
        password: password(given, home.as_ref()),
        proof: proof(given)?,
        tls: tls(given, home.as_ref())?,
        sockets: sockets(given)?,
        application_name: name.unwrap_or_else(|| APPLICATION_NAME.to_owned()),
        options: pinned(&given.plain("options").unwrap_or_default()),
    })
}

fn endpoints(given: &Given) -> Result<Vec<Endpoint>> {
    let list = |name: &str| {
        given.plain(name).map(|text| text.split(',').map(|item| item.trim().to_owned()).collect::<Vec<_>>())
    };
    let (hosts, addresses, ports) = (list("host"), list("hostaddr"), list("port").unwrap_or_default());
    let count = hosts.as_ref().or(addresses.as_ref()).map_or(1, Vec::len);
    if addresses.as_ref().is_some_and(|addresses| addresses.len() != count) || ports.len() > 1 && ports.len() != count {
        return Err(invalid(
            "The lists of hosts, addresses and ports have different lengths.",
            "Give one port for all hosts, or one for each; one address for each host.",
        ));
    }
    let item = |list: &Option<Vec<String>>, place: usize| {
        list.as_ref().and_then(|list| list.get(place)).cloned().unwrap_or_default()
    };
    let endpoint = |place: usize| {
        let port = port(ports.get(place).or(ports.first()).map_or("", String::as_str))?;
        endpoint(item(&hosts, place), &item(&addresses, place), port)
    };
    (0..count).map(endpoint).collect()
}

fn endpoint(host: String, address: &str, port: u16) -> Result<Endpoint> {
    if host.starts_with('/') {
        return Ok(Endpoint::Unix { directory: PathBuf::from(host), port });
    }
    if host.starts_with('@') {
        return Err(invalid(
            "An abstract socket is not supported.",
            "Name the directory of a socket in the file system, or a host.",
        ));
    }
    let address: Option<IpAddr> = match address {
        "" => None,
        text => Some(text.parse().map_err(|_| {
            invalid("`hostaddr` is no address.", "Write an IPv4 or IPv6 address; a name belongs into host.")
        })?),
    };
    let host = match (host.is_empty(), address) {
        (false, _) => host,
        (true, Some(address)) => address.to_string(),
        (true, None) => DEFAULT_HOST.to_owned(),
    };
    Ok(Endpoint::Tcp { host, address, port })
}

fn port(text: &str) -> Result<u16> {
    if text.is_empty() {
        return Ok(DEFAULT_PORT);
    }
    text.parse().ok().filter(|&port| port > 0).ok_or_else(|| {
        invalid(
            "A port is no number from 1 to 65535.",
            "In a URL, a password with / or @ in it must be percent-encoded, else its rest is taken for host and port.",
        )
    })
}

fn target(given: &Given) -> Result<Target> {
    let words = [
        ("any", Target::Any),
        ("read-write", Target::ReadWrite),
        ("read-only", Target::ReadOnly),
        ("primary", Target::Primary),
        ("standby", Target::Standby),
        ("prefer-standby", Target::PreferStandby),
    ];
    Ok(given.word("target_session_attrs", &words)?.unwrap_or(Target::Any))
}

fn password(given: &Given, home: Option<&PathBuf>) -> PasswordSource {
    if let Some(password) = given.plain("password") {
        let in_address = given.is_in_address("password");
        return PasswordSource::Given { password: Secret::new(password), in_address };
    }
    let named = given.plain("passfile").map(PathBuf::from);
    named.or_else(|| home.map(|home| home.join(".pgpass"))).map_or(PasswordSource::Nowhere, PasswordSource::File)
}

fn proof(given: &Given) -> Result<ProofPolicy> {
    let words = [
        ("disable", ChannelBinding::Disable),
        ("prefer", ChannelBinding::Prefer),
        ("require", ChannelBinding::Require),
    ];
    Ok(ProofPolicy {
        channel_binding: given.word("channel_binding", &words)?.unwrap_or(ChannelBinding::Prefer),
        methods: methods(given)?,
    })
}

/// Either what the server may ask for, or, with exclamation marks, what it may not.
fn methods(given: &Given) -> Result<Option<Vec<Method>>> {
    let words = [
        ("none", Method::None),
        ("password", Method::Password),
        ("md5", Method::Md5),
        ("scram-sha-256", Method::ScramSha256),
        ("gss", Method::Other),
        ("sspi", Method::Other),
        ("oauth", Method::Other),
    ];
    let Some((label, text)) = given.text("require_auth") else { return Ok(None) };
    let items: Vec<(bool, &str)> = text
        .split(',')
        .map(str::trim)
        .map(|item| item.strip_prefix('!').map_or((false, item), |word| (true, word)))
        .collect();
    let is_negated = items.iter().any(|(negated, _)| *negated);
    let mut named = Vec::new();
    for (negated, word) in items {
        match words.iter().find(|(known, _)| *known == word) {
            Some((_, method)) if negated == is_negated => named.push(*method),
            _ => {
                let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                let hint = format!("Give a list of {}; or the same, each with an exclamation mark.", known.join(", "));
                return Err(invalid(format!("`{label}` is no list of methods."), hint));
            }
        }
    }
    if is_negated {
        let all = [Method::None, Method::Password, Method::Md5, Method::ScramSha256];
        named = all.into_iter().filter(|method| !named.contains(method)).collect();
    }
    Ok(Some(named))
}

fn tls(given: &Given, home: Option<&PathBuf>) -> Result<TlsPolicy> {
    let in_home = |file: &str| home.map(|home| home.join(".postgresql").join(file));
    let root = given.plain("sslrootcert");
    let direct = given.word("sslnegotiation", &[("postgres", false), ("direct", true)])?.unwrap_or(false);
    let mode = tls_mode(given, root.as_deref())?;
    if direct && matches!(mode, TlsMode::Disable | TlsMode::Prefer) {
        return Err(invalid(
            "With sslnegotiation=direct, TLS must be asked for.",
            "Write sslmode=verify-full, or at least require.",
        ));
    }
    let roots = match root {
        Some(word) if word == "system" => TlsRoots::System,
        Some(path) => TlsRoots::File(PathBuf::from(path)),
        None => in_home("root.crt").map_or(TlsRoots::System, TlsRoots::Home),
    };
    Ok(TlsPolicy {
        mode,
        roots,
        certificate: client_certificate(given, &in_home)?,
        direct,
        names_host: given.word("sslsni", &[("0", false), ("1", true)])?.unwrap_or(true),
        versions: tls_versions(given)?,
    })
}

fn tls_mode(given: &Given, root: Option<&str>) -> Result<TlsMode> {
    if given.text("sslmode").is_some_and(|(_, word)| word == "allow") {
        return Err(invalid(
            "`sslmode` \"allow\" is not supported: it sends everything in clear text where the server lets it.",
            "Write prefer, which uses TLS where the server has it, or disable.",
        ));
    }
    let words = [
        ("disable", TlsMode::Disable),
        ("prefer", TlsMode::Prefer),
        ("require", TlsMode::Require),
        ("verify-ca", TlsMode::VerifyCa),
        ("verify-full", TlsMode::VerifyFull),
    ];
    let mode = given.word("sslmode", &words)?;
    match (root, mode) {
        // Anybody can have a certificate that the system's authorities have signed, for a host of his own.
        (Some("system"), None) => Ok(TlsMode::VerifyFull),
        (Some("system"), Some(mode)) if !matches!(mode, TlsMode::VerifyFull | TlsMode::Disable) => Err(invalid(
            "With sslrootcert=system a weaker sslmode than verify-full protects from nobody.",
            "Write sslmode=verify-full.",
        )),
        (Some(_), Some(TlsMode::Require)) => Ok(TlsMode::VerifyCa),
        (_, mode) => Ok(mode.unwrap_or(TlsMode::Prefer)),
    }
}

fn client_certificate(given: &Given, in_home: &impl Fn(&str) -> Option<PathBuf>) -> Result<Option<ClientCertificate>> {
    let certificate = given.plain("sslcert").map(PathBuf::from);
    let key = given.plain("sslkey").map(PathBuf::from).or_else(|| in_home("postgresql.key"));
    if given.word("sslcertmode", &[("disable", false), ("allow", true)])? == Some(false) {
        return Ok(None);
    }
    let is_optional = certificate.is_none();
    let Some(certificate) = certificate.or_else(|| in_home("postgresql.crt")) else { return Ok(None) };
    let key = key
        .ok_or_else(|| invalid("There is a client certificate and no key for it.", "Give the key's file in sslkey."))?;
    Ok(Some(ClientCertificate { certificate, key, is_optional }))
}

fn tls_versions(given: &Given) -> Result<TlsVersions> {
    let old = [("TLSv1", 12), ("TLSv1.1", 12), ("TLSv1.2", 12), ("TLSv1.3", 13)];
    let min = given.word("ssl_min_protocol_version", &old)?.unwrap_or(12);
    let max = given.word("ssl_max_protocol_version", &[("TLSv1.2", 12), ("TLSv1.3", 13)])?.unwrap_or(13);
    match (min, max) {
        (12, 12) => Ok(TlsVersions::Only12),
        (13, 13) => Ok(TlsVersions::Only13),
        (12, 13) => Ok(TlsVersions::Both),
        _ => Err(invalid("The least version of TLS is above the greatest.", "Leave one of them out.")),
    }
}

fn sockets(given: &Given) -> Result<SocketPolicy> {
    let (second, milli) = (Duration::from_secs(1), Duration::from_millis(1));
    let keepalive = Keepalive {
        idle: given.span("keepalives_idle", second, KEEPALIVE_IDLE)?,
        interval: given.span("keepalives_interval", second, KEEPALIVE_INTERVAL)?,
        count: u32::try_from(given.number("keepalives_count")?.unwrap_or(KEEPALIVE_COUNT))
            .ok()
            .filter(|&count| count > 0),
    };
    let keeps = given.number("keepalives")? != Some(0);
    Ok(SocketPolicy {
        connect_timeout: given.span("connect_timeout", second, CONNECT_TIMEOUT)?,
        tcp_user_timeout: given.span("tcp_user_timeout", milli, TCP_USER_TIMEOUT)?,
        keepalive: keeps.then_some(keepalive),
    })
}

/// The last of a setting wins, so that ours come behind the user's.
fn pinned(options: &str) -> String {
    let mut text = options.to_owned();
    for (name, value) in PINNED_SETTINGS {
        text.push_str(&format!(" -c {name}={value}"));
    }
    text.trim_start().to_owned()
}
