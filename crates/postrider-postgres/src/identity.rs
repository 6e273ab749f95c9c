//! Asks the server who it is.

use postrider_core::error::Result;
use postrider_core::ports::SourceIdentity;

use crate::errors::{Phase, protocol_violation};
use crate::wire::Wire;

/// `IDENTIFY_SYSTEM`: system identifier, timeline, and the database that the connection is to.
pub(crate) async fn identify(wire: &mut Wire, slot: &str) -> Result<SourceIdentity> {
    let rows = wire.query(Phase::Identify, "IDENTIFY_SYSTEM").await?;
    let mut columns = rows.into_iter().next().unwrap_or_default().into_iter();
    let mut next = || columns.next().flatten();
    // systemid, timeline, xlogpos, dbname
    let (system_identifier, timeline, _position, database) = (next(), next(), next(), next());
    let identity = (|| {
        Some(SourceIdentity {
            system_identifier: system_identifier?.parse().ok()?,
            timeline: timeline?.parse().ok()?,
            database: database?,
            slot: slot.to_owned(),
        })
    })();
    identity.ok_or_else(|| {
        protocol_violation("The answer to IDENTIFY_SYSTEM lacks the system identifier, the timeline or the database.")
    })
}
