//! The other sides of `latency`: pollers. Each claims in batches with SKIP LOCKED and a partial index, calls concurrently through the same HTTP
//! client as ours, and writes outcomes in batches; they differ in what wakes them, and in whether they look again before a batch has ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use futures_util::future::join_all;
use futures_util::stream::{StreamExt as _, poll_fn};
use postrider_core::outcome::Outcome;
use postrider_core::ports::{StageCall, StageCaller};
use postrider_core::stage::Step;
use postrider_core::time::Timestamp;
use postrider_core::trace::Trace;
use postrider_core::work::{DefinitionName, StageName, WorkKey};
use postrider_delivery::{Endpoint, HttpSettings, HttpStageCaller};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{MissedTickBehavior, interval};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Row, Statement};
use xtask::error::{Context, Error, Result};

use crate::process::on_terminate;
use crate::server::connect;

/// The channel that the trigger notifies.
pub(super) const CHANNEL: &str = "work";

/// What the calls say that their rows are under; nobody asks.
const DEFINITION: &str = "quoting@1";

const CLAIM_ROWS_MAX: usize = 64;

/// What a poller polls, and when.
#[derive(Debug, Args)]
pub(super) struct Poll {
    #[arg(long)]
    url: String,
    #[arg(long)]
    table: String,
    #[arg(long)]
    wake: Wake,
    /// Look for further work while a batch is under way, and write outcomes on a session of their own.
    #[arg(long)]
    pipelined: bool,
    #[arg(long)]
    endpoint: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Wake {
    /// At each notification.
    Notify,
    /// Once a second.
    Second,
}

/// The key of a row whose stage is done.
type Done = (String, String);

impl Poll {
    /// Polls until it is killed.
    pub(super) async fn run(self) -> Result<()> {
        let mut terminated = on_terminate()?;
        let looker = Looker::new(&self).await?;
        let outcomes = Outcomes::new(&self.url, &self.table).await?;
        let wakes = self.wakes().await?;
        let polling = async {
            if self.pipelined {
                looker.pipelined(wakes, outcomes).await
            } else {
                looker.batch_by_batch(wakes, &outcomes).await
            }
        };
        tokio::select! {
            _ = terminated.recv() => Ok(()),
            failed = polling => failed,
        }
    }

    async fn wakes(&self) -> Result<UnboundedReceiver<()>> {
        let (wake, wakes) = unbounded_channel();
        match self.wake {
            Wake::Notify => listen(&self.url, wake).await?,
            Wake::Second => {
                tokio::spawn(async move {
                    let mut ticks = interval(Duration::from_secs(1));
                    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                    while wake.send(()).is_ok() {
                        ticks.tick().await;
                    }
                });
            }
        }
        Ok(wakes)
    }
}

/// Who looks for due rows and has their stage done.
struct Looker {
    stage: StageName,
    caller: Arc<HttpStageCaller>,
    session: Client,
    claim: Statement,
}

impl Looker {
    async fn new(poll: &Poll) -> Result<Self> {
        let stage = StageName::new("PRICING");
        let endpoint = Endpoint::parse(&poll.endpoint).context(|| "cannot read the endpoint's address")?;
        let endpoints =
            BTreeMap::from([(Step { definition: DefinitionName::new(DEFINITION), stage: stage.clone() }, endpoint)]);
        let caller = HttpStageCaller::new(endpoints, &HttpSettings::default());
        let caller = Arc::new(caller.context(|| "cannot make the HTTP client")?);
        let session = connect(&poll.url).await?;
        let claim = session.prepare(&claim_statement(&poll.table)).await.context(|| "cannot prepare the claim")?;
        Ok(Self { stage, caller, session, claim })
    }

    /// One loop: a batch is claimed, called and written before the next look.
    async fn batch_by_batch(&self, mut wakes: UnboundedReceiver<()>, outcomes: &Outcomes) -> Result<()> {
        loop {
            let calls = self.claim().await?;
            let found = calls.len();
            let done: Vec<Done> = join_all(calls).await.into_iter().flatten().collect();
            outcomes.write(&done).await?;
            self.wait(found, &mut wakes).await?;
        }
    }

    /// The next look waits for no call, and outcomes go their own way.
    async fn pipelined(&self, mut wakes: UnboundedReceiver<()>, outcomes: Outcomes) -> Result<()> {
        let (done, mut dones) = unbounded_channel();
        tokio::spawn(async move {
            let mut batch = Vec::new();
            while dones.recv_many(&mut batch, CLAIM_ROWS_MAX).await > 0 {
                outcomes.write(&batch).await?;
                batch.clear();
            }
            Ok::<(), Error>(())
        });
        loop {
            let calls = self.claim().await?;
            let found = calls.len();
            for call in calls {
                let done = done.clone();
                // Without a receiver the process is ending.
                tokio::spawn(async move { call.await.map(|key| done.send(key)) });
            }
            self.wait(found, &mut wakes).await?;
        }
    }

    /// Claims what is due, and gives the calls to make.
    async fn claim(&self) -> Result<Vec<impl Future<Output = Option<Done>> + use<>>> {
        let rows = self.session.query(&self.claim, &[]).await.context(|| "cannot claim")?;
        let calls = rows.iter().map(|row| {
            let call = call_of(&self.stage, row)?;
            Ok(request(Arc::clone(&self.caller), call, (row.get(0), row.get(1))))
        });
        calls.collect()
    }

    /// Waits to be woken, unless a full batch says that there is more.
    async fn wait(&self, found: usize, wakes: &mut UnboundedReceiver<()>) -> Result<()> {
        if found < CLAIM_ROWS_MAX {
            wakes.recv().await.ok_or_else(|| Error::new("nothing wakes the poller any more"))?;
            // One look serves all who called until now.
            while wakes.try_recv().is_ok() {}
        }
        Ok(())
    }
}

/// The session that writes outcomes.
struct Outcomes {
    session: Client,
    update: Statement,
}

impl Outcomes {
    async fn new(url: &str, table: &str) -> Result<Self> {
        let update = format!(
            "UPDATE {table} AS w SET stage_state = 'DONE', closed_at = now(), lease_until = NULL, lease_owner = NULL, updated_at = now()
             FROM unnest($1::text[], $2::text[]) AS d (group_id, quote_id)
             WHERE w.group_id = d.group_id AND w.quote_id = d.quote_id AND w.stage_state = 'RUNNING' AND w.lease_owner = 'poller'"
        );
        let session = connect(url).await?;
        let update = session.prepare(&update).await.context(|| "cannot prepare the checkpoint")?;
        Ok(Self { session, update })
    }

    async fn write(&self, done: &[Done]) -> Result<()> {
        if done.is_empty() {
            return Ok(());
        }
        let (groups, quotes): (Vec<&str>, Vec<&str>) =
            done.iter().map(|(group, quote)| (group.as_str(), quote.as_str())).unzip();
        self.session.execute(&self.update, &[&groups, &quotes]).await.context(|| "cannot write outcomes")?;
        Ok(())
    }
}

fn claim_statement(table: &str) -> String {
    format!(
        "WITH due AS (
             SELECT group_id, quote_id FROM {table}
             WHERE stage_state IN ('PENDING', 'RETRY') AND (next_attempt_at IS NULL OR next_attempt_at <= now())
             ORDER BY created_at LIMIT {CLAIM_ROWS_MAX} FOR NO KEY UPDATE SKIP LOCKED)
         UPDATE {table} AS w
         SET stage_state = 'RUNNING', fence = fence + 1, attempt_count = attempt_count + 1, lease_owner = 'poller',
             lease_until = now() + interval '1 minute', updated_at = now(),
             request_hash = sha256(convert_to(payload::text, 'UTF8'))
         FROM due WHERE w.group_id = due.group_id AND w.quote_id = due.quote_id
         RETURNING w.group_id, w.quote_id, w.attempt_count, w.fence, w.epoch, w.payload::text"
    )
}

fn call_of(stage: &StageName, row: &Row) -> Result<StageCall> {
    let (group, quote): (&str, &str) = (row.get(0), row.get(1));
    let (attempt, fence, epoch): (i32, i64, i32) = (row.get(2), row.get(3), row.get(4));
    let payload: &str = row.get(5);
    let body = format!(
        r#"{{"group_id":"{group}","quote_id":"{quote}","stage":"{}","epoch":{epoch},"payload":{payload}}}"#,
        stage.as_str()
    );
    Ok(StageCall {
        stage: stage.clone(),
        idempotency_key: format!("{group}/{quote}/{}/{epoch}", stage.as_str()),
        attempt: u32::try_from(attempt).context(|| "cannot read the attempt")?,
        fence,
        definition: DefinitionName::new(DEFINITION),
        trace: Trace::of(&WorkKey::new([group, quote]), stage, 0, fence),
        made_at: Timestamp::default(),
        timeout: Duration::from_secs(30),
        body: body.into(),
    })
}

async fn request(caller: Arc<HttpStageCaller>, call: StageCall, key: Done) -> Option<Done> {
    match caller.call(call).await {
        Outcome::Answered(answer) if answer.status == 200 => Some(key),
        other => {
            eprintln!("a stage was not done: {other:?}");
            None
        }
    }
}

/// Listens on a session of its own; each notification wakes.
async fn listen(url: &str, wake: UnboundedSender<()>) -> Result<()> {
    let config: Config = url.parse().context(|| "cannot read the database's address")?;
    let (client, mut connection) = config.connect(NoTls).await.context(|| "cannot connect to the database")?;
    tokio::spawn(async move {
        let mut messages = poll_fn(move |context| connection.poll_message(context));
        while let Some(Ok(message)) = messages.next().await {
            if matches!(message, AsyncMessage::Notification(_)) && wake.send(()).is_err() {
                break;
            }
        }
    });
    client.batch_execute(&format!("LISTEN {CHANNEL}")).await.context(|| "cannot listen")?;
    // The session ends with its client.
    std::mem::forget(client);
    Ok(())
}
