//! What: gives out what a standby sent, once it is known to come from the timeline that the stream began on.
//! Where: around *read*, where the server was in recovery when the stream was opened.
//! Takes and gives: batches of frames; the same batches, or the end of the stream.
//! Never: gives out a frame that may be of another timeline.
//!
//! A stream outlives the promotion of the standby without a word (seen on 16 to 18), and so it does when the standby follows another
//! primary. The journal must begin a new segment there, and a journal that reaches beyond the place looks as if it had
//! been read from a primary that was left. What a standby sends it has replayed before, so a standby that
//! is still on the timeline after a batch has come has sent nothing else.

use std::fmt;

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::frame::FrameBatch;
use postrider_core::ports::{BoxFuture, LogReader};

use crate::identity::identify;
use crate::options::ConnectOptions;
use crate::read::StreamReader;
use crate::wire::Wire;

/// A reader that asks, on a session of its own, for the timeline behind each batch.
pub(crate) struct TimelineReader {
    reader: StreamReader,
    timeline: u32,
    asker: Asker,
    /// What has come and may not be given out yet.
    held: Option<FrameBatch>,
}

/// The other session: free, or in the middle of an answer, which goes on whoever stops waiting for it.
enum Asker {
    Free(Wire),
    Asking(BoxFuture<'static, Result<(Wire, u32)>>),
    Gone,
}

impl TimelineReader {
    /// Reads on `timeline`, where the stream was opened.
    pub(crate) async fn new(reader: StreamReader, options: &ConnectOptions, timeline: u32) -> Result<TimelineReader> {
        let asker = Asker::Free(Wire::connect(options).await?);
        Ok(TimelineReader { reader, timeline, asker, held: None })
    }

    async fn read_cleared(&mut self) -> Result<FrameBatch> {
        if self.held.is_none() {
            self.held = Some(self.reader.read().await?);
        }
        let timeline = self.ask().await?;
        match self.held.take() {
            Some(batch) if timeline == self.timeline => Ok(batch),
            _ => Err(Error::new(ErrorKind::Disconnected, "the server has changed its timeline, or is another one now")
                .with_detail(format!(
                    "The stream began on timeline {}, and the server is on {timeline}.",
                    self.timeline
                ))
                .with_hint("Nothing is lost: the stream is opened again from the journal's end.")),
        }
    }

    /// A question that nobody waits for any more is not asked twice: its answer may be of before the batch.
    async fn ask(&mut self) -> Result<u32> {
        if let Asker::Asking(_) = self.asker {
            self.answer().await?;
        }
        if let Asker::Free(wire) = std::mem::replace(&mut self.asker, Asker::Gone) {
            self.asker = Asker::Asking(Box::pin(timeline_of(wire)));
        }
        self.answer().await
    }

    async fn answer(&mut self) -> Result<u32> {
        let Asker::Asking(asking) = &mut self.asker else {
            return Err(Error::new(ErrorKind::Disconnected, "the stream has ended"));
        };
        let answer = asking.await;
        self.asker = Asker::Gone;
        let (wire, timeline) = answer?;
        self.asker = Asker::Free(wire);
        Ok(timeline)
    }
}

impl LogReader for TimelineReader {
    fn read(&mut self) -> BoxFuture<'_, Result<FrameBatch>> {
        Box::pin(self.read_cleared())
    }
}

impl fmt::Debug for TimelineReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimelineReader").field("timeline", &self.timeline).finish_non_exhaustive()
    }
}

async fn timeline_of(mut wire: Wire) -> Result<(Wire, u32)> {
    let identity = identify(&mut wire, "").await?;
    Ok((wire, identity.timeline))
}
