//! What `/status` says of a work table that somebody else works on.

use postrider_delivery::rfc3339;
use postrider_engine::{DelaySummary, Observed, ObservedStage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What was seen since the oldest change that the journal held at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObservedReport {
    /// When that was committed; `None`: nothing was seen yet.
    pub(crate) since: Option<String>,
    pub(crate) stages: BTreeMap<String, ObservedStageReport>,
    /// Changes of rows that were too many to follow.
    pub(crate) left_out: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObservedStageReport {
    /// The configuration has the stage.
    pub(crate) known: bool,
    /// Rows that were shown RUNNING, by how long they had been due: so much earlier they would have been started here.
    pub(crate) started: DelayReport,
    /// Rows that went on without being shown RUNNING: the work itself is in the delay.
    pub(crate) ended: DelayReport,
    /// Rows that were taken before they were due.
    pub(crate) early: u64,
    /// Attempts that began while another of the same row was under way.
    pub(crate) overlapping: u64,
    /// Rows that are due and not taken.
    pub(crate) waiting: u64,
    pub(crate) longest_wait_ms: u64,
    /// Rows that wait with as many attempts behind them as the stage's `attempts` allows: they would not be started here.
    pub(crate) used_up: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DelayReport {
    pub(crate) count: u64,
    pub(crate) p50_ms: u64,
    pub(crate) p99_ms: u64,
    pub(crate) max_ms: u64,
}

impl ObservedReport {
    pub(crate) fn new(observed: &Observed) -> ObservedReport {
        let stage = |(name, stage): (&String, &ObservedStage)| (name.clone(), ObservedStageReport::new(stage));
        ObservedReport {
            since: observed.since.map(rfc3339),
            stages: observed.stages.iter().map(stage).collect(),
            left_out: observed.left_out,
        }
    }
}

impl ObservedStageReport {
    fn new(stage: &ObservedStage) -> ObservedStageReport {
        ObservedStageReport {
            known: stage.is_known,
            started: DelayReport::new(stage.started),
            ended: DelayReport::new(stage.ended),
            early: stage.early,
            overlapping: stage.overlapping,
            waiting: stage.waiting,
            longest_wait_ms: millis(stage.longest_wait),
            used_up: stage.used_up,
        }
    }
}

impl DelayReport {
    fn new(delays: DelaySummary) -> DelayReport {
        DelayReport {
            count: delays.count,
            p50_ms: millis(delays.p50),
            p99_ms: millis(delays.p99),
            max_ms: millis(delays.longest),
        }
    }
}

impl fmt::Display for DelayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DelayReport { p50_ms, p99_ms, max_ms, .. } = self;
        write!(f, "p50 {p50_ms} ms, p99 {p99_ms} ms, at most {max_ms} ms")
    }
}

impl fmt::Display for ObservedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.since.as_deref().map_or("nothing yet".to_owned(), |since| format!("since {since}"));
        writeln!(f, "observed:   {since}; nothing is claimed, called or written (work.mode = \"observe\")")?;
        for (name, stage) in &self.stages {
            let ObservedStageReport { started, ended, early, overlapping, waiting, longest_wait_ms, used_up, .. } =
                stage;
            writeln!(f, "stage {name}: {} rows started by others after they were due: {started}", started.count)?;
            if ended.count > 0 {
                writeln!(f, "            {} that were not shown RUNNING, with the work itself: {ended}", ended.count)?;
            }
            if *waiting > 0 {
                writeln!(f, "            {waiting} are due and not started, the first for {longest_wait_ms} ms")?;
            }
            if *overlapping > 0 {
                writeln!(f, "            {overlapping} attempts began while another of the same row was under way")?;
            }
            if *early > 0 {
                writeln!(f, "            {early} rows were taken before they were due")?;
            }
            if *used_up > 0 {
                writeln!(
                    f,
                    "            {used_up} rows that wait have used up the stage's `attempts`: here they would not be started"
                )?;
            }
            if !stage.known {
                writeln!(
                    f,
                    "            The configuration does not have this stage: here its rows would be parked (STAGE_GONE)."
                )?;
            }
        }
        if self.left_out > 0 {
            writeln!(f, "            {} changes are of rows that were too many to follow.", self.left_out)?;
        }
        Ok(())
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use postrider_core::time::Timestamp;

    #[test]
    fn what_was_seen_is_readable_as_text_and_only_what_there_is_to_say() {
        let delays = |count, millis| DelaySummary {
            count,
            p50: Duration::from_millis(millis),
            p99: Duration::from_millis(2 * millis),
            longest: Duration::from_millis(3 * millis),
        };
        let busy = ObservedStage {
            is_known: true,
            started: delays(1200, 500),
            ended: delays(2, 10),
            early: 1,
            overlapping: 4,
            waiting: 3,
            longest_wait: Duration::from_secs(12),
            used_up: 5,
        };
        let quiet = ObservedStage { is_known: true, started: delays(7, 100), ..ObservedStage::default() };
        let stages = [("PRICING", busy), ("APPROVAL", quiet), ("OLD", ObservedStage::default())];
        let stages = stages.into_iter().map(|(name, stage)| (name.to_owned(), stage)).collect();
        let report = ObservedReport::new(&Observed { since: Some(Timestamp(0)), stages, left_out: 9 });
        expect![[r#"
            observed:   since 1970-01-01T00:00:00.000000Z; nothing is claimed, called or written (work.mode = "observe")
            stage APPROVAL: 7 rows started by others after they were due: p50 100 ms, p99 200 ms, at most 300 ms
            stage OLD: 0 rows started by others after they were due: p50 0 ms, p99 0 ms, at most 0 ms
                        The configuration does not have this stage: here its rows would be parked (STAGE_GONE).
            stage PRICING: 1200 rows started by others after they were due: p50 500 ms, p99 1000 ms, at most 1500 ms
                        2 that were not shown RUNNING, with the work itself: p50 10 ms, p99 20 ms, at most 30 ms
                        3 are due and not started, the first for 12000 ms
                        4 attempts began while another of the same row was under way
                        1 rows were taken before they were due
                        5 rows that wait have used up the stage's `attempts`: here they would not be started
                        9 changes are of rows that were too many to follow.
        "#]]
        .assert_eq(&report.to_string());
    }
}
