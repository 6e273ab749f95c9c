//! What: keeps events back until any session can see their transactions (case P-18).
//! Where: between *batch* and *write*, for the sinks that read back what an event tells of.
//! Takes and gives: transaction ids in commit order; how many from the front a new snapshot sees.
//! Never: asks the server about a transaction that this batch's last snapshot sees already.

use postrider_core::error::Result;
use postrider_core::ports::Primary;
use postrider_core::snapshot::Snapshot;
use postrider_core::stage::Backoff;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at a commit that is kept back.
const LOOK_PAUSE: Backoff = Backoff { first: Duration::from_millis(2), max: Duration::from_secs(1) };

/// What others were seen to see last.
#[derive(Debug)]
pub(crate) struct Sight {
    primary: Arc<dyn Primary>,
    snapshot: Snapshot,
    looks: u32,
}

impl Sight {
    pub(crate) fn new(primary: Arc<dyn Primary>) -> Sight {
        Sight { primary, snapshot: Snapshot::default(), looks: 0 }
    }

    /// A batch begins. What was seen before says nothing for sure any more: ids come round, and a promoted server uses some again.
    pub(crate) fn forget(&mut self) {
        self.snapshot = Snapshot::default();
        self.looks = 0;
    }

    /// How many of these transactions, from the front, are visible for sure. An id of 0 stands for one that always is.
    pub(crate) fn seen(&mut self, xids: &[u32]) -> usize {
        let seen = xids.iter().take_while(|xid| **xid == 0 || self.snapshot.sees(**xid)).count();
        if seen > 0 {
            self.looks = 0;
        }
        seen
    }

    /// Looks anew.
    pub(crate) async fn look(&mut self) -> Result<()> {
        self.snapshot = self.primary.snapshot().await?;
        self.looks = self.looks.saturating_add(1);
        Ok(())
    }

    /// How long to wait before the next look, after looks that did not help. The first comes at once.
    pub(crate) fn pause(&self) -> Duration {
        LOOK_PAUSE.pause(self.looks)
    }

    /// It takes longer than commits do when all is well.
    pub(crate) fn is_kept_waiting(&self) -> bool {
        self.pause() == LOOK_PAUSE.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::members::Presence;
    use postrider_core::ports::{BoxFuture, SlotHealth};
    use postrider_core::position::Lsn;

    /// A server on which everything below 100 is visible.
    #[derive(Debug)]
    struct Calm;

    impl Primary for Calm {
        fn beat(&self, _: Option<Presence>) -> BoxFuture<'_, Result<Lsn>> {
            unreachable!("nobody beats here")
        }

        fn slot(&self) -> BoxFuture<'_, Result<SlotHealth>> {
            unreachable!("nobody asks for the slot here")
        }

        fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot>> {
            Box::pin(async { Ok(Snapshot::parse("100:100:").expect("a snapshot")) })
        }
    }

    #[tokio::test]
    async fn each_batch_is_looked_at_anew() {
        let mut sight = Sight::new(Arc::new(Calm));
        assert_eq!(sight.seen(&[7]), 0);
        sight.look().await.expect("an answer");
        assert_eq!(sight.seen(&[7, 99, 100]), 2);
        sight.forget();
        assert_eq!(sight.seen(&[7]), 0);
        assert_eq!(sight.pause(), Duration::ZERO, "the first look comes at once");
    }
}
