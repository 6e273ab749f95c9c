//! What: gives up prepared transactions whose verdict does not come from this slot any more.
//! Where: within intake, behind *assemble*.
//! Takes and gives: what the assembler missed; gaps on record.
//! Never: drops what was prepared before the gap is durable.

use super::Intake;
use postrider_core::assemble::Missed;
use postrider_core::error::Result;
use postrider_core::ports::Gap;
use postrider_core::position::{Lsn, Position};

impl Intake {
    /// `begins`: where the stream began. Each verdict that was missed stands before.
    pub(super) async fn give_up_missed(&mut self, begins: Lsn) -> Result<()> {
        let all = self.assembler.missed();
        if all.is_empty() {
            return Ok(());
        }
        let generation = self.journal.generation();
        let place = |lsn: Lsn| Position::whole(generation, Lsn(lsn.0.saturating_sub(1)));
        for missed in all {
            let to = place(begins);
            let gap = Gap {
                at: self.world.now(),
                consumer: None,
                from: place(missed.prepared.end_lsn).min(to),
                to,
                reason: told(&missed),
                accepted: false,
            };
            tracing::warn!(gid = missed.prepared.gid, prepared_at = %missed.prepared.prepare_lsn, "{}", gap.reason);
            self.journal.record(gap).await?;
            self.assembler.give_up(&missed)?;
        }
        let gaps = self.journal.gaps();
        self.telemetry.update(|status| status.gaps = gaps);
        Ok(())
    }
}

fn told(missed: &Missed) -> String {
    let Missed { prepared, full_xid } = missed;
    format!(
        "The prepared transaction \"{}\" had its verdict where this journal does not read it: another process read it from the slot, or the slot was made anew behind it. It is given up here: if SELECT pg_xact_status('{full_xid}') on the primary says that it was committed, its events are lacking, but where the other process delivered them.",
        prepared.gid
    )
}
