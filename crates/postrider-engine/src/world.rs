//! The only door to time and chance.

use postrider_core::ports::BoxFuture;
use postrider_core::time::Timestamp;
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub trait World: Send + Sync + fmt::Debug {
    /// This machine's clock as it was at the start, carried on by one that does not jump: good for deadlines, and near enough
    /// to the real time for the rest.
    fn now(&self) -> Timestamp;

    /// Waits, on a clock that does not jump.
    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()>;

    /// A random number, evenly spread.
    fn random(&self) -> u64;
}

/// The real world: the system's clock, tokio's timer, and a random number generator seeded by the caller.
#[derive(Debug)]
pub struct SystemWorld {
    state: std::sync::atomic::AtomicU64,
    began: Instant,
    began_at: Timestamp,
}

impl SystemWorld {
    /// `seed` decides all random numbers of this process; take it from the operating system.
    pub fn new(seed: u64) -> SystemWorld {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let began_at = Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX));
        SystemWorld { state: std::sync::atomic::AtomicU64::new(seed), began: Instant::now(), began_at }
    }
}

impl World for SystemWorld {
    fn now(&self) -> Timestamp {
        self.began_at.after(self.began.elapsed())
    }

    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(span))
    }

    /// SplitMix64 (Steele, Lea, Flood 2014): a counter and a mixing function, so that it is one atomic addition.
    fn random(&self) -> u64 {
        const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;
        let state = self.state.fetch_add(GAMMA, std::sync::atomic::Ordering::Relaxed).wrapping_add(GAMMA);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}
