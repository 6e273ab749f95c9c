//! `postrider status`: asks the running process how it is; without one, asks the server about the slot.

use crate::cli::{ConfigurationFile, block_on};
use crate::config::{self, Configuration};
use crate::console::report::Report;
use crate::succession::{GAP_HINT, describe};
use crate::{exit, output, wiring};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{Primary, SlotHealth};
use postrider_journal::Reader;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A process that is alive answers from memory.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// An answer is a few kilobytes.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Ask the running process how it is
#[derive(Debug, clap::Args)]
pub(super) struct Status {
    #[command(flatten)]
    configuration: ConfigurationFile,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Status {
    pub(super) fn obey(self) -> Result<u8> {
        let configuration = config::load(&self.configuration.path)?;
        let asked = block_on(ask(configuration.listen));
        match asked {
            Ok(report) => Ok(self.show(&report)),
            Err(error) => self.without_process(&configuration, &error),
        }
    }

    fn show(&self, report: &Report) -> u8 {
        if self.json {
            output::json(&json!({ "running": true, "process": report }));
        } else {
            output::data(&report.to_string());
        }
        if report.ready { exit::OK } else { exit::NOT_READY }
    }

    /// Nobody answers: what the server says about the slot, and what stands in the journal, is what can be known.
    fn without_process(&self, configuration: &Configuration, why: &Error) -> Result<u8> {
        output::talk(&format!(
            "postrider: no process answers on {}: {}",
            configuration.listen,
            output::describe(why).replace('\n', " ")
        ));
        let slot = block_on(async { wiring::primary(configuration).slot().await });
        let journal = Reader::find(&configuration.journal.dir)?;
        if self.json {
            let journal = journal.as_ref().map(journal_json).transpose()?;
            let error = slot.as_ref().err().map(output::error_json);
            let slot = slot.as_ref().ok().map(slot_json);
            output::json(&json!({ "running": false, "slot": slot, "error": error, "journal": journal }));
        } else {
            slot.iter().for_each(|health| output::data(&slot_text(&configuration.source.slot, health)));
            if let Some(journal) = &journal {
                output::data(&journal_text(journal)?);
            }
        }
        slot.as_ref().err().into_iter().for_each(output::error);
        Ok(exit::NOT_READY)
    }
}

/// Asks the process that listens on `address`.
async fn ask(address: SocketAddr) -> Result<Report> {
    let silent = || Error::new(ErrorKind::Disconnected, "the process did not answer in time");
    let body = timeout(ANSWER_TIMEOUT, fetch(reachable(address))).await.map_err(|_| silent())??;
    serde_json::from_slice(&body).map_err(|error| not_ours().with_source(error))
}

async fn fetch(address: SocketAddr) -> Result<Bytes> {
    let lost = |error| Error::new(ErrorKind::Disconnected, "the connection to the process was lost").with_source(error);
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| Error::new(ErrorKind::Disconnected, "nobody listens there").with_source(error))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
    tokio::spawn(connection);
    let request = Request::get("/status").header(HOST, address.to_string()).body(Empty::<Bytes>::new());
    let request =
        request.map_err(|error| Error::new(ErrorKind::Internal, "a request cannot be built").with_source(error))?;
    let answer = sender.send_request(request).await.map_err(lost)?;
    if !answer.status().is_success() {
        return Err(not_ours());
    }
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
    Ok(body.map_err(|error| not_ours().with_source(error))?.to_bytes())
}

/// Where a process that listens on `address` can be reached from this machine.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn not_ours() -> Error {
    Error::new(ErrorKind::Protocol, "what listens there is not this version of postrider")
}

fn slot_json(health: &SlotHealth) -> Value {
    json!({
        "active": health.active,
        "confirmed_lsn": health.confirmed.to_string(),
        "retained_bytes": health.retained_bytes,
        "safe_bytes": health.safe_bytes,
        "wal_status": health.wal_status,
    })
}

fn slot_text(name: &str, health: &SlotHealth) -> String {
    let active = if health.active { "read by another process" } else { "read by nobody" };
    let safe =
        health.safe_bytes.map_or("no limit is set".to_owned(), |bytes| format!("{bytes} bytes until it is in danger"));
    format!(
        "slot {name}: {active}, confirmed {}, keeps {} bytes of log ({safe}), wal_status {}",
        health.confirmed, health.retained_bytes, health.wal_status
    )
}

fn journal_json(journal: &Reader) -> Result<Value> {
    let positions: BTreeMap<String, String> =
        journal.positions()?.iter().map(|(consumer, position)| (consumer.to_string(), position.to_string())).collect();
    Ok(json!({
        "generation": journal.generation().0,
        "end_lsn": journal.end().to_string(),
        "positions": positions,
        "gaps": open_gaps(journal)?,
    }))
}

fn journal_text(journal: &Reader) -> Result<String> {
    let mut text = format!("journal: generation {}, ends at {}", journal.generation().0, journal.end());
    for (consumer, position) in journal.positions()? {
        text.push_str(&format!("\n{consumer}: saved at {position}"));
    }
    let gaps = open_gaps(journal)?;
    for gap in &gaps {
        text.push_str(&format!("\nleft out: {gap}"));
    }
    if !gaps.is_empty() {
        text.push_str(&format!("\n          {GAP_HINT}"));
    }
    Ok(text)
}

fn open_gaps(journal: &Reader) -> Result<Vec<String>> {
    Ok(journal.gaps()?.iter().filter(|gap| !gap.accepted).map(describe).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unspecified_address_is_asked_on_loopback() {
        let at = |text: &str| text.parse::<SocketAddr>().map(|address| reachable(address).to_string());
        assert_eq!(at("0.0.0.0:9464"), Ok("127.0.0.1:9464".to_owned()));
        assert_eq!(at("[::]:1"), Ok("[::1]:1".to_owned()));
        assert_eq!(at("192.0.2.1:80"), Ok("192.0.2.1:80".to_owned()));
    }
}
