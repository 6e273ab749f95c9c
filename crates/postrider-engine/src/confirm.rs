//! What: tells the server what it may forget, and the disk how far the consumers are.
//! Where: the last step of the walk, back at the socket.
//! Takes and gives: the ledger and the journal's durable end; the confirmed LSN, saved positions, released segments.
//! Never: confirms what is not durable where the policy wants it.

use crate::ladder::{Holder, Ruling, Rung, Warning, rule};
use crate::pause::Pause;
use crate::settings::{Ack, Settings};
use crate::settle::Ledger;
use crate::shutdown::Shutdown;
use crate::telemetry::{ConsumerLabel, Telemetry};
use crate::world::World;
use postrider_core::error::{Reaction, Result};
use postrider_core::frontier::Frontier;
use postrider_core::ports::{BoxFuture, Confirmer, Gap, Journal, PositionStore, Room};
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

/// Why a sink lacks something that the journal had.
const CUT_LOOSE: &str = "The sink was cut loose: it was behind, and the journal had to make room.";

/// What the last step works with.
#[derive(Debug)]
pub(crate) struct Confirming {
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) positions: Arc<dyn PositionStore>,
    pub(crate) ledger: Ledger,
    /// Every sink, and whether the slot waits for it.
    pub(crate) sinks: Vec<(Arc<str>, bool)>,
    /// Set while the journal has no room for more.
    pub(crate) blocked: watch::Sender<bool>,
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
        let mut frontier =
            Frontier::new(self.sinks.iter().filter(|(_, required)| *required).map(|(name, _)| name.clone()));
        let mut saved = self.load().await?;
        let mut rungs = Vec::new();
        self.make_room(&saved, &mut frontier, &mut rungs, settings).await?;
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
                    self.make_room(&saved, &mut frontier, &mut rungs, settings).await?;
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
            return Ok(settings.periods.positions);
        }
        match self.positions.save(&moved).await {
            Ok(()) => {
                pause.reset();
                saved.extend(moved);
                Ok(settings.periods.positions)
            }
            Err(error) if error.kind().reaction() == Reaction::Retry => Ok(pause.next(self.world.random())),
            Err(error) => Err(error),
        }
    }

    /// Where each sink is by what is saved. One that has nothing saved begins with the oldest that is held now, for good: what goes
    /// later without it is then known.
    async fn load(&self) -> Result<BTreeMap<Arc<str>, Position>> {
        let oldest = self.journal.room(self.world.now()).oldest;
        let (mut saved, mut new) = (BTreeMap::new(), Vec::new());
        for (name, _) in &self.sinks {
            let position = self.positions.load(name)?;
            if position.is_none() {
                new.push((name.clone(), oldest));
            }
            saved.insert(name.clone(), position.unwrap_or(oldest));
        }
        if new.is_empty() {
            return Ok(saved);
        }
        match self.positions.save(&new).await {
            // The first position that it settles is saved all the same.
            Err(error) if error.kind().reaction() != Reaction::Retry => Err(error),
            _ => Ok(saved),
        }
    }

    /// Lets the journal drop what nobody needs, or what has to go although somebody does: that is put on record first.
    async fn make_room(
        &self,
        saved: &BTreeMap<Arc<str>, Position>,
        frontier: &mut Frontier,
        rungs: &mut Vec<Warning>,
        settings: &Settings,
    ) -> Result<()> {
        let now = self.world.now();
        let room = self.journal.room(now);
        let holder = |(name, required): &(Arc<str>, bool)| Holder {
            name: name.clone(),
            required: *required,
            position: saved.get(name).copied().unwrap_or(Position::START),
        };
        let holders: Vec<Holder> = self.sinks.iter().map(holder).collect();
        let end = Position::whole(self.journal.generation(), self.journal.durable());
        let Ruling { release, cut, let_go, blocked, warnings } = rule(&room, &holders, settings.when_full, end);
        for (consumer, from, to) in cut {
            let reason = CUT_LOOSE.to_owned();
            self.journal.record(Gap { at: now, consumer: Some(consumer), from, to, reason, accepted: false }).await?;
        }
        self.tell(&room, &warnings, rungs, blocked);
        frontier.let_go(let_go);
        self.journal.release(release, now)
    }

    fn tell(&self, room: &Room, warnings: &[Warning], rungs: &mut Vec<Warning>, blocked: bool) {
        for warning in warnings.iter().filter(|warning| !rungs.contains(warning)) {
            tracing::warn!(held_bytes = room.held_bytes, limit_bytes = room.limit_bytes, "{warning}");
        }
        *rungs = warnings.to_vec();
        self.blocked.send_if_modified(|was| std::mem::replace(was, blocked) != blocked);
        let gauge = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.telemetry.journal_bytes.set(gauge(room.held_bytes));
        self.telemetry.journal_limit_bytes.set(gauge(room.limit_bytes));
        self.telemetry.intake_blocked.set(i64::from(blocked));
        for (name, _) in &self.sinks {
            let is_cut = warnings.iter().any(|warning| warning.sink == *name && warning.rung == Rung::Cut);
            let label = ConsumerLabel { consumer: name.to_string() };
            self.telemetry.cut_loose.get_or_create(&label).set(i64::from(is_cut));
        }
        let (gaps, warnings) = (self.journal.gaps(), warnings.iter().map(Warning::to_string).collect());
        self.telemetry.update(|status| (status.gaps, status.room_warnings) = (gaps, warnings));
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
