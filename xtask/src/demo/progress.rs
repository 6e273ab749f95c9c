//! One line that says how far the run is.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio_postgres::Client;

/// What has happened so far; shared by all that make it happen.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    quotes: u32,
    kills: u32,
    submitted: watch::Sender<u32>,
    killed: Arc<AtomicU32>,
}

const STATE: &str = "
    SELECT (SELECT count(*) FROM pending_work WHERE closed_at IS NOT NULL),
           (SELECT count(*) FROM quoting.requests),
           (SELECT count(*) FROM quoting.event_effects)";

impl Progress {
    pub(super) fn of(quotes: u32, kills: u32) -> Self {
        Self { quotes, kills, submitted: watch::Sender::new(0), killed: Arc::default() }
    }

    pub(super) fn submitted(&self, count: u32) {
        self.submitted.send_replace(count);
    }

    pub(super) fn killed(&self, count: u32) {
        self.killed.store(count, Ordering::Relaxed);
    }

    /// Waits until this many quotes are submitted, or nobody submits any more.
    pub(super) async fn wait_for_submitted(&self, count: u32) {
        let mut submitted = self.submitted.subscribe();
        // The sender is ours, too, so the channel cannot be closed.
        let _ = submitted.wait_for(|submitted| *submitted >= count).await;
    }

    /// Prints the line again and again: in place on a terminal, now and then elsewhere.
    pub(super) async fn show(self, client: Client) {
        let in_place = std::io::stderr().is_terminal();
        let every = Duration::from_millis(if in_place { 200 } else { 3_000 });
        loop {
            tokio::time::sleep(every).await;
            let Ok(row) = client.query_one(STATE, &[]).await else { return };
            let (finished, requests, events): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
            let line = format!(
                "submitted {}/{}  finished {finished}  requests {requests}  events {events}  kills {}/{}",
                *self.submitted.borrow(),
                self.quotes,
                self.killed.load(Ordering::Relaxed),
                self.kills,
            );
            if in_place {
                eprint!("\r{line}   ");
                // A line that is not shown is no loss.
                let _ = std::io::stderr().flush();
            } else {
                eprintln!("{line}");
            }
        }
    }

    /// Leaves the line, where it was printed in place.
    pub(super) fn end(&self) {
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
    }
}
