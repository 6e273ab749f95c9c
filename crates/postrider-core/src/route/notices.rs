//! The logical messages about the work table: what its trigger tells, what people hold back, and who works on it.

use super::{Alarm, Route, TableRole, WorkMapping, WorkNotice};
use crate::pgoutput::LogicalMessage;
use crate::work::StateWords;
use std::sync::Arc;

/// The content of the message that tells of a TRUNCATE of the work table.
const TRUNCATE: &[u8] = b"truncate";

/// How the messages about one work table are known.
#[derive(Debug)]
pub(super) struct Notices {
    rows: String,
    pauses: String,
    presences: String,
    /// `schema.table`
    table: Arc<str>,
    states: Arc<StateWords>,
}

impl Notices {
    pub(super) fn new(work: &WorkMapping) -> Notices {
        Notices {
            rows: work.notice_prefix(),
            pauses: work.pause_prefix(),
            presences: work.presence_prefix(),
            table: format!("{}.{}", work.schema, work.table).into(),
            states: Arc::clone(&work.states),
        }
    }

    /// What the message is, if it is about the work table. Outside of a transaction none is.
    pub(super) fn route<'a>(&'a self, message: &LogicalMessage<'a>) -> Option<Route<'a>> {
        let notice = WorkNotice { table: &self.table, states: &self.states, content: message.content };
        if !message.transactional {
            None
        } else if self.rows == message.prefix {
            Some(match message.content {
                TRUNCATE => Route::Alarm(Alarm::Truncated { tables: vec![(TableRole::Work, Arc::clone(&self.table))] }),
                _ => Route::WorkNotice(notice),
            })
        } else if self.pauses == message.prefix {
            Some(Route::Pause(notice))
        } else if self.presences == message.prefix {
            Some(Route::Presence(notice))
        } else {
            None
        }
    }
}
