//! Whether a receiver may have forgotten the key that a row would be asked again under.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use postrider_core::call::idempotency_key;
use postrider_core::error::Result;
use postrider_core::work::WorkKey;

use super::{Operator, WorkRow};
use crate::store::WORK_HISTORY;
use crate::work_table::layout::{key_parameters, micros, unreadable};

/// Attempts that the receiver did not act on, by their end.
const NOT_ACTED_ON: &str = "(h.outcome = 'released' OR h.reason LIKE 'NOT_SENT%' OR h.reason LIKE 'NOT_PROCESSED%')";

/// A row whose receiver may no longer know its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expired {
    pub key: WorkKey,
    /// When it may first have been acted on, as the server writes times.
    pub since: String,
}

impl Operator {
    /// Of these rows those whose receiver may have acted longer ago than a key of theirs is `kept`. Where the receiver's store is on this
    /// database and still has the key, it will answer from it, however long ago.
    ///
    /// The first attempt of the stage and epoch counts: the key was stored then, and nobody stores it again.
    ///
    /// # Errors
    /// What the server says.
    pub async fn expired(
        &self,
        rows: &[WorkRow],
        kept: &(dyn Fn(&WorkRow) -> Option<Duration> + Sync),
    ) -> Result<Vec<Expired>> {
        let layout = &self.layout;
        let asked: Vec<&WorkRow> = rows.iter().filter(|row| kept(row).is_some()).collect();
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let first = format!(
            "(SELECT min(h.started_at) FROM {history} AS h WHERE h.key = ARRAY[{key}] COLLATE \"default\" AND h.work_table = t.tableoid \
              AND h.stage = t.{stage}::text AND h.epoch = {epoch} AND NOT coalesce({NOT_ACTED_ON}, false))",
            history = WORK_HISTORY.qualified(),
            key = layout.key_texts(),
            stage = layout.stage.name,
            epoch = layout.epoch.value(),
        );
        // Without a history of it the row's own time is all there is; without a hash, in a table that has them, nothing was ever sent.
        let first = if layout.history { first } else { "NULL::timestamptz".to_owned() };
        let text: Arc<str> = format!(
            "SELECT ord, since::text FROM (SELECT asked.ord, asked.kept_micros, \
               CASE WHEN {sent} THEN coalesce({first}, t.{updated}) END AS since \
               FROM ({asked}) AS asked JOIN {table} AS t ON {keys}) AS s \
             WHERE since < now() - kept_micros * interval '1 microsecond'",
            sent = if layout.request_hash.is_there() {
                format!("t.{} IS NOT NULL", layout.request_hash.name)
            } else {
                "true".to_owned()
            },
            updated = layout.updated_at.name,
            asked = layout.asked(&[("int8", "kept_micros")]),
            table = layout.table,
            keys = layout.key_matches(),
        )
        .into();
        let mut parameters = key_parameters(layout.key.len(), asked.iter().map(|row| &row.version.key))?;
        parameters.push(Box::new(asked.iter().filter_map(|row| kept(row)).map(micros).collect::<Vec<_>>()));
        let answers = self.connection.query(&text, &parameters).await?;
        let mut expired = Vec::new();
        for answer in &answers {
            let ord: i64 = answer.try_get(0).map_err(unreadable)?;
            let row = usize::try_from(ord).ok().and_then(|ord| asked.get(ord.checked_sub(1)?));
            let Some(row) = row else { continue };
            expired.push((*row, answer.try_get::<_, String>(1).map_err(unreadable)?));
        }
        let kept = self.kept_keys(&expired).await?;
        let expired = expired.into_iter().filter(|(row, _)| !kept.contains(&key_of(row)));
        Ok(expired.map(|(row, since)| Expired { key: row.version.key.clone(), since }).collect())
    }

    /// Of these rows' keys those that the receiver's store has, where it is on this database and we may read it.
    async fn kept_keys(&self, rows: &[(&WorkRow, String)]) -> Result<BTreeSet<String>> {
        let readable: Arc<str> =
            "SELECT EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
               WHERE n.nspname = 'postrider_receiver' AND c.relname = 'idempotency_keys' \
                 AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'))"
                .into();
        let is_readable = match self.connection.query(&readable, &Vec::new()).await?.first() {
            Some(row) => row.try_get(0).map_err(unreadable)?,
            None => false,
        };
        if rows.is_empty() || !is_readable {
            return Ok(BTreeSet::new());
        }
        let keys: Vec<String> = rows.iter().map(|(row, _)| key_of(row)).collect();
        let text: Arc<str> =
            "SELECT DISTINCT key FROM postrider_receiver.idempotency_keys WHERE key = ANY ($1::text[])".into();
        let found = self.connection.query(&text, &vec![Box::new(keys)]).await?;
        found.iter().map(|row| row.try_get(0).map_err(unreadable)).collect()
    }
}

fn key_of(row: &WorkRow) -> String {
    idempotency_key(&row.version.key, &row.version.stage, row.version.epoch)
}
