//! A history as lines of JSON, for systems that record their own: `docs/history-format.md` has the fields.
#![deny(clippy::indexing_slicing, clippy::as_conversions, clippy::arithmetic_side_effects)]

mod fields;
mod written;

use super::{Cause, ConfirmPolicy, Record, Rules, StageRule, WorkStep};
use crate::position::{Generation, Lsn, Position};
use crate::work::{OwnerId, StageName};
use fields::{Fields, Problem, names};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

pub use written::write;

/// The version of the format, which the first line names.
const VERSION: u32 = 1;

const FIRST_LINE: &str =
    r#"{"history":1,"stages":[{"name":"PRICING","attempt_limit":5}],"consumers":["partners"],"at_rest":true}"#;

const KINDS: [&str; 19] = [
    "submitted",
    "claim_written",
    "fence_raised",
    "resumed",
    "checkpoint_written",
    "stage_entered",
    "parked",
    "closed",
    "request_received",
    "effect_committed",
    "answer_stored",
    "answer_given",
    "event_committed",
    "event_delivered",
    "confirmed",
    "intent_written",
    "intent_sent",
    "outcome_written",
    "looked_up",
];

/// A history as a file has it, whole in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    pub rules: Rules,
    pub records: Vec<Record>,
    /// The line of each record, from 1.
    pub lines: Vec<usize>,
}

/// A line that cannot be read: what is wrong with it, and what would be right there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// From 1.
    pub line: usize,
    pub problem: String,
    pub cure: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.problem)
    }
}

impl std::error::Error for BadLine {}

/// Reads a whole file. Empty lines are passed over.
pub fn read(text: &str) -> Result<History, BadLine> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let bad = |line| move |Problem { problem, cure }| BadLine { line, problem, cure };
    let (number, first) = lines.next().ok_or_else(|| bad(1)(no_rules()))?;
    let rules = read_rules(first).map_err(bad(number))?;
    let mut reader = Reader { rules, last: None, events: BTreeSet::new() };
    let (mut records, mut numbers) = (Vec::new(), Vec::new());
    for (number, line) in lines {
        records.push(reader.record(line).map_err(bad(number))?);
        numbers.push(number);
    }
    Ok(History { rules: reader.rules, records, lines: numbers })
}

fn no_rules() -> Problem {
    Problem::new("the rules are missing", format!("The first line is as {FIRST_LINE}"))
}

fn read_rules(line: &str) -> Result<Rules, Problem> {
    let mut fields = Fields::of(line)?;
    if !fields.has("history") {
        return Err(no_rules());
    }
    let version = fields.count("history")?;
    if version != VERSION {
        return Err(Problem::new(format!("the format is of version {version}"), format!("This is version {VERSION}.")));
    }
    let mut stages = Vec::new();
    for mut stage in fields.objects("stages")? {
        let name = StageName::new(&stage.text("name")?);
        stages.push(StageRule { name, attempt_limit: stage.count("attempt_limit")? });
        stage.end()?;
    }
    let consumers = fields.texts("consumers")?.into_iter().map(Arc::from).collect();
    let at_rest = fields.flag("at_rest")?;
    fields.end()?;
    Ok(Rules { stages, consumers, at_rest })
}

/// What later lines are read against.
#[derive(Debug)]
struct Reader {
    rules: Rules,
    /// Of the newest event.
    last: Option<Position>,
    events: BTreeSet<Arc<str>>,
}

impl Reader {
    fn record(&mut self, line: &str) -> Result<Record, Problem> {
        let mut fields = Fields::of(line)?;
        let kind = fields.text("record")?;
        let record = match kind.as_str() {
            "request_received" | "effect_committed" | "answer_stored" | "answer_given" => {
                self.of_a_receiver(&kind, &mut fields)?
            }
            "event_committed" => self.committed(&mut fields)?,
            "event_delivered" => {
                let consumer = self.consumer(&fields.text("consumer")?)?;
                Record::EventDelivered { consumer, id: fields.text("id")?.into() }
            }
            "confirmed" => self.confirmed(&mut fields)?,
            "intent_written" => Record::IntentWritten { reference: fields.text("reference")?.into() },
            "intent_sent" => Record::IntentSent { reference: fields.text("reference")?.into() },
            "outcome_written" => Record::OutcomeWritten { reference: fields.text("reference")?.into() },
            "looked_up" => Record::LookedUp { reference: fields.text("reference")?.into() },
            _ => self.of_a_row(&kind, &mut fields)?,
        };
        fields.end()?;
        Ok(record)
    }

    fn of_a_row(&self, kind: &str, fields: &mut Fields) -> Result<Record, Problem> {
        if !KINDS.contains(&kind) {
            let cure = format!("The records are {}.", names(&KINDS));
            return Err(Problem::new(format!("there is no record {kind}"), cure));
        }
        let key = fields.key("key")?;
        Ok(match kind {
            "submitted" => Record::Submitted { key, stage: self.stage(fields)? },
            "claim_written" => {
                let (epoch, fence) = (fields.count_or_zero("epoch")?, fields.signed("fence")?);
                Record::ClaimWritten { key, stage: self.stage(fields)?, epoch, fence, owner: owner(fields)? }
            }
            "fence_raised" => Record::FenceRaised { key, fence: fields.signed("fence")? },
            "resumed" => Record::Resumed { key, fence: fields.signed("fence")? },
            "checkpoint_written" => {
                let (fence, deferred) = (fields.signed("fence")?, fields.flag_or_false("deferred")?);
                Record::CheckpointWritten { key, stage: self.stage(fields)?, fence, owner: owner(fields)?, deferred }
            }
            "stage_entered" => {
                let causes =
                    [("success", Cause::Success), ("compensation", Cause::Compensation), ("operator", Cause::Operator)];
                Record::StageEntered { key, stage: self.stage(fields)?, cause: fields.word("cause", &causes)? }
            }
            "parked" => Record::Parked { key, reason: fields.text("reason")? },
            _ => Record::Closed { key },
        })
    }

    fn of_a_receiver(&self, kind: &str, fields: &mut Fields) -> Result<Record, Problem> {
        if kind == "effect_committed" {
            return Ok(Record::EffectCommitted { work: self.work(fields)? });
        }
        let idempotency_key = fields.text("idempotency_key")?.into();
        let fingerprint = digest(&fields.text("fingerprint")?);
        if kind == "request_received" {
            let (attempt, fence) = (fields.count_or_zero("attempt")?, fields.signed_or_zero("fence")?);
            let work = self.work(fields)?;
            return Ok(Record::RequestReceived { work, idempotency_key, fingerprint, attempt, fence });
        }
        let body_hash = digest(&fields.text("body_hash")?);
        Ok(match kind {
            "answer_stored" => Record::AnswerStored { idempotency_key, fingerprint, body_hash },
            _ => Record::AnswerGiven { idempotency_key, fingerprint, body_hash },
        })
    }

    fn committed(&mut self, fields: &mut Fields) -> Result<Record, Problem> {
        let id: Arc<str> = fields.text("id")?.into();
        if !self.events.insert(Arc::clone(&id)) {
            let cure = "An event is committed once; its id is its own.";
            return Err(Problem::new(format!("event {id} was committed before"), cure));
        }
        let commit_lsn =
            if fields.has("lsn") { fields.lsn("lsn")? } else { self.last.map_or(Lsn(0), |last| last.commit_lsn) };
        if let Some(last) = self.last.filter(|last| last.commit_lsn > commit_lsn) {
            let problem =
                format!("event {id} was committed at {commit_lsn}, before the one above at {}", last.commit_lsn);
            return Err(Problem::new(problem, "Write events in the order of their commits."));
        }
        let beside = self.last.filter(|last| last.commit_lsn == commit_lsn);
        let ordinal = beside.map_or(0, |last| last.ordinal.saturating_add(1));
        let position = Position { generation: Generation::FIRST, commit_lsn, ordinal };
        self.last = Some(position);
        Ok(Record::EventCommitted { id, position, key: fields.text_or_none("key")?.map(Arc::from) })
    }

    fn confirmed(&self, fields: &mut Fields) -> Result<Record, Problem> {
        let mut settled = Vec::new();
        for (consumer, lsn) in fields.lsns("settled")? {
            settled.push((self.consumer(&consumer)?, lsn));
        }
        Ok(Record::Confirmed {
            slot: fields.text("slot")?.into(),
            lsn: fields.lsn("lsn")?,
            durable: fields.lsn("durable")?,
            settled,
            policy: fields.word("policy", &[("sinks", ConfirmPolicy::Sinks), ("journal", ConfirmPolicy::Journal)])?,
        })
    }

    fn work(&self, fields: &mut Fields) -> Result<WorkStep, Problem> {
        Ok(WorkStep { key: fields.key("key")?, stage: self.stage(fields)?, epoch: fields.count_or_zero("epoch")? })
    }

    fn stage(&self, fields: &mut Fields) -> Result<StageName, Problem> {
        let name = fields.text("stage")?;
        let known = || self.rules.stages.iter().map(|rule| &rule.name);
        known().find(|stage| stage.as_str() == name).cloned().ok_or_else(|| {
            let known: Vec<&str> = known().map(StageName::as_str).collect();
            let cure = format!("Add it to the first line, which has {}.", names(&known));
            Problem::new(format!("the rules have no stage {name}"), cure)
        })
    }

    fn consumer(&self, name: &str) -> Result<Arc<str>, Problem> {
        self.rules.consumers.iter().find(|known| &***known == name).cloned().ok_or_else(|| {
            let known: Vec<&str> = self.rules.consumers.iter().map(AsRef::as_ref).collect();
            let cure = format!("Add it to the first line, which has {}.", names(&known));
            Problem::new(format!("the rules have no consumer {name}"), cure)
        })
    }
}

fn owner(fields: &mut Fields) -> Result<OwnerId, Problem> {
    Ok(OwnerId(digest(&fields.text("owner")?)))
}

/// Texts are compared only, so the first bytes of their SHA-256 stand for them.
fn digest(text: &str) -> u64 {
    Sha256::digest(text).iter().take(8).fold(0, |number, byte| number.wrapping_shl(8) | u64::from(*byte))
}
