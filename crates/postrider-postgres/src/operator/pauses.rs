//! Holding back a stage or an endpoint, and letting it go: one statement writes what is paused, puts the order on record, and sends the
//! logical message that executors hear it by.

use std::sync::Arc;

use postrider_core::error::Result;
use postrider_core::paused::{Paused, PausedPart};

use super::{Note, Operator};
use crate::client::Parameters;
use crate::quote::quote_literal;
use crate::store::{OPERATOR_ACTIONS, PAUSES};
use crate::work_table::pauses;

/// The state that is on record for what is paused, and for what is not.
const PAUSED: &str = "PAUSED";
const NOT_PAUSED: &str = "ACTIVE";

impl Operator {
    /// What is paused, stages first.
    ///
    /// # Errors
    /// What the server says.
    pub async fn paused(&self) -> Result<Vec<Paused>> {
        let text = format!(
            "SELECT {columns} FROM {pauses} AS p WHERE p.work_table = {table}::regclass ORDER BY endpoint, stage, definition",
            columns = pauses::COLUMNS,
            pauses = PAUSES.qualified(),
            table = quote_literal(&self.layout.table),
        );
        let rows = self.connection.query(&text.into(), &Parameters::new()).await?;
        rows.iter().filter_map(|row| pauses::read(row, 0).transpose()).collect()
    }

    /// Pauses a part. False: it was paused already, and nothing is written.
    ///
    /// # Errors
    /// What the server says; then nothing is written.
    pub async fn pause(&self, part: &PausedPart, note: &Note) -> Result<bool> {
        let changed = format!(
            "INSERT INTO {pauses} AS p (work_table, stage, definition, endpoint, who, why, evidence) \
             VALUES ({table}::regclass, $1::text, $2::text, $3::text, $5::text, $6::text, $7::text) \
             ON CONFLICT DO NOTHING RETURNING p.*",
            pauses = PAUSES.qualified(),
            table = quote_literal(&self.layout.table),
        );
        self.give_to_part(&changed, ("pause", NOT_PAUSED, PAUSED), part, note).await
    }

    /// Resumes a part. False: it was not paused, and nothing is written.
    ///
    /// # Errors
    /// What the server says; then nothing is written.
    pub async fn resume(&self, part: &PausedPart, note: &Note) -> Result<bool> {
        let changed = format!(
            "DELETE FROM {pauses} AS p WHERE p.work_table = {table}::regclass \
               AND p.stage = $1::text AND p.definition = $2::text AND p.endpoint = $3::text RETURNING p.*",
            pauses = PAUSES.qualified(),
            table = quote_literal(&self.layout.table),
        );
        self.give_to_part(&changed, ("resume", PAUSED, NOT_PAUSED), part, note).await
    }

    /// `changed` is the statement that writes what is paused; `op`: how the message calls it, and the states before and after.
    async fn give_to_part(
        &self,
        changed: &str,
        (op, before, after): (&str, &str, &str),
        part: &PausedPart,
        note: &Note,
    ) -> Result<bool> {
        let text: Arc<str> = format!(
            "WITH changed AS ({changed}), \
             noted AS (INSERT INTO {actions} (work_table, verb, who, why, evidence, stage_before, state_before, stage_after, state_after) \
               SELECT work_table, $4::text, $5::text, $6::text, $7::text, nullif(stage, ''), '{before}', nullif(stage, ''), '{after}' \
               FROM changed) \
             SELECT pg_logical_emit_message(true, {prefix}, convert_to(json_build_object('op', '{op}', 'stage', stage, \
                 'definition', definition, 'endpoint', endpoint, 'since', (extract(epoch FROM paused_at) * 1000000)::int8, \
                 'who', who, 'why', why)::text, \
               CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END))::text FROM changed",
            actions = OPERATOR_ACTIONS.qualified(),
            prefix = quote_literal(&self.pause_prefix),
        )
        .into();
        let mut parameters: Parameters = part.columns().map(|column| Box::new(column.to_owned()) as Box<_>).into();
        parameters.push(Box::new(note.verb.clone()));
        parameters.push(Box::new(note.who.clone()));
        parameters.push(Box::new(note.why.clone()));
        parameters.push(Box::new(note.evidence.clone()));
        Ok(!self.connection.query(&text, &parameters).await?.is_empty())
    }
}
