//! What: opens a connection in replication mode: TLS, start-up message, authentication.
//! Where: before *read*, once for each connection.
//! Takes and gives: `ConnectOptions` and one place; a `Wire` that is ready for commands.
//! Never: sends the password where TLS was asked for and not given, or logs it.

use bytes::BytesMut;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, ScramSha256};
use postgres_protocol::message::frontend;
use postrider_core::error::{Error, ErrorKind, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_postgres::config::ChannelBinding;

use super::socket::Socket;
use super::{Wire, malformed, message, unexpected};
use crate::errors::{Phase, map_io_error, protocol_violation, tls_failure};
use crate::options::{ConnectOptions, Endpoint, TlsMode};
use crate::tls::Tls;

/// What an authentication message asks for (manual, "Message Formats", AuthenticationOk and the next).
const OK: u32 = 0;
const CLEARTEXT_PASSWORD: u32 = 3;
const MD5_PASSWORD: u32 = 5;
const SASL: u32 = 10;
const SASL_CONTINUE: u32 = 11;
const SASL_FINAL: u32 = 12;

/// Connects to one place.
pub(super) async fn connect(options: &ConnectOptions, endpoint: &Endpoint) -> Result<Wire> {
    let place = endpoint.to_string();
    let socket = Socket::connect(options, endpoint).await.map_err(|error| {
        map_io_error("cannot connect to the server", &place, error)
            .with_hint("Check that the server runs, and that host and port in the address are its own.")
    })?;
    let socket = agree_on_tls(options, endpoint, socket).await?;
    let mut wire = Wire { socket, received: BytesMut::new(), endpoint: place, process_id: 0 };
    wire.send(&startup_message(options)?).await?;
    authenticate(&mut wire, options).await?;
    await_ready(&mut wire).await?;
    Ok(wire)
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
    let lost = |error| map_io_error("the connection to the server is lost", &endpoint.to_string(), error);
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await.map_err(lost)?;
    // One byte and no more: what came behind it in clear text would be taken for part of the encrypted session.
    match stream.read_u8().await.map_err(lost)? {
        b'S' => {
            let stream = Tls::new(&options.tls)?.connect(host, stream).await.map_err(tls_failure)?;
            Ok(Socket::Tls(Box::new(stream)))
        }
        b'N' if mode == TlsMode::Prefer => Ok(Socket::Tcp(stream)),
        b'N' => Err(Error::new(ErrorKind::Configuration, "the server offers no TLS")
            .with_hint("Switch it on at the server (ssl = on), or say sslmode=prefer or disable in the address.")),
        other => Err(unexpected(other)),
    }
}

fn startup_message(options: &ConnectOptions) -> Result<BytesMut> {
    let mut bytes = BytesMut::new();
    let parameters = [
        ("user", options.user.as_str()),
        ("database", options.database.as_str()),
        ("replication", "database"),
        ("client_encoding", "UTF8"),
        ("application_name", options.config().get_application_name().unwrap_or("postrider")),
        ("options", options.config().get_options().unwrap_or("")),
    ];
    frontend::startup_message(parameters, &mut bytes)
        .map_err(|error| Error::new(ErrorKind::Configuration, "a name holds a zero byte").with_source(error))?;
    Ok(bytes)
}

async fn authenticate(wire: &mut Wire, options: &ConnectOptions) -> Result<()> {
    let mut is_bound = false;
    loop {
        let (request, data) = next_request(wire).await?;
        let mut answer = BytesMut::new();
        match request {
            // A server that asks for no proof has not shown that it is the one behind the TLS session.
            OK if options.channel_binding() == ChannelBinding::Require && !is_bound => return Err(no_channel_binding()),
            OK => return Ok(()),
            CLEARTEXT_PASSWORD => frontend::password_message(password(options)?, &mut answer).map_err(unsendable)?,
            MD5_PASSWORD => {
                let salt = *data.first_chunk::<4>().ok_or_else(|| malformed("AuthenticationMD5Password"))?;
                let hash = md5_hash(options.user.as_bytes(), password(options)?, salt);
                frontend::password_message(hash.as_bytes(), &mut answer).map_err(unsendable)?;
            }
            SASL => {
                is_bound = authenticate_by_scram(wire, options, &data).await?;
                continue;
            }
            other => {
                return Err(Error::new(
                    ErrorKind::Authentication,
                    "the server asks for a kind of proof that we do not know",
                )
                .with_detail(format!("It is number {other}; we know trust, password, md5 and scram-sha-256."))
                .with_hint("Let pg_hba.conf ask this role for scram-sha-256."));
            }
        }
        if options.channel_binding() == ChannelBinding::Require {
            return Err(no_channel_binding());
        }
        wire.send(&answer).await?;
    }
}

/// Both sides have proved that they know the password; returns whether the proof was bound to the TLS session.
async fn authenticate_by_scram(wire: &mut Wire, options: &ConnectOptions, mechanisms: &[u8]) -> Result<bool> {
    let offered = |name: &str| mechanisms.split(|&byte| byte == 0).any(|mechanism| mechanism == name.as_bytes());
    let end_point = match options.channel_binding() {
        ChannelBinding::Disable => None,
        _ => wire.socket.end_point(),
    };
    let (binding, mechanism) = match end_point {
        Some(hash) if offered(sasl::SCRAM_SHA_256_PLUS) => {
            (sasl::ChannelBinding::tls_server_end_point(hash), sasl::SCRAM_SHA_256_PLUS)
        }
        _ if options.channel_binding() == ChannelBinding::Require => return Err(no_channel_binding()),
        _ if !offered(sasl::SCRAM_SHA_256) => {
            return Err(Error::new(ErrorKind::Authentication, "the server offers no SCRAM mechanism that we know"));
        }
        Some(_) => (sasl::ChannelBinding::unrequested(), sasl::SCRAM_SHA_256),
        None => (sasl::ChannelBinding::unsupported(), sasl::SCRAM_SHA_256),
    };
    let mut scram = ScramSha256::new(password(options)?, binding);
    let mut answer = BytesMut::new();
    frontend::sasl_initial_response(mechanism, scram.message(), &mut answer).map_err(unsendable)?;
    wire.send(&answer).await?;

    let challenge = expect_request(wire, SASL_CONTINUE).await?;
    scram.update(&challenge).map_err(distrusted)?;
    answer.clear();
    frontend::sasl_response(scram.message(), &mut answer).map_err(unsendable)?;
    wire.send(&answer).await?;

    let proof = expect_request(wire, SASL_FINAL).await?;
    scram.finish(&proof).map_err(distrusted)?;
    Ok(mechanism == sasl::SCRAM_SHA_256_PLUS)
}

async fn expect_request(wire: &mut Wire, wanted: u32) -> Result<bytes::Bytes> {
    let (request, data) = next_request(wire).await?;
    if request == wanted { Ok(data) } else { Err(protocol_violation("The server broke off SCRAM authentication.")) }
}

async fn next_request(wire: &mut Wire) -> Result<(u32, bytes::Bytes)> {
    loop {
        let (tag, body) = wire.next_message().await?;
        match tag {
            message::AUTHENTICATION => {
                let (request, _) = body.split_first_chunk::<4>().ok_or_else(|| malformed("Authentication"))?;
                return Ok((u32::from_be_bytes(*request), body.slice(4..)));
            }
            message::ERROR_RESPONSE => return Err(wire.refusal(Phase::Connect, &body)),
            // The server knows a lesser minor version or not every option; it goes on all the same.
            message::NEGOTIATE_PROTOCOL_VERSION => {}
            other => return Err(unexpected(other)),
        }
    }
}

async fn await_ready(wire: &mut Wire) -> Result<()> {
    loop {
        let (tag, body) = wire.next_message().await?;
        match tag {
            message::BACKEND_KEY_DATA => {
                let (process_id, _) = body.split_first_chunk::<4>().ok_or_else(|| malformed("BackendKeyData"))?;
                wire.process_id = i32::from_be_bytes(*process_id);
            }
            message::READY_FOR_QUERY => return Ok(()),
            message::ERROR_RESPONSE => return Err(wire.refusal(Phase::Connect, &body)),
            other => return Err(unexpected(other)),
        }
    }
}

fn password(options: &ConnectOptions) -> Result<&[u8]> {
    options.password().ok_or_else(|| {
        Error::new(ErrorKind::Authentication, "the server wants a password and none is given")
            .with_hint("Put it into PGPASSWORD, or into the address.")
    })
}

fn no_channel_binding() -> Error {
    Error::new(ErrorKind::Authentication, "channel binding is required and cannot be had")
        .with_hint("It needs TLS and scram-sha-256 in pg_hba.conf; or say channel_binding=prefer in the address.")
}

fn distrusted(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Authentication, "the server failed its part of SCRAM authentication").with_source(error)
}

fn unsendable(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Configuration, "the password cannot be sent").with_source(error)
}
