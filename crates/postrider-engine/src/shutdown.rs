//! The one signal to end.

use tokio::sync::watch;

/// Asks the engine to end in good order; clones share the request.
#[derive(Debug, Clone)]
pub struct Shutdown {
    requested: std::sync::Arc<watch::Sender<bool>>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Shutdown { requested: std::sync::Arc::new(watch::Sender::new(false)) }
    }
}

impl Shutdown {
    pub fn request(&self) {
        self.requested.send_replace(true);
    }

    pub fn is_requested(&self) -> bool {
        *self.requested.borrow()
    }

    /// Returns once the request was made.
    pub async fn requested(&self) {
        let mut receiver = self.requested.subscribe();
        // The sender lives in `self`, so the only way out is the request.
        let _ = receiver.wait_for(|requested| *requested).await;
    }
}
