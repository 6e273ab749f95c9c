//! What: proves to the server who we are, and makes it prove itself where it can.
//! Where: within the start-up of a connection, before *read*.
//! Takes and gives: a `Wire` behind its start-up message, the policy and the password; the same `Wire`, let in.
//! Never: sends the password where the policy forbids it, or logs it.

use bytes::{Bytes, BytesMut};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, ScramSha256};
use postgres_protocol::message::frontend;
use postrider_core::error::{Error, ErrorKind, Result};

use super::socket::Socket;
use super::{Wire, malformed, message, unexpected};
use crate::errors::{Phase, protocol_violation};
use crate::options::{ChannelBinding, ConnectOptions, Method};
use crate::password::Secret;

/// What an authentication message asks for (manual, "Message Formats", AuthenticationOk and the next).
const OK: u32 = 0;
const CLEARTEXT_PASSWORD: u32 = 3;
const MD5_PASSWORD: u32 = 5;
const SASL: u32 = 10;
const SASL_CONTINUE: u32 = 11;
const SASL_FINAL: u32 = 12;

/// Answers what the server asks until it lets us in.
pub(super) async fn authenticate(wire: &mut Wire, options: &ConnectOptions, password: Option<&Secret>) -> Result<()> {
    let mut is_bound = false;
    let mut is_asked = false;
    let must_bind = options.proof.channel_binding == ChannelBinding::Require;
    let given = || password.map(Secret::reveal).ok_or_else(|| options.password.missing());
    loop {
        let (request, data) = next_request(wire).await?;
        if request != OK || !is_asked {
            permit(options, request)?;
        }
        let mut answer = BytesMut::new();
        match request {
            // A server that asks for no proof has not shown that it is the one behind the TLS session.
            OK if must_bind && !is_bound => return Err(no_channel_binding()),
            OK => return Ok(()),
            SASL => {
                is_bound = authenticate_by_scram(wire, options, (&data, given()?)).await?;
                is_asked = true;
                continue;
            }
            _ if must_bind => return Err(no_channel_binding()),
            MD5_PASSWORD => {
                let salt = *data.first_chunk::<4>().ok_or_else(|| malformed("AuthenticationMD5Password"))?;
                let hash = md5_hash(options.user.as_bytes(), given()?, salt);
                frontend::password_message(hash.as_bytes(), &mut answer).map_err(unsendable)?;
            }
            CLEARTEXT_PASSWORD => {
                frontend::password_message(given()?, &mut answer).map_err(unsendable)?;
                say_clear_text(wire);
            }
            other => return Err(unknown_request(other)),
        }
        is_asked = true;
        wire.send(&answer).await?;
    }
}

/// Whether `require_auth` allows what the server asks for.
fn permit(options: &ConnectOptions, request: u32) -> Result<()> {
    let method = match request {
        OK => Method::None,
        CLEARTEXT_PASSWORD => Method::Password,
        MD5_PASSWORD => Method::Md5,
        SASL => Method::ScramSha256,
        _ => Method::Other,
    };
    match &options.proof.methods {
        Some(methods) if !methods.contains(&method) => {
            let asked = match method {
                Method::None => "nothing",
                Method::Password => "the password in clear text",
                Method::Md5 => "an MD5 hash of the password",
                Method::ScramSha256 => "SCRAM-SHA-256",
                Method::Other => "another method",
            };
            Err(Error::new(ErrorKind::Authentication, "the server asks for a proof that require_auth forbids")
                .with_detail(format!("It asks for {asked}."))
                .with_hint("Let pg_hba.conf ask this role for what require_auth names, or name in require_auth what it asks for."))
        }
        _ => Ok(()),
    }
}

/// Both sides have proved that they know the password; returns whether the proof was bound to the TLS session.
async fn authenticate_by_scram(
    wire: &mut Wire,
    options: &ConnectOptions,
    (mechanisms, password): (&[u8], &[u8]),
) -> Result<bool> {
    let offered = |name: &str| mechanisms.split(|&byte| byte == 0).any(|mechanism| mechanism == name.as_bytes());
    let end_point = match options.proof.channel_binding {
        ChannelBinding::Disable => None,
        ChannelBinding::Prefer | ChannelBinding::Require => wire.socket.end_point(),
    };
    let (binding, mechanism) = match end_point {
        Some(hash) if offered(sasl::SCRAM_SHA_256_PLUS) => {
            (sasl::ChannelBinding::tls_server_end_point(hash), sasl::SCRAM_SHA_256_PLUS)
        }
        _ if options.proof.channel_binding == ChannelBinding::Require => return Err(no_channel_binding()),
        _ if !offered(sasl::SCRAM_SHA_256) => {
            return Err(Error::new(ErrorKind::Authentication, "the server offers no SCRAM mechanism that we know")
                .with_hint("Let pg_hba.conf ask this role for scram-sha-256."));
        }
        Some(_) => (sasl::ChannelBinding::unrequested(), sasl::SCRAM_SHA_256),
        None => (sasl::ChannelBinding::unsupported(), sasl::SCRAM_SHA_256),
    };
    let mut scram = ScramSha256::new(password, binding);
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

async fn expect_request(wire: &mut Wire, wanted: u32) -> Result<Bytes> {
    let (request, data) = next_request(wire).await?;
    if request == wanted { Ok(data) } else { Err(protocol_violation("The server broke off SCRAM authentication.")) }
}

async fn next_request(wire: &mut Wire) -> Result<(u32, Bytes)> {
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

/// As libpq does, it is sent; but who reads the log shall know.
fn say_clear_text(wire: &Wire) {
    if matches!(wire.socket, Socket::Tcp(_)) {
        tracing::warn!(
            server = wire.endpoint,
            "the server wants the password in clear text, and without TLS whoever listens has it: use sslmode=verify-full, or scram-sha-256 in pg_hba.conf; require_auth=!password forbids it"
        );
    }
}

fn unknown_request(request: u32) -> Error {
    Error::new(ErrorKind::Authentication, "the server asks for a kind of proof that we do not know")
        .with_detail(format!(
            "It is number {request}; we know trust, password, md5, scram-sha-256 and client certificates."
        ))
        .with_hint("Let pg_hba.conf ask this role for scram-sha-256.")
}

fn no_channel_binding() -> Error {
    Error::new(ErrorKind::Authentication, "channel binding is required and cannot be had")
        .with_hint("It needs TLS and scram-sha-256 in pg_hba.conf; or say channel_binding=prefer in the address.")
}

fn distrusted(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Authentication, "the server failed its part of SCRAM authentication")
        .with_hint("It may be another server than the one that knows the password; sslmode=verify-full tells.")
        .with_source(error)
}

fn unsendable(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Configuration, "the password cannot be sent")
        .with_hint("It may hold no zero byte.")
        .with_source(error)
}
