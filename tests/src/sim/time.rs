//! Virtual time: it stands still while anything can run, and jumps to the next timer when nothing can.
//!
//! The runtime calls [`Clock::advance`] before it would sleep. One thread and no real clock: the same seed gives the same run.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Clones share the time. Microseconds since the start of the run.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<Mutex<Timers>>);

#[derive(Debug, Default)]
struct Timers {
    now: u64,
    armed: BTreeMap<(u64, u64), Waker>,
    next_id: u64,
}

/// A wait for a time; gone with its future.
#[derive(Debug)]
pub struct Sleep {
    clock: Clock,
    at: u64,
    id: Option<u64>,
}

/// Runs a future, and all that it spawns, in a virtual time of its own.
pub fn in_virtual_time<F: Future>(make: impl FnOnce(Clock) -> F) -> F::Output {
    let clock = Clock::default();
    let parked = clock.clone();
    let runtime =
        tokio::runtime::Builder::new_current_thread().on_thread_park(move || parked.advance()).build().unwrap();
    runtime.block_on(make(clock))
}

impl Clock {
    pub fn now(&self) -> u64 {
        self.timers().now
    }

    pub fn sleep(&self, span: Duration) -> Sleep {
        self.sleep_until(self.now().saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
    }

    pub fn sleep_until(&self, at: u64) -> Sleep {
        Sleep { clock: self.clone(), at, id: None }
    }

    /// Nothing can run: the time of the next timer comes.
    pub fn advance(&self) {
        let due: Vec<Waker> = {
            let mut timers = self.timers();
            let Some((&(at, _), _)) = timers.armed.first_key_value() else { return };
            timers.now = at;
            let later = timers.armed.split_off(&(at.saturating_add(1), 0));
            std::mem::replace(&mut timers.armed, later).into_values().collect()
        };
        due.into_iter().for_each(Waker::wake);
    }

    fn timers(&self) -> MutexGuard<'_, Timers> {
        self.0.lock().unwrap()
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let clock = self.clock.clone();
        let mut timers = clock.timers();
        if timers.now >= self.at {
            return Poll::Ready(());
        }
        let id = *self.id.get_or_insert_with(|| {
            timers.next_id += 1;
            timers.next_id
        });
        timers.armed.insert((self.at, id), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.clock.timers().armed.remove(&(self.at, id));
        }
    }
}
