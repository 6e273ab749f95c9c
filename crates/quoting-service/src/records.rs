//! What: the service's own record of what it was asked, for whoever checks the whole afterwards.
//! Where: beside the business transaction, never in it: a request that was rolled back was received all the same.
//! Takes and gives: what a request said of itself; one row per request.
//! Never: changes a request's answer; a record that cannot be written is said on stderr. A real service needs none of it.

use std::time::SystemTime;

use postrider_receiver::Answer;
use tokio_postgres::types::Type;
use tokio_postgres::{Config, Error};

use crate::pool::Pool;
use crate::stages::StageCall;

/// Writes the records, on connections whose commits do not wait for the disk.
#[derive(Debug)]
pub(crate) struct Records {
    pool: Pool,
}

/// The row of a stage request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordId(i64);

impl Records {
    pub(crate) fn new(mut config: Config, connections: usize) -> Records {
        let options = [config.get_options().unwrap_or_default(), "-c synchronous_commit=off"].join(" ");
        config.options(options);
        Records { pool: Pool::new(config, connections) }
    }

    /// Records that a stage request came.
    pub(crate) async fn stage_received(&self, call: &StageCall, at: SystemTime) -> Option<RecordId> {
        told(self.insert_stage(call, at).await)
    }

    /// Records how a stage request was executed, at once when that is known, and the answer that is handed to the connection.
    pub(crate) async fn stage_executed(
        &self,
        record: Option<RecordId>,
        replayed: Option<bool>,
        given: Option<&Answer>,
    ) {
        if let Some(record) = record {
            told(self.update_stage(record, replayed, given).await);
        }
    }

    /// Records an event's delivery.
    pub(crate) async fn event(&self, event_id: &str, key: &str, at: SystemTime, replayed: Option<bool>) {
        told(self.insert_event(event_id, key, at, replayed).await);
    }

    async fn insert_stage(&self, call: &StageCall, at: SystemTime) -> Result<RecordId, Error> {
        let row = self
            .pool
            .lend()
            .await?
            .query_typed_one(
                "INSERT INTO quoting.requests \
                 (group_id, quote_id, stage, idempotency_key, attempt, fence, received_at, fingerprint) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING id",
                &[
                    (&call.body.group_id, Type::TEXT),
                    (&call.body.quote_id, Type::TEXT),
                    (&call.stage.name(), Type::TEXT),
                    (&call.request.key.as_str(), Type::TEXT),
                    (&call.attempt(), Type::INT4),
                    (&call.request.fence, Type::INT8),
                    (&at, Type::TIMESTAMPTZ),
                    (&call.fingerprint.as_bytes(), Type::BYTEA),
                ],
            )
            .await?;
        Ok(RecordId(row.try_get(0)?))
    }

    async fn update_stage(
        &self,
        record: RecordId,
        replayed: Option<bool>,
        given: Option<&Answer>,
    ) -> Result<(), Error> {
        let answer = given.map(|answer| [answer.status.to_string().as_bytes(), &answer.body].concat());
        self.pool
            .lend()
            .await?
            .execute_typed(
                "UPDATE quoting.requests \
                 SET replayed = $2, answered_at = CASE WHEN $3::bytea IS NOT NULL THEN clock_timestamp() END, \
                     answer_hash = sha256($3) WHERE id = $1",
                &[(&record.0, Type::INT8), (&replayed, Type::BOOL), (&answer, Type::BYTEA)],
            )
            .await?;
        Ok(())
    }

    async fn insert_event(
        &self,
        event_id: &str,
        key: &str,
        at: SystemTime,
        replayed: Option<bool>,
    ) -> Result<(), Error> {
        self.pool
            .lend()
            .await?
            .execute_typed(
                "INSERT INTO quoting.event_requests (event_id, aggregate_key, received_at, replayed) \
                 VALUES ($1::uuid, $2, $3, $4)",
                &[(&event_id, Type::TEXT), (&key, Type::TEXT), (&at, Type::TIMESTAMPTZ), (&replayed, Type::BOOL)],
            )
            .await?;
        Ok(())
    }
}

fn told<T>(written: Result<T, Error>) -> Option<T> {
    written.inspect_err(|error| eprintln!("quoting-service: a record could not be written: {error}")).ok()
}
