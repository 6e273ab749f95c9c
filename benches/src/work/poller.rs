//! The other side: a poller in batches over a partial index, as fast as we know how to write one.
//!
//! Each loop has a session of its own: it claims a batch with SKIP LOCKED in one UPDATE, has it called, and writes all outcomes in one more
//! UPDATE. Nothing waits for a timer while there is work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use clap::Args;
use futures_util::future::{join_all, try_join_all};
use postrider_core::call::stage_call;
use postrider_core::outcome::Outcome;
use postrider_core::ports::{Claim, StageCaller as _};
use postrider_core::route::WorkMapping;
use postrider_core::stage::{Definitions, Next};
use postrider_core::time::Timestamp;
use postrider_core::work::{DefinitionName, StageName, WorkKey};
use tokio::time::sleep;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use xtask::error::{Context, Error, Result};

use super::{Load, Trivial, say_done, wait_for_go};
use crate::process::on_terminate;
use crate::server::connect;

/// What is polled, and by how many.
#[derive(Debug, Args)]
pub(crate) struct Poll {
    #[arg(long)]
    url: String,
    #[arg(long)]
    schema: String,
    /// How many loops claim and write at the same time.
    #[arg(long, default_value_t = 4)]
    loops: usize,
    /// Rows in a batch.
    #[arg(long, default_value_t = 200)]
    batch: u32,
    #[command(flatten)]
    load: Load,
}

/// As long as one of ours.
const OWNER: &str = "a-poller-of-rows";

/// A loop that found nothing while others still have rows in hand looks again after this.
const IDLE: Duration = Duration::from_millis(1);

/// One loop's session and statements, and what all loops share.
struct Looper {
    session: Client,
    claim: Statement,
    outcome: Statement,
    shared: Arc<Shared>,
}

struct Shared {
    definitions: Definitions,
    key_names: Vec<String>,
    endpoint: Trivial,
    /// Transitions that are not written yet.
    left: AtomicU64,
}

/// A row that was claimed.
struct Claimed {
    claim: Claim,
    claimed_at: SystemTime,
}

/// The table with the columns of ours and the index that a poller needs instead, and a history as wide as ours.
pub(super) fn tables(schema: &str) -> String {
    format!(
        "CREATE TABLE {schema}.pending_work (LIKE public.pending_work INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
             PRIMARY KEY (group_id, quote_id)) WITH (fillfactor = 45);
         CREATE INDEX ON {schema}.pending_work (created_at) WHERE stage_state IN ('PENDING', 'RETRY');
         CREATE TABLE {schema}.work_history (LIKE postrider.work_history INCLUDING DEFAULTS INCLUDING INDEXES)"
    )
}

impl Poll {
    pub(crate) async fn run(self) -> Result<()> {
        let mut terminated = on_terminate()?;
        let shared = Arc::new(Shared {
            definitions: self.load.definitions()?,
            key_names: WorkMapping::default().key,
            endpoint: Trivial::new(self.load.call()),
            left: AtomicU64::new(self.load.transitions()),
        });
        let loopers = (0..self.loops).map(|_| Looper::new(&self, Arc::clone(&shared)));
        let loopers = try_join_all(loopers).await?;
        wait_for_go().await?;
        let polling = loopers.into_iter().map(|looper| tokio::spawn(async move { looper.run().await }));
        for ended in join_all(polling).await {
            ended.context(|| "a loop of the poller failed")??;
        }
        say_done(&shared.endpoint)?;
        terminated.recv().await;
        Ok(())
    }
}

impl Looper {
    async fn new(poll: &Poll, shared: Arc<Shared>) -> Result<Self> {
        let session = connect(&poll.url).await?;
        let claim = session.prepare(&claim_statement(&poll.schema, poll.batch)).await;
        let claim = claim.context(|| "cannot prepare the claim")?;
        let outcome = session.prepare(&outcome_statement(&poll.schema, poll.load.history)).await;
        let outcome = outcome.context(|| "cannot prepare the outcome")?;
        Ok(Self { session, claim, outcome, shared })
    }

    /// Until all rows of all loops are done.
    async fn run(&self) -> Result<()> {
        while self.shared.left.load(Ordering::Relaxed) > 0 {
            let rows = self.session.query(&self.claim, &[]).await.context(|| "cannot claim")?;
            if rows.is_empty() {
                sleep(IDLE).await;
                continue;
            }
            let claimed = rows.iter().map(read_claimed).collect::<Result<Vec<_>>>()?;
            let calls = claimed.iter().map(|row| self.call(&row.claim));
            try_join_all(calls).await?;
            self.write(&claimed).await?;
        }
        Ok(())
    }

    async fn call(&self, claim: &Claim) -> Result<()> {
        let Shared { definitions, key_names, endpoint, .. } = &*self.shared;
        let step = definitions.step(claim.definition.as_ref(), &claim.stage);
        let policy = definitions.policy(&step).map_err(|gone| Error::new(gone.reason(&step)))?;
        let call = stage_call(policy, &step.definition, key_names, claim, Timestamp::default());
        match endpoint.call(call.map_err(Error::new)?).await {
            Outcome::Answered(answer) if answer.status == 200 => Ok(()),
            other => Err(Error::new(format!("a stage was not done: {other:?}"))),
        }
    }

    async fn write(&self, claimed: &[Claimed]) -> Result<()> {
        let part =
            |index: usize| -> Vec<&str> { claimed.iter().filter_map(|row| row.claim.key.parts().nth(index)).collect() };
        let (groups, quotes) = (part(0), part(1));
        let fences: Vec<i64> = claimed.iter().map(|row| row.claim.fence).collect();
        let nexts: Vec<Option<&str>> = claimed.iter().map(|row| self.next(&row.claim.stage)).collect();
        let stages: Vec<&str> = claimed.iter().map(|row| row.claim.stage.as_str()).collect();
        let times: Vec<SystemTime> = claimed.iter().map(|row| row.claimed_at).collect();
        let all: [&(dyn ToSql + Sync); 6] = [&groups, &quotes, &fences, &nexts, &stages, &times];
        let parameters = &all[..self.outcome.params().len()];
        let written = self.session.execute(&self.outcome, parameters).await.context(|| "cannot write outcomes")?;
        if written != claimed.len() as u64 {
            return Err(Error::new(format!("{written} of {} outcomes were written", claimed.len())));
        }
        self.shared.left.fetch_sub(written, Ordering::Relaxed);
        Ok(())
    }

    fn next(&self, stage: &StageName) -> Option<&str> {
        let definitions = &self.shared.definitions;
        match definitions.policy(&definitions.step(None, stage)).ok()?.next.first()? {
            Next::Stage(next) => Some(next.as_str()),
            Next::End => None,
        }
    }
}

fn read_claimed(row: &Row) -> Result<Claimed> {
    let (group, quote, stage): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
    let (fence, attempt, epoch): (i64, i32, i32) = (row.get(3), row.get(4), row.get(5));
    let number = |number: i32| u32::try_from(number).context(|| "cannot read a count");
    let claim = Claim {
        key: WorkKey::new([group, quote]),
        stage: StageName::new(stage),
        fence,
        attempt: number(attempt)?,
        deferrals: 0,
        epoch: number(epoch)?,
        definition: row.get::<_, Option<&str>>(6).map(DefinitionName::new),
        payload: row.get::<_, &str>(7).into(),
        was_sent: false,
        key_expired: None,
        payload_changed: false,
        version: None,
    };
    Ok(Claimed { claim, claimed_at: row.get(8) })
}

/// Rows are found again by their place, which their lock keeps.
fn claim_statement(schema: &str, batch: u32) -> String {
    format!(
        "WITH due AS MATERIALIZED (
             SELECT ctid AS place FROM {schema}.pending_work
             WHERE stage_state IN ('PENDING', 'RETRY') AND (next_attempt_at IS NULL OR next_attempt_at <= now())
             ORDER BY created_at LIMIT {batch} FOR NO KEY UPDATE SKIP LOCKED)
         UPDATE {schema}.pending_work AS w
         SET stage_state = 'RUNNING', fence = fence + 1, attempt_count = attempt_count + 1, lease_owner = '{OWNER}',
             lease_until = now() + interval '1 minute', updated_at = now(),
             request_hash = coalesce(request_hash, sha256(convert_to(payload::text, 'UTF8')))
         FROM due WHERE w.ctid = due.place
         RETURNING w.group_id, w.quote_id, w.stage, w.fence, w.attempt_count, w.epoch, w.definition, w.payload::text, w.updated_at"
    )
}

/// Parameters: group_id, quote_id, fence, next stage; for the history also the stage, and when it was claimed.
fn outcome_statement(schema: &str, history: bool) -> String {
    let (further, named) = if history { (", $5::text[], $6::timestamptz[]", ", stage, claimed_at") } else { ("", "") };
    let update = format!(
        "UPDATE {schema}.pending_work AS w
         SET stage = coalesce(d.next, w.stage), stage_state = CASE WHEN d.next IS NULL THEN 'DONE' ELSE 'PENDING' END,
             attempt_count = CASE WHEN d.next IS NULL THEN w.attempt_count ELSE 0 END, request_hash = NULL,
             closed_at = CASE WHEN d.next IS NULL THEN now() END, lease_until = NULL, lease_owner = NULL, updated_at = now()
         FROM unnest($1::text[], $2::text[], $3::int8[], $4::text[]{further}) AS d (group_id, quote_id, fence, next{named})
         WHERE w.group_id = d.group_id AND w.quote_id = d.quote_id AND w.fence = d.fence
           AND w.stage_state = 'RUNNING' AND w.lease_owner = '{OWNER}'"
    );
    if !history {
        return update;
    }
    format!(
        "WITH written AS ({update}
             RETURNING d.claimed_at, w.fence, w.tableoid::regclass AS work_table, w.epoch, w.attempt_count, w.deferral_count,
                 ARRAY[w.group_id, w.quote_id] AS key, d.stage, w.definition, w.stage AS next_stage, w.stage_state AS next_state)
         INSERT INTO {schema}.work_history (started_at, fence, work_table, epoch, attempt, deferrals, http_status, key, stage, definition,
             owner, outcome, next_stage, next_state)
         SELECT claimed_at, fence, work_table, epoch, attempt_count, deferral_count, 200, key, stage, definition,
             '{OWNER}', 'done', next_stage, next_state FROM written"
    )
}
