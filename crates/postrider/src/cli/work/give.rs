//! Giving an order to rows: to one by its key, or to all that have something in common.

use super::ls::Filter;
use super::{Place, key_of, key_text, open, unreadable_json};
use crate::cli::block_on;
use crate::config::Work;
use crate::{exit, output};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::order::{Move, Order, Ordered, Unfit};
use postrider_core::work::WorkKey;
use postrider_postgres::{Access, FoundRows, Note, Operator, RowFilter, UnreadableRows, WorkRow};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Rows that are read, and written, at once.
const PAGE_ROWS: u32 = 500;

/// What goes on record with an order.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Record {
    /// Why: it goes on record.
    #[arg(long, value_name = "TEXT", value_parser = said)]
    pub(super) why: String,
    /// Who orders it; else the user that is logged in.
    #[arg(long, value_name = "NAME", value_parser = said)]
    by: Option<String>,
    /// What it rests on: a ticket, an answer, a record at a provider.
    #[arg(long, value_name = "TEXT", value_parser = said)]
    evidence: Option<String>,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub(in crate::cli) dry_run: bool,
}

impl Record {
    /// What is written with an order, which was typed so.
    pub(in crate::cli) fn note(self, verb: &str) -> Note {
        let who = self.by.or_else(user).unwrap_or_else(|| "unknown".to_owned());
        Note { verb: verb.to_owned(), who, why: self.why, evidence: self.evidence }
    }
}

/// One row, or all that a filter holds for.
#[derive(Debug, clap::Args)]
pub(super) struct Rows {
    /// The row's key: a word for each of its columns. Without it, all rows that the filter holds for.
    key: Vec<String>,
    #[command(flatten)]
    filter: Filter,
    /// The fence that `postrider work show` told: a row that has moved on since is left alone. For one row.
    #[arg(long, value_name = "FENCE", requires = "key")]
    fence: Option<i64>,
}

enum Chosen {
    /// With the fence that it was seen at, where one is said.
    One(WorkKey, Option<i64>),
    All(RowFilter),
}

/// What came of an order.
#[derive(Default)]
struct Tally {
    done: Vec<(WorkKey, i64)>,
    /// Rows that it did not fit, by why.
    refused: BTreeMap<&'static str, Vec<WorkKey>>,
    /// Rows of which nobody can tell whether it fits them.
    unreadable: UnreadableRows,
}

impl Rows {
    pub(super) fn one(key: Vec<String>, fence: Option<i64>) -> Rows {
        Rows { key, filter: Filter::default(), fence }
    }

    fn chosen(&self, work: &Work) -> Result<Chosen> {
        let filter = self.filter.meant(work)?;
        match (self.key.is_empty(), filter.is_empty()) {
            (false, true) => Ok(Chosen::One(key_of(work, &self.key)?, self.fence)),
            (true, false) => Ok(Chosen::All(filter)),
            (true, true) => Err(Error::new(ErrorKind::Configuration, "neither a key nor a filter is given").with_hint(
                "Name one row by its key, or many by --stage, --state, --definition, --reason-like or --older-than.",
            )),
            (false, false) => Err(Error::new(ErrorKind::Configuration, "both a key and a filter are given")
                .with_hint("Name one row by its key, or many by a filter.")),
        }
    }
}

/// Gives the order and says what came of it.
pub(super) fn give(
    place: &Place,
    rows: &Rows,
    record: Record,
    order: impl FnOnce(&Work) -> Result<Order>,
) -> Result<u8> {
    let (work, options) = place.read()?;
    let order = order(&work)?;
    let chosen = rows.chosen(&work)?;
    let access = if matches!(order, Order::Reexecute { .. }) { Access::Reexecute } else { Access::Order };
    let dry_run = record.dry_run;
    let note = record.note(&order.typed(None));
    let tally = block_on(async {
        let operator = open(&work, &options, access).await?;
        let giving = Giving { operator: &operator, work: &work, order: &order, note: &note, dry_run };
        match chosen {
            Chosen::One(key, fence) => giving.to_one(&key, fence).await,
            Chosen::All(filter) => giving.to_all(&filter).await,
        }
    })?;
    tally.show(place.json, &order, dry_run);
    let whole = tally.refused.is_empty() && tally.unreadable.count == 0;
    Ok(if whole { exit::OK } else { ErrorKind::OrderRefused.exit_code() })
}

/// What is written into rows, and how the order goes on record for them.
#[derive(PartialEq, Eq)]
struct Fit {
    ordered: Ordered,
    typed: String,
}

struct Giving<'a> {
    operator: &'a Operator,
    work: &'a Work,
    order: &'a Order,
    note: &'a Note,
    dry_run: bool,
}

impl Giving<'_> {
    async fn to_one(&self, key: &WorkKey, fence: Option<i64>) -> Result<Tally> {
        let row = self.operator.row(key).await?.ok_or_else(|| no_such_row(key))?;
        let seen =
            format!("It is in {} {}, fence {}.", row.version.stage, row.version.state.as_str(), row.version.fence);
        if let Some(seen_fence) = fence.filter(|fence| *fence != row.version.fence) {
            return Err(Error::new(ErrorKind::OrderRefused, "the row has moved on since it was looked at")
                .with_detail(format!("It was to have the fence {seen_fence}. {seen}"))
                .with_hint("Look at it again: `postrider work show`."));
        }
        let is_done_with = row.version.closed && matches!(self.order, Order::Reexecute { .. });
        let mut tally = Tally::default();
        let since = self.batch(vec![row], &mut tally).await?;
        let Some((why, _)) = tally.refused.first_key_value() else { return Ok(tally) };
        let error = Error::new(ErrorKind::OrderRefused, *why);
        Err(match since {
            Some(since) => error
                .with_detail(format!("KEY_EXPIRED: it may have been acted on at {since}, which is longer ago than the stage's key_retention; asked again, the receiver could do the work a second time. {seen}"))
                .with_hint("Find out what the receiver did, then: `postrider work resolve` (it was done, or it was not), `skip` (it is done by hand), or `reexecute` (again, under a new key)."),
            None if is_done_with => error.with_detail(seen).with_hint(
                "A closed row stays as it is: insert a new row, under a key of its own, for work that shall be done a second time.",
            ),
            None => error.with_detail(seen),
        })
    }

    async fn to_all(&self, filter: &RowFilter) -> Result<Tally> {
        let (mut tally, mut after) = (Tally::default(), None);
        loop {
            let FoundRows { rows, unreadable } = self.operator.find(filter, after.as_ref(), PAGE_ROWS).await?;
            tally.unreadable.add(unreadable);
            let Some(last) = rows.last() else { return Ok(tally) };
            after = Some(last.version.key.clone());
            self.batch(rows, &mut tally).await?;
        }
    }

    /// Gives the order to rows as they were seen. Returns since when one of them may have been acted on, if its key has expired.
    async fn batch(&self, rows: Vec<WorkRow>, tally: &mut Tally) -> Result<Option<String>> {
        let mut since = None;
        let mut expired = BTreeMap::new();
        if self.order.asks_again() {
            let kept = |row: &WorkRow| {
                let step = self.work.definitions.step(row.version.definition.as_ref(), &row.version.stage);
                self.work.key_retention.get(&step).copied()
            };
            let found = self.operator.expired(&rows, &kept).await?;
            expired = found.into_iter().map(|expired| (expired.key, expired.since)).collect();
        }
        let keyed = if self.order.renames() { self.operator.keyed(&rows).await? } else { BTreeSet::new() };
        let mut fitting: Vec<(Fit, Vec<WorkRow>)> = Vec::new();
        for row in rows {
            match self.order.judge(&row.version) {
                Err(unfit) => tally.refuse(reason(unfit), row.version.key),
                // Another stage's name makes another key, and the receiver cannot tell it from new work.
                Ok(Ordered { stage: Some(_), definition: Some(_), .. }) if keyed.contains(&row.version.key) => {
                    tally.refuse("it may have been asked for under its stage's name", row.version.key);
                }
                Ok(_) if expired.contains_key(&row.version.key) => {
                    since = expired.remove(&row.version.key);
                    tally.refuse("the idempotency key has expired", row.version.key);
                }
                Ok(ordered) => {
                    let fit = Fit { ordered, typed: self.order.typed(row.version.definition.as_ref()) };
                    match fitting.iter_mut().find(|(same, _)| *same == fit) {
                        Some((_, rows)) => rows.push(row),
                        None => fitting.push((fit, vec![row])),
                    }
                }
            }
        }
        for (Fit { ordered, typed }, rows) in fitting {
            if self.dry_run {
                tally.done.extend(rows.into_iter().map(|row| (row.version.key, row.version.fence)));
                continue;
            }
            let note = Note { verb: typed, ..self.note.clone() };
            let written = self.operator.write(&rows, &ordered, &note).await?;
            for row in rows {
                if !written.iter().any(|(key, _)| *key == row.version.key) {
                    tally.refuse("the work row has moved on since it was looked at", row.version.key);
                }
            }
            tally.done.extend(written);
        }
        Ok(since)
    }
}

impl Tally {
    fn refuse(&mut self, why: &'static str, key: WorkKey) {
        self.refused.entry(why).or_default().push(key);
    }

    fn show(&self, is_json: bool, order: &Order, dry_run: bool) {
        let verb = order.verb();
        if is_json {
            let parts = |key: &WorkKey| key.parts().map(str::to_owned).collect::<Vec<_>>();
            let done: Vec<Value> =
                self.done.iter().map(|(key, fence)| json!({ "key": parts(key), "fence": fence })).collect();
            let refused: Vec<Value> = self
                .refused
                .iter()
                .map(|(why, keys)| json!({ "why": why, "keys": keys.iter().map(parts).collect::<Vec<_>>() }))
                .collect();
            let mut told = json!({
                "verb": verb, "dry_run": dry_run, "done": done, "refused": refused, "unreadable": self.unreadable.count,
                "unreadable_rows": unreadable_json(&self.unreadable),
            });
            if let Order::Migrate(Move { to, renamed, .. }) = order {
                let renamed = renamed.iter().map(|(old, new)| (old.to_string(), new.to_string()));
                told["to"] = json!(to.as_str());
                told["renamed"] = json!(renamed.collect::<BTreeMap<_, _>>());
            }
            output::json(&told);
            return;
        }
        let done = if dry_run { "would be done" } else { "done" };
        output::data(&format!("{}: {} {done}", order.typed(None), count(self.done.len())));
        for (why, keys) in &self.refused {
            let first: Vec<String> = keys.iter().take(3).map(key_text).collect();
            output::data(&format!("not {verb}: {}, {why}, among them {}", count(keys.len()), first.join("; ")));
        }
        if let Some(sentence) = self.unreadable.sentence() {
            output::data(&format!("not {verb}: {sentence} {}", self.unreadable.cure()));
        }
    }
}

/// The refusal of a key that no row has.
pub(super) fn no_such_row(key: &WorkKey) -> Error {
    Error::new(ErrorKind::OrderRefused, "there is no such work row")
        .with_detail(format!("The key is {}.", key_text(key)))
}

fn reason(unfit: Unfit) -> &'static str {
    match unfit {
        Unfit::Closed => "the work row is closed",
        Unfit::Unknown => "nobody knows what became of the last request: `postrider work resolve` is for that",
        Unfit::Running => "the work row is being executed",
        Unfit::State => "the order is not for rows in this state",
        Unfit::SameStage => "the work row is in that stage already",
        Unfit::SameDefinition => "the work row is under that definition already",
        Unfit::StageGone => "that definition has no such stage: say with --rename what it is called there",
    }
}

fn count(rows: usize) -> String {
    if rows == 1 { "1 row".to_owned() } else { format!("{rows} rows") }
}

/// What goes on record says something to whoever reads it later.
fn said(text: &str) -> Result<String, &'static str> {
    if text.trim().is_empty() { Err("it is blank, and goes on record: say it in words") } else { Ok(text.to_owned()) }
}

/// Who is logged in, as far as the environment says.
fn user() -> Option<String> {
    ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok())
}
