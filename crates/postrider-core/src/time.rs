//! Instants as PostgreSQL knows them, without a clock.

use std::time::Duration;

/// Microseconds between 1970-01-01 and 2000-01-01, where PostgreSQL's replication protocol starts to count.
const POSTGRES_EPOCH_MICROS: i64 = 946_684_800_000_000;

/// An instant in microseconds since 1970-01-01 00:00 UTC, on whichever clock the context names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// From the replication protocol's microseconds since 2000-01-01 UTC.
    pub fn from_postgres_micros(micros: i64) -> Timestamp {
        Timestamp(micros.saturating_add(POSTGRES_EPOCH_MICROS))
    }

    /// To the replication protocol's microseconds since 2000-01-01 UTC.
    pub fn to_postgres_micros(self) -> i64 {
        self.0.saturating_sub(POSTGRES_EPOCH_MICROS)
    }

    /// This instant and a span later; saturates at the end of time.
    #[must_use]
    pub fn after(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
    }

    /// How long it is from `earlier` to this instant; zero where `earlier` is later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}
