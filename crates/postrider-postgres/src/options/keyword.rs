//! Every parameter of a connection that libpq knows (manual, "Parameter Key Words"), and what becomes of it here.

use postrider_core::error::Error;

use super::text::invalid;

/// One parameter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Keyword {
    pub(crate) name: &'static str,
    /// The variable that fills it where the string does not name it.
    pub(crate) variable: Option<&'static str>,
    support: Support,
}

#[derive(Debug, PartialEq, Eq)]
enum Support {
    Taken,
    /// Only these values, which ask for nothing that we lack; the text says why, and what to write.
    Only(&'static [&'static str], &'static str),
}

use Support::{Only, Taken};

/// In the order of docs/connections.md.
pub(crate) const KEYWORDS: [Keyword; 53] = [
    keyword("host", Some("PGHOST"), Taken),
    keyword("hostaddr", Some("PGHOSTADDR"), Taken),
    keyword("port", Some("PGPORT"), Taken),
    keyword("dbname", Some("PGDATABASE"), Taken),
    keyword("user", Some("PGUSER"), Taken),
    keyword("password", Some("PGPASSWORD"), Taken),
    keyword("passfile", Some("PGPASSFILE"), Taken),
    keyword("service", Some("PGSERVICE"), Taken),
    keyword("target_session_attrs", Some("PGTARGETSESSIONATTRS"), Taken),
    keyword(
        "load_balance_hosts",
        Some("PGLOADBALANCEHOSTS"),
        Only(
            &["disable"],
            "Postrider holds a few long sessions on one server, so that there is no load to spread: leave it out.",
        ),
    ),
    keyword("connect_timeout", Some("PGCONNECT_TIMEOUT"), Taken),
    keyword("tcp_user_timeout", None, Taken),
    keyword("keepalives", None, Taken),
    keyword("keepalives_idle", None, Taken),
    keyword("keepalives_interval", None, Taken),
    keyword("keepalives_count", None, Taken),
    keyword("application_name", Some("PGAPPNAME"), Taken),
    keyword("fallback_application_name", None, Taken),
    keyword("options", Some("PGOPTIONS"), Taken),
    keyword(
        "client_encoding",
        None,
        Only(
            &["UTF8", "UTF-8", "utf8", "utf-8"],
            "Sessions are always in UTF8, whatever the database's encoding is: leave it out.",
        ),
    ),
    keyword("replication", None, Only(&["database"], "Postrider opens replication sessions by itself: leave it out.")),
    keyword("sslmode", Some("PGSSLMODE"), Taken),
    keyword("requiressl", Some("PGREQUIRESSL"), Taken),
    keyword("sslnegotiation", Some("PGSSLNEGOTIATION"), Taken),
    keyword("sslrootcert", Some("PGSSLROOTCERT"), Taken),
    keyword("sslcert", Some("PGSSLCERT"), Taken),
    keyword("sslkey", Some("PGSSLKEY"), Taken),
    keyword(
        "sslpassword",
        None,
        Only(
            &[""],
            "Encrypted keys are not read. Decrypt it, and keep the file at mode 0600: openssl pkey -in client.key -out plain.key.",
        ),
    ),
    keyword("sslcertmode", Some("PGSSLCERTMODE"), Taken),
    keyword("sslcrl", Some("PGSSLCRL"), Only(&[""], NO_REVOCATION)),
    keyword("sslcrldir", Some("PGSSLCRLDIR"), Only(&[""], NO_REVOCATION)),
    keyword("sslsni", Some("PGSSLSNI"), Taken),
    keyword(
        "sslcompression",
        Some("PGSSLCOMPRESSION"),
        Only(&["0"], "Compression within TLS gives secrets away, and no server of today has it: leave it out."),
    ),
    keyword("ssl_min_protocol_version", Some("PGSSLMINPROTOCOLVERSION"), Taken),
    keyword("ssl_max_protocol_version", Some("PGSSLMAXPROTOCOLVERSION"), Taken),
    keyword("channel_binding", Some("PGCHANNELBINDING"), Taken),
    keyword("require_auth", Some("PGREQUIREAUTH"), Taken),
    keyword(
        "requirepeer",
        Some("PGREQUIREPEER"),
        Only(
            &[""],
            "The other end of a socket is not asked who it is: keep the socket in a directory where only the server may write.",
        ),
    ),
    keyword("gssencmode", Some("PGGSSENCMODE"), Only(&["disable", "prefer"], NO_GSSAPI)),
    keyword("krbsrvname", None, Only(&[], NO_GSSAPI)),
    keyword("gsslib", None, Only(&[], NO_GSSAPI)),
    keyword("gssdelegation", None, Only(&["0"], NO_GSSAPI)),
    keyword(
        "min_protocol_version",
        Some("PGMINPROTOCOLVERSION"),
        Only(&["3.0"], "Postrider speaks version 3.0 of the protocol, which every server has: leave it out."),
    ),
    keyword(
        "max_protocol_version",
        Some("PGMAXPROTOCOLVERSION"),
        Only(
            &["3.0", "3.2", "latest"],
            "Postrider speaks version 3.0 of the protocol, which every server has: leave it out.",
        ),
    ),
    keyword("scram_client_key", None, Only(&[], "Give the password itself: a password file or a password command.")),
    keyword("scram_server_key", None, Only(&[], "Give the password itself: a password file or a password command.")),
    keyword("oauth_issuer", None, Only(&[], NO_OAUTH)),
    keyword("oauth_client_id", None, Only(&[], NO_OAUTH)),
    keyword("oauth_client_secret", None, Only(&[], NO_OAUTH)),
    keyword("oauth_scope", None, Only(&[], NO_OAUTH)),
    keyword("sslkeylogfile", None, Only(&[""], "Keys of sessions are never written down: leave it out.")),
    keyword("servicefile", None, Only(&[], "Name the file in the variable PGSERVICEFILE.")),
    keyword("ssl", None, Only(&[], "Write sslmode=require.")),
];

const NO_REVOCATION: &str = "Lists of revoked certificates are not read. Give the server a certificate of short life, or let sslrootcert hold the server's own certificate.";
const NO_GSSAPI: &str = "GSSAPI is not supported. Use TLS, with a password or a client certificate.";
const NO_OAUTH: &str =
    "OAuth is not supported. A password command can fetch a short-lived token that the server takes as a password.";

impl Keyword {
    /// Refuses what is not supported. `label` is what the one who gave it knows it by.
    pub(crate) fn check(&self, label: &str, value: &str) -> Result<(), Error> {
        match self.support {
            Only(values, why) if !values.contains(&value) => {
                Err(invalid(format!("`{label}` is not supported with this value."), why))
            }
            Only(..) | Taken => Ok(()),
        }
    }
}

/// The parameter of this name.
pub(crate) fn find(name: &str) -> Option<&'static Keyword> {
    KEYWORDS.iter().find(|keyword| keyword.name == name)
}

/// The error for a name that is none. Only what looks like one is repeated.
pub(crate) fn unknown(name: &str) -> Error {
    let is_name = name.len() <= 32 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let nearest = KEYWORDS
        .iter()
        .map(|keyword| (strsim::damerau_levenshtein(name, keyword.name), keyword.name))
        .min()
        .filter(|(distance, _)| *distance <= 2);
    let detail = if is_name {
        format!("`{name}` is no connection parameter.")
    } else {
        "A key is no connection parameter.".to_owned()
    };
    match nearest {
        Some((_, nearest)) if is_name => invalid(detail, format!("Did you mean `{nearest}`?")),
        _ => invalid(detail, "docs/connections.md names them all."),
    }
}

const fn keyword(name: &'static str, variable: Option<&'static str>, support: Support) -> Keyword {
    Keyword { name, variable, support }
}
