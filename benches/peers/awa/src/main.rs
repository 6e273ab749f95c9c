//! The peer awa of the benches `stages` and `latency`: `PROGRAM VERB JSON`.
//!
//! - `set-up` makes the tables.
//! - `fill` empties them, and adds the jobs that are due when a turn begins.
//! - `work` does them: it says `ready`, waits for a line, and says what it did when the last completion is written.
//! - `serve` hands each job to the endpoint until it is told to end.
//!
//! It uses nothing but what the package offers to everybody. A pause of the queue holds back the first claim until the turn begins.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use awa::{
    Client, InsertOpts, InsertParams, JobContext, JobError, JobResult, QueueConfig, QueueStorage, QueueStorageConfig,
    Worker, admin, migrations,
};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc, oneshot};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const QUEUE: &str = "work";

const STAGES: [&str; 4] = ["STAGE_1", "STAGE_2", "STAGE_3", "STAGE_4"];

/// One statement has at most 65,535 parameters, and a job takes 18.
const INSERT_JOBS_MAX: usize = 1_000;

const SHUTDOWN_WITHIN: Duration = Duration::from_secs(10);

/// How often the completions are counted once all calls have been made.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// All that ended, whether its segment was pruned already or not: the sum that the package's own exact count of a queue makes.
const ENDED: &str = "SELECT ((SELECT coalesce(sum(live_terminal_count), 0) FROM awa.queue_terminal_live_counts)
    + (SELECT coalesce(sum(terminal_delta), 0) FROM awa.queue_terminal_count_deltas)
    + (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)
    + (SELECT coalesce(sum(pruned_completed_count), 0) FROM awa.queue_terminal_rollups))::bigint";

/// What the bench says.
struct Settings(Value);

impl Settings {
    fn number(&self, name: &str) -> Result<u64> {
        self.0[name].as_u64().ok_or_else(|| format!("{name} is missing").into())
    }

    fn text(&self, name: &str) -> Result<&str> {
        self.0[name].as_str().ok_or_else(|| format!("{name} is missing").into())
    }

    /// Connections as a process that has run for a while has them.
    async fn pool(&self) -> Result<PgPool> {
        let connections = u32::try_from(self.number("connections")?)?;
        let options = PgPoolOptions::new().max_connections(connections).min_connections(connections);
        Ok(options.connect(self.text("url")?).await?)
    }

    fn queue(&self) -> Result<QueueConfig> {
        Ok(QueueConfig {
            max_workers: u32::try_from(self.number("workers")?)?,
            claimers: u16::try_from(self.number("claimers")?)?,
            poll_interval: Duration::from_millis(self.number("poll_ms")?),
            ..QueueConfig::default()
        })
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let verb = words.next().ok_or("the verb is missing")?;
    let settings = Settings(serde_json::from_str(&words.next().ok_or("the settings are missing")?)?);
    match verb.as_str() {
        "set-up" => set_up(&settings).await,
        "fill" => fill(&settings).await,
        "work" => work(&settings).await,
        "serve" => serve(&settings).await,
        other => Err(format!("there is no verb {other}").into()),
    }
}

async fn set_up(settings: &Settings) -> Result<()> {
    let pool = settings.pool().await?;
    migrations::run(&pool).await?;
    Ok(store()?.install(&pool).await?)
}

fn store() -> Result<QueueStorage> {
    Ok(QueueStorage::new(QueueStorageConfig::default())?)
}

async fn fill(settings: &Settings) -> Result<()> {
    let (pool, store, group_rows) = (settings.pool().await?, store()?, settings.number("group_rows")?);
    store.reset(&pool).await?;
    let job = |row: u64| {
        let args = json!({
            "group_id": format!("g{:011}", row / group_rows),
            "quote_id": format!("{row:08}"),
            "premium": 100.50,
        });
        insertion(STAGES[0], args)
    };
    let jobs: Vec<InsertParams> = (0..settings.number("rows")?).map(job).collect();
    for chunk in jobs.chunks(INSERT_JOBS_MAX) {
        store.enqueue_params_batch(&pool, chunk).await?;
    }
    Ok(())
}

fn insertion(stage: &str, args: Value) -> InsertParams {
    InsertParams { kind: stage.to_owned(), args, opts: InsertOpts { queue: QUEUE.to_owned(), ..InsertOpts::default() } }
}

/// The endpoint of `stages`: a call ends in the process itself.
#[derive(Default)]
struct Trivial {
    calls: AtomicU64,
    in_flight: AtomicU64,
    peak: AtomicU64,
    wanted: u64,
    all_called: Notify,
}

impl Trivial {
    async fn call(&self) {
        let in_flight = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak.fetch_max(in_flight, Ordering::Relaxed);
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        if self.calls.fetch_add(1, Ordering::Relaxed) + 1 == self.wanted {
            self.all_called.notify_one();
        }
    }
}

/// One stage: its call, and then the job of the next one.
struct Stage {
    name: &'static str,
    next: Option<&'static str>,
    endpoint: Arc<Trivial>,
    adding: Adding,
}

#[async_trait::async_trait]
impl Worker for Stage {
    fn kind(&self) -> &'static str {
        self.name
    }

    async fn perform(&self, context: &JobContext) -> Result<JobResult, JobError> {
        self.endpoint.call().await;
        if let Some(next) = self.next {
            self.adding.add(insertion(next, context.job.args.clone())).await.map_err(JobError::retryable_msg)?;
        }
        Ok(JobResult::Completed)
    }
}

/// A job to add, and who waits for its commit.
type Asked = (InsertParams, oneshot::Sender<()>);

/// Adds jobs with one statement for all that ask while another is under way. Each caller waits until its own is committed. The package can add a
/// job in the transaction that completes another, but then completes each job by itself.
#[derive(Clone)]
struct Adding(mpsc::UnboundedSender<Asked>);

impl Adding {
    fn start(pool: PgPool, store: QueueStorage) -> Self {
        let (ask, mut asked) = mpsc::unbounded_channel::<Asked>();
        tokio::spawn(async move {
            let mut batch = Vec::new();
            while asked.recv_many(&mut batch, INSERT_JOBS_MAX).await > 0 {
                let (jobs, waiting): (Vec<_>, Vec<_>) = batch.drain(..).unzip();
                match store.enqueue_params_batch(&pool, &jobs).await {
                    Ok(_) => waiting.into_iter().for_each(answer),
                    Err(error) => eprintln!("cannot add jobs: {error}"),
                }
            }
        });
        Self(ask)
    }

    async fn add(&self, job: InsertParams) -> Result<(), &'static str> {
        let (tell, told) = oneshot::channel();
        self.0.send((job, tell)).map_err(|_| "nobody adds jobs")?;
        told.await.map_err(|_| "the job was not added")
    }
}

fn answer(waiting: oneshot::Sender<()>) {
    // A worker that does not wait any more needs none.
    let _ = waiting.send(());
}

async fn work(settings: &Settings) -> Result<()> {
    let mut terminated = on_terminate()?;
    let pool = settings.pool().await?;
    let stages = usize::try_from(settings.number("stages")?)?;
    let wanted = settings.number("rows")? * settings.number("stages")?;
    let endpoint = Arc::new(Trivial { wanted, ..Trivial::default() });
    let adding = Adding::start(pool.clone(), store()?);
    let mut builder = Client::builder(pool.clone()).queue(QUEUE, settings.queue()?);
    for number in 0..stages {
        let name = STAGES.get(number).copied().ok_or("there are at most four stages")?;
        let next = STAGES.get(number + 1).copied().filter(|_| number + 1 < stages);
        builder = builder.register_worker(Stage { name, next, endpoint: endpoint.clone(), adding: adding.clone() });
    }
    let client = builder.build()?;
    admin::pause_queue(&pool, QUEUE, None).await?;
    client.start().await?;
    println!("ready");
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    admin::resume_queue(&pool, QUEUE).await?;
    sqlx::query("SELECT pg_notify($1, '')").bind(format!("awa:{QUEUE}")).execute(&pool).await?;
    endpoint.all_called.notified().await;
    while sqlx::query_scalar::<_, i64>(ENDED).fetch_one(&pool).await? < i64::try_from(wanted)? {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let (calls, peak) = (endpoint.calls.load(Ordering::Relaxed), endpoint.peak.load(Ordering::Relaxed));
    println!("{}", json!({ "calls": calls, "peak": peak }));
    terminated.recv().await;
    client.shutdown(SHUTDOWN_WITHIN).await;
    pool.close().await;
    Ok(())
}

/// Posts as the other sides do: one request for each job, over connections that stay.
struct Post {
    endpoint: Uri,
    client: HttpClient<HttpConnector, Full<Bytes>>,
}

#[async_trait::async_trait]
impl Worker for Post {
    fn kind(&self) -> &'static str {
        STAGES[0]
    }

    async fn perform(&self, context: &JobContext) -> Result<JobResult, JobError> {
        match self.post(context.job.args.to_string()).await {
            Ok(StatusCode::OK) => Ok(JobResult::Completed),
            Ok(other) => Err(JobError::retryable_msg(format!("the endpoint said {other}"))),
            Err(error) => Err(JobError::retryable_msg(error.to_string())),
        }
    }
}

impl Post {
    async fn post(&self, body: String) -> Result<StatusCode> {
        let request = Request::post(self.endpoint.clone()).header("content-type", "application/json");
        let response = self.client.request(request.body(Full::from(body))?).await?;
        let status = response.status();
        response.into_body().collect().await?;
        Ok(status)
    }
}

async fn serve(settings: &Settings) -> Result<()> {
    let mut terminated = on_terminate()?;
    let pool = settings.pool().await?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = HttpClient::builder(TokioExecutor::new()).build(connector);
    let post = Post { endpoint: settings.text("endpoint")?.parse()?, client };
    let builder = Client::builder(pool.clone()).queue(QUEUE, settings.queue()?).register_worker(post);
    let client = builder.build()?;
    client.start().await?;
    println!("ready");
    terminated.recv().await;
    client.shutdown(SHUTDOWN_WITHIN).await;
    pool.close().await;
    Ok(())
}

fn on_terminate() -> Result<Signal> {
    Ok(signal(SignalKind::terminate())?)
}
