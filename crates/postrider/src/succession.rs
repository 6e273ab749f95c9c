//! What a journal and a server have to do with each other: the one judgement behind `run`, `check` and `adopt`.

use crate::config::Configuration;
use crate::wiring;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{Gap, SourceIdentity, foreign_journal};
use postrider_core::position::{Generation, Lsn, Position};
use postrider_core::time::Timestamp;
use postrider_engine::{Survey, survey};
use postrider_journal::{Adoption, Reader};
use postrider_postgres::{Comparison, Kinship};

/// What to do about a gap on record.
pub(crate) const GAP_HINT: &str = "Send what is missing again from its tables, or rebuild the sink; `postrider adopt --yes`, while no process runs, accepts it.";

/// A journal, the server of the configuration, and how one follows from the other.
#[derive(Debug)]
pub(crate) struct Succession {
    pub(crate) journal: Reader,
    pub(crate) server: Comparison,
    pub(crate) verdict: Verdict,
}

/// Whether the server's log goes on where the journal ends.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It does.
    GoesOn,
    /// The server was promoted before it had all that the journal has: this is what it never had.
    Diverged { left_at: Lsn, lost: Survey },
    /// The server's log ends before the journal does, although it is the same: it was set back.
    SetBack,
    /// The slot is confirmed past the journal's end.
    Ahead { confirmed: Lsn },
    /// It is another server.
    Stranger(Vec<String>),
}

/// Looks at both. `None`: there is no journal yet.
///
/// # Errors
/// What reading the journal and asking the server lead to.
pub(crate) async fn look(configuration: &Configuration) -> Result<Option<Succession>> {
    let Some(journal) = Reader::find(&configuration.journal.dir)? else { return Ok(None) };
    let server = wiring::source(configuration).compare(journal.identity()).await?;
    let end = journal.end();
    let verdict = match &server.kinship {
        Kinship::Stranger(differs) => Verdict::Stranger(differs.clone()),
        Kinship::Promoted { left_at } if end > *left_at => {
            let lost = lost(configuration, &journal, *left_at).await?;
            Verdict::Diverged { left_at: *left_at, lost }
        }
        Kinship::Same if server.log_end < end && !server.in_recovery => Verdict::SetBack,
        Kinship::Same | Kinship::Promoted { .. } => match server.confirmed {
            Some(confirmed) if end > Lsn::ZERO && confirmed > end => Verdict::Ahead { confirmed },
            _ => Verdict::GoesOn,
        },
    };
    Ok(Some(Succession { journal, server, verdict }))
}

/// What commits in the journal where the server's log is another one already.
async fn lost(configuration: &Configuration, journal: &Reader, left_at: Lsn) -> Result<Survey> {
    if journal.commit() < left_at {
        return Ok(Survey::default());
    }
    let generation = journal.generation();
    let after = Position::whole(generation, Lsn(left_at.0.saturating_sub(1)));
    survey(journal.follow(after)?, generation, journal.end(), &wiring::routing(configuration)).await
}

impl Succession {
    /// Why `run` does not start, if it does not. What was promoted with nothing of ours missing is adopted without asking.
    pub(crate) fn refusal(&self) -> Option<Error> {
        match &self.verdict {
            // Of a slot that is ahead, the stream's own check knows more.
            Verdict::GoesOn | Verdict::Ahead { .. } | Verdict::SetBack => None,
            Verdict::Diverged { .. } if self.loses_nothing() => None,
            Verdict::Diverged { left_at, lost } => Some(
                Error::new(
                    ErrorKind::JournalForeign,
                    "the journal is further than the server was when it was promoted",
                )
                .with_detail(format!(
                    "The server left the journal's timeline at {left_at}, the journal ends at {}. {}",
                    self.journal.end(),
                    told(lost)
                ))
                .with_hint("`postrider check` names it; `postrider adopt` goes on without it, in a new generation."),
            ),
            Verdict::Stranger(differs) => Some(foreign_journal("the journal", differs)),
        }
    }

    /// The server was promoted with nothing of ours missing, and its slot brings all that came after: nobody has anything to decide.
    fn loses_nothing(&self) -> bool {
        let Verdict::Diverged { left_at, lost } = &self.verdict else { return false };
        lost.is_empty() && self.server.confirmed.is_some_and(|confirmed| confirmed <= *left_at)
    }

    /// What an adoption would do to the journal. `None`: there is nothing to adopt.
    ///
    /// # Errors
    /// `SlotMissing` where the server has no slot of ours: nothing could be read from it.
    pub(crate) fn adoption(&self, at: Timestamp) -> Result<Option<Adoption>> {
        let confirmed = || {
            self.server.confirmed.ok_or_else(|| {
                Error::new(ErrorKind::SlotMissing, "the server has no slot to go on with")
                    .with_hint("`postrider setup` creates it; then adopt the server.")
            })
        };
        let (begins, cut, new_generation) = match &self.verdict {
            Verdict::GoesOn => return Ok(None),
            Verdict::Diverged { left_at, .. } => (confirmed()?.max(*left_at), Some(*left_at), true),
            // Where exactly it was set back to is unknown; what it had confirmed before is the same as it was.
            Verdict::SetBack => (confirmed()?, Some(confirmed()?), true),
            Verdict::Ahead { confirmed } => (*confirmed, None, false),
            Verdict::Stranger(_) => (confirmed()?, None, true),
        };
        let generation = self.journal.generation();
        let last = Position::whole(generation, Lsn(self.journal.end().0.saturating_sub(1)));
        let next = if new_generation { generation.0.saturating_add(1) } else { generation.0 };
        let to = Position::whole(Generation(next), Lsn(begins.0.saturating_sub(1)));
        let gap = Gap { at, consumer: None, from: last, to, reason: self.reason(), accepted: true };
        let identity = self.server.identity.clone();
        Ok(Some(Adoption { identity, begins, cut, new_generation, gap }))
    }

    /// Why there is something to adopt, as a sentence.
    fn reason(&self) -> String {
        let SourceIdentity { system_identifier, timeline, .. } = self.journal.identity();
        let now = &self.server.identity;
        match &self.verdict {
            Verdict::GoesOn => "Nothing is left out.".to_owned(),
            Verdict::Ahead { .. } => "Adopted: somebody moved the slot past the journal or made it anew.".to_owned(),
            Verdict::SetBack => "Adopted: the server's log was set back to before the journal's end.".to_owned(),
            Verdict::Diverged { left_at, lost } => format!(
                "Adopted: system {system_identifier} was promoted from timeline {timeline} to {} at {left_at}. {}",
                now.timeline,
                told(lost)
            ),
            Verdict::Stranger(_) => format!(
                "Adopted: system {} on timeline {} in the place of system {system_identifier} on timeline {timeline}.",
                now.system_identifier, now.timeline
            ),
        }
    }

    /// Everything that a person has to know before he decides, a line each.
    pub(crate) fn story(&self) -> Vec<String> {
        let mut lines = vec![
            format!("The journal ends at {}, in generation {}.", self.journal.end(), self.journal.generation().0),
            match self.server.confirmed {
                Some(confirmed) => format!(
                    "The server's log ends at {}, its slot is confirmed up to {confirmed}.",
                    self.server.log_end
                ),
                None => format!("The server's log ends at {}; it has no slot of ours.", self.server.log_end),
            },
        ];
        match &self.verdict {
            Verdict::GoesOn => lines.push("The server's log goes on where the journal ends.".to_owned()),
            Verdict::Ahead { confirmed } => lines.push(format!(
                "What committed between {} and {confirmed} is not in the journal and cannot be read any more.",
                self.journal.end()
            )),
            Verdict::SetBack => lines.push(
                "The server has the journal's system identifier and timeline, and its log ends before the journal: it was set back to an earlier state.".to_owned(),
            ),
            Verdict::Diverged { left_at, lost } => {
                lines.push(format!("The server was promoted and left the journal's timeline at {left_at}. {}", told(lost)));
                lines.extend(lost.named.iter().map(|name| format!("  {name}")));
                if let Some(confirmed) = self.server.confirmed.filter(|confirmed| confirmed > left_at) {
                    lines.push(format!("What committed there between {left_at} and {confirmed}, before its slot was made, cannot be read."));
                }
            }
            Verdict::Stranger(differs) => {
                lines.push(format!("It is another server: of the journal, {}.", differs.join("; ")));
                lines.push("What it wrote before its slot was made is not in any log that can be read.".to_owned());
            }
        }
        lines
    }
}

/// What a survey found, as a sentence.
fn told(lost: &Survey) -> String {
    let (Some(first), Some(last)) = (lost.first, lost.last) else {
        return "Nothing of ours is lost by that.".to_owned();
    };
    format!(
        "It never had {} outbox events and {} versions of work rows, from {first} to {last}.",
        lost.events, lost.work_changes
    )
}

/// A gap as a line for a person.
pub(crate) fn describe(gap: &Gap) -> String {
    let whom = gap.consumer.as_deref().unwrap_or("every consumer");
    format!("{whom}: nothing after {} up to {}. {}", gap.from, gap.to, gap.reason)
}
