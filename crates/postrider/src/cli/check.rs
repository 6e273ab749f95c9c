//! `postrider check`: everything that can be known without running, all of it at once.

use crate::cli::{ConfigurationFile, block_on};
use crate::config::{self, Configuration, Mode, Unusable, Work};
use crate::lint::{self, Lint};
use crate::succession::{self, GAP_HINT, describe, look};
use crate::{exit, output, wiring};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::stage::{Gone, Step};
use postrider_core::work::StageName;
use postrider_postgres::{Finding, Severity, Subject};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// An endpoint that accepts no connection within this is called unreachable.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Check the configuration, the database and the endpoints, without running
#[derive(Debug, clap::Args)]
pub(super) struct Check {
    #[command(flatten)]
    configuration: ConfigurationFile,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// What was found about one part.
#[derive(Debug)]
struct Item {
    part: String,
    verdict: Verdict,
}

#[derive(Debug)]
enum Verdict {
    Good,
    /// Something is wrong with it, or could not be looked at.
    Wrong(Error),
    /// It works, and there is something to know.
    Remark {
        word: &'static str,
        code: &'static str,
        sentence: String,
        hint: String,
    },
}

impl Check {
    pub(super) fn obey(self) -> Result<u8> {
        let configuration = match config::load(&self.configuration.path) {
            Ok(configuration) => configuration,
            Err(unusable) => return self.refuse(unusable),
        };
        let mut items = vec![Item::good("configuration")];
        items.extend(block_on(async { Ok(look_at(&configuration).await) })?);
        let code = items.iter().find_map(Item::error).map_or(exit::OK, |error| error.kind().exit_code());
        if self.json {
            let items: Vec<Value> = items.iter().map(Item::to_json).collect();
            output::json(&json!({ "ok": code == exit::OK, "exit_code": code, "items": items }));
        } else {
            items.iter().for_each(|item| output::data(&item.to_text()));
        }
        Ok(code)
    }

    /// Nothing else can be looked at without a configuration.
    fn refuse(&self, unusable: Unusable) -> Result<u8> {
        let problems = json!(unusable.problems());
        let error = Error::from(unusable);
        let code = error.kind().exit_code();
        if self.json {
            let item = Item::wrong("configuration", error).to_json();
            output::json(&json!({ "ok": false, "exit_code": code, "items": [item], "problems": problems }));
            return Ok(code);
        }
        Err(error)
    }
}

impl Item {
    fn good(part: &str) -> Item {
        Item { part: part.to_owned(), verdict: Verdict::Good }
    }

    fn wrong(part: &str, error: Error) -> Item {
        Item { part: part.to_owned(), verdict: Verdict::Wrong(error) }
    }

    /// The same kind of trouble was found already.
    fn says(&self, error: &Error) -> bool {
        self.error().is_some_and(|said| said.kind() == error.kind())
    }

    fn error(&self) -> Option<&Error> {
        match &self.verdict {
            Verdict::Wrong(error) => Some(error),
            Verdict::Good | Verdict::Remark { .. } => None,
        }
    }

    fn to_json(&self) -> Value {
        match &self.verdict {
            Verdict::Good => json!({ "part": self.part, "verdict": "ok" }),
            Verdict::Wrong(error) => {
                json!({ "part": self.part, "verdict": "wrong", "error": output::error_json(error) })
            }
            Verdict::Remark { word, code, sentence, hint } => {
                json!({ "part": self.part, "verdict": word, "code": code, "message": sentence, "hint": hint })
            }
        }
    }

    fn to_text(&self) -> String {
        let (word, told) = match &self.verdict {
            Verdict::Good => return format!("ok      {}", self.part),
            Verdict::Wrong(error) => ("wrong", output::describe(error)),
            Verdict::Remark { word, sentence, hint, .. } => (*word, format!("{sentence}\n{hint}")),
        };
        format!("{word:<7} {}: {}", self.part, told.trim_end().replace('\n', "\n        "))
    }
}

pub(super) fn finding_json(finding: &Finding) -> Value {
    item(finding).to_json()
}

pub(super) fn finding_text(finding: &Finding) -> String {
    item(finding).to_text()
}

/// The database first, then each endpoint.
async fn look_at(configuration: &Configuration) -> Vec<Item> {
    let mut items = Vec::new();
    match postrider_postgres::check(&configuration.source.options, &wiring::objects(configuration)).await {
        Ok(findings) => {
            items.extend(findings.iter().map(item));
            if items.iter().all(|item| item.error().is_none()) {
                items.extend(look_at_open_rows(configuration).await);
            }
            if items.iter().all(|item| item.error().is_none()) {
                items.push(Item::good("database"));
            }
        }
        Err(error) => items.push(Item::wrong("database", error)),
    }
    items.extend(look_at_journal(configuration, &items).await);
    for (part, endpoint) in wiring::endpoints(configuration) {
        let found = match endpoint.read_credentials() {
            Ok(()) => endpoint.probe(PROBE_TIMEOUT).await.map(|_| ()),
            unusable => unusable,
        };
        items.push(match found {
            Ok(()) => Item::good(&part),
            Err(error) => Item::wrong(&part, error),
        });
    }
    items.extend(configuration.work.iter().flat_map(lints_of));
    items
}

/// What is said of the stages, and may not be meant.
fn lints_of(work: &Work) -> impl Iterator<Item = Item> {
    lint::lints(work).into_iter().map(|Lint { step, severity, sentence, hint }| {
        let word = match severity {
            lint::Severity::Warning => "warning",
            lint::Severity::Note => "note",
        };
        let code = ErrorKind::Configuration.code();
        Item { part: format!("stage {step}"), verdict: Verdict::Remark { word, code, sentence, hint } }
    })
}

/// Open rows that nobody could start with this configuration.
async fn look_at_open_rows(configuration: &Configuration) -> Vec<Item> {
    let Some(work) = &configuration.work else { return Vec::new() };
    let steps = match postrider_postgres::open_steps(&configuration.source.options, &work.mapping).await {
        Ok(steps) => steps,
        // Looking on takes no privilege on the table, and that we lack it was said.
        Err(error) if error.kind() == ErrorKind::Privilege && work.mode == Mode::Observe => return Vec::new(),
        Err(error) => return vec![Item::wrong("work table", error)],
    };
    let lacking = steps.iter().filter_map(|open| {
        let step = work.definitions.step(open.definition.as_ref(), &open.stage);
        let gone = work.definitions.policy(&step).err()?;
        Some(Item::wrong("work table", gone_error(gone, &step, open.row_count, work.mode)))
    });
    let mut items: Vec<Item> = lacking.collect();
    let stages: BTreeSet<StageName> = work.definitions.steps().map(|(step, _)| step.stage).collect();
    let stages: Vec<StageName> = stages.into_iter().collect();
    match postrider_postgres::unwritable_stages(&configuration.source.options, &work.mapping, &stages).await {
        Ok(sentence) => items.extend(sentence.map(|sentence| Item::wrong("work table", unwritable_error(sentence)))),
        Err(error) => items.push(Item::wrong("work table", error)),
    }
    match postrider_postgres::foreign_states(&configuration.source.options, &work.mapping).await {
        Ok(words) => {
            items.extend(words.iter().map(|(word, rows)| Item::wrong("work table", foreign_error(word, *rows))))
        }
        Err(error) => items.push(Item::wrong("work table", error)),
    }
    items
}

fn unwritable_error(sentence: String) -> Error {
    Error::new(ErrorKind::Table, "the work table cannot hold the names of all stages")
        .with_detail(sentence)
        .with_hint("A row would go on into a stage whose name is cut off, or the checkpoint would be refused: give the column a longer type, ALTER TYPE … ADD VALUE for an enum, or a wider CHECK.")
}

fn foreign_error(word: &str, row_count: u64) -> Error {
    let (rows, word) = (open_rows(row_count), word.escape_debug());
    Error::new(ErrorKind::Table, "open rows are in a state that is none of ours")
        .with_detail(format!("{rows} in the state \"{word}\", which no state has for its word: nobody starts them."))
        .with_hint("Add it to the words of the state that it means, under [work.states]; where the rows are to be left alone, of WAITING for instance.")
}

fn open_rows(count: u64) -> String {
    if count == 1 { "1 open row is".to_owned() } else { format!("{count} open rows are") }
}

fn gone_error(gone: Gone, step: &Step, row_count: u64, mode: Mode) -> Error {
    let (definition, stage) = (step.definition.as_str().escape_debug(), step.stage.as_str().escape_debug());
    let rows = open_rows(row_count);
    let place = match gone {
        Gone::Version => format!("{rows} under the definition \"{definition}\", in its stage \"{stage}\""),
        Gone::Stage => format!("{rows} in the stage \"{stage}\" of the definition \"{definition}\""),
    };
    let (does, cure) = match (mode, gone) {
        (Mode::Observe, Gone::Version) => (
            "executing its stages would park them",
            "Add the definition as [[work.earlier]], with its stages, before any of them is executed here.",
        ),
        (Mode::Observe, Gone::Stage) => (
            "executing its stages would park them",
            "Add the stage to the definition before any stage is executed here.",
        ),
        (Mode::Execute, Gone::Version) => (
            "`run` parks them",
            "Add the definition as [[work.earlier]], with its stages, until no open row is under it any more, or move the rows to another: `postrider work migrate`. What is parked by then goes on with `postrider work resume`.",
        ),
        (Mode::Execute, Gone::Stage) => (
            "`run` parks them",
            "Add the stage to the definition, or move the rows to another that has it: `postrider work migrate`. What is parked by then goes on with `postrider work resume`. What changes stages is a new definition: keep the earlier one as [[work.earlier]].",
        ),
    };
    Error::new(ErrorKind::Table, "open rows are where the configuration has no stage")
        .with_detail(format!("{place}, which the configuration does not have: {does} ({}).", gone.as_str()))
        .with_hint(cure)
}

/// What `run` would say of journal and slot together; what was said of the slot already is not said again.
async fn look_at_journal(configuration: &Configuration, said: &[Item]) -> Vec<Item> {
    let found = match look(configuration).await {
        Ok(None) => return Vec::new(),
        Ok(Some(found)) => found,
        Err(error) if said.iter().any(|item| item.says(&error)) => return Vec::new(),
        Err(error) => return vec![Item::wrong("journal", error)],
    };
    let mut items = Vec::new();
    let refused = match found.refusal() {
        Some(error) => {
            let story = found.story().join("\n");
            Some(
                Error::new(error.kind(), error.message())
                    .with_detail(story)
                    .with_hint(error.hint().unwrap_or_default()),
            )
        }
        None if matches!(found.verdict, succession::Verdict::Diverged { .. }) => None,
        None => {
            let source = wiring::source(configuration).of_journal(found.journal.identity().clone());
            source.check(found.journal.end()).await.err()
        }
    };
    match refused {
        Some(error) if said.iter().any(|item| item.says(&error)) => {}
        Some(error) => items.push(Item::wrong("journal", error)),
        None => items.push(Item::good("journal")),
    }
    let gaps = match found.journal.gaps() {
        Ok(gaps) => gaps,
        Err(error) => {
            items.push(Item::wrong("journal", error));
            return items;
        }
    };
    items.extend(gaps.iter().filter(|gap| !gap.accepted).map(|gap| Item {
        part: "journal".to_owned(),
        verdict: Verdict::Remark {
            word: "warning",
            code: ErrorKind::JournalForeign.code(),
            sentence: format!("On record as left out, for {}", describe(gap)),
            hint: GAP_HINT.to_owned(),
        },
    }));
    items
}

fn item(finding: &Finding) -> Item {
    let remark = |word| Verdict::Remark {
        word,
        code: finding.kind.code(),
        sentence: finding.sentence.clone(),
        hint: finding.hint.clone(),
    };
    let verdict = match finding.severity {
        Severity::Error => {
            let error = Error::new(finding.kind, finding.sentence.as_str());
            Verdict::Wrong(error.with_hint(finding.hint.as_str()))
        }
        Severity::Warning => remark("warning"),
        Severity::Note => remark("note"),
    };
    Item { part: subject(finding.subject).to_owned(), verdict }
}

fn subject(subject: Subject) -> &'static str {
    match subject {
        Subject::Server => "server",
        Subject::Role => "role",
        Subject::Publication => "publication",
        Subject::Slot => "slot",
        Subject::WorkTable => "work table",
        Subject::Store => "store",
        Subject::Outbox => "outbox",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_rows_are_only_observed_nobody_is_told_to_order_anything() {
        for gone in [Gone::Version, Gone::Stage] {
            let told = |mode| gone_error(gone, &Step::new("quote@1", "OLD"), 2, mode).report();
            assert!(told(Mode::Execute).contains("`postrider work resume`"), "{}", told(Mode::Execute));
            let observed = told(Mode::Observe);
            assert!(observed.contains("2 open rows are") && !observed.contains("postrider work"), "{observed}");
        }
    }
}
