//! What goes of the history: that of workflows which ended long ago, a stretch at a time.
//!
//! It is walked over once a day, in rounds that come four times an hour, with pauses between the stretches of a round: however much
//! has to go, nobody notices. Nothing waits for it, and an error of it ends nothing.

use crate::shutdown::Shutdown;
use crate::world::World;
use postrider_core::error::Result;
use postrider_core::ports::WorkTable;
use std::sync::Arc;
use std::time::Duration;

/// Between two rounds.
const ROUND: Duration = Duration::from_secs(15 * 60);

/// So many rounds walk over everything.
const ROUNDS: u64 = 96;

/// The longest pause between two stretches of a round.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What purging works with.
#[derive(Debug)]
pub(crate) struct Purging {
    pub(crate) table: Arc<dyn WorkTable>,
    /// How long the history of a workflow is kept after its end.
    pub(crate) retention: Duration,
    pub(crate) world: Arc<dyn World>,
}

impl Purging {
    /// Purges until `stop`.
    pub(crate) async fn run(self, stop: Shutdown) -> Result<()> {
        let rounds = async {
            let mut stretch = 0;
            loop {
                self.world.sleep(ROUND).await;
                stretch = self.round(stretch).await;
            }
        };
        tokio::select! {
            biased;
            () = stop.requested() => Ok(()),
            never = rounds => never,
        }
    }

    /// One round from a stretch on. Returns where the next begins.
    async fn round(&self, mut stretch: u64) -> u64 {
        let (mut done, mut rows) = (0, 0);
        loop {
            let purged = match self.table.purge_history(self.retention, stretch).await {
                Ok(purged) => purged,
                Err(error) => {
                    tracing::warn!(
                        error = error.report(),
                        "the history cannot be purged; it is tried again in a quarter of an hour"
                    );
                    return stretch;
                }
            };
            rows += purged.rows;
            done += 1;
            let (count, pause) = pace(purged.stretches);
            stretch += 1;
            if stretch >= purged.stretches {
                stretch = 0;
            }
            if stretch == 0 || done >= count {
                tracing::debug!(rows, stretches = done, "purged what is old of the history");
                return stretch;
            }
            self.world.sleep(pause).await;
        }
    }
}

/// How many stretches a round walks over, where there are so many in all, and the pause after each.
fn pace(stretches: u64) -> (u64, Duration) {
    let count = stretches.div_ceil(ROUNDS).max(1);
    // Half of the round is left for the work itself.
    let pause = ROUND / 2 / u32::try_from(count).unwrap_or(u32::MAX);
    (count, pause.min(PAUSE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_walked_over_in_a_day_and_never_in_a_burst() {
        assert_eq!(pace(0), (1, PAUSE_MAX));
        assert_eq!(pace(96), (1, PAUSE_MAX));
        assert_eq!(pace(97), (2, PAUSE_MAX));
        // 200 GB of history, in stretches of a mebibyte.
        let (count, pause) = pace(200_000);
        assert!(count * ROUNDS >= 200_000 && count * ROUNDS < 201_000, "{count}");
        assert!(pause * u32::try_from(count).expect("a small number") <= ROUND / 2, "{pause:?}");
    }
}
