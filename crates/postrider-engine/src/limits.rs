//! Every bound of the engine, in one place.

use postrider_core::breaker::BreakerSettings;
use postrider_core::stage::Backoff;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Rows in one claim or checkpoint statement.
    pub statement_rows_max: usize,
    /// A claim with a larger payload is not kept while its request is on the way: the request holds the payload already.
    pub kept_payload_bytes_max: usize,
    /// Events in one batch for a sink; its position moves at the end of each.
    pub batch_events_max: usize,
    /// Bytes of payload in one batch for a sink.
    pub batch_bytes_max: usize,
    /// When an endpoint whose calls fail is no longer called, and for how long.
    pub breaker: BreakerSettings,
    /// First and longest pause between two tries of anything that is retried.
    pub retry_first: Duration,
    pub retry_max: Duration,
    /// How long a shutdown waits for calls in flight.
    pub drain: Duration,
    /// How long a shutdown waits for everything after that: checkpoints, positions, the slot.
    pub finish: Duration,
    /// Without a heartbeat seen back for this long, the process is not ready.
    pub heartbeat_overdue: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            statement_rows_max: 500,
            kept_payload_bytes_max: 64 * 1024,
            batch_events_max: 250,
            batch_bytes_max: 1024 * 1024,
            breaker: BreakerSettings {
                failures: 10,
                pause: Backoff { first: Duration::from_secs(1), max: Duration::from_secs(30) },
            },
            retry_first: Duration::from_millis(10),
            retry_max: Duration::from_secs(10),
            drain: Duration::from_secs(20),
            finish: Duration::from_secs(5),
            heartbeat_overdue: Duration::from_secs(30),
        }
    }
}
