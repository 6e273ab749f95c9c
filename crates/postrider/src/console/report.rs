//! What `/status` says and `postrider status` prints.

use crate::console::observed::ObservedReport;
use crate::explain;
use crate::succession::{GAP_HINT, describe};
use postrider_core::paused::Paused;
use postrider_core::stage::StageClass;
use postrider_core::time::Timestamp;
use postrider_delivery::rfc3339;
use postrider_engine::{LATE, RowsWaiting, StageHarm, StageTrouble, Telemetry};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The name of the stage executor among the consumers.
const EXECUTOR: &str = "work";

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
    pub(crate) staging: StagingReport,
    pub(crate) work: WorkReport,
    /// What somebody else did with the rows; `None` where we execute ourselves.
    #[serde(default)]
    pub(crate) observed: Option<ObservedReport>,
    pub(crate) consumers: BTreeMap<String, ConsumerReport>,
    /// The stages in trouble.
    pub(crate) stages: BTreeMap<String, StageReport>,
    /// Endpoints that are not called, or not by all that wait for them yet, by their origin.
    pub(crate) circuits: BTreeMap<String, CircuitReport>,
    /// Stages and endpoints that people hold back.
    #[serde(default)]
    pub(crate) paused: Vec<PausedReport>,
    /// Files of credentials that changed and cannot be used, and why not.
    #[serde(default)]
    pub(crate) credentials: BTreeMap<String, String>,
    /// What is on record as left out and not yet accepted, a sentence each.
    pub(crate) gaps: Vec<String>,
    /// What the lack of room costs or is about to cost, and what to type.
    pub(crate) warnings: Vec<String>,
}

/// What waits for its outcome on the local disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StagingReport {
    pub(crate) in_progress: i64,
    /// Prepared transactions without a verdict.
    pub(crate) prepared: i64,
    pub(crate) bytes: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkReport {
    pub(crate) ready: bool,
    pub(crate) open_rows: i64,
    pub(crate) calls_in_flight: i64,
    /// Executors that share the table's rows, this one included.
    #[serde(default)]
    pub(crate) executors: i64,
    /// Open rows whose commit is in the log and waits, so that nobody can claim them yet.
    pub(crate) unseen_rows: i64,
    /// `None` until all open rows were read.
    #[serde(default)]
    pub(crate) waiting_for_a_person: Option<WaitingReport>,
    /// Rows that were parked since the start because nobody here can start them: how many, by the reason.
    #[serde(default)]
    pub(crate) refused: BTreeMap<String, u64>,
}

/// Open rows of the whole table, as the last read of all of them had them, and those that this process has left so since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WaitingReport {
    pub(crate) non_resumable: u64,
    pub(crate) unknown: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConsumerReport {
    /// `stages`, `required` or `optional`.
    pub(crate) role: String,
    pub(crate) position: Option<String>,
    pub(crate) settled_lsn: String,
    /// Bytes of log between what is settled and what is received.
    pub(crate) behind_bytes: u64,
    pub(crate) trouble: Option<String>,
    /// What that costs, and what to type.
    pub(crate) cure: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StageReport {
    pub(crate) class: String,
    /// Scheme, host and port; the path may be secret.
    pub(crate) endpoint: String,
    /// Calls that came to no good end, of those that ended in the last ten minutes.
    pub(crate) failed: u64,
    /// All calls that ended in the last ten minutes.
    pub(crate) ended: u64,
    /// When the last call without a good end ended.
    pub(crate) last_at: String,
    /// What came of it.
    pub(crate) last: String,
    /// Where no call has come to a good end since.
    pub(crate) failing: Option<FailingReport>,
    /// What that costs, and what to type.
    pub(crate) cure: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FailingReport {
    /// When the first of them ended.
    pub(crate) since: String,
    pub(crate) calls: u64,
}

/// A stage, in one definition or in all, or an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PausedReport {
    /// As a person reads it.
    pub(crate) part: String,
    pub(crate) since: String,
    pub(crate) who: String,
    pub(crate) why: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CircuitReport {
    pub(crate) since: String,
    /// When one call tries the endpoint; in the past once it answered and more follow.
    pub(crate) tries_at: String,
}

impl Report {
    /// The picture that `telemetry` has at `now`. `endpoints` has the origin of each stage's.
    pub(crate) fn new(
        telemetry: &Telemetry,
        now: Timestamp,
        obstacles: Vec<String>,
        endpoints: &BTreeMap<String, String>,
    ) -> Report {
        let status = telemetry.status();
        let received = status.received;
        let consumers = status.consumers.into_iter().map(|(name, consumer)| {
            let role = role(&name, consumer.required);
            let report = ConsumerReport {
                role: role.to_owned(),
                cure: consumer.trouble.as_deref().map(|trouble| consumer_cure(role, trouble)),
                position: consumer.position.map(|position| position.to_string()),
                settled_lsn: consumer.settled.to_string(),
                behind_bytes: received.0.saturating_sub(consumer.settled.0),
                trouble: consumer.trouble,
            };
            (name, report)
        });
        let stages = status.stages.into_iter().filter_map(|(name, calls)| {
            let endpoint = endpoints.get(&name).cloned().unwrap_or_default();
            let report = StageReport::new(calls.trouble(now)?, endpoint);
            Some((name, report))
        });
        let circuits = status.circuits.into_iter().map(|(endpoint, circuit)| {
            (endpoint, CircuitReport { since: rfc3339(circuit.since), tries_at: rfc3339(circuit.tries_at) })
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
            staging: StagingReport {
                in_progress: telemetry.staged_transactions.get(),
                prepared: telemetry.prepared_transactions.get(),
                bytes: telemetry.staged_bytes.get(),
            },
            work: WorkReport {
                ready: status.work_ready,
                open_rows: telemetry.open_rows.get(),
                calls_in_flight: telemetry.calls_in_flight.get(),
                executors: telemetry.executors.get(),
                unseen_rows: telemetry.unseen_rows.get(),
                waiting_for_a_person: status.rows_waiting.map(|rows| {
                    let RowsWaiting { non_resumable, unknown } = rows;
                    WaitingReport { non_resumable, unknown }
                }),
                refused: status.refused,
            },
            observed: status.observed.as_ref().map(ObservedReport::new),
            consumers: consumers.collect(),
            stages: stages.collect(),
            circuits: circuits.collect(),
            paused: status.paused.iter().map(PausedReport::new).collect(),
            credentials: status.credentials,
            warnings: status.slot_warning.into_iter().chain(status.room_warnings).collect(),
            gaps: status.gaps.iter().filter(|gap| !gap.accepted).map(describe).collect(),
        }
    }
}

impl PausedReport {
    pub(crate) fn new(paused: &Paused) -> PausedReport {
        let Paused { part, since, who, why } = paused;
        PausedReport { part: part.to_string(), since: rfc3339(*since), who: who.clone(), why: why.clone() }
    }
}

/// What is held back, in one clause.
impl fmt::Display for PausedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PausedReport { part, since, who, why } = self;
        write!(f, "{part}: paused since {since} by {who}: {why}")
    }
}

impl StageReport {
    fn new(trouble: StageTrouble, endpoint: String) -> StageReport {
        let StageTrouble { class, failed, ended, last, streak } = trouble;
        StageReport {
            class: name_of(class).to_owned(),
            cure: stage_cure(last.harm, &endpoint),
            endpoint,
            failed,
            ended,
            last_at: rfc3339(last.at),
            last: last.reason,
            failing: streak.map(|streak| FailingReport { since: rfc3339(streak.since), calls: streak.calls }),
        }
    }
}

/// What is wrong, in one clause.
impl fmt::Display for StageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failing {
            Some(FailingReport { since, calls }) => {
                write!(f, "{calls} calls since {since} came to no good end, and none to a good one")
            }
            None => {
                let (failed, ended, minutes) = (self.failed, self.ended, LATE.as_secs() / 60);
                write!(f, "{failed} of {ended} calls in the last {minutes} minutes came to no good end")
            }
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
        let StagingReport { in_progress, prepared, bytes } = self.staging;
        if in_progress > 0 || prepared > 0 {
            writeln!(f, "staged:     {bytes} bytes, {in_progress} transactions in progress, {prepared} prepared")?;
        }
        match &self.observed {
            Some(observed) => write!(f, "{observed}")?,
            None => write!(f, "{}", self.work)?,
        }
        for (name, stage) in &self.stages {
            let StageReport { class, endpoint, last_at, last, cure, .. } = stage;
            writeln!(f, "stage {name} ({class}, {endpoint}): {stage}")?;
            writeln!(f, "            the last at {last_at}: {last}")?;
            writeln!(f, "            {cure}")?;
        }
        for (endpoint, CircuitReport { since, tries_at }) in &self.circuits {
            writeln!(f, "endpoint {endpoint}: its calls are held back since {since}; one tries it at {tries_at}")?;
            writeln!(
                f,
                "            Its stages' rows wait unclaimed. Once it answers they follow by themselves, a few at a time."
            )?;
        }
        for paused in &self.paused {
            writeln!(f, "{paused}")?;
        }
        if !self.paused.is_empty() {
            writeln!(f, "            {PAUSED_HINT}")?;
        }
        for (files, refusal) in &self.credentials {
            writeln!(f, "credentials {files}: {refusal}")?;
        }
        if !self.credentials.is_empty() {
            writeln!(f, "            {CREDENTIALS_HINT}")?;
        }
        for (name, consumer) in &self.consumers {
            let ConsumerReport { role, settled_lsn, behind_bytes, .. } = consumer;
            writeln!(f, "{name}: settled {settled_lsn}, {behind_bytes} bytes behind, {role}")?;
            for sentence in consumer.trouble.iter().chain(&consumer.cure) {
                writeln!(f, "            {sentence}")?;
            }
        }
        for warning in &self.warnings {
            writeln!(f, "warning:    {warning}")?;
        }
        for gap in &self.gaps {
            writeln!(f, "left out:   {gap}")?;
        }
        if !self.gaps.is_empty() {
            writeln!(f, "            {GAP_HINT}")?;
        }
        Ok(())
    }
}

impl fmt::Display for WorkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkReport { open_rows, calls_in_flight, executors, .. } = self;
        let shared = if *executors > 1 { format!("; {executors} executors share the rows") } else { String::new() };
        writeln!(f, "work:       {open_rows} open rows, {calls_in_flight} calls in flight{shared}")?;
        if self.unseen_rows > 0 {
            writeln!(
                f,
                "            {} of them wait for the end of their commit: it is in the log, and the server keeps it back for a synchronous standby",
                self.unseen_rows
            )?;
        }
        if let Some(waiting) = &self.waiting_for_a_person {
            write!(f, "{waiting}")?;
        }
        for (reason, rows) in &self.refused {
            writeln!(f, "            parked since the start, {rows} rows: {reason}")?;
        }
        if !self.refused.is_empty() {
            writeln!(f, "            {REFUSED_HINT}")?;
        }
        Ok(())
    }
}

/// How many wait, and how they are listed; nothing where none do.
impl fmt::Display for WaitingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [("NON_RESUMABLE", self.non_resumable), ("UNKNOWN", self.unknown)];
        let kinds: Vec<(&str, u64)> = kinds.into_iter().filter(|(_, rows)| *rows > 0).collect();
        let wait = match kinds.iter().fold(0u64, |sum, (_, rows)| sum.saturating_add(*rows)) {
            0 => return Ok(()),
            1 => "1 row waits".to_owned(),
            rows => format!("{rows} rows wait"),
        };
        let counts: Vec<String> = kinds.iter().map(|(state, rows)| format!("{rows} {state}")).collect();
        let lists: Vec<String> =
            kinds.iter().map(|(state, _)| format!("`postrider work ls --state {state}`")).collect();
        writeln!(f, "            {wait} for a person: {}; {}", counts.join(", "), lists.join(", "))
    }
}

/// What bad credentials cost, and what to do.
const CREDENTIALS_HINT: &str = "Those of before are used, and a start would fail. Put good ones there, no restart is needed: they are read at the next call. `postrider check` says whether they are good.";

/// What to do about rows that nobody here can start.
const REFUSED_HINT: &str = "Give the configuration what they lack ([[work.earlier]] holds a definition that is no longer current), start again, and let them go on: `postrider work resume`; or move them to another definition first: `postrider work migrate`.";

/// What to do about what a person holds back.
const PAUSED_HINT: &str =
    "Its rows wait unclaimed, and nothing else does. `postrider stage resume` lets them go on, in their order.";

/// What a consumer is to the slot and the journal. The stages' rows are the truth, so nobody waits for their place in the log.
fn role(name: &str, required: bool) -> &'static str {
    match (name, required) {
        (EXECUTOR, _) => "stages",
        (_, true) => "required",
        (_, false) => "optional",
    }
}

fn name_of(class: StageClass) -> &'static str {
    match class {
        StageClass::Natural => "natural",
        StageClass::Keyed => "keyed",
        StageClass::SameTx => "same_tx",
    }
}

/// What an end like the last costs its row, and what to do; those before it may have cost theirs something else.
fn stage_cure(harm: StageHarm, endpoint: &str) -> String {
    match harm {
        StageHarm::Waiting => format!(
            "A row whose call ends so waits and uses no attempt. Start the service at {endpoint}, or correct the stage's `url`; `postrider check` tries it."
        ),
        StageHarm::Deferring => {
            "A row whose call ends so waits as the receiver asked, and uses one of its `deferrals`. Relieve the receiver, or lower the \
             stage's `concurrency`."
                .to_owned()
        }
        StageHarm::Retrying => {
            "A row whose call ends so is asked again under the same key and uses its `attempts`; without any left it waits for a \
             person. Look into the receiver's log."
                .to_owned()
        }
        StageHarm::Parking => {
            "A row whose call ends so is NON_RESUMABLE until a person decides. Mend what its `last_error` says, then `postrider work resume`: the same \
             key, a fresh budget."
                .to_owned()
        }
        StageHarm::Unknown => {
            "A row whose call ends so is UNKNOWN: nobody knows what was done for it. Find out at the receiver, and say it: `postrider work \
             resolve`."
                .to_owned()
        }
    }
}

fn consumer_cure(role: &str, trouble: &str) -> String {
    let cost = match role {
        "optional" => "Nothing is lost as long as the journal holds what it lacks; no other consumer waits.",
        _ => "Nothing is lost: what it lacks is kept for it; no other consumer waits.",
    };
    match trouble.split(' ').next().filter(|code| explain::kind_of(code).is_some()) {
        Some(code) => format!("{cost} `postrider explain {code}` says what to type."),
        None => cost.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use postrider_core::paused::PausedPart;
    use postrider_core::position::{Generation, Lsn, Position};
    use postrider_engine::{BadEnd, OpenCircuit, StageCalls};

    fn paused() -> Paused {
        let [who, why] = ["ada", "the insurer asked for it"].map(str::to_owned);
        Paused { part: PausedPart::of(["BINDING", "quote@1", ""]).expect("a part"), since: Timestamp(0), who, why }
    }

    /// One stage that only fails, one that fails now and then, and one that does not.
    fn end_calls(telemetry: &Telemetry) {
        let bad = |harm, reason: &str| BadEnd { harm, reason: reason.to_owned(), at: Timestamp(0) };
        for _ in 0..3 {
            telemetry.update_stage("PRICING", StageClass::Keyed, |calls| {
                calls.note_bad(bad(StageHarm::Waiting, "NOT_SENT: connection refused"));
            });
        }
        telemetry.update_stage("APPROVAL", StageClass::Natural, |calls| {
            calls.note_bad(bad(StageHarm::Retrying, "HTTP_500"));
            (0..9).for_each(|_| calls.note_good(Timestamp(1)));
        });
        telemetry.update_stage("BINDING", StageClass::Natural, |calls| calls.note_good(Timestamp(0)));
    }

    #[test]
    fn a_report_reads_back_what_it_prints_as_json_and_is_readable_as_text() {
        let telemetry = Telemetry::default();
        telemetry.update(|status| {
            status.connected = true;
            status.work_ready = true;
            status.received = Lsn(0x1_0000_0100);
            status.heartbeat_seen_at = Some(Timestamp(0));
            status.paused.push(paused());
            let reason = "PR012 unreadable file of credentials. /run/token: it is not a file.";
            status.credentials.insert("/run/token".to_owned(), reason.to_owned());
            let circuit = OpenCircuit { since: Timestamp(0), tries_at: Timestamp(1_500_000) };
            status.circuits.insert("http://quoting:80".to_owned(), circuit);
        });
        telemetry.update_consumer("events", |consumer| {
            consumer.required = true;
            consumer.position = Some(Position::whole(Generation::FIRST, Lsn(0x1_0000_0000)));
            consumer.settled = Lsn(0x1_0000_0000);
            consumer.trouble = Some("PR017 the endpoint is down".to_owned());
        });
        telemetry.update_consumer("work", |consumer| consumer.settled = Lsn(0x1_0000_0100));
        end_calls(&telemetry);
        telemetry.open_rows.set(3);
        telemetry.note_waiting(RowsWaiting { non_resumable: 12, unknown: 8 });
        telemetry.executors.set(2);
        let gone = "VERSION_GONE: the configuration has no definition \"quote@1\"".to_owned();
        telemetry.update(|status| status.refused.extend([(gone, 2)]));
        let endpoints = BTreeMap::from([("PRICING".to_owned(), "http://quoting:80".to_owned())]);
        let mut report = Report::new(&telemetry, Timestamp(2), vec!["No heartbeat.".to_owned()], &endpoints);
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
            work:       3 open rows, 0 calls in flight; 2 executors share the rows
                        20 rows wait for a person: 12 NON_RESUMABLE, 8 UNKNOWN; `postrider work ls --state NON_RESUMABLE`, `postrider work ls --state UNKNOWN`
                        parked since the start, 2 rows: VERSION_GONE: the configuration has no definition "quote@1"
                        Give the configuration what they lack ([[work.earlier]] holds a definition that is no longer current), start again, and let them go on: `postrider work resume`; or move them to another definition first: `postrider work migrate`.
            stage APPROVAL (natural, ): 1 of 10 calls in the last 10 minutes came to no good end
                        the last at 1970-01-01T00:00:00.000000Z: HTTP_500
                        A row whose call ends so is asked again under the same key and uses its `attempts`; without any left it waits for a person. Look into the receiver's log.
            stage PRICING (keyed, http://quoting:80): 3 calls since 1970-01-01T00:00:00.000000Z came to no good end, and none to a good one
                        the last at 1970-01-01T00:00:00.000000Z: NOT_SENT: connection refused
                        A row whose call ends so waits and uses no attempt. Start the service at http://quoting:80, or correct the stage's `url`; `postrider check` tries it.
            endpoint http://quoting:80: its calls are held back since 1970-01-01T00:00:00.000000Z; one tries it at 1970-01-01T00:00:01.500000Z
                        Its stages' rows wait unclaimed. Once it answers they follow by themselves, a few at a time.
            stage BINDING of quote@1: paused since 1970-01-01T00:00:00.000000Z by ada: the insurer asked for it
                        Its rows wait unclaimed, and nothing else does. `postrider stage resume` lets them go on, in their order.
            credentials /run/token: PR012 unreadable file of credentials. /run/token: it is not a file.
                        Those of before are used, and a start would fail. Put good ones there, no restart is needed: they are read at the next call. `postrider check` says whether they are good.
            events: settled 1/0, 256 bytes behind, required
                        PR017 the endpoint is down
                        Nothing is lost: what it lacks is kept for it; no other consumer waits. `postrider explain PR017` says what to type.
            work: settled 1/100, 0 bytes behind, stages
        "#]]
        .assert_eq(&report.to_string());
    }

    #[test]
    fn rows_that_wait_for_a_person_are_named_by_their_states_and_nothing_is_said_where_none_do() {
        let shown = |non_resumable, unknown| WaitingReport { non_resumable, unknown }.to_string();
        assert_eq!(shown(0, 0), "");
        let one = "            1 row waits for a person: 1 UNKNOWN; `postrider work ls --state UNKNOWN`\n";
        assert_eq!(shown(0, 1), one);
    }

    /// Of twenty calls most may have parked their rows: what is said holds for an end like the last, and for no other.
    #[test]
    fn a_stage_in_trouble_says_what_an_end_like_the_last_costs() {
        let mut calls = StageCalls::new(StageClass::Keyed);
        for (harm, reason) in [(StageHarm::Parking, "REJECTED"), (StageHarm::Unknown, "TIMEOUT")] {
            calls.note_bad(BadEnd { harm, reason: reason.to_owned(), at: Timestamp(0) });
        }
        let report = StageReport::new(calls.trouble(Timestamp(1)).expect("it is in trouble"), String::new());
        expect![[r#"
            2 calls since 1970-01-01T00:00:00.000000Z came to no good end, and none to a good one
            TIMEOUT
            A row whose call ends so is UNKNOWN: nobody knows what was done for it. Find out at the receiver, and say it: `postrider work resolve`."#]]
        .assert_eq(&format!("{report}\n{}\n{}", report.last, report.cure));
    }
}
