//! What stands in a part of the journal, for a person who has to decide about it.

use crate::follow::{Cursor, Visit};
use crate::settle::Settled;
use postrider_core::error::Result;
use postrider_core::ports::Follower;
use postrider_core::position::{Generation, Lsn, Position};
use postrider_core::route::{Route, Routing};
use postrider_core::shape::{self, ShapeError, WorkChange};
use postrider_core::transaction::PartHead;

/// So many events and rows are named.
const NAMED_MAX: usize = 10;

/// The events and row versions of one stretch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// Outbox events.
    pub events: u64,
    /// Versions and deletions of work rows.
    pub work_changes: u64,
    /// Where the first and the last of them stand.
    pub first: Option<Position>,
    pub last: Option<Position>,
    /// The first few, as a person knows them: position, and id or key.
    pub named: Vec<String>,
}

/// One walk over the stretch.
#[derive(Debug, Default)]
struct Surveyor {
    survey: Survey,
    /// The end of what was walked over.
    ended: Lsn,
}

impl Survey {
    /// Nothing of ours stands there.
    pub fn is_empty(&self) -> bool {
        self.events == 0 && self.work_changes == 0
    }

    fn note(&mut self, position: Position, name: impl FnOnce() -> String) {
        self.first.get_or_insert(position);
        self.last = Some(position);
        if self.named.len() < NAMED_MAX {
            self.named.push(format!("{position} {}", name()));
        }
    }
}

/// Walks over what `follower` gives, up to what ends at `end`, which the journal must hold, in its generation `current`.
///
/// # Errors
/// What the journal gives; a change that cannot be read is named as such and is no error.
pub async fn survey(follower: Box<dyn Follower>, current: Generation, end: Lsn, routing: &Routing) -> Result<Survey> {
    let mut cursor = Cursor::over(follower, current, routing);
    let mut surveyor = Surveyor::default();
    while surveyor.ended < end {
        cursor.next().await?;
        cursor.walk(&mut surveyor)?;
    }
    Ok(surveyor.survey)
}

impl Visit for Surveyor {
    fn visit(&mut self, head: &PartHead, position: Position, route: Route<'_>) -> Result<()> {
        let survey = &mut self.survey;
        match route {
            Route::Outbox(row) => {
                survey.events += 1;
                survey.note(position, || match shape::outbox_event(&row, position, head.committed_at) {
                    Ok(event) => format!("event {}", event.id),
                    Err(_) => "event that cannot be read".to_owned(),
                });
            }
            Route::OutboxMessage(message) => {
                survey.events += 1;
                survey.note(position, || {
                    format!("event {}", shape::message_event(&message, position, head.committed_at).id)
                });
            }
            Route::Work(row) => {
                survey.work_changes += 1;
                survey.note(position, || describe(shape::work_change(&row)));
            }
            Route::WorkNotice(notice) => {
                survey.work_changes += 1;
                survey.note(position, || describe(shape::noticed_change(&notice)));
            }
            Route::Pause(_) | Route::Presence(_) | Route::Alarm(_) | Route::Ignore(_) => {}
        }
        Ok(())
    }

    fn settles(&mut self, settled: Settled) {
        self.ended = settled.end;
    }
}

fn describe(change: Result<WorkChange, ShapeError>) -> String {
    match change {
        Ok(WorkChange::Version { version, .. }) => {
            format!("work row {}, stage {}", key(version.key.parts()), version.stage)
        }
        Ok(WorkChange::Gone(gone)) => format!("work row {}, deleted", key(gone.parts())),
        Err(_) => "work row that cannot be read".to_owned(),
    }
}

fn key<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    parts.collect::<Vec<_>>().join("/")
}
