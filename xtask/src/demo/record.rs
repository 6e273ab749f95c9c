//! The demo's own notes, in a schema beside the business, and the counts that are taken from all of it by SQL.

use std::time::SystemTime;

use tokio_postgres::Client;

use super::house::STAGES_OF_A_QUOTE;
use super::submission::Commit;
use crate::error::{Context, Result};

/// A connection to the notes.
#[derive(Debug)]
pub(super) struct Record {
    client: Client,
}

/// What the databases say became of a run. Each is one query; none is a counter of Postrider's.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) submitted: i64,
    pub(super) finished: i64,
    pub(super) requests: i64,
    pub(super) repeats_absorbed: i64,
    pub(super) effects_expected: i64,
    pub(super) effects_missing: i64,
    pub(super) effects_doubled: i64,
    pub(super) outbox_events: i64,
    pub(super) outbox_lost: i64,
    pub(super) outbox_doubled: i64,
    pub(super) outbox_out_of_order: i64,
    pub(super) kills_in_window: i64,
    pub(super) commit_to_request_p50_us: i64,
    pub(super) commit_to_request_p99_us: i64,
}

const NOTES: &str = "
    CREATE SCHEMA demo;
    CREATE TABLE demo.commits (group_id text, quote_id text, returned_at timestamptz);
    CREATE TABLE demo.kills (kill bigint PRIMARY KEY, at timestamptz NOT NULL);
    CREATE TABLE demo.windows (kill bigint, group_id text, quote_id text, stage text);";

/// Rows whose effect was committed before the kill and that were still somebody's when it came: no checkpoint was written.
const WRITE_WINDOW: &str = "
    INSERT INTO demo.windows
    SELECT DISTINCT $1::bigint, w.group_id, w.quote_id, w.stage
      FROM pending_work w JOIN quoting.stage_effects e USING (group_id, quote_id, stage)
     WHERE w.stage_state = 'RUNNING' AND e.at < $2";

const FINISHED: &str = "SELECT count(*) FROM pending_work WHERE stage_state = 'DONE' AND closed_at IS NOT NULL";

const MISSING: &str = "
    SELECT $1::bigint - count(*) FROM (SELECT DISTINCT group_id, quote_id, stage FROM quoting.stage_effects) e
      JOIN demo.commits USING (group_id, quote_id)";

const DOUBLED: &str = "
    SELECT count(*) - count(DISTINCT (group_id, quote_id, stage)) FROM quoting.stage_effects";

const LOST: &str = "
    SELECT count(*) FROM outbox_event o
     WHERE NOT EXISTS (SELECT FROM quoting.event_effects e WHERE e.event_id = o.id)";

/// Events that were first acted on after a later one of the same aggregate.
const OUT_OF_ORDER: &str = "
    WITH firsts AS (
        SELECT DISTINCT ON (event_id) id, aggregate_key, seq FROM quoting.event_effects ORDER BY event_id, id),
    seen AS (
        SELECT seq, max(seq) OVER (PARTITION BY aggregate_key ORDER BY id
                                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
          FROM firsts)
    SELECT count(*) FROM seen WHERE seq < highest";

/// Kills in whose window a row was, and after which, before the next kill, the same request was received again.
const KILLS_IN_WINDOW: &str = "
    WITH spans AS (
        SELECT kill, at, lead(at, 1, 'infinity') OVER (ORDER BY kill) AS until FROM demo.kills)
    SELECT count(DISTINCT w.kill)
      FROM demo.windows w JOIN spans s USING (kill)
      JOIN quoting.requests r USING (group_id, quote_id, stage)
     WHERE r.received_at > s.at AND r.received_at < s.until";

/// From the return of the commit to the first request, of the quotes whose request came before the first kill.
const LATENCY: &str = "
    WITH first_requests AS (
        SELECT group_id, quote_id, min(received_at) AS received_at FROM quoting.requests
         WHERE stage = 'PRICING' GROUP BY group_id, quote_id),
    latencies AS (
        SELECT extract(epoch FROM r.received_at - c.returned_at) * 1000000 AS us
          FROM demo.commits c JOIN first_requests r USING (group_id, quote_id)
         WHERE r.received_at < coalesce((SELECT min(at) FROM demo.kills), 'infinity'))
    SELECT coalesce(percentile_disc($1) WITHIN GROUP (ORDER BY us), 0)::bigint FROM latencies";

impl Record {
    /// Creates the tables of the notes.
    pub(super) async fn create(client: Client) -> Result<Self> {
        client.batch_execute(NOTES).await.context(|| "cannot create the demo's own tables")?;
        Ok(Self { client })
    }

    /// The number of the last request that the quoting service received; 0 before the first.
    pub(super) async fn last_request(&self) -> Result<i64> {
        self.count_of("SELECT coalesce(max(id), 0) FROM quoting.requests").await
    }

    /// Notes a kill and the rows that were in its window.
    pub(super) async fn write_kill(&self, number: i64, at: SystemTime) -> Result<()> {
        let done = self.client.execute(WRITE_WINDOW, &[&number, &at]).await;
        done.context(|| "cannot note the window of a kill")?;
        let done = self.client.execute("INSERT INTO demo.kills VALUES ($1, $2)", &[&number, &at]).await;
        done.context(|| "cannot note a kill")?;
        Ok(())
    }

    /// Notes when the commit of each quote returned.
    pub(super) async fn write_commits(&self, commits: &[Commit]) -> Result<()> {
        let groups: Vec<_> = commits.iter().map(|commit| commit.group_id.as_str()).collect();
        let quotes: Vec<_> = commits.iter().map(|commit| commit.quote_id.as_str()).collect();
        let times: Vec<_> = commits.iter().map(|commit| commit.returned_at).collect();
        let insert = "INSERT INTO demo.commits SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[])";
        let done = self.client.execute(insert, &[&groups, &quotes, &times]).await;
        done.context(|| "cannot note the commits")?;
        Ok(())
    }

    /// Counts what became of the quotes that were committed.
    pub(super) async fn count(&self) -> Result<Counts> {
        let submitted = self.count_of("SELECT count(*) FROM demo.commits").await?;
        let effects_expected = submitted.saturating_mul(STAGES_OF_A_QUOTE);
        let row = self.client.query_one(MISSING, &[&effects_expected]).await;
        Ok(Counts {
            submitted,
            effects_expected,
            effects_missing: row.context(|| "cannot count the effects")?.get(0),
            finished: self.count_of(FINISHED).await?,
            requests: self.count_of("SELECT count(*) FROM quoting.requests").await?,
            repeats_absorbed: self.count_of("SELECT count(*) FROM quoting.requests WHERE replayed").await?,
            effects_doubled: self.count_of(DOUBLED).await?,
            outbox_events: self.count_of("SELECT count(*) FROM outbox_event").await?,
            outbox_lost: self.count_of(LOST).await?,
            outbox_doubled: self
                .count_of("SELECT count(*) - count(DISTINCT event_id) FROM quoting.event_effects")
                .await?,
            outbox_out_of_order: self.count_of(OUT_OF_ORDER).await?,
            kills_in_window: self.count_of(KILLS_IN_WINDOW).await?,
            commit_to_request_p50_us: self.latency(0.5).await?,
            commit_to_request_p99_us: self.latency(0.99).await?,
        })
    }

    async fn count_of(&self, sql: &str) -> Result<i64> {
        let row = self.client.query_one(sql, &[]).await;
        Ok(row.context(|| "cannot count what happened")?.get(0))
    }

    async fn latency(&self, share: f64) -> Result<i64> {
        let row = self.client.query_one(LATENCY, &[&share]).await;
        Ok(row.context(|| "cannot read the latencies")?.get(0))
    }
}
