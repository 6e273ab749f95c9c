//! News for many, who are woken in the order in which they wait. (A watch channel wakes in a random order.)

use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub struct Signal {
    count: AtomicU64,
    news: Notify,
}

impl Signal {
    /// Something has changed.
    pub fn raise(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.news.notify_waiters();
    }

    /// How often something has changed.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns once something has changed since the count was `seen`.
    pub async fn changed_since(&self, seen: u64) {
        let news = self.news.notified();
        if self.count() == seen {
            news.await;
        }
    }
}
