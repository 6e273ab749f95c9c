//! What `/status` says and `postrider status` prints.

use postrider_core::time::Timestamp;
use postrider_delivery::rfc3339;
use postrider_engine::Telemetry;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The picture of a running process. Log positions are texts as PostgreSQL prints them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) version: String,
    pub(crate) process_id: u32,
    pub(crate) ready: bool,
    /// What keeps the process from being ready, one sentence each.
    pub(crate) obstacles: Vec<String>,
    pub(crate) connected: bool,
    pub(crate) trouble: Option<String>,
    pub(crate) received_lsn: String,
    pub(crate) durable_lsn: String,
    pub(crate) confirmed_lsn: String,
    pub(crate) heartbeat_seen_at: Option<String>,
    /// Bytes of log that the server keeps for the slot.
    pub(crate) slot_retained_bytes: i64,
    /// The guard confirms at the journal although a required sink is behind.
    pub(crate) guard_active: bool,
    pub(crate) work: WorkReport,
    pub(crate) consumers: BTreeMap<String, ConsumerReport>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkReport {
    pub(crate) ready: bool,
    pub(crate) open_rows: i64,
    pub(crate) calls_in_flight: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConsumerReport {
    pub(crate) required: bool,
    pub(crate) position: Option<String>,
    pub(crate) settled_lsn: String,
    /// Bytes of log between what is settled and what is received.
    pub(crate) behind_bytes: u64,
    pub(crate) trouble: Option<String>,
}

impl Report {
    /// The picture that `telemetry` has now.
    pub(crate) fn new(telemetry: &Telemetry, obstacles: Vec<String>) -> Report {
        let status = telemetry.status();
        let received = status.received;
        let consumers = status.consumers.into_iter().map(|(name, consumer)| {
            let report = ConsumerReport {
                required: consumer.required,
                position: consumer.position.map(|position| position.to_string()),
                settled_lsn: consumer.settled.to_string(),
                behind_bytes: received.0.saturating_sub(consumer.settled.0),
                trouble: consumer.trouble,
            };
            (name, report)
        });
        Report {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process_id: std::process::id(),
            ready: obstacles.is_empty(),
            obstacles,
            connected: status.connected,
            trouble: status.trouble,
            received_lsn: received.to_string(),
            durable_lsn: status.durable.to_string(),
            confirmed_lsn: status.confirmed.to_string(),
            heartbeat_seen_at: status.heartbeat_seen_at.map(|at: Timestamp| rfc3339(at)),
            slot_retained_bytes: telemetry.slot_retained_bytes.get(),
            guard_active: telemetry.guard_active.get() != 0,
            work: WorkReport {
                ready: status.work_ready,
                open_rows: telemetry.open_rows.get(),
                calls_in_flight: telemetry.calls_in_flight.get(),
            },
            consumers: consumers.collect(),
        }
    }
}

/// For a person at a terminal.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "postrider {} (process {})", self.version, self.process_id)?;
        writeln!(f, "ready:      {}", if self.ready { "yes" } else { "no" })?;
        for obstacle in &self.obstacles {
            writeln!(f, "            {obstacle}")?;
        }
        writeln!(f, "received:   {}", self.received_lsn)?;
        writeln!(f, "durable:    {}", self.durable_lsn)?;
        writeln!(f, "confirmed:  {}", self.confirmed_lsn)?;
        writeln!(f, "heartbeat:  {}", self.heartbeat_seen_at.as_deref().unwrap_or("not seen yet"))?;
        writeln!(
            f,
            "slot keeps: {} bytes{}",
            self.slot_retained_bytes,
            if self.guard_active { ", guard active" } else { "" }
        )?;
        writeln!(f, "work:       {} open rows, {} calls in flight", self.work.open_rows, self.work.calls_in_flight)?;
        for (name, consumer) in &self.consumers {
            let required = if consumer.required { "required" } else { "optional" };
            writeln!(
                f,
                "{name}: settled {}, {} bytes behind, {required}",
                consumer.settled_lsn, consumer.behind_bytes
            )?;
            if let Some(trouble) = &consumer.trouble {
                writeln!(f, "            {trouble}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use postrider_core::position::{Generation, Lsn, Position};

    #[test]
    fn a_report_reads_back_what_it_prints_as_json_and_is_readable_as_text() {
        let telemetry = Telemetry::default();
        telemetry.update(|status| {
            status.connected = true;
            status.work_ready = true;
            status.received = Lsn(0x1_0000_0100);
            status.heartbeat_seen_at = Some(Timestamp(0));
        });
        telemetry.update_consumer("events", |consumer| {
            consumer.required = true;
            consumer.position = Some(Position::whole(Generation::FIRST, Lsn(0x1_0000_0000)));
            consumer.settled = Lsn(0x1_0000_0000);
            consumer.trouble = Some("PR017 the endpoint is down".to_owned());
        });
        telemetry.open_rows.set(3);
        let mut report = Report::new(&telemetry, vec!["No heartbeat.".to_owned()]);
        report.process_id = 1;
        report.version = "0.0.0".to_owned();
        let json = serde_json::to_string(&report).expect("a report is JSON");
        assert_eq!(serde_json::from_str::<Report>(&json).expect("and reads back"), report);
        expect![[r#"
            postrider 0.0.0 (process 1)
            ready:      no
                        No heartbeat.
            received:   1/100
            durable:    0/0
            confirmed:  0/0
            heartbeat:  1970-01-01T00:00:00.000000Z
            slot keeps: 0 bytes
            work:       3 open rows, 0 calls in flight
            events: settled 1/0, 256 bytes behind, required
                        PR017 the endpoint is down
        "#]]
        .assert_eq(&report.to_string());
    }
}
