//! What happened to one row: each attempt that ended, and each order between.

use postrider_core::error::Result;
use postrider_core::work::WorkKey;
use tokio_postgres::Row;

use super::Operator;
use crate::client::Parameters;
use crate::quote::quote_literal;
use crate::store::{OPERATOR_ACTIONS, WORK_HISTORY};
use crate::work_table::layout::unreadable;

/// One thing that happened, with its time as the server writes times.
#[derive(Debug, Clone, PartialEq)]
pub struct TimelineEntry {
    pub at: String,
    pub stage: String,
    /// The fence that it was done under, or, of an order, that it left behind.
    pub fence: i64,
    pub next_stage: String,
    pub next_state: String,
    pub deed: Deed,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Deed {
    Tried(TriedOnce),
    Ordered { verb: String, who: String, database_user: String, why: String, evidence: Option<String> },
}

/// An attempt that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct TriedOnce {
    pub epoch: i32,
    pub attempt: i32,
    pub deferrals: i32,
    pub owner: Option<String>,
    pub outcome: String,
    pub http_status: Option<i32>,
    pub reason: Option<String>,
    /// From the claim to the end.
    pub seconds: Option<f64>,
}

impl Operator {
    /// All that is on record of a row, oldest first. `key` must be as a row that was read has it.
    ///
    /// # Errors
    /// What the server says.
    pub async fn timeline(&self, key: &WorkKey) -> Result<Vec<TimelineEntry>> {
        let table = quote_literal(&self.layout.table);
        let tried = format!(
            "SELECT ended_at AS at, stage, fence, next_stage, next_state, epoch, attempt, deferrals, owner, outcome, http_status, reason, \
               extract(epoch FROM ended_at - started_at)::float8 AS seconds, \
               NULL::text AS verb, NULL::text AS who, NULL::text AS database_user, NULL::text AS why, NULL::text AS evidence \
             FROM {} WHERE key = $1::text[] AND work_table = {table}::regclass UNION ALL ",
            WORK_HISTORY.qualified()
        );
        let text = format!(
            "SELECT t.happened::text AS shown, t.* FROM ({tried}\
               SELECT at, coalesce(stage_before, ''), coalesce(fence_after, 0), coalesce(stage_after, ''), coalesce(state_after, ''), \
                 NULL::int4, NULL::int4, NULL::int4, NULL::text, NULL::text, NULL::int4, NULL::text, NULL::float8, \
                 verb, who, database_user, why, evidence \
               FROM {actions} WHERE key = $1::text[] AND work_table = {table}::regclass) \
             AS t (happened, stage, fence, next_stage, next_state, epoch, attempt, deferrals, owner, outcome, http_status, reason, seconds, \
               verb, who, database_user, why, evidence) ORDER BY happened, fence",
            tried = if self.layout.history { tried } else { String::new() },
            actions = OPERATOR_ACTIONS.qualified(),
        );
        let parts: Vec<String> = key.parts().map(str::to_owned).collect();
        let parameters: Parameters = vec![Box::new(parts)];
        let rows = self.connection.query(&text.into(), &parameters).await?;
        let mut entries: Vec<TimelineEntry> =
            rows.iter().map(|row| entry(row).map_err(unreadable)).collect::<Result<_>>()?;
        // On record are the table's own words.
        for entry in &mut entries {
            if let Some(state) = self.layout.states.state(&entry.next_state) {
                state.as_str().clone_into(&mut entry.next_state);
            }
        }
        Ok(entries)
    }
}

fn entry(row: &Row) -> Result<TimelineEntry, tokio_postgres::Error> {
    let deed = match row.try_get("verb")? {
        Some(verb) => Deed::Ordered {
            verb,
            who: row.try_get("who")?,
            database_user: row.try_get("database_user")?,
            why: row.try_get("why")?,
            evidence: row.try_get("evidence")?,
        },
        None => Deed::Tried(TriedOnce {
            epoch: row.try_get("epoch")?,
            attempt: row.try_get("attempt")?,
            deferrals: row.try_get("deferrals")?,
            owner: row.try_get("owner")?,
            outcome: row.try_get("outcome")?,
            http_status: row.try_get("http_status")?,
            reason: row.try_get("reason")?,
            seconds: row.try_get("seconds")?,
        }),
    };
    Ok(TimelineEntry {
        at: row.try_get(0)?,
        stage: row.try_get("stage")?,
        fence: row.try_get("fence")?,
        next_stage: row.try_get("next_stage")?,
        next_state: row.try_get("next_state")?,
        deed,
    })
}
