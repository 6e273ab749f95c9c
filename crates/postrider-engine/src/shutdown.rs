//! The one signal to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Asks the engine to end in good order; clones share the request.
///
/// Who waits is woken in the order of waiting, so that a simulated run repeats itself; a watch channel would wake in any.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    requested: AtomicBool,
    news: Notify,
}

impl Shutdown {
    pub fn request(&self) {
        self.shared.requested.store(true, Ordering::Release);
        self.shared.news.notify_waiters();
    }

    pub fn is_requested(&self) -> bool {
        self.shared.requested.load(Ordering::Acquire)
    }

    /// Returns once the request was made.
    pub async fn requested(&self) {
        // Made before the look, so that a request between the two is not missed.
        let news = self.shared.news.notified();
        if !self.is_requested() {
            news.await;
        }
    }
}
