//! What: tells the server what it may forget, and the disk how far the consumers are.
//! Where: the last step of the walk, back at the socket.
//! Takes and gives: the ledger and the journal's durable end; the confirmed LSN, saved positions, released segments.
//! Never: confirms what is not durable where the policy wants it.

use crate::pause::Pause;
use crate::settings::{Ack, Settings};
use crate::settle::Ledger;
use crate::shutdown::Shutdown;
use crate::telemetry::Telemetry;
use crate::world::World;
use postrider_core::error::{Reaction, Result};
use postrider_core::frontier::Frontier;
use postrider_core::ports::{BoxFuture, Confirmer, Journal, PositionStore};
use postrider_core::position::{Lsn, Position};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// So long without anything new, and what there is is synced, so that it can be confirmed.
const QUIET: Duration = Duration::from_millis(100);

/// The same behind a burst: who catches up with a backlog leaves much unsynced, and the server keeps its log for it.
const QUIET_AFTER_BURST: Duration = Duration::from_millis(25);

/// So many bytes of the server's log since the last sync are a burst.
const BURST_BYTES: u64 = 4 << 20;

/// A stream that is never quiet is synced once in this time: each fsync stands in the way of the server's own, and with them of commits
/// that somebody waits for, while the server forgets its log no sooner for being told more often.
const BUSY: Duration = Duration::from_secs(1);

/// What the last step works with.
#[derive(Debug)]
pub(crate) struct Confirming {
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) positions: Arc<dyn PositionStore>,
    pub(crate) ledger: Ledger,
    /// The sinks that the slot waits for.
    pub(crate) required: Vec<Arc<str>>,
    /// The connection of the moment.
    pub(crate) confirmer: watch::Receiver<Option<Arc<dyn Confirmer>>>,
    /// The server waits for a confirm.
    pub(crate) asked: Arc<AtomicBool>,
    /// Set while the guard lets the slot pass the sinks.
    pub(crate) guard: Arc<AtomicBool>,
    pub(crate) world: Arc<dyn World>,
    pub(crate) telemetry: Arc<Telemetry>,
}

impl Confirming {
    /// Confirms until `stop`; then once more, all that is settled by now, and saves the positions.
    pub(crate) async fn run(mut self, settings: &Settings, stop: Shutdown) -> Result<()> {
        let mut frontier = Frontier::new(self.required.iter().cloned());
        let mut saved = BTreeMap::new();
        let mut pause = Pause::new(&settings.limits);
        let mut durable = self.journal.durable();
        let mut save = self.world.sleep(settings.periods.positions);
        let mut sync = self.sync(durable);
        loop {
            self.confirm(&mut frontier, settings.ack, durable);
            tokio::select! {
                biased;
                // 1. the end
                () = stop.requested() => break,
                // 2. another connection: it has been told nothing yet; there is none any more once intake has ended
                Ok(()) = self.confirmer.changed() => {}
                // 3. a consumer settled more
                () = self.ledger.changed() => {}
                // 4. the journal is durable further on
                end = &mut sync => {
                    durable = end?;
                    sync = self.sync(durable);
                }
                // 5. time to save the positions
                () = &mut save => {
                    let period = self.save(&mut saved, &mut pause, settings).await?;
                    save = self.world.sleep(period);
                }
            }
        }
        self.finish(&mut frontier, &mut saved, settings).await
    }

    /// Waits until the journal is durable further than `durable`. It goes on over the turns of the loop: consumers that settle
    /// without a pause must not put it off.
    fn sync(&self, durable: Lsn) -> BoxFuture<'static, Result<Lsn>> {
        let (world, journal) = (self.world.clone(), self.journal.clone());
        Box::pin(async move {
            let (mut seen, mut waited) = (journal.appended(), Duration::ZERO);
            while waited < BUSY {
                let look = quiet_behind(durable, seen);
                world.sleep(look).await;
                let appended = journal.appended();
                if appended == seen {
                    break;
                }
                seen = appended;
                waited += look;
            }
            journal.durable_past(durable).await
        })
    }

    fn confirm(&self, frontier: &mut Frontier, ack: Ack, durable: Lsn) {
        frontier.durable(durable);
        for (consumer, settled) in self.ledger.all() {
            frontier.settled(&consumer, settled.end);
            self.telemetry.update_consumer(&consumer, |status| {
                status.position = Some(settled.position);
                status.settled = settled.end;
            });
        }
        let at_journal = ack == Ack::Journal || self.guard.load(Ordering::Relaxed);
        let confirmed = frontier.confirmable(at_journal);
        if let Some(confirmer) = self.confirmer.borrow().as_ref() {
            // The flag stays until it has had its effect: what is asked for is durable a moment later.
            let now = self.asked.load(Ordering::Relaxed);
            confirmer.confirm(confirmed, now);
            if now && confirmed >= self.journal.appended() {
                self.asked.store(false, Ordering::Relaxed);
            }
        }
        self.telemetry.durable_lsn.set(durable.0.cast_signed());
        self.telemetry.confirmed_lsn.set(confirmed.0.cast_signed());
        self.telemetry.update(|status| {
            status.durable = durable;
            status.confirmed = confirmed;
        });
    }

    /// Saves what has moved since the last time. Returns how long to wait until the next.
    async fn save(
        &self,
        saved: &mut BTreeMap<Arc<str>, Position>,
        pause: &mut Pause,
        settings: &Settings,
    ) -> Result<Duration> {
        let moved: Vec<(Arc<str>, Position)> = self
            .ledger
            .all()
            .into_iter()
            .map(|(consumer, settled)| (consumer, settled.position))
            .filter(|(consumer, position)| saved.get(consumer) != Some(position))
            .collect();
        if moved.is_empty() {
            self.release(saved)?;
            return Ok(settings.periods.positions);
        }
        match self.positions.save(&moved).await {
            Ok(()) => {
                pause.reset();
                saved.extend(moved);
                self.release(saved)?;
                Ok(settings.periods.positions)
            }
            Err(error) if error.kind().reaction() == Reaction::Retry => Ok(pause.next(self.world.random())),
            Err(error) => Err(error),
        }
    }

    /// The journal may drop what is behind every consumer that must not lose anything.
    fn release(&self, saved: &BTreeMap<Arc<str>, Position>) -> Result<()> {
        let mut needed: Option<Position> = None;
        for consumer in &self.required {
            let Some(position) = saved.get(consumer).copied() else { return Ok(()) };
            needed = Some(needed.map_or(position, |needed| needed.min(position)));
        }
        match needed {
            Some(position) => self.journal.release(position),
            None => self.journal.release(Position::whole(self.journal.generation(), self.journal.durable())),
        }
    }

    async fn finish(
        self,
        frontier: &mut Frontier,
        saved: &mut BTreeMap<Arc<str>, Position>,
        settings: &Settings,
    ) -> Result<()> {
        let appended = self.journal.appended();
        let mut durable = self.journal.durable();
        while durable < appended {
            durable = self.journal.durable_past(durable).await?;
        }
        self.confirm(frontier, settings.ack, durable);
        self.save(saved, &mut Pause::new(&settings.limits), settings).await?;
        Ok(())
    }
}

/// How long nothing new may come after `seen` until what is not `durable` is synced.
fn quiet_behind(durable: Lsn, seen: Lsn) -> Duration {
    if seen.0.saturating_sub(durable.0) < BURST_BYTES { QUIET } else { QUIET_AFTER_BURST }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_burst_is_synced_sooner_than_that_of_a_trickle() {
        let durable = Lsn(1 << 30);
        assert_eq!(quiet_behind(durable, durable), QUIET);
        assert_eq!(quiet_behind(durable, Lsn(durable.0 + BURST_BYTES - 1)), QUIET);
        assert_eq!(quiet_behind(durable, Lsn(durable.0 + BURST_BYTES)), QUIET_AFTER_BURST);
    }
}
