//! `cargo demo`: the main job on real parts, with the orchestrator killed while it works, and a table of what became of it.

mod child;
mod faults;
mod history;
mod house;
mod idle;
mod progress;
mod record;
mod submission;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use tokio::sync::watch;

use self::faults::Faults;
use self::history::Verdict;
use self::house::House;
use self::progress::Progress;
use self::record::Record;
use self::submission::Submission;
use self::table::Table;
use crate::error::{Context, Error, Result};
use crate::workspace;

/// Submit quotes, kill the orchestrator while they run, and count what was lost or doubled.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// How many quotes are submitted.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    quotes: u32,
    /// How often the orchestrator is killed.
    #[arg(long, value_name = "N", default_value_t = 20)]
    kills: u32,
    /// Repeat the faults of an earlier run.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write the table to this file, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write what happened to this file, as lines that `postrider verify-history` reads.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Leave everything running, and say how to look at it.
    #[arg(long)]
    keep: bool,
    /// Take one protection away: the demo must then find doubled effects and fail.
    #[arg(long, value_name = "PROTECTION")]
    sabotage: Option<Sabotage>,
}

/// A protection that can be taken away, to see that the demo notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sabotage {
    /// The quoting service ignores the idempotency key.
    NoKeys,
    /// The fence in the row stays at zero, and the quoting service takes each attempt for a new request.
    NoFence,
}

/// How long the rest may take once everything is submitted and the last kill is done.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

/// The same under sabotage, where nobody waits for what cannot end.
const SABOTAGED_DRAIN_LIMIT: Duration = Duration::from_secs(15);

impl Demo {
    /// Runs the demo and says whether nothing was lost or doubled.
    pub(crate) fn run(self) -> Result<bool> {
        let binaries = build()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context(|| "cannot start the runtime")?;
        runtime.block_on(async {
            tokio::select! {
                outcome = self.play(&binaries) => outcome,
                _ = tokio::signal::ctrl_c() => Err(Error::new("interrupted")),
            }
        })
    }

    async fn play(&self, binaries: &Path) -> Result<bool> {
        let began = Instant::now();
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
        eprintln!("demo: quotes move through four stages while the orchestrator (Postrider) is killed again and again");
        eprintln!("demo: seed {seed}");
        let mut house = House::start(binaries, seed, self.sabotage).await?;
        let outcome = self.perform(&mut house, seed, began).await;
        match outcome {
            Ok((table, verdict)) => {
                println!("{table}");
                self.write_json(&table)?;
                println!("{}", verdict.told);
                let mut losses = table.losses(self.quotes.into(), self.kills.into());
                if !verdict.holds {
                    losses.push("the history breaks a promise".to_owned());
                }
                for loss in &losses {
                    println!("FAILED: {loss}");
                }
                if losses.is_empty() {
                    println!("nothing lost, nothing doubled");
                }
                if self.keep {
                    println!("{}", house.leave_running()?);
                }
                Ok(losses.is_empty())
            }
            Err(error) => Err(error.hint(house.last_words())),
        }
    }

    /// Submits and kills at the same time, waits until all is done, listens to the silence, and reads the table.
    async fn perform(&self, house: &mut House, seed: u64, began: Instant) -> Result<(Table, Verdict)> {
        let record = Record::create(house.connect("demo").await?).await?;
        house.spawn_orchestrator()?;
        let reader = house.wait_until_reading(None).await?;
        let progress = Progress::of(self.quotes, self.kills);
        let (allow, allowed) = watch::channel(0);
        let submission = Submission::over(house.connect("demo").await?, self.quotes, allowed);
        let faults = Faults { seed, kills: self.kills, quotes: self.quotes, allow, reader };
        let watching = tokio::spawn(progress.clone().show(house.connect("demo").await?));
        let submitted = tokio::spawn(submission.run(progress.clone()));
        let kills = faults.run(house, &record, &progress).await?;
        let commits = submitted.await.context(|| "the submission did not end")??;
        record.write_commits(&commits).await?;
        let limit = if self.sabotage.is_some() { SABOTAGED_DRAIN_LIMIT } else { DRAIN_LIMIT };
        let drained = house.wait_until_done(limit).await?;
        watching.abort();
        progress.end();
        if !drained {
            eprintln!("demo: not everything was finished within {limit:?}");
        }
        let idle = idle::statements_per_second(house).await?;
        let counts = record.count().await?;
        let file = self.history.clone().unwrap_or_else(|| house.file("history.jsonl"));
        let verdict = history::verify(&house.connect("demo").await?, &house.program(), &file).await?;
        Ok((Table::of(counts, kills, idle, began.elapsed()), verdict))
    }

    fn write_json(&self, table: &Table) -> Result<()> {
        let Some(path) = &self.json else { return Ok(()) };
        let mut text = serde_json::to_string_pretty(table).context(|| "cannot write the table as JSON")?;
        text.push('\n');
        fs::write(path, text).context(|| format!("cannot write {}", path.display()))
    }
}

impl Sabotage {
    fn name(self) -> &'static str {
        match self {
            Self::NoKeys => "no-keys",
            Self::NoFence => "no-fence",
        }
    }
}

/// Builds what the demo starts, in the profile that we were built in, and returns the folder it is in: our own.
fn build() -> Result<PathBuf> {
    let own = std::env::current_exe().context(|| "cannot find this program")?;
    let binaries = own.parent().ok_or_else(|| Error::new("this program is in no folder"))?.to_path_buf();
    workspace::build_programs(&binaries)?;
    Ok(binaries)
}
