//! What: keeps how far each consumer is.
//! Where: after *write*, before *confirm*.
//! Takes and gives: settled positions from the consumers; the ledger that the frontier reads and that is saved.
//! Never: moves a consumer back.

use postrider_core::position::{Lsn, Position};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The ledger; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    settled: Mutex<BTreeMap<Arc<str>, Settled>>,
    changed: Notify,
}

/// One consumer's progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Everything at or before is settled.
    pub(crate) position: Position,
    /// Nothing that ends at or before is still needed.
    pub(crate) end: Lsn,
}

impl Settled {
    /// Both what was and what is now: neither moves back.
    #[must_use]
    pub(crate) fn and(self, now: Settled) -> Settled {
        Settled { position: self.position.max(now.position), end: self.end.max(now.end) }
    }
}

impl Ledger {
    /// The consumer has settled more.
    pub(crate) fn settle(&self, consumer: &Arc<str>, settled: Settled) {
        let mut ledger = self.lock();
        if let Some(held) = ledger.get(consumer) {
            assert!(held.position <= settled.position && held.end <= settled.end, "a consumer moved back");
        }
        ledger.insert(consumer.clone(), settled);
        drop(ledger);
        self.shared.changed.notify_one();
    }

    /// Everybody's progress.
    pub(crate) fn all(&self) -> BTreeMap<Arc<str>, Settled> {
        self.lock().clone()
    }

    /// Waits until somebody settled more since the last call. For one caller.
    pub(crate) async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Settled>> {
        // The map is changed by single inserts: whole even if a holder panicked.
        self.shared.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
