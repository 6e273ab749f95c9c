//! Whether a receiver may have forgotten the key that a row is asked again under.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use postrider_core::call::idempotency_key;
use postrider_core::error::Result;
use postrider_core::ports::{Claim, ClaimReply, ClaimRequest};
use postrider_core::stage::Step;
use postrider_core::work::{StageName, WorkKey};

use super::asked::{find_asked, key_parameters};
use super::layout::{Layout, micros, unreadable};
use crate::client::Connection;
use crate::store::{OPERATOR_ACTIONS, WORK_HISTORY};

/// Attempts that the receiver did not act on, by their end: they did not reach it, or did not leave.
pub(crate) const NOT_ACTED_ON: &str = "(h.outcome = 'released' OR h.reason LIKE ANY (ARRAY['NOT_SENT%', 'NOT_PROCESSED%', 'KEY_EXPIRED%', \
     'PAYLOAD_CHANGED%', 'TOO_LARGE: %']))";

/// A row that is to be asked again, and how long its receiver keeps a key.
pub(crate) struct AskedAgain<'a> {
    pub(crate) key: &'a WorkKey,
    pub(crate) stage: &'a StageName,
    pub(crate) epoch: u32,
    pub(crate) kept: Duration,
}

/// Of these rows those whose receiver may have acted longer ago than a key of theirs is kept, by their places, with the time, as the server
/// writes it. Where the receiver's store is on this database and still has the key, it will answer from it, however long ago.
///
/// The first attempt of the stage and epoch counts: the key was stored then, and nobody stores it again. What a person said the
/// receiver did not do does not count.
///
/// # Errors
/// What the server says.
pub(crate) async fn expired(
    connection: &Connection,
    layout: &Layout,
    rows: &[AskedAgain<'_>],
) -> Result<Vec<(usize, String)>> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let mut parameters = key_parameters(layout.key.len(), rows.iter().map(|row| row.key))?;
    parameters.push(Box::new(rows.iter().map(|row| micros(row.kept)).collect::<Vec<_>>()));
    let answers = connection.query(&statement(layout), &parameters).await?;
    let mut expired = Vec::new();
    for answer in &answers {
        let (place, row) = find_asked(answer, rows)?;
        let key = idempotency_key(row.key, row.stage, row.epoch);
        expired.push((place, key, answer.try_get::<_, String>(1).map_err(unreadable)?));
    }
    let kept = kept_keys(connection, expired.iter().map(|(_, key, _)| key.clone()).collect()).await?;
    let expired = expired.into_iter().filter(|(_, key, _)| !kept.contains(key));
    Ok(expired.map(|(place, _, since)| (place, since)).collect())
}

/// Notes in the claims of rows that were asked for before whether their receivers may have forgotten the key since.
pub(super) async fn note(
    connection: &Connection,
    layout: &Layout,
    key_retention: &BTreeMap<Step, Duration>,
    requests: &[ClaimRequest],
    replies: &mut [ClaimReply],
) -> Result<()> {
    // What a row without a definition is under.
    let given = |key: &WorkKey| requests.iter().find(|request| request.key == *key).map(|request| &request.definition);
    let kept = |claim: &Claim| {
        let definition = claim.definition.as_ref().or_else(|| given(&claim.key))?.clone();
        key_retention.get(&Step { definition, stage: claim.stage.clone() }).copied()
    };
    let mut claims: Vec<(&mut Claim, Duration)> = Vec::new();
    for reply in replies {
        if let ClaimReply::Claimed(claim) = reply
            && claim.was_sent
            && let Some(kept) = kept(claim)
        {
            claims.push((claim, kept));
        }
    }
    let asked = claims.iter().map(|(claim, kept)| AskedAgain {
        key: &claim.key,
        stage: &claim.stage,
        epoch: claim.epoch,
        kept: *kept,
    });
    let found = expired(connection, layout, &asked.collect::<Vec<_>>()).await?;
    for (place, since) in found {
        if let Some((claim, _)) = claims.get_mut(place) {
            claim.key_expired = Some(since);
        }
    }
    Ok(())
}

/// Parameters: the key arrays, and how long each row's receiver keeps a key.
fn statement(layout: &Layout) -> Arc<str> {
    let key = format!("ARRAY[{}] COLLATE \"default\"", layout.key_texts());
    let stage = format!("t.{}::text", layout.stage.name);
    let updated = format!("t.{}", layout.updated_at.name);
    let first = format!(
        "(SELECT CASE WHEN count(*) = 0 THEN {updated} ELSE min(h.started_at) FILTER (WHERE NOT coalesce({NOT_ACTED_ON}, false) \
             AND h.fence >= coalesce((SELECT max(o.fence_after) FROM {actions} AS o WHERE o.key = {key} AND o.work_table = t.tableoid \
                 AND o.verb = 'resolve not-done' AND o.stage_after = {stage}), 0)) END \
           FROM {history} AS h WHERE h.key = {key} AND h.work_table = t.tableoid AND h.stage = {stage} AND h.epoch = {epoch})",
        actions = OPERATOR_ACTIONS.qualified(),
        history = WORK_HISTORY.qualified(),
        epoch = layout.epoch.value(),
    );
    // Without a history of it the row's own time is all there is; without a hash, in a table that has them, nothing was ever sent.
    let first = if layout.history { first } else { updated };
    format!(
        "SELECT ord, since::text FROM (SELECT asked.ord, asked.kept_micros, CASE WHEN {was_sent} THEN {first} END AS since \
           FROM {rows}) AS s \
         WHERE since < now() - kept_micros * interval '1 microsecond'",
        was_sent = layout.was_sent(),
        rows = layout.asked_rows(&layout.asked(&[("int8", "kept_micros")])),
    )
    .into()
}

/// Of these keys those that the receiver's store has, where it is on this database and we may read it.
async fn kept_keys(connection: &Connection, keys: Vec<String>) -> Result<BTreeSet<String>> {
    if keys.is_empty() {
        return Ok(BTreeSet::new());
    }
    let readable: Arc<str> =
        "SELECT EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
           WHERE n.nspname = 'postrider_receiver' AND c.relname = 'idempotency_keys' \
             AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'))"
            .into();
    let is_readable = match connection.query(&readable, &Vec::new()).await?.first() {
        Some(row) => row.try_get(0).map_err(unreadable)?,
        None => false,
    };
    if !is_readable {
        return Ok(BTreeSet::new());
    }
    let text: Arc<str> =
        "SELECT DISTINCT key FROM postrider_receiver.idempotency_keys WHERE key = ANY ($1::text[])".into();
    let found = connection.query(&text, &vec![Box::new(keys)]).await?;
    found.iter().map(|row| row.try_get(0).map_err(unreadable)).collect()
}
