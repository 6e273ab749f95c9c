//! The user's side: one transaction for each quote, with the business row, the work row and the outbox event.

use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_postgres::Client;

use super::progress::Progress;
use crate::error::{Context, Result};

/// Submits quotes at an even pace, never more than are allowed so far.
#[derive(Debug)]
pub(super) struct Submission {
    client: Client,
    quotes: u32,
    allowed: watch::Receiver<u32>,
}

/// A quote whose transaction is committed, and when the commit returned.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    pub(super) group_id: String,
    pub(super) quote_id: String,
    pub(super) returned_at: SystemTime,
}

/// The time from one quote to the next.
const PACE: Duration = Duration::from_millis(20);

/// How many groups there are; the events of one group have an order.
const GROUPS: u32 = 40;

const INSERT_QUOTE: &str = "INSERT INTO quoting.quotes (group_id, quote_id) VALUES ($1, $2)";
const INSERT_WORK: &str = "
    INSERT INTO pending_work (group_id, quote_id, stage, stage_state, definition, payload)
    VALUES ($1, $2, 'PRICING', 'PENDING', 'quoting@1', jsonb_build_object('insured', $2::text, 'sum', 1000 + $3::bigint))";
const INSERT_EVENT: &str = "
    INSERT INTO outbox_event (aggregate_key, event_type, payload)
    VALUES ($1, 'quote.submitted', jsonb_build_object('quote_id', $2::text, 'seq', $3::bigint))";

impl Submission {
    pub(super) fn over(client: Client, quotes: u32, allowed: watch::Receiver<u32>) -> Self {
        Self { client, quotes, allowed }
    }

    /// Submits all quotes and returns them in commit order.
    pub(super) async fn run(mut self, progress: Progress) -> Result<Vec<Commit>> {
        let prepare = async |sql| self.client.prepare(sql).await.context(|| "cannot prepare the submission");
        let statements = [prepare(INSERT_QUOTE).await?, prepare(INSERT_WORK).await?, prepare(INSERT_EVENT).await?];
        let mut commits = Vec::new();
        let mut next = Instant::now();
        for number in 0..self.quotes {
            self.allowed.wait_for(|allowed| *allowed > number).await.context(|| "the submission was given up")?;
            // After a pause the pace goes on from now; nothing is caught up in a burst.
            next = Instant::now().max(next + PACE);
            sleep_until(next).await;
            let group_id = format!("group-{:02}", number % GROUPS);
            let quote_id = format!("quote-{number:05}");
            let sequence = i64::from(number);
            let transaction = self.client.transaction().await.context(|| "cannot begin a submission")?;
            for (statement, of_the_quote_alone) in statements.iter().zip([true, false, false]) {
                let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&group_id, &quote_id, &sequence];
                let used = if of_the_quote_alone { &parameters[..2] } else { &parameters[..] };
                transaction.execute(statement, used).await.context(|| "cannot submit a quote")?;
            }
            transaction.commit().await.context(|| "cannot commit a submission")?;
            commits.push(Commit { group_id, quote_id, returned_at: SystemTime::now() });
            progress.submitted(number + 1);
        }
        Ok(commits)
    }
}
