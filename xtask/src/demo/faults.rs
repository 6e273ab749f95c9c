//! What is done to the orchestrator: SIGKILL at random points, always while it works, and started again at once.

use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use super::house::House;
use super::progress::Progress;
use super::record::Record;
use crate::error::{Error, Result};
use crate::workspace::PATIENCE;

/// The kills of a run, and how they let the submission go on.
#[derive(Debug)]
pub(super) struct Faults {
    pub(super) seed: u64,
    pub(super) kills: u32,
    pub(super) quotes: u32,
    /// How many quotes may be submitted by now.
    pub(super) allow: watch::Sender<u32>,
    /// The server process that the orchestrator reads the log through.
    pub(super) reader: Option<i32>,
}

/// The orchestrator is killed this long after it was seen to work again, at the least and at the most.
const DELAY_MS: std::ops::Range<u64> = 100..900;

impl Faults {
    /// Lets a part of the quotes run in peace, then kills as often as asked. Returns how many kills there were.
    pub(super) async fn run(mut self, house: &mut House, record: &Record, progress: &Progress) -> Result<i64> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let in_peace = self.quotes / 5;
        self.allow_up_to(in_peace);
        progress.wait_for_submitted(in_peace).await;
        let mut seen = 0;
        for number in 1..=self.kills {
            // Each kill has quotes of its own under way, however long the restart took.
            self.allow_up_to(in_peace + (self.quotes - in_peace) * number / self.kills);
            wait_for_request_after(seen, house, record).await?;
            tokio::time::sleep(Duration::from_millis(random.u64(DELAY_MS))).await;
            house.orchestrator_still_runs()?;
            let at = SystemTime::now();
            house.kill_orchestrator()?;
            seen = record.last_request().await?;
            house.spawn_orchestrator()?;
            record.write_kill(number.into(), at).await?;
            progress.killed(number);
            self.reader = house.wait_until_reading(self.reader).await?;
        }
        self.allow_up_to(self.quotes);
        Ok(self.kills.into())
    }

    fn allow_up_to(&self, quotes: u32) {
        self.allow.send_replace(quotes);
    }
}

/// Waits until the quoting service has received a further request: the orchestrator works again.
async fn wait_for_request_after(seen: i64, house: &mut House, record: &Record) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while record.last_request().await? <= seen {
        house.orchestrator_still_runs()?;
        if Instant::now() > deadline {
            return Err(Error::new("the orchestrator sent nothing after it was started again"));
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    Ok(())
}
