//! What: gives out what a standby sent, once it is known to come from the timeline that the stream began on.
//! Where: around *read*, where the server was in recovery when the stream was opened.
//! Takes and gives: batches of frames; the same batches, or the end of the stream.
//! Never: gives out a frame that may be of another timeline, or of another server.
//!
//! A stream outlives the promotion of the standby without a word (seen on 16 to 18), and so it does when the standby follows another
//! primary. The journal must begin a new segment there, and a journal that reaches beyond the place looks as if it had
//! been read from a primary that was left. What a standby sends it has replayed before, so a standby that
//! is still on the timeline after a batch has come has sent nothing else.

use std::fmt;

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::frame::FrameBatch;
use postrider_core::ports::{BoxFuture, LogReader, SourceIdentity};

use crate::identity::identify;
use crate::options::ConnectOptions;
use crate::read::StreamReader;
use crate::wire::Wire;

/// A reader that asks, on a session of its own, who the server is behind each batch.
pub(crate) struct TimelineReader {
    reader: StreamReader,
    began: SourceIdentity,
    asker: Asker,
    /// What has come and may not be given out yet.
    held: Option<FrameBatch>,
}

/// The other session: free, or in the middle of an answer, which goes on whoever stops waiting for it.
enum Asker {
    Free(Wire),
    Asking(BoxFuture<'static, Result<(Wire, SourceIdentity)>>),
    Gone,
}

impl TimelineReader {
    /// Reads as long as the server is the one that the stream `began` on; `options` lead to its address alone.
    pub(crate) async fn new(
        reader: StreamReader,
        options: &ConnectOptions,
        began: SourceIdentity,
    ) -> Result<TimelineReader> {
        let asker = Asker::Free(Wire::connect(options).await?);
        Ok(TimelineReader { reader, began, asker, held: None })
    }

    async fn read_cleared(&mut self) -> Result<FrameBatch> {
        if self.held.is_none() {
            self.held = Some(self.reader.read().await?);
        }
        let now = self.ask().await?;
        match self.held.take() {
            Some(batch) if is_on_its_way(&self.began, &now) => Ok(batch),
            _ => Err(Error::new(ErrorKind::Disconnected, "the server has changed its timeline, or is another one now")
                .with_detail(format!(
                    "The stream began on timeline {} of system {}, and the server is on timeline {} of system {}.",
                    self.began.timeline, self.began.system_identifier, now.timeline, now.system_identifier
                ))
                .with_hint("Nothing is lost: the stream is opened again from the journal's end.")),
        }
    }

    /// A question that nobody waits for any more is not asked twice: its answer may be of before the batch.
    async fn ask(&mut self) -> Result<SourceIdentity> {
        if let Asker::Asking(_) = self.asker {
            self.answer().await?;
        }
        if let Asker::Free(wire) = std::mem::replace(&mut self.asker, Asker::Gone) {
            self.asker = Asker::Asking(Box::pin(identity_of(wire)));
        }
        self.answer().await
    }

    async fn answer(&mut self) -> Result<SourceIdentity> {
        let Asker::Asking(asking) = &mut self.asker else {
            return Err(Error::new(ErrorKind::Disconnected, "the stream has ended"));
        };
        let answer = asking.await;
        self.asker = Asker::Gone;
        let (wire, identity) = answer?;
        self.asker = Asker::Free(wire);
        Ok(identity)
    }
}

impl LogReader for TimelineReader {
    fn read(&mut self) -> BoxFuture<'_, Result<FrameBatch>> {
        Box::pin(self.read_cleared())
    }
}

impl fmt::Debug for TimelineReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimelineReader").field("began", &self.began).finish_non_exhaustive()
    }
}

async fn identity_of(mut wire: Wire) -> Result<(Wire, SourceIdentity)> {
    let identity = identify(&mut wire, "").await?;
    Ok((wire, identity))
}

/// One address can lead to one server now and to another later.
fn is_on_its_way(began: &SourceIdentity, now: &SourceIdentity) -> bool {
    (began.system_identifier, began.timeline) == (now.system_identifier, now.timeline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_timeline_and_another_system_end_the_stream() {
        let began = SourceIdentity { system_identifier: 7, timeline: 2, database: "d".into(), slot: "s".into() };
        let is_so = |now: SourceIdentity| is_on_its_way(&began, &now);
        // The session that asks names no slot.
        assert!(is_so(SourceIdentity { slot: String::new(), ..began.clone() }));
        assert!(!is_so(SourceIdentity { timeline: 3, ..began.clone() }));
        assert!(!is_so(SourceIdentity { system_identifier: 8, ..began.clone() }));
    }
}
