//! What the engine asks the primary on its own account: a heartbeat through the log, which tells the other executors of ours, and how the slot is.

use crate::limits::Limits;
use crate::pause::Pause;
use crate::settings::{Ack, Settings};
use crate::shutdown::Shutdown;
use crate::telemetry::Telemetry;
use crate::world::World;
use postrider_core::error::{Error, Reaction, Result};
use postrider_core::members::Presence;
use postrider_core::ports::{Confirmer, Primary, SlotHealth};
use postrider_core::position::Lsn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// What the health loop works with.
#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) primary: Arc<dyn Primary>,
    /// End of what the stream has brought into the journal.
    pub(crate) received: watch::Receiver<Lsn>,
    /// The connection of the moment.
    pub(crate) confirmer: watch::Receiver<Option<Arc<dyn Confirmer>>>,
    /// What heartbeats say of our executor while the stream comes through.
    pub(crate) executor: Option<Presence>,
    /// A heartbeat is wanted at once.
    pub(crate) beat_soon: Arc<Notify>,
    pub(crate) guard: Arc<AtomicBool>,
    pub(crate) world: Arc<dyn World>,
    pub(crate) telemetry: Arc<Telemetry>,
}

/// What came of the heartbeats so far.
#[derive(Debug, Default)]
struct Beats {
    /// One of them has said that our executor is there, or may have.
    announced: bool,
    /// The last one did not come back in time.
    behind: bool,
}

impl Health {
    /// Beats and looks until `stop`; then the other executors hear that ours leaves.
    pub(crate) async fn run(mut self, settings: &Settings, stop: Shutdown) -> Result<()> {
        let mut beats = Beats::default();
        tokio::select! {
            biased;
            () = stop.requested() => {}
            ended = self.watch(settings, &mut beats) => return ended,
        }
        if beats.announced {
            self.leave(&settings.limits).await;
        }
        Ok(())
    }

    async fn watch(&mut self, settings: &Settings, beats: &mut Beats) -> Result<()> {
        let mut pause = Pause::new(&settings.limits);
        let beat_soon = self.beat_soon.clone();
        let mut beat_at = self.world.now();
        let mut look_at = beat_at;
        loop {
            tokio::select! {
                biased;
                () = beat_soon.notified() => beat_at = self.world.now(),
                () = self.world.sleep(beat_at.min(look_at).since(self.world.now())) => {}
            }
            // The slot comes first: a heartbeat may wait long for its way back.
            let now = self.world.now();
            if look_at <= now {
                look_at = now.after(self.look(settings, &mut pause).await?);
            } else if beat_at <= now {
                beat_at = now.after(self.beat(settings, &mut pause, beats).await?);
            }
        }
    }

    /// One heartbeat, and its way back through the log. Returns when the next is due.
    async fn beat(&mut self, settings: &Settings, pause: &mut Pause, beats: &mut Beats) -> Result<Duration> {
        let presence = self.presence(beats);
        // One that is given up on its way may have said so all the same.
        beats.announced |= presence.is_some();
        match self.primary.beat(presence).await {
            Ok(lsn) => {
                pause.reset();
                let was_behind = beats.behind;
                beats.behind = !self.seen_back(lsn, settings.periods.heartbeat).await;
                if !beats.behind {
                    let now = self.world.now();
                    self.telemetry.update(|status| status.heartbeat_seen_at = Some(now));
                }
                // The others need not wait for the next to hear that our executor is there.
                let caught_up = was_behind && !beats.behind && self.executor.is_some();
                Ok(if caught_up { Duration::ZERO } else { settings.periods.heartbeat })
            }
            Err(error) => self.fail(error, pause, settings),
        }
    }

    /// Our executor is there for others only while the log comes through to it.
    fn presence(&self, beats: &Beats) -> Option<Presence> {
        let hears = self.confirmer.borrow().is_some() && !beats.behind;
        self.executor.clone().filter(|_| hears)
    }

    /// The others need not find out by themselves that our executor begins with nothing more.
    async fn leave(&self, limits: &Limits) {
        let Some(presence) = self.executor.clone() else { return };
        tokio::select! {
            biased;
            said = self.primary.beat(Some(Presence { leaving: true, ..presence })) => {
                if let Err(error) = said {
                    tracing::debug!(error = error.report(), "the other executors find out by themselves that this one leaves");
                }
            }
            () = self.world.sleep(limits.finish) => {}
        }
    }

    /// Whether the stream shows the heartbeat in time.
    async fn seen_back(&mut self, lsn: Lsn, within: Duration) -> bool {
        tokio::select! {
            biased;
            seen = self.received.wait_for(|received| *received >= lsn) => seen.is_ok(),
            () = self.world.sleep(within) => false,
        }
    }

    async fn look(&self, settings: &Settings, pause: &mut Pause) -> Result<Duration> {
        match self.primary.slot().await {
            Ok(slot) => {
                pause.reset();
                self.judge_slot(&slot, settings.ack, settings.wal_guard_bytes);
                Ok(settings.periods.slot_health)
            }
            Err(error) => self.fail(error, pause, settings),
        }
    }

    fn judge_slot(&self, slot: &SlotHealth, ack: Ack, guard_bytes: Option<u64>) {
        self.telemetry.slot_retained_bytes.set(i64::try_from(slot.retained_bytes).unwrap_or(i64::MAX));
        let guarded = guard_bytes.is_some_and(|limit| slot.retained_bytes > limit);
        self.telemetry.guard_active.set(i64::from(guarded));
        if guarded != self.guard.swap(guarded, Ordering::Relaxed) {
            if guarded {
                tracing::warn!(
                    retained_bytes = slot.retained_bytes,
                    "the slot keeps more log than wal_guard allows: it is confirmed at the journal, and a loss of the local disk would now lose events"
                );
            } else {
                tracing::info!("the slot is below wal_guard again: it is confirmed at the sinks");
            }
        }
        let blocked = self.telemetry.intake_blocked.get() != 0;
        let warning = warn_of_slot(slot, guard_bytes, Waiting::of(ack, blocked));
        self.telemetry.update(|status| {
            if let Some(warning) = warning.as_ref().filter(|_| status.slot_warning.is_none()) {
                tracing::warn!(retained_bytes = slot.retained_bytes, safe_bytes = slot.safe_bytes, "{warning}");
            }
            status.slot_warning = warning.map(str::to_owned);
        });
        if slot.wal_status == "unreserved" || slot.wal_status == "lost" {
            tracing::error!(
                wal_status = slot.wal_status,
                "the server is about to drop the slot's log, or has dropped it"
            );
        }
    }

    /// How long to wait after a failure; an error that a person must act on is passed on.
    fn fail(&self, error: Error, pause: &mut Pause, settings: &Settings) -> Result<Duration> {
        if error.kind().reaction() == Reaction::Halt {
            return Err(error);
        }
        if !pause.is_failing() {
            tracing::warn!(error = error.report(), "the primary cannot be asked how it is");
        }
        Ok(pause.next(self.world.random()).max(settings.limits.retry_max / 10))
    }
}

/// What the slot waits for, as a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// The required sinks: `ack = "sinks"`.
    Sinks,
    /// Room in the journal.
    Journal,
    /// Nobody that we know of: what is read is confirmed.
    Reader,
}

impl Waiting {
    fn of(ack: Ack, blocked: bool) -> Waiting {
        match ack {
            _ if blocked => Waiting::Journal,
            Ack::Sinks => Waiting::Sinks,
            Ack::Journal => Waiting::Reader,
        }
    }
}

/// What the log that the server keeps for the slot costs, or is about to cost, and what to type.
fn warn_of_slot(slot: &SlotHealth, guard_bytes: Option<u64>, waiting: Waiting) -> Option<&'static str> {
    let kept = slot.retained_bytes;
    // What may still be written is less than a quarter of what is kept: four fifths of the limit.
    let is_near_end = slot.safe_bytes.is_some_and(|safe| safe < kept / 4);
    match guard_bytes {
        _ if slot.wal_status == "lost" => Some(
            "The server has dropped the slot's log: what was not read of it is gone. `postrider explain PR006` says what to type.",
        ),
        _ if is_near_end && waiting == Waiting::Journal => Some(
            "The slot keeps four fifths of max_slot_wal_keep_size, since the journal is full and nothing is read: beyond that the server drops the log, and what was not read of it is gone. Bring back the sink that the journal waits for, or raise max_slot_wal_keep_size.",
        ),
        _ if is_near_end && waiting == Waiting::Reader => Some(
            "The slot keeps four fifths of max_slot_wal_keep_size, and no sink holds it: beyond that the server drops the log, and what was not read of it is gone. An old transaction may hold it (look for it in pg_stat_activity and pg_prepared_xacts, and end it), or the log is written faster than it is read: raise max_slot_wal_keep_size.",
        ),
        _ if is_near_end => Some(
            "The slot keeps four fifths of max_slot_wal_keep_size: beyond that the server drops the log, and what was not read of it is gone. Bring back the sink that is behind, or raise max_slot_wal_keep_size, or set wal_guard below it.",
        ),
        Some(limit) if kept > limit => Some(
            "The slot keeps more log than wal_guard allows, and is confirmed at the journal: the loss of the local disk would now lose events. Bring back the sink that is behind, or raise wal_guard and start again.",
        ),
        Some(limit) if kept > limit / 5 * 4 => Some(
            "The slot keeps four fifths of what wal_guard allows: beyond that it is confirmed at the journal, and the loss of the local disk would lose events. Bring back the sink that is behind, or raise wal_guard and start again.",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rung_is_told_of_before_it_is_reached() {
        let slot = |retained_bytes, safe_bytes, wal_status: &str| SlotHealth {
            active: true,
            confirmed: Lsn(1),
            retained_bytes,
            safe_bytes,
            wal_status: wal_status.to_owned(),
        };
        let said_of = |slot: SlotHealth, guard, waiting| warn_of_slot(&slot, guard, waiting).unwrap_or("nothing");
        let said = |slot: SlotHealth, guard| said_of(slot, guard, Waiting::of(Ack::Sinks, false));
        assert_eq!(said(slot(80, None, "reserved"), Some(100)), "nothing");
        assert!(said(slot(81, None, "reserved"), Some(100)).contains("four fifths of what wal_guard allows"));
        assert!(said(slot(101, None, "extended"), Some(100)).contains("is confirmed at the journal"));
        assert_eq!(said(slot(80, Some(20), "extended"), None), "nothing");
        assert!(said(slot(81, Some(19), "extended"), None).contains("four fifths of max_slot_wal_keep_size"));
        assert!(said(slot(0, None, "lost"), Some(100)).contains("PR006"));
        let near = |ack, blocked| said_of(slot(81, Some(19), "extended"), None, Waiting::of(ack, blocked));
        assert!(near(Ack::Sinks, false).contains("Bring back the sink that is behind"));
        assert!(near(Ack::Journal, false).contains("no sink holds it"));
        assert!(near(Ack::Journal, true).contains("the journal is full"));
        assert!(near(Ack::Sinks, true).contains("the journal is full"));
    }
}
