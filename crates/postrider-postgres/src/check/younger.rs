//! Whether a publication is younger than the place in the log where the slot stands.
//!
//! The server looks a publication up as of the time of each change, so that one that was made after a change stops the stream at that
//! change, however long it is there by then. Nothing in the catalogue says it. What it does say is which publications may be too young,
//! and of these the slot itself is asked, by looking at what it would send.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use postrider_core::error::{ErrorKind, Result};
use tokio_postgres::AsyncMessage;
use tokio_postgres::error::{DbError, SqlState};

use super::{Finding, Severity, Subject, field};
use crate::client::{Connection, Parameters};
use crate::errors::{Phase, map_client_error};
use crate::objects::SourceObjects;
use crate::options::ConnectOptions;
use crate::quote::{drop_slot_statement, quote_identifier, quote_literal};
use crate::slot_state::Slot;
use crate::wire::session::hand_over;
use crate::wire::{Purpose, Wire};

/// A look takes the slot for as long, and has the server read the log.
const PREAMBLE: &str = "SET default_transaction_read_only = on; SET lock_timeout = '10s'; SET statement_timeout = '5s'";

/// What a look at the slot came to.
enum Look {
    /// The first that there is to send can be sent.
    Sendable,
    /// The server stops, or leaves changes out, since a publication did not exist yet.
    TooYoung,
    /// Somebody reads from the slot, there is too much to look at, or we may not.
    Unknown,
}

/// Compares the slot, which is one of ours, with the publications of its stream.
pub(super) async fn check(
    connection: &Connection,
    options: &ConnectOptions,
    (objects, slot): (&SourceObjects, &Slot),
) -> Result<Option<Finding>> {
    let suspects = suspects(connection, objects).await?;
    if suspects.is_empty() {
        return Ok(None);
    }
    let look = if slot.holder.is_some() {
        Look::Unknown
    } else {
        look(options, &objects.slot, &objects.publications()).await?
    };
    Ok(judge(&look, &objects.slot, &suspects))
}

/// The publications that the slot may not know yet: a row of the catalogue that is older than what the slot keeps of it was there before.
/// One that lies more than half of all transaction ids back has a negative age, and is an old one.
pub(crate) async fn suspects(connection: &Connection, objects: &SourceObjects) -> Result<Vec<String>> {
    let text = "SELECT p.pubname::text FROM pg_publication AS p JOIN pg_replication_slots AS s ON s.slot_name = $1 \
         WHERE p.pubname = ANY ($2::text[]) AND age(p.xmin) BETWEEN 0 AND age(s.catalog_xmin) ORDER BY 1";
    let parameters: Parameters = vec![Box::new(objects.slot.clone()), Box::new(objects.publications())];
    match connection.query(&text.into(), &parameters).await {
        Ok(rows) => rows.iter().map(|row| field(row, 0)).collect(),
        // That a function may not be called is said elsewhere.
        Err(error) if error.kind() == ErrorKind::Privilege => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Has the server make the first of what the slot would send, without moving it: the first change from before is what stops a stream. From
/// version 18 on it leaves out what it cannot send, with a warning. A transaction that is still open is not
/// looked at. What is looked at counts in the slot's statistics.
async fn look(options: &ConnectOptions, slot: &str, publications: &[String]) -> Result<Look> {
    let (client, mut connection) = hand_over(Wire::open(options, Purpose::Ordinary).await?).await?;
    let is_skipped = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&is_skipped);
    // A warning is noted before what comes behind it is passed on.
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if matches!(&message, AsyncMessage::Notice(notice) if is_skipped_publication(notice)) {
                noted.store(true, Ordering::Relaxed);
            }
        }
    });
    let names: Vec<String> = publications.iter().map(|name| quote_identifier(name)).collect();
    let statement = format!(
        "SELECT FROM pg_logical_slot_peek_binary_changes({}, NULL, 1, 'proto_version', '1', 'publication_names', {})",
        quote_literal(slot),
        quote_literal(&names.join(","))
    );
    client.batch_execute(PREAMBLE).await.map_err(|error| map_client_error(Phase::Query, error))?;
    Ok(match client.batch_execute(&statement).await {
        Ok(()) if is_skipped.load(Ordering::Relaxed) => Look::TooYoung,
        Ok(()) => Look::Sendable,
        Err(error) if error.as_db_error().is_some_and(is_missing_publication) => Look::TooYoung,
        Err(_) => Look::Unknown,
    })
}

/// A slot that is not there has the same code, and no place in the log.
fn is_missing_publication(refusal: &DbError) -> bool {
    refusal.code() == &SqlState::UNDEFINED_OBJECT && refusal.where_().is_some()
}

fn is_skipped_publication(notice: &DbError) -> bool {
    notice.severity() == "WARNING" && notice.code() == &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE
}

fn judge(look: &Look, slot: &str, suspects: &[String]) -> Option<Finding> {
    let quoted: Vec<String> = suspects.iter().map(|name| format!("\"{name}\"")).collect();
    let publications = format!("publication{} {}", if suspects.len() == 1 { "" } else { "s" }, quoted.join(" and "));
    let cure = format!(
        "Where another configuration reads from the slot until now, as before a change from observing to executing, run that one until this is no longer said: nothing is lost by that. Else, if what was written in between may be left out, drop the slot, by {} and run `postrider setup`, which makes the publication first.",
        drop_slot_statement(slot)
    );
    let (severity, sentence, hint) = match look {
        Look::Sendable => return None,
        Look::TooYoung => (
            Severity::Error,
            format!(
                "The slot \"{slot}\" is older than the {publications}: the stream ends with an error at the first change from before, each time."
            ),
            cure,
        ),
        Look::Unknown => (
            Severity::Note,
            format!(
                "The slot \"{slot}\" may be older than the {publications}: then a `run` that reads both ends with an error at the first change from before, each time."
            ),
            format!(
                "An ALTER PUBLICATION, or a transaction that was running when the slot was made, looks the same until the slot has moved on, in a minute or so of `run`. If `run` ends with PR008: {cure}"
            ),
        ),
    };
    Some(Finding::new(severity, ErrorKind::PublicationMissing, Subject::Slot, sentence, hint))
}
