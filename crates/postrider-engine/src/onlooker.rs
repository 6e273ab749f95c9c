//! What: looks on while somebody else works on the rows, and says how long they waited.
//! Where: in the executor's place behind *follow*, where the configuration says `work.mode = "observe"`.
//! Takes and gives: the work rows' versions from the log; what was seen of each stage, for status, metrics and log.
//! Never: asks the server anything, claims a row, or writes one.

mod delays;
mod rows;

use crate::clock::ServerClock;
use crate::executor::CONSUMER;
use crate::follow::{Cursor, Visit};
use crate::settle::{Ledger, Settled};
use crate::shutdown::Shutdown;
use crate::telemetry::{ConsumerLabel, ObservedDelayLabel, ObservedLabel, StageLabel, Telemetry};
use crate::world::World;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{Journal, PositionStore};
use postrider_core::position::{Lsn, Position};
use postrider_core::route::{Alarm, Route, Routing, TableRole};
use postrider_core::shape::{self, ShapeError, WorkChange};
use postrider_core::stage::Definitions;
use postrider_core::time::Timestamp;
use postrider_core::transaction::PartHead;
use rows::Rows;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use delays::DelaySummary;
pub use rows::ObservedStage;

/// Between two looks at which rows have fallen due.
const LOOK: Duration = Duration::from_secs(1);

/// What was seen since the oldest change that the journal held at the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// When that change was committed, by the server's clock.
    pub since: Option<Timestamp>,
    pub stages: BTreeMap<String, ObservedStage>,
    /// Changes of rows that were too many to follow.
    pub left_out: u64,
}

/// What the onlooker works with.
#[derive(Debug)]
pub(crate) struct Onlooking {
    pub(crate) definitions: Definitions,
    /// Between two lines of the log.
    pub(crate) period: Duration,
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) positions: Arc<dyn PositionStore>,
    pub(crate) routing: Arc<Routing>,
    pub(crate) ledger: Ledger,
    pub(crate) clock: ServerClock,
    pub(crate) world: Arc<dyn World>,
    pub(crate) telemetry: Arc<Telemetry>,
}

/// What was taken in.
struct Seen {
    rows: Rows,
    since: Option<Timestamp>,
    settled: Settled,
    telemetry: Arc<Telemetry>,
}

impl Onlooking {
    /// Looks on until `stop`, from the oldest change that the journal holds: what waits now may have come long ago.
    pub(crate) async fn run(self, stop: Shutdown) -> Result<()> {
        let after = self.positions.load(CONSUMER)?.unwrap_or(Position::START);
        let mut seen = Seen {
            rows: Rows::new(self.definitions.clone()),
            since: None,
            settled: Settled { position: after, end: Lsn::ZERO },
            telemetry: self.telemetry.clone(),
        };
        let mut cursor = Cursor::new(&*self.journal, Position::START, &self.routing)?;
        let (mut look, mut line) = (self.world.sleep(Duration::ZERO), self.world.sleep(self.period));
        loop {
            tokio::select! {
                biased;
                // 1. the end
                () = stop.requested() => return Ok(()),
                // 2. time
                () = &mut look => {
                    seen.tell(self.clock.now());
                    look = self.world.sleep(LOOK);
                }
                () = &mut line => {
                    seen.log(self.clock.now());
                    line = self.world.sleep(self.period);
                }
                // 3. the log
                more = cursor.next() => match more {
                    // Retention overtook us: what we know of the rows may be old.
                    Err(error) if error.kind() == ErrorKind::JournalForeign => {
                        seen.rows.clear();
                        cursor = Cursor::new(&*self.journal, Position::START, &self.routing)?;
                    }
                    more => {
                        more?;
                        cursor.walk(&mut seen)?;
                        if seen.settled.end > Lsn::ZERO {
                            self.ledger.settle(&CONSUMER.into(), seen.settled);
                        }
                    }
                }
            }
        }
    }
}

impl Seen {
    fn take(&mut self, change: std::result::Result<WorkChange, ShapeError>, head: &PartHead, position: Position) {
        self.since.get_or_insert(head.committed_at);
        match change {
            Ok(WorkChange::Version { version, moved_from }) => {
                moved_from.iter().for_each(|key| self.rows.forget(key));
                self.rows.note(version, head.committed_at);
            }
            Ok(WorkChange::Gone(key)) => self.rows.forget(&key),
            Err(error) => self.alarm(position, &Error::from(error).report()),
        }
    }

    fn alarm(&self, position: Position, what: &str) {
        self.telemetry.alarms.get_or_create(&ConsumerLabel { consumer: CONSUMER.to_owned() }).inc();
        tracing::error!(%position, what, "a change of the work table cannot be taken in");
    }

    /// What was seen so far, for status and metrics.
    fn tell(&mut self, now: Timestamp) {
        let stages = self.rows.report(now);
        let gauge = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.telemetry.observed_left_out.set(gauge(self.rows.left_out()));
        for (stage, seen) in &stages {
            let label = StageLabel { stage: stage.clone() };
            self.telemetry.observed_waiting.get_or_create(&label).set(gauge(seen.waiting));
            self.telemetry.observed_longest_wait.get_or_create(&label).set(seen.longest_wait.as_secs_f64());
            self.telemetry.observed_overlapping.get_or_create(&label).set(gauge(seen.overlapping));
            self.telemetry.observed_early.get_or_create(&label).set(gauge(seen.early));
            self.telemetry.observed_used_up.get_or_create(&label).set(gauge(seen.used_up));
            self.telemetry.observed_unconfigured.get_or_create(&label).set(i64::from(!seen.is_known));
            for (seen, delays) in [("started", seen.started), ("ended", seen.ended)] {
                let label = ObservedLabel { stage: stage.clone(), seen };
                self.telemetry.observed_taken.get_or_create(&label).set(gauge(delays.count));
                for (quantile, wait) in [("0.5", delays.p50), ("0.99", delays.p99), ("1", delays.longest)] {
                    let label = ObservedDelayLabel { stage: stage.clone(), seen, quantile };
                    self.telemetry.observed_delay.get_or_create(&label).set(wait.as_secs_f64());
                }
            }
        }
        let observed = Observed { since: self.since, stages, left_out: self.rows.left_out() };
        self.telemetry.update(|status| status.observed = Some(observed));
    }

    /// A line for each stage with something to say, of what was seen since the last one.
    fn log(&mut self, now: Timestamp) {
        for (stage, seen) in self.rows.report_of_late(now) {
            let ObservedStage { started, ended, early, overlapping, waiting, longest_wait, .. } = seen;
            if started.count + ended.count + early + overlapping + waiting == 0 {
                continue;
            }
            tracing::info!(
                stage,
                started = started.count,
                p50 = ?started.p50,
                p99 = ?started.p99,
                longest = ?started.longest,
                ended_unseen = ended.count,
                early,
                overlapping,
                waiting,
                longest_wait = ?longest_wait,
                "observed: what the others did since the last line, from due to started"
            );
        }
    }
}

impl Visit for Seen {
    fn visit(&mut self, head: &PartHead, position: Position, route: Route<'_>) -> Result<()> {
        match route {
            Route::Work(row) => self.take(shape::work_change(&row), head, position),
            Route::WorkNotice(notice) => self.take(shape::noticed_change(&notice), head, position),
            Route::Alarm(alarm) => {
                if matches!(&alarm, Alarm::Truncated { tables } if tables.iter().any(|(role, _)| *role == TableRole::Work))
                {
                    self.rows.clear();
                }
                self.alarm(position, &alarm.to_string());
            }
            Route::Pause(_) | Route::Presence(_) | Route::Outbox(_) | Route::OutboxMessage(_) | Route::Ignore(_) => {}
        }
        Ok(())
    }

    fn settles(&mut self, settled: Settled) {
        self.settled = self.settled.and(settled);
    }
}
