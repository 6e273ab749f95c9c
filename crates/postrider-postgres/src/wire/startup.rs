//! What: opens a connection, for replication or for an ordinary session: TLS, start-up message, authentication.
//! Where: before *read*, once for each connection.
//! Takes and gives: `ConnectOptions`, one place and what the session is for; a `Wire` that is ready for commands.
//! Never: goes on without TLS where it was asked for, or with a server that is not as `target_session_attrs` has it.

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use postrider_core::error::{Error, ErrorKind, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::authenticate::authenticate;
use super::socket::Socket;
use super::{Purpose, Wire, malformed, message, unexpected};
use crate::errors::{Phase, map_io_error, name_cure, tls_failure};
use crate::options::{ConnectOptions, Endpoint, Target, TlsMode};
use crate::tls::Tls;

/// What a session reports of its own accord, and how it must begin, since we pinned it. A pooler may have thrown our options away.
const REPORTED_PINS: [(&str, &str); 4] =
    [("DateStyle", "ISO"), ("IntervalStyle", "postgres"), ("TimeZone", "UTC"), ("client_encoding", "UTF8")];

/// Connects to one place.
pub(super) async fn connect(options: &ConnectOptions, endpoint: &Endpoint, purpose: Purpose) -> Result<Wire> {
    let place = endpoint.to_string();
    let socket = Socket::connect(options, endpoint).await.map_err(|error| {
        map_io_error("cannot connect to the server", &place, error).with_hint(endpoint.unreachable_hint())
    })?;
    let socket = agree_on_tls(options, endpoint, socket).await?;
    let mut wire = Wire::over(socket, place);
    wire.send(&startup_message(options, purpose)?).await?;
    let password = options.password.look_up(options, endpoint);
    let refused = |refusal| options.password.judge_refusal(name_cure(refusal, &options.user, &options.database));
    authenticate(&mut wire, options, password.as_ref()).await.map_err(refused)?;
    await_ready(&mut wire).await.map_err(refused)?;
    check_pins(&wire)?;
    Ok(wire)
}

/// Whether the server is one that will do.
///
/// # Errors
/// `Disconnected`, since the next host may do, or this one after a failover.
pub(super) fn check_target(wire: &Wire, target: Target) -> Result<()> {
    let is_on = |name: &str| wire.parameters.get(name).map(|value| value == "on");
    let standby = is_on("in_hot_standby");
    let read_only = match (standby, is_on("default_transaction_read_only")) {
        (Some(standby), Some(read_only)) => Some(standby || read_only),
        _ => None,
    };
    let (fits, what) = match target {
        Target::Any | Target::PreferStandby => return Ok(()),
        Target::ReadWrite => (read_only.map(|read_only| !read_only), "takes no writes"),
        Target::ReadOnly => (read_only, "takes writes"),
        Target::Primary => (standby.map(|standby| !standby), "is a standby"),
        Target::Standby => (standby, "is a primary"),
    };
    let what = match fits {
        Some(true) => return Ok(()),
        Some(false) => what,
        None => "does not say what it is",
    };
    Err(Error::new(ErrorKind::Disconnected, "the server is not what target_session_attrs asks for")
        .with_detail(format!("The server {} {what}.", wire.endpoint))
        .with_hint("Name a host that is, or change target_session_attrs."))
}

async fn agree_on_tls(options: &ConnectOptions, endpoint: &Endpoint, socket: Socket) -> Result<Socket> {
    let mode = options.tls.mode;
    if mode == TlsMode::Disable {
        return Ok(socket);
    }
    let (mut stream, host) = match (socket, endpoint) {
        (Socket::Tcp(stream), Endpoint::Tcp { host, .. }) => (stream, host),
        // The server offers no TLS on a socket of the file system.
        (socket, _) => return Ok(socket),
    };
    let tls = Tls::new(&options.tls)?;
    let lost = |error| map_io_error("the connection to the server is lost", &endpoint.to_string(), error);
    if !options.tls.direct {
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        stream.write_all(&request).await.map_err(lost)?;
        // One byte and no more: what came behind it in clear text would be taken for part of the encrypted session.
        match stream.read_u8().await.map_err(lost)? {
            b'S' => {}
            b'N' if mode == TlsMode::Prefer => return Ok(Socket::Tcp(stream)),
            b'N' => return Err(no_tls(endpoint)),
            other => return Err(unexpected(other)),
        }
    }
    match tls.connect(host, stream).await {
        Ok(stream) => Ok(Socket::Tls(Box::new(stream))),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof && options.tls.direct => Err(tls_failure(
            error,
        )
        .with_hint("The server closed the connection: sslnegotiation=direct needs PostgreSQL 17 or later with TLS.")),
        Err(error) => Err(map_io_error("the connection to the server is lost", &endpoint.to_string(), error)),
    }
}

fn no_tls(endpoint: &Endpoint) -> Error {
    Error::new(ErrorKind::Configuration, "the server offers no TLS")
        .with_detail(format!("The server is {endpoint}."))
        .with_hint("Switch it on at the server (ssl = on), or say sslmode=prefer or disable in the address.")
}

fn startup_message(options: &ConnectOptions, purpose: Purpose) -> Result<BytesMut> {
    let mut bytes = BytesMut::new();
    let mut parameters = vec![
        ("user", options.user.as_str()),
        ("database", options.database.as_str()),
        ("client_encoding", "UTF8"),
        ("application_name", options.application_name.as_str()),
        ("options", options.options.as_str()),
    ];
    if purpose == Purpose::Replication {
        parameters.push(("replication", "database"));
    }
    frontend::startup_message(parameters, &mut bytes).map_err(|error| {
        Error::new(ErrorKind::Configuration, "a name holds a zero byte")
            .with_hint("Correct user, dbname, application_name or options in the address.")
            .with_source(error)
    })?;
    Ok(bytes)
}

async fn await_ready(wire: &mut Wire) -> Result<()> {
    loop {
        let (tag, body) = wire.next_message().await?;
        match tag {
            message::BACKEND_KEY_DATA => {
                let (process_id, _) = body.split_first_chunk::<4>().ok_or_else(|| malformed("BackendKeyData"))?;
                wire.process_id = i32::from_be_bytes(*process_id);
                wire.key = body;
            }
            message::READY_FOR_QUERY => return Ok(()),
            message::ERROR_RESPONSE => return Err(wire.refusal(Phase::Connect, &body)),
            other => return Err(unexpected(other)),
        }
    }
}

fn check_pins(wire: &Wire) -> Result<()> {
    for (name, wanted) in REPORTED_PINS {
        if wire.parameters.get(name).is_some_and(|value| !value.starts_with(wanted)) {
            return Err(Error::new(ErrorKind::Configuration, "the session is not as we pinned it")
                .with_detail(format!("The server {} has another {name} than {wanted}, although our start-up message names it.", wire.endpoint))
                .with_hint("Give the address of PostgreSQL itself: a pooler that ignores start-up parameters changes what values look like."));
        }
    }
    Ok(())
}
